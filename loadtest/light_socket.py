"""How do hundreds of callers share one process? A WebSocket client without tasks or queues: messages come as calls, and
frames that were made before leave as they are.

The protocol is that of ``websockets`` without its I/O.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlencode, urlsplit, urlunsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import SEND_EOF
from websockets.uri import parse_uri

from voice.errors import BadRequest, EngineFailed, Overloaded

if TYPE_CHECKING:
    from loadtest.network import Link, Sips

OnText: TypeAlias = Callable[[bytes, float], None]
"""Called with the bytes of each message and the loop time of its arrival."""
MAX_MESSAGE_BYTES = 4 * 2**20
MOST_UNSENT_BYTES = 2**20
"""A server that leaves so much unread has stopped to read: 15 s of audio."""
OPEN_S = 10.0
RETRY_S = 5.0
_CLOSE_S = 1.0
_SIP_BYTES = 4096
_CAME = memoryview(bytearray(64 * 1024))


def masked(text: str) -> bytes:
    """A text message as it goes over the wire, to be sent any number of times.

    Its mask is drawn once. Masks protect proxies from what scripts in browsers write; nothing else depends on them.
    """
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=True)


def endpoint(url: str, model: str = "voice") -> str:
    """The address to connect to, of a server (``http://127.0.0.1:8080``) or of its endpoint (``ws://…/v1/realtime``).

    Raises:
        BadRequest: Not an address.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read, a port that is none is an error
    except ValueError as error:
        raise BadRequest(f"{url!r} is not the address of a server: {error}") from None
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise BadRequest(f"{url!r} is not the address of a server, such as ws://127.0.0.1:8080/v1/realtime")
    path = (
        parts.path
        if parts.path.rstrip("/").endswith("/realtime")
        else f"{parts.path.rstrip('/')}/v1/realtime"
    )
    query = (
        parts.query
        if "model=" in parts.query
        else "&".join(filter(None, (parts.query, urlencode({"model": model}))))
    )
    return urlunsplit((scheme, parts.netloc, path, query, ""))


class LightSocket(asyncio.BufferedProtocol):
    """One connection. Made by :func:`dial`.

    Attributes:
        closed: Done when the connection is over, with the reason, or ``None`` when it was closed in order.
        link: Delays what comes and what is sent; ``None``: nothing does. First what comes, then what is sent.
        sips: Reads slowly; ``None``: as it comes.
    """

    def __init__(self, address: str, headers: dict[str, str], on_text: OnText) -> None:
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str | None] = loop.create_future()
        self.opened: asyncio.Future[None] = loop.create_future()
        self._on_text = on_text
        self.link: tuple[Link, Link] | None = None
        self.sips: Sips | None = None
        self._loop = loop
        self._protocol = ClientProtocol(parse_uri(address), max_size=MAX_MESSAGE_BYTES)
        self._headers = headers
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        # timers of the same time run in any order, so what they carry waits in line; bounded by the link's delay
        self._coming: deque[bytes] = deque()
        self._leaving: deque[bytes] = deque()
        self._resume: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ sending

    def send(self, frame: bytes) -> None:
        """Send what :func:`masked` made. A server that has stopped to read ends the connection."""
        if self.link is None:
            self._write(frame)
        else:
            self._leaving.append(frame)
            self._loop.call_at(self.link[1].arrives_at(self._loop.time()), self._write_next)

    def hang_up(self, *, rudely: bool = False) -> None:
        """End the call; ``rudely``: as a network that breaks."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if rudely:
            transport.abort()
            return
        self._protocol.send_close(1000)
        self._flush()
        self._loop.call_later(_CLOSE_S, transport.abort)

    def _write_next(self) -> None:
        self._write(self._leaving.popleft())

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self.closed.done():
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._over("the server stopped reading")
            transport.abort()

    def _flush(self) -> None:
        transport = self._transport
        assert transport is not None
        for data in self._protocol.data_to_send():
            if data is not SEND_EOF and data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()

    # ------------------------------------------------------------ receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`. One buffer serves all: what comes is copied at once."""
        return _CAME[:_SIP_BYTES] if self.sips is not None else _CAME

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        data = bytes(_CAME[:nbytes])
        if self.sips is not None and self._transport is not None:
            self._transport.pause_reading()
            pause_s = self.sips.pause_s(self._loop.time(), len(data))
            self._resume = self._loop.call_later(pause_s, self._read_on)
        if self.link is None:
            self._take(data, self._loop.time())
        else:
            at_s = self.link[0].arrives_at(self._loop.time())
            self._coming.append(data)
            self._loop.call_at(at_s, self._take_next, at_s)

    def eof_received(self) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if self._resume is not None:
            self._resume.cancel()
        self._over(str(exc) if exc is not None else "the connection broke")

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_next(self, at_s: float) -> None:
        self._take(self._coming.popleft(), at_s)

    def _take(self, data: bytes, at_s: float) -> None:
        if self.closed.done():
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._greeted()
            elif isinstance(event, Frame):
                self._frame(event, at_s)
        self._flush()
        if self._protocol.parser_exc is not None:
            self._give_up(f"what came is no WebSocket: {self._protocol.parser_exc}")
        elif self._protocol.handshake_exc is not None and not self.opened.done():
            self._give_up(f"what came is no HTTP: {self._protocol.handshake_exc}")

    def _give_up(self, why: str) -> None:
        self._over(why)
        assert self._transport is not None
        self._transport.abort()

    def _greeted(self) -> None:
        error = self._protocol.handshake_exc
        if self.opened.done():
            return
        if error is None:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(error)

    def _frame(self, frame: Frame, at_s: float) -> None:
        if frame.opcode is Opcode.CLOSE:
            code, why = self._protocol.close_code, self._protocol.close_reason
            self._over(None if code in (1000, 1001, 1005) else f"closed with {code} {why or ''}".strip())
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.fin and not self._parts:
                self._on_text(bytes(frame.data), at_s)
                return
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message = b"".join(self._parts)
                self._parts.clear()
                self._on_text(message, at_s)

    def _over(self, reason: str | None) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        if not self.opened.done():
            self.opened.set_exception(EngineFailed(f"the server ended the handshake: {reason}"))


@cache
def _secure() -> ssl.SSLContext:
    """Made once: it reads all certificates of the system."""
    return ssl.create_default_context()


async def dial(url: str, token: str | None, on_text: OnText) -> LightSocket:
    """Connect.

    Args:
        url: See :func:`endpoint`.
        token: Bearer token or client secret; ``None``: none.
        on_text: Takes the messages, from the first on.

    Raises:
        BadRequest: Not an address; the server refused the key or the request.
        Overloaded: The server is full.
        EngineFailed: There is no server, or it does not answer within :data:`OPEN_S`.
    """
    address = endpoint(url)
    try:
        uri = parse_uri(address)
    except InvalidURI as error:
        raise BadRequest(f"{url!r} is not the address of a server: {error}") from error
    socket = LightSocket(address, {"Authorization": f"Bearer {token}"} if token else {}, on_text)
    socket.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(OPEN_S):
            secure = _secure() if uri.secure else None
            await loop.create_connection(lambda: socket, uri.host, uri.port, ssl=secure)
            await socket.opened
    except InvalidStatus as error:
        socket.hang_up(rudely=True)
        status, body = error.response.status_code, error.response.body or b""
        said = body.decode(errors="replace")[:200]
        if status == 503:
            raise Overloaded(f"the server is full: {said}", RETRY_S) from error
        raise BadRequest(f"the server refused the connection with status {status}: {said}") from error
    except InvalidHandshake as error:
        socket.hang_up(rudely=True)
        raise EngineFailed(f"no WebSocket server answers at {url}: {error}") from error
    except TimeoutError as error:
        socket.hang_up(rudely=True)
        raise EngineFailed(f"{url} does not answer within {OPEN_S:.0f} s") from error
    except OSError as error:
        raise EngineFailed(f"no server answers at {url}: {error}") from error
    except BaseException:
        socket.hang_up(rudely=True)
        raise
    return socket

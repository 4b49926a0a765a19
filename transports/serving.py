"""How does the app run as a program of its own? Under uvicorn, with what it lacks: silent connections end, and a
signal to stop lets conversations finish first.

uvicorn sets no time for a connection that sends nothing or half a request, nor for one that takes nothing: such
connections would stay until the peer's machine goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from voice.errors import BadRequest, VoiceError

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame

    from transports.server import Server

log = logging.getLogger("voice.server")

Beside: TypeAlias = Callable[[uvicorn.Server], AbstractAsyncContextManager[object]]

HEAD_S = 10.0
"""The head of a request must have come this long after the connection was made, or after its first byte."""

REQUEST_S = 60.0
"""A request must be answered, and the answer taken, within this time."""

SILENT_CONNECTIONS = 256
"""Connections that have not yet sent a request; when there are more, the oldest is dropped."""

OTHER_CONNECTIONS = 256
"""HTTP connections beside the conversations; above it requests are answered with 503."""

LINGER_S = 5.0
"""How long a WebSocket whose conversation is over may take to go away."""

READ_BYTES = 16 * 1024
"""What a WebSocket takes from the network at once. The smallest frames have 6 bytes, and each takes some 7 µs to parse:
more of them would keep the event loop from all others for too long."""

MOST_WAITING_BYTES = 64 * 1024
"""A WebSocket of whose messages more than this wait for the app is not read until it has taken all."""

MESSAGE_BYTES = 256
"""What a message that waits takes beside its own bytes: empty ones take memory, too."""

MOST_FRAGMENTS = 16_384
"""Frames of one message: at least 1 kB each in one of 16 MiB."""

MOST_UNTAKEN_BYTES = 8 * 2**20
"""A peer that pings while it leaves this much unread is cut off. More than our longest event has."""

SEND_BUFFER_BYTES = 128 * 1024
"""Of a connection, in the kernel (which doubles it): two to four seconds of speech as base64."""

PING_S = 20.0
"""A WebSocket is pinged this often and must answer within the same time: a peer that is gone is noticed."""

STOP_S = 5.0
"""How long requests under way may take when the server stops, after the conversations are over."""


async def serve(
    app: Server,
    sockets: Sequence[socket.socket],
    *,
    on_ready: Callable[[], None] | None = None,
    signals: bool = True,
) -> bool:
    """Serve until SIGTERM or SIGINT; then drain. A second signal ends everything at once.

    While the engines load, ``/healthz`` already answers and ``/readyz`` says 503.

    Args:
        app: What to serve.
        sockets: From :func:`listen`; closed at the end.
        on_ready: Called when the engines are loaded.
        signals: Take the signals; ``False``: it serves until it is cancelled.

    Returns:
        Whether all conversations ended by themselves or by the drain; ``False`` after a second signal.

    Raises:
        VoiceError: The engines can't be loaded, or a port was taken meanwhile.
    """
    first, second = asyncio.Event(), asyncio.Event()
    with _on_signals(lambda: (second if first.is_set() else first).set(), signals):
        return await serve_until(first, second, app, sockets, on_ready=on_ready)


async def serve_until(
    first: asyncio.Event,
    second: asyncio.Event,
    app: Server,
    sockets: Sequence[socket.socket],
    *,
    on_ready: Callable[[], None] | None = None,
    beside: Beside = contextlib.nullcontext,
) -> bool:
    """As :func:`serve`: until ``first`` is set, then drain, at the longest until ``second`` is set.

    Args:
        beside: Entered when the server is up and left before it ends.
    """
    async with running(app, sockets) as server, beside(server):
        if await _finished(app.startup(), unless=first):
            if on_ready is not None:
                on_ready()
            await first.wait()
        server.force_exit = not await _finished(app.drain(), unless=second)
    return not server.force_exit


@contextlib.asynccontextmanager
async def running(app: Server, sockets: Sequence[socket.socket]) -> AsyncIterator[uvicorn.Server]:
    """Have ``app`` answer at ``sockets`` inside the context; conversations that are left are ended at its end."""
    server = _Uvicorn(_Config(app))
    task = asyncio.create_task(server.serve(list(sockets)), name="uvicorn")
    try:
        try:
            if await _finished(_result(task), unless=server.up):
                raise VoiceError("the server ended before it was up")
        except OSError as error:
            raise VoiceError(f"the server can't listen: {error.strerror or error}") from error
        yield server
        if not server.force_exit:
            await app.shutdown()
    finally:
        server.should_exit = True
        await asyncio.wait({task}, timeout=0.5 if server.force_exit else STOP_S + 1.0)
        task.cancel()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for each in sockets:
            each.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(app.shutdown(), 1.0)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of ``host``; port 0 chooses one.

    Raises:
        BadRequest: No such host or port.
        VoiceError: The port is taken or not allowed.
    """
    if not 0 <= port <= 65_535:
        raise BadRequest(f"a port is 0 to 65535, not {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise BadRequest(f"the host {host!r} is not known; give an address such as 127.0.0.1") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with contextlib.suppress(_NotHere):
                sockets.append(_bound(family, kind, protocol, (address[0], port, *address[2:])))
                port = sockets[-1].getsockname()[1]
    except OSError as error:
        for each in sockets:
            each.close()
        why = {errno.EADDRINUSE: "it is in use", errno.EACCES: "that is not allowed"}.get(error.errno or 0)
        raise VoiceError(f"can't listen on port {port} of {host}: {why or error.strerror or error}") from None
    if not sockets:
        raise BadRequest(f"{host!r} is not an address of this machine")
    return sockets


class _NotHere(Exception):
    """The address is none of this machine's, or of a family that it does not have."""


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    try:
        made = socket.socket(family, kind, protocol)
    except OSError:
        raise _NotHere from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # taken over by accepted connections: the kernel's own choice of some MB would hide a peer that reads nothing
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise _NotHere from None
        raise
    return made


# ---------------------------------------------------------------- uvicorn with limits


class _Config(uvicorn.Config):
    """How uvicorn runs: our protocols, our logging, no compression (audio does not compress)."""

    def __init__(self, app: Server) -> None:
        options = app.options
        super().__init__(
            app,
            http=GuardedHttp,
            ws=GuardedWebSocket,
            ws_max_size=options.max_message_bytes,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=options.max_sessions + SILENT_CONNECTIONS + OTHER_CONNECTIONS,
            timeout_graceful_shutdown=int(STOP_S),
        )
        self.silent: dict[GuardedHttp, None] = {}  # in the order they came


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone and tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class GuardedHttp(H11Protocol):
    """An HTTP connection with a time for its request's head, and for its answer to be taken."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        silent = cast(_Config, self.config).silent
        silent[self] = None
        if len(silent) > SILENT_CONNECTIONS:
            next(iter(silent)).transport.abort()
        self._within(HEAD_S)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # it is a WebSocket now
            self._let_go()
        elif self.cycle is not None and not self.cycle.response_complete:
            if self._in_head:
                self._in_head = False
                cast(_Config, self.config).silent.pop(self, None)
                self._within(REQUEST_S)
        elif not self._in_head:
            self._in_head = True
            self._within(HEAD_S)

    def on_response_complete(self) -> None:
        self._within(REQUEST_S)  # uvicorn ends it sooner, unless the peer does not take the answer
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        super().connection_lost(exc)

    def _within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _let_go(self) -> None:
        cast(_Config, self.config).silent.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()


class GuardedWebSocket(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """A WebSocket that goes away even if its peer takes nothing any more, and that takes little at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._came = bytearray(READ_BYTES)
        self._waiting_bytes = 0  # of messages that the app has not taken

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._came

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._came[:nbytes]))

    def send_receive_event_to_app(self) -> None:
        """Stop reading only when much waits: uvicorn stops after each message, which is two system calls each."""
        paused, self.read_paused = self.read_paused, True
        self._waiting_bytes += MESSAGE_BYTES + sum(map(len, self.frames))
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and self._waiting_bytes > MOST_WAITING_BYTES:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if self.queue.empty():
            self._waiting_bytes = 0
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        if self.conn.close_rcvd is None and not self.close_sent:
            # the network broke; uvicorn would report 1005, the code of a client that closes without giving one
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MOST_UNTAKEN_BYTES:
            self.transport.abort()  # it pings and takes no answers; they would pile up without bound

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > MOST_FRAGMENTS:
            self.transport.abort()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused, as it should be; uvicorn would log each as an error

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(1.0, self.transport.abort)  # a moment for the close frame


# ---------------------------------------------------------------- waiting and signals


async def _finished(work: Coroutine[Any, Any, object], *, unless: asyncio.Event) -> bool:
    """Whether ``work`` finished before ``unless`` was set; it is cancelled otherwise. Its errors are raised."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(unless.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        working.cancel()
        waiting.cancel()


async def _result(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


@contextlib.contextmanager
def _on_signals(callback: Callable[[], None], wanted: bool) -> Iterator[None]:
    """Call ``callback`` on the event loop for each SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT) if wanted else ()
    for number in numbers:
        loop.add_signal_handler(number, callback)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

"""A client of the Realtime protocol over a WebSocket: for load tests, examples, and programs that talk to a server."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from voice.errors import BadRequest, EngineFailed, Overloaded, ProtocolError
from voice.interfaces import Pcm16

RATE_HZ = 24_000
"""Rate of the audio both ways, unless the session is told otherwise."""
MAX_MESSAGE_BYTES = 4 * 2**20
_OPEN_S = 10.0
_CLOSE_S = 2.0


class RealtimeClient:
    """One conversation with a server. Made by :func:`connect`.

    Iterate it for the server's events, as dictionaries; the iteration ends when the server closes in order.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event, such as ``send("response.create")``. Waits while the server does not read.

        Raises:
            EngineFailed: The connection is gone.
        """
        try:
            await self._socket.send(json.dumps({"type": kind, **fields}))
        except ConnectionClosed as error:
            raise EngineFailed(f"the server closed the connection: {error}") from error

    async def hear(self, pcm: Pcm16) -> None:
        """Send more of the caller's audio: int16, 24 kHz, any length."""
        data = pcm.astype("<i2", copy=False).tobytes()
        await self.send("input_audio_buffer.append", audio=b64encode(data).decode())

    async def say(self, text: str) -> None:
        """Write something and ask for the answer."""
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item)
        await self.send("response.create")

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """The server's events.

        Raises:
            EngineFailed: The connection broke, or was closed with an error code.
            ProtocolError: What came is no event.
        """
        while True:
            try:
                message = await self._socket.recv()
            except ConnectionClosed as error:
                if error.rcvd is not None and error.rcvd.code == 1000:
                    return
                raise EngineFailed(f"the server closed the connection: {error}") from error
            event = json.loads(message)
            if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                raise ProtocolError("the server sent something that is no event")
            yield event

    async def until(self, kind: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """The next event of a kind; those before it are dropped.

        Raises:
            TimeoutError: None came in time.
            EngineFailed: The server closed before one came.
        """
        async with asyncio.timeout(timeout_s):
            async for event in self:
                if event["type"] == kind:
                    return event
        raise EngineFailed(f"the server closed before a {kind} came")


def audio_of(event: Mapping[str, Any]) -> Pcm16:
    """The samples of a ``response.output_audio.delta``: int16, 24 kHz."""
    return np.frombuffer(b64decode(event["delta"]), "<i2").astype(np.int16)


@asynccontextmanager
async def connect(
    url: str,
    *,
    token: str | None = None,
    model: str = "voice",
    session: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
) -> AsyncIterator[RealtimeClient]:
    """Begin a conversation; it ends with the context.

    Args:
        url: Of the server (``http://127.0.0.1:8080``), or of the endpoint itself (``ws://…/v1/realtime``).
        token: Bearer token or client secret.
        model: The server echoes it.
        session: Settings for a ``session.update`` at the start, without ``type``.
        query: Further parameters, such as ``{"extensions": "1"}``.

    Raises:
        BadRequest: Not an address; the server refused the key or the request.
        Overloaded: The server is full.
        EngineFailed: There is no server.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = _address(url, {"model": model, **(query or {})})
    try:
        socket = await open_socket(
            address,
            additional_headers=headers,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        said = (error.response.body or b"").decode(errors="replace")[:300]
        if status == 503:
            raise Overloaded(f"the server is full: {said}", 5.0) from error
        raise BadRequest(f"the server refused the connection with status {status}: {said}") from error
    except InvalidURI as error:
        raise BadRequest(f"{url} is not the address of a server") from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise EngineFailed(f"no server answers at {url}: {error}") from error
    try:
        client = RealtimeClient(socket)
        await client.until("session.created")
        if session is not None:
            await client.send("session.update", session={"type": "realtime", **session})
        yield client
    finally:
        await socket.close()


def _address(url: str, query: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path if parts.path.endswith("/realtime") else f"{parts.path.rstrip('/')}/v1/realtime"
    asked = "&".join(part for part in (parts.query, urlencode(query)) if part)
    return urlunsplit((scheme, parts.netloc, path, asked, ""))

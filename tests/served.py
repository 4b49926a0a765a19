"""A server on a real port with a client of it, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from talk import make_agent
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from transports.options import ServerOptions
from transports.server import Server, app
from transports.serving import listen, running
from voice.agent import Agent

TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TEN_WORDS = "One two three four five six seven eight nine ten."
"""Two seconds of speech."""


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


@dataclass
class Place:
    """A running server and a client of it."""

    server: Server
    port: int
    http: httpx.AsyncClient

    def ws(self, path: str = "/v1/realtime?model=voice", **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", compression=None, proxy=None, **options)

    async def refused(
        self, path: str = "/v1/realtime?model=voice", **options: Any
    ) -> tuple[int, dict[str, Any]]:
        """Status and error of a WebSocket that is not let in."""
        with pytest.raises(InvalidStatus) as caught:
            await self.ws(path, **options)
        response = caught.value.response
        return response.status_code, json.loads(response.body or b"{}").get("error", {})

    async def raw(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer


@contextlib.asynccontextmanager
async def serving_app(made: Server) -> AsyncIterator[Place]:
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    async with running(made, sockets), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        await made.startup()
        yield Place(made, port, http)


def place(agent: Agent | None = None, **options: Any) -> contextlib.AbstractAsyncContextManager[Place]:
    return serving_app(app(agent or make_agent(), options=ServerOptions(**options)))


async def event(websocket: ClientConnection) -> dict[str, Any]:
    found = json.loads(await websocket.recv())
    assert isinstance(found, dict)
    return found


async def close_code(websocket: ClientConnection) -> int | None:
    """The code it is closed with, after everything it sends."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await websocket.recv()
    return websocket.close_code


async def empty(made: Server) -> None:
    """Wait until all conversations are over."""
    while made.host.sessions:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)

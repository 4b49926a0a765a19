"""Too much, too long, too slow: what the server does to one client it does not do to the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from served import close_code, empty, event, place, run
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode

from transports import serving

# ---------------------------------------------------------------- limits


def test_a_full_server_says_so_and_when_to_come_back() -> None:
    async def work() -> None:
        async with place(max_sessions=3, max_sessions_per_client=2) as at:
            async with at.ws() as one, at.ws() as two:
                await event(one)
                await event(two)
                with pytest.raises(InvalidStatus) as caught:
                    await at.ws()
                response = caught.value.response
                assert response.status_code == 503
                assert int(response.headers["Retry-After"]) >= 1
                assert json.loads(response.body or b"")["error"]["code"] == "server_overloaded"
            await empty(at.server)
            async with at.ws() as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)


def test_a_crowd_that_says_nothing_is_limited_and_leaves_room() -> None:
    async def work() -> None:
        limits = {"max_sessions": 20, "max_sessions_per_client": 20, "first_message_s": 1.0}
        async with place(**limits) as at:

            async def come() -> int | None:
                try:
                    async with at.ws() as websocket:
                        return await close_code(websocket)
                except InvalidStatus as refused:
                    return refused.response.status_code

            outcomes = await asyncio.gather(*(come() for _ in range(200)))
            assert outcomes.count(503) == 180
            assert all(code in (503, *CloseCode) for code in outcomes)
            assert at.server.host.sessions == 0
            async with at.ws() as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)


def test_connections_that_send_nothing_or_half_a_request_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.5)

    async def work() -> None:
        async with place() as at:
            half = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
            ends = [await at.raw(data) for data in (b"", half, half + b"\r\n") for _ in range(5)]
            for reader, writer in ends[10:]:  # these have got an answer before
                assert b"ok" in await reader.readuntil(b"}")
                writer.write(half)

            async def trickle(writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(ConnectionError):
                    for _ in range(100):
                        writer.write(b"X-Y: z\r\n")
                        await writer.drain()
                        await asyncio.sleep(0.05)

            trickling = asyncio.ensure_future(trickle(ends[5][1]))
            async with asyncio.timeout(3):
                for reader, _ in ends:
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
            assert (await at.http.get("/healthz")).status_code == 200
            for _, writer in ends:
                writer.close()
            trickling.cancel()

    run(work)


def test_of_too_many_silent_connections_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SILENT_CONNECTIONS", 10)

    async def work() -> None:
        async with place() as at:
            silent = [await at.raw() for _ in range(30)]
            await asyncio.sleep(0.2)
            assert (await at.http.get("/healthz")).status_code == 200
            gone = 0
            for reader, _ in silent:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(0.01):
                        await reader.read()
                    gone += 1
                gone += isinstance(reader.exception(), ConnectionError)
            assert 20 <= gone <= 21
            for _, writer in silent:
                writer.close()

    run(work)


def test_an_answer_that_is_not_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.5)

    async def work() -> None:
        async with place() as at:
            connection = socket.create_connection(("127.0.0.1", at.port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.setblocking(False)
            asked = b"GET /page/app.js HTTP/1.1\r\nHost: x\r\n\r\n" * 2000
            loop = asyncio.get_running_loop()
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(3):
                    await loop.sock_sendall(connection, asked)
                    await asyncio.sleep(1)
            with pytest.raises(ConnectionError):
                for _ in range(100):
                    connection.send(b"x" * 100)
                    await asyncio.sleep(0.02)
            connection.close()
            assert (await at.http.get("/healthz")).status_code == 200

    run(work)


def test_a_message_that_is_too_long_ends_its_connection_only() -> None:
    async def work() -> None:
        async with place(max_message_bytes=10_000) as at, at.ws() as good, at.ws() as bad:
            await event(good)
            await event(bad)
            await bad.send("x" * 20_000)
            assert await close_code(bad) == CloseCode.MESSAGE_TOO_BIG
            await good.ping()
            assert at.server.host.sessions >= 1

    run(work)


def test_a_peer_that_is_gone_without_a_word_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half open: the connection stands, and nobody answers pings."""
    monkeypatch.setattr(serving, "PING_S", 0.3)

    async def work() -> None:
        async with place() as at:
            upgrade = (
                b"GET /v1/realtime?model=x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            reader, writer = await at.raw(upgrade)
            assert (await reader.readline()).startswith(b"HTTP/1.1 101")
            assert at.server.host.sessions == 1
            async with asyncio.timeout(5):
                await empty(at.server)
            writer.close()

    run(work)

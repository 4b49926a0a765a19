"""The server inside another app, and under servers that offer less or more than uvicorn does here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from served import TOKEN, Place, close_code, event, run
from starlette.applications import Starlette
from starlette.routing import Mount
from talk import make_agent
from websockets.frames import CloseCode

from transports.options import ServerOptions
from transports.server import app
from transports.serving import listen
from voice.interfaces import Stages


def test_it_works_mounted_under_a_prefix_without_being_told_of_the_start() -> None:
    async def work() -> None:
        inner = app(make_agent(), options=ServerOptions(max_message_bytes=10_000))
        outer = Starlette(routes=[Mount("/assistant", inner)])
        config = uvicorn.Config(
            outer, port=0, lifespan="off", log_config=None, ws="websockets-sansio", ws_max_size=2**20
        )
        guest = uvicorn.Server(config)
        (bound,) = listen("127.0.0.1", 0)
        port = bound.getsockname()[1]
        with contextlib.ExitStack() as stack:
            stack.callback(bound.close)
            guest.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
            running_guest = asyncio.ensure_future(guest.serve([bound]))
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                assert (await http.get("/assistant/")).status_code == 200
                assert (await http.get("/assistant/page/app.js")).status_code == 200
                assert (await http.get("/assistant/readyz")).json() == {"status": "ready"}
                at = Place(inner, port, http)
                async with at.ws("/assistant/v1/realtime?model=x") as websocket:
                    assert (await event(websocket))["type"] == "session.created"
                    await websocket.send("x" * 20_000)
                    assert await close_code(websocket) == CloseCode.MESSAGE_TOO_BIG, "our own limit"
                async with at.ws("/assistant/v1/realtime?model=x") as websocket:
                    await event(websocket)
                    await inner.drain()
                    assert await close_code(websocket) == CloseCode.SERVICE_RESTART
                assert (await at.refused("/assistant/v1/realtime?model=x"))[0] == 503
                await inner.shutdown()
            guest.should_exit = True
            await running_guest

    run(work)


def test_alone_it_starts_and_ends_with_the_lifespan() -> None:
    async def work() -> None:
        warm: list[Stages] = []

        async def warm_up(stages: Stages) -> None:
            warm.append(stages)

        made = app(make_agent(), warm_up=warm_up)
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def send(message: Any) -> None:
            said.put_nowait(message)

        living = asyncio.ensure_future(made({"type": "lifespan", "asgi": {}}, told.get, send))
        told.put_nowait({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        assert len(warm) == 1
        told.put_nowait({"type": "lifespan.shutdown"})
        assert (await said.get())["type"] == "lifespan.shutdown.complete"
        await living
        assert made.state == "draining"

    run(work)


def test_a_server_below_that_can_not_refuse_a_handshake_gets_an_event_and_a_close() -> None:
    async def work() -> None:
        made = app(make_agent(), options=ServerOptions(tokens=(TOKEN,)))
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "query_string": b"",
            "headers": [],
            "subprotocols": ["realtime"],
            "client": ("192.0.2.7", 5),
        }
        await made(scope, receive, send)
        assert [message["type"] for message in sent] == [
            "websocket.accept",
            "websocket.send",
            "websocket.close",
        ]
        assert sent[0]["subprotocol"] == "realtime"
        told = json.loads(sent[1]["text"])
        assert (told["type"], told["error"]["code"]) == ("error", "invalid_api_key")
        assert sent[2]["code"] == CloseCode.POLICY_VIOLATION

    run(work)


@pytest.mark.live
def test_the_example_mounts_the_local_agent_in_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fastapi_mount.py"])
    path = Path(__file__).parents[2] / "examples" / "fastapi_mount.py"
    web = runpy.run_path(str(path))["web"]

    async def work() -> None:
        guest = uvicorn.Server(uvicorn.Config(web, log_config=None))
        monkeypatch.setattr(guest, "capture_signals", contextlib.nullcontext)
        (bound,) = listen("127.0.0.1", 0)
        serving = asyncio.ensure_future(guest.serve([bound]))
        base = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base, timeout=60) as http:
            while not guest.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.05)
            assert "shop" in (await http.get("/")).text
            assert (await http.get("/voice/readyz")).json() == {"status": "ready"}
            assert (await http.get("/voice/")).headers["content-type"].startswith("text/html")
        guest.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(work(), 100))

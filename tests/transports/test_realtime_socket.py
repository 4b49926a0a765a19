"""Realtime conversations over real WebSockets: the small client, ends and their codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from talk import make_agent
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed

from transports.options import ServerOptions
from transports.server import Server, app
from transports.serving import listen, running
from transports.websocket import RealtimeClient, audio_of, connect
from voice.agent import Agent
from voice.errors import BadRequest, EngineFailed, Overloaded
from voice.testing import speak
from voice.tools import ToolContext, tool

RATE_HZ = 24_000


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def served(agent: Agent, **options: Any) -> AsyncIterator[tuple[str, Server]]:
    made = app(agent, options=ServerOptions(**options))
    sockets = listen("127.0.0.1", 0)
    async with running(made, sockets):
        await made.startup()
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}", made


async def hear(client: RealtimeClient, seconds: float, hz: float = 220) -> None:
    """Stream a voice (or silence, for 0 Hz) in real time, 40 ms at a time."""
    sound = speak(seconds, hz, rate=RATE_HZ) if hz else np.zeros(int(seconds * RATE_HZ), np.int16)
    for index in range(0, sound.size, 960):
        await client.hear(sound[index : index + 960])
        await asyncio.sleep(0.04)


async def until_empty(server: Server) -> None:
    while server.host.sessions:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)


def test_the_small_client_holds_a_conversation() -> None:
    async def main() -> None:
        async with served(make_agent(["Fine, thanks."])) as (url, server), connect(url) as client:
            await hear(client, 0.6)
            listening = asyncio.create_task(hear(client, 20, 0))
            kinds, heard = [], 0
            async for event in client:
                kinds.append(event["type"])
                if event["type"] == "response.output_audio.delta":
                    heard += audio_of(event).size
                if event["type"] == "response.done":
                    break
            listening.cancel()
            assert kinds[0] == "input_audio_buffer.speech_started"
            assert heard == pytest.approx(0.4 * RATE_HZ, rel=0.2)
            assert server.host.sessions == 1
        await until_empty(server)

    run(main)


def test_what_can_not_be_reached_or_entered_is_told() -> None:
    async def main() -> None:
        async with served(make_agent(), tokens=("secret-token",), max_sessions=1) as (url, _):
            with pytest.raises(BadRequest, match="401"):
                async with connect(url):
                    pass
            async with connect(url, token="secret-token"):
                with pytest.raises(Overloaded):
                    async with connect(url, token="secret-token"):
                        pass
        with pytest.raises(EngineFailed):
            async with connect(url):
                pass

    run(main)


def test_a_tool_that_hangs_up_closes_in_order() -> None:
    @tool
    async def goodbye(context: ToolContext) -> str:
        """Ends the call."""
        context.hang_up()
        return "bye"

    from voice.interfaces import ToolCall

    async def main() -> None:
        agent = make_agent([[ToolCall("c1", "goodbye", "{}")]], tools=[goodbye])
        async with served(agent) as (url, server), connect(url) as client:
            await client.say("bye")
            kinds = [event["type"] async for event in client]
            assert kinds[-2:] == ["response.done", "rate_limits.updated"]
            await until_empty(server)

    run(main)


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        ({"idle_s": 0.3, "first_message_s": 60.0}, 1000, "session_expired"),
        ({"session_s": 0.3}, 1000, "session_expired"),
    ],
)
def test_time_limits_are_told_before_the_close(options: dict[str, Any], code: int, error: str) -> None:
    async def main() -> None:
        async with served(make_agent(), **options) as (url, _):
            address = url.replace("http", "ws") + "/v1/realtime?model=x"
            async with raw_connect(address, proxy=None) as socket:
                await socket.send("{}")
                texts = []
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        texts.append(json.loads(await socket.recv()))
                assert texts[-1]["error"]["code"] == error
                assert socket.close_code == code

    run(main)

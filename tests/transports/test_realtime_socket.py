"""Realtime conversations over real WebSockets: the small client, ends and their codes, a broken network."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from talk import ONE_TO_FORTY, make_agent
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed

from transports.options import ServerOptions
from transports.server import Server, app
from transports.serving import listen, running
from transports.websocket import RealtimeClient, audio_of, connect
from voice.agent import Agent
from voice.errors import BadRequest, EngineFailed, Overloaded
from voice.options import Limits
from voice.testing import ScriptedRecogniser, speak
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


async def hear(client: RealtimeClient, seconds: float, hz: float = 220, start_s: float = 0.0) -> None:
    """Stream a voice (or silence, for 0 Hz) in real time, 40 ms at a time."""
    sound = speak(seconds, hz, rate=RATE_HZ) if hz else np.zeros(int(seconds * RATE_HZ), np.int16)
    for index in range(int(start_s * RATE_HZ), sound.size, 960):
        await client.hear(sound[index : index + 960])
        await asyncio.sleep(0.04)


async def close_code(socket: ClientConnection) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code


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
            async with raw_connect(url.replace("http", "ws") + "/v1/realtime?model=x", proxy=None) as socket:
                await socket.send("{}")
                texts = []
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        texts.append(json.loads(await socket.recv()))
                assert texts[-1]["error"]["code"] == error
                assert socket.close_code == code

    run(main)


def test_a_client_that_comes_back_goes_on_in_the_middle_of_its_sentence() -> None:
    async def main() -> None:
        agent = make_agent(["Fine."], recogniser=ScriptedRecogniser({220: "All of it."}))
        async with served(agent) as (url, server):
            async with connect(url, query={"resume": "1"}) as client:
                token = (await client.until("voice.resumable"))["token"]
                await hear(client, 0.8)
                client._socket.transport.abort()  # the network breaks
            await asyncio.sleep(0.3)
            assert server.host.sessions == 1
            async with connect(url, query={"resume": token}) as client:
                received_ms = (await client.until("voice.resumed"))["audio_received_ms"]
                assert 500 < received_ms <= 800
                await hear(client, 1.6, start_s=received_ms / 1000)
                listening = asyncio.create_task(hear(client, 20, 0))
                said = await client.until("conversation.item.input_audio_transcription.completed")
                assert said["transcript"] == "All of it."
                assert said["usage"]["seconds"] == pytest.approx(1.8, abs=0.25), "audio of the gap is used once"
                await client.until("response.done")
                listening.cancel()
                assert server.host.sessions == 1
            await until_empty(server)
            with pytest.raises(BadRequest, match="404"):
                async with connect(url, query={"resume": token}):
                    pass

    run(main)


def test_of_two_that_come_back_the_newer_wins() -> None:
    async def main() -> None:
        async with served(make_agent(["Fine."])) as (url, server):
            async with connect(url, query={"resume": "1"}) as first:
                token = (await first.until("voice.resumable"))["token"]
                async with connect(url, query={"resume": token}) as second:
                    await second.until("voice.resumed")
                    assert await close_code(first._socket) == 1008
                    await second.say("hello")
                    await second.until("response.done")
                    assert server.host.sessions == 1
            await until_empty(server)

    run(main)


def test_a_client_that_does_not_come_back_frees_its_place() -> None:
    async def main() -> None:
        async with served(make_agent(), resume_s=0.3) as (url, server):
            async with connect(url, query={"resume": "1"}) as client:
                await client.until("voice.resumable")
                client._socket.transport.abort()
            await until_empty(server)

    run(main)


def test_a_client_that_stops_reading_is_closed_and_others_go_on() -> None:
    async def main() -> None:
        agent = make_agent([" ".join([ONE_TO_FORTY] * 8)] * 2 + ["Short."] * 5, limits=Limits(send_stall_s=0.5))
        async with served(agent) as (url, server):
            address = url.replace("http", "ws") + "/v1/realtime?model=x"
            async with raw_connect(address, proxy=None, max_queue=1, compression=None) as deaf:
                deaf.transport.get_extra_info("socket").setsockopt(1, 8, 4096)
                update = {"type": "realtime", "output_modalities": ["text"]}
                await deaf.send(json.dumps({"type": "session.update", "session": update}))
                for _ in range(200_000):  # every answer to it waits for a client that reads nothing
                    if not server.host.sessions:
                        break
                    try:
                        await asyncio.wait_for(deaf.send('{"type":"session.update","session":{}}'), 0.5)
                    except (TimeoutError, ConnectionClosed):
                        break
                async with connect(url) as other:
                    await other.say("hello")
                    await other.until("response.created")

    run(main)


def test_a_flood_of_audio_is_bounded_and_told_nothing_else_breaks() -> None:
    async def main() -> None:
        async with served(make_agent(["Fine."] * 20)) as (url, server), connect(url) as flood:
            second = np.zeros(RATE_HZ, np.int16)
            for _ in range(120):
                await flood.hear(second)
            async with connect(url) as other:
                await other.say("hello")
                await other.until("response.done")
            sessions = [slot.session for slot in server.host._slots.values() if slot.session is not None]
            assert sessions and all(len(session.ear.log) < 30 * 16_000 for session in sessions)

    run(main)

"""Clients that come and go in every way, in hundreds, and a tool that blocks: those who talk notice nothing, and
everything returns to where it was (B52, B54 over real sockets)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import astuple, dataclass
from typing import Any

import psutil
import pytest
from served import TEN_WORDS, Place, empty, place, run
from talk import make_agent
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from transports.websocket import RATE_HZ, audio_of, connect
from voice.agent import Agent
from voice.errors import EngineFailed
from voice.interfaces import ModelEvent, Prompt, ToolCall
from voice.scope import Scope
from voice.testing import ScriptedModel, ScriptedRecogniser, ToneSynthesiser, speak
from voice.tools import tool

TALKERS = 20
LEAVERS = 200
DELAYS_S = (0.0, 0.001, 0.005, 0.05, 0.2)
ROOM: dict[str, Any] = {"max_sessions": 400, "max_sessions_per_client": 400, "admission": None}


# ---------------------------------------------------------------- the server


@tool
async def blocking() -> str:
    """Look something up, in a way that blocks everybody."""
    time.sleep(0.4)  # noqa: ASYNC251 - the fault that is to be found
    return "found"


@tool
async def slow() -> str:
    """Look something up that takes long."""
    await asyncio.sleep(20)
    return "found"


class Moody(ScriptedModel):
    """Answers as it is asked: at once, after two seconds, never; or it breaks, or calls a tool."""

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        asked = prompt.messages[-1].text
        if asked == "takes two seconds":
            await asyncio.sleep(2.0)
        if asked == "raises":
            raise EngineFailed("the model can't start")
        async for event in super().generate(prompt, scope):
            yield event


def reply(prompt: Prompt) -> Any:
    asked = prompt.messages[-1].text
    if asked in ("slow", "blocking"):
        return [ToolCall("", asked, "{}")]
    return {"long": "word " * 100}.get(asked, TEN_WORDS)


def agent() -> Agent:
    return make_agent(
        Moody(reply, first_token_s=0.01, token_s=0.0),
        recogniser=ScriptedRecogniser(lambda audio: "long"),
        synthesiser=ToneSynthesiser(rtf=0.01),
        tools=[blocking, slow],
    )


@dataclass
class Census:
    """What a server holds: tasks, conversations, open files and sockets, threads."""

    tasks: int
    sessions: int
    files: int
    threads: int

    @staticmethod
    def of(server: Place) -> Census:
        process = psutil.Process()
        files = process.num_fds() if hasattr(process, "num_fds") else 0
        threads = sum(thread.name != "voice-watchdog" for thread in threading.enumerate())
        return Census(len(asyncio.all_tasks()), server.server.host.sessions, files, threads)

    def within(self, start: Census) -> bool:
        """Whether nothing is more than it was; threads of tests before this one may have ended meanwhile."""
        return all(now <= before for now, before in zip(astuple(self), astuple(start), strict=True))


async def comes_back(server: Place, start: Census) -> None:
    """Wait until nothing more is held than at the start."""
    now = Census.of(server)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not (now := Census.of(server)).within(start):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
    assert now.within(start), [now, start, *(task.get_name() for task in asyncio.all_tasks())]


# ---------------------------------------------------------------- callers


async def talker(server: Place, until: asyncio.Event) -> int:
    """Asks and listens until the others are done; every answer is whole. Returns how many it got."""
    answers = 0
    async with connect(f"http://127.0.0.1:{server.port}") as client:
        while not until.is_set() or not answers:
            await client.say("Tell me.")
            samples = 0
            async for event in client:
                if event["type"] == "response.output_audio.delta":
                    samples += len(audio_of(event))
                if event["type"] == "response.done":
                    break
            assert event["response"]["status"] == "completed"
            assert event["response"]["output"][0]["content"][0]["transcript"] == TEN_WORDS
            assert samples == pytest.approx(2.0 * RATE_HZ, abs=RATE_HZ // 50)
            answers += 1
    return answers


async def ask(client: ClientConnection, text: str) -> None:
    part = {"type": "input_text", "text": text}
    item = {"type": "message", "role": "user", "content": [part]}
    await client.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await client.send('{"type":"response.create"}')


def reset(client: ClientConnection) -> None:
    """The TCP connection is torn down with a reset."""
    plain: socket.socket = client.transport.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


async def leave(client: ClientConnection, how: str) -> None:
    if how == "closes":
        await client.close()
    elif how == "resets":
        reset(client)
    else:  # without a close frame
        client.transport.abort()
    with contextlib.suppress(WebSocketException):
        await client.wait_closed()


async def connects_and_leaves(server: Place, chance: random.Random, over_s: float) -> str:
    """At a random moment, for a moment, in a random way."""
    await asyncio.sleep(chance.uniform(0.0, over_s))
    how = chance.choice(["closes", "resets", "just goes", "in the handshake"])
    delay_s = chance.choice(DELAYS_S)
    if how == "in the handshake":
        _, writer = await server.raw(b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgra"[: chance.randrange(46)])
        await asyncio.sleep(delay_s)
        writer.transport.abort()
        return how
    with contextlib.suppress(WebSocketException, OSError):
        client = await server.ws(max_queue=None)  # it takes what comes, read or not
        try:
            await ask(client, chance.choice(["takes two seconds", "raises", "long", "slow"]))
            await asyncio.sleep(delay_s)
        finally:
            await leave(client, how)
    return how


async def beside_talkers(server: Place, work: Callable[[], Any]) -> list[int]:
    """Do something while twenty talk; returns how many answers each of them got."""
    done = asyncio.Event()
    talking = [asyncio.create_task(talker(server, done)) for _ in range(TALKERS)]
    try:
        await work()
    finally:
        done.set()
    return await asyncio.gather(*talking)


# ---------------------------------------------------------------- tests


def test_two_hundred_who_connect_and_leave_at_once_disturb_nobody_and_leave_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seed = 52
    print(f"seed={seed}")
    chance = random.Random(seed)

    async def main() -> None:
        async with place(agent(), **ROOM) as server:
            await connects_and_leaves(server, random.Random(0), 0.0)  # what is made once is made here
            done = asyncio.Event()
            done.set()
            await talker(server, done)
            await empty(server.server)
            start = Census.of(server)
            ways: Counter[str] = Counter()

            async def crowd() -> None:
                ways.update(
                    await asyncio.gather(*(connects_and_leaves(server, chance, 2.0) for _ in range(LEAVERS)))
                )

            answers = await beside_talkers(server, crowd)
            assert min(answers) >= 1
            assert min(ways.values()) > LEAVERS / 10
            await empty(server.server)
            await comes_back(server, start)
            metrics = server.server.host.metrics
            assert sum(metrics.opened.values()) == sum(metrics.ended.values())
            async with server.ws() as last:
                assert "session.created" in str(await last.recv())

    with caplog.at_level(logging.INFO):
        run(main)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    lines = Counter(getattr(r, "session", None) for r in caplog.records)
    del lines[None]
    assert max(lines.values()) <= 3, "a few lines for each session, not hundreds"


@pytest.mark.parametrize("phase", ["mid reply", "mid tool call", "mid utterance"])
def test_resets_in_mid_conversation_are_each_seen_once_and_within_two_seconds_nothing_is_left(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = 34

    async def lost(server: Place, how: str) -> None:
        client = await server.ws(max_queue=None)
        if phase == "mid utterance":
            pcm = base64.b64encode(speak(0.3, rate=RATE_HZ).astype("<i2").tobytes()).decode()
            await client.send(json.dumps({"type": "input_audio_buffer.append", "audio": pcm}))
            wanted = "speech_started"
        else:
            await ask(client, "long" if phase == "mid reply" else "slow")
            wanted = "output_audio.delta" if phase == "mid reply" else "response.created"
        while wanted not in str(await client.recv()):
            pass
        await leave(client, how)

    async def main() -> None:
        async with place(agent(), **ROOM) as server:
            await lost(server, "resets")
            await empty(server.server)
            start, before = Census.of(server), server.server.host.metrics.ended["disconnected"]

            async def losses() -> None:
                ways = ("resets", "just goes")
                await asyncio.gather(*(lost(server, ways[n % 2]) for n in range(times)))

            await losses()
            async with asyncio.timeout(2.0 + 5.0):  # 2 s, and what a busy machine may add
                await comes_back(server, start)
            assert server.server.host.metrics.ended["disconnected"] == before + times

    with caplog.at_level(logging.INFO):
        run(main)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    ends = Counter(getattr(r, "session", None) for r in caplog.records if r.getMessage() == "session ended")
    assert len(ends) == times + 1
    assert set(ends.values()) == {1}


def test_a_tool_that_blocks_the_server_is_named_in_its_log_and_counted_in_its_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "voice.watchdog"]

    async def main() -> None:
        async with place(agent(), admission=None) as server:
            async with server.ws(max_queue=None) as client:
                await ask(client, "blocking")
                while not any("blocking (" in line for line in logged()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                text = (await server.http.get("/metrics")).text
            assert re.search(r'voice_event_loop_blocked_total\{cause="\w+"\} [1-9]', text)
            assert re.search(r"voice_event_loop_blocked_worst_seconds (0\.[1-9]|[1-9])", text)
            await empty(server.server)
            async with asyncio.timeout(5):
                while any(t.name == "voice-watchdog" for t in threading.enumerate()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, "voice.watchdog"):
        run(main)
    [line] = [line for line in logged() if "blocking (" in line]
    assert __file__ in line

"""B50 over a real socket: a client stops reading, reads slowly, or sends far too much, and others go on.

The kind of fault: as in ``test_b50_slow_client.py``, an edge without a bound. Beyond the session there are three more
edges: what waits for the socket (``transports/outgoing.py``: a second of audio, 8 MiB of events), what the socket
library holds (64 KiB), and the kernel's buffer (``transports/serving.py``: small, so that a deaf peer is noticed).
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from served import Place, close_code, empty, place, run, serving_app
from talk import make_agent
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

from transports.options import ServerOptions
from transports.server import app
from transports.websocket import RATE_HZ, connect
from voice.agent import Agent
from voice.interfaces import ASR_RATE_HZ, Prompt
from voice.options import Limits
from voice.session import Session
from voice.testing import ScriptedModel, ScriptedRecogniser, ToneSynthesiser

MINUTE = "word word word word word. " * 60
BUFFER_BYTES = 8 * 1024
"""Kernel buffers of these tests, so that a stall is felt after a second and not after many."""
SHORT = "Nothing to report."


def agent(send_stall_s: float) -> Agent:
    def reply(prompt: Prompt) -> str:
        return {"long": MINUTE, "three": "word " * 15}.get(prompt.messages[-1].text, SHORT)

    return make_agent(
        ScriptedModel(reply, token_s=0.0),
        recogniser=ScriptedRecogniser(lambda audio: ""),
        synthesiser=ToneSynthesiser(rtf=0.01),
        limits=Limits(send_stall_s=send_stall_s),
    )


@asynccontextmanager
async def served(send_stall_s: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr("transports.serving.SEND_BUFFER_BYTES", BUFFER_BYTES)
    async with place(agent(send_stall_s)) as server:
        yield server


@asynccontextmanager
async def reluctant(server: Place) -> AsyncIterator[ClientConnection]:
    """A client whose own buffers are small: what it does not read, the server keeps."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", server.port))
    address = f"ws://127.0.0.1:{server.port}/v1/realtime?model=voice"
    client = await open_socket(
        address, sock=plain, proxy=None, compression=None, max_queue=1, close_timeout=0.1
    )
    try:
        yield client
    finally:
        await client.close()


async def ask(client: ClientConnection, text: str) -> None:
    part = {"type": "input_text", "text": text}
    item = {"type": "message", "role": "user", "content": [part]}
    await client.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await client.send('{"type":"response.create"}')


def session_of(server: Place) -> Session:
    """The session of the client that came last."""
    session = list(server.server.host._slots.values())[-1].session
    assert session is not None
    return session


def check_bounds(session: Session) -> None:
    """What is held for a client stays within its bounds, at each edge."""
    outgoing = session.transport._outgoing  # type: ignore[attr-defined]
    track = session.playout.track
    assert track is None or track.queued_s <= Limits().playout_s + 0.1
    assert outgoing.audio_s <= 1.0 + 0.12, "a second, and the piece that came last"


async def short_talk(server: Place) -> None:
    async with connect(f"http://127.0.0.1:{server.port}") as other:
        await other.say("short")
        done = (await other.until("response.done"))["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["transcript"] == SHORT


def test_a_client_that_stops_reading_in_a_long_reply_is_closed_with_a_reason_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with served(1.5, monkeypatch) as server, reluctant(server) as deaf:
            await ask(deaf, "long")
            while "output_audio.delta" not in str(await deaf.recv()):
                pass
            session = session_of(server)
            deaf.transport.pause_reading()
            others = asyncio.create_task(short_talk(server))
            while session.ended is None:
                check_bounds(session)
                await asyncio.sleep(0.01)
            assert session.ended == "slow_client"
            await others
            await short_talk(server)
            deaf.transport.resume_reading()
            assert await close_code(deaf) in (1013, 1006)
            await empty(server.server)

    run(main)


def test_a_short_stall_costs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(2.0, monkeypatch) as server, reluctant(server) as client:
            await ask(client, "three")
            heard_s, stalled, done = 0.0, False, False
            while not done:
                event = json.loads(await client.recv())
                heard_s += seconds_of(event)
                done = event["type"] == "response.done"
                if heard_s > 0.5 and not stalled:
                    stalled = True
                    client.transport.pause_reading()
                    await asyncio.sleep(1.0)
                    client.transport.resume_reading()
            assert heard_s == pytest.approx(3.0, abs=0.1)
            assert session_of(server).ended is None

    run(main)


def test_a_client_at_half_speed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(4.0, monkeypatch) as server, reluctant(server) as slow:
            await ask(slow, "three")
            session, heard_s, event = None, 0.0, {"type": ""}
            others = asyncio.create_task(short_talk(server))
            while event["type"] != "response.done":
                event = json.loads(await slow.recv())
                session = session or next(iter(server.server.host._slots.values())).session
                assert session is not None
                check_bounds(session)
                heard_s += seconds_of(event)
                await asyncio.sleep(2.0 * seconds_of(event))
            assert heard_s == pytest.approx(3.0, abs=0.1)
            await others

    run(main)


def seconds_of(event: dict[str, Any]) -> float:
    if event["type"] != "response.output_audio.delta":
        return 0.0
    return len(base64.b64decode(event["delta"])) / 2 / RATE_HZ


def test_events_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(10.0, monkeypatch) as server, reluctant(server) as deaf:
            part = {"type": "input_text", "text": "x" * 100_000}
            item = {"type": "message", "role": "system", "id": "long", "content": [part]}
            await deaf.send(json.dumps({"type": "conversation.item.create", "item": item}))
            session = session_of(server)
            outgoing = session.transport._outgoing  # type: ignore[attr-defined]
            with suppress(ConnectionClosed):
                while session.ended is None:
                    await deaf.send('{"type":"conversation.item.retrieve","item_id":"long"}')
                    await asyncio.sleep(0.001)
                    assert outgoing._bytes <= 8 * 2**20 + 200_000
            assert session.ended == "slow_client"
            await short_talk(server)
            await empty(server.server)

    run(main)


def test_a_microphone_at_twenty_times_real_time_is_held_within_bounds_and_others_go_on() -> None:
    async def main() -> None:
        made = app(agent(10.0), options=ServerOptions())
        async with serving_app(made) as server, connect(f"http://127.0.0.1:{server.port}") as flood:
            session = session_of(server)
            noise = np.random.default_rng(0).normal(0, 100, RATE_HZ // 5).astype(np.int16)
            others = asyncio.create_task(short_talk(server))
            for _ in range(5 * 40):  # 40 s of audio in two
                await flood.hear(noise)
                await asyncio.sleep(0.01)
                kept_s = (session.ear.log.end - session.ear.log.start) / ASR_RATE_HZ
                assert kept_s <= Limits().hear_backlog_s + 2.5, (
                    "the backlog, a second of pre-roll, and one more"
                )
            assert session.ended is None
            await others
            await flood.say("short")
            await flood.until("response.done")

    run(main)

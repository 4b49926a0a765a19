"""A Realtime client of a test: events go in and out of the sans-I/O protocol over a real session of fakes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import numpy as np

from transports.realtime.config import SessionConfig
from transports.realtime.protocol import RealtimeProtocol
from voice.agent import Agent
from voice.events import SessionEvent
from voice.interfaces import Capabilities, Pcm16
from voice.testing import speak

RATE_HZ = 24_000


class Client:
    """Both ends of one conversation.

    Attributes:
        events: What the client received, in order, with the loop time of each.
    """

    def __init__(self, agent: Agent, kind: Literal["websocket", "webrtc"], **options: Any) -> None:
        playout: Literal["can_pause", "flush_only"] = "can_pause" if kind == "webrtc" else "flush_only"
        self.capabilities = Capabilities(playout, RATE_HZ, ahead_s=1.0, burst_s=1.0)
        self.times: list[float] = []
        self.events: list[dict[str, Any]] = []
        self.session_events: list[SessionEvent] = []
        config = SessionConfig.of(agent, session_id="sess_test01", model="voice", expires_at=2_000_000_000)
        self.protocol = RealtimeProtocol(config, self._take, transport=kind, **options)
        self.session = self.protocol.make_session(agent, self, on_event=self._tell)
        self.cleared = 0
        self._muted_until = 0.0

    def _take(self, text: str) -> None:
        self.events.append(json.loads(text))
        self.times.append(asyncio.get_running_loop().time())

    def _tell(self, event: SessionEvent) -> None:
        self.session_events.append(event)
        self.protocol.tell(event)

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        text = self.protocol.audio(pcm, response_id)
        if text is not None:
            self._take(text)

    def clear_audio(self) -> None:
        self.cleared += 1

    # ------------------------------------------------------------ what the client does

    async def send(self, kind: str, **fields: Any) -> None:
        await self.protocol.receive(json.dumps({"type": kind, **fields}))

    async def update(self, **session: Any) -> None:
        await self.send("session.update", session={"type": "realtime", **session})

    async def hear(self, pcm: Pcm16) -> None:
        """Stream audio (24 kHz) in real time, 20 ms at a time."""
        loop, start = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        for index in range(0, pcm.size, 480):
            piece = pcm[index : index + 480].astype("<i2").tobytes()
            await self.send("input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            await asyncio.sleep(max(0.0, start + (index + 480) / RATE_HZ - loop.time()))

    async def say(self, seconds: float, hz: int = 220) -> None:
        await self.hear(speak(seconds, hz, rate=RATE_HZ))

    async def quiet(self, seconds: float) -> None:
        await self.hear(np.zeros(int(seconds * RATE_HZ), np.int16))

    async def until(self, kind: str, count: int = 1, within_s: float = 30.0) -> dict[str, Any]:
        """Send silence until ``count`` events of ``kind`` have come; returns the last of them."""
        end = asyncio.get_running_loop().time() + within_s
        while len(self.of(kind)) < count:
            assert asyncio.get_running_loop().time() < end, f"no {kind} number {count}: {self.kinds()}"
            await self.quiet(0.1)
        return self.of(kind)[count - 1]

    # ------------------------------------------------------------ what came of it

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def kinds(self, *, of: Callable[[str], bool] = lambda _: True) -> list[str]:
        """The types in order, repeated deltas as one."""
        out: list[str] = []
        for event in self.events:
            kind = event["type"]
            if of(kind) and not (out and out[-1] == kind and kind.endswith(".delta")):
                out.append(kind)
        return out

    def audio_s(self) -> float:
        """Seconds of audio received."""
        return sum(len(base64.b64decode(e["delta"])) for e in self.of("response.output_audio.delta")) / 48_000


@asynccontextmanager
async def call(
    agent: Agent, kind: Literal["websocket", "webrtc"] = "websocket", **options: Any
) -> AsyncIterator[Client]:
    """A conversation, with a player that pulls the audio where the transport plays it."""
    client = Client(agent, kind, **options)
    client.protocol.opened()
    await client.session.start()
    player = asyncio.create_task(_play(client)) if kind == "webrtc" else None
    try:
        yield client
    finally:
        if player is not None:
            player.cancel()
        await client.session.close()


async def _play(client: Client) -> None:
    loop, start, count = asyncio.get_running_loop(), asyncio.get_running_loop().time(), 0
    while True:
        client.session.playout.read(480)
        count += 1
        await asyncio.sleep(max(0.0, start + count * 0.02 - loop.time()))

"""A WebRTC client for tests: says what it is given, records what it hears, and keeps the events it gets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from loadtest.lossy_relay import PERFECT, LossyRelay, Network
from transports.access import Grant
from transports.rtc.receiver import add_audio
from transports.rtc.track import AgentTrack
from transports.webrtc import Calls
from voice.interfaces import Pcm16

_CANDIDATE = re.compile(r"a=candidate:(\S+) 1 udp (\d+) (\S+) (\d+) typ host", re.IGNORECASE)
GRANT = Grant("tester")


class Mouth:
    """What the peer says: 24 kHz samples, taken in real time."""

    def __init__(self) -> None:
        self._left: Pcm16 = np.zeros(0, np.int16)

    def say(self, pcm: Pcm16) -> None:
        """Say this after what is being said."""
        self._left = np.concatenate([self._left, pcm])

    def read(self, samples: int) -> Pcm16:
        out, self._left = self._left[:samples], self._left[samples:]
        return out


class Peer:
    """One client. An async context manager: leaving it hangs up.

    Args:
        network: What lies between it and the server; ``None``: nothing.
        seed: Of the network.
        channel: Label of its data channel; ``None``: it opens none.

    Attributes:
        heard: Samples at 16 kHz with the loop time at which they came.
        events: What came by the data channel.
    """

    def __init__(
        self, network: Network | None = None, *, seed: int = 1, channel: str | None = "oai-events"
    ) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.mouth = Mouth()
        self.track = AgentTrack()
        self.track.ear = self.mouth
        self.heard: list[tuple[float, Pcm16]] = []
        self.events: list[dict[str, Any]] = []
        self.call_id = ""
        self.answer = ""
        self.relay: LossyRelay | None = None
        self.on_event: Callable[[dict[str, Any]], None] = lambda event: None
        self._network, self._seed = network, seed
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        add_audio(self.connection, self.track, lambda pcm: self.heard.append((self._loop.time(), pcm)))
        self.channel = None if channel is None else self.connection.createDataChannel(channel)
        if self.channel is not None:
            self.channel.on("message", self._came)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()
        if self.relay is not None:
            await self.relay.__aexit__()

    async def offer(self) -> str:
        """Its offer, without addresses, as browsers send it that don't wait for them."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        lines = self.connection.localDescription.sdp.splitlines()
        kept = [line for line in lines if not line.startswith(("a=candidate", "a=end-of-candidates"))]
        return "\r\n".join(kept) + "\r\n"

    async def call(self, calls: Calls, *, connect: bool = True, **options: Any) -> Peer:
        """Call a server; returns when the connection stands."""
        self.call_id, self.answer = await calls.offer(await self.offer(), GRANT, client="tester", **options)
        answer = self.answer
        if self._network is not None:
            answer = await self._through_relay(answer)
        if connect:
            await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
            await self.until(lambda: self.connection.connectionState == "connected")
        return self

    async def _through_relay(self, answer: str) -> str:
        """The answer with one address in it: the relay's, behind which is the server's first."""
        found = _CANDIDATE.search(answer)
        assert found is not None, "the answer has no address"
        relay = LossyRelay((found[3], int(found[4])), PERFECT, self._seed)
        self.relay = await relay.__aenter__()
        lines = [line for line in answer.splitlines() if not line.startswith("a=candidate")]
        host, port = self.relay.address
        mine = f"a=candidate:1 1 udp {found[2]} {host} {port} typ host"
        at = max(i for i, line in enumerate(lines) if line.startswith("a=ice-ufrag"))
        first = min(i for i, line in enumerate(lines) if line.startswith("a=ice-ufrag"))
        for index in sorted({at, first}, reverse=True):
            lines.insert(index, mine)
        return "\r\n".join(lines) + "\r\n"

    def spoil(self) -> None:
        """From now on the network is as bad as was asked for."""
        assert self.relay is not None and self._network is not None
        self.relay.network = self._network

    async def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait until something is so; looks every 10 ms."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                try:
                    async with asyncio.timeout(0.01):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def event(self, kind: str, within_s: float = 10.0) -> dict[str, Any]:
        """The first event of a kind; waits for it."""
        await self.until(lambda: kind in self.kinds, within_s)
        return next(event for event in self.events if event["type"] == kind)

    @property
    def kinds(self) -> list[str]:
        """The types of the events so far."""
        return [event["type"] for event in self.events]

    def send(self, event: Mapping[str, object] | str | bytes) -> None:
        """Send an event, or anything else."""
        assert self.channel is not None
        self.channel.send(json.dumps(event) if isinstance(event, Mapping) else event)

    @property
    def audio(self) -> Pcm16:
        """All that was heard, 16 kHz."""
        return np.concatenate([np.zeros(0, np.int16), *(pcm for _, pcm in self.heard)])

    def _came(self, message: str | bytes) -> None:
        event = json.loads(message)
        self.events.append(event)
        self._news.set()
        self.on_event(event)

"""A caller by WebRTC: speaks what it is given, keeps what it hears with the time at which it came."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.rtp import RtpPacket

from loadtest.lossy_relay import LossyRelay, Network, relayed, without_addresses
from transports.rtc.receiver import CallerReceiver, add_audio
from transports.rtc.track import AgentTrack
from voice.errors import EngineFailed
from voice.interfaces import Pcm16

_CONNECT_S = 15.0
_MOST_WAITING = 50
"""Frames that wait to be spoken; the oldest leave, as from a microphone."""
_MOST_STRETCHES = 100
_KEPT_EVENTS = 1000
_NOTHING: Pcm16 = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class Packet:
    """An RTP packet of audio, as it came.

    Attributes:
        at: Loop time.
        sequence, timestamp: Of its header; they wrap. The timestamp counts 48 kHz.
        payload: Opus.
    """

    at: float
    sequence: int
    timestamp: int
    payload: bytes


class WebRtcCaller:
    """One call. An async context manager: entering it calls, leaving it hangs up.

    Args:
        url: Of the server.
        token: Its key.
        keep: How many pieces of audio, and how many packets, are kept.
        network: What lies between it and the server once the call stands; ``None``: nothing.
        seed: Of the network.
        on_audio: Called with each piece of audio (16 kHz) and the loop time, in order.
        on_event: Called with each event of the data channel and the loop time.

    Attributes:
        events: The newest events of the data channel.
        heard: Samples (16 kHz) with the loop time at which they came, the newest ``keep`` of them.
        packets: What came, the newest ``keep``.
        call_id: The server's name for the call.
        relay: The network; ``None`` when there is nothing between.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        keep: int = 0,
        network: Network | None = None,
        seed: int = 1,
        on_audio: Callable[[Pcm16, float], None] | None = None,
        on_event: Callable[[dict[str, Any], float], None] | None = None,
    ) -> None:
        self._url, self._token = url, token
        self.events: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self.heard: deque[tuple[float, Pcm16]] = deque(maxlen=keep)
        self.packets: deque[Packet] = deque(maxlen=keep)
        self.call_id = ""
        self.relay: LossyRelay | None = None
        self._network, self._seed = network, seed
        self._on_audio, self._on_event = on_audio, on_event
        self._waiting: deque[Pcm16] = deque(maxlen=_MOST_WAITING)
        self._stretches: deque[tuple[Pcm16, asyncio.Future[float]]] = deque()
        self._saying: Pcm16 = _NOTHING
        self._news = asyncio.Event()

    async def __aenter__(self) -> WebRtcCaller:
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._loop = asyncio.get_running_loop()
        track = AgentTrack()
        track.ear = self
        _, receiver = add_audio(self._peer, track, self._hear)
        self._watch(receiver)
        self._channel = self._peer.createDataChannel("oai-events")
        self._channel.on("message", self._came)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._call()
                await self.until(lambda: "session.created" in self.kinds)
        except BaseException:
            await self._close()
            raise
        if self.relay is not None and self._network is not None:
            self.relay.network = self._network
        return self

    async def _call(self) -> None:
        await self._peer.setLocalDescription(await self._peer.createOffer())
        offer = self._peer.localDescription.sdp
        try:
            async with self._http() as http:
                reply = await http.post(
                    f"{self._url}/v1/realtime/calls",
                    content=offer if self._network is None else without_addresses(offer),
                    headers={"Content-Type": "application/sdp"},
                )
        except httpx.HTTPError as error:
            raise EngineFailed(f"the server can't be called: {error}") from error
        if reply.status_code != 201:
            raise EngineFailed(f"the server refused the call: {reply.status_code} {reply.text[:200]}")
        self.call_id = reply.headers["Location"].rsplit("/", 1)[1]
        answer = reply.text
        if self._network is not None:
            answer, self.relay = await relayed(answer, self._seed)
        await self._peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    def _http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return httpx.AsyncClient(timeout=_CONNECT_S, headers=headers)

    def _watch(self, receiver: CallerReceiver) -> None:
        """Keep the packets on their way to the receiver."""
        take = receiver._handle_rtp_packet

        async def kept(packet: RtpPacket, arrival_time_ms: int) -> None:
            self.packets.append(
                Packet(self._loop.time(), packet.sequence_number, packet.timestamp, packet.payload)
            )
            await take(packet, arrival_time_ms)

        if self.packets.maxlen:
            receiver._handle_rtp_packet = kept  # type: ignore[method-assign]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await self._peer.close()
        if self.relay is not None:
            await self.relay.__aexit__()

    async def hang_up_there(self) -> None:
        """Have the server end the call."""
        async with self._http() as http:
            await http.post(f"{self._url}/v1/realtime/calls/{self.call_id}/hangup")

    async def until(self, condition: Callable[[], bool], within_s: float = _CONNECT_S) -> None:
        """Wait until something is so; looked at whenever an event comes.

        Raises:
            TimeoutError: It did not become so.
        """
        async with asyncio.timeout(within_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    # ------------------------------------------------------------ voice

    async def hear(self, pcm: Pcm16) -> None:
        """The caller's next 20 ms: int16, 24 kHz."""
        self._waiting.append(pcm)

    def say(self, pcm: Pcm16) -> asyncio.Future[float]:
        """Say this (24 kHz) after what is being said; the result is the loop time at which its first frame left."""
        began: asyncio.Future[float] = self._loop.create_future()
        if len(self._stretches) >= _MOST_STRETCHES:
            raise EngineFailed("the caller has too much to say")
        self._stretches.append((pcm, began))
        return began

    def read(self, samples: int) -> Pcm16:
        """What is spoken now; called by the track for each frame."""
        if self._waiting:
            return self._waiting.popleft()[:samples]
        if not self._saying.size and self._stretches:
            self._saying, began = self._stretches.popleft()
            began.set_result(self._loop.time())
        out, self._saying = self._saying[:samples], self._saying[samples:]
        return out

    def _hear(self, pcm: Pcm16) -> None:
        now = self._loop.time()
        self.heard.append((now, pcm))
        if self._on_audio is not None:
            self._on_audio(pcm, now)

    @property
    def speaking(self) -> bool:
        """Whether something given to :meth:`say` has not left."""
        return bool(self._saying.size or self._stretches)

    # ------------------------------------------------------------ events

    @property
    def kinds(self) -> list[str]:
        """The types of the newest events."""
        return [event["type"] for event in self.events]

    def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        self._channel.send(json.dumps({"type": kind, **fields}))

    def ask(self, text: str) -> None:
        """Write something to the agent and have it answer."""
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.send("response.create")

    def _came(self, message: str | bytes) -> None:
        event = json.loads(message)
        self.events.append(event)
        self._news.set()
        if self._on_event is not None:
            self._on_event(event, self._loop.time())

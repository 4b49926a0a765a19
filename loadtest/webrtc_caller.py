"""A caller by WebRTC: speaks what it is given, records what it hears with the time it would be audible."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from types import TracebackType
from typing import Any

import httpx
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from transports.rtc.receiver import add_audio
from transports.rtc.track import AgentTrack
from voice.errors import EngineFailed
from voice.interfaces import Pcm16

_CONNECT_S = 15.0
_MOST_WAITING = 50
"""Frames that wait to be spoken; the oldest leave, as from a microphone."""
_KEPT_EVENTS = 1000


class WebRtcCaller:
    """One call. An async context manager: entering it calls, leaving it hangs up.

    Args:
        url: Of the server.
        token: Its key.

    Attributes:
        events: The newest events of the data channel.
        heard: Samples (16 kHz) with the loop time at which they came, the newest ``keep`` of them.
    """

    def __init__(self, url: str, *, token: str | None = None, keep: int = 0) -> None:
        self._url, self._token = url, token
        self.events: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self.heard: deque[tuple[float, Pcm16]] = deque(maxlen=keep)
        self._waiting: deque[Pcm16] = deque(maxlen=_MOST_WAITING)
        self._news = asyncio.Event()

    async def __aenter__(self) -> WebRtcCaller:
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        track = AgentTrack()
        track.ear = self
        loop = asyncio.get_running_loop()
        add_audio(self._peer, track, lambda pcm: self.heard.append((loop.time(), pcm)))
        self._channel = self._peer.createDataChannel("oai-events")
        self._channel.on("message", self._came)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._call()
                while not any(event["type"] == "session.created" for event in self.events):
                    self._news.clear()
                    await self._news.wait()
        except BaseException:
            await self._peer.close()
            raise
        return self

    async def _call(self) -> None:
        await self._peer.setLocalDescription(await self._peer.createOffer())
        headers = {"Content-Type": "application/sdp"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with httpx.AsyncClient(timeout=_CONNECT_S) as http:
            answer = await http.post(
                f"{self._url}/v1/realtime/calls",
                content=self._peer.localDescription.sdp,
                headers=headers,
            )
        if answer.status_code != 201:
            raise EngineFailed(f"the server refused the call: {answer.status_code} {answer.text[:200]}")
        await self._peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._peer.close()

    async def hear(self, pcm: Pcm16) -> None:
        """The caller's next 20 ms: int16, 24 kHz."""
        self._waiting.append(pcm)

    def read(self, samples: int) -> Pcm16:
        """What is spoken now; called by the track for each frame."""
        return self._waiting.popleft()[:samples] if self._waiting else np.zeros(0, np.int16)

    def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        self._channel.send(json.dumps({"type": kind, **fields}))

    def _came(self, message: str | bytes) -> None:
        self.events.append(json.loads(message))
        self._news.set()

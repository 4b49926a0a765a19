"""Twilio's side of a media stream, scripted: it follows their documented flow and plays what it is sent at 8 kHz.

``connected``, ``start``, a ``media`` message every 20 ms, ``dtmf``, ``mark`` returned when all before it was played or
cleared, ``stop``. One timeline, which starts with :meth:`TwilioPeer.run`, for what it says and what it hears.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np

from transports.telephony.call import TwilioCall
from transports.telephony.messages import Start, parse
from voice import g711
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.dtmf import _COLUMNS_HZ, _KEYS, _ROWS_HZ
from voice.interfaces import Pcm16
from voice.session import Session
from voice.testing.client import Recording

RATE_HZ = 8_000
FRAME = 160
STREAM, CALL, ACCOUNT = "MZ18ad3ab5a668481ce02b83e7395059f0", "CA123", "AC123"


def key_tone(
    key: str,
    seconds: float = 0.1,
    rate_hz: int = RATE_HZ,
    peak: int = 6_000,
    *,
    off: tuple[float, float] = (0.0, 0.0),
    twist_db: float = 0.0,
) -> Pcm16:
    """The tone of a telephone key; ``off`` is how far its row and column are out of tune."""
    row = next(i for i, keys in enumerate(_KEYS) if key in keys)
    at = 2 * np.pi * np.arange(round(seconds * rate_hz)) / rate_hz
    low = np.sin(at * _ROWS_HZ[row] * (1 + off[0]))
    high = np.sin(at * _COLUMNS_HZ[_KEYS[row].index(key)] * (1 + off[1])) * 10 ** (twist_db / 20)
    return np.round(peak * (low + high)).astype(np.int16)


class TwilioPeer:
    """The carrier. Give it what the server sends (:meth:`take`); it sends by the callback of :meth:`run`.

    Args:
        parameters: ``customParameters`` of the start.
        plays: ``False``: it plays nothing, so no mark ever comes back.
        lose: Numbers of the frames that never leave.

    Attributes:
        sent: Audio messages so far.
        taken: The newest messages from the server, with the time they came.
        sizes: Bytes of each piece of audio.
        marks: Each mark's name with the time it came, and the time it went back.
        cleared_s: When ``clear`` came.
        dropped_s: Audio that was cleared before it was heard.
    """

    def __init__(
        self,
        parameters: dict[str, str] | None = None,
        *,
        plays: bool = True,
        lose: range | tuple[int, ...] = (),
        record_s: float = 60.0,
    ) -> None:
        self.parameters = parameters or {}
        self.sent = 0
        self.taken: deque[tuple[float, dict[str, Any]]] = deque(maxlen=10_000)
        self.sizes: list[int] = []
        self.marks: dict[str, tuple[float, float | None]] = {}
        self.cleared_s: list[float] = []
        self.dropped_s = 0.0
        self._plays, self._lose = plays, lose
        self._recording = Recording(RATE_HZ, record_s)
        self._mic: list[tuple[int, Pcm16]] = []
        self._script: list[tuple[float, int, str]] = []
        self._end = 0  # where the buffer's last sample will be heard
        self._pending: deque[tuple[int, str]] = deque()  # marks, by the sample after which they go back
        self._going_back: list[str] = []
        self._sequence = 0
        self._start: float | None = None

    # ------------------------------------------------------------ the script

    @property
    def now_s(self) -> float:
        """Seconds of the timeline."""
        return 0.0 if self._start is None else asyncio.get_running_loop().time() - self._start

    def say(self, pcm: Pcm16, at_s: float) -> None:
        """The caller speaks (8 kHz)."""
        self._mic.append((round(at_s * RATE_HZ), pcm))

    def press(self, keys: str, at_s: float, *, every_s: float = 0.3, in_band: bool = False) -> None:
        """The caller presses keys; ``in_band``: their tones are in the audio as well."""
        for i, key in enumerate(keys):
            self.send_at(at_s + i * every_s, self._message("dtmf", {"track": "inbound_track", "digit": key}))
            if in_band:
                self.say(key_tone(key), at_s + i * every_s)

    def send_at(self, at_s: float, message: dict[str, Any] | str) -> None:
        """Send any message at a time of the timeline."""
        text = message if isinstance(message, str) else json.dumps(message)
        heapq.heappush(self._script, (at_s, len(self._script), text))

    # ------------------------------------------------------------ its side of the stream

    def opening(self) -> list[str]:
        """The first two messages."""
        body = {
            "accountSid": ACCOUNT,
            "streamSid": STREAM,
            "callSid": CALL,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": self.parameters,
        }
        connected = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
        return [json.dumps(connected), json.dumps(self._message("start", body))]

    def stop(self) -> str:
        """The last message."""
        return json.dumps(self._message("stop", {"accountSid": ACCOUNT, "callSid": CALL}))

    def _message(self, event: str, body: dict[str, Any]) -> dict[str, Any]:
        self._sequence += 1
        return {"event": event, "sequenceNumber": str(self._sequence), event: body, "streamSid": STREAM}

    async def run(self, seconds: float, send: Callable[[str], Awaitable[None]]) -> None:
        """Talk and listen for that long; callable again to go on."""
        loop = asyncio.get_running_loop()
        if self._start is None:
            self._start = loop.time()
            self._frames = 0
        end = self._frames + round(seconds / 0.02)
        while self._frames < end:
            await asyncio.sleep(max(0.0, self._start + (self._frames + 1) * 0.02 - loop.time()))
            while self._script and self._script[0][0] <= self.now_s:
                await send(heapq.heappop(self._script)[2])
            if self._frames not in self._lose:
                await send(json.dumps(self._media()))
            self._frames += 1
            for text in self._marks_due():
                await send(text)

    def _media(self) -> dict[str, Any]:
        at = self._frames * FRAME
        frame = np.zeros(FRAME, np.int32)
        for begin, pcm in self._mic:
            a, b = max(at, begin), min(at + FRAME, begin + len(pcm))
            if a < b:
                frame[a - at : b - at] += pcm[a - begin : b - begin]
        self.sent += 1
        payload = g711.encode(np.clip(frame, -32768, 32767).astype(np.int16), "pcmu")
        return self._message(
            "media",
            {
                "track": "inbound",
                "chunk": str(self.sent),
                "timestamp": str(self._frames * 20),
                "payload": base64.b64encode(payload).decode(),
            },
        )

    def take(self, text: str) -> None:
        """A message from the server."""
        message = json.loads(text)
        assert message["streamSid"] == STREAM
        self.taken.append((self.now_s, message))
        now = self._now()
        match message["event"]:
            case "media":
                pcm = g711.decode(base64.b64decode(message["media"]["payload"]), "pcmu")
                self.sizes.append(pcm.size)
                self._end = max(self._end, now)
                self._recording.write(self._end, pcm)
                self._end += pcm.size
            case "mark":
                name = message["mark"]["name"]
                self.marks[name] = (self.now_s, None)
                self._pending.append((max(self._end, now), name))
            case "clear":
                self.cleared_s.append(self.now_s)
                if self._end > now:
                    self._recording.erase(now)
                    self.dropped_s += (self._end - now) / RATE_HZ
                    self._end = now
                self._pending = deque((now, name) for _, name in self._pending)
            case other:
                raise AssertionError(f"{other} is no message for Twilio")

    def _marks_due(self) -> list[str]:
        due = []
        while self._plays and self._pending and self._pending[0][0] <= self._now():
            _, name = self._pending.popleft()
            self.marks[name] = (self.marks[name][0], self.now_s)
            due.append(json.dumps(self._message("mark", {"name": name})))
        return due

    # ------------------------------------------------------------ what came of it

    def _now(self) -> int:
        return int(self.now_s * RATE_HZ + 0.5)

    @property
    def heard(self) -> Pcm16:
        """What the caller has heard so far, 8 kHz."""
        return self._recording.read(self._now())

    @property
    def waiting_s(self) -> float:
        """Audio in the buffer."""
        return max(0, self._end - self._now()) / RATE_HZ


class _Wire:
    """One direction of a connection: late, but in order."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self._under_way: deque[Callable[[], None]] = deque()

    def __call__(self, deliver: Callable[[], None]) -> None:
        self._under_way.append(deliver)
        asyncio.get_running_loop().call_later(self.latency_s, lambda: self._under_way.popleft()())


class Phone:
    """A call between a peer and a session, without a socket: messages take ``latency_s`` each way."""

    writing: asyncio.Task[None]

    def __init__(
        self, agent: Agent, peer: TwilioPeer, latency_s: float, on_event: Callable[[Any], None]
    ) -> None:
        self.peer = peer
        self._inbound, self._outbound = _Wire(latency_s), _Wire(latency_s)
        start = parse(peer.opening()[1])
        assert isinstance(start, Start)
        self.events: list[tuple[float, Any]] = []
        self.call = TwilioCall(start, asyncio.get_running_loop().time())

        def told(event: Any) -> None:
            self.events.append((peer.now_s, event))
            self.call.on_event(event)
            on_event(event)

        self.session = Session(
            agent, self.call, audio_format=AudioFormat("pcm16", RATE_HZ), session_id="s0", on_event=told
        )

    def of(self, kind: type[Any]) -> list[Any]:
        """The session's events of a kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def times(self, kind: type[Any]) -> list[float]:
        """When they came, on the peer's timeline."""
        return [at for at, event in self.events if isinstance(event, kind)]

    async def to(self, at_s: float) -> None:
        """Go on to that second."""
        await self.peer.run(at_s - self.peer.now_s, self._send)

    async def _send(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        self._inbound(lambda: self.call.receive(text, loop.time()))

    async def write(self) -> None:
        """The writer of the server's socket."""

        async def send(text: str) -> None:
            self._outbound(partial(self.peer.take, text))

        await self.call.outgoing.write(send)


@asynccontextmanager
async def phone(
    agent: Agent,
    peer: TwilioPeer,
    *,
    latency_s: float = 0.03,
    on_event: Callable[[Any], None] = lambda event: None,
) -> Any:
    """A call that is up; it is over at the end."""
    it = Phone(agent, peer, latency_s, on_event)
    async with it.session:
        it.call.attach(it.session)
        it.writing = asyncio.create_task(it.write())
        yield it
    it.call.outgoing.close()
    await asyncio.wait([it.writing])
    await asyncio.sleep(latency_s + 0.001)

"""Client: a caller with a scripted microphone and an ear that records, whatever the kind of playout.

Both keep one timeline that starts with ``run()``: second 1.5 of ``mic`` and of ``heard`` are the same moment.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16


class Ear(Protocol):
    """The part of a session's playout that a transport needs."""

    def read(self, samples: int) -> Pcm16:
        """The next samples for the ear, at most ``samples``; fewer when there is nothing to say."""

    def report(self, response_id: str, position: int) -> None:
        """How many samples of an answer the ear has had."""


class Conversation(Protocol):
    """The part of a session that a transport needs."""

    @property
    def playout(self) -> Ear: ...

    def hear(self, pcm: Pcm16) -> None:
        """More of the microphone."""


class Recording:
    """A timeline of samples that grows as it is written; what was never written is silence.

    Args:
        rate: Hz.
        limit_s: Nothing past this many seconds is kept.
    """

    def __init__(self, rate: int, limit_s: float) -> None:
        self.rate = rate
        self._limit = round(limit_s * rate)
        self._pcm: Pcm16 = np.zeros(0, np.int16)

    def write(self, start: int, pcm: Pcm16) -> None:
        """Put ``pcm`` at sample ``start``."""
        end = min(start + len(pcm), self._limit)
        if end > len(self._pcm):
            size = min(max(end, 2 * len(self._pcm), 30 * self.rate), self._limit)
            self._pcm = np.concatenate([self._pcm, np.zeros(size - len(self._pcm), np.int16)])
        if end > start:
            self._pcm[start:end] = pcm[: end - start]

    def erase(self, start: int) -> None:
        """Make everything from sample ``start`` on silence."""
        self._pcm[start:] = 0

    def read(self, end: int) -> Pcm16:
        """A copy of the samples up to ``end``."""
        end = min(end, self._limit)
        return np.concatenate([self._pcm[:end], np.zeros(max(0, end - len(self._pcm)), np.int16)])


class Client(ABC):
    """What both kinds share: the microphone, the clock and the recording.

    Args:
        rate: Rate of the agent's audio, Hz.
        frame_s: Length of the microphone's frames; a whole number of samples at both rates.
        record_s: How much of the conversation the recordings keep.
    """

    capabilities: Capabilities

    def __init__(self, rate: int = 24_000, frame_s: float = 0.02, *, record_s: float = 900.0) -> None:
        self.rate, self.frame_s = rate, frame_s
        self._mic_frame, self._ear_frame = round(frame_s * ASR_RATE_HZ), round(frame_s * rate)
        for exact, whole in ((frame_s * ASR_RATE_HZ, self._mic_frame), (frame_s * rate, self._ear_frame)):
            if whole < 1 or abs(exact - whole) > 1e-6:
                raise BadRequest(f"a frame of {frame_s} s is {exact} samples; it must be a whole number")
        self._mic, self._heard = Recording(ASR_RATE_HZ, record_s), Recording(rate, record_s)
        self._to_say: list[tuple[int, Pcm16]] = []
        self._said_until = 0
        self._frames = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = 0.0
        self._stopped = False
        self._session: Conversation | None = None

    def attach(self, session: Conversation) -> None:
        """Connect to a session, before :meth:`run`."""
        self._session = session

    @property
    def now_s(self) -> float:
        """Seconds on the client's timeline; 0 before :meth:`run`."""
        return 0.0 if self._loop is None else self._loop.time() - self._start

    def say(self, pcm: Pcm16, at_s: float | None = None) -> float:
        """Speak ``pcm`` (16 kHz) into the microphone; what overlaps is mixed.

        Args:
            pcm: What to say.
            at_s: When, on the client's timeline. ``None``: now, or when what was said before is over.

        Returns:
            When its first sample is spoken, in seconds of the timeline.

        Raises:
            BadRequest: ``at_s`` lies in the past.
        """
        frame_start = self._frames * self._mic_frame
        start = max(self._said_until, frame_start) if at_s is None else round(at_s * ASR_RATE_HZ)
        if start < frame_start:
            raise BadRequest(f"{at_s} s is past: the microphone is at {frame_start / ASR_RATE_HZ:.2f} s")
        self._to_say.append((start, np.asarray(pcm, np.int16)))
        self._said_until = max(self._said_until, start + len(pcm))
        return start / ASR_RATE_HZ

    @property
    def mic(self) -> Pcm16:
        """What the microphone has sent so far, 16 kHz."""
        return self._mic.read(self._frames * self._mic_frame)

    @property
    def heard(self) -> Pcm16:
        """What the ear has heard so far, at ``rate``; silence where there was nothing."""
        return self._heard.read(self._ear_position())

    async def run(self, seconds: float | None = None) -> None:
        """Talk and listen until :meth:`stop`, or for ``seconds`` of the timeline; callable again to go on.

        The frame spoken from ``k * frame_s`` on reaches the session at its end. Ticks lie on an absolute
        grid: late ones are caught up with.
        """
        if self._session is None:
            raise BadRequest("attach(session) comes before run()")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._start = loop, loop.time()
            self._tick()
        end = None if seconds is None else self._frames + round(seconds / self.frame_s)
        self._stopped = False
        while not self._stopped and (end is None or self._frames < end):
            due = self._start + (self._frames + 1) * self.frame_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not self._stopped:
                self._session.hear(self._next_mic_frame())
                self._tick()

    def stop(self) -> None:
        """Hang up: :meth:`run` returns at its next tick and sends nothing more."""
        self._stopped = True

    def _next_mic_frame(self) -> Pcm16:
        start = self._frames * self._mic_frame
        self._frames += 1
        if not self._to_say:
            return np.zeros(self._mic_frame, np.int16)
        end = start + self._mic_frame
        mix = np.zeros(self._mic_frame, np.int32)
        for begin, pcm in self._to_say:
            a, b = max(start, begin), min(end, begin + len(pcm))
            if a < b:
                mix[a - start : b - start] += pcm[a - begin : b - begin]
        self._to_say = [(begin, pcm) for begin, pcm in self._to_say if begin + len(pcm) > end]
        frame = np.clip(mix, -32768, 32767).astype(np.int16)
        self._mic.write(start, frame)
        return frame

    @abstractmethod
    def _tick(self) -> None:
        """The start of frame ``_frames``."""

    @abstractmethod
    def _ear_position(self) -> int:
        """How much of the recording of the ear is real, in samples."""

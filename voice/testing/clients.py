"""The fake transports, one for each kind of playout: PullClient (can pause), PushClient (can only flush)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from voice.errors import BadRequest
from voice.interfaces import Capabilities, Pcm16
from voice.testing.client import Client
from voice.testing.stages import KEPT


class PullClient(Client):
    """A client that takes audio at the ear's pace, a frame at a time (``can_pause``): nothing is ever ahead.

    ``heard`` reaches to the end of the frame that plays.
    """

    def __init__(self, rate: int = 24_000, frame_s: float = 0.02, *, record_s: float = 900.0) -> None:
        super().__init__(rate, frame_s, record_s=record_s)
        self.capabilities = Capabilities("can_pause", sample_rate=rate)
        self._played = 0

    def _tick(self) -> None:
        assert self._session is not None
        pcm = self._session.playout.read(self._ear_frame)
        if len(pcm) > self._ear_frame:
            raise BadRequest(f"read({self._ear_frame}) gave {len(pcm)} samples")
        self._heard.write(self._played, pcm)
        self._played += self._ear_frame

    def _ear_position(self) -> int:
        return self._played

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """A session has no reason to call this.

        Raises:
            BadRequest: Always.
        """
        raise BadRequest("audio was pushed to a client that pulls")

    def clear_audio(self) -> None:
        """Nothing is held here, so nothing is dropped."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A piece of audio a :class:`PushClient` took, on its timeline; ``ahead_s`` is what then lay unheard."""

    at_s: float
    response_id: str
    samples: int
    ahead_s: float


class PushClient(Client):
    """A client with a buffer of its own that plays at real time what is pushed to it (``flush_only``).

    ``heard`` is exact to the sample at any time, gaps and dropped audio included.

    Args:
        reports_position: Tell ``session.playout.report`` at every tick how far the ear is in the newest answer.
        read_speed: How fast the client reads, in seconds of audio a second; ``None``: at once.
        ahead_s, burst_s: For the capabilities.

    Attributes:
        sent: The latest pieces of audio taken.
        cleared_s: When ``clear_audio`` was called, the latest times.
        taken: Samples taken from the session so far.
    """

    def __init__(
        self,
        rate: int = 24_000,
        frame_s: float = 0.02,
        *,
        reports_position: bool = False,
        read_speed: float | None = None,
        ahead_s: float = 0.4,
        burst_s: float = 0.4,
        record_s: float = 900.0,
    ) -> None:
        super().__init__(rate, frame_s, record_s=record_s)
        self.capabilities = Capabilities("flush_only", rate, ahead_s, burst_s, reports_position)
        self.read_speed = read_speed
        self.sent: deque[Sent] = deque(maxlen=KEPT)
        self.cleared_s: deque[float] = deque(maxlen=KEPT)
        self.taken = 0
        self._taken_before = 0  # by answers before the newest
        self._dropped = 0
        self._end = 0  # where the buffer's last sample will be on the timeline
        self._reading = True
        self._gone = False
        self._changed: asyncio.Event | None = None

    # ------------------------------------------------------------ the session's side

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """See :class:`~voice.interfaces.Transport`. Waits while the client doesn't read.

        Raises:
            ConnectionError: After :meth:`reset`.
        """
        if self.read_speed is not None:
            await asyncio.sleep(len(pcm) / self.rate / self.read_speed)
        while not self._reading and not self._gone:
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()
        if self._gone:
            raise ConnectionResetError("the client reset the connection")
        now = self._now()
        if self._end < now:
            self._end = now
        self._heard.write(self._end, pcm)
        self._end += len(pcm)
        if not self.sent or self.sent[-1].response_id != response_id:
            self._taken_before = self.taken
        self.taken += len(pcm)
        self.sent.append(Sent(self.now_s, response_id, len(pcm), (self._end - now) / self.rate))

    def clear_audio(self) -> None:
        """Drop what the ear has not heard yet."""
        self.cleared_s.append(self.now_s)
        now = self._now()
        if self._end > now:
            self._heard.erase(now)
            self._dropped += self._end - now
            self._end = now

    # ------------------------------------------------------------ the test's side

    @property
    def ahead_s(self) -> float:
        """Seconds of audio in the buffer."""
        return max(0, self._end - self._now()) / self.rate

    @property
    def position_samples(self) -> int:
        """How far the ear is in the stream of all samples taken: the reported position.

        Dropped samples count as passed, so session and client can't drift apart at interruptions.
        """
        return self.taken - max(0, self._end - self._now())

    @property
    def heard_samples(self) -> int:
        """How many samples the ear has heard (dropped ones and the silence between not counted)."""
        return self.position_samples - self._dropped

    def stop_reading(self) -> None:
        """From now on ``send_audio`` waits; the microphone goes on."""
        self._reading = False

    def resume_reading(self) -> None:
        """Undo :meth:`stop_reading`."""
        self._reading = True
        self._wake()

    def reset(self) -> None:
        """The connection breaks: sending raises, the microphone stops, the buffer plays on."""
        self._gone = True
        self.stop()
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _now(self) -> int:
        # half a sample up: the loop's clock is a sum of floats and may lie a hair under the exact sample
        return int(self.now_s * self.rate + 0.5)

    def _tick(self) -> None:
        assert self._session is not None
        if self.capabilities.reports_position and self.sent:
            position = self.position_samples - self._taken_before
            self._session.playout.report(self.sent[-1].response_id, max(0, position))

    def _ear_position(self) -> int:
        return self._now()

"""Playout: what was made, sent and heard.

Each answer has a :class:`Track`: its audio with the text it stands for. A track fills behind the gate while the
turn is still a guess; :meth:`Playout.play` makes it audible at once. Only the current track is ever read, so audio
of any other answer can't be heard, however late it comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from voice.errors import ScopeCancelled
from voice.interfaces import Capabilities, Pcm16, SpokenWord
from voice.scope import Scope
from voice.spoken import Segment

_EMPTY: Pcm16 = np.zeros(0, np.int16)
_START_S = 0.02
"""An answer begins, or goes on after it ran dry, with at least so much audio."""

_RAMP_S = 0.005
"""A held voice fades out, and in again, within this."""
_SOUNDS_S = 0.05
"""A voice of which nothing was read for so long is silent already."""
_USUAL_PACE = 15.0
"""Characters a second of read English, about 150 words a minute; used until the voice's own pace is known."""
_REPORT_SLACK_S = 0.05
"""A client may report this much more than can have been played by our clock."""
_PACE_FROM_S = 0.3
"""Shorter stretches say little about a voice's pace."""


@dataclass(slots=True)
class Pace:
    """How fast a voice speaks, learnt from what it has spoken.

    Tells how far a cut stretch got whose audio was still being made: its whole length is not known.
    """

    chars_per_s: float = _USUAL_PACE
    _known: bool = False

    def learn(self, chars: int, seconds: float) -> None:
        """A stretch of ``chars`` characters took ``seconds``."""
        if seconds >= _PACE_FROM_S and chars:
            share = 0.3 if self._known else 1.0
            self.chars_per_s += share * (chars / seconds - self.chars_per_s)
            self._known = True


@dataclass(slots=True)
class Mark:
    """Where a stretch of text lies in a track, in samples. ``voiced_end`` leaves out trailing silence.

    ``partial``: only a part of its audio has been made, so far or for good. ``trimmed``: samples of leading silence
    that were left out before ``start``; the times of ``words`` count them."""

    segment: Segment
    start: int
    end: int
    voiced_end: int
    words: tuple[SpokenWord, ...] = ()
    partial: bool = False
    trimmed: int = 0

    def written_at(self, position: int, rate_hz: int, chars_per_s: float = _USUAL_PACE) -> str:
        """The written text heard when the ear is at ``position``; ``chars_per_s`` is the voice's pace."""
        if position <= 0:  # text without sound is not heard before any sound was
            return ""
        missing = self.segment.spoken and self.end == self.start
        if position >= self.voiced_end and not self.partial and not missing:
            return self.segment.written
        if position <= self.start:
            return ""
        position = min(position, self.voiced_end)
        return self.segment.written_until(self._spoken_chars(position, rate_hz, chars_per_s))

    def _spoken_chars(self, position: int, rate_hz: int, chars_per_s: float) -> float:
        spoken = self.segment.spoken
        at_s = (position - self.start + self.trimmed) / rate_hz
        found = 0
        chars = 0.0
        for word in self.words:
            begin = spoken.find(word.text, found)
            if begin < 0:
                break
            found = begin + len(word.text)
            if at_s >= word.end_s:
                chars = float(found)
                continue
            share = (at_s - word.start_s) / max(1e-3, word.end_s - word.start_s)
            return max(chars, begin + max(0.0, share) * len(word.text))
        else:
            if self.words:
                return chars
        length = self.voiced_end - self.start
        if self.partial:
            length = max(length, int(len(spoken) / chars_per_s * rate_hz))
        return len(spoken) * (position - self.start) / max(1, length)


@dataclass(slots=True)
class Track:
    """One answer's audio on its way to the ear.

    Attributes:
        made: Samples synthesised so far.
        taken: Samples that left towards the ear.
        ended: Nothing more will be made.
        dry_since: Loop time when the last of what was made left; ``None`` before anything did.
        most: Once it is over, how many samples the ear can have had at most.
    """

    response_id: str
    scope: Scope
    rate_hz: int
    bound_s: float
    made: int = 0
    taken: int = 0
    ended: bool = False
    dry_since: float | None = None
    most: int | None = None
    marks: list[Mark] = field(default_factory=list)
    waited_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    _chunks: deque[Pcm16] = field(default_factory=deque)  # bounded by bound_s
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _on_audio: Callable[[], None] | None = None
    _dry: bool = True  # nothing was left: go on only with a whole piece

    @property
    def queued_s(self) -> float:
        """Seconds of audio waiting."""
        return (self.made - self.taken) / self.rate_hz

    @property
    def drained(self) -> bool:
        """All that was made has been taken, and no more comes."""
        return self.ended and self.taken >= self.made

    def begin(self, segment: Segment) -> Mark:
        """The audio that follows speaks ``segment``."""
        mark = Mark(segment, self.made, self.made, self.made)
        self.marks.append(mark)
        return mark

    async def put(self, pcm: Pcm16, mark: Mark, voiced: int) -> None:
        """Add audio for ``mark``, waiting while more than ``bound_s`` is queued: this holds the synthesiser back.

        ``voiced`` is the number of samples up to the last audible one.

        Raises:
            ScopeCancelled: The answer was cut; the audio is dropped.
        """
        if self.queued_s >= self.bound_s:
            loop = asyncio.get_running_loop()
            since = loop.time()
            while self.queued_s >= self.bound_s and not self.scope.cancelled:
                self._room.clear()
                await self._room.wait()
            self.waited_s += loop.time() - since
        if self.scope.cancelled:
            raise ScopeCancelled("the answer was cut")
        if pcm.size == 0:
            return
        self._chunks.append(pcm)
        if voiced:
            mark.voiced_end = self.made + voiced
        self.made += pcm.size
        mark.end = self.made
        if self._on_audio is not None:
            self._on_audio()

    def finish(self) -> None:
        """Nothing more will be made."""
        self.ended = True
        if self._on_audio is not None:
            self._on_audio()

    def read(self, samples: int) -> Pcm16:
        """The next samples, at most that many."""
        if not self._chunks or self.scope.cancelled:
            return _EMPTY
        if self._dry and not self.ended and self.queued_s < _START_S:
            return _EMPTY  # a scrap would be heard as a click before the rest has come
        self._dry = False
        parts: list[Pcm16] = []
        left = samples
        while left > 0 and self._chunks:
            chunk = self._chunks[0]
            if chunk.size <= left:
                parts.append(self._chunks.popleft())
            else:
                parts.append(chunk[:left])
                self._chunks[0] = chunk[left:]
            left -= parts[-1].size
        out = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.taken += out.size
        if not self._chunks:
            self._dry = True
            self.dry_since = asyncio.get_running_loop().time()
        if self.queued_s < self.bound_s:
            self._room.set()
        return out

    def drop(self) -> None:
        """Forget what was not taken; wake whoever waits for room."""
        self._chunks.clear()
        self.ended = True
        self._room.set()

    def written_at(self, position: int) -> list[tuple[Mark, str]]:
        """Each stretch of text with the part of it heard at ``position`` (samples of this track)."""
        position = min(position, self.made if self.most is None else self.most)
        return [(m, m.written_at(position, self.rate_hz, self.pace.chars_per_s)) for m in self.marks]


class Playout:
    """The agent's voice in one session.

    A ``can_pause`` transport calls :meth:`read` on its own clock. For a ``flush_only`` transport the session sends
    what :meth:`read` gives, at most ``ahead_s`` before the ear; where the ear is comes from the transport's reports,
    or else from the clock: audio plays from when it was sent, without pause while there is any.

    Args:
        capabilities: What the transport can do.
        on_audible: Called at the first sample of a track that leaves.
        on_drained: Called once everything of an ended track has left; the ear may still be behind.

    Attributes:
        on_played: Called with what leaves and the loop time at which the ear has its first sample.
        on_silenced: Called when what the ear was to have from a loop time on was dropped.
        sending: What was read last is not with the transport yet (pushed audio).
        on_more: Called when there may be something to read, for transports that pull.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        on_audible: Callable[[Track], None],
        on_drained: Callable[[Track], None],
    ) -> None:
        self.on_played: Callable[[Pcm16, float], None] | None = None
        self.on_silenced: Callable[[float], None] | None = None
        self.on_more: Callable[[], None] | None = None
        self.capabilities = capabilities
        self.rate_hz = capabilities.sample_rate
        self.held = self.sending = False
        self._ramp = int(_RAMP_S * self.rate_hz)
        self._fading = self._rising = False
        self.wake = asyncio.Event()  # something may be readable now; the session's sender waits for it
        self._on_audible, self._on_drained = on_audible, on_drained
        self._track: Track | None = None
        self._ear = 0.0  # samples of the current track that the ear has had (pushed audio)
        self._ear_at = 0.0
        self._reported: int | None = None
        self._last_read_at = 0.0
        self._drain_told = False

    @property
    def track(self) -> Track | None:
        """The answer that is heard now."""
        return self._track

    def play(self, track: Track) -> None:
        """The gate is open: ``track`` is what the ear gets from now on."""
        if self._track is not None and self._track is not track:
            self.drop()
        now = asyncio.get_running_loop().time()
        self._track = track
        self.held = self._fading = self._rising = False
        self._ear, self._ear_at, self._last_read_at = 0.0, now, now
        self._reported = None
        self._drain_told = False
        track._on_audio = self._more
        self._more()

    def _more(self) -> None:
        self._wake()
        self._tell_drained()

    def _wake(self) -> None:
        self.wake.set()
        if self.on_more is not None and not self.held:
            self.on_more()

    def read(self, samples: int) -> Pcm16:
        """The next samples for the ear, at most ``samples``; empty when there is nothing, or silence is wanted."""
        track = self._track
        if track is None or (self.held and not self._fading):
            return _EMPTY
        if self.held:
            samples = min(samples, self._ramp)
        first = track.taken == 0
        now = asyncio.get_running_loop().time()
        self._advance(now)  # with what was there so far: the ear did not play what comes only now
        out = track.read(samples)
        if out.size:
            self._last_read_at = now
            out = self._faded(out)
            if self.on_played is not None:
                self.on_played(out, now + self._way_s(track, out.size))
            if first:
                self._on_audible(track)
                if self._track is not track:
                    return _EMPTY  # the owner cut it when it was told of it
        self._tell_drained()
        return out

    def _faded(self, out: Pcm16) -> Pcm16:
        """A voice that is held or goes on does so within a few milliseconds: a step would be heard as a click."""
        if not self._fading and not self._rising:
            return out
        size = min(out.size, self._ramp)
        gain = np.linspace(0.0, 1.0, size, endpoint=False, dtype=np.float32)
        faded = out.astype(np.float32)
        faded[:size] *= gain[::-1] if self._fading else gain
        self._fading = self._rising = False
        return np.rint(faded).astype(np.int16)

    def _way_s(self, track: Track, samples: int) -> float:
        """Seconds from now until the ear has the first of the ``samples`` that left last."""
        if self.capabilities.playout == "can_pause":
            return self.capabilities.delay_s
        return max(0.0, track.taken - samples - self._ear) / self.rate_hz + self.capabilities.delay_s

    def _tell_drained(self) -> None:
        track = self._track
        if track is not None and track.drained and not self._drain_told:
            self._drain_told = True
            self._on_drained(track)

    # ------------------------------------------------------------ where the ear is

    def _advance(self, now: float) -> None:
        taken = 0 if self._track is None else self._track.taken
        self._ear = min(taken, self._ear + max(0.0, now - self._ear_at) * self.rate_hz)
        self._ear_at = now

    def report(self, response_id: str, position: int) -> None:
        """The transport or its client says how many samples of an answer the ear has had.

        Clamped to what was sent and to the time that passed; never goes back. Ignored for an answer that is over.
        """
        track = self._track
        if track is not None and track.response_id == response_id:
            most = self._most(track, asyncio.get_running_loop().time())
            self._reported = max(min(position, most), self._reported or 0)

    def _most(self, track: Track, now: float) -> int:
        """How many samples of the current track the ear can have had."""
        if self.capabilities.playout == "can_pause":
            return track.taken
        self._advance(now)
        return min(track.taken, int(self._ear + _REPORT_SLACK_S * self.rate_hz))

    def position(self, now: float) -> int:
        """Samples of the current track that the ear has had."""
        track = self._track
        if track is None:
            return 0
        capabilities = self.capabilities
        delay = capabilities.delay_s * self.rate_hz
        if capabilities.reports_position and self._reported is not None:
            return self._reported
        if capabilities.playout == "can_pause":
            behind = max(0.0, delay - (now - self._last_read_at) * self.rate_hz)
            return max(0, track.taken - int(behind))
        self._advance(now)
        return max(0, int(self._ear - (delay if self._ear < track.taken else 0.0)))

    def ahead_s(self, now: float) -> float:
        """Seconds of audio that were sent and not yet heard."""
        track = self._track
        return 0.0 if track is None else (track.taken - self.position(now)) / self.rate_hz

    # ------------------------------------------------------------ silence

    def hold(self) -> None:
        """Silence, reversibly: but for a fade of 5 ms nothing is read until :meth:`release`."""
        if not self.held:
            recent_s = asyncio.get_running_loop().time() - self._last_read_at
            sounds = self._track is not None and self._track.taken > 0 and recent_s < _SOUNDS_S
            self._fading = sounds and self.capabilities.playout == "can_pause"
        self.held = True

    def release(self) -> None:
        """Go on at the very sample where it was held."""
        if self.held:
            self._rising = self.capabilities.playout == "can_pause" and not self._fading
        self.held = self._fading = False
        self._wake()

    def drop(self) -> tuple[Track, int] | None:
        """Silence for good: forget the current track; returns it with the ear's position in it."""
        track = self._track
        if track is None:
            return None
        now = asyncio.get_running_loop().time()
        position = self.position(now)
        track.most = self._most(track, now)
        track.drop()
        self._track = None
        self.held = self._fading = self._rising = False
        if self.on_silenced is not None:
            self.on_silenced(now + self.capabilities.delay_s)
        return track, position


def voiced_samples(pcm: Pcm16, rate_hz: int, level_dbfs: float = -50.0) -> int:
    """Samples up to the end of the last 10 ms block of ``pcm`` above ``level_dbfs``; 0 when all is silence."""
    block = rate_hz // 100
    end = pcm[-block:].astype(np.float32)
    if float(end @ end) > end.size * (32768.0 * 10.0 ** (level_dbfs / 20.0)) ** 2 and pcm.size % block == 0:
        return int(pcm.size)  # as a rule, in mid speech
    whole = pcm[: pcm.size - pcm.size % block].reshape(-1, block).astype(np.float32)
    level = 32768.0 * 10.0 ** (level_dbfs / 20.0)
    loud = np.flatnonzero(np.sqrt(np.mean(whole * whole, axis=1)) > level)
    rest = pcm[whole.size :].astype(np.float32)
    if rest.size and float(np.sqrt(np.mean(rest * rest))) > level:
        return int(pcm.size)
    return 0 if loud.size == 0 else (int(loud[-1]) + 1) * block


def heard_text(parts: Sequence[tuple[Mark, str]]) -> str:
    """The heard stretches, joined."""
    return "".join(text for _, text in parts)

"""The script that every caller of the framework comparison follows, its sound card, and what it writes down.

Lead-in 1 s, speak 2.5 s, wait for the answer, listen 3 s from its first sample, barge in with the same utterance, and
so on; no start in the last 5 s. The callers' clock is absolute: a frame that is late is delivered at once, none is
skipped. One timer feeds all callers and one plays for all of them, so that the harness costs little itself.
"""

from __future__ import annotations

import asyncio
import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loadtest.stubs import RATE_HZ, ident_of
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16

FRAME_S = 0.02
FRAME = int(FRAME_S * ASR_RATE_HZ)
CHUNK_S = 0.04
CHUNK = int(CHUNK_S * RATE_HZ)
"""The sound card plays pieces of this length back to back: one is out of the framework's hands at most."""

LEAD_IN_S, LISTEN_S, PATIENCE_S, LAST_START_S = 1.0, 3.0, 5.0, 5.0
PHASES = 8
"""A detector's window is 512 samples, a frame 320: eight frames go through all alignments, and each turn starts at the
next of them. Without it a run would measure one alignment."""

UNDERRUN_S = 0.04
_NOISE_LSB = 8


class Conversation(Protocol):
    """What the harness needs of a framework's session."""

    def hear(self, pcm: Pcm16) -> None:
        """A frame of the caller: 16 kHz, 20 ms."""

    def read(self, samples: int) -> Pcm16:
        """The next audio for the ear, 24 kHz; empty: nothing to play now."""


@dataclass(slots=True)
class Turn:
    """One utterance of a caller; loop times.

    Attributes:
        begun_at: Capture time of its first sample.
        over_at: When its last frame was due.
        barges: The agent was to be speaking.
        cut: The answer that played when it began.
        answer: The answer that it got.
    """

    begun_at: float
    barges: bool
    cut: int | None
    over_at: float = 0.0
    answer: int | None = None


@dataclass(slots=True)
class Played:
    """A piece that the sound card began to play."""

    at: float
    answer: int
    sentence: int
    gap_s: float
    samples: int


@dataclass(slots=True)
class Record:
    """What happened to one caller; loop times."""

    turns: list[Turn] = field(default_factory=list)
    pieces: array[float] = field(default_factory=lambda: array("d"))
    first_handed: dict[int, float] = field(default_factory=dict)
    late_s: list[float] = field(default_factory=list)
    underruns: int = 0

    def note(self, piece: Played) -> None:
        """Keep a piece as bare numbers: as objects they would be most of what the garbage collector looks at."""
        self.pieces.extend((piece.at, piece.answer, piece.sentence, piece.gap_s, piece.samples))

    @property
    def played(self) -> list[Played]:
        """All pieces so far, in order."""
        rows = zip(*[iter(self.pieces)] * 5, strict=True)
        return [
            Played(at, int(answer), int(part), gap_s, int(size)) for at, answer, part, gap_s, size in rows
        ]


class UserAudio:
    """The utterance and the noise around it, as frames.

    Args:
        speech: 16 kHz, whole frames, voiced from end to end.

    Raises:
        BadAudio: Not whole frames.
    """

    def __init__(self, speech: Pcm16) -> None:
        if speech.size == 0 or speech.size % FRAME:
            raise BadAudio(f"the utterance must be whole frames of {FRAME} samples at {ASR_RATE_HZ} Hz")
        noise = np.random.default_rng(1).integers(-_NOISE_LSB, _NOISE_LSB + 1, ASR_RATE_HZ)
        noisy = np.clip(speech.astype(np.int32) + np.resize(noise, speech.size), -32768, 32767)
        self.speech = list(noisy.astype(np.int16).reshape(-1, FRAME))
        self.noise = list(noise.astype(np.int16).reshape(-1, FRAME))


class SoundCard:
    """Plays what a conversation has, piece after piece, and writes down what it was."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.conversation: Conversation | None = None
        self.free_at = 0.0
        self.queued = False
        self._last: Played | None = None
        self._stopped = True  # on purpose: the gap before the next piece is no underrun

    def play(self, now: float) -> bool:
        """Begin the next piece; whether there was one."""
        assert self.conversation is not None
        pcm = self.conversation.read(CHUNK)
        if pcm.size == 0:
            return False
        fades = self._last is not None and pcm.size < CHUNK  # its first sample tells nothing
        ident = (
            (self._last.answer, self._last.sentence) if self._last is not None and fades else ident_of(pcm)
        )
        begins = max(now, self.free_at)
        gap_s = begins - self.free_at
        self.free_at = begins + pcm.size / RATE_HZ
        if ident is not None:
            self._note(Played(begins, ident[0], ident[1], gap_s, pcm.size), now)
        return True

    def _note(self, piece: Played, now: float) -> None:
        last = self._last
        same = last is not None and (last.answer, last.sentence) == (piece.answer, piece.sentence)
        if same and not self._stopped and piece.gap_s > UNDERRUN_S:
            self.record.underruns += 1
        self._stopped = False
        self._last = piece
        self.record.first_handed.setdefault(piece.answer, now)
        self.record.note(piece)

    def stopped(self) -> None:
        """The framework fell silent on purpose."""
        self._stopped = True


class Caller:
    """One caller's state; :meth:`frame` is called for every frame."""

    def __init__(self, number: int, audio: UserAudio, conversation: Conversation, record: Record) -> None:
        self._number, self._audio, self._conversation = number, audio, conversation
        self._record = record
        self._state = "silent"
        self._until = 0.0
        self._at = 0
        self._count = 0
        self._known: set[int] = set()

    def begin(self, at: float, seconds: float) -> None:
        """The first frame begins at a loop time; the call lasts so long."""
        self._until, self._last_start = at + LEAD_IN_S, at + seconds - LAST_START_S

    def frame(self, due: float) -> None:
        """Say the next frame, which is complete at ``due``."""
        begins = due - FRAME_S
        if self._state == "wait":
            self._look_for_answer(begins)
        if self._state == "silent" and begins >= self._until:
            self._start(begins)
        if self._state == "speak":
            pcm = self._audio.speech[self._at]
            self._at += 1
            if self._at == len(self._audio.speech):
                self._record.turns[-1].over_at = due
                self._known = set(self._record.first_handed)
                self._state, self._until = "wait", due + PATIENCE_S
        else:
            pcm = self._audio.noise[self._count % len(self._audio.noise)]
        self._count += 1
        self._conversation.hear(pcm)

    def _look_for_answer(self, begins: float) -> None:
        fresh = self._record.first_handed.keys() - self._known
        if fresh:
            answer = max(fresh, key=self._record.first_handed.__getitem__)
            self._record.turns[-1].answer = answer
            self._state, self._until = "silent", self._record.first_handed[answer] + LISTEN_S
        elif begins >= self._until:
            self._state, self._until = "silent", begins

    def _start(self, begins: float) -> None:
        turns = self._record.turns
        if begins > self._last_start:
            self._state = "done"
        elif self._count % PHASES == (3 * len(turns) + self._number) % PHASES:
            turns.append(Turn(begins, bool(turns), turns[-1].answer if turns else None))
            self._state, self._at = "speak", 0


class Feeder:
    """Delivers the frames of all callers when they are due."""

    def __init__(self, callers: Sequence[Caller], records: Sequence[Record]) -> None:
        self._callers, self._records = callers, records

    async def run(self, starts: Sequence[float], seconds: float) -> None:
        """Feed until every caller has spoken for ``seconds`` from its start."""
        loop = asyncio.get_running_loop()
        for caller, start in zip(self._callers, starts, strict=True):
            caller.begin(start, seconds)
        due = [(start + FRAME_S, number, 1) for number, start in enumerate(starts)]
        heapq.heapify(due)
        frames = int(seconds / FRAME_S)
        while due:
            at, number, count = due[0]
            now = loop.time()
            if at > now:
                await asyncio.sleep(at - now)
                continue
            self._records[number].late_s.append(now - at)
            self._callers[number].frame(at)
            if count < frames:
                heapq.heapreplace(due, (starts[number] + (count + 1) * FRAME_S, number, count + 1))
            else:
                heapq.heappop(due)


class SoundCards:
    """Plays for all: one timer, set for the piece that is due next."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, SoundCard]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timed_for = 0.0

    def more(self, card: SoundCard) -> Callable[[], None]:
        """What a conversation calls when there may be something to play."""

        def wake() -> None:
            if not card.queued:
                self._queue(card, card.free_at)

        return wake

    def _queue(self, card: SoundCard, at: float) -> None:
        card.queued = True
        self._number += 1
        heapq.heappush(self._due, (at, self._number, card))
        self._set()

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        at = self._due[0][0]
        if self._timer is not None:
            if self._timed_for <= at:
                return
            self._timer.cancel()
        self._timed_for = at
        self._timer = loop.call_at(at, self._play)

    def _play(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now + 1e-4:
            card = heapq.heappop(self._due)[2]
            card.queued = False
            if card.play(now):
                self._number += 1
                card.queued = True
                heapq.heappush(self._due, (card.free_at, self._number, card))
        if self._due:
            self._set()

    def stop(self) -> None:
        """Play no more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

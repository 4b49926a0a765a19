"""What does a caller hear? A playout as a client has it: 60 ms of buffer, real time, emptied when the server says that
the user speaks. It finds gaps, late silence, audio of an old answer and another caller's voice, by ear alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.stubs import ident_of, voice_heard
from voice.interfaces import Pcm16

RATE_HZ = 24_000
PREBUFFER_S = 0.06
AUDIBLE = 320
"""A sample above it is heard: −40 dBFS."""
LEAST_GAP_S = 0.001
_TONE_SAMPLES = 256
"""Enough for four edges of the lowest tone of the stubs."""
_MOST_OLD = 64
_NUMBER_FOR = 13
"""A cut answer is known by its tone's number for so many answers: the numbers come round after 26."""


@dataclass(slots=True)
class Answer:
    """One response as it was heard.

    Attributes:
        response_id: The protocol's name for it.
        received_s: When its first audible sample came; ``None``: nothing audible yet.
        played_s: When that sample left the loudspeaker; ``None``: not yet.
        heard_s: Audio of it so far, in seconds.
        made: The server has sent all of it.
        cut: It was flushed: nothing of it may be heard any more.
        number: Which answer it is by its tone; ``None``: not known.
    """

    response_id: str
    received_s: float | None = None
    played_s: float | None = None
    heard_s: float = 0.0
    made: bool = False
    cut: bool = False
    number: int | None = None
    sentence: int | None = None
    audible_at_s: float = 0.0  # seconds into its audio


@dataclass(frozen=True, slots=True)
class Gap:
    """Silence inside an answer because its audio came too late.

    Attributes:
        seconds: How long.
        inside_sentence: The same sentence went on after it, by its tone; also when that can't be known.
    """

    seconds: float
    inside_sentence: bool


class Ear:
    """One caller's ear, in one conversation. Times are those of the loop, handed in.

    Args:
        tone: The tone that every sound must have (:func:`~loadtest.stubs.voice_of` the session); ``None``: the server's
            voice is not that of the stubs.

    Attributes:
        answer: What is played, or was last.
        gaps: Found since they were last taken.
        stale_s: Audible audio of cut answers that came after the cut.
        wrong_voice: Pieces of audio in another caller's tone.
    """

    def __init__(self, tone: int | None = None) -> None:
        self.tone = tone
        self._half = 0
        self.answer: Answer | None = None
        self.gaps: list[Gap] = []
        self.stale_s = 0.0
        self.wrong_voice = 0
        self._held_s = 0.0  # waits for the prebuffer to fill
        self._ends_s = 0.0  # the playout runs dry then
        self._ran_dry_s: float | None = None
        self._cut_ids: dict[str, None] = {}
        self._answers = 0
        self._cut_numbers: dict[int, int] = {}  # which answer it was; at most 26

    # ------------------------------------------------------------ what comes

    def audio(self, at_s: float, response_id: str, pcm: Pcm16) -> Answer | None:
        """A piece of audio: int16, 24 kHz. Returns the answer if this made it audible for the first time."""
        loud = np.abs(pcm) > AUDIBLE
        first = int(loud.argmax()) if loud.size else 0
        audible = bool(loud.size and loud[first])
        seconds = pcm.size / RATE_HZ
        number, sentence = self._identify(pcm) if audible else (None, None)
        if response_id in self._cut_ids or self._was_cut(number):
            self.stale_s += seconds if audible else 0.0
            return None
        answer = self.answer
        if answer is None or answer.response_id != response_id:
            answer = self.answer = Answer(response_id)
            self._answers += 1
            self._ran_dry_s = None
            self._held_s = 0.0
        begins = audible and answer.received_s is None
        if begins:
            answer.received_s, answer.audible_at_s = at_s, answer.heard_s + first / RATE_HZ
        self._play(at_s, answer, seconds, same_sentence=sentence is None or sentence == answer.sentence)
        if number is not None:
            answer.number, answer.sentence = number, sentence
        return answer if begins else None

    def made(self, at_s: float, response_id: str) -> None:
        """The server has sent all of a response."""
        answer = self.answer
        if answer is not None and answer.response_id == response_id:
            answer.made = True
            if self._held_s:
                self._begin(at_s, answer)

    def cut(self, at_s: float) -> float | None:
        """The server says that the user speaks: what waits to be played is dropped. Returns when the sound of an
        answer ended by it; ``None``: nothing was playing."""
        answer = self.answer
        if answer is None or answer.cut:
            return None
        was_playing = self.playing(at_s) or not answer.made
        if not was_playing:
            return None
        silent_s = min(at_s, self._ends_s) if self._ends_s else at_s
        answer.cut = True
        self._held_s = 0.0
        self._ends_s = min(self._ends_s, at_s)
        self._cut_ids[answer.response_id] = None
        if len(self._cut_ids) > _MOST_OLD:
            del self._cut_ids[next(iter(self._cut_ids))]
        if answer.number is not None:
            self._cut_numbers[answer.number] = self._answers
        return silent_s

    # ------------------------------------------------------------ what is asked

    def playing(self, at_s: float) -> bool:
        """Whether something is being played, or waits to be."""
        return at_s < self._ends_s or self._held_s > 0

    def ends_s(self) -> float:
        """When what came so far will have been played."""
        return self._ends_s

    def over(self, at_s: float) -> bool:
        """Whether the last answer is over: made and played, or cut."""
        answer = self.answer
        return answer is None or answer.cut or (answer.made and not self.playing(at_s))

    # ------------------------------------------------------------ inside

    def _play(self, at_s: float, answer: Answer, seconds: float, *, same_sentence: bool) -> None:
        before_s, answer.heard_s = answer.heard_s, answer.heard_s + seconds
        if at_s < self._ends_s and not self._held_s:
            if answer.received_s is not None and answer.played_s is None:
                answer.played_s = self._ends_s + answer.audible_at_s - before_s
            self._ends_s += seconds
            return
        if self._ran_dry_s is None and answer.played_s is not None and not self._held_s:
            self._ran_dry_s = self._ends_s
        self._held_s += seconds
        if self._held_s >= PREBUFFER_S - 1e-6:
            if self._ran_dry_s is not None and at_s - self._ran_dry_s > LEAST_GAP_S:
                self.gaps.append(Gap(at_s - self._ran_dry_s, same_sentence))
            self._begin(at_s, answer)

    def _begin(self, at_s: float, answer: Answer) -> None:
        begins_s = max(at_s, self._ends_s)
        if answer.received_s is not None and answer.played_s is None:
            answer.played_s = begins_s + answer.audible_at_s - (answer.heard_s - self._held_s)
        self._ends_s = begins_s + self._held_s
        self._held_s = 0.0
        self._ran_dry_s = None

    def _was_cut(self, number: int | None) -> bool:
        """Whether the answer of that number was cut, not long ago."""
        return (
            number is not None and self._answers - self._cut_numbers.get(number, -_NUMBER_FOR) < _NUMBER_FOR
        )

    def _identify(self, pcm: Pcm16) -> tuple[int | None, int | None]:
        """Answer and sentence by the tone; another caller's tone is counted."""
        if self.tone is None:
            return None, None
        if not self._is_own(pcm[-_TONE_SAMPLES:]):
            self.wrong_voice += 1
        return ident_of(pcm) or (None, None)

    def _is_own(self, pcm: Pcm16) -> bool:
        """Whether it may be the own voice. Nearly always it is; half its period, once known, is quickly found."""
        negative = pcm < 0
        edges = np.flatnonzero(negative[1:] != negative[:-1])
        halves = edges[1:] - edges[:-1]
        if (halves == self._half).any():
            return True
        heard = voice_heard(pcm)
        if heard == self.tone:
            self._half = int(np.median(halves))
        return heard in (None, self.tone)

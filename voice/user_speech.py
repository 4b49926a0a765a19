"""What is known of the user's speech in progress, and when that makes its end certain. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from voice.endpointing import Evidence, TurnEnd
from voice.interruption import Sound
from voice.options import TurnOptions
from voice.speculation import Level
from voice.turn_events import Around
from voice.turn_text import words_of

_LOOK_WORTH_S = 0.12
"""The turn model is not asked when the turn is certain sooner than it can answer."""
_GUESS_AHEAD_S = 1.0
"""An answer is guessed once the turn is certain within this: about what words to sound takes, and some more."""
_PAUSES = 20
_PAUSE_S = (0.1, 3.0)
"""Pauses inside turns that say something about the caller: shorter ones are gaps between words, longer ones silence."""


@dataclass(slots=True)
class UserSpeech:
    """The user's turn in progress, or a sound over the agent's voice that may become one.

    Attributes:
        turn: Its number.
        start: Loop time when it began.
        revision: Raised whenever the user goes on after a pause.
        end: Loop time of its last sample; ``None`` while it goes on.
        text: Words of the current revision; ``None``: not known yet.
        asked: Its words were asked for since it paused.
        announced: It is a turn; before, it is only a sound over the agent's voice.
        forced: It is certain as soon as its words are known.
        over_answer: It began over an answer that was heard to its end: a nod asks for nothing.
        said: Words before the newest pause, as they were recognised then.
        completions: The turn model's answers at this pause: (silence in s, probability that the user is done).
        looking: The turn model is being asked.
        level: How much may be done before it is certain.
        guessed: An answer is being made already.
        sound_text: Of a sound that goes on: its words so far; ``None``: not known.
        sound_s: How much of it those words cover.
        asked_s: How long it was when its words were asked for; ``None``: they are not being asked for.
    """

    turn: int
    start: float
    revision: int = 0
    end: float | None = None
    text: str | None = None
    asked: bool = False
    announced: bool = True
    forced: bool = False
    over_answer: bool = False
    said: str = ""
    completions: tuple[tuple[float, float], ...] = ()
    looking: bool = False
    level: Level = Level.FULL
    guessed: bool = False
    sound_text: str | None = None
    sound_s: float = 0.0
    asked_s: float | None = None

    def go_on(self) -> None:
        """The user spoke again before it was certain."""
        self.revision += 1
        self.said = self.text or self.said
        self.end = self.text = self.asked_s = None
        self.asked = self.looking = self.guessed = False
        self.completions = ()

    def began(self, start: float | None) -> None:
        """Its newest stretch began at ``start`` by a better clock: it is longer than it seemed."""
        if start is not None and self.end is None and not self.forced:
            self.start = min(self.start, start)

    def voiced_s(self, until: float) -> float:
        """Its length; ``until`` is the end of the newest speech, for one that goes on."""
        return max(0.0, (until if self.end is None else self.end) - self.start)

    def sound(self, now: float, until: float, around: Around) -> Sound:
        """It, as a sound over the agent's voice."""
        return Sound(
            self.voiced_s(until),
            text=self.sound_text,
            text_s=self.sound_s,
            ended_s=None if self.end is None else now - self.end,
            over_noise_db=around.over_noise_db,
            echoes=around.echoes,
            agent_text=around.agent_text,
            asked=around.asked,
            language=around.language,
        )


class Certainty:
    """When a pause of the user's is the end of the turn.

    Args:
        ends: The policies.
        judges: There is a turn model to ask.
        language: Of the user's words; ``None``: English is assumed.

    Attributes:
        pauses_s: This caller's pauses inside turns, the newest last.
        agent_said: What the agent said last: what the user says may be the answer to it.
    """

    def __init__(self, ends: TurnEnd, *, judges: bool, language: str | None = None) -> None:
        self.ends, self.judges, self.language = ends, judges, language
        self.pauses_s: deque[float] = deque(maxlen=_PAUSES)
        self.agent_said = ""
        self.last_end: float | None = None  # of the newest turn that was taken for certain

    def resumed(self, start: float, end: float | None) -> None:
        """The user went on at ``start`` after a pause that began at ``end``."""
        if end is not None and _PAUSE_S[0] <= start - end <= _PAUSE_S[1]:
            self.pauses_s.append(start - end)

    def due(self, speech: UserSpeech, options: TurnOptions) -> float:
        """Loop time at which a paused turn whose words are known is certain."""
        assert speech.end is not None
        if speech.forced:
            return speech.end
        if not speech.text:
            return speech.end + options.min_delay_s
        return speech.end + self.ends.delay_s(self.evidence(speech), options)

    def evidence(self, speech: UserSpeech) -> Evidence:
        """What is known about the pause."""
        text = speech.text or ""
        before = words_of(speech.said)
        return Evidence(
            text=text,
            stable=words_of(text)[: len(before)] == before,
            completions=speech.completions,
            pauses_s=tuple(self.pauses_s),
            agent_asked=self.agent_said,
            language=self.language,
        )

    def guess_at(self, speech: UserSpeech, options: TurnOptions) -> float:
        """Loop time from which on it is worth guessing an answer."""
        return self.due(speech, options) - _GUESS_AHEAD_S

    def look(self, speech: UserSpeech, now: float, options: TurnOptions) -> tuple[float, float] | None:
        """When the turn model is to be asked next, and about how much silence; ``None``: not at this pause any more.

        It is asked once the words are known and leave the turn open for long enough.
        """
        if not self.judges or speech.forced or speech.looking or speech.end is None or not speech.text:
            return None
        asked_s = speech.completions[-1][0] if speech.completions else 0.0
        for silence_s in self.ends.look_again_s:
            if silence_s > asked_s:
                at = max(now, speech.end + silence_s)
                return (at, silence_s) if self.due(speech, options) - at >= _LOOK_WORTH_S else None
        return None

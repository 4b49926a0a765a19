"""Situations in which a TurnTaker may be, each as the events that lead to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from voice.endpointing import Evidence, TurnEnd
from voice.interruption import Interruptions
from voice.options import TurnOptions
from voice.turn_events import (
    Audible,
    Committed,
    Heard,
    SpeechBegan,
    SpeechPaused,
    Spoke,
    Tick,
    TurnInput,
)
from voice.turns import State, TurnTaker

TEXT = "Hello there."
OPTIONS = TurnOptions(pause_s=0.2, min_delay_s=0.5, max_delay_s=0.5)
"""Half a second of silence makes any turn certain. With the defaults: words of a sound over the answer are asked for
every 0.5 s, interrupt_after 1.2, wordless_after 3, decide 1, hold 0.25, idle 15, max_turn 120."""
PATIENT = replace(OPTIONS, max_delay_s=2.5)
"""The policy decides, from half a second to two and a half; 0.7 s when it has no opinion."""


class Marks:
    """An endpointing policy that does not change when the real ones are tuned: a question is over, words without a
    full stop go on; the turn model counts when it is on one side or the other of a half."""

    name = "marks"

    def score(self, evidence: Evidence) -> float:
        text = evidence.text or ""
        score = 5.0 if text.endswith("?") else 0.0 if text.endswith(".") else -5.0
        if evidence.completions:
            score += 2.0 if evidence.completions[-1][1] > 0.5 else -2.0
        return score if evidence.stable else score - 0.5


@dataclass(frozen=True)
class Situation:
    """How to get there, and where that is."""

    events: Sequence[TurnInput]
    state: State
    playout: Literal["can_pause", "flush_only"] = "can_pause"
    options: TurnOptions = OPTIONS
    judges: bool = False

    def taker(self) -> TurnTaker:
        """A taker in this situation."""
        taker = taker_after(self.events, self.playout, self.options, judges=self.judges)
        assert taker.state is self.state
        return taker


def taker_after(
    events: Sequence[TurnInput],
    playout: Literal["can_pause", "flush_only"] = "can_pause",
    options: TurnOptions = OPTIONS,
    *,
    judges: bool = False,
    interruptions: Interruptions | None = None,
) -> TurnTaker:
    """A taker to which these events happened."""
    ends = TurnEnd([Marks()], neutral_s=0.7, slope_s=0.6, look_again_s=(0.2, 0.4, 0.8, 1.4))
    taker = TurnTaker(options, playout, ends, interruptions, judges=judges)
    taker.listen(0.0)
    for event in events:
        taker.feed(event)
    return taker


TO_USER_SPEAKING: list[TurnInput] = [SpeechBegan(1.1, 1.0)]
TO_PAUSED: list[TurnInput] = [*TO_USER_SPEAKING, SpeechPaused(2.2, 2.0)]
TO_GUESSED: list[TurnInput] = [*TO_PAUSED, Heard(2.3, 1, 0, TEXT)]
TO_THINKING: list[TurnInput] = [*TO_GUESSED, Tick(2.5)]
TO_SPEAKING: list[TurnInput] = [*TO_THINKING, Audible(2.6)]
TO_HELD: list[TurnInput] = [*TO_SPEAKING, SpeechBegan(3.1, 3.0)]
TO_ASKED: list[TurnInput] = [*TO_HELD, Tick(3.5, voiced_until=3.5)]
TO_JUDGING: list[TurnInput] = [*TO_HELD, SpeechPaused(3.4, 3.2)]  # a short sound; its words are not known yet
TO_RELEASED: list[TurnInput] = [*TO_HELD, Tick(3.35, voiced_until=3.2)]
TO_GREETING: list[TurnInput] = [Spoke(0.5, interruptible=False)]
TO_BESIDE: list[TurnInput] = [*TO_GREETING, Audible(0.8), *TO_USER_SPEAKING]

U, M, T, S, H = (State.USER_SPEAKING, State.MAYBE_DONE, State.THINKING, State.SPEAKING, State.HELD)

SITUATIONS: dict[str, Situation] = {
    "listening": Situation([], State.LISTENING),
    "user speaking": Situation(TO_USER_SPEAKING, U),
    "paused": Situation(TO_PAUSED, M),
    "not asked": Situation(TO_PAUSED, M, options=replace(OPTIONS, speculate=False)),
    "guessed": Situation(TO_GUESSED, M),
    "looking": Situation([*TO_PAUSED, Heard(2.3, 1, 0, TEXT)], M, options=PATIENT, judges=True),
    "closing": Situation([*TO_USER_SPEAKING, Committed(2.0)], M),
    "thinking": Situation(TO_THINKING, T),
    "speaking": Situation(TO_SPEAKING, S),
    "held": Situation(TO_HELD, H),
    "held, words asked for": Situation(TO_ASKED, H),
    "judging": Situation(TO_JUDGING, H),
    "released": Situation(TO_RELEASED, S, "flush_only"),
    "greeting in the making": Situation(TO_GREETING, T),
    "beside": Situation(TO_BESIDE, S),
    "beside, paused": Situation([*TO_BESIDE, SpeechPaused(2.2, 2.0)], S),
    "beside, words known": Situation([*TO_BESIDE, SpeechPaused(2.2, 2.0), Heard(2.3, 1, 0, TEXT)], S),
}
"""The greeting, and what is said beside it, is an answer that must be heard to its end."""

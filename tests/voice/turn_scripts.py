"""What may happen in a conversation, drawn at random from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from voice.options import TurnOptions
from voice.turn_events import NOTHING_AROUND, Around

VOICE = ["voice"] * 5 + ["words"] * 6 + ["judged"] * 2 + ["wake"] * 4 + ["audible"] * 4 + ["finished"]
OWNER = [
    "old news", "tick", "typed", "noted", "committed", "cleared", "stopped", "spoke", "answers", "greets", "mute",
]  # fmt: skip
SWITCHES = ["manual", "automatic", "respond", "interrupt", "speculate"]
STEPS_S = [0.0, 0.02, 0.05, 0.1, 0.1, 0.2, 0.3, 0.5, 1.2]
LONG_S = [30.0, 130.0]
TEXTS = ["", "Yes.", "mm-hm", "and then", "I want to", "stop", "What is it?", "That is all I need."]
SAID = ["", "It is done.", "Shall I go on?"]
AROUND = [
    *[NOTHING_AROUND] * 8, Around(over_noise_db=20.0), Around(over_noise_db=2.0), Around(asked=True),
    Around(echoes=True, agent_text="that is all"),
]  # fmt: skip

Playout = Literal["can_pause", "flush_only"]


class Step(NamedTuple):
    """One thing that happens, so long after the one before."""

    action: str
    after_s: float
    text: str
    around: Around
    number: float


@dataclass(frozen=True)
class Script:
    """A conversation: its settings and steps, and whether the room is still at its end."""

    options: TurnOptions
    playout: Playout
    judges: bool
    quiet: bool
    words_come: bool
    steps: tuple[Step, ...]

    @classmethod
    def drawn(cls, seed: int) -> Script:
        """The conversation of a seed."""
        rng = Random(seed)
        actions = VOICE * 2 + rng.choice([[], [], OWNER]) + rng.choice([[], [], [], SWITCHES])
        low, high = rng.choice([(0.5, 0.5), (0.4, 2.5), (0.2, 1.0)])
        options = TurnOptions(
            min_delay_s=low,
            max_delay_s=high,
            speculate=rng.random() < 0.7,
            hold_s=rng.choice([0.0, 0.25]),
            interrupt_after_s=rng.choice([0.0, 1.2, 1.2, 6.0]),
            interrupt_words=rng.choice([1, 2]),
            idle_s=rng.choice([None, 15.0]),
            mode=rng.choice(["automatic", "automatic", "automatic", "manual"]),
            respond=rng.random() < 0.75,
            interrupt=rng.random() < 0.8,
        )
        steps = []
        for _ in range(rng.randint(0, 60)):
            after_s = rng.choice(STEPS_S if rng.random() < 0.97 else LONG_S)
            around = rng.choice(AROUND)
            steps.append(Step(rng.choice(actions), after_s, rng.choice(TEXTS), around, rng.random()))
        playout: Playout = rng.choice(["can_pause", "flush_only"])
        return cls(options, playout, rng.random() < 0.5, rng.random() < 0.7, rng.random() < 0.7, tuple(steps))

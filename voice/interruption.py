"""Is it a barge-in, a backchannel or noise? Pure policies, asked while the agent speaks."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from voice.options import TurnOptions


class Verdict(Enum):
    """What a sound over the agent's voice is."""

    INTERRUPT = "interrupt"
    IGNORE = "ignore"
    WAIT = "wait"


class Interruption(Protocol):
    """Decides what to do about speech over the agent's voice."""

    def over(self, voiced_s: float, options: TurnOptions) -> Verdict:
        """Asked while the sound goes on: ``voiced_s`` seconds of speech so far."""

    def after(self, voiced_s: float, text: str | None, options: TurnOptions) -> Verdict:
        """Asked once the sound has ended: its length and its words (``None``: no words within the time)."""


class LengthOrWords:
    """Long speech interrupts by its length; short speech interrupts if it has words."""

    def over(self, voiced_s: float, options: TurnOptions) -> Verdict:
        return Verdict.INTERRUPT if voiced_s >= options.interrupt_after_s else Verdict.WAIT

    def after(self, voiced_s: float, text: str | None, options: TurnOptions) -> Verdict:
        if voiced_s >= options.interrupt_after_s or (text and text.strip()):
            return Verdict.INTERRUPT
        return Verdict.IGNORE

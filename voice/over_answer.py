"""A sound over the agent's voice: when to silence the answer, when to go on, when to take it for an interruption.

Policies say what the sound is (:mod:`voice.interruption`); this says what to do about it, and when to look again.
Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias

from voice.interruption import SLACK_S, Interruptions, Sound, Verdict
from voice.options import TurnOptions
from voice.turn_events import Around
from voice.user_speech import UserSpeech

_VOICE_ON_S = 0.1
"""The voice is still on when its newest speech window is no older than this (three detector windows)."""
_LOOK_AGAIN_S = 0.032
"""A detector window: what is known changes no faster."""


class Step(Enum):
    """What to do about the sound, in order."""

    HOLD = "hold"
    RELEASE = "release"
    ASK = "ask"  # for the words of a sound that goes on
    INTERRUPT = "interrupt"
    DROP = "drop"  # it was nothing: go on, and forget it


Weigh: TypeAlias = Callable[[float, float, UserSpeech, Around, TurnOptions], list[Step]]
"""A look at the sound: now, the end of its newest known speech, the sound, what is around it, the options."""


class OverAnswer:
    """One answer's sounds, one at a time.

    Args:
        playout: The transport's kind. One that can only flush holds for ``hold_s`` at most.
        interruptions: The policies.

    Attributes:
        held: The answer is silenced for now.
        look_at: Loop time at which to look again.
    """

    def __init__(self, playout: Literal["can_pause", "flush_only"], interruptions: Interruptions) -> None:
        self.playout, self.interruptions = playout, interruptions
        self.clear()

    def clear(self) -> None:
        """The sound is over, or has become a turn."""
        self.held = False
        self.look_at: float | None = None
        self._hold_until: float | None = None
        self._released = False  # the answer went on although it is not clear yet what the sound is

    def look(
        self, now: float, until: float, speech: UserSpeech, around: Around, options: TurnOptions
    ) -> list[Step]:
        """Time passed: look what the sound has become. ``until`` is the end of the newest speech."""
        if speech.end is None and now - until >= options.pause_s + options.decide_s - SLACK_S:
            return [Step.DROP]  # the audio stopped coming: there will be no pause edge
        steps = self.judge(now, until, speech, around, options)
        if self._hold_until is None or now < self._hold_until or steps[:1] in ([Step.DROP], [Step.INTERRUPT]):
            return steps
        self._hold_until = None  # the client waited for as long as it may: from here on it is final
        if speech.end is None and now - until < _VOICE_ON_S:
            return [Step.INTERRUPT]
        self.held, self._released = False, True  # too short to hold for; its words may still interrupt
        return [*steps, Step.RELEASE]

    def words(
        self, now: float, until: float, speech: UserSpeech, around: Around, options: TurnOptions
    ) -> list[Step]:
        """Words of a sound that goes on came, up to ``until``; how long it is by now is seen at the next look."""
        steps = self.judge(now, until, speech, around, options)
        self.look_at = now + _LOOK_AGAIN_S
        return steps

    def judge(
        self, now: float, until: float, speech: UserSpeech, around: Around, options: TurnOptions
    ) -> list[Step]:
        """Something is known of the sound; decide, as far as that goes."""
        sound = speech.sound(now, until, around)
        verdict = self.interruptions.judge(sound, options).verdict
        if verdict is Verdict.WAIT:
            verdict = self._waited_enough(sound, options)
        if verdict is Verdict.INTERRUPT:
            return [Step.INTERRUPT]
        if verdict is Verdict.IGNORE and speech.end is not None:
            return [Step.DROP]
        self._plan(now, sound, options)
        if verdict is Verdict.IGNORE:  # for now: it goes on, and may become something else
            was_held, self.held, self._hold_until = self.held, False, None
            return [Step.RELEASE] if was_held else []
        steps = self._hold(now, sound, options)
        worth_it = self.interruptions.holds(sound, options)  # no words make a faint sound an interruption
        spared_s = _spared_s(sound, around, options)
        if spared_s > 0.0:
            self.look_at = min(self.look_at or math.inf, now + spared_s)
        elif speech.asked_s is None and worth_it and self.interruptions.wants_words(sound, options):
            steps.append(Step.ASK)
        return steps

    def _waited_enough(self, sound: Sound, options: TurnOptions) -> Verdict:
        """No policy may wait for ever: music would silence the agent for as long as it plays."""
        if sound.ended_s is not None:
            return Verdict.IGNORE if sound.ended_s >= options.decide_s - SLACK_S else Verdict.WAIT
        if sound.voiced_s < _longest_s(options) - SLACK_S:
            return Verdict.WAIT
        return Verdict.INTERRUPT if self.interruptions.holds(sound, options) else Verdict.IGNORE

    def _plan(self, now: float, sound: Sound, options: TurnOptions) -> None:
        look_s = self.interruptions.next_look_s(sound, options)
        left_s = _longest_s(options) - sound.voiced_s
        if sound.ended_s is None and left_s > 0:
            look_s = min(look_s, left_s)
        self.look_at = now + max(_LOOK_AGAIN_S, look_s)
        if self._hold_until is not None:
            self.look_at = min(self.look_at, self._hold_until)

    def _hold(self, now: float, sound: Sound, options: TurnOptions) -> list[Step]:
        """Silence the answer until it is clear what the sound is, if the sound is worth it."""
        ended = sound.ended_s is not None
        if ended or self.held or self._released or not self.interruptions.holds(sound, options):
            return []
        if self.playout == "flush_only":
            if options.hold_s == 0:
                return [Step.INTERRUPT]
            self._hold_until = now + options.hold_s
            self.look_at = min(self.look_at or self._hold_until, self._hold_until)
        self.held = True
        return [Step.HOLD]


def _spared_s(sound: Sound, around: Around, options: TurnOptions) -> float:
    """How long its words are not asked for again although they could be; before ``interrupt_after_s`` they are."""
    if not around.sparing or sound.text is None or sound.ended_s is not None:
        return 0.0
    return sound.text_s + 2 * options.ask_words_s - SLACK_S - sound.voiced_s


def _longest_s(options: TurnOptions) -> float:
    """How long a sound may go on undecided."""
    return max(options.wordless_after_s, options.interrupt_after_s)

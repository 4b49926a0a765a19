"""Is it a barge-in, a backchannel or noise? Pure policies over what is known of a sound that comes over the answer.

Each policy looks at one thing and says what it makes of the sound, or nothing. :class:`Interruptions` asks them in
order; the first that has an opinion decides. They are asked when the sound begins, whenever more is known, at
:meth:`Interruptions.next_look_s`, when the sound ends and when its words come.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from voice.backchannels import ENGLISH, Backchannels, Meaning, Said
from voice.options import TurnOptions

log = logging.getLogger("voice")


class Verdict(Enum):
    """What a sound over the agent's voice is."""

    INTERRUPT = "interrupt"
    IGNORE = "ignore"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Sound:
    """What is known of a sound over the answer.

    Attributes:
        voiced_s: Seconds of speech so far.
        text: Its words; ``""``: the recogniser found none; ``None``: not known yet.
        text_s: How much of it the words cover, in seconds.
        ended_s: Silence since its end; ``None`` while it goes on.
        over_noise_db: Its level above the room's noise; ``None``: not known.
        echoes: Whether the agent's voice comes back from a loudspeaker (:attr:`voice.echo.OwnVoice.echoes`).
        agent_text: What the agent said in the last second or so, as written: with an echo these words don't count.
        language: Of the words, a code like ``"en"``; ``None``: English is assumed.
        asked: The agent's last words are a question and it has all but ended: short words are its answer.
    """

    voiced_s: float
    text: str | None = None
    text_s: float = 0.0
    ended_s: float | None = None
    over_noise_db: float | None = None
    echoes: bool = False
    agent_text: str = ""
    asked: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the policy that gave it."""

    verdict: Verdict
    by: str


class Policy(Protocol):
    """Looks at one thing."""

    name: str

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        """What the sound is; ``None``: no opinion."""


class TooLittle:
    """A click is too short, a voice in the next room too faint."""

    name = "too little"

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        short = sound.voiced_s < options.interrupt_least_s - SLACK_S
        if not (short or _faint(sound, options)):
            return None
        return Verdict.WAIT if sound.ended_s is None else Verdict.IGNORE


class Words:
    """Words interrupt. Nods don't while the agent speaks, unless they answer its question; hums and noise don't.

    A sound that is over before its words would have been asked for holds "stop" or "no wait", but no sentence: what
    else the recogniser reads in it is a nod misheard, or a scrap of the agent's own words.

    Args:
        backchannels: Which words are nods, and which demand silence.
    """

    name = "words"

    def __init__(self, backchannels: Backchannels = ENGLISH) -> None:
        self._backchannels = backchannels

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        if sound.text is None:
            return None
        said = self._backchannels.judge(sound.text)
        if not self._backchannels.know(sound.language):
            # nobody has listed this language's nods: every word counts
            said = Said(Meaning.WORDS, max(said.words, options.interrupt_words)) if sound.text else said
        if said.meaning is Meaning.STOP:
            return Verdict.INTERRUPT
        if self._enough(said, sound, options):
            return Verdict.INTERRUPT
        if sound.ended_s is None or sound.text_s < sound.voiced_s - _UNHEARD_S:
            return None  # more may come, or came
        return Verdict.IGNORE

    def _enough(self, said: Said, sound: Sound, options: TurnOptions) -> bool:
        """Whether these words take the floor."""
        if said.meaning is Meaning.WORDS:
            scrap = sound.ended_s is not None and sound.voiced_s < options.ask_words_s
            return sound.asked or (said.words >= options.interrupt_words and not scrap)
        return sound.asked and said.meaning in (Meaning.NOD, Meaning.HUM)


class Length:
    """Speech that goes on interrupts although its words are not known; noise only after long."""

    name = "length"

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        unheard_s = sound.voiced_s - sound.text_s
        limit_s = _limit_s(sound, options)
        if unheard_s >= limit_s - SLACK_S:
            return Verdict.INTERRUPT
        if sound.ended_s is None or sound.ended_s < options.decide_s - SLACK_S:
            return Verdict.WAIT
        return Verdict.INTERRUPT if unheard_s >= limit_s / 2 else Verdict.IGNORE


SLACK_S = 1e-6
"""A look at exactly the announced time is not a rounding error too early."""
_UNHEARD_S = 0.3
"""Words may end this much before the speech does and still be all of it."""


def _faint(sound: Sound, options: TurnOptions) -> bool:
    return sound.over_noise_db is not None and sound.over_noise_db < options.interrupt_over_noise_db


def _limit_s(sound: Sound, options: TurnOptions) -> float:
    return options.wordless_after_s if sound.text == "" else options.interrupt_after_s


class Interruptions:
    """Policies in a list: the first that has an opinion decides; if none has, wait.

    Args:
        policies: In this order; ``None``: :func:`default_policies`.
        backchannels: Which words are nods.
    """

    def __init__(
        self, policies: Sequence[Policy] | None = None, *, backchannels: Backchannels = ENGLISH
    ) -> None:
        self.policies = tuple(default_policies(backchannels) if policies is None else policies)
        self._backchannels = backchannels
        self._failed: list[Policy] = []  # of these policies

    def nods(self, text: str, language: str | None = None) -> bool:
        """Whether the words ask for nothing: a listener's nod or hum."""
        return self._backchannels.know(language) and self._backchannels.judge(text).meaning in (
            Meaning.NOD,
            Meaning.HUM,
        )

    def judge(self, sound: Sound, options: TurnOptions) -> Judgement:
        """What the sound is, as far as is known. The agent's own words in it don't count."""
        if sound.text and sound.echoes:
            sound = replace(sound, text=self._backchannels.without_own_words(sound.text, sound.agent_text))
        for policy in self.policies:
            verdict = self._ask(policy, sound, options)
            if verdict is not None:
                return Judgement(verdict, policy.name)
        return Judgement(Verdict.WAIT, "nothing known")

    def _ask(self, policy: Policy, sound: Sound, options: TurnOptions) -> Verdict | None:
        """A policy's verdict; one that fails, or gives none, has no opinion: the call is not to suffer for it."""
        try:
            verdict = policy.judge(sound, options)
        except Exception:
            if policy not in self._failed:  # once: it is asked many times a second
                self._failed.append(policy)
                log.exception("the interruption policy %s failed", type(policy).__name__)
            return None
        return verdict if isinstance(verdict, Verdict) else None

    def holds(self, sound: Sound, options: TurnOptions) -> bool:
        """Whether the agent should fall silent, for now, while the verdict is to wait."""
        return not _faint(sound, options) and sound.voiced_s >= (
            options.echo_hold_s - SLACK_S if sound.echoes else 0.0
        )

    def wants_words(self, sound: Sound, options: TurnOptions) -> bool:
        """Whether the words of a sound that goes on should be asked for now."""
        return sound.ended_s is None and sound.voiced_s - sound.text_s >= options.ask_words_s - SLACK_S

    def next_look_s(self, sound: Sound, options: TurnOptions) -> float:
        """Seconds until the verdict can change by time alone, if the sound goes on (or stays over)."""
        if sound.ended_s is not None:
            return max(0.0, options.decide_s - sound.ended_s)
        looks = (
            options.interrupt_least_s,
            options.echo_hold_s,
            sound.text_s + options.ask_words_s,
            sound.text_s + _limit_s(sound, options),
        )
        return min(
            (at - sound.voiced_s for at in looks if at > sound.voiced_s + SLACK_S),
            default=options.ask_words_s,
        )


def default_policies(backchannels: Backchannels = ENGLISH) -> list[Policy]:
    """Specks of sound are ruled out; then words decide, then length."""
    return [TooLittle(), Words(backchannels), Length()]

"""Is the user done? Pure policies over silence, sound and words; the answer is how much silence makes it certain.

Each policy gives a score: the log-odds that the turn is over, as far as it can tell (above 0: done, below: goes on, 0:
no opinion). :class:`TurnEnd` adds them up and turns the sum into a delay.

The delay falls in a straight line with the sum, between the options' minimum and maximum. That is the best rule when
pauses inside turns end at a constant rate 1/τ: waiting a little longer at silence d is worth it as long as the odds
that the turn goes on, times what a false cut-off costs, times exp(−d/τ)/τ, exceed the cost of the wait; solved for d
this is τ · (constant − log-odds). So the slope is the mean length of pauses, and :class:`CallerPace` fits it to this
caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from voice.options import TurnOptions
from voice.turn_text import (
    Ending,
    Expected,
    Signs,
    expected_answer,
    has_place,
    has_year,
    is_email,
    is_refusal,
    is_yes_or_no,
    read_signs,
)

LOOK_AGAIN_S = (0.2, 0.4, 0.8, 1.4)
"""Silences at which the turn model is asked."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a pause.

    Attributes:
        silence_s: Since the last sample of speech.
        text: Words of the turn so far; ``None``: not known yet.
        stable: The words before this pause did not change when they were recognised again with what followed.
        completions: (silence at which the turn model was asked, its probability that the user is done), in order.
        pauses_s: This caller's pauses inside turns so far, oldest first.
        agent_asked: What the agent said last.
        voiced_s: Length of the speech in the turn, without its pauses.
        language: Of the words, a code like ``"en"``; ``None``: English is assumed.
    """

    silence_s: float = 0.0
    text: str | None = None
    stable: bool = True
    completions: tuple[tuple[float, float], ...] = ()
    pauses_s: tuple[float, ...] = ()
    agent_asked: str = ""
    voiced_s: float = 0.0
    language: str | None = None

    @property
    def english(self) -> bool:
        """Whether the English word lists apply."""
        return self.language is None or self.language.lower().split("-")[0] == "en"


class Policy(Protocol):
    """One kind of evidence."""

    name: str

    def score(self, evidence: Evidence) -> float:
        """Log-odds that the turn is over: above 0 done, below 0 it goes on, 0 no opinion."""


# The weights below were set by hand from the training part of the corpus of ``loadtest turns`` and rounded: about the
# logarithm of how often a pause with this sign was the end of a turn there, against how often it was not.


class TurnModelSays:
    """The turn model's newest answer, taken with a grain of salt.

    Its log-odds count from :attr:`centre` (it says "done" more often than not in the middle of a sentence too), at most
    ±:attr:`most` of them, times :attr:`trust`. Measured with Smart Turn 3.2: on 38 recordings of a trained speaker cut
    in the middle or not, its answer is worth about 0.4 times its log-odds, with no opinion near a probability of 0.8;
    on synthetic voices it is worth nothing. 0.2 lies between.
    """

    name = "turn model"
    trust, centre, most = 0.2, 1.0, 3.0

    def score(self, evidence: Evidence) -> float:
        if not evidence.completions:
            return 0.0
        probability = min(max(evidence.completions[-1][1], 1e-6), 1.0 - 1e-6)
        odds = math.log(probability / (1.0 - probability))
        return self.trust * (min(max(odds, -self.most), self.most) - self.centre)


class LastWords:
    """How the transcript ends: on "and", on a filler, in a comma, as a sentence, as a question."""

    name = "last words"
    scores: ClassVar[Mapping[Ending, float]] = {
        Ending.NOTHING: 0.0,
        Ending.HESITATION: -3.5,
        Ending.OPEN: -3.5,
        Ending.CUT: -2.0,
        Ending.CLAUSE: -2.0,
        Ending.QUESTION: 2.0,
        Ending.POLITE: 2.0,
        Ending.SENTENCE: 0.5,
        Ending.FRAGMENT: 0.0,
    }

    def score(self, evidence: Evidence) -> float:
        return self.scores[_signs(evidence).ending]


class Unfinished:
    """A number, list or address at the end that may still go on, where the agent asked for nothing in particular."""

    name = "unfinished"
    number, telephone, in_list, address = -1.5, 1.0, -1.25, -0.75

    def score(self, evidence: Evidence) -> float:
        signs = _signs(evidence)
        if signs.ending is Ending.QUESTION or _expected(evidence).kind not in ("any", "yes_no", "name"):
            return 0.0
        if signs.digits >= 2:
            return self.telephone if signs.digits >= 10 else self.number
        if signs.in_address:
            return self.address
        return self.in_list if signs.in_list else 0.0


class ExpectedAnswer:
    """Whether the words are the answer that the agent's last question asked for."""

    name = "expected answer"
    answered, partly, unanswered = 2.0, -0.75, -2.5
    listing, listed = -1.25, 0.5

    def score(self, evidence: Evidence) -> float:
        if not evidence.text or not evidence.english:
            return 0.0
        expected, signs, text = _expected(evidence), _signs(evidence), evidence.text
        if signs.ending in (Ending.HESITATION, Ending.QUESTION):
            return 0.0
        if expected.kind != "yes_no" and not signs.digits and is_refusal(text):
            return 0.0
        match expected.kind:
            case "yes_no":
                return self.answered if is_yes_or_no(text) else 0.0
            case "number":
                return self._number(expected, signs)
            case "quantity":
                return self.answered if signs.digits else 0.0
            case "date":
                return self.answered if has_year(text) else self.unanswered
            case "email":
                return self.answered if is_email(text) else self.unanswered
            case "address":
                return 0.0 if has_place(text) else self.unanswered
            case "name":
                return 0.5 if signs.words >= 2 else 0.0
            case "list":
                return self.listed if signs.list_closed else self.listing
            case "any":
                return 0.0

    def _number(self, expected: Expected, signs: Signs) -> float:
        if signs.digits == 0:
            # "It's", "Sure": the number is still to come; a whole sentence is another kind of answer
            return self.unanswered if signs.words <= 4 else 0.0
        if expected.most == 0:
            return self.partly
        if signs.digits >= expected.most:
            return self.answered
        return self.partly if signs.digits >= expected.least else self.unanswered


class StableWords:
    """Words that change from one recognition to the next are not yet to be trusted."""

    name = "stability"

    def score(self, evidence: Evidence) -> float:
        return 0.0 if evidence.stable else -0.5


class CallerPace:
    """How long this caller's pauses are, as a factor on all delays: 1 is the average caller.

    The mean of the caller's pauses inside turns, with an average caller's put in as if it had been seen :attr:`weight`
    times, so that one long pause does not make the agent slow.
    """

    average_s = 0.6
    weight = 4.0
    least, most = 0.6, 1.8

    def factor(self, pauses_s: Sequence[float]) -> float:
        """0.6 to 1.8."""
        recent = pauses_s[-20:]
        mean_s = (self.weight * self.average_s + sum(recent)) / (self.weight + len(recent))
        return min(max(mean_s / self.average_s, self.least), self.most)


def default_policies() -> tuple[Policy, ...]:
    """All policies of this module."""
    return (TurnModelSays(), LastWords(), Unfinished(), ExpectedAnswer(), StableWords())


class TurnEnd:
    """Adds the policies' scores and answers with a delay.

    Args:
        policies: What to ask; any order.
        pace: Fits the delays to the caller; ``None``: the same for everyone.
        neutral_s: The delay when nothing is known, for an average caller.
        slope_s: How much a unit of log-odds shortens the delay, for an average caller.

    Attributes:
        look_again_s: Silences at which the turn model is to be asked.
    """

    def __init__(
        self,
        policies: Sequence[Policy] | None = None,
        pace: CallerPace | None = None,
        *,
        adapt: bool = True,
        neutral_s: float = 0.7,
        slope_s: float = 0.6,
        look_again_s: tuple[float, ...] = LOOK_AGAIN_S,
    ) -> None:
        self.policies = tuple(default_policies() if policies is None else policies)
        self.pace = (pace or CallerPace()) if adapt else None
        self.neutral_s, self.slope_s = neutral_s, slope_s
        self.look_again_s = look_again_s

    def score(self, evidence: Evidence) -> float:
        """Log-odds that the turn is over, all policies together."""
        return sum(policy.score(evidence) for policy in self.policies)

    def explain(self, evidence: Evidence) -> dict[str, float]:
        """Each policy's part in the score, by name."""
        return {policy.name: policy.score(evidence) for policy in self.policies}

    def delay_s(self, evidence: Evidence, options: TurnOptions) -> float:
        """Seconds of silence that make the turn certain, between ``options.min_delay_s`` and ``max_delay_s``.

        Ask again whenever the evidence changes; the newest answer counts.
        """
        factor = 1.0 if self.pace is None else self.pace.factor(evidence.pauses_s)
        wanted_s = factor * (self.neutral_s - self.slope_s * self.score(evidence))
        return min(max(wanted_s, options.min_delay_s), options.max_delay_s)


def _signs(evidence: Evidence) -> Signs:
    return read_signs(evidence.text or "", english=evidence.english)


def _expected(evidence: Evidence) -> Expected:
    return expected_answer(evidence.agent_asked) if evidence.english else Expected()


# ------------------------------------------------------------ words alone


class Endpointing(Protocol):
    """How much silence after the last word makes a turn certain."""

    def delay_s(self, text: str, options: TurnOptions) -> float:
        """Seconds of silence, between ``options.min_delay_s`` and ``options.max_delay_s``."""


class SilenceEndpointing:
    """The minimum when the words look complete, the maximum when they plainly go on."""

    def delay_s(self, text: str, options: TurnOptions) -> float:
        return options.max_delay_s if looks_open(text) else options.min_delay_s


def looks_open(text: str) -> bool:
    """Whether a transcript ends as if more were to come."""
    stripped = text.rstrip().rstrip("\"')")
    if not stripped or (stripped[-1] in ".!?。！？" and not stripped.endswith("...")):
        return False
    return read_signs(text).ending in (Ending.OPEN, Ending.CUT, Ending.HESITATION)

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

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from voice.options import TurnOptions
from voice.turn_text import (
    Ending,
    Expected,
    Signs,
    bare_answer,
    expected_answer,
    has_place,
    has_year,
    is_command,
    is_email,
    is_no_more,
    is_refusal,
    is_yes_or_no,
    read_signs,
)

log = logging.getLogger("voice")

_SURE = 1e6
"""Infinite certainty, as a number that can be added to others."""
LOOK_AGAIN_S = (0.2, 0.4, 0.8, 1.4)
"""Silences at which the turn model is asked."""

_KEPT = 16  # texts whose signs are remembered, over all sessions


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
    """The turn model's answers at this pause, taken with a grain of salt.

    The mean of their log-odds counts from :attr:`centre` (it says "done" more often than not in the middle of a
    sentence too), at most ±:attr:`most` of each, times :attr:`trust`: the model changes its mind from look to look, and
    the newest answer alone tells no more than the first. Measured with Smart Turn 3.2: on 38 recordings of a trained
    speaker cut in the middle or not, its answer is worth about 0.4 times its log-odds, with no opinion near a
    probability of 0.8; on synthetic voices it is worth nothing. 0.2 lies between.
    """

    name = "turn model"
    trust, centre, most = 0.2, 1.0, 3.0

    def score(self, evidence: Evidence) -> float:
        if not evidence.completions:
            return 0.0
        odds = [self._log_odds(probability) for _, probability in evidence.completions]
        return self.trust * (sum(odds) / len(odds) - self.centre)

    def _log_odds(self, probability: float) -> float:
        probability = min(max(probability, 1e-6), 1.0 - 1e-6)
        return min(max(math.log(probability / (1.0 - probability)), -self.most), self.most)


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
    """A number, list or address at the end that may still go on, where the agent did not ask for one."""

    name = "unfinished"
    asked = ("any", "open", "detail", "check", "offer", "more", "yes_no")
    number, telephone, in_list, address = -1.5, 1.0, -1.25, -0.75

    def score(self, evidence: Evidence) -> float:
        signs = _signs(evidence)
        if signs.ending is Ending.QUESTION or _expected(evidence).kind not in self.asked:
            return 0.0
        if signs.digits >= 2:
            return self.telephone if signs.digits >= 10 else self.number
        if signs.in_address:
            return self.address
        return self.in_list if signs.in_list else 0.0


class EnoughSaid:
    """Whether so much was said as an answer to an open question usually takes.

    Told to go ahead, people say why they call in one longer sentence or in several short ones: a short statement is
    often the first of them. Each word more or less than :attr:`usual_words` counts :attr:`per_word`.
    """

    name = "enough said"
    usual_words, per_word, least, most = 7, 0.4, -1.2, 1.2

    def score(self, evidence: Evidence) -> float:
        signs = _signs(evidence)
        if _expected(evidence).kind != "open" or signs.ending not in (Ending.SENTENCE, Ending.FRAGMENT):
            return 0.0
        if signs.digits >= 2 or signs.in_list or signs.in_address or is_command(evidence.text or ""):
            return 0.0  # what counts is how the number goes on; a command is complete in a few words
        return min(max(self.per_word * (signs.words - self.usual_words), self.least), self.most)


class ExpectedAnswer:
    """Whether the words are the answer that the agent's last question asked for."""

    name = "expected answer"
    answered, partly, unanswered = 2.0, -0.75, -2.5
    detail = 0.5
    listing, listed = -1.75, 0.5
    complete = 3.0  # all digits of a number: a recogniser's comma after the last makes no difference
    usual_digits = 6  # of an account, order or reference
    heard_of_all = 0.85  # recognisers swallow a digit now and then
    yes: ClassVar[Mapping[str, float]] = {"check": 2.0, "offer": 2.0, "more": -1.5, "yes_no": -0.4}
    no: ClassVar[Mapping[str, float]] = {"check": -1.5, "offer": 0.0, "more": 2.0, "yes_no": -0.4}

    def score(self, evidence: Evidence) -> float:
        if not evidence.text or not evidence.english:
            return 0.0
        expected, signs, text = _expected(evidence), _signs(evidence), evidence.text
        if signs.ending in (Ending.HESITATION, Ending.QUESTION):
            return 0.0
        if expected.kind not in self.yes and not signs.digits and is_refusal(text):
            return 0.0
        match expected.kind:
            case "check" | "offer" | "more" | "yes_no":
                return self._yes_or_no(expected, text)
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
                return self.detail if signs.words >= 2 else 0.0
            case "list":
                return self.listed if signs.list_closed else self.listing
            case "detail":
                return self.detail if signs.ending in (Ending.SENTENCE, Ending.FRAGMENT) else 0.0
            case "open" | "any":
                return 0.0

    def _yes_or_no(self, expected: Expected, text: str) -> float:
        """A bare "no" is explained, a bare "yes" to a question of fact often followed by the fact."""
        match bare_answer(text):
            case "yes":
                return self.yes[expected.kind]
            case "no":
                return self.no[expected.kind]
            case None if expected.kind == "more":
                return self.answered if is_no_more(text) else 0.0
            case None:
                return self.answered if is_yes_or_no(text) else 0.0

    def _number(self, expected: Expected, signs: Signs) -> float:
        if signs.digits == 0:
            # "It's", "Sure": the number is still to come; a whole sentence is another kind of answer
            return self.unanswered if signs.words <= 4 else self.partly
        if expected.most == 0:
            return self.partly if signs.digits < self.usual_digits else 0.0
        if signs.digits >= expected.most:
            return self.complete
        exact = expected.least == expected.most
        nearly = self.heard_of_all * expected.most if exact else expected.least
        return self.partly if signs.digits >= nearly else self.unanswered


class StableWords:
    """Words that change from one recognition to the next are not yet to be trusted."""

    name = "stability"

    def score(self, evidence: Evidence) -> float:
        return 0.0 if evidence.stable else -0.25


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
    return (TurnModelSays(), LastWords(), Unfinished(), EnoughSaid(), ExpectedAnswer(), StableWords())


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
        neutral_s: float = 0.75,
        slope_s: float = 0.6,
        look_again_s: tuple[float, ...] = LOOK_AGAIN_S,
    ) -> None:
        self.policies = tuple(default_policies() if policies is None else policies)
        self.pace = (pace or CallerPace()) if adapt else None
        self.neutral_s, self.slope_s = neutral_s, slope_s
        self._failed: list[Policy] = []  # of these policies
        self.look_again_s = look_again_s

    def score(self, evidence: Evidence) -> float:
        """Log-odds that the turn is over, all policies together."""
        return sum(self._ask(policy, evidence) for policy in self.policies)

    def _ask(self, policy: Policy, evidence: Evidence) -> float:
        """A policy's score; one that fails, or gives no number, has no opinion: the caller is not to suffer for it."""
        try:
            score = float(policy.score(evidence))
        except Exception:
            if policy not in self._failed:  # once: it is asked many times a turn
                self._failed.append(policy)
                log.exception("the turn-end policy %s failed", type(policy).__name__)
            return 0.0
        return 0.0 if math.isnan(score) else min(max(score, -_SURE), _SURE)

    def explain(self, evidence: Evidence) -> dict[str, float]:
        """Each policy's part in the score, by name."""
        return {policy.name: self._ask(policy, evidence) for policy in self.policies}

    def delay_s(self, evidence: Evidence, options: TurnOptions) -> float:
        """Seconds of silence that make the turn certain, between ``options.min_delay_s`` and ``max_delay_s``.

        Ask again whenever the evidence changes; the newest answer counts.
        """
        factor = 1.0 if self.pace is None else self.pace.factor(evidence.pauses_s)
        wanted_s = factor * (self.neutral_s - self.slope_s * self.score(evidence))
        return min(max(wanted_s, options.min_delay_s), options.max_delay_s)


def _signs(evidence: Evidence) -> Signs:
    return _read(evidence.text or "", evidence.english)


def _expected(evidence: Evidence) -> Expected:
    return _read_question(evidence.agent_asked) if evidence.english else Expected()


# Several policies read the same words, and they are asked several times at a pause.


@functools.lru_cache(maxsize=_KEPT)
def _read(text: str, english: bool) -> Signs:
    return read_signs(text, english=english)


@functools.lru_cache(maxsize=_KEPT)
def _read_question(agent_asked: str) -> Expected:
    return expected_answer(agent_asked)

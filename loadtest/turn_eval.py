"""How often is a caller cut off, and how long does a caller wait? Ways to end a turn, judged over the same traces.

Every pause is judged as if all before it had gone well, so that one mistake counts once. What the engines take is
charged to all ways alike (:class:`Costs`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.turn_traces import CallTrace, Pause, TurnTrace
from voice.endpointing import TurnEnd
from voice.options import TurnOptions
from voice.turn_events import (
    CloseEmpty,
    Commit,
    Decision,
    Judge,
    Judged,
    Recognise,
    SpeechBegan,
    SpeechPaused,
    Tick,
    TurnInput,
)
from voice.turn_events import Heard as WordsHeard
from voice.turns import TurnTaker

GIVE_UP_S = 5.0
"""A turn that is not certain after so much silence was missed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a question to an engine takes on the machine that is spoken for, in seconds.

    The defaults are what the two cores of a small machine take for an utterance of 3 s with Whisper tiny.en, and for
    one answer of Smart Turn 3.2 (int8, without 8-bit dot products).
    """

    recognition_s: float = 0.3
    turn_model_s: float = 0.12


@dataclass(frozen=True, slots=True)
class Heard:
    """A pause, and what is known of the caller before it."""

    pause: Pause
    turn: TurnTrace
    pauses_s: tuple[float, ...]
    last_text: str


class Way(Protocol):
    """A way to end turns."""

    @property
    def name(self) -> str:
        """As it is printed."""

    def certain_s(self, heard: Heard, costs: Costs) -> float:
        """Silence after which the turn is certain, as if nothing more were said."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Plain VAD: a fixed silence."""

    timeout_s: float

    @property
    def name(self) -> str:
        return f"VAD {self.timeout_s:g} s"

    def certain_s(self, heard: Heard, costs: Costs) -> float:
        return max(self.timeout_s, heard.pause.noticed_s - heard.pause.end_s)


@dataclass(frozen=True, slots=True)
class SmartTurnOnly:
    """The turn model alone, asked at ``looks_s``; after ``fallback_s`` the turn is over whatever it says."""

    looks_s: tuple[float, ...]
    threshold: float
    fallback_s: float

    @property
    def name(self) -> str:
        looks = "/".join(f"{look:g}" for look in self.looks_s)
        return f"Smart Turn at {looks} s, {self.threshold:g}, else {self.fallback_s:g} s"

    def certain_s(self, heard: Heard, costs: Costs) -> float:
        noticed_s = heard.pause.noticed_s - heard.pause.end_s
        for silence_s, probability in heard.pause.looks:
            if silence_s in self.looks_s and probability >= self.threshold:
                return min(max(silence_s, noticed_s) + costs.turn_model_s, self.fallback_s)
        return self.fallback_s


@dataclass(frozen=True, slots=True)
class Ours:
    """The session's own turn taker with its policies: it is told what the engines say when they would say it."""

    name: str
    ends: TurnEnd
    options: TurnOptions

    def certain_s(self, heard: Heard, costs: Costs) -> float:
        pause = heard.pause
        taker = TurnTaker(self.options, turn_end=self.ends, judges=True)
        taker.certainty.pauses_s.extend(heard.pauses_s)
        taker.certainty.agent_said = heard.turn.turn.asked
        _hear(taker, _EARLIER_S, 0.1, heard.last_text)  # the turn so far
        news = _News(pause.looks, pause.text, costs)
        news.take(taker.feed(SpeechBegan(-pause.voiced_s, -pause.voiced_s)), 0.0)
        noticed_s = pause.noticed_s - pause.end_s
        news.take(taker.feed(SpeechPaused(noticed_s, 0.0)), noticed_s)
        while True:
            at, event = news.next(taker.wake_at)
            decisions = taker.feed(event)
            if any(isinstance(decision, Commit | CloseEmpty) for decision in decisions):
                return at
            news.take(decisions, at)


_EARLIER_S = -1000.0
"""When the speech before the pause was, on the clock of the pause."""


def _hear(taker: TurnTaker, end_s: float, noticed_s: float, text: str) -> None:
    """A stretch of speech with its words, whose end is not certain yet."""
    if text:
        taker.feed(SpeechBegan(end_s - 1.0, end_s - 1.0))
        taker.feed(SpeechPaused(end_s + noticed_s, end_s))
        taker.feed(WordsHeard(end_s + noticed_s, taker.turn, 0, text))


class _News:
    """What the engines answer, and when."""

    def __init__(self, looks: Sequence[tuple[float, float]], text: str, costs: Costs) -> None:
        self._looks, self._text, self._costs = dict(looks), text, costs
        self._due: list[tuple[float, TurnInput]] = []

    def take(self, decisions: Sequence[Decision], now: float) -> None:
        """Engines are asked."""
        for decision in decisions:
            match decision:
                case Recognise():
                    at = now + self._costs.recognition_s
                    self._due.append(
                        (at, WordsHeard(at, decision.turn, decision.revision, self._text or "-"))
                    )
                case Judge():
                    at, silence_s = now + self._costs.turn_model_s, decision.silence_s
                    told = self._looks.get(silence_s)
                    judged = Judged(at, decision.turn, decision.revision, silence_s, told)
                    self._due.append((at, judged))
                case _:
                    pass

    def next(self, wake_at: float | None) -> tuple[float, TurnInput]:
        """What happens next, and when."""
        first = min(self._due, key=lambda one: one[0], default=None)
        if first is None or (wake_at is not None and wake_at < first[0]):
            assert wake_at is not None, "the turn taker waits for nothing"
            return wake_at, Tick(wake_at)
        self._due.remove(first)
        return first


@dataclass(frozen=True, slots=True)
class Score:
    """How a way did. Rates in percent, times in seconds.

    Attributes:
        cut_turns: Turns with at least one false cut-off, of all turns.
        cut_pauses: Pauses inside turns, as the ear heard them, that were taken for the end.
        missed: Turns that were never certain, of all turns.
        median_s, p90_s: Silence after the true end of the turn until it was certain.
    """

    name: str
    turns: int
    inner_pauses: int
    cut_turns: float
    cut_pauses: float
    missed: float
    median_s: float
    p90_s: float


def judge(way: Way, calls: Sequence[CallTrace], costs: Costs) -> Score:
    """One way over all calls."""
    turns = inner = cut_pauses = cut_turns = missed = 0
    delays: list[float] = []
    for trace, pauses in _heard(calls):
        turns += 1
        cut = 0
        for heard in pauses:
            pause = heard.pause
            if pause.resumed_s is None:
                continue
            inner += 1
            cut += way.certain_s(heard, costs) < pause.resumed_s - pause.end_s
        cut_pauses += cut
        cut_turns += cut > 0
        delay_s = None if trace.missed else _delay(way, pauses[-1], costs)
        if delay_s is None or delay_s > GIVE_UP_S:
            missed += 1
        else:
            delays.append(delay_s)
    return Score(
        way.name,
        turns,
        inner,
        _percent(cut_turns, turns),
        _percent(cut_pauses, inner),
        _percent(missed, turns),
        statistics.median(delays) if delays else float("nan"),
        _quantile(delays, 0.9),
    )


def _delay(way: Way, last: Heard, costs: Costs) -> float:
    return last.pause.end_s + way.certain_s(last, costs) - last.turn.turn.end_s


def _heard(calls: Sequence[CallTrace]) -> Iterator[tuple[TurnTrace, list[Heard]]]:
    """Each turn's pauses with what was known by then. A caller's pauses are remembered from turn to turn."""
    for call in calls:
        known: list[float] = []
        for trace in call.turns:
            rows: list[Heard] = []
            for pause in trace.pauses:
                last_text = rows[-1].pause.text if rows else ""
                rows.append(Heard(pause, trace, tuple(known), last_text))
                if pause.began_s is not None:
                    known.append(pause.began_s - pause.end_s)
            yield trace, rows


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)] if ordered else float("nan")


def baselines() -> list[Way]:
    """Plain VAD, and Smart Turn alone: asked once (at 0.2 s as is usual, or later) or again whenever ours asks it."""
    ways: list[Way] = [Silence(timeout) for timeout in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5)]
    for looks in ((0.2,), (0.4,), (0.8,), (0.2, 0.4, 0.8, 1.4)):
        for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
            ways += [SmartTurnOnly(looks, threshold, fallback) for fallback in (1.0, 1.5, 2.0, 3.0)]
    return ways


def best_at(scores: Sequence[Score], median_s: float, slack_s: float = 0.02) -> Score:
    """Of those whose median delay is not above ``median_s``, the one with the fewest turns cut off; of equals, that
    with fewer pauses cut off, then that with the lower 90th percentile."""
    able = [score for score in scores if score.median_s <= median_s + slack_s] or list(scores)
    return min(able, key=lambda score: (score.cut_turns, score.cut_pauses, score.p90_s))


def next_above(scores: Sequence[Score], median_s: float, slack_s: float = 0.02) -> Score | None:
    """Of those whose median delay is above ``median_s``, the fastest that cuts off fewer turns than :func:`best_at`."""
    best = best_at(scores, median_s, slack_s)
    better = [s for s in scores if s.median_s > median_s + slack_s and s.cut_turns < best.cut_turns]
    return min(better, key=lambda score: (score.median_s, score.cut_turns, score.p90_s), default=None)


def between(below: Score, above: Score, median_s: float) -> float:
    """Percent of turns cut off at ``median_s``, on the straight line between two ways."""
    if not below.median_s < median_s <= above.median_s:
        return below.cut_turns
    share = (median_s - below.median_s) / (above.median_s - below.median_s)
    return below.cut_turns + share * (above.cut_turns - below.cut_turns)

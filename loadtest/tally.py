"""What did the callers of a run hear, all together? Times and counts, and what is made of them: percentiles, a service
level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_ERRORS = 100
"""Kinds of error that are told apart."""
_ERROR_CHARS = 160


class TurnHeard(NamedTuple):
    """An answered turn. Times in seconds; ``at_s`` since the run began, the others since the last sample of speech.

    ``received_s`` is when the first audible sample came, ``played_s`` when it left the loudspeaker.
    """

    at_s: float
    received_s: float
    played_s: float
    after_barge_in: bool


class GapHeard(NamedTuple):
    """An underrun inside an answer: when in the run, how long (seconds), and whether the same sentence went on."""

    at_s: float
    seconds: float
    inside_sentence: bool


class At(NamedTuple):
    """Something that took a time, at a moment of the run; both in seconds."""

    at_s: float
    seconds: float


@dataclass
class Tally:
    """Of one run, or of one level of load.

    Attributes:
        began_s: Loop time at which it began.
        turns: Answered turns.
        gaps: Underruns inside answers.
        barge_ins: From the first sample of a barge-in to the last of the old answer.
        connects: Calls that were made, by how long it took until the session was there.
        refusals: Calls that the server refused, by how soon.
        counts: ``calls``, ``unanswered``, ``late_answers`` (begun before the turn was over), ``cut_offs`` (answers that
            came while the caller spoke), ``unasked``, ``nods``, ``cut_by_nod``, ``missed_barge_ins``, ``stale``,
            ``wrong_voice``, ``lost`` (calls that the server ended), ``slow_lost``, ``hang_ups``, ``failed_calls``,
            ``failed_answers``, ``server_errors``, ``pauses_for_the_caller``. Those that are 0 may be absent.
        errors: What the server said went wrong, and how calls were lost.
    """

    began_s: float
    turns: list[TurnHeard] = field(default_factory=list)
    gaps: list[GapHeard] = field(default_factory=list)
    barge_ins: list[At] = field(default_factory=list)
    connects: list[At] = field(default_factory=list)
    refusals: list[At] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    stale_s: float = 0.0

    def error(self, message: str) -> None:
        """Something went wrong; the same text is counted."""
        message = " ".join(message.split())[:_ERROR_CHARS]
        if message not in self.errors and len(self.errors) >= MOST_ERRORS:
            message = "other errors"
        self.errors[message] += 1

    def since(self, at_s: float) -> Tally:
        """The same from a moment of the run on. Counts, calls and refusals are those of the whole run."""
        return Tally(
            self.began_s,
            [turn for turn in self.turns if turn.at_s >= at_s],
            [gap for gap in self.gaps if gap.at_s >= at_s],
            [one for one in self.barge_ins if one.at_s >= at_s],
            self.connects,
            self.refusals,
            self.counts,
            self.errors,
            self.stale_s,
        )

    def summary(self, ideal_s: float | None = None) -> dict[str, Any]:
        """Figures in milliseconds.

        Args:
            ideal_s: What the server's engines and its wait for the end of a turn take by themselves; with it the
                overhead is told.
        """
        received = [turn.received_s for turn in self.turns]
        found: dict[str, Any] = {
            "turns": len(self.turns),
            "voice_to_voice_ms": spread_ms(received),
            "voice_to_voice_played_ms": spread_ms(turn.played_s for turn in self.turns),
            "barge_in_silence_ms": spread_ms(one.seconds for one in self.barge_ins),
            "gap_ms": spread_ms(gap.seconds for gap in self.gaps),
            "connect_ms": spread_ms(one.seconds for one in self.connects),
            "refusal_ms": spread_ms(one.seconds for one in self.refusals),
            "gaps": len(self.gaps),
            "gaps_inside_sentences": sum(gap.inside_sentence for gap in self.gaps),
            "refusals": len(self.refusals),
            "stale_audio_s": round(self.stale_s, 3),
            "counts": dict(sorted(self.counts.items())),
            "errors": dict(self.errors.most_common()),
        }
        if ideal_s is not None:
            found["ideal_ms"] = round(ideal_s * 1000, 1)
            found["overhead_ms"] = spread_ms(value - ideal_s for value in received)
        return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the values does not exceed (nearest rank); ``None`` of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread_ms(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p95, p99 and the largest of seconds, in milliseconds; ``None`` of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {f"p{share}": percentile(ordered, share / 100) for share in (50, 95, 99)}
    found["max"] = ordered[-1]
    return {name: round(1000 * value, 1) for name, value in found.items() if value is not None}

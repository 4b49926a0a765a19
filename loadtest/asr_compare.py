"""Is a candidate as good as what it is compared with? Pass or fail for each slice, against stated limits.

The comparison is paired: both heard the same utterances. How sure the difference is, is told by resampling them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.asr_results import Accuracy, Sample, total
from loadtest.wer import Errors
from voice.errors import BadRequest

_DRAWS = 2_000
ALL = "all"
_ROUNDING = 1e-9
_SAME_S = 0.2
"""A synthetic voice may round otherwise on another machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a candidate may be worse by.

    Attributes:
        points: Of the word error rate, in percent of the words said…
        words: …or so many words of a slice, whichever is more: one word is many points of a small slice.
        cpu_share: Its processor time, as a share of the other's.
        cpu_per_slice: That holds for each slice; else for all together.
    """

    points: float
    words: int
    cpu_share: float
    cpu_per_slice: bool = True

    def __str__(self) -> str:
        where = "in each slice" if self.cpu_per_slice else "over all slices"
        return (
            f"at most {self.points:g} % of the words or {self.words} words more wrong in each slice, whichever is "
            f"more; at most {self.cpu_share:.2f} of its processor time {where}"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A slice, or :data:`ALL`.

    Attributes:
        candidate, other: Word errors.
        difference: 95 % interval of how many more words the candidate gets wrong.
        cpu: The candidate's processor time as a share of the other's; ``None``: the other took none.
        broken: The limits that don't hold, in words.
    """

    slice: str
    candidate: Errors
    other: Errors
    difference: tuple[float, float]
    cpu: float | None
    broken: tuple[str, ...]


def compare_in(result: Accuracy, candidate: str, other: str, limits: Limits) -> list[Row]:
    """Two engines of one run, by slice and all together."""
    return _rows(result, result, candidate, other, limits)


def compare_with(result: Accuracy, baseline: Accuracy, candidate: str, limits: Limits) -> list[Row]:
    """An engine against that of the same name in a baseline, or else against the baseline's first, by the slices of
    ``result``.

    Raises:
        BadRequest: They did not hear the same.
    """
    other = candidate if candidate in baseline.engines else baseline.engines[0]
    for name in result.slices:
        check_speech(baseline, name, [(one.name, one.said, one.seconds) for one in result.of(name)])
    then = {(one.slice, one.name): one for one in baseline.samples}
    paired = tuple(then[one.slice, one.name] for one in result.samples)
    return _rows(result, replace(baseline, samples=paired), candidate, other, limits)


def check_speech(baseline: Accuracy, name: str, speech: Sequence[tuple[str, str, float]]) -> None:
    """Refuse a baseline whose slice holds other speech.

    Args:
        baseline: The one.
        name: The slice.
        speech: Name, words and seconds of each of its utterances.

    Raises:
        BadRequest: There is a difference; the message names the first.
    """
    mine = {(one, said): seconds for one, said, seconds in speech}
    theirs = {(one.name, one.said): one.seconds for one in baseline.of(name)}
    for one in [*mine, *theirs]:
        if one not in mine or one not in theirs:
            raise BadRequest(
                f"the baseline is of other speech ({baseline.corpus}, seed {baseline.seed}): {one[0]} of the slice "
                f"{name} ({one[1]!r}) is in one of them only"
            )
        if abs(mine[one] - theirs[one]) > _SAME_S:
            raise BadRequest(f"{one[0]} of the slice {name} has another length in the baseline: other audio")


def _rows(result: Accuracy, others: Accuracy, candidate: str, other: str, limits: Limits) -> list[Row]:
    """``others`` holds the same samples in the same order."""
    rows = [_row(name, result.of(name), others.of(name), candidate, other, limits) for name in result.slices]
    everything = _row(None, result.of(None), others.of(None), candidate, other, limits)
    return [*rows, everything]


def _row(
    name: str | None, mine: list[Sample], theirs: list[Sample], candidate: str, other: str, limits: Limits
) -> Row:
    ours, reference = total(mine, candidate), total(theirs, other)
    broken = []
    allowed = max(limits.points / 100 * reference.errors.words, limits.words)
    more = ours.errors.total - reference.errors.total
    if name is not None and more > allowed + _ROUNDING:
        broken.append(f"{more} words more wrong, {allowed:.1f} allowed")
    cpu = ours.cpu_s / reference.cpu_s if reference.cpu_s > 0 else None
    if cpu is not None and limits.cpu_per_slice == (name is not None) and cpu > limits.cpu_share + _ROUNDING:
        broken.append(f"{cpu:.2f} of its processor time, {limits.cpu_share:.2f} allowed")
    differences = [
        a.errors[candidate].total - b.errors[other].total for a, b in zip(mine, theirs, strict=True)
    ]
    return Row(name or ALL, ours.errors, reference.errors, interval(differences), cpu, tuple(broken))


def interval(differences: list[int]) -> tuple[float, float]:
    """Where the sum lies in 95 % of all corpora like this one, by the bootstrap over utterances."""
    rng = np.random.default_rng(0)
    values = np.array(differences, np.float64)
    if not values.size:
        return 0.0, 0.0
    picks = rng.integers(values.size, size=(_DRAWS, values.size))
    low, high = np.percentile(values[picks].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)

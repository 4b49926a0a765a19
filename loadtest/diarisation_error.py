"""How wrong a list of who speaks when is: the diarisation error rate of NIST, with its three parts.

Missed speech, false alarm and confusion are seconds of speech; overlapping turns count once per speaker. Speakers
are matched one to one so that most seconds agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice.errors import BadRequest

Spoken = tuple[float, float, str]
"""Start and end in seconds, and who spoke."""


@dataclass(frozen=True, slots=True)
class DiarisationError:
    """Seconds of speech, by what is wrong with them.

    Attributes:
        speech_s: All speech of the reference that is judged.
        missed_s: Speech nobody is said to have spoken.
        false_s: Speech that nobody spoke.
        confused_s: Speech given to another speaker.
        speakers: Of the reference.
        found: Of the answer.
    """

    speech_s: float
    missed_s: float
    false_s: float
    confused_s: float
    speakers: int
    found: int

    @property
    def rate(self) -> float:
        """All errors as a share of the speech; may exceed 1."""
        return (self.missed_s + self.false_s + self.confused_s) / self.speech_s

    def __add__(self, other: DiarisationError) -> DiarisationError:
        """Both recordings together."""
        return DiarisationError(
            self.speech_s + other.speech_s,
            self.missed_s + other.missed_s,
            self.false_s + other.false_s,
            self.confused_s + other.confused_s,
            self.speakers + other.speakers,
            self.found + other.found,
        )


def diarisation_error(
    reference: Sequence[Spoken], answer: Sequence[Spoken], *, collar_s: float = 0.0
) -> DiarisationError:
    """Compare an answer with what was spoken.

    Args:
        reference: The truth; turns may overlap.
        answer: What a diariser said, under names of its own.
        collar_s: So much around each start and end of the reference is not judged; evaluations often take 0.25,
            because such times are known no better.

    Raises:
        BadRequest: A turn that ends before it starts or has no finite times, a negative collar, or no speech left
            to judge.
    """
    _check(reference, "reference")
    _check(answer, "answer")
    if not 0.0 <= collar_s < np.inf:
        raise BadRequest(f"collar_s must be 0 or more, not {collar_s}")
    if not reference:
        raise BadRequest("the reference has no speech to judge")
    names = sorted({turn[2] for turn in reference})
    others = sorted({turn[2] for turn in answer})
    edges = _edges(reference, answer, collar_s)
    lengths_s = np.diff(edges) * ~_covered(edges, _collars(reference, collar_s))
    said = np.array([_covered(edges, _turns_of(reference, name)) for name in names])
    heard = np.array([_covered(edges, _turns_of(answer, name)) for name in others]).reshape(
        len(others), len(lengths_s)
    )
    speech_s = float((said * lengths_s).sum())
    if speech_s <= 0.0:
        raise BadRequest("the reference has no speech to judge")
    together_s = (said * lengths_s) @ heard.T.astype(np.float64)
    agreed_s = sum(float(together_s[i, j]) for i, j in best_pairs(together_s))
    many, few = said.sum(axis=0), heard.sum(axis=0)
    missed_s = float((np.maximum(many - few, 0) * lengths_s).sum())
    false_s = float((np.maximum(few - many, 0) * lengths_s).sum())
    confused_s = float((np.minimum(many, few) * lengths_s).sum()) - agreed_s
    return DiarisationError(speech_s, missed_s, false_s, max(0.0, confused_s), len(names), len(others))


def _check(turns: Sequence[Spoken], what: str) -> None:
    for start_s, end_s, _ in turns:
        if not (np.isfinite(start_s) and np.isfinite(end_s) and start_s <= end_s):
            raise BadRequest(f"a turn of the {what} runs from {start_s} to {end_s} s")


def _collars(reference: Sequence[Spoken], collar_s: float) -> list[tuple[float, float]]:
    if collar_s == 0.0:
        return []
    return [(at - collar_s, at + collar_s) for turn in reference for at in turn[:2]]


def _turns_of(turns: Sequence[Spoken], name: str) -> list[tuple[float, float]]:
    return [(start_s, end_s) for start_s, end_s, who in turns if who == name]


def _edges(reference: Sequence[Spoken], answer: Sequence[Spoken], collar_s: float) -> npt.NDArray[np.float64]:
    """All times at which anything changes, in order."""
    times = [at for turn in (*reference, *answer) for at in turn[:2]]
    times += [at for collar in _collars(reference, collar_s) for at in collar]
    return np.unique(np.array(times, np.float64))


def _covered(edges: npt.NDArray[np.float64], ranges: Sequence[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    """Which of the pieces between ``edges`` lie in any of the ranges, whose ends are edges."""
    steps = np.zeros(len(edges) + 1, np.int64)
    for start_s, end_s in ranges:
        steps[np.searchsorted(edges, start_s)] += 1
        steps[np.searchsorted(edges, end_s)] -= 1
    covered: npt.NDArray[np.bool_] = np.cumsum(steps)[: max(len(edges) - 1, 0)] > 0
    return covered


def best_pairs(worth: npt.NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of a row and a column, each used at most once, with the largest sum (Hungarian method, O(n³)).

    Args:
        worth: Shape (rows, columns), finite.
    """
    rows, columns = worth.shape
    size = max(rows, columns)
    cost = np.zeros((size + 1, size + 1))
    cost[1 : rows + 1, 1 : columns + 1] = -worth
    of_row, of_column = np.zeros(size + 1), np.zeros(size + 1)  # potentials; row and column 0 are a start
    matched = np.zeros(size + 1, np.int64)  # the row of each column
    for row in range(1, size + 1):
        _augment(row, cost, of_row, of_column, matched)
    pairs = [(int(matched[column]) - 1, column - 1) for column in range(1, columns + 1)]
    return sorted(pair for pair in pairs if 0 <= pair[0] < rows)


def _augment(
    row: int,
    cost: npt.NDArray[np.float64],
    of_row: npt.NDArray[np.float64],
    of_column: npt.NDArray[np.float64],
    matched: npt.NDArray[np.int64],
) -> None:
    """Give ``row`` a column along the cheapest path of columns that move to other rows."""
    size = len(matched) - 1
    matched[0] = row
    least = np.full(size + 1, np.inf)
    came_from = np.zeros(size + 1, np.int64)
    seen = np.zeros(size + 1, np.bool_)
    at = 0
    while matched[at] != 0:
        seen[at] = True
        here = matched[at]
        slack = cost[here] - of_row[here] - of_column
        nearer = ~seen & (slack < least)
        least[nearer], came_from[nearer] = slack[nearer], at
        open_columns = np.where(seen, np.inf, least)
        open_columns[0] = np.inf
        ahead = int(np.argmin(open_columns))
        step = open_columns[ahead]
        of_row[matched[seen]] += step
        of_column[seen] -= step
        least[~seen] -= step
        at = ahead
    while at != 0:
        before = int(came_from[at])
        matched[at] = matched[before]
        at = before
    matched[0] = 0

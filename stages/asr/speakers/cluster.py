"""How many speakers are there, and what does each sound like? From the windows of a recording, in order.

Groups of windows that sound alike (:mod:`stages.asr.speakers.linkage`) are too many at first. In rounds, the windows
go to the group they fit, where a change of speaker has its cost, groups with hardly any speech are given up, and the
two groups that are most likely one voice are joined.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.asr.speakers.linkage import copies, group_alike, group_sums, renumbered
from stages.asr.speakers.paths import best_path, change_costs
from stages.asr.speakers.windows import Times

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.intp]

LEAST_WINDOW_S = 0.9
"""Shorter windows say too little to found a group: two voices are confused in 9 % of pairs at 0.8 s, 3 % at 1.6 s."""
LEAST_SPEECH_S = 3.0
"""A speaker with less than this isn't told apart."""
MOST_GROUPS = 40
"""More speakers than this aren't told apart: the groups with least speech are given up."""

ONE_VOICE = 0.92
"""Two groups that have this cosine, free of the noise of single windows, are one voice. Halves of one speaker had
0.95–1.0, different speakers of one sex up to 0.85 (telephone band and noise included)…"""
UNSURE = 0.35
"""…less this by the square root of the smaller one's seconds of speech: 0.86 for 30 s, 0.72 for 3 s. What is heard
again word for word counts once: a recording that is played many times says no more about its speaker."""
_OWN_LIKENESS, _PRIOR = 0.78, 4.0
"""Mean cosine of the windows of one voice, and as how many pairs it counts when a group is small…"""
_MOST_OWN = 0.84
"""…and the most that is believed: groups were chosen for being alike."""

_CHANGE, _SCALE = 8.0, 0.05
"""Cost of a change between windows, where a cosine that is better by 0.05 is worth 1."""


def find_voices(times: Times, vectors: Floats, most: int | None = None) -> Floats:
    """The direction of each speaker's voice.

    Args:
        times: Start and end of each window, shape (n, 2), in order, n ≥ 1.
        vectors: Its embedding, shape (n, dimensions), of length 1; zeros where nothing was heard.
        most: At most so many speakers; ``None``: as many as are heard.

    Returns:
        Shape (speakers, dimensions), at least one, of length 1.
    """
    heard = np.linalg.norm(vectors, axis=1) > 0.5
    if not heard.any():
        return vectors[:1]
    long = heard & (times[:, 1] - times[:, 0] >= LEAST_WINDOW_S)
    used = long if long.sum() >= 2 else heard
    times, vectors = times[used], vectors[used]
    costs = change_costs(_CHANGE, np.append(0.0, times[1:, 0] - times[:-1, 1]))
    novelty = 1.0 / copies(vectors)
    labels = _with_speech(group_alike(vectors), times, vectors)
    while True:
        labels = _settled(labels, times, vectors, costs)
        joined = _joined(labels, times, vectors, novelty, most)
        if joined is None:
            return _directions(vectors, labels)
        labels = joined


def _settled(labels: Labels, times: Times, vectors: Floats, costs: Times) -> Labels:
    """Windows where they fit, three times over; groups that are left with little speech are given up."""
    for _ in range(3):
        scores = (vectors @ _directions(vectors, labels).T).astype(np.float64) / _SCALE
        labels = renumbered(best_path(scores, costs))
    return _with_speech(labels, times, vectors)


def _with_speech(labels: Labels, times: Times, vectors: Floats) -> Labels:
    """The groups that have speech enough; windows of the others go to the nearest of these."""
    speech_s = _speech_s(labels, times)
    kept = np.argsort(-speech_s, kind="stable")[:MOST_GROUPS]
    kept = np.sort(kept[(speech_s[kept] >= LEAST_SPEECH_S) | (kept == kept[0])])
    if len(kept) == len(speech_s):
        return labels
    nearest = kept[(vectors @ _directions(vectors, labels)[kept].T).argmax(axis=1)]
    return renumbered(np.where(np.isin(labels, kept), labels, nearest))


def _joined(labels: Labels, times: Times, vectors: Floats, novelty: Times, most: int | None) -> Labels | None:
    """The two groups that are likeliest one voice as one; ``None`` when no two are, and they are few enough."""
    speech_s = _speech_s(labels, times)
    if len(speech_s) == 1:
        return None
    speech_s *= np.bincount(labels, novelty) / np.bincount(labels)
    smaller_s = np.minimum(speech_s[:, None], speech_s)
    margin = _likeness(vectors, labels) + UNSURE / np.sqrt(smaller_s) - ONE_VOICE
    np.fill_diagonal(margin, -np.inf)
    one, other = divmod(int(margin.argmax()), len(speech_s))
    if margin[one, other] < 0.0 and (most is None or len(speech_s) <= most):
        return None
    return renumbered(np.where(labels == other, one, labels))


def _likeness(vectors: Floats, labels: Labels) -> npt.NDArray[np.float64]:
    """The cosine of the voices behind the groups: that of their windows, over how alike each one's own are."""
    sums = group_sums(vectors, labels).astype(np.float64)
    sizes = np.bincount(labels).astype(np.float64)
    dots = sums @ sums.T
    own = (dots.diagonal() - sizes + _PRIOR * _OWN_LIKENESS) / (sizes * (sizes - 1) + _PRIOR)
    own = np.clip(own, 0.1, _MOST_OWN)
    likeness: npt.NDArray[np.float64] = dots / np.outer(sizes, sizes) / np.sqrt(np.outer(own, own))
    return likeness


def _directions(vectors: Floats, labels: Labels) -> Floats:
    sums = group_sums(vectors, labels)
    directions: Floats = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return directions


def _speech_s(labels: Labels, times: Times) -> Times:
    """Seconds that the windows of each group cover together."""
    covered = np.zeros(int(labels.max()) + 1)
    for group in range(len(covered)):
        starts, ends = times[labels == group].T
        covered[group] = ends[-1] - starts[-1] + np.minimum(ends[:-1] - starts[:-1], np.diff(starts)).sum()
    return covered

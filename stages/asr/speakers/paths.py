"""Which speaker is heard at each step, if speakers seldom change and mostly in pauses? (Viterbi)"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PAUSE_S = 0.5
"""A pause so long makes a change of speaker cheaper by a factor of e."""


def change_costs(cost: float, pauses_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What a change of speaker costs after each pause; ``cost`` where there is none, or an overlap."""
    costs: npt.NDArray[np.float64] = cost * np.exp(-np.maximum(pauses_s, 0.0) / PAUSE_S)
    return costs


def best_path(scores: npt.NDArray[np.float64], costs: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The speaker of each step, so that the scores less the costs of changes are greatest.

    Args:
        scores: How well each speaker fits each step, shape (steps, speakers), at least one of each.
        costs: What it costs to change at each step, shape (steps,); the first is not used.
    """
    steps, speakers = scores.shape
    stay = np.arange(speakers)
    came_from = np.empty((steps, speakers), np.int16)
    best = scores[0].astype(np.float64)
    for step in range(1, steps):
        leader = int(best.argmax())
        changed = best[leader] - costs[step]
        came_from[step] = np.where(changed > best, leader, stay)
        best = np.maximum(best, changed) + scores[step]
    path = np.empty(steps, np.intp)
    path[-1] = best.argmax()
    for step in range(steps - 1, 0, -1):
        path[step - 1] = came_from[step, path[step]]
    return path

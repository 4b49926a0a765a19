"""Who speaks at each moment, once it is known what the voices sound like?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stages.asr.speakers.paths import best_path, change_costs
from stages.asr.speakers.windows import Piece, Times

STEP_S = 0.1
_CHANGE, _SCALE = 1.0, 0.5
"""Cost of a change of speaker, where a cosine that is better by 0.5 over one step is worth 1."""
_FAR = 1e-3
"""Weight of a window that doesn't hold the moment: it counts only where none does."""

Moments = list[tuple[float, float, int]]
"""Start and end in seconds and the speaker, in order; within a piece without gaps."""


def place(
    pieces: Sequence[Piece], vectors: npt.NDArray[np.float32], voices: npt.NDArray[np.float32]
) -> Moments:
    """Give each moment of the pieces to a voice. A moment is judged by the windows around it, the nearest most.

    Args:
        pieces: At least one.
        vectors: The embeddings of their windows, one after another, shape (windows, dimensions).
        voices: Shape (speakers, dimensions).
    """
    fits = (vectors @ voices.T).astype(np.float64)
    scores: list[Times] = []
    steps: list[tuple[float, float]] = []
    at = 0
    for piece in pieces:
        count = len(piece.windows)
        edges = np.linspace(
            piece.start_s, piece.end_s, max(1, round((piece.end_s - piece.start_s) / STEP_S)) + 1
        )
        scores.append(_weights((edges[:-1] + edges[1:]) / 2, piece.windows) @ fits[at : at + count])
        steps += pairwise(edges.tolist())
        at += count
    pauses_s = np.append(0.0, [after[0] - before[1] for before, after in pairwise(steps)])
    costs = change_costs(_CHANGE, pauses_s)
    path = best_path(np.concatenate(scores) / _SCALE, costs)
    moments: Moments = []
    for (start_s, end_s), speaker in zip(steps, path.tolist(), strict=True):
        if moments and moments[-1][1] == start_s and moments[-1][2] == speaker:
            moments[-1] = (moments[-1][0], end_s, speaker)
        else:
            moments.append((start_s, end_s, speaker))
    return moments


def _weights(moments_s: Times, windows: Times) -> Times:
    """How much each window says of each moment, shape (moments, windows); rows sum to 1."""
    half_s = np.maximum((windows[:, 1] - windows[:, 0]) / 2, 0.05)
    far_s = np.abs(moments_s[:, None] - windows.mean(axis=1))
    weights = np.maximum(0.0, 1.0 - far_s / half_s) ** 2 + _FAR * np.exp(-far_s)
    normalised: Times = weights / weights.sum(axis=1, keepdims=True)
    return normalised

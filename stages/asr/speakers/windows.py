"""Which short stretches of speech is a voice judged from? Windows of 1.6 s over the spans that hold speech."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from voice.errors import BadRequest

Times = npt.NDArray[np.float64]
"""Seconds."""

WINDOW_S = 1.6
"""What the encoder was trained on."""
HOP_S = 0.8
"""Half a window: 0.4 was no better on generated conversations, at twice the cost."""
LONGEST_PIECE_S = 30.0
"""Longer spans are cut, so that reading and placing stay bounded."""
MOST_SPEECH_S = 24 * 3600.0
"""Embeddings take 4.5 MB for an hour of speech."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of speech without a pause, or a part of a long one.

    Attributes:
        start_s, end_s: In the recording.
        windows: Start and end of each window in seconds, shape (n, 2), n ≥ 1, in order. A piece shorter than a
            window has one, as long as itself.
    """

    start_s: float
    end_s: float
    windows: Times


def pieces_of(spans: Sequence[tuple[float, float]]) -> list[Piece]:
    """Cut spans of speech into pieces and lay windows over them, the last of each up to its end.

    Args:
        spans: Start and end in seconds, in any order; those that touch or overlap are one. Empty ones are dropped.

    Raises:
        BadRequest: A span has no finite times, starts before 0 or ends before it starts; or there is more than a
            day of speech.
    """
    for start_s, end_s in spans:
        if not (math.isfinite(start_s) and math.isfinite(end_s) and 0.0 <= start_s <= end_s):
            raise BadRequest(f"a span of speech can't run from {start_s} to {end_s} s")
    joined = _joined(spans)
    if (speech_s := sum(end_s - start_s for start_s, end_s in joined)) > MOST_SPEECH_S:
        raise BadRequest(
            f"{speech_s / 3600:.1f} hours of speech are too much: the most is a day; cut the recording"
        )
    pieces: list[Piece] = []
    for start_s, end_s in joined:
        parts = math.ceil((end_s - start_s) / LONGEST_PIECE_S)
        edges = np.linspace(start_s, end_s, parts + 1).tolist()
        pieces += [Piece(first_s, last_s, _windows(first_s, last_s)) for first_s, last_s in pairwise(edges)]
    return pieces


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start_s, end_s in sorted(span for span in spans if span[1] > span[0]):
        if joined and start_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end_s, joined[-1][1]))
        else:
            joined.append((start_s, end_s))
    return joined


def _windows(start_s: float, end_s: float) -> Times:
    if end_s - start_s <= WINDOW_S:
        return np.array([[start_s, end_s]])
    hops = math.ceil((end_s - start_s - WINDOW_S) / HOP_S)
    starts = np.minimum(start_s + HOP_S * np.arange(hops + 1), end_s - WINDOW_S)
    return np.stack([starts, starts + WINDOW_S], axis=1)

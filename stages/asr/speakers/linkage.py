"""Which windows sound alike, before anything is known of the speakers? (average linkage)

Groups grow by joining the two that are most alike, where alike is the mean cosine over all pairs of their windows:
Σa · Σb / (|a| |b|) for unit vectors, so that groups of any size can be joined on their sums alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.intp]

ALIKE = 0.73
"""Mean cosine at which groups are still joined. Windows of one voice have 0.74–0.86 with each other, of two up to
0.70; set high, since what is apart can be joined later and what is joined stays so."""
SAME = 0.97
"""Cosine from which two windows hold the same audio; overlapping ones of one voice seldom have 0.95."""
BLOCK = 2_000
"""Windows that are compared all with all: 16 MB, 0.3 s."""


def renumbered(labels: npt.NDArray[np.int64] | Labels) -> Labels:
    """The same groups as 0, 1, 2, … without gaps."""
    return np.unique(labels, return_inverse=True)[1].astype(np.intp)


def group_sums(vectors: Floats, labels: Labels) -> Floats:
    """The sum of each group's vectors, shape (groups, dimensions)."""
    return np.stack([vectors[labels == group].sum(axis=0) for group in range(int(labels.max()) + 1)])


def copies(vectors: Floats) -> npt.NDArray[np.float64]:
    """How often the audio of each window is among the :data:`BLOCK` around it, itself included, shape (n,)."""
    counts = np.empty(len(vectors))
    for at in range(0, len(vectors), BLOCK):
        block = vectors[at : at + BLOCK]
        counts[at : at + BLOCK] = np.maximum(1, (block @ block.T > SAME).sum(axis=1))
    return counts


def group_alike(vectors: Floats) -> Labels:
    """Group unit vectors, shape (n, dimensions), n ≥ 1. More than :data:`BLOCK` are grouped block by block, and then
    the groups; the largest :data:`BLOCK` of these are compared, the others stay as they are."""
    labels = np.empty(len(vectors), np.intp)
    groups = 0
    for at in range(0, len(vectors), BLOCK):
        block = vectors[at : at + BLOCK]
        labels[at : at + BLOCK] = groups + average_linkage(block, np.ones(len(block)))
        groups = int(labels[: at + BLOCK].max()) + 1
    if len(vectors) <= BLOCK:
        return labels
    sizes = np.bincount(labels, minlength=groups)
    large = np.argsort(-sizes, kind="stable")[:BLOCK]
    sums = np.zeros((groups, vectors.shape[1]), np.float32)
    np.add.at(sums, labels, vectors)
    joined = np.arange(groups) + groups
    joined[large] = average_linkage(sums[large], sizes[large])
    return renumbered(joined[labels])


def average_linkage(sums: Floats, sizes: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Labels:
    """Join items while any two are alike by :data:`ALIKE`, by chains of nearest neighbours (O(n²)).

    Args:
        sums: The sum of each item's unit vectors, shape (n, dimensions), n ≥ 1.
        sizes: How many vectors each has, shape (n,).

    Returns:
        The group of each item, shape (n,).
    """
    size = sizes.astype(np.float32)
    means = sums / size[:, None]
    alike = means @ means.T
    np.fill_diagonal(alike, -np.inf)
    of = np.arange(len(sums))
    chain: list[int] = []
    done = np.zeros(len(sums), np.bool_)
    while not done.all():
        at = chain[-1] if chain else int(np.argmin(done))
        if not chain:
            chain.append(at)
        nearest = int(alike[at].argmax())
        before = chain[-2] if len(chain) > 1 else -1
        if before >= 0 and alike[at, before] >= alike[at, nearest]:
            nearest = before
        if alike[at, nearest] < ALIKE:
            # Whatever else may grow, its mean with this item can't exceed the largest that it has now.
            alike[at], alike[:, at], done[at] = -np.inf, -np.inf, True
            chain.pop()
        elif nearest != before:
            chain.append(nearest)
        else:
            _join(alike, size, at, before)
            done[at] = True
            of[of == at] = before
            del chain[-2:]
    return renumbered(of)


def _join(alike: Floats, size: Floats, gone: int, kept: int) -> None:
    """``gone`` becomes part of ``kept``."""
    joined = (size[gone] * alike[gone] + size[kept] * alike[kept]) / (size[gone] + size[kept])
    joined[[gone, kept]] = -np.inf
    alike[kept], alike[:, kept] = joined, joined
    alike[gone], alike[:, gone] = -np.inf, -np.inf
    size[kept] += size[gone]

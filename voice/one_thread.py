"""Matrix products that stay on the calling thread.

OpenBLAS shares a large product among its own threads, and they spin for some 30 ms after it in case there is another:
100 ms of processor time for a product of half a millisecond (measured on two cores), taken from the engines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_PRODUCTS = 200_000
"""Multiplications of one matrix product. OpenBLAS gives products below 262 144 to one thread."""


def product(rows: npt.NDArray[np.float32], matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """``rows @ matrix``, shapes (n, k) and (k, m), some rows at a time."""
    out = np.empty((len(rows), matrix.shape[1]), np.float32)
    some = max(1, MOST_PRODUCTS // max(1, matrix.size))
    for start in range(0, len(rows), some):
        np.matmul(rows[start : start + some], matrix, out=out[start : start + some])
    return out

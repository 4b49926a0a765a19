"""G.711: telephone audio, one byte a sample, as µ-law (North America, Japan) or A-law (elsewhere).

Both directions are table look-ups. The tables come from the definition in ITU-T G.711 (11/88): eight
segments, each twice as coarse as the one below, sixteen steps in each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from voice.interfaces import Pcm16

Law = Literal["pcmu", "pcma"]

_BIAS = 132  # µ-law: half a step of the lowest segment plus the offset that makes segments powers of two


def decode(data: bytes | npt.NDArray[np.uint8], law: Law) -> Pcm16:
    """One int16 sample for each byte."""
    codes = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    return _levels(law)[codes]


def encode(pcm: Pcm16, law: Law) -> bytes:
    """One byte for each sample: the code whose level is nearest."""
    return bytes(_codes(law)[np.ascontiguousarray(pcm).view(np.uint16)].tobytes())


@lru_cache(maxsize=2)
def _levels(law: Law) -> Pcm16:
    """Code → sample, shape (256,)."""
    code = np.arange(256)
    if law == "pcmu":
        code = ~code & 0xFF  # sent inverted
        magnitude = ((2 * (code & 15) + 33) << (code >> 4 & 7)) * 4 - _BIAS
        return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)
    code = code ^ 0x55  # sent with every other bit inverted
    segment = code >> 4 & 7
    step = 2 * (code & 15) + 1
    magnitude = np.where(segment == 0, step, (step + 32) << np.maximum(segment - 1, 0)) * 8
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


@lru_cache(maxsize=2)
def _codes(law: Law) -> npt.NDArray[np.uint8]:
    """Sample, seen as unsigned → code, shape (65536,)."""
    levels = _levels(law).astype(np.int32)
    order = np.argsort(levels, kind="stable")
    if law == "pcmu":  # two codes mean zero; the positive one, 0xFF, is the one that is sent
        order = order[order != 0x7F]
    ladder = levels[order]
    samples = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int32)
    # Halfway between two levels the one further from zero is taken, as in the standard.
    middle = ladder[:-1] + ladder[1:]
    index = np.where(
        samples >= 0,
        np.searchsorted(middle, 2 * samples, side="right"),
        np.searchsorted(middle, 2 * samples, side="left"),
    )
    return order[index].astype(np.uint8)

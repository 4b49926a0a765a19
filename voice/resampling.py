"""Resampler: another sample rate for a stream of int16 audio, with as little delay as the filter allows.

soxr's streams work in blocks of the Fourier transform and hold back 21 ms on average at quality HQ between
16, 24 and 48 kHz, 64 ms from 8 to 16 kHz, at times twice that (measured with 20 ms chunks). A turn waits for
its last samples, so here a plain windowed-sinc filter runs as a small matrix product per chunk: 1.3 to 4 ms, never
more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import soxr

from voice.errors import BadAudio
from voice.interfaces import Pcm16
from voice.one_thread import MOST_PRODUCTS

MIN_HZ, MAX_HZ = 4_000, 192_000
"""Rates that are taken."""

CROSSINGS = 32
"""Zero crossings of the filter on each side, at the lower of the two rates: 2 ms at 16 kHz, 4 ms at 8 kHz."""

CUTOFF = 0.47
"""Half-level point as a share of the lower rate. With the window below: flat to 0.43, −80 dB from 0.51 on."""

BETA = 8.0
"""Kaiser window for 80 dB (Kaiser 1974: beta = 0.11 (A − 8.7))."""

BLOCK_OUTPUTS, MOST_OUTPUTS = 16, 64
"""Outputs of a matrix, at least about and at most: enough to be worth a product, few enough that few of its values are
zero."""

MAX_VALUES = 1_000_000
"""Most values of a whole filter. Rates without a common divisor would need more; soxr takes those."""

_EMPTY: Pcm16 = np.zeros(0, np.int16)


def check_rate(rate_hz: int, what: str = "sample rate") -> None:
    """Raises :class:`BadAudio` for a rate outside 4–192 kHz."""
    if not isinstance(rate_hz, int) or not MIN_HZ <= rate_hz <= MAX_HZ:
        raise BadAudio(f"{what} {rate_hz} Hz can't be used; expected {MIN_HZ} to {MAX_HZ} Hz")


@dataclass(frozen=True, slots=True)
class _Filter:
    """A period of outputs, after which the filter repeats itself, in tiles of a few outputs each.

    A tile is a matrix (inputs, outputs) over the inputs its outputs need, the first of them at ``starts``. Output i of
    a period is centred ``i * down / up`` inputs after its first, which stands ``reach - 1`` inputs into the buffer.
    """

    tiles: tuple[npt.NDArray[np.float64], ...]
    starts: tuple[int, ...]
    period: int  # outputs
    advance: int  # inputs from one period to the next
    span: int  # inputs that a period looks at
    most: int  # periods of one product
    up: int
    down: int
    reach: int  # inputs on each side of a centre


@lru_cache(maxsize=32)
def _filter(in_hz: int, out_hz: int) -> _Filter | None:
    """The filter of two rates, shared by all streams; ``None`` if it would be too large."""
    common = math.gcd(in_hz, out_hz)
    up, down = out_hz // common, in_hz // common
    scale = min(1.0, out_hz / in_hz)
    reach = math.ceil(CROSSINGS / scale)
    period = up * max(1, BLOCK_OUTPUTS // up)  # several short ones make a product worth its call
    rows = min(period, MOST_OUTPUTS)
    if up * (rows * down // up + 2 * reach) > MAX_VALUES:
        return None
    firsts = range(0, period, rows)
    starts = tuple(row * down // up for row in firsts)
    tiles = tuple(
        np.ascontiguousarray(_taps(np.arange(row, min(row + rows, period)), up, down, scale, reach).T)
        for row in firsts
    )
    span = starts[-1] + len(tiles[-1])
    most = max(1, MOST_PRODUCTS // max(tile.size for tile in tiles))
    return _Filter(tiles, starts, period, period // up * down, span, most, up, down, reach)


def _taps(
    outputs: npt.NDArray[np.int64], up: int, down: int, scale: float, reach: int
) -> npt.NDArray[np.float64]:
    """Filter weights, shape (outputs, inputs): a sinc under a Kaiser window around the centre of each
    output."""
    first = outputs * down // up
    inputs = np.arange(first[0], first[-1] + 2 * reach)
    # in periods of the lower rate
    distance = (inputs[None, :] - (reach - 1) - (outputs * down / up)[:, None]) * scale
    inside = np.clip(1.0 - (distance / CROSSINGS) ** 2, 0.0, None)
    taps = np.sinc(2.0 * CUTOFF * distance) * np.where(inside > 0.0, np.i0(BETA * np.sqrt(inside)), 0.0)
    # outside its own 2 · reach inputs a row must be zero, or the result would depend on the chunking
    offset = inputs[None, :] - first[:, None]
    taps[(offset < 0) | (offset >= 2 * reach)] = 0.0
    return np.asarray(taps / taps.sum(axis=1, keepdims=True))


class Resampler:
    """One stream's change of rate. Equal rates cost nothing: what goes in comes out.

    Output k belongs to the time k / out_hz of the input; the delay is only that of waiting. However the input
    is cut, the output is the same.

    Args:
        in_hz, out_hz: 4 000–192 000.

    Raises:
        BadAudio: A rate out of range.
    """

    def __init__(self, in_hz: int, out_hz: int) -> None:
        check_rate(in_hz)
        check_rate(out_hz)
        self.in_hz = in_hz
        self.out_hz = out_hz
        self._filter = None if in_hz == out_hz else _filter(in_hz, out_hz)
        self._soxr: soxr.ResampleStream | None = None
        self._restart()

    def _restart(self) -> None:
        self._taken = 0  # inputs so far
        self._made = 0  # outputs so far
        self._row = 0  # next output within its period
        if self._filter is not None:
            self._buffer = np.zeros(self._filter.reach - 1)  # from the first input of the period on
        elif self.in_hz != self.out_hz:
            self._soxr = soxr.ResampleStream(self.in_hz, self.out_hz, 1, dtype="int16", quality="LQ")

    @property
    def delay_s(self) -> float:
        """Input audio that is held back, in seconds; more with odd rates, where soxr does the work."""
        if self._filter is not None:
            return self._filter.reach / self.in_hz
        return 0.0 if self._soxr is None else 0.03

    def process(self, pcm: Pcm16) -> Pcm16:
        """All output that the input so far allows. Int16, shape (n,), any n."""
        if self.in_hz == self.out_hz:
            return pcm
        if self._filter is None:
            assert self._soxr is not None
            return np.asarray(self._soxr.resample_chunk(np.ascontiguousarray(pcm)), np.int16)
        self._taken += len(pcm)
        self._buffer = np.concatenate([self._buffer, pcm])
        # the centre of the last possible output must have `reach` inputs after it
        ready = ((self._taken - self._filter.reach) * self._filter.up - 1) // self._filter.down + 1
        return self._make(self._filter, ready - self._made)

    def flush(self) -> Pcm16:
        """The rest of the stream: in all ``ceil(inputs * out_hz / in_hz)`` samples. Then a new stream
        begins."""
        rest = _EMPTY
        if self._filter is not None:
            total = -(-self._taken * self._filter.up // self._filter.down)
            self._buffer = np.concatenate([self._buffer, np.zeros(self._filter.reach + 1)])
            rest = self._make(self._filter, total - self._made)
        elif self._soxr is not None:
            rest = np.asarray(self._soxr.resample_chunk(_EMPTY, last=True), np.int16)
        self._restart()
        return rest

    def _make(self, fir: _Filter, count: int) -> Pcm16:
        """The next ``count`` outputs; the buffer holds what they need."""
        if count <= 0:
            return _EMPTY
        periods = -(-(self._row + count) // fir.period)
        missing = (periods - 1) * fir.advance + fir.span - self._buffer.size
        inputs = self._buffer if missing <= 0 else np.concatenate((self._buffer, np.zeros(missing)))
        wave = np.empty((periods, fir.period))
        for first in range(0, periods, fir.most):
            _filtered(fir, inputs, first * fir.advance, wave[first : first + fir.most])
        out = wave.reshape(-1)[self._row : self._row + count]
        done, self._row = divmod(self._row + count, fir.period)
        self._buffer = self._buffer[done * fir.advance :]
        self._made += count
        np.rint(out, out=out)
        np.minimum(out, 32767.0, out=out)
        np.maximum(out, -32768.0, out=out)
        return out.astype(np.int16)


def _filtered(
    fir: _Filter, inputs: npt.NDArray[np.float64], first: int, out: npt.NDArray[np.float64]
) -> None:
    """Whole periods, shape (periods, outputs of a period), whose inputs begin at ``first``."""
    row = 0
    for tile, start in zip(fir.tiles, fir.starts, strict=True):
        width, outputs = tile.shape
        # each period's inputs in a row of their own: rows that overlap can't be multiplied as they lie
        rows = np.empty((len(out), width))
        rows[:] = np.ndarray(rows.shape, rows.dtype, inputs, 8 * (first + start), (8 * fir.advance, 8))
        np.matmul(rows, tile, out=out[:, row : row + outputs])
        row += outputs


def resample(pcm: Pcm16, in_hz: int, out_hz: int) -> Pcm16:
    """A whole recording at another rate: the same samples as through a stream."""
    if in_hz == out_hz:
        return pcm
    stream = Resampler(in_hz, out_hz)
    return np.concatenate([stream.process(pcm), stream.flush()])

"""Audio in whatever form it comes, made into mono int16: byte streams, channels, encodings, files and
levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from voice import g711
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.resampling import Resampler, check_rate, resample

__all__ = [
    "AudioFormat",
    "Decoder",
    "PcmAssembler",
    "Resampler",
    "first_audible",
    "last_audible",
    "read_file",
    "resample",
    "rms_dbfs",
    "to_mono",
    "trim_leading_silence",
]

Encoding = Literal["pcm16", "pcmu", "pcma", "float32"]
Samples: TypeAlias = npt.NDArray[np.int16 | np.uint8 | np.float32 | np.float64]
Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_CHANNELS = 8
AUDIBLE_DBFS = -50.0
"""A block above this level counts as heard."""
BLOCK_S = 0.01
"""Length of the blocks in which levels are judged."""

_WIDTHS: dict[str, int] = {"pcm16": 2, "pcmu": 1, "pcma": 1, "float32": 4}
_ARRAYS: dict[str, list[np.dtype[Any]]] = {
    "pcm16": [np.dtype("int16")],
    "pcmu": [np.dtype("uint8")],
    "pcma": [np.dtype("uint8")],
    "float32": [np.dtype("float32"), np.dtype("float64")],
}
_EMPTY: Pcm16 = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How the bytes of a stream are meant; multi-byte samples are little-endian, channels interleaved.

    Attributes:
        encoding: ``"pcm16"``, ``"pcmu"`` (µ-law), ``"pcma"`` (A-law) or ``"float32"`` (full scale ±1).
        rate_hz: 4 000–192 000.
        channels: 1–8.

    Raises:
        BadAudio: Anything else.
    """

    encoding: Encoding = "pcm16"
    rate_hz: int = ASR_RATE_HZ
    channels: int = 1

    def __post_init__(self) -> None:
        if self.encoding not in _WIDTHS:
            raise BadAudio(f"encoding {self.encoding!r} can't be used; expected one of {', '.join(_WIDTHS)}")
        check_rate(self.rate_hz)
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise BadAudio(f"{self.channels} channels can't be used; expected 1 to {MAX_CHANNELS}")

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of all channels."""
        return _WIDTHS[self.encoding] * self.channels


class _Frames:
    """Cuts a byte stream at frame borders: what is left over waits for the next piece."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dropped = 0
        self._rest = b""

    def push(self, data: Bytes) -> bytes:
        whole = self._rest + bytes(data) if self._rest else bytes(data)
        cut = len(whole) - len(whole) % self.size
        self._rest = whole[cut:]
        return whole[:cut] if self._rest else whole

    def end(self) -> int:
        """The stream is over: drop and count the dangling bytes."""
        left, self._rest = len(self._rest), b""
        self.dropped += left
        return left


class PcmAssembler:
    """Int16 samples from a byte stream that may be cut anywhere, also in the middle of a sample.

    One for each stream: the dangling byte belongs to it alone.
    """

    def __init__(self) -> None:
        self._frames = _Frames(2)

    @property
    def dropped_bytes(self) -> int:
        """Bytes that belonged to no sample when their stream ended."""
        return self._frames.dropped

    def push(self, data: Bytes | Pcm16) -> Pcm16:
        """The samples that are complete now. Arrays must be int16, shape (n,); they end a dangling sample.

        Raises:
            BadAudio: An array of another type or shape.
        """
        if isinstance(data, np.ndarray):
            if data.dtype != np.int16 or data.ndim != 1:
                raise BadAudio(f"expected int16 samples of shape (n,), got {data.dtype} {data.shape}")
            self._frames.end()
            return data
        return np.frombuffer(self._frames.push(data), "<i2")

    def end(self) -> int:
        """The stream is over; returns how many bytes were dropped (0 or 1). The next push begins a new
        one."""
        return self._frames.end()


class Decoder:
    """One stream in a declared format → mono int16 at another rate.

    Channels and rate are converted independently, each only where needed. Channels are averaged; one that has
    been all zeros since the start of the stream does not count, so a headset on the left channel alone keeps
    its level.

    Args:
        format: What comes in.
        rate_hz: What goes out.
        nan: What to do with NaN and infinite samples: ``"refuse"`` them or take them as ``"silence"``.
    """

    def __init__(
        self,
        format: AudioFormat,
        rate_hz: int = ASR_RATE_HZ,
        *,
        nan: Literal["refuse", "silence"] = "refuse",
    ) -> None:
        self.format = format
        self.rate_hz = rate_hz
        self.not_finite = 0
        self._refuse_nan = nan == "refuse"
        self._frames = _Frames(format.frame_bytes)
        self._resampler = Resampler(format.rate_hz, rate_hz)
        self._live = np.zeros(format.channels, np.bool_)

    @property
    def dropped_bytes(self) -> int:
        """Bytes that belonged to no frame when the stream ended."""
        return self._frames.dropped

    @property
    def delay_s(self) -> float:
        """Audio that the change of rate holds back, in seconds."""
        return self._resampler.delay_s

    def decode(self, data: Bytes | Samples) -> Pcm16:
        """The next piece: bytes cut anywhere, or an array of the encoding's type, (n,) interleaved or (n,
        channels).

        Raises:
            BadAudio: NaN or infinite samples; an array of the wrong type or shape. The piece is lost, the
                stream goes on.
        """
        samples = self._from_array(data) if isinstance(data, np.ndarray) else self._from_bytes(data)
        if self.format.channels == 1:
            return self._resampler.process(_to_int16(samples[:, 0]))
        return self._resampler.process(self._mix(samples))

    def flush(self) -> Pcm16:
        """The stream is over: what the resampler held back. Dangling bytes are dropped and counted."""
        self._frames.end()
        self._live[:] = False
        return self._resampler.flush()

    def _from_bytes(self, data: Bytes) -> Samples:
        frames, encoding = self._frames.push(data), self.format.encoding
        samples: Samples
        if encoding == "pcm16":
            samples = np.frombuffer(frames, "<i2")
        elif encoding == "float32":
            samples = self._finite(np.frombuffer(frames, "<f4"))
        else:
            samples = g711.decode(frames, encoding)
        return samples.reshape(-1, self.format.channels)

    def _from_array(self, data: npt.NDArray[Any]) -> Samples:
        encoding, channels = self.format.encoding, self.format.channels
        if data.dtype not in _ARRAYS[encoding]:
            raise BadAudio(
                f"{encoding} samples must be {' or '.join(map(str, _ARRAYS[encoding]))}, not {data.dtype}"
            )
        if data.ndim not in (1, 2) or (data.ndim == 2 and data.shape[1] != channels) or data.size % channels:
            raise BadAudio(f"an array of shape {data.shape} doesn't hold whole frames of {channels} channels")
        frames = data.reshape(-1, channels)
        if encoding == "float32":
            return self._finite(frames)
        return frames if encoding == "pcm16" else g711.decode(frames, encoding)

    def _finite(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        bad = samples.size - int(np.count_nonzero(np.isfinite(samples)))
        if not bad:
            return samples
        self.not_finite += bad
        if self._refuse_nan:
            raise BadAudio(f"{bad} of {samples.size} samples are NaN or infinite")
        return np.where(np.isfinite(samples), samples, 0.0)

    def _mix(self, frames: Samples) -> Pcm16:
        """The mean of the channels that have carried sound so far; from the very sample on where one
        begins."""
        count: int | npt.NDArray[np.int64] = int(self._live.sum())
        for channel in np.flatnonzero(~self._live):
            sounding = np.flatnonzero(frames[:, channel])
            if len(sounding):
                self._live[channel] = True
                count = count + (np.arange(len(frames)) >= sounding[0])
        return _to_int16(
            frames.sum(axis=1, dtype=np.float64) / np.maximum(count, 1), frames.dtype.kind == "f"
        )


def _to_int16(samples: npt.NDArray[Any], unit_scale: bool | None = None) -> Pcm16:
    """Rounded and clipped. ``unit_scale``: full scale is ±1 rather than ±32768; by default, if they are
    floats."""
    if samples.dtype == np.int16:
        return np.asarray(samples, np.int16)
    if unit_scale is None or unit_scale:
        samples = samples * 32768.0
    return np.asarray(np.clip(np.rint(samples), -32768, 32767), np.int16)


def to_mono(frames: Samples) -> Pcm16:
    """A whole recording, (n,) or (n, channels), int16 or float of full scale ±1, as mono int16.

    The mean of all channels that are not silent throughout.
    """
    if frames.ndim == 1:
        return _to_int16(frames)
    sounding = max(1, int(np.count_nonzero(frames.any(axis=0))))
    return _to_int16(frames.sum(axis=1, dtype=np.float64) / sounding, frames.dtype.kind == "f")


# ---------------------------------------------------------------- files


def read_file(
    path: str | Path, *, max_s: float = 3600.0, nan: Literal["refuse", "silence"] = "refuse"
) -> tuple[Pcm16, int]:
    """Mono samples of a sound file and their rate in Hz; any format, rate and channels that soundfile reads.

    Args:
        max_s: Longest file that is taken, in seconds.
        nan: What to do with NaN and infinite samples: ``"refuse"`` the file or take them as ``"silence"``.

    Raises:
        BadAudio: No file, not audio, empty, too long, a rate or number of channels out of range, or NaN.
    """
    path = Path(path)
    if not path.is_file():
        raise BadAudio(f"{path}: no such file")
    try:
        with soundfile.SoundFile(path) as file:
            return _read(file, path, max_s, nan)
    except (soundfile.SoundFileError, TypeError, OSError) as error:  # TypeError: headerless file
        raise BadAudio(f"{path}: not a sound file that can be read ({error})") from error


def _read(file: Any, path: Path, max_s: float, nan: Literal["refuse", "silence"]) -> tuple[Pcm16, int]:
    rate_hz = int(file.samplerate)
    exact = file.subtype in ("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW")
    try:
        declared = AudioFormat("pcm16" if exact else "float32", rate_hz, file.channels)
        decoder = Decoder(declared, rate_hz, nan="silence")
    except BadAudio as error:
        raise BadAudio(f"{path}: {error}") from error
    blocks: list[Pcm16] = []
    length = 0
    while len(block := file.read(rate_hz, dtype="int16" if exact else "float32", always_2d=True)):
        length += len(block)
        if length > max_s * rate_hz:
            raise BadAudio(f"{path}: longer than {max_s:g} s")
        blocks.append(decoder.decode(block))
    if not length:
        raise BadAudio(f"{path}: there is no audio in it")
    if decoder.not_finite and nan == "refuse":
        raise BadAudio(f"{path}: {decoder.not_finite} samples are NaN or infinite")
    return np.concatenate(blocks), rate_hz


# ---------------------------------------------------------------- levels


def rms_dbfs(pcm: Pcm16) -> float:
    """Level relative to full scale (a square wave of ±32768 is 0 dBFS, a full sine −3); ``-inf`` for
    silence."""
    if not len(pcm):
        return -math.inf
    wave = pcm.astype(np.float32)
    power = float(wave @ wave) / len(wave)
    return 10.0 * math.log10(power / 32768.0**2) if power else -math.inf


def _audible_blocks(pcm: Pcm16, rate_hz: int, threshold_dbfs: float, block_s: float) -> npt.NDArray[np.intp]:
    """Indexes of the blocks above the threshold; a last, shorter block counts by its own length."""
    size = max(1, round(block_s * rate_hz))
    if not len(pcm):
        return np.zeros(0, np.intp)
    energy = np.add.reduceat(np.square(pcm, dtype=np.float64), np.arange(0, len(pcm), size))
    lengths = np.full(len(energy), size)
    lengths[-1] = len(pcm) - (len(energy) - 1) * size
    return np.flatnonzero(energy / lengths > 32768.0**2 * 10.0 ** (threshold_dbfs / 10.0))


def first_audible(
    pcm: Pcm16, rate_hz: int, threshold_dbfs: float = AUDIBLE_DBFS, block_s: float = BLOCK_S
) -> int | None:
    """First sample of the first block whose RMS is above the threshold; ``None`` if all is quiet."""
    blocks = _audible_blocks(pcm, rate_hz, threshold_dbfs, block_s)
    return int(blocks[0]) * max(1, round(block_s * rate_hz)) if len(blocks) else None


def last_audible(
    pcm: Pcm16, rate_hz: int, threshold_dbfs: float = AUDIBLE_DBFS, block_s: float = BLOCK_S
) -> int | None:
    """One past the last sample of the last block whose RMS is above the threshold; ``None`` if all is
    quiet."""
    blocks = _audible_blocks(pcm, rate_hz, threshold_dbfs, block_s)
    return min(len(pcm), (int(blocks[-1]) + 1) * max(1, round(block_s * rate_hz))) if len(blocks) else None


def trim_leading_silence(
    pcm: Pcm16, rate_hz: int, threshold_dbfs: float = AUDIBLE_DBFS, block_s: float = BLOCK_S
) -> Pcm16:
    """What follows the quiet blocks at the start (a view); nothing if all is quiet."""
    start = first_audible(pcm, rate_hz, threshold_dbfs, block_s)
    return pcm[len(pcm) if start is None else start :]

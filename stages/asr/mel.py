"""What Whisper hears: the log-mel spectrogram of an utterance, padded to an encoder window of any width.

The numbers follow Whisper's own front end (frames of 25 ms every 10 ms, Hann window, reflected edges,
Slaney mel filters, a floor 8 decades below the loudest value). Only frames that hold audio are computed:
those of the silence behind it all equal the floor, so they are filled in.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.one_thread import product

Features = npt.NDArray[np.float32]
"""Log-mel features, shape (mels, frames), about −1.5 … 1.5."""

FFT_SAMPLES = 400
HOP_SAMPLES = 160
FRAME_S = HOP_SAMPLES / ASR_RATE_HZ
_HALF = FFT_SAMPLES // 2
_SMALLEST = np.float32(1e-10)  # power below this counts as this, as in Whisper
_RANGE_DECADES = np.float32(8.0)


@lru_cache(maxsize=4)
def mel_filters(mels: int) -> npt.NDArray[np.float32]:
    """The mel filter bank, shape (201, ``mels``): triangles of equal area, linear below 1 kHz and
    logarithmic above (Slaney's scale: 200/3 Hz a mel, then 27 mels for a factor of 6.4)."""
    top_hz = ASR_RATE_HZ / 2
    per_mel_hz, knee_hz, log_step = 200.0 / 3, 1000.0, np.log(6.4) / 27
    knee_mel = knee_hz / per_mel_hz
    top_mel = knee_mel + np.log(top_hz / knee_hz) / log_step
    points = np.linspace(0.0, top_mel, mels + 2)
    edges_hz = np.where(
        points < knee_mel, points * per_mel_hz, knee_hz * np.exp(log_step * (points - knee_mel))
    )
    bins_hz = np.fft.rfftfreq(FFT_SAMPLES, 1 / ASR_RATE_HZ)[:, None]
    low, centre, high = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.ascontiguousarray(triangles * (2.0 / (high - low)), dtype=np.float32)


@lru_cache(maxsize=1)
def _hann() -> npt.NDArray[np.float32]:
    return np.hanning(FFT_SAMPLES + 1)[:-1].astype(np.float32)


def frames_of(samples: int) -> int:
    """How many frames hold any of ``samples`` samples of audio."""
    return -(-(samples + _HALF) // HOP_SAMPLES)


def log_mel(audio: Pcm16, mels: int = 80) -> tuple[Features, float]:
    """The features of all frames that hold audio, and the value of a frame of silence behind it.

    Args:
        audio: 16 kHz; at least 1 sample.
        mels: 80, or 128 for large-v3 models.

    Returns:
        Features of shape (``mels``, ``frames_of(len(audio))``), and the floor that pads them to a window.
    """
    frames = frames_of(len(audio))
    padded = np.zeros((frames - 1) * HOP_SAMPLES + FFT_SAMPLES, dtype=np.float32)
    room = len(padded) - _HALF
    np.divide(audio[:room], np.float32(32768.0), out=padded[_HALF : _HALF + len(audio)], casting="unsafe")
    mirror = min(_HALF, max(len(audio) - 1, 0))
    padded[_HALF - mirror : _HALF] = padded[_HALF + mirror : _HALF : -1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT_SAMPLES)[::HOP_SAMPLES]
    spectrum = np.fft.rfft(windows * _hann(), axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
    mel = product(power, mel_filters(mels))
    log = np.log10(np.maximum(mel, _SMALLEST))
    floor = np.float32(log.max()) - _RANGE_DECADES
    features = (np.maximum(log, floor) + np.float32(4.0)) / np.float32(4.0)
    silence = (max(np.float32(-10.0), floor) + np.float32(4.0)) / np.float32(4.0)
    return np.ascontiguousarray(features.T), float(silence)


def fit(features: Features, silence: float, window: int, out: Features) -> None:
    """Write ``features`` into ``out``, shape (mels, ``window``): cut at the window, or padded with
    silence."""
    frames = min(features.shape[1], window)
    out[:, :frames] = features[:, :frames]
    out[:, frames:window] = silence

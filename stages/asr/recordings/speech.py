"""Where in a recording is speech? Silero's probabilities for a whole recording, far faster than one window at a time.

Each window of Silero builds on the state of the one before, so one stream can't be batched. A recording can be cut into
stretches that are judged side by side, each after a second of what came before it: enough for the state to settle
(Silero's own state is forgotten in every longer pause). A batch of 32 costs 21 µs a window, a window alone 140.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.vad.silero import CONTEXT_SAMPLES, SILENT_DBFS, WINDOW_SAMPLES, load, model_file
from stages.vad.silero_graph import HIDDEN, PADDED
from voice.errors import EngineFailed
from voice.interfaces import ASR_RATE_HZ, Pcm16

Probabilities = npt.NDArray[np.float32]
"""Of speech, 0–1, one for each window of 512 samples, shape (windows,)."""

STRETCH = 250
"""Windows of a stretch: 8 s."""
STRETCHES = 32
"""Stretches of a batch: 256 s of audio, 16 MB while they are judged."""
WARM_UP = 32
"""Windows before a stretch that settle its state: 1 s."""

_BATCH_SAMPLES = STRETCHES * STRETCH * WINDOW_SAMPLES
BATCH_S = _BATCH_SAMPLES / ASR_RATE_HZ
_BEFORE = WARM_UP * WINDOW_SAMPLES + CONTEXT_SAMPLES
_SILENT = 32768.0 * 10.0 ** (SILENT_DBFS / 20.0)


class SpeechMeter:
    """The network, shared by all recordings; blocking.

    Args:
        model_path: The ``.onnx`` file; ``None``: ``silero-vad`` of the catalogue, downloaded on first use.

    Raises:
        ModelMissing: The model is neither here nor to be had, or is another one.
        EngineFailed: ONNX Runtime can't load it.
    """

    def __init__(self, model_path: Path | None = None) -> None:
        self._session = load(model_file(model_path))

    def open(self) -> SpeechStream:
        """A stream for a recording."""
        return SpeechStream(self)

    def judge(self, before: Pcm16, audio: Pcm16) -> Probabilities:
        """The probabilities of ``audio``, whole windows, after ``before``, exactly 1 s and 64 samples."""
        windows = len(audio) // WINDOW_SAMPLES
        stretches = -(-windows // STRETCH)
        found = np.zeros((stretches, STRETCH), np.float32)
        sounding = [s for s in range(stretches) if _sounds(_stretch(audio, s))]
        if not sounding:
            return found.reshape(-1)[:windows]
        whole = np.zeros(_BEFORE + stretches * STRETCH * WINDOW_SAMPLES, np.float32)
        whole[:_BEFORE] = before
        whole[_BEFORE : _BEFORE + len(audio)] = audio
        whole *= np.float32(1 / 32768)
        starts = np.array(sounding) * (STRETCH * WINDOW_SAMPLES)
        views = np.lib.stride_tricks.sliding_window_view(whole, CONTEXT_SAMPLES + WINDOW_SAMPLES)
        state = {name: np.zeros((len(starts), HIDDEN), np.float32) for name in ("h", "c")}
        feed = np.empty((len(starts), PADDED), np.float32)
        mirrored = slice(CONTEXT_SAMPLES + WINDOW_SAMPLES - 2, WINDOW_SAMPLES - 2, -1)
        for step in range(WARM_UP + STRETCH):
            feed[:, : CONTEXT_SAMPLES + WINDOW_SAMPLES] = views[starts + step * WINDOW_SAMPLES]
            feed[:, CONTEXT_SAMPLES + WINDOW_SAMPLES :] = feed[:, mirrored]
            output, state["h"], state["c"] = self._run({"input": feed, **state})
            if step >= WARM_UP:
                found[sounding, step - WARM_UP] = output[:, 0]
        return found.reshape(-1)[:windows]

    def _run(self, feed: dict[str, Any]) -> list[Any]:
        try:
            return list(self._session.run(None, feed))
        except Exception as error:
            raise EngineFailed(f"the voice detector failed: {error}") from error


class SpeechStream:
    """The speech of one recording, in order."""

    def __init__(self, meter: SpeechMeter) -> None:
        self._meter = meter
        self._before: Pcm16 = np.zeros(_BEFORE, np.int16)
        self._waiting: list[Pcm16] = []
        self._waiting_samples = 0

    def push(self, pcm: Pcm16) -> Iterator[tuple[Pcm16, Probabilities]]:
        """More of the recording; whole windows of it with their probabilities as soon as a batch is full."""
        self._waiting.append(pcm)
        self._waiting_samples += len(pcm)
        while self._waiting_samples >= _BATCH_SAMPLES:
            audio = np.concatenate(self._waiting)
            self._waiting = [audio[_BATCH_SAMPLES:]]
            self._waiting_samples = len(self._waiting[0])
            yield self._judged(audio[:_BATCH_SAMPLES])

    def end(self) -> Iterator[tuple[Pcm16, Probabilities]]:
        """The rest, filled up with silence to a whole window."""
        if self._waiting_samples:
            missing = -self._waiting_samples % WINDOW_SAMPLES
            audio = np.concatenate([*self._waiting, np.zeros(missing, np.int16)])
            self._waiting, self._waiting_samples = [], 0
            yield self._judged(audio)

    def _judged(self, audio: Pcm16) -> tuple[Pcm16, Probabilities]:
        probabilities = self._meter.judge(self._before, audio)
        self._before = np.concatenate([self._before, audio[-_BEFORE:]])[-_BEFORE:]
        return audio, probabilities


def _stretch(audio: Pcm16, number: int) -> Pcm16:
    return audio[number * STRETCH * WINDOW_SAMPLES : (number + 1) * STRETCH * WINDOW_SAMPLES]


def _sounds(audio: Pcm16) -> bool:
    """Whether anything in it is above a level that a listener takes for silence."""
    return bool(len(audio)) and int(np.abs(audio.astype(np.int32)).max()) > _SILENT

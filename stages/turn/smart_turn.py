"""Smart Turn v3: does the sound of the last 8 s say that the user is done? One model for all sessions.

A Whisper-tiny encoder with a small head, weights and activations in 8 bits (BSD-2-Clause). It hears melody and
pace rather than words, so it is one witness among others: see :mod:`voice.endpointing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stages.asr.mel import FFT_SAMPLES, HOP_SAMPLES, Features, mel_filters
from voice.batching import Batcher, BatcherStats
from voice.compute import ComputeGate
from voice.errors import BadAudio, EngineFailed, ModelMissing
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.one_thread import product
from voice.scope import Scope

if TYPE_CHECKING:
    import onnxruntime

MODEL = "smart-turn-v3.2"
MODEL_FILE = "smart-turn-v3.2-cpu.onnx"

WINDOW_S = 8.0
WINDOW_SAMPLES = round(WINDOW_S * ASR_RATE_HZ)
MELS = 80
FRAMES = WINDOW_SAMPLES // HOP_SAMPLES

_INPUT = "input_features"
_HALF = FFT_SAMPLES // 2
_LEAST_VARIANCE = np.float32(1e-7)  # added to the variance, so that silence is not divided by zero
_LEAST_POWER = np.float32(1e-10)
_RANGE_DECADES = np.float32(8.0)


class SmartTurn:
    """A :class:`~voice.interfaces.TurnModel` on ONNX Runtime, one thread, shared by any number of sessions.

    Measured on a core of a processor without 8-bit dot products (AVX2 only): 115 ms of processor time a call, 165 ms
    when its sibling thread is busy too; 3–10 ms of it for the features. A batch saves nothing there (within 15 %
    either way), so turns are judged one after another, best class first, unless ``max_batch`` says otherwise.
    A model takes 80 MB, its working memory included.

    Args:
        model_path: The ``.onnx`` file or its folder; ``None``: ``smart-turn-v3.2`` of the catalogue, downloaded
            on first use.
        gate: Taken for each call.
        executor: Where the model runs; ``None``: a thread of its own.
        max_batch: Most turns of a call. More than 1 pays on processors and devices that are faster with batches;
            the answers are the same.
        max_queue: Most turns that wait; then the worst class is refused.
        timeout_s: A call that takes longer is taken for a hang.

    Raises:
        ModelMissing: The model is neither here nor to be had.
        EngineFailed: ONNX Runtime can't load it, or it is another model.
    """

    window_s = WINDOW_S

    def __init__(
        self,
        model_path: Path | None = None,
        *,
        gate: ComputeGate | None = None,
        executor: Executor | None = None,
        max_batch: int = 1,
        max_queue: int = 256,
        timeout_s: float = 10.0,
    ) -> None:
        self.name = MODEL
        self._session = _load(_model_file(model_path))
        runs_on = executor or ThreadExecutor(MODEL)
        self._own_executor = runs_on if executor is None else None
        self._batcher: Batcher[Pcm16, float] = Batcher(
            self._judge,
            name=self.name,
            executor=runs_on,
            max_batch=max_batch,
            max_queue=max_queue,
            gate=gate,
            timeout_s=timeout_s,
        )

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        """The probability, 0–1, that the user is done. Its class is ``scope.priority``.

        The model was made for audio that begins where the turn truly began and ends a moment (0.2 s) after its last
        sound. Without the beginning short answers are judged at random; the longer the silence at the end, the
        more it takes everything for done, and silence alone scores 0.99.

        Args:
            audio: The turn, 16 kHz, shape (n,), at least 1 sample; only its last 8 s count. Copied: the buffer
                may be used again.
            scope: When it ends before the model runs, the model does not run.

        Raises:
            BadAudio: Not one-dimensional int16, or empty.
            EngineFailed, Overloaded, DeadlineExceeded, ScopeCancelled: As named.
        """
        if audio.ndim != 1 or audio.dtype != np.int16:
            raise BadAudio(f"audio must be int16 of shape (n,), not {audio.dtype} of shape {audio.shape}")
        if len(audio) == 0:
            raise BadAudio("there is no audio to judge: the turn must have at least 1 sample")
        return await self._batcher.submit(audio[-WINDOW_SAMPLES:].copy(), scope)

    @property
    def stats(self) -> BatcherStats:
        """The batcher's counts."""
        return self._batcher.stats

    def close(self) -> None:
        """Take no more turns; a call that runs still answers."""
        self._batcher.close()
        if self._own_executor is not None:
            self._own_executor.close()

    def _judge(self, turns: Sequence[Pcm16]) -> Sequence[float]:
        """One call for all ``turns``. The output is named "logits", but went through a sigmoid already."""
        batch = np.stack([turn_features(audio) for audio in turns])
        try:
            (output,) = self._session.run(None, {_INPUT: batch})
        except Exception as error:
            raise EngineFailed(f"ONNX Runtime failed in {self.name}: {error}") from error
        probabilities = output[:, 0]
        if not np.isfinite(probabilities).all():
            raise EngineFailed(f"{self.name} answered with a number that is no probability")
        return [float(probability) for probability in probabilities]


def turn_features(audio: Pcm16) -> Features:
    """What the model is shown: the log-mel spectrogram of the last 8 s, shape (80, 800).

    Whisper's front end with two differences to :func:`stages.asr.mel.log_mel`: silence is put *before* a short turn,
    and the wave is brought to mean 0 and variance 1 over the whole window, that silence included. Both edges are
    mirrored, and the 801st frame is left out before the floor (8 decades under the loudest) is set. As in
    Pipecat's ``LocalSmartTurnAnalyzerV3``, which follows the feature extractor of the model's training.

    Args:
        audio: 16 kHz, at least 1 sample.
    """
    heard = audio[-WINDOW_SAMPLES:]
    begin = WINDOW_SAMPLES - len(heard)
    padded = np.zeros(_HALF + WINDOW_SAMPLES + _HALF, dtype=np.float32)
    wave = padded[_HALF:-_HALF]
    np.multiply(heard, np.float32(1 / 32768), out=wave[begin:])
    wave -= wave.mean()
    wave /= np.sqrt(wave.var() + _LEAST_VARIANCE)
    padded[:_HALF] = wave[_HALF:0:-1]
    padded[-_HALF:] = wave[-2 : -_HALF - 2 : -1]
    # All frames that end before the turn begins are equal: of them only the last is computed.
    first = max(0, (begin - _HALF - 1) // HOP_SAMPLES)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SAMPLES)[::HOP_SAMPLES][first:FRAMES]
    spectrum = np.fft.rfft(frames * _hann(), axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
    log = np.log10(np.maximum(product(power, mel_filters(MELS)), _LEAST_POWER)).T
    features = np.empty((MELS, FRAMES), dtype=np.float32)
    features[:, first:] = log
    features[:, :first] = log[:, :1]
    np.maximum(features, features.max() - _RANGE_DECADES, out=features)
    features += np.float32(4.0)
    features /= np.float32(4.0)
    return features


@lru_cache(maxsize=1)
def _hann() -> npt.NDArray[np.float32]:
    return np.hanning(FFT_SAMPLES + 1)[:-1].astype(np.float32)


def _model_file(path: Path | None) -> Path:
    if path is None:
        from voice import models

        path = models.path(MODEL)
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        raise ModelMissing(f"there is no turn model {file}")
    return file


def _load(path: Path) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Processors with AVX2 but no 8-bit dot product add pairs of products in 16 bits, which overflow. This costs a
    # third more time, and none on other processors. Without it answers were off by 0.06 on average (0.34 at most),
    # and sentences cut off in the middle were told from whole ones with an AUC of 0.68 rather than 0.82.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise EngineFailed(f"the turn model {path.name} can't be loaded: {error}", retryable=False) from error
    shapes = {one.name: one.shape[1:] for one in session.get_inputs()}
    if shapes != {_INPUT: [MELS, FRAMES]}:
        raise EngineFailed(
            f"{path.name} is no Smart Turn v3 model: it takes {shapes}, not {_INPUT} of shape (n, {MELS}, {FRAMES})",
            retryable=False,
        )
    return session

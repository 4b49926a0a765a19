"""What does a voice sound like? A direction in 256 dimensions for each window of speech, by the GE2E encoder.

Its front end is that of the Resemblyzer package: power mel spectrograms (no logarithm), 40 bands, 25 ms every 10 ms, of
audio at −30 dBFS. There only quiet recordings are raised; here each window is brought to that level, so that who is
near the microphone isn't told apart from who is far.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.asr.mel import FFT_SAMPLES, HOP_SAMPLES, mel_filters
from stages.asr.speakers.encoder_graph import FRAMES, MELS, SIZE, Floats, encoder_model
from voice.errors import BadAudio, EngineFailed, ModelMissing
from voice.interfaces import Pcm16
from voice.one_thread import product

MODEL = "ge2e-speaker-encoder"
MODEL_FILE = "pretrained.pt"
LEVEL_DBFS = -30.0
BATCH = 32
"""Windows of a call: 7 ms of processor time each, and no less in larger batches (alone 15 ms)."""
WINDOW_SAMPLES = FRAMES * HOP_SAMPLES

_LEVEL = 10.0 ** (LEVEL_DBFS / 20.0)
_SILENCE = 1e-5  # RMS under which nothing is raised: −100 dBFS, less than one step of 16 bits


class SpeakerEncoder:
    """Embeds windows of speech on the CPU, on one thread; may be called from any thread.

    Args:
        path: ``pretrained.pt`` or its folder; ``None``: the catalogue's, downloaded on first use. Nothing in it is
            run; see :mod:`stages.asr.speakers.torch_tensors`.

    Raises:
        ModelMissing: The file is neither here nor to be had, or another one.
        EngineFailed: ONNX Runtime can't load the network.
    """

    def __init__(self, path: Path | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        model = encoder_model(_read(path))
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise EngineFailed(f"the speaker encoder can't be loaded: {error}", retryable=False) from error

    def embed(self, windows: Sequence[Pcm16]) -> Floats:
        """The direction of each window.

        Args:
            windows: 16 kHz, at most 1.6 s each; shorter ones are filled with silence, and say less.

        Returns:
            Shape (windows, 256), each of length 1 and without negative values; zeros where nothing was heard.

        Raises:
            BadAudio: Not int16 of one channel, or longer than a window.
            EngineFailed: ONNX Runtime failed.
        """
        found = np.zeros((len(windows), SIZE), np.float32)
        for at in range(0, len(windows), BATCH):
            mels = np.stack([window_mel(audio) for audio in windows[at : at + BATCH]], axis=1)
            try:
                (raw,) = self._session.run(None, {"mel": mels.reshape(-1, MELS)})
            except Exception as error:
                raise EngineFailed(f"the speaker encoder failed: {error}") from error
            found[at : at + BATCH] = raw
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        np.divide(found, lengths, out=found, where=lengths > 1e-6)
        return found


def window_mel(audio: Pcm16) -> npt.NDArray[np.float32]:
    """The mel spectrogram of a window at −30 dBFS, shape (160, 40); each frame is centred on its time.

    Raises:
        BadAudio: Not int16 of one channel, or longer than 1.6 s.
    """
    if audio.dtype != np.int16 or audio.ndim != 1 or len(audio) > WINDOW_SAMPLES:
        raise BadAudio(
            f"a window of speech is at most {WINDOW_SAMPLES} int16 samples of one channel, not "
            f"{audio.dtype} of shape {audio.shape}"
        )
    half = FFT_SAMPLES // 2
    padded = np.zeros(WINDOW_SAMPLES + FFT_SAMPLES, np.float32)
    wave = padded[half : half + len(audio)]
    np.multiply(audio, np.float32(1 / 32768), out=wave)
    rms = float(np.sqrt(np.mean(np.square(wave)))) if len(wave) else 0.0
    if rms > _SILENCE:
        wave *= np.float32(_LEVEL / rms)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SAMPLES)[::HOP_SAMPLES][:FRAMES]
    spectrum = np.fft.rfft(frames * np.hanning(FFT_SAMPLES + 1)[:-1].astype(np.float32), axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
    return product(power, mel_filters(MELS))


def _read(path: Path | None) -> bytes:
    if path is None:
        from voice import models

        path = models.path(MODEL)
    file = path / MODEL_FILE if path.is_dir() else path
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelMissing(f"the speaker encoder {file} can't be read: {error.strerror or error}") from error

"""One Piper voice on disk: how text becomes phonemes, and phonemes become samples. Everything here blocks."""

from __future__ import annotations

import json
import logging
import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.onnx_graph import Graph
from stages.tts.piper_stream import Array, Float32, Split, Threads, split
from voice.errors import ModelMissing

log = logging.getLogger("voice.piper")

_espeak = threading.Lock()
"""espeak-ng keeps its language in globals of the process: all voices take turns, each call sets its own."""

_ALONE = Threads(first=1, later=1)
_BOS, _PAD, _EOS = "^", "_", "$"


@dataclass(frozen=True, slots=True)
class Rendering:
    """One run of phonemes becoming audio.

    Attributes:
        length: How many samples it will have.
        ends: For each phoneme handed in, the sample at which it ends; ``None`` where the voice doesn't tell.
        windows: The samples one piece after the other, float32 (n,) within ±1; asking for the next makes it.
    """

    length: int
    ends: npt.NDArray[np.int64] | None
    windows: Iterator[Float32]


class PiperModel:
    """A loaded voice. Calls may come from any thread.

    Args:
        onnx: The voice's ``.onnx`` file; its ``.onnx.json`` lies beside it.
        threads: Threads inside one operator, for all up to the first window and for the rest.

    Raises:
        ModelMissing: A file is absent or damaged, or the ``piper`` package is not installed.
    """

    def __init__(self, onnx: Path, threads: Threads = _ALONE) -> None:
        try:
            from piper import PiperVoice
            from piper.config import PiperConfig
        except ImportError as error:
            raise ModelMissing(
                f"Piper needs the package piper-tts ({error}): pip install 'voice[local]'"
            ) from error
        raw = read_config(onnx)
        try:
            self.config: Any = PiperConfig.from_dict(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelMissing(f"{onnx}.json does not describe a Piper voice: {error!r}") from error
        self._voice = PiperVoice(session=None, config=self.config)
        known = [ids[0] for ids in self.config.phoneme_id_map.values() if ids][:8]
        self._network = _open_sessions(onnx, threads, self._feed(known, None, 1.0, deterministic=True))

    def phonemise(self, text: str) -> list[list[str]]:
        """The phonemes of each sentence of ``text``, with punctuation and spaces; may be empty."""
        # Piper reads [[…]] as raw phonemes: text from a language model must not reach that.
        plain = text.replace("[", " ").replace("]", " ").replace("\0", " ")
        plain = plain.encode("utf-8", "ignore").decode("utf-8")
        with _espeak:
            return [sentence for sentence in self._voice.phonemize(plain) if sentence]

    def begin(
        self,
        phonemes: Sequence[str],
        *,
        speaker: int | None = None,
        speed: float = 1.0,
        deterministic: bool = False,
    ) -> Rendering:
        """Lay out the audio of ``phonemes``: about 40 ms a second of it, before the first window is made.

        Args:
            speaker: Which speaker of a voice that has several; ``None``: the voice's default.
            speed: 2.0 is twice as fast.
            deterministic: Leave out the sampling noise: the same input gives the same samples, spoken a
                little flatter.
        """
        ids: list[int] = self._voice.phonemes_to_ids(list(phonemes))
        feed = self._feed(ids, speaker, speed, deterministic=deterministic)
        if isinstance(self._network, Split):
            frames, durations = self._network.head.run(list(self._network.told), feed)
            length = frames.shape[-1] * self._network.decoder.step
            return Rendering(length, self._ends(phonemes, ids, durations), self._network.windows(frames))
        output = self._network.run(None, feed)
        samples = np.asarray(output[0], dtype=np.float32).reshape(-1)
        ends = self._ends(phonemes, ids, output[1]) if len(output) > 1 else None
        return Rendering(len(samples), ends, iter((samples,)))

    def _feed(
        self, ids: Sequence[int], speaker: int | None, speed: float, *, deterministic: bool
    ) -> dict[str, Array]:
        noise = (0.0, 0.0) if deterministic else (self.config.noise_scale, self.config.noise_w_scale)
        scales = (noise[0], self.config.length_scale / speed, noise[1])
        feed: dict[str, Array] = {
            "input": np.array([ids], dtype=np.int64),
            "input_lengths": np.array([len(ids)], dtype=np.int64),
            "scales": np.array(scales, dtype=np.float32),
        }
        if self.config.num_speakers > 1:
            chosen = self.config.default_speaker_id if speaker is None else speaker
            feed["sid"] = np.array([chosen], dtype=np.int64)
        return feed

    def _ends(
        self, phonemes: Sequence[str], ids: Sequence[int], durations: Array
    ) -> npt.NDArray[np.int64] | None:
        """Sample at which each phoneme (with the pad after it) ends, from the durations of the ids."""
        id_map = self.config.phoneme_id_map
        pad = len(id_map[_PAD])
        counts = [len(id_map[p]) + pad if p in id_map else 0 for p in phonemes]
        first = len(id_map[_BOS]) + pad
        durations = np.asarray(durations).reshape(-1)
        if first + sum(counts) + len(id_map[_EOS]) != len(ids) or len(durations) != len(ids):
            return None  # a language with its own id layout
        ends_in_frames = np.concatenate(([0.0], np.cumsum(durations)))
        ends = ends_in_frames[first + np.cumsum(counts)] * self.config.hop_length
        return np.asarray(ends, dtype=np.int64)


def read_config(onnx: Path) -> dict[str, Any]:
    """The voice's description, ``<onnx>.json``.

    Raises:
        ModelMissing: One of the two files is absent, or the description is no JSON object.
    """
    path = Path(f"{onnx}.json")
    for file in (onnx, path):
        if not file.is_file():
            raise ModelMissing(
                f"the Piper voice file {file} is missing: "
                "a voice is an .onnx file with its .onnx.json beside it"
            )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        int(raw["audio"]["sample_rate"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelMissing(f"{path} is damaged ({error!r}): fetch the voice again") from error
    return dict(raw)


def _open_sessions(onnx: Path, threads: Threads, try_feed: dict[str, Array]) -> Split | Any:
    """The voice in parts that give its audio piece by piece; as one session where it can't be split."""
    import onnxruntime

    def open_session(model: bytes, threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session._model_bytes = None  # it keeps them to open itself again elsewhere, which we never ask for
        return session

    try:
        with onnx.open("rb") as file:
            graph = Graph.read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        try:
            return split(graph, open_session, threads, try_feed)
        except Exception as reason:  # noqa: BLE001  logged; a file that is damaged fails again below
            log.warning(
                "the Piper voice %s is spoken clause by clause, not piece by piece: %s", onnx.stem, reason
            )
        durations = graph.made_by("Ceil")
        outputs = (
            [*graph.outputs, *durations] if len(graph.outputs) == len(durations) == 1 else [*graph.outputs]
        )
        return open_session(graph.part(list(graph.inputs), outputs), threads.later)
    except Exception as error:  # onnxruntime's own errors share no parent but Exception
        raise ModelMissing(
            f"the Piper voice {onnx} is damaged and can't be loaded: fetch it again"
        ) from error

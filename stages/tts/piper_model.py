"""One Piper voice on disk: how text becomes phonemes, and phonemes become samples. Everything here blocks."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voice.errors import ModelMissing

log = logging.getLogger("voice.piper")
Float32 = npt.NDArray[np.float32]

_espeak = threading.Lock()
"""espeak-ng keeps its language in globals of the process: all voices take turns, each call sets its own."""

_BOS, _PAD, _EOS = "^", "_", "$"


@dataclass(frozen=True, slots=True)
class Rendering:
    """What one run of the network gave.

    Attributes:
        samples: float32 (n,), within ±1.
        ends: For each phoneme handed in, the sample at which it ends; ``None`` where the voice doesn't tell.
    """

    samples: Float32
    ends: npt.NDArray[np.int64] | None


class PiperModel:
    """A loaded voice. Calls may come from any thread.

    Args:
        onnx: The voice's ``.onnx`` file; its ``.onnx.json`` lies beside it.
        threads: Threads inside one operator. One by default: two make a clause a third faster, but take the
            second core away from the recogniser and the language model.

    Raises:
        ModelMissing: A file is absent or damaged, or the ``piper`` package is not installed.
    """

    def __init__(self, onnx: Path, threads: int = 1) -> None:
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
        self._session, self._tells_durations = _open_session(onnx, threads)
        self._voice = PiperVoice(session=self._session, config=self.config)

    def phonemise(self, text: str) -> list[list[str]]:
        """The phonemes of each sentence of ``text``, with punctuation and spaces; may be empty."""
        # Piper reads [[…]] as raw phonemes: text from a language model must not reach that.
        plain = text.replace("[", " ").replace("]", " ").replace("\0", " ")
        plain = plain.encode("utf-8", "ignore").decode("utf-8")
        with _espeak:
            return [sentence for sentence in self._voice.phonemize(plain) if sentence]

    def render(
        self,
        phonemes: Sequence[str],
        *,
        speaker: int | None = None,
        speed: float = 1.0,
        deterministic: bool = False,
    ) -> Rendering:
        """One run of the network over all ``phonemes``.

        Args:
            speaker: Which speaker of a voice that has several; ``None``: the voice's default.
            speed: 2.0 is twice as fast.
            deterministic: Leave out the sampling noise: the same input gives the same samples, spoken a
                little flatter.
        """
        ids: list[int] = self._voice.phonemes_to_ids(list(phonemes))
        noise = (0.0, 0.0) if deterministic else (self.config.noise_scale, self.config.noise_w_scale)
        scales = (noise[0], self.config.length_scale / speed, noise[1])
        feed: dict[str, npt.NDArray[Any]] = {
            "input": np.array([ids], dtype=np.int64),
            "input_lengths": np.array([len(ids)], dtype=np.int64),
            "scales": np.array(scales, dtype=np.float32),
        }
        if self.config.num_speakers > 1:
            chosen = self.config.default_speaker_id if speaker is None else speaker
            feed["sid"] = np.array([chosen], dtype=np.int64)
        output = self._session.run(None, feed)
        samples = np.asarray(output[0], dtype=np.float32).reshape(-1)
        return Rendering(samples, self._ends(phonemes, ids, output) if self._tells_durations else None)

    def _ends(
        self, phonemes: Sequence[str], ids: Sequence[int], output: Sequence[npt.NDArray[Any]]
    ) -> npt.NDArray[np.int64] | None:
        """Sample at which each phoneme (with the pad after it) ends, from the durations of the ids."""
        id_map = self.config.phoneme_id_map
        pad = len(id_map[_PAD])
        counts = [len(id_map[p]) + pad if p in id_map else 0 for p in phonemes]
        first = len(id_map[_BOS]) + pad
        durations = np.asarray(output[1]).reshape(-1)
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


def _open_session(onnx: Path, threads: int) -> tuple[Any, bool]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        data = onnx.read_bytes()
        told = _with_durations(data)
        session = onnxruntime.InferenceSession(told or data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no parent but Exception
        raise ModelMissing(
            f"the Piper voice {onnx} is damaged and can't be loaded: fetch it again"
        ) from error
    return session, len(session.get_outputs()) > 1


def _with_durations(model: bytes) -> bytes | None:
    """The model with its predicted durations (frames per id) as a second output; ``None`` if there are none.

    In VITS they come out of the graph's only Ceil. Protocol buffers merge a message that is given twice, so
    one more ``graph { output { name } }`` behind the model adds an output without unpacking 60 MB of weights.
    Field numbers are those of onnx.proto: ModelProto.graph 7, GraphProto.node 1 and .output 12,
    NodeProto.output 2 and .op_type 4, ValueInfoProto.name 1.
    """
    names: set[bytes] = set()
    outputs = 0
    for number, graph in _fields(memoryview(model)):
        if number != 7:
            continue
        for kind, node in _fields(graph):
            outputs += kind == 12
            if kind == 1:
                parts = list(_fields(node))
                if any(key == 4 and bytes(value) == b"Ceil" for key, value in parts):
                    names.update(bytes(value) for key, value in parts if key == 2)
    if outputs != 1 or len(names) != 1:
        return None
    return model + _field(7, _field(12, _field(1, names.pop())))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a protocol buffer message; numbers are skipped.

    Raises:
        ValueError, IndexError: Not a protocol buffer.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    raise ValueError("the message ends inside a field")
                yield key >> 3, data[at : at + length]
                at += length
            case 5:
                at += 4
            case other:
                raise ValueError(f"unknown wire type {other}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _field(number: int, payload: bytes) -> bytes:
    def varint(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
        return bytes(out)

    return varint(number << 3 | 2) + varint(len(payload)) + payload

"""Who speaks when, by a pipeline of pyannote.audio, where the package and the pipeline's files are at hand.

The package's files are torch pickles and a ``config.yaml`` that names the class to build. Here pickles are read with
torch's weights-only reader, and only classes of pyannote itself are built; what needs more is refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stages.asr.speakers.diarise import ReadAudio, SpeakerTurn, check_audio, letters
from stages.asr.speakers.windows import pieces_of
from voice.errors import BadRequest, EngineFailed, ModelMissing
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ

MOST_S = 4 * 3600.0
"""The pipeline takes a whole recording at once, as float32: 0.9 GB for this."""
_OWN = ("pyannote.audio.pipelines.",)
_ENVIRONMENT = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "PYANNOTE_METRICS_ENABLED": "0"}
"""While a pipeline is loaded: torch reads no pickle that could run code, whoever asks it to; and the package, which
reports its use to its makers by default, doesn't."""
_SAFE = (
    ("torch.torch_version", "TorchVersion"),
    ("pyannote.audio.core.task", "Specifications"),
    ("pyannote.audio.core.task", "Problem"),
    ("pyannote.audio.core.task", "Resolution"),
)
"""Plain records in pyannote's checkpoints that the weights-only reader must be told of."""
_loading = threading.Lock()


def available() -> bool:
    """Whether the package is installed. Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyannote", "torch")) and (
        importlib.util.find_spec("pyannote.audio") is not None
    )


class PyannoteDiariser:
    """Tells speakers apart with pyannote.audio (3.1 or later); the same method as
    :class:`stages.asr.speakers.diarise.Diariser`.

    Args:
        source: The folder of a pipeline (with its ``config.yaml``), or its name on the model hub, which is downloaded
            on first use. Licences and access tokens are the hub's.
        device: Where torch runs it: ``"cpu"``, ``"cuda"``, …
        token: Access token of the hub.
        executor: Where blocking work runs; ``None``: a thread of its own.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str = "cpu",
        token: str | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.name = f"pyannote {Path(source).name}"
        self._source, self._device, self._token = source, device, token
        self._executor = executor or ThreadExecutor("pyannote")
        self._owns_executor = executor is None
        self._pipeline: Any = None

    async def speakers(
        self, spans: Sequence[tuple[float, float]], read: ReadAudio, *, most: int | None = None
    ) -> list[SpeakerTurn]:
        """Who speaks when; see :meth:`stages.asr.speakers.diarise.Diariser.speakers`.

        The pipeline hears everything from the first to the last span and finds speech by itself; its turns are cut
        to the spans. Cancelling drops the result: the pipeline runs to its end.

        Args:
            spans: Where there is speech, start and end in seconds; at most 4 hours from first to last.
            read: Gives the audio between any two times, 16 kHz int16.
            most: At most so many speakers; ``None``: as many as are heard.

        Raises:
            BadRequest: Unusable spans, too long a recording, or ``most`` below 1.
            BadAudio: ``read`` gave something else.
            ModelMissing: The package or the pipeline is not at hand, or it needs what can run code.
            EngineFailed: The pipeline failed.
        """
        if most is not None and most < 1:
            raise BadRequest(f"most must be 1 or more speakers, not {most}")
        pieces = pieces_of(spans)
        if not pieces:
            return []
        start_s, end_s = pieces[0].start_s, pieces[-1].end_s
        if end_s - start_s > MOST_S:
            raise BadRequest(
                f"pyannote takes a whole recording at once, at most {MOST_S / 3600:.0f} hours, not "
                f"{(end_s - start_s) / 3600:.1f}; cut it, or use the default diariser"
            )
        found = await self._executor.run(self._run, start_s, end_s, read, most)
        return _named(_within(found, [(piece.start_s, piece.end_s) for piece in pieces]))

    def close(self) -> None:
        """End the thread of its own; a call under way still ends."""
        if self._owns_executor:
            self._executor.close()

    def _run(
        self, start_s: float, end_s: float, read: ReadAudio, most: int | None
    ) -> list[tuple[float, float, str]]:
        if self._pipeline is None:
            self._pipeline = _load(self._source, self._device, self._token)
        torch = importlib.import_module("torch")
        audio = check_audio(read(start_s, end_s), end_s - start_s).astype(np.float32) / np.float32(32768.0)
        heard = {"waveform": torch.from_numpy(audio[None]), "sample_rate": ASR_RATE_HZ}
        try:
            said = self._pipeline(heard, **({} if most is None else {"max_speakers": most}))
            # Version 4 answers with several annotations, of which one names a single speaker at any time.
            for part in ("exclusive_speaker_diarization", "speaker_diarization"):
                said = getattr(said, part, said)
            tracks = [(segment.start, segment.end, str(label)) for segment, _, label in said.itertracks(True)]
        except Exception as error:
            raise EngineFailed(f"{self.name} failed: {error}") from error
        return sorted((start_s + float(start), start_s + float(end), label) for start, end, label in tracks)


def _load(source: str | Path, device: str, token: str | None) -> Any:
    if not available():
        raise ModelMissing(
            "pyannote.audio is not installed: install it with torch, or use the default diariser"
        )
    config = _folder(source, token) / "config.yaml"
    _check(config)
    with _loading, _environment({**_ENVIRONMENT, **({} if token is None else {"HF_TOKEN": token})}):
        try:
            torch = importlib.import_module("torch")
            audio = importlib.import_module("pyannote.audio")
            safe = [getattr(importlib.import_module(module), name) for module, name in _SAFE]
            with torch.serialization.safe_globals(safe):
                pipeline = audio.Pipeline.from_pretrained(str(config))
        except Exception as error:
            raise ModelMissing(f"the pyannote pipeline {source} can't be loaded: {error}") from error
        if pipeline is None:
            raise ModelMissing(
                f"the pyannote pipeline {source} needs models that are not to be had: accept their licences on the "
                "hub and give its token"
            )
        pipeline.to(torch.device(device))
    return pipeline


def _folder(source: str | Path, token: str | None) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if isinstance(source, Path) or source.count("/") != 1:
        raise ModelMissing(f"{source} is neither a folder nor the name of a pipeline on the hub")
    hub = importlib.import_module("huggingface_hub")  # comes with pyannote.audio
    try:
        return Path(hub.snapshot_download(source, token=token))
    except Exception as error:
        raise ModelMissing(f"the pyannote pipeline {source} can't be downloaded: {error}") from error


def _check(config: Path) -> None:
    """Refuse a pipeline that would build anything but pyannote's own: any class could be named there.

    Raises:
        ModelMissing: It names other classes, or is no pipeline.
    """
    yaml = importlib.import_module("yaml")  # comes with pyannote.audio
    try:
        said = yaml.safe_load(config.read_text(encoding="utf-8"))
        name, extra = said["pipeline"]["name"], said.get("preprocessors")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ModelMissing(f"{config} describes no pyannote pipeline: {error}") from error
    if not str(name).startswith(_OWN) or extra:
        raise ModelMissing(f"{config} names code that isn't pyannote's own ({extra or name}), and is refused")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """For what the package reads from there alone: its versions differ in how they take a token."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _within(
    turns: Sequence[tuple[float, float, str]], spans: Sequence[tuple[float, float]]
) -> list[tuple[float, float, str]]:
    """The parts of the turns that lie in the spans, which are in order and don't overlap."""
    cut: list[tuple[float, float, str]] = []
    first = 0
    for start_s, end_s, label in turns:
        while first < len(spans) and spans[first][1] <= start_s:
            first += 1
        for at in range(first, len(spans)):
            if spans[at][0] >= end_s:
                break
            cut.append((max(start_s, spans[at][0]), min(end_s, spans[at][1]), label))
    return cut


def _named(turns: Sequence[tuple[float, float, str]]) -> list[SpeakerTurn]:
    names: dict[str, str] = {}
    for _, _, label in turns:
        names.setdefault(label, letters(len(names)))
    return [SpeakerTurn(start_s, end_s, names[label]) for start_s, end_s, label in turns]

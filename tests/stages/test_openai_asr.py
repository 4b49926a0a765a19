"""The client of transcription servers against a scripted server on a real socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from transcription_client import HELLO, PLAIN, TWO_S, error_of, heard, run, serving
from transcription_server import Asked, Reply, speech_like, verbose

from stages.asr.guards import Severity
from stages.asr.openai_answer import read_answer
from stages.asr.text_guards import judge_text
from stages.asr.whisper_languages import code_of
from voice.errors import (
    BadAudio,
    BadRequest,
    EngineFailed,
)
from voice.interfaces import Pcm16, Transcript, Word
from voice.scope import Priority, Scope

# ---------------------------------------------------------------- what is sent


def test_the_audio_goes_out_as_wav_with_model_language_and_hints_and_comes_back_as_words() -> None:
    found, server, recogniser = heard([HELLO], language="en-US", hints=["Kubernetes", "etcd "])
    assert found == Transcript("Hello there, how are you?", "en", -0.2)
    asked = server.asked[0]
    np.testing.assert_array_equal(asked.pcm, TWO_S)
    assert dict(asked.fields) == {
        "model": ["whisper-1"],
        "language": ["en"],
        "prompt": ["Kubernetes, etcd"],
        "response_format": ["verbose_json"],
        "timestamp_granularities[]": ["segment"],
    }
    assert recogniser.counters["requests"] == 1


def test_a_language_that_is_not_given_is_the_servers_to_tell() -> None:
    found, server, _ = heard([HELLO])
    assert found.language == "en" and "language" not in server.asked[0].fields


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("english", "en"),
        ("Haitian Creole", "ht"),
        ("de", "de"),
        ("pt_BR", "pt"),
        ("", None),
        (7, None),
        ("?!", None),
    ],
)
def test_a_language_is_understood_as_a_name_or_a_code(told: object, code: str | None) -> None:
    assert code_of(told) == code


@pytest.mark.parametrize(
    ("audio", "reason"), [(np.zeros(32_000, np.int16), "silence"), (np.zeros(0, np.int16), "silence")]
)
def test_silence_is_not_sent(audio: Pcm16, reason: str) -> None:
    found, server, recogniser = heard([HELLO], audio)
    assert found == Transcript("", rejected=reason)
    assert not server.asked and recogniser.counters[f"rejected_{reason}"] == 1


@pytest.mark.parametrize(
    "audio", [np.zeros((2, 100), np.int16), np.zeros(100, np.float32), np.zeros(16_000 * 31, np.int16)]
)
def test_audio_that_is_no_mono_int16_or_too_long_is_refused(audio: Any) -> None:
    error_of([HELLO], BadAudio, audio=audio, max_audio_s=30.0)


def test_a_language_the_model_does_not_know_is_refused_before_anything_is_sent() -> None:
    error_of([HELLO], BadRequest, language="xx")
    error_of([HELLO], BadRequest, language="de", model="whisper-small.en")


def test_without_a_name_the_first_recogniser_it_lists_is_used_and_asked_for_once() -> None:
    async def work() -> None:
        async with serving([HELLO], models=("kokoro-tts", "faster-whisper-base"), model=None) as (
            one,
            server,
        ):
            await one.transcribe(TWO_S, Scope("turn"))
            await one.transcribe(TWO_S, Scope("turn"))
            assert server.listed == 1
            assert [a["model"] for a in server.asked] == ["faster-whisper-base"] * 2
            assert one.name == "faster-whisper-base"

    run(work())


def test_a_warm_up_connects_and_a_server_without_a_list_will_do_when_the_model_is_named() -> None:
    async def work(models: Sequence[str] | None) -> None:
        async with serving([HELLO], models=models) as (one, server):
            await one.warm_up()
            await one.transcribe(TWO_S, Scope("turn"))
            assert server.connections == 1

    run(work(None))
    run(work(("whisper-1",)))


# ---------------------------------------------------------------- formats


REFUSES = Reply({"error": {"message": "response_format 'verbose_json' is not compatible"}}, status=400)


def test_a_server_without_verbose_json_is_asked_in_json_from_then_on() -> None:
    def script(asked: Asked) -> Reply:
        return REFUSES if asked["response_format"] == "verbose_json" else PLAIN

    async def work() -> None:
        async with serving(script) as (one, server):
            for _ in range(3):
                assert (await one.transcribe(TWO_S, Scope("turn"))).text == PLAIN.body["text"]
            formats = [a["response_format"] for a in server.asked]
            assert formats == ["verbose_json", "json", "json", "json"]
            assert one.counters["simpler_format"] == 1

    run(work())


def test_a_server_that_also_refuses_log_probabilities_is_asked_for_the_text_alone() -> None:
    def script(asked: Asked) -> Reply:
        if asked["response_format"] == "verbose_json" or asked["include[]"]:
            return Reply({"detail": "extra fields not permitted"}, status=422)
        return PLAIN

    found, server, _ = heard(script)
    assert found.text == PLAIN.body["text"] and len(server.asked) == 3


def test_a_request_that_is_bad_in_every_format_tells_the_servers_first_words_and_teaches_nothing() -> None:
    bad = Reply({"error": {"message": "audio is corrupt"}}, status=400)

    async def work() -> None:
        async with serving([bad, bad, bad, HELLO]) as (one, server):
            with pytest.raises(EngineFailed, match="answered 400: audio is corrupt") as caught:
                await one.transcribe(TWO_S, Scope("turn"))
            assert not caught.value.retryable
            await one.transcribe(TWO_S, Scope("turn"))
            assert server.asked[-1]["response_format"] == "verbose_json"

    run(work())


def test_a_server_whose_segments_have_no_scores_is_spared_the_timestamps() -> None:
    placeholders = verbose(
        (" Hello there.", 0.0, 1.5), avg_logprob=-1.0, no_speech_prob=-1.0, compression_ratio=-1.0
    )

    async def work() -> None:
        async with serving([Reply(placeholders), PLAIN]) as (one, server):
            found = await one.transcribe(TWO_S, Scope("turn"))
            assert found == Transcript("Hello there.", "en")  # the placeholder is no score
            await one.transcribe(TWO_S, Scope("turn"))
            assert server.asked[1]["response_format"] == "json"

    run(work())


def test_log_probabilities_of_tokens_are_read_from_json() -> None:
    body = PLAIN.body | {"logprobs": [{"token": "Hello", "logprob": -0.1}, {"token": ".", "logprob": -0.3}]}
    found, _, _ = heard([REFUSES, Reply(body)])
    assert found.average_logprob == pytest.approx(-0.2)


def test_word_times_are_asked_for_only_when_wanted() -> None:
    body = verbose((" Hello there.", 0.0, 1.5)) | {
        "words": [
            {"word": "Hello", "start": 0.1, "end": 0.5, "probability": 0.9},
            {"word": "there.", "start": "0.6", "end": 1.4},
        ]
    }
    found, server, recogniser = heard([Reply(body)], word_times=True)
    assert found.words == (Word("Hello", 0.1, 0.5, 0.9), Word("there.", 0.6, 1.4))
    assert server.asked[0].fields["timestamp_granularities[]"] == ["segment", "word"]
    assert recogniser.capabilities.word_times


# ---------------------------------------------------------------- what is believed


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (verbose((" Thank you.", 0.0, 2.0), no_speech_prob=0.8), "no_speech"),
        (verbose((" Thanks for watching!", 0.0, 2.0), no_speech_prob=0.4), "invented"),
        (verbose((" Thank you for watching.", 0.0, 2.0), no_speech_prob=None, avg_logprob=-0.7), "invented"),
        (verbose((" " + "word salad of many kinds " * 8, 0.0, 2.0)), "too_fast"),
        (verbose((" [Music]", 0.0, 2.0), avg_logprob=-1.4, no_speech_prob=0.7), "no_speech"),
        ({"text": ""}, "no_words"),
        ({"text": " ... "}, "no_words"),
        ({"text": "you " * 60}, "too_fast"),
    ],
)
def test_invented_words_are_rejected_with_a_reason_that_is_counted(answer: Any, reason: str) -> None:
    found, _, recogniser = heard([Reply(answer)])
    assert found.text == "" and found.rejected == reason
    assert recogniser.counters[f"rejected_{reason}"] == 1


@pytest.mark.parametrize(
    ("text", "voiced_s", "logprob", "severity"),
    [
        ("You", 2.5, None, Severity.SILENT),
        ("You", 0.5, None, Severity.FINE),
        ("Thank you.", 0.8, -0.3, Severity.FINE),
        ("Thank you.", 0.8, -0.6, Severity.SILENT),
        ("Thank you for your call", 2.5, -0.6, Severity.UNSURE),
        ("No", 2.5, None, Severity.FINE),
    ],
)
def test_without_a_no_speech_score_known_phrases_are_doubted_for_their_length_or_probability(
    text: str, voiced_s: float, logprob: float | None, severity: Severity
) -> None:
    assert judge_text(text, voiced_s, logprob=logprob).severity is severity


def test_a_known_phrase_with_good_scores_was_said() -> None:
    assert heard([Reply(verbose((" Thank you.", 0.0, 1.0)))], speech_like(1.0))[0].text == "Thank you."
    assert heard([Reply({"text": "Thank you."})], speech_like(1.0))[0].text == "Thank you."


def test_words_that_a_server_hears_in_the_silence_after_speech_are_left_out() -> None:
    audio = np.concatenate([TWO_S, np.zeros(5 * 16_000, np.int16)])
    answer = verbose((" My name is Ada.", 0.0, 2.0), (" Thanks for watching.", 4.0, 7.0))
    words = [
        {"word": w, "start": s, "end": s + 0.2}
        for w, s in [("My", 0.1), ("name", 0.4), ("is", 0.7), ("Ada.", 1.0), ("Thanks", 4.1)]
    ]
    found, _, recogniser = heard([Reply(answer | {"words": words})], audio, word_times=True)
    assert found.text == "My name is Ada." and found.rejected is None
    assert [w.text for w in found.words] == ["My", "name", "is", "Ada."]
    assert recogniser.counters["dropped_silence"] == 1


def test_a_loop_over_several_segments_is_seen_in_the_whole_text_and_asked_for_again() -> None:
    audio = speech_like(8.0)
    loop = verbose(*((" and so on and so on", float(i), float(i + 1)) for i in range(8)))
    said = verbose((" Then we went home, and had dinner with the others.", 0.0, 8.0))
    found, server, recogniser = heard([Reply(loop), Reply(said)], audio, hints=["home"])
    assert found.text == "Then we went home, and had dinner with the others."
    assert (server.asked[1]["temperature"], server.asked[1]["prompt"]) == ("0.4", None)
    assert recogniser.counters["second_looks"] == 1


def test_a_second_look_that_fails_costs_nothing() -> None:
    loop = Reply({"text": "I said so. " * 4})
    found, server, _ = heard([REFUSES, loop, Reply("", status=400)], speech_like(6.0))
    assert found.text == ("I said so. " * 4).strip() and len(server.asked) > 2


def test_partials_get_no_second_look() -> None:
    loop = Reply({"text": "I said so. " * 4})
    scope = Scope("stage", priority=Priority.PARTIAL)
    _, server, _ = heard([REFUSES, loop], speech_like(6.0), scope)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("again", "text"), [("Hello there, how are you?", None), ("New York City", "New York City")]
)
def test_a_text_that_only_repeats_the_hints_is_asked_for_without_them(again: str, text: str | None) -> None:
    hints = ["New York", "City Hall", "Brooklyn"]
    found, server, _ = heard([REFUSES, Reply({"text": "New York City"}), Reply({"text": again})], hints=hints)
    assert found.text == (text or again)
    assert server.asked[-1]["prompt"] is None


def test_a_text_that_repeats_the_hints_and_is_not_heard_without_them_is_rejected() -> None:
    hints = ["New York", "City Hall"]
    found, _, _ = heard([REFUSES, Reply({"text": "New York, City Hall"}), Reply({"text": ""})], hints=hints)
    assert found.text == "" and found.rejected == "no_words"
    scope = Scope("stage", priority=Priority.PARTIAL)
    found, _, recogniser = heard([REFUSES, Reply({"text": "New York, City Hall"})], scope=scope, hints=hints)
    assert found.text == "" and recogniser.counters["rejected_echo"] == 1


# ---------------------------------------------------------------- bad answers


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(b"Hello there"), "not JSON"),
        (Reply(b'{"text": "Hel'), "not JSON"),
        (Reply(b"[" * 200_000), "not JSON"),
        (Reply(["Hello"]), "answered list"),
        (Reply({"text": 5}), "without a text"),
        (Reply({}), "without a text"),
        (Reply({"error": {"message": "out of memory"}}), "failed: out of memory"),
        (Reply({"text": "word " * 30_000}), "150000 characters"),
        (Reply(b'{"text": "' + b"x" * (5 << 20) + b'"}'), "more than 4 MiB"),
        (Reply(b"<html></html>", kind="text/html; charset=utf-8"), "web page"),
        (Reply("", status=307, headers={"location": "http://127.0.0.1:1/"}), "answered 307"),
    ],
)
def test_an_answer_that_is_none_is_an_error_in_one_sentence(reply: Reply, words: str) -> None:
    error = error_of([reply])
    assert words in str(error) and "127.0.0.1:" in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    "odd",
    [
        {"segments": "none"},
        {"segments": [{"text": " Hello there.", "start": 1.0}]},
        {"segments": [{"text": " Hello there.", "start": 3.0, "end": 1.0}]},
        {"segments": [{"text": " Something else.", "start": 0.0, "end": 1.0}]},
        {"segments": [{"text": None, "start": 0.0, "end": 1.0}]},
        {"segments": [None]},
        {"segments": [{"text": "x", "start": 0, "end": 1}] * 3000},
        {"segments": [{"text": " Hello there.", "start": 0, "end": 2, "avg_logprob": float("nan")}]},
        {
            "segments": [
                {"text": " Hello there.", "start": 0, "end": 2, "avg_logprob": 3.5, "no_speech_prob": 9}
            ]
        },
        {"segments": [{"text": " Hello there.", "start": 0, "end": 2, "no_speech_prob": True}]},
        {"words": [{"word": "Hello", "start": float("inf"), "end": 1.0}]},
        {"words": [{"word": "", "start": 0, "end": 1}], "language": ["en"]},
        {"logprobs": [{"token": "x", "logprob": "many"}], "language": {}},
        {"logprobs": [{"token": "x", "logprob": 10**400}], "duration": "long"},
    ],
)
def test_odd_details_are_left_out_and_the_text_is_kept(odd: dict[str, Any]) -> None:
    answer = read_answer({"text": " Hello there. ", **odd}, 2.0, "it")
    assert answer.text == "Hello there." and not answer.scored and answer.words == ()

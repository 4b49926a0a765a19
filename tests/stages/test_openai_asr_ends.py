"""The client of transcription servers: failures, ends of scopes, many sessions at once, and a real server."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transcription_client import HELLO, TWO_S, error_of, heard, run, serving
from transcription_server import Asked, Reply, TranscriptionServer, speech_like, verbose

from loadtest.wer import compare
from stages import presets
from stages.asr.openai import OpenAITranscriber
from voice.cli import main
from voice.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineFailed,
    Overloaded,
    ScopeCancelled,
)
from voice.interfaces import Recogniser, Transcript
from voice.scope import Priority, Reason, Scope
from voice.testing import ScriptedRecogniser

# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "retryable", "advice"),
    [
        (401, False, "check the API key"),
        (403, False, "API key"),
        (404, False, "model's name"),
        (502, True, ""),
    ],
)
def test_a_refusal_says_what_to_do(status: int, retryable: bool, advice: str) -> None:
    error = error_of([Reply({"error": {"message": "no"}}, status=status)])
    assert f"answered {status}: no" in str(error) and advice in str(error)
    assert error.retryable is retryable


def test_a_failure_that_passes_is_tried_once_more() -> None:
    for first in (
        Reply("", status=500),
        Reply("", fault="reset"),
        Reply("", status=503),
        Reply(HELLO.body, fault="close"),
    ):
        found, server, recogniser = heard([first, HELLO])
        assert found.text and recogniser.counters["retries"] == 1 and len(server.asked) == 2


def test_a_failure_that_stays_is_told_after_the_second_try() -> None:
    async def work() -> None:
        async with serving([Reply("", status=500)]) as (one, server):
            with pytest.raises(EngineFailed, match="answered 500"):
                await one.transcribe(TWO_S, Scope("turn"))
            assert len(server.asked) == 2

    run(work())


def test_when_most_calls_fail_retries_are_held_back() -> None:
    async def work() -> None:
        async with serving([Reply("", status=500)]) as (one, server):
            for _ in range(40):
                with pytest.raises(EngineFailed):
                    await one.transcribe(TWO_S, Scope("turn"))
            assert len(server.asked) < 60

    run(work())


def test_partials_are_not_tried_again() -> None:
    async def work() -> None:
        async with serving([Reply("", status=500), HELLO]) as (one, server):
            with pytest.raises(EngineFailed):
                await one.transcribe(TWO_S, Scope("stage", priority=Priority.PARTIAL))
            assert len(server.asked) == 1

    run(work())


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "0.05"},
        {"retry-after": "Tue, 01 Jan 2030 00:00:00 GMT", "date": "Tue, 01 Jan 2030 00:00:00 GMT"},
    ],
)
def test_a_server_that_asks_for_a_short_pause_gets_it(headers: dict[str, str]) -> None:
    found, server, _ = heard([Reply("", status=429, headers=headers), HELLO])
    assert found.text and len(server.asked) == 2


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "60"}, 60.0),
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_a_longer_pause_is_passed_on_to_whoever_asked(headers: dict[str, str], wait_s: float | None) -> None:
    error = error_of([Reply({"error": {"message": "slow down"}}, status=429, headers=headers)], Overloaded)
    assert error.retry_after_s == wait_s and "answered 429: slow down" in str(error)


@pytest.mark.parametrize("fault", ["hang", "half"])
def test_a_server_that_does_not_finish_is_given_up_and_not_asked_again(fault: Any) -> None:
    async def work() -> None:
        async with serving([Reply(HELLO.body, fault=fault)], answer_timeout_s=0.1) as (one, server):
            with pytest.raises(EngineFailed, match=r"did not answer within 0\.6 s"):
                await one.transcribe(speech_like(0.5), Scope("turn"))
            await server.until(lambda: server.left == 1)
            assert len(server.asked) == 1

    run(work())


def test_the_deadline_of_the_scope_bounds_a_hang() -> None:
    async def work() -> None:
        async with serving([Reply("", fault="hang")]) as (one, server):
            await one.warm_up()
            with pytest.raises(DeadlineExceeded):
                await one.transcribe(TWO_S, Scope("process").child("turn", timeout_s=0.2))
            await server.until(lambda: server.left == len(server.asked))

    run(work())


def test_a_server_that_is_not_there_is_named() -> None:
    async def work() -> None:
        async with TranscriptionServer([HELLO]) as server:
            url = server.url
        with pytest.raises(EngineFailed, match=r"127\.0\.0\.1:\d+ can't be reached: it refused") as caught:
            await OpenAITranscriber(url, "m", "").transcribe(TWO_S, Scope("turn"))
        assert caught.value.retryable

    run(work())


@pytest.mark.parametrize("text", ["localhost:8000", "ftp://x/v1", "http://h/v1?a=b"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="expected http"):
        OpenAITranscriber(text)


def test_the_path_may_be_part_of_the_url() -> None:
    assert OpenAITranscriber("http://h:1/v1/audio/transcriptions").endpoint.url == "http://h:1/v1"


def test_the_key_is_sent_but_neither_logged_nor_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    body = {"error": {"message": "Incorrect API key provided: sk-secret"}}

    async def work() -> str:
        async with serving([Reply(body, status=401)], api_key=None) as (one, server):
            with pytest.raises(EngineFailed) as caught:
                await one.transcribe(TWO_S, Scope("turn"))
            assert server.asked[0].headers["authorization"] == "Bearer sk-secret"
            return str(caught.value)

    with caplog.at_level(logging.DEBUG):
        message = run(work())
    assert "Incorrect API key provided: ***" in message
    assert "sk-secret" not in caplog.text


# ---------------------------------------------------------------- ends of scopes, and many at once


@pytest.mark.parametrize("way", ["task", "scope"])
def test_leaving_closes_the_connection_at_once_and_frees_the_place(way: str) -> None:
    async def work() -> None:
        async with serving([Reply("", fault="hang"), HELLO], max_concurrent=1) as (one, server):
            scope = Scope("turn")
            task = asyncio.create_task(one.transcribe(TWO_S, scope))
            await server.until(lambda: server.active == 1)
            if way == "task":
                task.cancel()
            else:
                scope.cancel(Reason.BARGE_IN)
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(outcome, asyncio.CancelledError if way == "task" else ScopeCancelled)
            await server.until(lambda: server.left == 1 and server.active == 0)
            assert (await one.transcribe(TWO_S, Scope("turn"))).text

    run(work())


def test_a_cancelled_scope_sends_nothing() -> None:
    scope = Scope("turn")
    scope.cancel(Reason.RESUMED)

    async def work() -> None:
        async with serving([HELLO]) as (one, server):
            with pytest.raises(ScopeCancelled):
                await one.transcribe(TWO_S, scope)
            assert not server.asked

    run(work())


def test_partials_are_refused_when_all_places_are_taken_and_finals_wait_for_one() -> None:
    async def work() -> None:
        done = asyncio.Event()
        async with serving([Reply(HELLO.body, after=done)], max_concurrent=2) as (one, server):
            finals = [asyncio.create_task(one.transcribe(TWO_S, Scope("turn"))) for _ in range(6)]
            await server.until(lambda: server.active == 2)
            with pytest.raises(Overloaded, match="at most 2"):
                await one.transcribe(TWO_S, Scope("stage", priority=Priority.PARTIAL))
            done.set()
            assert all(t.text for t in await asyncio.gather(*finals))
            assert server.most_active == 2 and len(server.asked) == 6

    run(work())


def test_partials_leave_a_place_for_a_final() -> None:
    async def work() -> None:
        done = asyncio.Event()
        async with serving([Reply(HELLO.body, after=done)], max_concurrent=3) as (one, server):
            partials = [
                asyncio.create_task(one.transcribe(TWO_S, Scope("stage", priority=Priority.PARTIAL)))
                for _ in range(5)
            ]
            await server.until(lambda: server.active == 2)
            final = asyncio.create_task(one.transcribe(TWO_S, Scope("turn")))
            await server.until(lambda: server.active == 3)
            done.set()
            assert (await final).text
            outcomes = await asyncio.gather(*partials, return_exceptions=True)
            assert sum(isinstance(o, Overloaded) for o in outcomes) == 3

    run(work())


def test_a_committed_final_goes_before_those_that_came_earlier() -> None:
    async def work() -> None:
        done = asyncio.Event()
        async with serving([Reply(HELLO.body, after=done)], max_concurrent=1) as (one, server):
            first = asyncio.create_task(one.transcribe(speech_like(1, mark=1), Scope("turn")))
            await server.until(lambda: server.active == 1)
            classes = [(2, Priority.BACKGROUND), (3, Priority.SPECULATIVE), (4, Priority.COMMITTED)]
            waiting = [
                asyncio.create_task(one.transcribe(speech_like(1, mark=m), Scope("turn", priority=p)))
                for m, p in classes
            ]
            while one.waiting < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            done.set()
            await asyncio.gather(first, *waiting)
            assert [int(a.pcm[0]) for a in server.asked] == [1, 4, 3, 2]

    run(work())


def test_a_final_that_gets_no_place_ends_with_its_deadline() -> None:
    async def work() -> None:
        async with serving([Reply("", fault="hang")], max_concurrent=1) as (one, server):
            first = asyncio.create_task(one.transcribe(TWO_S, Scope("turn")))
            await server.until(lambda: server.active == 1)
            with pytest.raises(DeadlineExceeded):
                await one.transcribe(TWO_S, Scope("process").child("turn", timeout_s=0.1))
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    run(work())


def test_no_session_ever_gets_the_words_of_another() -> None:
    rng = np.random.default_rng(11)
    delays = rng.uniform(0.0, 0.03, 1000)

    def script(asked: Asked) -> Reply:
        mark = int(asked.pcm[0])
        if mark % 7 == 3 and delays[mark] > 0.015:
            delays[mark] = 0.0
            return Reply("", status=500)
        return Reply(verbose((f" This is caller {mark}.", 0.0, 1.0)), delay_s=float(delays[mark]))

    async def work() -> None:
        async with serving(script, max_concurrent=8) as (one, server):
            scopes = [Scope("turn") for _ in range(60)]
            tasks = [
                asyncio.create_task(one.transcribe(speech_like(1.0, mark=n), scope))
                for n, scope in enumerate(scopes)
            ]
            await asyncio.sleep(0.05)
            for n in range(0, 60, 5):
                scopes[n].cancel(Reason.BARGE_IN)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for n, outcome in enumerate(outcomes):
                if isinstance(outcome, Transcript):
                    assert outcome.text == f"This is caller {n}."
                else:
                    assert isinstance(outcome, ScopeCancelled) and n % 5 == 0
            assert server.most_active <= 8
            assert len([o for o in outcomes if isinstance(o, Transcript)]) >= 48

    run(work())


def test_requests_reuse_connections_and_event_loops_do_not_share_them() -> None:
    async def thrice(one: OpenAITranscriber) -> None:
        for _ in range(3):
            await one.transcribe(TWO_S, Scope("turn"))
        await one.aclose()

    async def work() -> None:
        async with serving([HELLO]) as (one, server):
            await thrice(one)
            assert server.connections == 1
            await asyncio.to_thread(lambda: asyncio.run(thrice(one)))
            assert server.connections == 2
            assert json.dumps(one.counters)

    run(work())


# ---------------------------------------------------------------- a real server, with a real recogniser behind it


async def transcriptions(request: Request) -> JSONResponse:
    """``/v1/audio/transcriptions`` as a server of Whisper would have it, in a few lines."""
    async with request.form() as form:
        upload = form["file"]
        assert isinstance(upload, UploadFile)
        with wave.open(io.BytesIO(await upload.read())) as file:
            pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        if form.get("response_format") != "verbose_json":
            return JSONResponse({"error": {"message": "only verbose_json"}}, status_code=400)
        language = form.get("language")
    found = await request.app.state.recogniser.transcribe(
        pcm, Scope("turn"), language=language if isinstance(language, str) else None
    )
    part = {
        "text": f" {found.text}",
        "start": 0.0,
        "end": len(pcm) / 16_000,
        "avg_logprob": found.average_logprob,
    }
    return JSONResponse({"text": found.text, "language": "english", "segments": [part]})


@contextmanager
def starlette_server(recogniser: Recogniser) -> Iterator[str]:
    """Its URL; it runs in a thread of its own, as another program would."""
    app = Starlette(routes=[Route("/v1/audio/transcriptions", transcriptions, methods=["POST"])])
    app.state.recogniser = recogniser
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: server.run([listening]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(10)


def test_a_server_of_another_make_understands_the_form() -> None:
    with starlette_server(ScriptedRecogniser(["I would like a table for two."])) as url:

        async def work() -> Transcript:
            return await OpenAITranscriber(url, "any", "").transcribe(TWO_S, Scope("turn"), language="en")

        found = run(work())
    assert found == Transcript("I would like a table for two.", "en")


@pytest.mark.live
def test_a_file_is_transcribed_by_the_server_that_the_command_line_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stages.asr.whisper import WhisperCt2  # needs the extra "local"

    sentence = "The meeting starts at nine in the morning."
    assert main(["speak", sentence, "--out", str(tmp_path / "a.wav")]) == 0
    with starlette_server(WhisperCt2()) as url:
        assert presets.local(asr=f"{url}#whisper-1").recogniser.name == "whisper-1"
        assert main(["transcribe", str(tmp_path / "a.wav"), "--asr", f"{url}#whisper-1"]) == 0
    assert compare(sentence, capsys.readouterr().out).total <= 1

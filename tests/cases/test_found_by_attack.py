"""Faults that an attack on the finished library found: strangers' code that breaks its contract, owners that call back
from inside a callback, options that change in mid call. None may leave a conversation without a way out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from conversation import KINDS, Conversation, Kind, words

from voice.cli import main
from voice.errors import BadRequest
from voice.events import (
    AudioStarted,
    ResponseEnded,
    ResponseStarted,
    SessionEnded,
    SessionEvent,
    UserSaid,
)
from voice.interfaces import Pcm16, Speech, ToolCall, Transcript
from voice.options import TurnOptions
from voice.scope import Scope
from voice.session import Session
from voice.testing import (
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
)

both_kinds = pytest.mark.parametrize("kind", KINDS)


def _none() -> Transcript:
    return None  # type: ignore[return-value]


def _no_text() -> Transcript:
    return Transcript(None)  # type: ignore[arg-type]


def _cancelled() -> Transcript:
    raise asyncio.CancelledError


@both_kinds
@pytest.mark.parametrize("answer", [_none, _no_text, _cancelled])
def test_a_recogniser_that_gives_no_transcript_does_not_stop_the_conversation(
    kind: Kind, answer: Callable[[], Transcript]
) -> None:
    class Broken(ScriptedRecogniser):
        async def transcribe(
            self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
        ) -> Transcript:
            return answer()

    async def call() -> None:
        async with Conversation(kind, recogniser=Broken()) as c:
            c.say(0.5, 1.0)
            await c.to(5.0)
            assert c.session.is_quiet()
            assert "the user's words were lost" in c.problems[0]

    run_virtual(call())


@both_kinds
def test_a_detector_that_raises_does_not_make_the_session_deaf(kind: Kind) -> None:
    class Broken(ScriptedDetector):
        def judge(self, window: Pcm16, index: int) -> float:
            if self.windows == 20:
                self.windows += 1
                raise RuntimeError("the detector breaks")
            return super().judge(window, index)

    async def call() -> None:
        async with Conversation(kind, detector=Broken()) as c:
            c.say(0.5, 1.0)
            await c.to(5.0)
            assert len(c.of(UserSaid)) == 1
            assert c.session.ear.failures == 1

    run_virtual(call())


def test_an_interruption_goes_on_when_the_client_can_not_drop_its_audio() -> None:
    class Gone(PushClient):
        def clear_audio(self) -> None:
            raise ConnectionError("gone")

    async def call() -> None:
        model = ScriptedModel([words(30, ends=[30])])
        async with Conversation("push", client=Gone(), model=model) as c:
            c.say(0.5, 1.0)
            c.say(3.5, 1.0)
            await c.to(6.0)
            assert c.of(ResponseEnded)[0].status == "interrupted"
            assert len(c.of(UserSaid)) == 2

    run_virtual(call())


def test_a_client_whose_library_has_its_own_word_for_gone_ends_the_session() -> None:
    class Closed(Exception):
        pass

    class Gone(PushClient):
        async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
            raise Closed("1006")

    async def call() -> None:
        async with Conversation("push", client=Gone()) as c:
            c.say(0.5, 1.0)
            await c.to(5.0)
            assert [e.reason for e in c.of(SessionEnded)] == ["disconnected"]

    run_virtual(call())


@both_kinds
def test_a_synthesiser_cancelled_from_within_ends_the_answer(kind: Kind) -> None:
    class Broken(ToneSynthesiser):
        async def synthesise(
            self, text: str, scope: Scope, *, voice: str | None = None
        ) -> AsyncIterator[Speech]:
            raise asyncio.CancelledError
            yield  # pragma: no cover

    async def call() -> None:
        model = ScriptedModel([words(100, ends=range(2, 101, 2))])
        async with Conversation(kind, synthesiser=Broken(), model=model) as c:
            c.say(0.5, 1.0)
            await c.to(10.0)
            assert c.session.is_quiet()
            assert c.problems

    run_virtual(call())


@both_kinds
def test_a_tool_call_that_is_not_text_is_a_failure_of_the_model(kind: Kind) -> None:
    async def call() -> None:
        broken = ToolCall("c", "look", None)  # type: ignore[arg-type]
        async with Conversation(kind, model=ScriptedModel([[broken], "Fine."])) as c:
            c.say(0.5, 1.0)
            await c.to(6.0)
            assert [e.heard for e in c.agent_entries] == ["Fine."]

    run_virtual(call())


@both_kinds
def test_what_was_not_committed_does_not_fill_the_ear_after_manual_mode(kind: Kind) -> None:
    async def call() -> None:
        async with Conversation(kind, turns=TurnOptions(mode="manual")) as c:
            await c.to(1.0)
            c.session.configure(TurnOptions())
            await c.to(200.0)
            c.say(201.0, 1.0)
            await c.to(205.0)
            assert len(c.of(UserSaid)) == 1

    run_virtual(call())


@both_kinds
def test_a_turn_that_paused_in_manual_mode_ends_when_the_voice_decides_again(kind: Kind) -> None:
    async def call() -> None:
        async with Conversation(kind) as c:
            c.say(0.5, 1.0)
            await c.to(1.0)
            c.session.configure(TurnOptions(mode="manual"))
            await c.to(3.0)
            c.session.configure(TurnOptions())
            await c.to(6.0)
            assert [e.text for e in c.of(UserSaid)] == ["Hello there."]
            assert c.session.is_quiet()

    run_virtual(call())


@both_kinds
def test_a_longer_turn_may_be_allowed_in_mid_call(kind: Kind) -> None:
    async def call() -> None:
        async with Conversation(kind) as c:
            await c.to(0.5)
            c.session.configure(TurnOptions(max_turn_s=300.0))
            c.say(1.0, 150.0)
            await c.to(155.0)
            assert len(c.of(UserSaid)) == 1

    run_virtual(call())


@both_kinds
def test_what_waits_to_be_said_does_not_run_out_of_time(kind: Kind) -> None:
    async def call() -> None:
        async with Conversation(kind, turns=TurnOptions(max_turn_s=300.0)) as c:
            c.say(0.5, 150.0)
            await c.to(2.0)
            response = c.session.say("The shop closes soon.")
            await c.to(170.0)
            ended = [e for e in c.of(ResponseEnded) if e.response_id == response.response_id]
            assert [e.heard for e in ended] == ["The shop closes soon."]

    run_virtual(call())


@both_kinds
def test_an_owner_may_replace_an_answer_when_it_is_told_of_it(kind: Kind) -> None:
    async def call() -> None:
        replaced: list[str] = []

        def on_event(event: SessionEvent) -> None:
            if isinstance(event, ResponseStarted) and not replaced:
                replaced.append(event.response_id)
                c.session.interrupt()
                c.session.say("Another answer.")

        c = Conversation(kind, on_event=on_event, greeting="Hello.")
        async with c:
            await c.to(5.0)
            assert [e.heard for e in c.agent_entries] == ["Another answer."]
            assert [e.status for e in c.of(ResponseEnded)] == ["cancelled", "completed"]
            assert c.session.is_quiet()

    run_virtual(call())


@both_kinds
def test_an_owner_may_begin_another_answer_when_one_ends(kind: Kind) -> None:
    async def call() -> None:
        texts: list[str] = []

        def on_event(event: SessionEvent) -> None:
            if isinstance(event, ResponseEnded) and not texts:
                texts.append(c.session.send_text("And now?"))
                c.session.say("This comes after it.")

        c = Conversation(kind, on_event=on_event, greeting="Hello.", model=ScriptedModel(["Now I answer."]))
        async with c:
            await c.to(8.0)
            assert [e.heard for e in c.of(ResponseEnded)] == [
                "Hello.",
                "Now I answer.",
                "This comes after it.",
            ]
            assert c.session.is_quiet()

    run_virtual(call())


@both_kinds
def test_nothing_is_heard_of_an_answer_that_is_cut_when_it_becomes_audible(kind: Kind) -> None:
    async def call() -> None:
        def on_event(event: SessionEvent) -> None:
            if isinstance(event, AudioStarted):
                c.session.interrupt()

        c = Conversation(kind, on_event=on_event, greeting="Hello.")
        async with c:
            await c.to(3.0)
            assert c.heard == []

    run_virtual(call())


def test_audio_after_a_second_commit_is_not_lost() -> None:
    async def call() -> None:
        recogniser = ScriptedRecogniser({220: "one", 330: "two"}, delay_s=2.0)
        async with Conversation("pull", recogniser=recogniser, turns=TurnOptions(mode="manual")) as c:
            c.say(0.5, 0.5, 220)
            c.say(1.4, 0.4, 330)
            await c.to(1.2)
            c.session.commit()
            await c.to(2.0)
            c.session.commit()  # the first is still being recognised
            await c.to(6.0)
            c.session.commit()
            await c.to(12.0)
            assert c.user_texts == ["one", "two"]

    run_virtual(call())


def test_wrong_use_is_told() -> None:
    async def call() -> None:
        c = Conversation(greeting="Hello.")
        session: Session = c.session
        with pytest.raises(BadRequest):
            session.hear(b"\0\0")
        with pytest.raises(BadRequest):
            session.configure(TurnOptions())
        async with c:
            with pytest.raises(BadRequest):
                session.say(None)  # type: ignore[arg-type]
            with pytest.raises(BadRequest):
                session.truncate("item_000001", float("nan"))
            with pytest.raises(BadRequest):
                session.configure(None)  # type: ignore[arg-type]
        with pytest.raises(BadRequest):
            TurnOptions(mode="sometimes")  # type: ignore[arg-type]

    run_virtual(call())


def test_the_recording_never_replaces_the_callers_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "me.wav"
    file.write_bytes(b"mine")
    assert main(["talk", str(file), "--out", str(file)]) == 2
    assert "would replace it" in capsys.readouterr().err
    assert file.read_bytes() == b"mine"
    assert main(["talk", "--ask", " "]) == 2

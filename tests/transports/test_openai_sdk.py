"""Does the official ``openai`` SDK hold a conversation with our server, and is all it receives lawful?"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import soundfile
from clients import agent as test_agent
from clients import contract, openai_python, sounds
from clients.contract import Stage
from clients.openai_python import Caller, calling
from clients.order import faults, kinds
from clients.sdk_types import misfits
from clients.server import voice_serve

from transports.server import app
from transports.serving import listen, running
from voice.agent import Agent
from voice.resampling import resample

SAFETY_S = 60.0


@asynccontextmanager
async def serving(agent: Agent) -> AsyncIterator[str]:
    """Our server on a free port of this machine; gives the URL of its Realtime endpoint."""
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    async with running(app(agent), sockets):
        yield f"ws://127.0.0.1:{port}/v1/realtime"


def converse(folder: Path, *steps: openai_python.Step) -> Stage:
    """Take the steps in one conversation; the result holds what the SDK received."""
    sounds.write(folder)

    async def run() -> Stage:
        async with asyncio.timeout(SAFETY_S), serving(test_agent.make_agent()) as url:
            stage = Stage(url, folder)
            async with calling(stage) as caller:
                for step in steps:
                    await step(caller)
            return stage

    return asyncio.run(run())


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """One conversation with all there is in it: spoken, a tool, an interruption, writing, and turns by hand."""
    steps = openai_python.STEPS
    order = ("spoken", "tool", "tool_aloud", "barge_in", "text", "push_to_talk")
    return converse(tmp_path_factory.mktemp("sounds"), *(steps[name] for name in order))


def test_the_sdk_converses_aloud_with_a_tool_an_interruption_in_writing_and_by_hand(
    conversation: Stage,
) -> None:
    said = conversation.replies()
    assert said[0] == contract.HELLO_ANSWER
    assert contract.TOOL_ANSWER in said and contract.STOP_ANSWER in said
    assert said[-1] == contract.PUSHED_ANSWER


def test_every_event_fits_the_types_of_the_sdk(conversation: Stage) -> None:
    assert misfits(conversation.events) == []


def test_the_events_come_in_the_order_of_the_recorded_sequences(conversation: Stage) -> None:
    assert faults(conversation.events) == []


def test_a_spoken_turn_is_the_recorded_sequence_rung_by_rung(conversation: Stage) -> None:
    events = [
        e for e in conversation.events if "transcription" not in e["type"] and e["type"] != "session.updated"
    ]
    first = kinds(events)[1 : kinds(events).index("response.output_audio_transcript.delta") + 1]
    assert first == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
    ]
    end = kinds(events).index("response.done")
    assert kinds(events)[end - 5 : end + 1] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]


def test_an_interruption_tells_the_client_to_be_silent_before_anything_else(conversation: Stage) -> None:
    cut = next(e for e in conversation.of("response.done") if e["response"]["status"] == "cancelled")
    of_it = [e for e in conversation.events if e.get("response_id") == cut["response"]["id"]]
    story = next(e["item"]["id"] for e in of_it if e["type"] == "response.output_item.added")
    begun = conversation.events.index(next(e for e in of_it if e["type"] == "response.output_audio.delta"))
    rest = conversation.events[begun:]
    silence = next(n for n, e in enumerate(rest) if e["type"] == "input_audio_buffer.speech_started")
    closing = next(n for n, e in enumerate(rest) if e.get("item_id") == story and e["type"].endswith(".done"))
    assert silence < closing < rest.index(cut)
    assert cut["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert [item["status"] for item in cut["response"]["output"]] == ["incomplete"]


OWED = ("session.updated", "rate_limits.updated", "input_audio_buffer.cleared", "conversation.item.truncated")
"""Only owed to a client that asked for something, or not at all: the order of events does not miss them."""


def test_the_checker_misses_every_event_that_is_lost_and_minds_every_one_that_comes_twice(
    conversation: Stage,
) -> None:
    """The order is only worth checking if a wrong one fails."""
    events = [e | {"delta": "AAAA"} if e["type"].endswith("audio.delta") else e for e in conversation.events]
    assert faults(events) == []
    for n, event in enumerate(events):
        kind = event["type"]
        if kind.endswith(".delta") and events[n - 1]["type"] == kind:
            continue  # one of a run stands for all
        if kind.endswith("audio.delta") or kind.startswith(OWED) or kind == "conversation.item.retrieved":
            continue
        if not kind.endswith("input_audio_transcription.delta"):  # the whole says it again
            assert faults(events[:n] + events[n + 1 :]), f"{kind}, event {n}, could be lost"
        again = event | {"event_id": "event_again"}
        assert faults([*events[: n + 1], again, *events[n + 1 :]]), f"{kind}, event {n}, could come twice"


def test_the_checker_minds_events_of_a_response_that_come_in_another_order(conversation: Stage) -> None:
    events = [
        e for e in conversation.events if not e["type"].startswith(("input_audio_buffer", "rate_limits"))
    ]
    events = [e for e in events if "transcription" not in e["type"] and not e["type"].endswith("delta")]
    for n in range(2, len(events) - 1):
        first, second = events[n], events[n + 1]
        if OWED[0] in (first["type"], second["type"]) or first["type"].startswith("conversation.item.re"):
            continue
        swapped = [*events[:n], second, first, *events[n + 2 :]]
        assert faults(swapped), f"{second['type']} could come before {first['type']}"


def test_the_checker_sees_nulls_in_items_and_oversized_events(conversation: Stage) -> None:
    events = copy.deepcopy(conversation.events)
    next(e for e in events if e["type"] == "conversation.item.added")["item"]["name"] = None
    assert any("name is null" in fault for fault in faults(events))
    events = copy.deepcopy(conversation.events)
    events[1]["session"]["instructions"] = "long " * 300_000
    assert any("more than clients take" in fault for fault in faults(events))


def test_the_command_voice_serve_answers_the_sdk_and_stops_when_told(tmp_path: Path) -> None:
    sounds.write(tmp_path)
    with voice_serve() as url:
        stage = Stage(url, tmp_path)

        async def run() -> None:
            async with asyncio.timeout(SAFETY_S), calling(stage) as caller:
                await openai_python.spoken(caller)

        asyncio.run(run())
    assert faults(stage.events) == []


# ---------------------------------------------------------------- what else a client may ask


REFUSALS = {
    "cancel": "response_cancel_not_active",
    "busy": "conversation_already_has_active_response",
    "twice": "item_create_duplicate_item_id",
    "nowhere": "item_retrieve_invalid_item_id",
    "empty": "input_audio_buffer_commit_empty",
    "voice": "cannot_update_voice",
}
"""The client's ``event_id`` → the code of the error that answers it; stock clients branch on these codes."""


async def cancelled(caller: Caller) -> None:
    """An answer is cancelled by the client; beside it, one is made out of band."""
    connection, stage = caller.connection, caller.stage
    await connection.response.cancel(event_id="cancel")
    story: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A story."}]}
    await connection.conversation.item.create(item=story)
    await connection.response.create()
    first = await stage.until_events("response.output_audio.delta")
    await connection.response.create(event_id="busy")
    question: Any = story | {"content": [{"type": "input_text", "text": contract.TEXT_QUESTION}]}
    await connection.response.create(
        response={
            "conversation": "none",
            "output_modalities": ["text"],
            "input": [question],
            "metadata": {"topic": "sums"},
        }
    )
    aside = (await stage.until_events("response.done"))["response"]
    assert aside["metadata"] == {"topic": "sums"} and aside.get("conversation_id") is None
    assert aside["output"][0]["content"] == [{"type": "output_text", "text": contract.TEXT_ANSWER}]
    await connection.response.cancel()
    cut = (await stage.until_events("response.done", 2))["response"]
    assert cut["id"] == first["response_id"]
    assert cut["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}


async def placed(caller: Caller) -> None:
    """Items are put at the front, after another, and taken away; ids are the client's own."""
    items, stage = caller.connection.conversation.item, caller.stage
    first: Any = {
        "id": "first",
        "type": "message",
        "role": "system",
        "content": [{"type": "input_text", "text": "Be kind."}],
    }
    answer: Any = {
        "id": "answer",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I am."}],
    }
    await items.create(item=first, previous_item_id="root")
    await items.create(item=answer, previous_item_id="first")
    await items.create(item=answer, event_id="twice")
    await items.retrieve(item_id="nothing", event_id="nowhere")
    await items.delete(item_id="answer")
    await stage.until_events("conversation.item.deleted")
    of = {e["item"]["id"]: e.get("previous_item_id") for e in stage.of("conversation.item.added")}
    assert of["first"] is None and of["answer"] == "first"


async def left_alone(caller: Caller) -> None:
    """A server that only listens: turns are told of, and the client asks for the answer."""
    connection, stage = caller.connection, caller.stage
    await caller.update(
        audio={
            "input": {
                "turn_detection": {
                    "type": "server_vad",
                    "silence_duration_ms": 300,
                    "create_response": False,
                    "interrupt_response": False,
                }
            }
        }
    )
    created = len(stage.of("response.created"))
    caller.microphone.say(stage.sound("hello"))
    await stage.until_events("conversation.item.input_audio_transcription.completed")
    await asyncio.sleep(0.3)
    assert len(stage.of("response.created")) == created
    number = caller.answered + 1
    await connection.response.create()
    await caller.reply(number, contract.HELLO_ANSWER)


async def refused(caller: Caller) -> None:
    """What can't be done is answered by an error that names the client's event; the conversation goes on."""
    connection, stage = caller.connection, caller.stage
    await caller.update(audio={"input": {"turn_detection": None}})
    await connection.input_audio_buffer.clear()
    await connection.input_audio_buffer.commit(event_id="empty")
    voice: Any = {"type": "realtime", "audio": {"output": {"voice": "another"}}}
    await connection.session.update(session=voice, event_id="voice")
    await stage.until_events("error", len(REFUSALS))


def test_the_sdk_cancels_answers_places_items_and_is_refused_with_the_documented_codes(
    tmp_path: Path,
) -> None:
    stage = converse(tmp_path, cancelled, placed, left_alone, refused)
    errors = {e["error"]["event_id"]: e["error"]["code"] for e in stage.of("error")}
    assert errors == REFUSALS
    assert misfits(stage.events) == []
    assert faults(stage.events, errors=list(REFUSALS.values()), placed=["first", "answer"]) == []


# ---------------------------------------------------------------- with the real engines


@pytest.mark.live
def test_the_sdk_converses_with_the_real_engines(tmp_path: Path, speech_file: Callable[[str], Path]) -> None:
    """Whisper, the small model and Piper behind the same protocol; the caller's voice is the synthesiser's own."""
    from stages import presets

    stages = presets.local()
    asyncio.run(presets.warm_up(stages))
    pcm, rate_hz = soundfile.read(speech_file("What is the capital of France?"), dtype="int16")
    sounds.save(tmp_path / "question.wav", resample(pcm, rate_hz, sounds.RATE_HZ))

    async def run() -> Stage:
        async with asyncio.timeout(SAFETY_S), serving(Agent("Answer in one short sentence.", stages)) as url:
            stage = Stage(url, tmp_path)
            async with calling(stage) as caller:
                caller.microphone.say(stage.sound("question"))
                await stage.until("answer", lambda: stage.of("response.done"), within_s=SAFETY_S)
                await stage.until_events("conversation.item.input_audio_transcription.completed")
            return stage

    stage = asyncio.run(run())
    heard = stage.of("conversation.item.input_audio_transcription.completed")[0]["transcript"].lower()
    assert "capital of france" in heard
    assert stage.replies()[0]
    assert misfits(stage.events) == []
    assert faults(stage.events) == []

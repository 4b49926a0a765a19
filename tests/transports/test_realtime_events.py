"""Which messages of a Realtime client are events, what is said about the others, and how events are written."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.realtime import RealtimeErrorEvent, ResponseAudioDeltaEvent
from openai.types.realtime.realtime_client_event import RealtimeClientEvent
from pydantic import TypeAdapter
from realtime_json import ANY_JSON, ANY_TEXT, spoilt

from transports.realtime.errors import RealtimeError
from transports.realtime.events import (
    MAX_AUDIO_CHARS,
    AudioAppend,
    ClientEvent,
    ItemCreate,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    decode_audio,
    encode,
    new_id,
    parse_event,
)

EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"type": "realtime"}},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call_output", "call_id": "c", "output": "x"},
        "previous_item_id": "root",
    },
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0, "audio_end_ms": 1500},
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {"type": "response.create", "response": {"instructions": "x"}},
    {"type": "response.cancel", "response_id": "resp_1"},
]


def parse(message: Any) -> ClientEvent:
    return parse_event(message if isinstance(message, str) else json.dumps(message), max_bytes=2**20)


def refused(message: Any) -> RealtimeError:
    with pytest.raises(RealtimeError) as caught:
        parse(message)
    return caught.value


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["type"])
def test_every_client_event_of_the_protocol_is_read(event: dict[str, Any]) -> None:
    for one in (event, {**event, "event_id": "evt_7"}, {**event, "event_id": None}):
        TypeAdapter(RealtimeClientEvent).validate_python(one)
        read = parse(one)
        assert msgspec.to_builtins(read)["type"] == event["type"]
        for name, value in one.items():
            if name != "type":
                assert getattr(read, name) == value


def test_optional_fields_may_be_absent_or_null() -> None:
    assert parse({"type": "response.create"}) == ResponseCreate()
    assert parse({"type": "response.create", "response": None}) == ResponseCreate()
    assert parse({"type": "response.cancel", "response_id": None}) == ResponseCancel()
    item = {"type": "conversation.item.create", "item": {}}
    assert parse({**item, "previous_item_id": None}) == parse(item) == ItemCreate(item={})


def test_a_heard_position_may_be_a_fraction_of_a_millisecond() -> None:
    event = parse(
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 1234.56}
    )
    assert event == ItemTruncate(item_id="i", content_index=0, audio_end_ms=1234.56)


APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}
TRUNCATE = {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 5}


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("", "invalid_json", None),
        ("hello", "invalid_json", None),
        ('{"type": "response.create"', "invalid_json", None),
        ('{"type": "response.create"} {}', "invalid_json", None),
        ('{"type": "response.create", "response": NaN}', "invalid_json", None),
        ('{"type": "response.create", "event_id": "\\ud800"}', "invalid_json", None),
        ('{"type": "response.create", "event_id": "\ud800"}', "invalid_json", None),
        ('{"type": "response.create", "response": 1e999}', "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ([], "invalid_type", "event"),
        ("null", "invalid_type", "event"),
        ({}, "missing_required_parameter", "type"),
        ({"type": None}, "missing_required_parameter", "type"),
        ({"type": 5}, "invalid_type", "type"),
        ({"type": "response.make"}, "invalid_value", "type"),
        ({"type": "response.done"}, "invalid_value", "type"),
        ({"type": "transcription_session.update", "session": {}}, "beta_api_shape_disabled", "type"),
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({**APPEND, "audio": 5}, "invalid_type", "audio"),
        ({**APPEND, "audio": None}, "invalid_type", "audio"),
        ({**APPEND, "sound": "AAAA"}, "unknown_parameter", "sound"),
        ({**APPEND, "event_id": 5}, "invalid_type", "event_id"),
        ({**APPEND, "event_id": "x" * 513}, "invalid_value", "event_id"),
        ({"type": "conversation.item.create"}, "missing_required_parameter", "item"),
        ({"type": "conversation.item.delete", "item_id": 1}, "invalid_type", "item_id"),
        ({**TRUNCATE, "audio_end_ms": "5"}, "invalid_type", "audio_end_ms"),
        ({**TRUNCATE, "audio_end_ms": -5}, "invalid_value", "audio_end_ms"),
        ({**TRUNCATE, "audio_end_ms": 10**300}, "invalid_value", "audio_end_ms"),
        ({**TRUNCATE, "content_index": 0.5}, "invalid_type", "content_index"),
        ({**TRUNCATE, "content_index": True}, "invalid_type", "content_index"),
        ({**TRUNCATE, "content_index": -1}, "invalid_value", "content_index"),
    ],
)
def test_what_is_no_event_is_refused_with_the_field_at_fault(
    message: Any, code: str, param: str | None
) -> None:
    error = refused(message)
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")


def test_a_binary_frame_is_refused() -> None:
    with pytest.raises(RealtimeError, match="binary"):
        parse_event(b'{"type": "response.create"}', max_bytes=100)


def test_a_message_is_measured_in_bytes() -> None:
    event = {"type": "response.create", "event_id": "é" * 20}
    text = json.dumps(event, ensure_ascii=False)
    size = len(text.encode())
    assert parse_event(text, max_bytes=size).event_id == "é" * 20
    with pytest.raises(RealtimeError) as caught:
        parse_event(text, max_bytes=size - 1)
    assert caught.value.code == "message_too_large"


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "unheard_of"},
        {},
        {"type": "input_audio_buffer.append"},
        {**APPEND, "colour": 1},
        {**TRUNCATE, "content_index": -1},
    ],
)
def test_the_refusal_names_the_clients_event(broken: dict[str, Any]) -> None:
    assert refused({**broken, "event_id": "evt_9"}).event_id == "evt_9"
    assert refused({**broken, "event_id": 9}).event_id is None
    assert refused({**broken, "event_id": "x" * 1000}).event_id is None


def test_a_beta_event_is_refused_with_todays_name() -> None:
    assert "session.update" in refused({"type": "transcription_session.update"}).message


def test_a_refusal_is_an_error_event_of_the_vendors_type() -> None:
    for message in ({"type": "x\ud800" * 500}, {**APPEND, "é" * 900: 1}, "[" * 5000):
        text = encode({"type": "error", "event_id": "event_1", "error": refused(message).wire()})
        event = RealtimeErrorEvent.model_validate_json(text)
        assert event.error.code and len(text) < 2000


@settings(max_examples=150, deadline=None)
@given(st.one_of(ANY_JSON, *(spoilt({**one, "event_id": "e"}) for one in EVENTS)))
def test_any_json_is_an_event_or_a_clear_refusal(message: Any) -> None:
    try:
        parse(message)
    except RealtimeError as error:
        msgspec.json.encode(error.wire())


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(), ANY_TEXT, st.binary()))
def test_any_frame_is_an_event_or_a_clear_refusal(message: str | bytes) -> None:
    with pytest.raises(RealtimeError) as caught:
        parse_event(message, max_bytes=1000)
    msgspec.json.encode(caught.value.wire())


# ---------------------------------------------------------------- audio, ids, text


@given(st.binary(max_size=2000))
def test_audio_is_standard_base64(data: bytes) -> None:
    assert decode_audio(base64.b64encode(data).decode()) == data


@pytest.mark.parametrize("text", ["AAA", "AA=A", "AA AA", "AAAA\n", "-_-_", "é", "\ud800", "=", "A" * 5])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(RealtimeError) as caught:
        decode_audio(text)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "audio")


def test_audio_above_the_bound_is_refused() -> None:
    decode_audio("A" * MAX_AUDIO_CHARS)
    with pytest.raises(RealtimeError):
        decode_audio("A" * (MAX_AUDIO_CHARS + 4))


def test_audio_is_written_as_base64() -> None:
    event = {
        "type": "response.output_audio.delta",
        "event_id": "event_1",
        "response_id": "resp_1",
        "item_id": "item_1",
        "output_index": 0,
        "content_index": 0,
        "delta": b"\x01\x02\x03\x04",
    }
    parsed = ResponseAudioDeltaEvent.model_validate_json(encode(event))
    assert base64.b64decode(parsed.delta) == b"\x01\x02\x03\x04"


def test_text_that_utf8_can_not_hold_is_still_written() -> None:
    assert json.loads(encode({"text": "a\ud800b", "delta": b"\x00"})) == {"text": "a\ud800b", "delta": "AA=="}


def test_ids_are_unique_and_short() -> None:
    ids = {new_id("item") for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(one.startswith("item_") and len(one) <= 32 for one in ids)


def test_events_and_payloads_stay_apart() -> None:
    """A payload of any JSON is an event all the same: who reads the payload judges it."""
    assert parse({"type": "session.update", "session": [1, {"a": None}]}) == SessionUpdate(
        session=[1, {"a": None}]
    )
    assert parse(APPEND) == AudioAppend(audio="AAAA")

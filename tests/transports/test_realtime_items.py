"""What a Realtime client may put into the conversation, and how items are shown to it."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.realtime import ConversationItemAdded
from openai.types.realtime.conversation_item import ConversationItem
from pydantic import TypeAdapter
from realtime_json import ANY_JSON, nested, spoilt

from transports.realtime.errors import RealtimeError
from transports.realtime.items import (
    InputAudio,
    InputImage,
    InputText,
    Item,
    OutputAudio,
    OutputText,
    parse_item,
    wire_item,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)
WEBP = b"RIFF\x10\x00\x00\x00WEBP" + bytes(8)
ADDED: TypeAdapter[ConversationItemAdded] = TypeAdapter(ConversationItemAdded)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_uri(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64(data)}"


def message(role: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content), **more}


USER = message(
    "user",
    {"type": "input_text", "text": "What is this?"},
    {"type": "input_audio", "audio": b64(b"\x01\x00" * 50), "transcript": "and that"},
    {"type": "input_image", "image_url": data_uri(PNG), "detail": "low"},
    id="msg_1",
)
ASSISTANT = message(
    "assistant",
    {"type": "output_text", "text": "A boat."},
    {"type": "output_audio", "transcript": "It floats."},
)
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "book",
    "arguments": '{"people": 2}',
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def refused(data: Any) -> RealtimeError:
    with pytest.raises(RealtimeError) as caught:
        parse_item(data)
    return caught.value


def assert_parses(shown: dict[str, object]) -> ConversationItem:
    """The item is one of the vendor's own types, and nothing in it is null but a transcript."""
    text = msgspec.json.encode(shown).decode()
    event = ADDED.validate_json(f'{{"type": "conversation.item.added", "event_id": "e", "item": {text}}}')
    assert None not in shown.values()
    for part in shown.get("content", []):  # type: ignore[attr-defined]
        assert None not in [value for key, value in part.items() if key != "transcript"]
        assert part["type"] != "input_audio" or "transcript" in part
    return event.item


def test_a_users_message_holds_text_audio_and_pictures() -> None:
    item = parse_item(USER)
    assert (item.id, item.type, item.role, item.status) == ("msg_1", "message", "user", "completed")
    assert item.content == (
        InputText("What is this?"),
        InputAudio(b"\x01\x00" * 50, "and that"),
        InputImage(PNG, "image/png", "low"),
    )
    assert item.text == "What is this?\nand that"
    assert [(image.data, image.media_type, image.detail) for image in item.images] == [
        (PNG, "image/png", "low")
    ]


def test_seeded_answers_and_function_calls_are_taken() -> None:
    assert parse_item(ASSISTANT).content == (OutputText("A boat."), OutputAudio("It floats."))
    call = parse_item(CALL)
    assert (call.call_id, call.name, call.arguments, call.text) == ("call_1", "book", '{"people": 2}', "")
    output = parse_item(OUTPUT)
    assert (output.call_id, output.output, output.text) == ("call_1", "done", "done")


def test_an_item_without_an_id_gets_one_of_its_own() -> None:
    first, second = parse_item(OUTPUT), parse_item(OUTPUT)
    assert first.id.startswith("item_") and second.id.startswith("item_") and first.id != second.id
    assert parse_item({**CALL, "call_id": None}).call_id


def test_null_counts_as_absent() -> None:
    nulls = {**OUTPUT, "id": None, "object": None, "status": None, "name": None, "colour": None}
    assert parse_item(nulls).output == "done"


def test_an_item_can_not_arrive_unfinished_but_an_interrupted_one_stays_so() -> None:
    assert parse_item({**ASSISTANT, "status": "in_progress"}).status == "completed"
    assert parse_item({**ASSISTANT, "status": "incomplete"}).status == "incomplete"


def test_an_answer_that_was_cut_before_its_first_word_can_be_seeded() -> None:
    assert parse_item(message("assistant")).content == ()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (JPEG, "image/jpg"), (WEBP, "image/webp")],
)
def test_pictures_come_as_png_jpeg_or_webp(data: bytes, media_type: str) -> None:
    item = parse_item(message("user", {"type": "input_image", "image_url": data_uri(data, media_type)}))
    assert item.images[0].data == data
    assert item.images[0].media_type == media_type.replace("jpg", "jpeg")


def picture(url: Any) -> dict[str, Any]:
    return message("user", {"type": "input_image", "image_url": url})


TEXT = {"type": "input_text", "text": "x"}


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        ("text", "invalid_type", "item"),
        ({}, "missing_required_parameter", "item.type"),
        ({"type": "thought"}, "invalid_value", "item.type"),
        ({"type": "item_reference", "id": "x"}, "invalid_value", "item.type"),
        ({"type": "mcp_call"}, "invalid_value", "item.type"),
        ({"type": "message", "content": [TEXT]}, "missing_required_parameter", "item.role"),
        (message("tool", TEXT), "invalid_value", "item.role"),
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        (message("user"), "invalid_value", "item.content"),
        (message("user", *[TEXT] * 65), "invalid_value", "item.content"),
        (message("user", {"text": "x"}), "missing_required_parameter", "item.content[0].type"),
        (message("user", {"type": "output_text", "text": "x"}), "invalid_value", "item.content[0].type"),
        (message("system", {"type": "input_audio", "audio": ""}), "invalid_value", "item.content[0].type"),
        (message("assistant", {"type": "text", "text": "x"}), "invalid_value", "item.content[0].type"),
        (message("user", TEXT, {"type": "input_text"}), "missing_required_parameter", "item.content[1].text"),
        (message("user", {"type": "input_text", "text": 5}), "invalid_type", "item.content[0].text"),
        (message("user", {"type": "input_text", "text": "\udc80"}), "invalid_value", "item.content[0].text"),
        (message("user", {**TEXT, "text": "x" * 100_001}), "string_above_max_length", "item.content[0].text"),
        (message("user", {**TEXT, "audio": "AAAA"}), "unknown_parameter", "item.content[0].audio"),
        (message("user", {"type": "input_audio"}), "missing_required_parameter", "item.content[0].audio"),
        (message("user", {"type": "input_audio", "audio": "AAA"}), "invalid_value", "item.content[0].audio"),
        (
            message("user", {"type": "input_audio", "audio": "not base64!"}),
            "invalid_value",
            "item.content[0].audio",
        ),
        (picture("https://example.com/cat.png"), "invalid_value", "item.content[0].image_url"),
        (picture("data:image/gif;base64,R0lGOD=="), "invalid_value", "item.content[0].image_url"),
        (picture("data:image/png;base64,AAA"), "invalid_value", "item.content[0].image_url"),
        (picture(data_uri(JPEG, "image/png")), "invalid_value", "item.content[0].image_url"),
        (picture("data:image/png;base64," + "A" * 14_000_000), "invalid_value", "item.content[0].image_url"),
        (picture(None), "missing_required_parameter", "item.content[0].image_url"),
        ({**CALL, "name": None}, "missing_required_parameter", "item.name"),
        ({**CALL, "arguments": {"people": 2}}, "invalid_type", "item.arguments"),
        ({**OUTPUT, "call_id": None}, "missing_required_parameter", "item.call_id"),
        ({**OUTPUT, "output": {"x": 1}}, "invalid_type", "item.output"),
        ({**OUTPUT, "role": "user"}, "unknown_parameter", "item.role"),
        ({**OUTPUT, "id": "x" * 65}, "string_above_max_length", "item.id"),
        ({**OUTPUT, "id": ""}, "invalid_value", "item.id"),
        ({**OUTPUT, "id": "root"}, "invalid_value", "item.id"),
        ({**OUTPUT, "id": "a\nb"}, "invalid_value", "item.id"),
        ({**OUTPUT, "object": "thing"}, "invalid_value", "item.object"),
        ({**OUTPUT, "status": "done"}, "invalid_value", "item.status"),
    ],
)
def test_what_is_no_item_is_refused_with_its_path(data: Any, code: str, param: str) -> None:
    error = refused(data)
    assert (error.code, error.param) == (code, param)
    assert len(error.message) < 700


def test_a_remote_picture_is_refused_with_what_to_do() -> None:
    assert "data URI" in refused(picture("HTTPS://example.com/cat.png")).message


def test_events_show_items_without_bytes_and_without_nulls() -> None:
    shown = wire_item(parse_item(USER))
    assert shown == {
        "id": "msg_1",
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_audio", "transcript": "and that"},
            {"type": "input_image", "detail": "low"},
        ],
    }
    spoken = wire_item(Item("item_1", "message", role="user", content=(InputAudio(),)))
    assert spoken["content"] == [{"type": "input_audio", "transcript": None}]


def test_a_retrieved_item_shows_its_bytes_and_can_be_sent_again() -> None:
    item = parse_item(USER)
    shown = wire_item(item, media=True)
    assert_parses(shown)
    assert parse_item(shown) == item


@pytest.mark.parametrize(
    "data", [USER, ASSISTANT, CALL, OUTPUT, message("system", TEXT), message("assistant")]
)
def test_every_item_parses_into_the_vendors_types_and_back(data: dict[str, Any]) -> None:
    item = parse_item(data)
    shown = wire_item(item)
    parsed = assert_parses(shown)
    assert (parsed.id, parsed.type) == (item.id, item.type)
    if data is not USER:
        assert parse_item(shown) == item


def test_an_item_being_made_is_shown_as_such() -> None:
    call = replace(parse_item(CALL), status="in_progress", arguments="")
    assert wire_item(call) == {**CALL, "object": "realtime.item", "status": "in_progress", "arguments": ""}


@settings(max_examples=150, deadline=None)
@given(st.one_of(ANY_JSON, *(spoilt(one) for one in (USER, ASSISTANT, CALL, OUTPUT))))
def test_any_json_is_an_item_or_a_clear_refusal(data: Any) -> None:
    try:
        item = parse_item(data)
    except RealtimeError as error:
        msgspec.json.encode(error.wire())
        return
    assert_parses(wire_item(item))
    assert parse_item(wire_item(item, media=True)).text == item.text


def test_deep_nesting_anywhere_is_refused() -> None:
    for deep in (nested(3000), nested(3000)[0]):
        refused(deep)
        for key in ("type", "role", "content", "id", "status"):
            refused({**USER, key: deep})
        refused(message("user", deep))

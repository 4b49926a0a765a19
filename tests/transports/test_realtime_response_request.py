"""What a Realtime client may ask of a single response."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from realtime_json import ANY_JSON, spoilt
from realtime_settings import FULL, TOOL, config, refused_response

from transports.realtime.errors import RealtimeError
from transports.realtime.items import InputText, ItemReference


def test_a_plain_response_is_made_as_the_session_says() -> None:
    session = config(**FULL)
    for patch in (None, {}):
        request = session.response_request(patch)
        assert request.options == session.answer_options()
        assert (request.in_conversation, request.input, request.metadata) == (True, None, None)
        assert (request.modality, request.max_output_tokens, request.voice) == ("text", 300, "bob")
        assert request.output_format == session.output_format


def test_a_response_overrides_the_sessions_settings_for_itself() -> None:
    session = config(instructions="a", tools=[TOOL], tool_choice="required")
    request = session.response_request(
        {
            "conversation": "none",
            "instructions": "b",
            "output_modalities": ["text"],
            "audio": {"output": {"voice": "eve", "format": {"type": "audio/pcm", "rate": 24_000}}},
            "tools": [{**TOOL, "name": "cancel"}],
            "tool_choice": {"type": "function", "name": "cancel"},
            "max_output_tokens": 7,
            "metadata": {"client_event_id": "evt_1"},
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "item_reference", "id": "item_9"},
            ],
            "parallel_tool_calls": None,
        }
    )
    assert not request.in_conversation
    assert (request.options.instructions, request.options.max_tokens, request.options.voice) == (
        "b",
        7,
        "eve",
    )
    assert (request.options.tool_choice, request.options.speak) == ("cancel", False)
    assert [tool.name for tool in request.options.tools] == ["cancel"]
    assert (request.modality, request.max_output_tokens, request.voice) == ("text", 7, "eve")
    assert request.metadata == {"client_event_id": "evt_1"}
    assert request.input and request.input[1] == ItemReference("item_9")
    assert request.input[0].content == (InputText("Hi"),)  # type: ignore[union-attr]
    assert session.answer_options().instructions == "a"


def test_an_empty_input_is_a_blank_context_and_not_the_conversation() -> None:
    assert config().response_request({"input": []}).input == ()


@pytest.mark.parametrize(
    ("patch", "code", "param"),
    [
        ({"modalities": ["text"]}, "unknown_parameter", "response.modalities"),
        ({"temperature": 1}, "unknown_parameter", "response.temperature"),
        ({"conversation": "conv_1"}, "invalid_value", "response.conversation"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "response.metadata"),
        ({"metadata": {"k" * 65: "x"}}, "string_above_max_length", "response.metadata"),
        ({"metadata": {"k": "x" * 513}}, "string_above_max_length", "response.metadata.k"),
        ({"metadata": {"k": 5}}, "invalid_type", "response.metadata.k"),
        ({"input": {}}, "invalid_type", "response.input"),
        ({"input": [{"type": "message"}]}, "missing_required_parameter", "response.input[0].role"),
        ({"input": [{"type": "item_reference"}]}, "missing_required_parameter", "response.input[0].id"),
        (
            {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
            "invalid_value",
            "response.audio.output.format",
        ),
        ({"tool_choice": {"type": "function", "name": "x"}}, "invalid_value", "response.tool_choice.name"),
        ({"prompt": {"id": "p"}}, "invalid_value", "response.prompt"),
        ([], "invalid_type", "response"),
    ],
)
def test_an_impossible_response_is_refused_with_its_path(patch: Any, code: str, param: str) -> None:
    error = refused_response(patch)
    assert (error.code, error.param) == (code, param)


RESPONSE: dict[str, Any] = {
    "conversation": "none",
    "instructions": "b",
    "output_modalities": ["text"],
    "audio": {"output": {"voice": "eve", "format": {"type": "audio/pcm", "rate": 24_000}}},
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "book"},
    "max_output_tokens": 7,
    "metadata": {"a": "b"},
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "reasoning": {"effort": "low"},
}


@settings(max_examples=150, deadline=None)
@given(st.one_of(ANY_JSON, spoilt(RESPONSE)))
def test_any_json_is_a_response_or_a_clear_refusal(patch: Any) -> None:
    try:
        config().response_request(patch)
    except RealtimeError as error:
        msgspec.json.encode(error.wire())

"""Every session that is shown parses into the vendor's types, and any JSON is settings or a clear refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.realtime import (
    RealtimeSessionCreateRequest,
    RealtimeTranscriptionSessionCreateRequest,
    SessionUpdatedEvent,
)
from openai.types.realtime.client_secret_create_response import ClientSecretCreateResponse
from pydantic import TypeAdapter
from realtime_json import ANY_JSON, nested, spoilt
from realtime_settings import FULL, TOOL, config, hearing

from transports.realtime.config import SessionConfig
from transports.realtime.errors import RealtimeError
from voice.options import TurnOptions

EVENT: TypeAdapter[SessionUpdatedEvent] = TypeAdapter(SessionUpdatedEvent)
SECRET: TypeAdapter[ClientSecretCreateResponse] = TypeAdapter(ClientSecretCreateResponse)


def assert_parses(made: SessionConfig) -> None:
    """The echo is one of the vendor's own types, as event and as the reply to a client secret."""
    for hide in (False, True):
        text = msgspec.json.encode(made.wire(hide_instructions=hide)).decode()
        event = EVENT.validate_json(f'{{"type": "session.updated", "event_id": "e", "session": {text}}}')
        kinds = {
            "realtime": RealtimeSessionCreateRequest,
            "transcription": RealtimeTranscriptionSessionCreateRequest,
        }
        assert type(event.session) is kinds[made.type]
        SECRET.validate_json(f'{{"value": "ek_1", "expires_at": 1, "session": {text}}}')
    if made.type == "realtime":
        audio: Any = made.wire()["audio"]
        assert isinstance(audio["output"]["voice"], str)
        if audio["input"]["turn_detection"] is not None:
            assert isinstance(audio["input"]["turn_detection"]["interrupt_response"], bool)


@pytest.mark.parametrize(
    "patch", [{}, FULL, hearing(turn_detection={"type": "semantic_vad"}, transcription=None)]
)
def test_every_echo_parses_into_the_vendors_types(patch: dict[str, Any]) -> None:
    assert_parses(config(**patch))
    assert_parses(config().updated({"type": "transcription"}, first=True))


def check_update(patch: Any, first: bool, audio_made: bool) -> None:
    """Refused as the protocol says, or taken: then it echoes, echoes again, and runs."""
    try:
        done = config(**hearing(turn_detection={"threshold": 0.4})).updated(
            patch, first=first, audio_made=audio_made
        )
    except RealtimeError as error:
        msgspec.json.encode(error.wire())
        return
    assert_parses(done)
    assert done.updated(done.wire()) == done
    for base in (TurnOptions(), TurnOptions(pause_s=2.0, min_delay_s=3.0, max_delay_s=9.0, mode="manual")):
        done.turn_options(base)
    done.answer_options()


@settings(max_examples=150, deadline=None)
@given(ANY_JSON, st.booleans(), st.booleans())
def test_any_json_is_an_update_or_a_clear_refusal(patch: Any, first: bool, audio_made: bool) -> None:
    check_update(patch, first, audio_made)
    if isinstance(patch, dict):
        check_update({**patch, "type": "realtime"}, first, audio_made)


@settings(max_examples=150, deadline=None)
@given(spoilt(FULL), st.booleans(), st.booleans())
def test_an_update_that_is_almost_right_is_taken_or_refused_clearly(
    patch: Any, first: bool, audio_made: bool
) -> None:
    check_update(patch, first, audio_made)


@pytest.mark.parametrize("deep", [nested(50), nested(3000)])
def test_deep_nesting_anywhere_is_refused_or_left_aside(deep: Any) -> None:
    for place in ("instructions", "tools", "tool_choice", "audio", "tracing", "truncation", "id", "include"):
        check_update({"type": "realtime", place: deep}, True, False)
        check_update({"type": "realtime", place: deep[0]}, True, False)
    check_update({"type": "realtime", "tools": [{**TOOL, "parameters": deep[0]}]}, True, False)
    check_update({"type": "realtime", "tracing": {"metadata": deep[0]}}, True, False)

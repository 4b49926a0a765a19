"""What did the client just say, and how are events written? Client events as structs, ids, and JSON text."""

from __future__ import annotations

import binascii
import itertools
import json
import secrets
from base64 import b64encode
from typing import Any, TypeAlias, get_args

import msgspec

from transports.realtime import fields
from transports.realtime.errors import MAX_EVENT_ID_CHARS, RealtimeError, missing, wrong_type, wrong_value
from voice.schema import clip

MAX_AUDIO_CHARS = 15 * 2**20
"""Longest base64 text of one ``input_audio_buffer.append``: the vendor's bound."""

_MANY_VALUES = 100_000
"""Commas and brackets of an event. Each may become an object, which takes up to a microsecond: 16 MiB of ``[],[],``
would hold up all sessions for seconds. Long events are long because of texts and media, which have few."""


# ---------------------------------------------------------------- client events


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    event_id: str | None = None


class SessionUpdate(_Event, frozen=True, tag="session.update"):
    """Change the settings. ``session`` is for ``SessionConfig.updated``."""

    session: object


class AudioAppend(_Event, frozen=True, tag="input_audio_buffer.append"):
    """More of the user's audio, base64 for :func:`decode_audio`."""

    audio: str


class AudioCommit(_Event, frozen=True, tag="input_audio_buffer.commit"):
    """The user's turn ends here."""


class AudioClear(_Event, frozen=True, tag="input_audio_buffer.clear"):
    """Forget the audio that is not committed."""


class OutputClear(_Event, frozen=True, tag="output_audio_buffer.clear"):
    """Drop the agent's audio (WebRTC)."""


class ItemCreate(_Event, frozen=True, tag="conversation.item.create"):
    """Add ``item`` (for ``parse_item``) after ``previous_item_id``: ``None`` at the end, ``root`` at the front."""

    item: object
    previous_item_id: str | None = None


class ItemRetrieve(_Event, frozen=True, tag="conversation.item.retrieve"):
    """Show an item."""

    item_id: str


class ItemTruncate(_Event, frozen=True, tag="conversation.item.truncate"):
    """The agent's audio was heard up to ``audio_end_ms`` only (whole or not, from 0)."""

    item_id: str
    content_index: int
    audio_end_ms: int | float


class ItemDelete(_Event, frozen=True, tag="conversation.item.delete"):
    """Remove an item."""

    item_id: str


class ResponseCreate(_Event, frozen=True, tag="response.create"):
    """Answer now. ``response`` is for ``SessionConfig.response_request``."""

    response: object = None


class ResponseCancel(_Event, frozen=True, tag="response.cancel"):
    """Stop the response of that id, or the one that is being made."""

    response_id: str | None = None


ClientEvent: TypeAlias = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
)

_STRUCTS: dict[str, type[_Event]] = {one.__struct_config__.tag: one for one in get_args(ClientEvent)}
_DECODER: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)
_BETA = {
    "transcription_session.update": 'session.update with "type": "transcription"',
}


def parse_event(message: str | bytes, *, max_bytes: int) -> ClientEvent:
    """The event in one text frame.

    Args:
        message: The frame; ``bytes`` stands for a binary frame, which the protocol does not have.
        max_bytes: Longest message, in bytes of UTF-8.

    Raises:
        RealtimeError: Anything else; with the client's ``event_id`` if the message had one that can be used.
    """
    if not isinstance(message, str):
        raise RealtimeError("Events are JSON in text frames; a binary frame came.", code="invalid_event")
    if len(message) > max_bytes or (not message.isascii() and _bytes(message) > max_bytes):
        raise RealtimeError(f"The event is longer than {max_bytes:,} bytes.", code="message_too_large")
    if len(message) > _MANY_VALUES and sum(map(message.count, ",[{")) > _MANY_VALUES:
        raise RealtimeError(f"The event has more than {_MANY_VALUES:,} values.", code="invalid_event")
    try:
        event = _DECODER.decode(message)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        raise _why_not(message) from None
    if event.event_id is not None and len(event.event_id) > MAX_EVENT_ID_CHARS:
        raise wrong_value("event_id", f"at most {MAX_EVENT_ID_CHARS} characters", event.event_id)
    if type(event) is ItemTruncate:
        _check_truncate(event)
    return event


def _bytes(message: str) -> int:
    return len(message.encode("utf-8", "surrogatepass"))


def _check_truncate(event: ItemTruncate) -> None:
    try:
        fields.as_integer(event.content_index, "content_index", 0, 2**31)
        fields.as_number(event.audio_end_ms, "audio_end_ms", 0, 2**53)
    except RealtimeError as refused:
        refused.event_id = event.event_id
        raise


def _why_not(message: str) -> RealtimeError:
    """What is wrong with a message that is none of the events."""
    try:
        data = msgspec.json.decode(message)
    except RecursionError:
        return RealtimeError("The event is nested too deeply.", code="invalid_json")
    except ValueError as why:
        return RealtimeError(f"The event is not valid JSON: {clip(str(why), 120)}.", code="invalid_json")
    if not isinstance(data, dict):
        return wrong_type("event", "an object", data)
    error = _wrong_field(data)
    event_id = data.get("event_id")
    if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS:
        error.event_id = event_id
    return error


def _wrong_field(data: dict[str, object]) -> RealtimeError:
    kind = data.get("type")
    if kind is None:
        return missing("type")
    if not isinstance(kind, str):
        return wrong_type("type", "a string", kind)
    if kind in _BETA:
        message = f"'{kind}' belongs to the beta protocol; send {_BETA[kind]}."
        return RealtimeError(message, code="beta_api_shape_disabled", param="type")
    if kind not in _STRUCTS:
        expected = "one of " + ", ".join(f"'{name}'" for name in _STRUCTS)
        return wrong_value("type", expected, kind)
    known = {field.name: field for field in msgspec.structs.fields(_STRUCTS[kind])}
    for name, field in known.items():
        if name not in data:
            if field.required:
                return missing(name)
        elif not _fits(data[name], field.type):
            return wrong_type(name, _EXPECTED.get(field.type, "a string"), data[name])
    for name in data:
        if name not in known and name != "type":
            message = f"Unknown parameter: '{clip(name, 64)}'."
            return RealtimeError(message, code="unknown_parameter", param=name)
    return RealtimeError("The event can't be read.", code="invalid_event")


_EXPECTED: dict[Any, str] = {int: "an integer", int | float: "a number"}


def _fits(value: object, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except (ValueError, RecursionError):
        return False
    return True


def decode_audio(text: str, *, param: str = "audio") -> bytes:
    """The bytes of base64 audio: the standard alphabet, padded, nothing else in between.

    Raises:
        RealtimeError: Not base64, or above ``MAX_AUDIO_CHARS``.
    """
    if len(text) > MAX_AUDIO_CHARS:
        raise RealtimeError(
            f"Invalid '{param}': {len(text):,} characters of base64; at most {MAX_AUDIO_CHARS:,} are taken.",
            code="string_above_max_length",
            param=param,
        )
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        message = f"Invalid '{param}': expected base64 ({clip(str(error), 80)})."
        raise RealtimeError(message, param=param) from None


# ---------------------------------------------------------------- server events

_ENCODER = msgspec.json.Encoder()
_RUN = secrets.token_hex(4)
_COUNT = itertools.count(1)


def encode(event: dict[str, object]) -> str:
    """The text frame of a server event. ``bytes`` in it become base64, which is the fastest way to write audio."""
    try:
        return _ENCODER.encode(event).decode()
    except UnicodeEncodeError:  # a lone surrogate in an engine's text; JSON can hold it as an escape
        return json.dumps(event, default=lambda value: b64encode(value).decode())


def new_id(prefix: str) -> str:
    """An id such as ``item_5f2c9a1b0000002a``, unique in this process. Not a secret: it counts up."""
    return f"{prefix}_{_RUN}{next(_COUNT):08x}"

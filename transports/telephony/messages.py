"""Messages of Twilio Media Streams, version 1.0.0: JSON text of a WebSocket to checked values and back.

Streams of other carriers differ in the names of these messages; they would get a file like this one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from voice.errors import ProtocolError

RATE_HZ = 8_000
MOST_BYTES = 64 * 1024
"""Longest message that is read. Twilio's own have less than 1 kB."""
_MOST_AUDIO_BYTES = RATE_HZ
"""Audio of one message at most: 1 s, where Twilio sends 20 ms."""
_MOST_PARAMETERS, _MOST_PARAMETER_CHARS = 64, 1_000
_SID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StreamError(ProtocolError):
    """The stream can't go on.

    Attributes:
        code: The WebSocket close code that says so (RFC 6455 section 7.4.1).
        reason: Why the session ends, in one word.
    """

    def __init__(self, message: str, code: int = 1002, reason: str = "protocol_error") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class Connected:
    """The WebSocket is up; ``Start`` follows."""


@dataclass(frozen=True, slots=True)
class Start:
    """Who calls. Sids are letters and digits, at most 64.

    Attributes:
        parameters: What ``<Parameter>`` elements of the TwiML said.
    """

    stream_sid: str
    call_sid: str
    account_sid: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Media:
    """Audio of the caller: µ-law at 8 kHz.

    Attributes:
        stream_sid: Of the stream; empty if the message did not say.
        track: ``"inbound"`` is the caller.
        timestamp_ms: Since the stream began; ``None`` when there is none.
    """

    stream_sid: str
    track: str
    payload: bytes
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Dtmf:
    """The caller pressed a key."""

    digit: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What was sent before the mark has been played, or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The call is over."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event that this version of the protocol does not have."""

    event: str


Message: TypeAlias = Connected | Start | Media | Dtmf | Mark | Stop | Unknown


# ---------------------------------------------------------------- in


class _Event(msgspec.Struct):
    event: str


class _Format(msgspec.Struct, rename="camel"):
    encoding: str = "audio/x-mulaw"
    sample_rate: int = RATE_HZ
    channels: int = 1


class _StartBody(msgspec.Struct, rename="camel"):
    call_sid: str
    stream_sid: str | None = None
    account_sid: str = ""
    tracks: list[str] = []
    custom_parameters: dict[str, str] = {}
    media_format: _Format = msgspec.field(default_factory=_Format)


class _Start(msgspec.Struct, rename="camel"):
    start: _StartBody
    stream_sid: str | None = None


class _MediaBody(msgspec.Struct):
    payload: bytes  # base64 on the wire
    track: str = "inbound"
    timestamp: str | int | None = None


class _Media(msgspec.Struct, rename="camel"):
    media: _MediaBody
    stream_sid: str = ""


class _DtmfBody(msgspec.Struct):
    digit: str


class _Dtmf(msgspec.Struct):
    dtmf: _DtmfBody


class _MarkBody(msgspec.Struct):
    name: str


class _Mark(msgspec.Struct):
    mark: _MarkBody


_event = msgspec.json.Decoder(_Event)
_start = msgspec.json.Decoder(_Start, strict=False)  # numbers may come as strings
_media = msgspec.json.Decoder(_Media)
_dtmf = msgspec.json.Decoder(_Dtmf)
_mark = msgspec.json.Decoder(_Mark)


def parse(text: str | bytes) -> Message:
    """One message from Twilio.

    Raises:
        ProtocolError: Not JSON, or fields that are missing or of the wrong type; the stream may go on.
        StreamError: Too long, or a stream that can't be used (not µ-law at 8 kHz, not the caller's track).
    """
    if len(text) > MOST_BYTES:
        raise StreamError(f"a message of {len(text)} bytes; at most {MOST_BYTES} are read", 1009)
    if not isinstance(text, str):
        raise ProtocolError("a binary message; this protocol is JSON text")
    try:
        event = _event.decode(text).event
        match event:
            case "media":
                return _read_media(_media.decode(text))
            case "mark":
                return Mark(_mark.decode(text).mark.name)
            case "dtmf":
                return Dtmf(_dtmf.decode(text).dtmf.digit)
            case "connected":
                return Connected()
            case "start":
                return _read_start(_start.decode(text))
            case "stop":
                return Stop()
        return Unknown(event[:40])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"a message that can't be read: {error}"[:200]) from error


def _read_media(message: _Media) -> Media:
    media = message.media
    if len(media.payload) > _MOST_AUDIO_BYTES:
        raise ProtocolError(
            f"{len(media.payload)} bytes of audio in one message, at most {_MOST_AUDIO_BYTES}"
        )
    at = media.timestamp
    if isinstance(at, str):
        at = int(at) if at.isdecimal() and len(at) <= 15 else None
    return Media(message.stream_sid, media.track, media.payload, at)


def _read_start(message: _Start) -> Start:
    body = message.start
    stream_sid = message.stream_sid or body.stream_sid or ""
    for name, sid in (("streamSid", stream_sid), ("callSid", body.call_sid)):
        if not _SID.fullmatch(sid):
            raise StreamError(f"a start whose {name} is not 1 to 64 letters and digits")
    if body.account_sid and not _SID.fullmatch(body.account_sid):
        raise StreamError("a start whose accountSid is not 1 to 64 letters and digits")
    given = body.media_format
    if (given.encoding, given.sample_rate, given.channels) != ("audio/x-mulaw", RATE_HZ, 1):
        raise StreamError(
            f"audio is {given.encoding[:40]!r} at {given.sample_rate} Hz, {given.channels} channels; "
            "expected audio/x-mulaw at 8000 Hz, 1 channel",
            1003,
        )
    if body.tracks and "inbound" not in body.tracks:
        raise StreamError("the stream does not have the caller's track (inbound)", 1003)
    parameters = body.custom_parameters
    if len(parameters) > _MOST_PARAMETERS or any(
        len(name) + len(value) > _MOST_PARAMETER_CHARS for name, value in parameters.items()
    ):
        raise StreamError(
            f"a start has at most {_MOST_PARAMETERS} parameters of {_MOST_PARAMETER_CHARS} characters"
        )
    return Start(stream_sid, body.call_sid, body.account_sid, dict(parameters))


# ---------------------------------------------------------------- out


def media(stream_sid: str, payload: bytes) -> str:
    """Audio for the caller: µ-law at 8 kHz without a header, whole frames of 160 bytes."""
    coded = base64.b64encode(payload).decode("ascii")
    return f'{{"event":"media","streamSid":"{stream_sid}","media":{{"payload":"{coded}"}}}}'


def mark(stream_sid: str, name: str) -> str:
    """Asks for a ``mark`` of that name once everything sent before has been played."""
    return _line({"event": "mark", "streamSid": stream_sid, "mark": {"name": name}})


def clear(stream_sid: str) -> str:
    """Drops what was sent and not played yet; its marks come back at once."""
    return _line({"event": "clear", "streamSid": stream_sid})


def _line(message: dict[Literal["event", "streamSid", "mark"], str | dict[str, str]]) -> str:
    return msgspec.json.encode(message).decode("utf-8")

"""What does a client put into the conversation, and how is an item shown to it? Items and their content."""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Literal, TypeAlias

from transports.realtime import fields
from transports.realtime.errors import RealtimeError, missing, wrong_value
from transports.realtime.events import decode_audio, new_id
from voice.interfaces import ImagePart
from voice.schema import clip

ItemKind = Literal["message", "function_call", "function_call_output"]
Role = Literal["system", "user", "assistant"]
Status = Literal["in_progress", "completed", "incomplete"]

MAX_ID_CHARS = 64
MAX_TEXT_CHARS = 100_000
"""Longest text, arguments or output of an item."""
MAX_PARTS = 64
MAX_IMAGE_BYTES = 10_000_000

_KINDS: tuple[ItemKind, ...] = ("message", "function_call", "function_call_output")
_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_STATUSES: tuple[Status, ...] = ("in_progress", "completed", "incomplete")
_DETAILS: tuple[Literal["auto", "low", "high"], ...] = ("auto", "low", "high")
_DATA_URI = re.compile(r"data:(image/(?:png|jpeg|jpg|webp));base64,", re.IGNORECASE)
_BETA_PARTS = {"text": "output_text", "audio": "output_audio"}


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class InputText:
    """Words that the user or the system wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class InputAudio:
    """What the user said.

    Attributes:
        audio: In the session's input format; ``None`` when it is not kept or was not given.
        transcript: ``None`` while it is not known.
    """

    audio: bytes | None = None
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class InputImage:
    """A picture: PNG, JPEG or WebP as ``media_type`` says."""

    data: bytes
    media_type: str
    detail: Literal["auto", "low", "high"] = "auto"


@dataclass(frozen=True, slots=True)
class OutputText:
    """Words that the agent wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class OutputAudio:
    """What the agent said."""

    transcript: str


Part: TypeAlias = InputText | InputAudio | InputImage | OutputText | OutputAudio


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of the conversation as the protocol sees it.

    Attributes:
        id: ``item_…``, or the client's own.
        type: Decides which of the fields below are there.
        status: Whether it is being made, whole, or was cut.
        role: Of a message.
        content: Of a message.
        call_id: Ties a function call to its output.
        name: Of the function called.
        arguments: Of the call, JSON as the model wrote it.
        output: Of the function.
    """

    id: str
    type: ItemKind
    status: Status = "completed"
    role: Role | None = None
    content: tuple[Part, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None

    @property
    def text(self) -> str:
        """A message's words, a line for each part; a call's output; else nothing."""
        if self.output is not None:
            return self.output
        texts = (
            (part.transcript or "") if isinstance(part, InputAudio | OutputAudio) else part.text
            for part in self.content
            if not isinstance(part, InputImage)
        )
        return "\n".join(text for text in texts if text)

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """A message's pictures as a model takes them."""
        return tuple(
            ImagePart(part.data, part.media_type, part.detail)
            for part in self.content
            if isinstance(part, InputImage)
        )


@dataclass(frozen=True, slots=True)
class ItemReference:
    """Stands for an item of the conversation in the input of a response."""

    id: str


# ---------------------------------------------------------------- reading

_COMMON = ("id", "object", "type", "status")
_FIELDS: dict[ItemKind, tuple[str, ...]] = {
    "message": (*_COMMON, "role", "content", "phase"),
    "function_call": (*_COMMON, "call_id", "name", "arguments"),
    "function_call_output": (*_COMMON, "call_id", "output"),
}


def parse_item(data: object, *, param: str = "item") -> Item:
    """An item that a client sent; one without an id gets one. ``null`` counts as absent.

    Raises:
        RealtimeError: Anything that is not an item a client can add; ``param`` begins the path.
    """
    given = {key: value for key, value in fields.as_object(data, param).items() if value is not None}
    kind = _read_kind(given, param)
    fields.only_known(given, param, _FIELDS[kind])
    item_id = _read_id(given["id"], f"{param}.id") if "id" in given else new_id("item")
    if "object" in given:
        fields.as_one_of(given["object"], f"{param}.object", ("realtime.item",))
    status = fields.as_one_of(given.get("status", "completed"), f"{param}.status", _STATUSES)
    if status == "in_progress":  # nothing more of it will come
        status = "completed"
    if kind == "message":
        role = fields.as_one_of(fields.required(given, "role", param), f"{param}.role", _ROLES)
        content = _read_content(fields.required(given, "content", param), f"{param}.content", role)
        return Item(item_id, kind, status, role=role, content=content)
    if kind == "function_call":
        name = fields.as_text(fields.required(given, "name", param), f"{param}.name", most=64, least=1)
        arguments = _read_text(given, "arguments", param)
        call_id = _read_id(given["call_id"], f"{param}.call_id") if "call_id" in given else new_id("call")
        return Item(item_id, kind, status, call_id=call_id, name=name, arguments=arguments)
    call_id = _read_id(fields.required(given, "call_id", param), f"{param}.call_id")
    return Item(item_id, kind, status, call_id=call_id, output=_read_text(given, "output", param))


def parse_reference(data: object, param: str) -> ItemReference:
    """``{"type": "item_reference", "id": …}``.

    Raises:
        RealtimeError: Anything else.
    """
    given = fields.as_object(data, param)
    fields.as_one_of(fields.required(given, "type", param), f"{param}.type", ("item_reference",))
    fields.only_known(given, param, ("type", "id"))
    return ItemReference(_read_id(fields.required(given, "id", param), f"{param}.id"))


def _read_kind(given: dict[str, object], param: str) -> ItemKind:
    kind = fields.required(given, "type", param)
    if isinstance(kind, str) and kind.startswith("mcp_"):
        message = f"Invalid value for '{param}.type': MCP servers are not called from here."
        raise RealtimeError(message, param=f"{param}.type")
    return fields.as_one_of(kind, f"{param}.type", _KINDS)


def _read_id(value: object, param: str) -> str:
    """An id of the client's choice. ``root`` is no item's: it names the front of the conversation."""
    text = fields.as_text(value, param, most=MAX_ID_CHARS, least=1)
    if not text.isprintable() or text == "root":
        raise wrong_value(param, "an id of printable characters other than 'root'", text)
    return text


def _read_text(given: dict[str, object], key: str, param: str) -> str:
    return fields.as_text(fields.required(given, key, param), f"{param}.{key}", most=MAX_TEXT_CHARS)


def _read_content(value: object, param: str, role: Role) -> tuple[Part, ...]:
    parts = fields.as_list(value, param, MAX_PARTS)
    if not parts and role != "assistant":  # an answer may have been cut before its first word
        raise RealtimeError(f"Invalid '{param}': there is nothing in it.", param=param)
    return tuple(_read_part(part, f"{param}[{index}]", role) for index, part in enumerate(parts))


_PARTS: dict[Role, tuple[str, ...]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}
_PART_FIELDS = {
    "input_text": ("type", "text"),
    "input_audio": ("type", "audio", "transcript"),
    "input_image": ("type", "image_url", "detail"),
    "output_text": ("type", "text"),
    "output_audio": ("type", "audio", "transcript"),
}


def _read_part(value: object, param: str, role: Role) -> Part:
    given = {key: part for key, part in fields.as_object(value, param).items() if part is not None}
    named = fields.required(given, "type", param)
    if role == "assistant" and isinstance(named, str) and named in _BETA_PARTS:
        expected = f"'{_BETA_PARTS[named]}' ('{named}' belongs to the beta protocol)"
        raise wrong_value(f"{param}.type", expected, named)
    kind = fields.as_one_of(named, f"{param}.type", _PARTS[role])
    fields.only_known(given, param, _PART_FIELDS[kind])
    match kind:
        case "input_text":
            return InputText(_read_text(given, "text", param))
        case "output_text":
            return OutputText(_read_text(given, "text", param))
        case "input_image":
            return _read_image(given, param)
    transcript = _read_text(given, "transcript", param) if "transcript" in given else None
    if kind == "output_audio":
        return OutputAudio(transcript or "")
    audio = None
    if "audio" in given:
        text = fields.as_text(given["audio"], f"{param}.audio", most=2**31)
        audio = decode_audio(text, param=f"{param}.audio")
    elif transcript is None:
        raise missing(f"{param}.audio")
    return InputAudio(audio, transcript)


def _read_image(given: dict[str, object], param: str) -> InputImage:
    detail = fields.as_one_of(given.get("detail", "auto"), f"{param}.detail", _DETAILS)
    if "image_url" not in given:
        raise missing(f"{param}.image_url")
    at = f"{param}.image_url"
    url = fields.as_text(given["image_url"], at, most=2**31)
    if url[:8].lower().startswith(("http:", "https:")):
        raise RealtimeError(f"Invalid '{at}': pictures are not fetched; send a data URI.", param=at)
    head = _DATA_URI.match(url)
    if not head:
        raise wrong_value(at, "a data URI such as 'data:image/png;base64,…' (PNG, JPEG or WebP)", url)
    if (len(url) - head.end()) * 3 // 4 > MAX_IMAGE_BYTES + 3:
        raise RealtimeError(f"Invalid '{at}': more than {MAX_IMAGE_BYTES:,} bytes.", param=at)
    try:
        data = binascii.a2b_base64(url[head.end() :], strict_mode=True)
    except ValueError as error:
        raise RealtimeError(f"Invalid '{at}': not base64 ({clip(str(error), 80)}).", param=at) from None
    media_type = head[1].lower().replace("jpg", "jpeg")
    if _media_type(data) != media_type:
        raise RealtimeError(f"Invalid '{at}': the bytes are not {media_type}.", param=at)
    return InputImage(data, media_type, detail)


def _media_type(data: bytes) -> str | None:
    """What the first bytes say that it is."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


# ---------------------------------------------------------------- showing


def wire_item(item: Item, *, media: bool = False) -> dict[str, object]:
    """The item as events show it: absent fields are left out, never ``null`` (but for ``transcript``).

    Args:
        media: With the bytes of audio and pictures, which only ``conversation.item.retrieved`` shows.
    """
    shown: dict[str, object] = {
        "id": item.id,
        "object": "realtime.item",
        "type": item.type,
        "status": item.status,
    }
    if item.type == "message":
        shown["role"] = item.role
        shown["content"] = [_wire_part(part, media) for part in item.content]
    for key in ("call_id", "name", "arguments", "output"):
        value = getattr(item, key)
        if value is not None:
            shown[key] = value
    return shown


def _wire_part(part: Part, media: bool) -> dict[str, object]:
    match part:
        case InputText():
            return {"type": "input_text", "text": part.text}
        case InputAudio():
            heard: dict[str, object] = {"type": "input_audio", "transcript": part.transcript}
            if media and part.audio is not None:
                heard["audio"] = b64encode(part.audio).decode()
            return heard
        case InputImage():
            seen: dict[str, object] = {"type": "input_image", "detail": part.detail}
            if media:
                seen["image_url"] = f"data:{part.media_type};base64,{b64encode(part.data).decode()}"
            return seen
        case OutputText():
            return {"type": "output_text", "text": part.text}
        case OutputAudio():
            return {"type": "output_audio", "transcript": part.transcript}

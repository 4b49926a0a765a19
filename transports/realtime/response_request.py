"""What does one ``response.create`` ask for? The session's settings with those of its ``response`` object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from transports.realtime import fields
from transports.realtime.client_tools import read_tool_choice, read_tools
from transports.realtime.errors import RealtimeError, wrong_value
from transports.realtime.items import Item, ItemReference, parse_item, parse_reference
from transports.realtime.settings import (
    FORMATS,
    INSTRUCTIONS_CHARS,
    Modality,
    check_ignored,
    read_format,
    read_max_output_tokens,
    read_modality,
)
from voice.audio import AudioFormat
from voice.options import AnswerOptions

if TYPE_CHECKING:
    from transports.realtime.config import SessionConfig

MAX_INPUT_ITEMS = 400
MAX_METADATA = 16
"""The vendor's bounds on metadata: pairs, characters of a key, characters of a value."""
METADATA_KEY_CHARS = 64
METADATA_VALUE_CHARS = 512

_BETA = {
    "modalities": "use 'output_modalities'",
    "voice": "use 'audio.output.voice'",
    "output_audio_format": "use 'audio.output.format'",
    "max_response_output_tokens": "use 'max_output_tokens'",
    "temperature": "it was removed, leave it out",
}
_KNOWN = (
    "conversation", "input", "instructions", "output_modalities", "audio", "tools", "tool_choice",
    "max_output_tokens", "metadata", "parallel_tool_calls", "prompt", "reasoning",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """One response that a client asks for, or that a turn brings.

    Attributes:
        options: How it is made.
        in_conversation: It sees the conversation and enters it; else it is out of band.
        input: What it sees instead of the conversation; ``None``: the conversation. Empty: nothing but the
            instructions.
        metadata: The client's own marks, repeated in the response.
        output_format: How its audio is coded.
        modality: Whether it is spoken or written.
        max_output_tokens: As the protocol writes it.
        voice: Name of the voice in force.
    """

    options: AnswerOptions
    in_conversation: bool
    input: tuple[Item | ItemReference, ...] | None
    metadata: dict[str, str] | None
    output_format: AudioFormat
    modality: Modality
    max_output_tokens: int | Literal["inf"]
    voice: str


def read_response_request(session: SessionConfig, patch: object | None) -> ResponseRequest:
    """See :meth:`~transports.realtime.config.SessionConfig.response_request`."""
    data = {} if patch is None else fields.as_object(patch, "response")
    fields.only_known(data, "response", _KNOWN, _BETA)
    given = {key: value for key, value in data.items() if value is not None}
    for key, value in given.items():
        check_ignored(key, value, f"response.{key}")
    options = session.answer_options()
    if "instructions" in given:
        told = fields.as_text(given["instructions"], "response.instructions", most=INSTRUCTIONS_CHARS)
        options = replace(options, instructions=told)
    if "tools" in given:
        options = _with_tools(session, options, given["tools"])
    if "tool_choice" in given:
        names = {tool.name for tool in options.tools} | session.agent.tools
        choice = read_tool_choice(given["tool_choice"], "response.tool_choice", names)
        options = replace(options, tool_choice=choice)
    max_output_tokens = session.max_output_tokens
    if "max_output_tokens" in given:
        tokens = read_max_output_tokens(given["max_output_tokens"], "response.max_output_tokens")
        options = replace(options, max_tokens=tokens)
        max_output_tokens = tokens or session.agent.max_tokens or "inf"
    modality = session.modality
    if "output_modalities" in given:
        modality = read_modality(given["output_modalities"], "response.output_modalities")
    if "audio" in given:
        options = _with_audio(session, options, given["audio"])
    return ResponseRequest(
        options=replace(options, speak=modality == "audio"),
        in_conversation=_in_conversation(given.get("conversation", "auto")),
        input=_read_input(given["input"]) if "input" in given else None,
        metadata=_read_metadata(given["metadata"]) if "metadata" in given else None,
        output_format=session.output_format,
        modality=modality,
        max_output_tokens=max_output_tokens,
        voice=options.voice or session.agent.voice,
    )


def _with_tools(session: SessionConfig, options: AnswerOptions, value: object) -> AnswerOptions:
    """Other tools; the session's choice of one that is not among them falls back to the agent's choice."""
    tools = read_tools(value, "response.tools", session.agent.tools)
    choice = options.tool_choice
    gone = choice in {tool.name for tool in options.tools} - {tool.name for tool in tools}
    return replace(options, tools=tools, tool_choice=None if gone else choice)


def _with_audio(session: SessionConfig, options: AnswerOptions, value: object) -> AnswerOptions:
    """Another voice. One stream goes to the client, so its format is the session's."""
    audio = fields.as_object(value, "response.audio")
    fields.only_known(audio, "response.audio", ("output",))
    if audio.get("output") is None:
        return options
    output = fields.as_object(audio["output"], "response.audio.output")
    fields.only_known(output, "response.audio.output", ("format", "voice"))
    if output.get("format") is not None:
        param = "response.audio.output.format"
        if FORMATS[read_format(output["format"], param)] != session.output_format:
            expected = f"the session's format ('{session.output_type}'); change it with session.update"
            raise wrong_value(param, expected, output["format"])
    if output.get("voice") is not None:
        voice = session.agent.read_voice(output["voice"], "response.audio.output.voice")
        return replace(options, voice=voice)
    return options


def _in_conversation(value: object) -> bool:
    return fields.as_one_of(value, "response.conversation", ("auto", "none")) == "auto"


def _read_input(value: object) -> tuple[Item | ItemReference, ...]:
    read: list[Item | ItemReference] = []
    for index, one in enumerate(fields.as_list(value, "response.input", MAX_INPUT_ITEMS)):
        param = f"response.input[{index}]"
        reference = isinstance(one, dict) and one.get("type") == "item_reference"
        read.append(parse_reference(one, param) if reference else parse_item(one, param=param))
    return tuple(read)


def _read_metadata(value: object) -> dict[str, str]:
    param = "response.metadata"
    data = fields.as_object(value, param)
    if len(data) > MAX_METADATA:
        raise RealtimeError(f"Invalid '{param}': at most {MAX_METADATA} pairs are taken.", param=param)
    read: dict[str, str] = {}
    for key, text in data.items():
        name = fields.as_text(key, param, most=METADATA_KEY_CHARS)
        read[name] = fields.as_text(text, f"{param}.{name}", most=METADATA_VALUE_CHARS)
    return read

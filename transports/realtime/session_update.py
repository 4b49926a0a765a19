"""What does a ``session.update`` change? Only what is present; nested objects merge.

``null`` switches turn detection and transcription off and puts anything else back to the server's default. Settings
without effect here are checked and taken; the echo shows what is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transports.realtime import fields
from transports.realtime.client_tools import read_tool_choice, read_tools
from transports.realtime.errors import RealtimeError, missing, wrong_value
from transports.realtime.settings import (
    INSTRUCTIONS_CHARS,
    SESSION_KINDS,
    check_ignored,
    read_format,
    read_max_output_tokens,
    read_modality,
)
from transports.realtime.transcription import Transcription
from transports.realtime.turn_detection import updated_turn_detection

if TYPE_CHECKING:
    from transports.realtime.config import SessionConfig

_BETA = {
    "modalities": "use 'output_modalities'",
    "voice": "use 'audio.output.voice'",
    "speed": "use 'audio.output.speed'",
    "turn_detection": "use 'audio.input.turn_detection'",
    "input_audio_format": 'use \'audio.input.format\' with an object such as {"type": "audio/pcm", "rate": 24000}',
    "output_audio_format": 'use \'audio.output.format\' with an object such as {"type": "audio/pcm", "rate": 24000}',
    "input_audio_transcription": "use 'audio.input.transcription'",
    "input_audio_noise_reduction": "use 'audio.input.noise_reduction'",
    "max_response_output_tokens": "use 'max_output_tokens'",
    "temperature": "it was removed, leave it out",
}
_OWNED = ("id", "object", "expires_at")
_COMMON = ("type", "model", "audio", "include", *_OWNED)
_SPOKEN = (
    "instructions", "output_modalities", "tools", "tool_choice", "max_output_tokens", "parallel_tool_calls",
    "reasoning", "truncation", "tracing", "prompt",
)  # fmt: skip
_MERGED = ("audio", "input", "output", "turn_detection", "transcription")
"""Objects that merge; all others are replaced whole."""


def updated_session(now: SessionConfig, patch: object, *, first: bool, audio_made: bool) -> SessionConfig:
    """See :meth:`~transports.realtime.config.SessionConfig.updated`."""
    data = fields.as_object(patch, "session")
    if data.get("type") is None:
        raise missing("session.type")
    kind = fields.as_one_of(data["type"], "session.type", SESSION_KINDS)
    if kind != now.type and not first:
        raise wrong_value("session.type", f"'{now.type}', as it can't be changed any more", kind)
    fields.only_known(data, "session", _COMMON if kind == "transcription" else (*_COMMON, *_SPOKEN), _BETA)
    changes = _changes(data, now.wire())
    changes.pop("type", None)
    config = replace(now, type=kind)
    if kind == "transcription" and config.transcription is None:
        config = replace(config, transcription=Transcription())
    for key in sorted(changes, key=_order):
        config = _set(config, key, changes[key], first)
    if audio_made and config.voice != now.voice:
        raise RealtimeError(
            "The voice can't be changed once the agent has spoken.",
            code="cannot_update_voice",
            param="session.audio.output.voice",
        )
    return config


def _order(key: str) -> tuple[bool, str]:
    """``tool_choice`` names one of the new ``tools``."""
    return key == "tool_choice", key


def _changes(patch: Mapping[str, object], in_force: Mapping[str, object]) -> dict[str, object]:
    """What ``patch`` says that isn't so already."""
    changes: dict[str, object] = {}
    for key, value in patch.items():
        now = in_force.get(key)
        if key in _MERGED and isinstance(value, dict) and isinstance(now, dict):
            if key != "turn_detection" or value.get("type", now["type"]) == now["type"]:
                value = _changes(value, now)
            changes[key] = value
        elif key not in in_force or type(value) is not type(now) or value != now:
            changes[key] = value
    return changes


def _set(config: SessionConfig, key: str, value: object, first: bool) -> SessionConfig:
    """One key of the ``session`` object."""
    param = f"session.{key}"
    match key:
        case "audio":
            return _set_audio(config, value)
        case "instructions":
            if value is not None:
                value = fields.as_text(value, param, most=INSTRUCTIONS_CHARS)
            return replace(config, instructions=value)
        case "output_modalities":
            return replace(config, modality=read_modality(value, param))
        case "tools":
            tools = read_tools(value, param, config.agent.tools)
            choice = config.tool_choice
            gone = choice in {tool.name for tool in config.tools} and choice not in {t.name for t in tools}
            return replace(config, tools=tools, tool_choice=None if gone else choice)
        case "tool_choice":
            names = {tool.name for tool in config.tools} | config.agent.tools
            choice = None if value is None else read_tool_choice(value, param, names)
            return replace(config, tool_choice=choice)
        case "max_output_tokens":
            return replace(config, max_tokens=read_max_output_tokens(value, param))
        case "model":
            return replace(config, model=_read_model(config, value, param, first))
    if key in _OWNED:
        if value is not None:
            raise RealtimeError(f"'{param}' is set by the server; leave it out.", param=param)
    else:
        check_ignored(key, value, param)
    return config


def _read_model(config: SessionConfig, value: object, param: str, first: bool) -> str:
    if value is None:
        return config.model
    name = fields.as_text(value, param, most=256, least=1)
    if name != config.model and not first:
        raise wrong_value(param, f"'{config.model}', as the model can't be changed in a session", name)
    return name


def _set_audio(config: SessionConfig, value: object) -> SessionConfig:
    sides: dict[str, Mapping[str, Callable[[SessionConfig, object, str], dict[str, Any]]]]
    sides = {"input": _INPUT, "output": _OUTPUT} if config.type == "realtime" else {"input": _INPUT}
    if value is None:
        return config
    data = fields.as_object(value, "session.audio")
    fields.only_known(data, "session.audio", tuple(sides))
    for side, part in data.items():
        if part is None:
            continue
        param = f"session.audio.{side}"
        settings = fields.as_object(part, param)
        fields.only_known(settings, param, sides[side])
        for key, setting in settings.items():
            config = replace(config, **sides[side][key](config, setting, f"{param}.{key}"))
    return config


# ---------------------------------------------------------------- one reader for each setting of audio


def _input_format(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
    return {"input_type": read_format(value, param)}


def _turn_detection(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
    return {"turn_detection": updated_turn_detection(config.turn_detection, value, param)}


def _transcription(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
    if value is None:
        if config.type == "transcription":
            raise wrong_value(param, "an object, as the session is for transcription", value)
        return {"transcription": None}
    now = config.transcription or Transcription()
    return {"transcription": now.updated(value, param, config.agent)}


def _voice(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
    return {"voice": config.agent.read_voice(value, param)}


def _output_format(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
    return {"output_type": read_format(value, param)}


def _ignored(key: str) -> Callable[[SessionConfig, object, str], dict[str, Any]]:
    def check(config: SessionConfig, value: object, param: str) -> dict[str, Any]:
        check_ignored(key, value, param)
        return {}

    return check


_INPUT = MappingProxyType(
    {
        "format": _input_format,
        "turn_detection": _turn_detection,
        "transcription": _transcription,
        "noise_reduction": _ignored("noise_reduction"),
    }
)
_OUTPUT = MappingProxyType({"format": _output_format, "voice": _voice, "speed": _ignored("speed")})

"""Real-time voice agents. What a user of the library needs is here; engines are in ``stages``, ways in and out in
``transports``.

Names are loaded when they are first used, so that ``import voice`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voice.agent import Agent, load_agent
    from voice.audio import AudioFormat
    from voice.chat import Chat
    from voice.errors import (
        BadAudio,
        BadRequest,
        DeadlineExceeded,
        EngineFailed,
        ModelMissing,
        Overloaded,
        ProtocolError,
        VoiceError,
    )
    from voice.interfaces import Capabilities, Stages
    from voice.options import Limits, SpeechOptions, TurnOptions
    from voice.scope import Scope
    from voice.session import Session
    from voice.tools import ToolContext, tool

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "load_agent": "agent",
    "AudioFormat": "audio",
    "Chat": "chat",
    "BadAudio": "errors",
    "BadRequest": "errors",
    "DeadlineExceeded": "errors",
    "EngineFailed": "errors",
    "ModelMissing": "errors",
    "Overloaded": "errors",
    "ProtocolError": "errors",
    "VoiceError": "errors",
    "Capabilities": "interfaces",
    "Stages": "interfaces",
    "Limits": "options",
    "SpeechOptions": "options",
    "TurnOptions": "options",
    "Scope": "scope",
    "Session": "session",
    "ToolContext": "tools",
    "tool": "tools",
}

__all__ = [
    "Agent",
    "AudioFormat",
    "BadAudio",
    "BadRequest",
    "Capabilities",
    "Chat",
    "DeadlineExceeded",
    "EngineFailed",
    "Limits",
    "ModelMissing",
    "Overloaded",
    "ProtocolError",
    "Scope",
    "Session",
    "SpeechOptions",
    "Stages",
    "ToolContext",
    "TurnOptions",
    "VoiceError",
    "load_agent",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'voice' has no attribute {name!r}")
    return getattr(importlib.import_module(f"voice.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

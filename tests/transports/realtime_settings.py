"""Settings of a Realtime client for tests: all that it can say, and short ways to say it."""

from __future__ import annotations

from typing import Any

import pytest
from talk import make_agent

from transports.realtime.config import SessionConfig
from transports.realtime.errors import RealtimeError
from voice.agent import Agent

TOOL = {
    "type": "function",
    "name": "book",
    "description": "Book a table.",
    "parameters": {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]},
}
FULL: dict[str, Any] = {
    "type": "realtime",
    "model": "gpt-realtime",
    "instructions": "Talk like a pirate.",
    "output_modalities": ["text"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcmu"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.7,
                "prefix_padding_ms": 200,
                "silence_duration_ms": 700,
                "idle_timeout_ms": 6000,
                "create_response": False,
                "interrupt_response": False,
            },
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1", "language": "en", "prompt": "names", "keywords": ["Zoë"]},
        },
        "output": {"format": {"type": "audio/pcma"}, "voice": "bob", "speed": 1.2},
    },
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "book"},
    "max_output_tokens": 300,
    "truncation": {
        "type": "retention_ratio",
        "retention_ratio": 0.8,
        "token_limits": {"post_instructions": 100},
    },
    "tracing": {"workflow_name": "test"},
    "prompt": None,
    "include": ["item.input_audio_transcription.logprobs"],
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low"},
}


def config(agent: Agent | None = None, **patch: Any) -> SessionConfig:
    """The session of a fresh client, after a first update with ``patch`` if there is one."""
    made = SessionConfig.of(
        agent or make_agent(), session_id="sess_1", model="gpt-realtime", expires_at=1_900_000_000
    )
    return made.updated({"type": "realtime", **patch}, first=True) if patch else made


def hearing(**settings: Any) -> dict[str, Any]:
    return {"audio": {"input": settings}}


def refused(patch: Any, *, on: SessionConfig | None = None, **how: Any) -> RealtimeError:
    with pytest.raises(RealtimeError) as caught:
        (on or config()).updated(patch, **how)
    return caught.value


def refused_response(patch: Any, *, on: SessionConfig | None = None) -> RealtimeError:
    with pytest.raises(RealtimeError) as caught:
        (on or config()).response_request(patch)
    return caught.value

"""Any JSON a client may send: wild values, and values that look almost right because they use the protocol's words."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

WORDS = (
    "type", "realtime", "transcription", "session", "audio", "input", "output", "format", "audio/pcm", "rate", "voice",
    "id", "item", "message", "role", "user", "assistant", "system", "content", "input_text", "input_audio", "text",
    "input_image", "image_url", "data:image/png;base64,iVBORw0KGgo=", "transcript", "function", "function_call",
    "function_call_output", "call_id", "name", "arguments", "output_text", "output_audio", "item_reference",
    "conversation", "none", "auto", "required", "tools", "tool_choice", "parameters", "description", "metadata",
    "turn_detection", "server_vad", "semantic_vad", "threshold", "silence_duration_ms", "prefix_padding_ms",
    "idle_timeout_ms", "eagerness", "high", "create_response", "interrupt_response", "noise_reduction", "near_field",
    "language", "en", "prompt", "keywords", "languages", "model", "instructions", "output_modalities", "inf",
    "max_output_tokens", "speed", "truncation", "retention_ratio", "tracing", "include", "reasoning", "effort",
    "expires_at", "object", "status", "completed", "event_id", "previous_item_id", "root", "session.update",
    "response.create", "response", "conversation.item.create", "conversation.item.truncate", "item_id",
    "content_index", "audio_end_ms", "input_audio_buffer.append", "modalities", "temperature", "mcp",
)  # fmt: skip

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
"""Lone surrogates and control characters included, as ``json.loads`` gives them."""
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from((0, 1, -1, 24_000, 8_000, 2**63, 10**400, 1e308, 24_000.0)),
    st.floats(allow_nan=True, allow_infinity=True),
    ANY_TEXT,
    st.sampled_from(WORDS),
)
KEYS = st.one_of(st.sampled_from(WORDS), ANY_TEXT)


def _nest(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(children, max_size=4), st.dictionaries(KEYS, children, max_size=5))


ANY_JSON: st.SearchStrategy[Any] = st.recursive(LEAVES, _nest, max_leaves=12)


def nested(depth: int) -> Any:
    """Objects within lists, ``depth`` levels deep."""
    value: Any = None
    for _ in range(depth):
        value = [{"type": value}]
    return value


@st.composite
def spoilt(draw: st.DrawFn, valid: Any) -> Any:
    """``valid`` with one to three of its places replaced by any JSON, removed, or given another key."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(_places(value)) or [None]))
        if where is None:
            return draw(ANY_JSON)
        holder, key = where
        match draw(st.sampled_from(("replace", "replace", "remove", "add"))):
            case "replace":
                holder[key] = draw(ANY_JSON)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(KEYS)] = draw(ANY_JSON)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) in ``value``."""
    found: list[tuple[Any, Any]] = []
    pairs: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, part in pairs:
        found.append((value, key))
        found.extend(_places(part))
    return found

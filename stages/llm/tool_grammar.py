"""How does a model that knows no tools call one? A JSON schema, enforced as a grammar, leaves it no other
answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from voice.errors import EngineFailed
from voice.interfaces import Message, Prompt, TextPart, ToolCall, ToolSpec

_ids = itertools.count(1)


def forced_call_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The schema of a call of one of ``tools``: ``{"name": …, "arguments": {…}}``."""
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for tool in tools:
        parameters = {"type": "object", **tool.parameters}
        definitions |= parameters.pop("$defs", {})  # references count from the root
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def forced_call_message(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """What tells the model what to call. It goes last, so that the prompt before it stays cached."""
    lines = [
        f"{t.name}({', '.join(t.parameters.get('properties', {}))}): {t.description}".strip() for t in tools
    ]
    text = "Answer the user's last message by calling a tool, as JSON with name and arguments. Tools:\n"
    return {"role": "system", "content": text + "\n".join(lines)}


def read_forced_call(written: str, source: str) -> ToolCall:
    """The call in the JSON that the model has written.

    Raises:
        EngineFailed: It is not whole (the answer's ``max_tokens`` cut it).
    """
    try:
        call = json.loads(written)
        name, arguments = str(call["name"]), call["arguments"]
    except (ValueError, KeyError, TypeError):
        raise EngineFailed(
            f"{source} did not finish its tool call within max_tokens: {written[:80]!r}"
        ) from None
    return ToolCall(f"call_local_{next(_ids)}", name, json.dumps(arguments, ensure_ascii=False))


def without_tools(prompt: Prompt) -> Prompt:
    """The same conversation for a chat template without tools: earlier results become plain messages."""
    messages: list[Message] = []
    for message in prompt.messages:
        if message.role == "tool":
            messages.append(Message("system", (TextPart(f"Tool result: {message.text}"),)))
        elif message.tool_calls:
            if message.text:
                messages.append(Message("assistant", (TextPart(message.text),)))
        else:
            messages.append(message)
    return Prompt(tuple(messages), (), replace(prompt.options, tool_choice="auto"))

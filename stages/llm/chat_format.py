"""How does a prompt look as OpenAI chat JSON? Prompt → request body, and what a server's error JSON says.

Shared by every engine that takes this format, over HTTP or in process; :mod:`stages.llm.chat_chunks` reads
the answers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from voice.errors import BadRequest
from voice.interfaces import (
    ContentPart,
    Message,
    Prompt,
    TextPart,
    ToolSpec,
)

Json: TypeAlias = dict[str, Any]

ERROR_CHARS = 300
"""How much of a server's own words an error repeats."""
RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
"""Answers below 500 after which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which optional fields of a request a server takes.

    Attributes:
        name: Of the server or family.
        max_tokens_field: What it calls the longest answer.
        stream_options: It takes ``stream_options`` (asks for token counts).
        cache_prompt: It takes llama-server's ``cache_prompt`` (asks for the prefix cache).
        extra: Fields that go with every request; a prompt's own ``options.extra`` win over them.
    """

    name: str = "generic"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_options: bool = True
    cache_prompt: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


GENERIC = Dialect()

_RESERVED = frozenset({"messages", "stream", "model", "tools"})


def request_body(prompt: Prompt, model: str | None, dialect: Dialect = GENERIC) -> Json:
    """The body of ``POST /v1/chat/completions`` for a streamed answer to ``prompt``.

    Raises:
        BadRequest: ``tool_choice`` names a tool that isn't offered, or ``options.extra`` holds a field of
            ours.
    """
    options = prompt.options
    if taken := _RESERVED.intersection(options.extra):
        raise BadRequest(f"options.extra can't set {', '.join(sorted(taken))}: the prompt decides that")
    body: Json = {"messages": [message_json(m) for m in prompt.messages], "stream": True}
    if model is not None:
        body["model"] = model
    if options.max_tokens is not None:
        body[dialect.max_tokens_field] = options.max_tokens
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.stop:
        body["stop"] = list(options.stop)
    if dialect.stream_options:
        body["stream_options"] = {"include_usage": True}
    if dialect.cache_prompt:
        body["cache_prompt"] = True
    if prompt.tools:
        body["tools"] = [_tool_json(t) for t in prompt.tools]
        body["tool_choice"] = _tool_choice(options.tool_choice, prompt.tools)
    elif options.tool_choice not in ("auto", "none"):
        raise BadRequest(f"tool_choice is {options.tool_choice!r}, but the prompt offers no tools")
    return body | dict(dialect.extra) | dict(options.extra)


def chosen_tools(prompt: Prompt) -> tuple[ToolSpec, ...]:
    """The tools of which the answer has to call one; empty when it may answer in words.

    Raises:
        BadRequest: ``tool_choice`` names a tool that isn't offered.
    """
    choice = prompt.options.tool_choice
    if choice in ("auto", "none"):
        return ()
    chosen = prompt.tools if choice == "required" else tuple(t for t in prompt.tools if t.name == choice)
    if not chosen:
        offered = ", ".join(t.name for t in prompt.tools) or "none"
        raise BadRequest(f"tool_choice is {choice!r}, but the tools offered are: {offered}")
    return chosen


def message_json(message: Message) -> Json:
    """One message. Text alone goes as a string, which all servers take; pictures make it a list of parts."""
    content: str | list[Json] | None
    if all(isinstance(part, TextPart) for part in message.content):
        content = message.text
    else:
        content = [_part_json(part) for part in message.content]
    body: Json = {"role": message.role, "content": content}
    if message.tool_calls:
        body["content"] = content or None
        body["tool_calls"] = [
            {
                "id": c.call_id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments or "{}"},
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def _part_json(part: ContentPart) -> Json:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.data).decode("ascii")
    url = f"data:{part.media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url, "detail": part.detail}}


def _tool_json(tool: ToolSpec) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _tool_choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | Json:
    if choice in ("auto", "none", "required"):
        return choice
    if all(t.name != choice for t in tools):
        offered = ", ".join(t.name for t in tools)
        raise BadRequest(f"tool_choice is {choice!r}, but the tools offered are: {offered}")
    return {"type": "function", "function": {"name": choice}}


def retryable_status(status: int) -> bool:
    """Whether the same request may succeed after this HTTP status."""
    return status >= 500 or status in RETRYABLE_STATUS


def error_sentence(error: object) -> str:
    """What a server said went wrong, in its own words, on one line: from any usual shape of error JSON."""
    found = error
    for key in ("error", "message", "detail", "msg"):
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, Mapping) and found.get(key):
            found = found[key]
    words = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
    return " ".join(words.split())[:ERROR_CHARS]

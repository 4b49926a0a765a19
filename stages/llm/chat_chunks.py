"""What does a streamed answer say? Chunks of OpenAI chat JSON → model events.

Reading is tolerant, because servers differ: unknown fields are ignored, and what is missing is filled in
where only one meaning is possible.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.llm.chat_format import error_sentence, retryable_status
from voice.errors import EngineFailed
from voice.interfaces import Finished, ModelEvent, TextDelta, ToolCall, ToolCallDelta, Usage

MAX_TOOL_CALLS = 128
"""Most tool calls of one answer (the limit of OpenAI's parallel calls)."""
MAX_ARGUMENTS_CHARS = 1 << 20
"""Longest arguments of all tool calls of one answer together."""

_made_ids = itertools.count(1)


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str = ""
    arguments: str = ""
    shown: int = 0  # how many characters of the arguments have left as deltas


class ChunkReader:
    """Turns the chunks of one streamed answer into model events. Only the first choice is read.

    Args:
        source: Who sends the chunks, for errors: ``"the model server at host:port"``.

    Attributes:
        progress: Counts the chunks that brought something new: text, reasoning, a tool call, the end.
            Role-only and keep-alive chunks don't count.
        finished: The model said that it has ended.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.progress = 0
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._answer_id = ""
        self._arguments_chars = 0

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def feed(self, chunk: object) -> list[ModelEvent]:
        """Read one decoded chunk.

        Raises:
            EngineFailed: It reports an error, or isn't a chunk.
        """
        if not isinstance(chunk, Mapping):
            raise EngineFailed(f"{self.source} sent something that is not a chat chunk: {str(chunk)[:80]!r}")
        if error := chunk.get("error") or (chunk.get("object") == "error" and chunk):
            raise self._failure(error)
        if isinstance(chunk.get("id"), str):
            self._answer_id = chunk["id"]
        if isinstance(usage := chunk.get("usage"), Mapping):
            self._usage = _usage(usage)
        events: list[ModelEvent] = []
        for choice in chunk.get("choices") or ():
            if isinstance(choice, Mapping) and not choice.get("index"):
                self._read_choice(choice, events)
        return events

    def close(self, *, said_done: bool = False) -> list[ModelEvent]:
        """The stream is over; gives the finished tool calls, ``Usage`` if it is known, and ``Finished``.

        Args:
            said_done: The server marked the end of the stream itself (``[DONE]``), so that a missing finish
                reason is only an omission.

        Raises:
            EngineFailed: The stream broke off before the answer was complete.
        """
        if self._finish is None and not said_done:
            raise EngineFailed(f"{self.source} failed in mid answer: the stream ended early")
        events: list[ModelEvent] = [self._finished_call(call) for call in self._calls]
        reason = self._finish or "stop"
        if self._calls and reason == "stop":
            reason = "tool_calls"
        if self._usage is not None:
            events.append(self._usage)
        return [*events, Finished(reason)]

    def _failure(self, error: object) -> EngineFailed:
        code = error.get("code") if isinstance(error, Mapping) else None
        retryable = retryable_status(code) if isinstance(code, int) else True
        return EngineFailed(f"{self.source} failed: {error_sentence(error)}", retryable=retryable)

    def _read_choice(self, choice: Mapping[str, Any], events: list[ModelEvent]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, Mapping):
            raise EngineFailed(f"{self.source} sent a chunk whose delta is {str(delta)[:80]!r}")
        text = _text(delta.get("content"))
        if text:
            events.append(TextDelta(text))
        calls = delta.get("tool_calls") or ()
        for call in calls:
            if isinstance(call, Mapping):
                self._read_call(call, events)
        thought = delta.get("reasoning_content") or delta.get("reasoning")  # never spoken, but a sign of life
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._finish = _FINISH.get(reason, "stop")
        if text or calls or thought or reason:
            self.progress += 1

    def _read_call(self, piece: Mapping[str, Any], events: list[ModelEvent]) -> None:
        call = self._call_for(piece)
        function = piece.get("function")
        if not isinstance(function, Mapping):
            return
        if not call.name and isinstance(name := function.get("name"), str):
            call.name = name
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):  # some servers send the object instead of its text
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str):
            call.arguments += arguments
            self._arguments_chars += len(arguments)
        if self._arguments_chars > MAX_ARGUMENTS_CHARS:
            raise EngineFailed(
                f"{self.source} sent more than {MAX_ARGUMENTS_CHARS} characters of tool arguments",
                retryable=False,
            )
        if call.name and len(call.arguments) > call.shown:
            events.append(ToolCallDelta(call.call_id, call.name, call.arguments[call.shown :]))
            call.shown = len(call.arguments)

    def _call_for(self, piece: Mapping[str, Any]) -> _Call:
        """The call that a piece continues: by its index; without one, a new id begins a new call."""
        given, index = piece.get("id"), piece.get("index")
        if not isinstance(index, int):
            last = len(self._calls) - 1
            new = bool(given) and (last < 0 or self._calls[last].call_id != given)
            index = last + 1 if new or last < 0 else last
        call = self._by_index.get(index)
        if call is None:
            if len(self._calls) >= MAX_TOOL_CALLS:
                raise EngineFailed(
                    f"{self.source} asked for more than {MAX_TOOL_CALLS} tool calls", retryable=False
                )
            call = _Call(str(given) if given else self._make_id(index))
            self._by_index[index] = call
            self._calls.append(call)
        return call

    def _make_id(self, index: int) -> str:
        return f"call_{self._answer_id or next(_made_ids)}_{index}"

    def _finished_call(self, call: _Call) -> ToolCall:
        if not call.name:
            raise EngineFailed(f"{self.source} asked for a tool without naming it")
        return ToolCall(call.call_id, call.name, call.arguments or "{}")


_FINISH = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def _text(content: object) -> str:
    """The text of a delta: a string, nothing, or (rarely) a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            p["text"] for p in content if isinstance(p, Mapping) and isinstance(p.get("text"), str)
        )
    return ""


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(cached),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0

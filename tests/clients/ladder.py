"""Does one response climb its rungs in order, from response.created to response.done?

The rungs are those of the recorded sequences: item, part, deltas, and the close-out from the inside out, cancelled
or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Event: TypeAlias = Mapping[str, Any]

_REASONS: dict[str, set[str | None]] = {
    "completed": {None},
    "cancelled": {"turn_detected", "client_cancelled"},
    "incomplete": {"max_output_tokens", "content_filter"},
    "failed": {None},
}
"""A final status and the reasons its details may give."""

_DELTAS = ("response.output_audio.", "response.output_audio_transcript.", "response.output_text.")
_AUDIO_CLOSE = ("response.output_audio.done", "response.output_audio_transcript.done")
_TEXT_CLOSE = ("response.output_text.done",)


def null_fields(value: Any, path: str = "item") -> Iterator[str]:
    """Where an item holds nulls that stock clients refuse; a transcript to come may be null."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from null_fields(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from null_fields(inner, f"{path}[{index}]")
    elif value is None and not path.endswith(".transcript"):
        yield path


class _Output:
    """One output item of a response: a message with one part, or a function call."""

    def __init__(self, item: Event, index: int, in_conversation: bool) -> None:
        self.item, self.index = item, index
        self.id = item.get("id")
        self.is_call = item.get("type") == "function_call"
        self.rung = "output_item.added"
        self.needs_adding = in_conversation
        self.part = ""
        self.text: dict[str, str] = {}
        self.closed: list[str] = []
        self.final: Event | None = None


class Ladder:
    """The events of one response.

    Attributes:
        response_id: Its id.
        in_conversation: Not made out of band: its items enter the conversation.
        done: ``response.done`` has come.
        interrupted: The user spoke over it, and its settings say that this ends it.
    """

    def __init__(self, response: Event) -> None:
        self.response_id = str(response.get("id"))
        self.in_conversation = response.get("conversation_id") is not None
        self.done = self.interrupted = False
        self._outputs: list[_Output] = []

    def owns(self, item_id: str) -> bool:
        """Whether it announced the item."""
        return any(output.id == item_id for output in self._outputs)

    def take(self, kind: str, event: Event) -> list[str]:
        """Check its next event; returns what is wrong with it."""
        return list(self._take(kind, event))

    def _take(self, kind: str, event: Event) -> Iterator[str]:
        if self.done:
            yield f"{self.response_id} was done"
        if kind == "response.created":
            yield from self._check_created(event.get("response", {}))
        elif kind == "response.done":
            self.done = True
            yield from self._check_done(event.get("response", {}))
        elif kind == "response.output_item.added":
            yield from self._open(event)
        else:
            item_id = event.get("item_id") or event.get("item", {}).get("id")
            output = next((one for one in self._outputs if one.id == item_id), None)
            if output is None:
                yield f"item {item_id} is none of {self.response_id}"
            else:
                yield from self._about(output, kind, event)

    def _check_created(self, response: Event) -> Iterator[str]:
        if response.get("status") != "in_progress" or response.get("output"):
            yield "a response begins in progress and without output"
        if response.get("object") != "realtime.response":
            yield "its object is realtime.response"

    def _open(self, event: Event) -> Iterator[str]:
        item, index = event.get("item", {}), event.get("output_index")
        for other in self._outputs:  # a call may come while the words before it are being spoken
            if other.rung != "output_item.done" and (other.is_call or item.get("type") != "function_call"):
                yield f"{other.id} is still open"
        if index != len(self._outputs):
            yield f"output_index is {index}, {len(self._outputs)} is next"
        if item.get("status") != "in_progress":
            yield "an item that begins is in progress"
        if item.get("type") == "function_call":
            if not item.get("call_id") or not item.get("name") or item.get("arguments") != "":
                yield "a call begins with its name, its call_id and empty arguments"
        elif item.get("role") != "assistant" or item.get("content") != []:
            yield "a message begins as the assistant's and empty"
        for path in null_fields(item):
            yield f"{path} is null; clients want it left out"
        self._outputs.append(_Output(item, len(self._outputs), self.in_conversation))

    def _about(self, output: _Output, kind: str, event: Event) -> Iterator[str]:
        if kind == "conversation.item.added":
            if output.rung != "output_item.added" or not output.needs_adding:
                yield "an item enters the conversation right after output_item.added"
            output.needs_adding = False
            return
        if output.needs_adding:
            yield "the item has not entered the conversation"
            output.needs_adding = False
        yield from self._check_ids(output, kind, event)
        if kind == "conversation.item.done":
            yield from self._climb(output, "item.done", "part.done")
            output.final = event.get("item", {})
        elif kind == "response.output_item.done":
            yield from self._climb(output, "output_item.done", "item.done", skip=not self.in_conversation)
            yield from self._check_final(output, event.get("item", {}))
        elif kind.startswith("response.function_call_arguments."):
            yield from self._arguments(output, kind, event)
        else:
            yield from self._part(output, kind, event)

    def _climb(self, output: _Output, to: str, after: str, skip: bool = False) -> Iterator[str]:
        allowed = {after, "part.done"} if skip else {after}
        if to == "item.done" or skip:
            # what is cut before its first part closes without one
            allowed.add("output_item.added")
        if output.rung not in allowed:
            yield f"it comes after {' or '.join(sorted(allowed))}, not after {output.rung}"
        output.rung = to

    def _check_ids(self, output: _Output, kind: str, event: Event) -> Iterator[str]:
        if kind.startswith("conversation."):
            return
        if event.get("output_index") != output.index:
            yield f"output_index is {event.get('output_index')}, the item's is {output.index}"
        has_part = "content_part" in kind or kind.startswith(_DELTAS)
        if has_part and (event.get("content_index") != 0 or not event.get("item_id")):
            yield "response_id, item_id, output_index and content_index are always there"

    def _part(self, output: _Output, kind: str, event: Event) -> Iterator[str]:
        if kind == "response.content_part.added":
            part = event.get("part", {})
            if output.rung != "output_item.added" or output.is_call:
                yield f"a part can't begin after {output.rung}"
            if part.get("type") not in ("audio", "text") or part.get("transcript") or part.get("text"):
                yield "a part begins empty, as audio or text"
            output.part, output.rung = str(part.get("type")), "part.added"
        elif kind == "response.content_part.done":
            wanted = list(_AUDIO_CLOSE if output.part == "audio" else _TEXT_CLOSE)
            if output.rung != "part.added" or output.closed != wanted:
                yield f"before it come {' and '.join(wanted)}, not {output.closed or output.rung}"
            output.rung = "part.done"
            yield from self._check_text(output, event.get("part", {}))
        elif kind.startswith(_DELTAS):
            yield from self._content(output, kind, event)
        else:
            yield "not an event of a response"

    def _content(self, output: _Output, kind: str, event: Event) -> Iterator[str]:
        name, end = kind.rsplit(".", 1)
        of_audio = name != "response.output_text"
        if output.rung != "part.added" or of_audio != (output.part == "audio"):
            yield f"the item has no open part for it ({output.part or output.rung})"
        if end == "delta":
            if self.interrupted:
                yield "the user had interrupted it: nothing more may come"
            if output.closed:
                yield f"{output.closed[-1]} had come"
            output.text[name] = output.text.get(name, "") + event.get("delta", "")
            return
        output.closed.append(kind)
        whole = event.get("transcript", event.get("text"))
        if name != "response.output_audio" and output.text.get(name, "") != whole:
            yield f"the deltas make {output.text.get(name, '')!r}, the whole is {whole!r}"

    def _arguments(self, output: _Output, kind: str, event: Event) -> Iterator[str]:
        if not output.is_call or output.rung != "output_item.added":
            yield f"the item takes no arguments after {output.rung}"
        if event.get("call_id") != output.item.get("call_id"):
            yield f"call_id is {event.get('call_id')}, the item's is {output.item.get('call_id')}"
        name = "arguments"
        if kind.endswith(".delta"):
            output.text[name] = output.text.get(name, "") + event.get("delta", "")
            return
        output.rung = "part.done"
        output.closed.append(kind)
        if output.text.get(name, "") != event.get("arguments"):
            yield f"the deltas make {output.text.get(name, '')!r}, the whole is {event.get('arguments')!r}"
        if event.get("name", output.item.get("name")) != output.item.get("name"):
            yield "its name is not the item's"

    def _check_text(self, output: _Output, part: Event) -> Iterator[str]:
        key, name = ("transcript", "output_audio_transcript") if output.part == "audio" else ("text",) * 2
        name = "response.output_text" if output.part == "text" else f"response.{name}"
        said = output.text.get(name, "")
        if part.get("type") != output.part or part.get(key, "") != said:
            yield f"the part holds {part.get(key)!r}, the deltas made {said!r}"

    def _check_final(self, output: _Output, item: Event) -> Iterator[str]:
        if item.get("status") not in ("completed", "incomplete"):
            yield "an item that is done is completed or incomplete"
        if item.get("status") == "completed" and not output.closed:
            yield "it is completed, and the end of its content was never told"
        if output.final is not None and item != output.final:
            yield "the item is not the one of conversation.item.done"
        if output.is_call and item.get("arguments") != output.text.get("arguments", ""):
            yield "its arguments are not those that came"
        for path in null_fields(item):
            yield f"{path} is null; clients want it left out"
        output.final = item

    def _check_done(self, response: Event) -> Iterator[str]:
        for output in self._outputs:
            if output.rung != "output_item.done":
                yield f"{output.id} is still open"
        if [item.get("id") for item in response.get("output") or ()] != [one.id for one in self._outputs]:
            yield "its output is not the items that were announced"
        elif any(item != one.final for item, one in zip(response["output"], self._outputs, strict=True)):
            yield "its output is not what the items were when done"
        status, details = response.get("status"), response.get("status_details") or {}
        reason = details.get("reason")
        if status not in _REASONS:
            yield f"its status can't be {status!r}"
        elif reason not in _REASONS[status] or (status == "completed") != (not details):
            yield f"status_details {details!r} do not go with {status}"
        if self.interrupted and (status, reason) != ("cancelled", "turn_detected"):
            yield f"the user interrupted it: it is cancelled by turn_detected, not {status} {reason or ''}"
        yield from self._check_usage(response.get("usage"), status)

    @staticmethod
    def _check_usage(usage: Event | None, status: str | None) -> Iterator[str]:
        if usage is None:
            if status == "completed":
                yield "a completed response has its usage"
        elif usage.get("total_tokens") != usage.get("input_tokens", 0) + usage.get("output_tokens", 0):
            yield "its tokens do not add up"

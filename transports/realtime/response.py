"""How is one response told to the client? Its items and parts, opened and closed in the documented order."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace

from transports.realtime.conversation import Conversation, Placed
from transports.realtime.events import encode, new_id
from transports.realtime.items import Item, OutputAudio, OutputText, Status, wire_item
from transports.realtime.response_request import ResponseRequest
from transports.realtime.settings import FORMATS, wire_format
from voice.interfaces import ToolCall, Usage

_KINDS = {audio_format: kind for kind, audio_format in FORMATS.items()}
_DELTA_CHARS = 8_000
"""Longest piece of text or arguments in one event: a data channel takes 60 KiB, JSON escapes included."""


@dataclass(slots=True)
class _Output:
    """One output item: a message, or a call of one of the client's functions."""

    placed: Placed
    index: int
    previous: str | None = None  # the item before it in the conversation
    text: str = ""
    open: bool = True
    delta_prefix: str = ""  # of audio events, all but their id and data


class WireResponse:
    """One response on the wire.

    Args:
        response_id: The session's name for the answer.
        item_id: The session's name for what it says.
        request: What was asked for.
        send: Takes an event's text.
        conversation: Where its items go; ``None``: nowhere (out of band).
        conversation_id: As the protocol names it.

    Attributes:
        done: ``response.done`` was sent; the ear may still be behind.
        message: What it says, once there is any of it.
    """

    def __init__(
        self,
        response_id: str,
        item_id: str,
        request: ResponseRequest,
        send: Callable[[str], None],
        conversation: Conversation | None,
        conversation_id: str,
    ) -> None:
        self.response_id, self.item_id, self.request = response_id, item_id, request
        self.done = False
        self.message: Placed | None = None
        self.audible = False  # the ear hears it; for transports that play it themselves
        self.usage = Usage()
        self.model_finish: str | None = None
        self.error: str | None = None
        self._send, self._conversation, self._conversation_id = send, conversation, conversation_id
        self._outputs: list[_Output] = []
        self._said: _Output | None = None
        self._calling: _Output | None = None  # the call that is being written
        self._next_calls: dict[str, tuple[str, str]] = {}  # name and arguments of those that wait for its end

    @property
    def in_conversation(self) -> bool:
        return self._conversation is not None

    def _emit(self, kind: str, **fields: object) -> None:
        self._send(encode({"type": kind, "event_id": new_id("event"), **fields}))

    # ------------------------------------------------------------ begin

    def begin(self) -> None:
        """Announce it."""
        self._emit("response.created", response=self._wire("in_progress", None))

    def _open(self, item: Item) -> _Output:
        placed = Placed(item, response_id=self.response_id)
        output = _Output(placed, len(self._outputs))
        self._outputs.append(output)
        self._emit(
            "response.output_item.added",
            response_id=self.response_id,
            output_index=output.index,
            item=wire_item(item),
        )
        if self._conversation is not None:
            output.previous = self._conversation.add(placed)
            self._emit("conversation.item.added", previous_item_id=output.previous, item=wire_item(item))
        return output

    def _message(self) -> _Output:
        if self._said is None:
            item = Item(self.item_id, "message", "in_progress", "assistant")
            self._said = output = self._open(item)
            self.message = output.placed
            spoken = self.request.modality == "audio"
            part = {"type": "audio", "transcript": ""} if spoken else {"type": "text", "text": ""}
            self._emit("response.content_part.added", **self._at(output), part=part)
            place = encode(self._at(output))[1:-1]
            output.delta_prefix = f'{{"type":"response.output_audio.delta",{place},"event_id":"'
        return self._said

    def _at(self, output: _Output) -> dict[str, object]:
        return {
            "response_id": self.response_id,
            "item_id": output.placed.item.id,
            "output_index": output.index,
            "content_index": 0,
        }

    # ------------------------------------------------------------ more of it

    def add_text(self, text: str) -> None:
        """More of what it says, as it was written."""
        output = self._message()
        output.text += text
        kind = "response.output_text.delta"
        if self.request.modality == "audio":
            kind = "response.output_audio_transcript.delta"
        for start in range(0, len(text), _DELTA_CHARS):
            self._emit(kind, **self._at(output), delta=text[start : start + _DELTA_CHARS])

    def audio(self, data: bytes, ms: float) -> str:
        """The event with more of its sound, coded as the client wants it; ``ms`` is its length."""
        output = self._message()
        output.placed.made_ms += ms
        return f'{output.delta_prefix}{new_id("event")}","delta":"{b64encode(data).decode()}"}}'

    def add_arguments(self, call_id: str, name: str, delta: str) -> None:
        """More of the arguments of a call of one of the client's functions. Calls are shown one after the other."""
        if self._calling is not None and self._calling.placed.item.call_id != call_id:
            _, written = self._next_calls.get(call_id, (name, ""))
            self._next_calls[call_id] = name, written + delta
            return
        output = self._calling = self._calling or self._open_call(call_id, name)
        output.text += delta
        for start in range(0, len(delta), _DELTA_CHARS):
            self._emit(
                "response.function_call_arguments.delta",
                response_id=self.response_id,
                item_id=output.placed.item.id,
                output_index=output.index,
                call_id=call_id,
                delta=delta[start : start + _DELTA_CHARS],
            )

    def add_call(self, call: ToolCall) -> None:
        """A call is complete: the client may run it. The one being written instead was given up by the model."""
        if self._calling is not None and self._calling.placed.item.call_id != call.call_id:
            self._close_call(self._calling, "incomplete")
        self._next_calls.pop(call.call_id, None)
        written = "" if self._calling is None else self._calling.text
        rest = call.arguments.removeprefix(written) if call.arguments.startswith(written) else ""
        self.add_arguments(call.call_id, call.name, rest)
        assert self._calling is not None
        self._calling.text = call.arguments
        self._close_call(self._calling, "completed")
        for call_id, (name, arguments) in list(self._next_calls.items())[:1]:
            del self._next_calls[call_id]
            self.add_arguments(call_id, name, arguments)

    def _open_call(self, call_id: str, name: str) -> _Output:
        item = Item(new_id("item"), "function_call", "in_progress", call_id=call_id, name=name, arguments="")
        return self._open(item)

    # ------------------------------------------------------------ end

    def finish(self, status: str, details: dict[str, object] | None = None) -> None:
        """Close what is open and end it. ``status`` and ``details`` as in the protocol's table."""
        if self.done:
            return
        if self._calling is not None:  # the model gave it up
            self._close_call(self._calling, "incomplete")
        self.done = True
        whole: Status = "completed" if status == "completed" else "incomplete"
        for output in self._outputs:
            if output.open:
                self._close_message(output, whole)
        self._emit("response.done", response=self._wire(status, details))
        self._emit("rate_limits.updated", rate_limits=[])

    def _close_message(self, output: _Output, status: Status) -> None:
        at, text = self._at(output), output.text
        if self.request.modality == "audio":
            self._emit("response.output_audio.done", **at)
            self._emit("response.output_audio_transcript.done", **at, transcript=text)
            part: dict[str, object] = {"type": "audio", "transcript": text}
            content: OutputAudio | OutputText = OutputAudio(text)
        else:
            self._emit("response.output_text.done", **at, text=text)
            part = {"type": "text", "text": text}
            content = OutputText(text)
        self._emit("response.content_part.done", **at, part=part)
        output.placed.item = replace(output.placed.item, status=status, content=(content,))
        self._close(output)

    def _close_call(self, output: _Output, status: Status) -> None:
        self._calling = None
        item = output.placed.item = replace(output.placed.item, status=status, arguments=output.text)
        if status == "completed":
            self._emit(
                "response.function_call_arguments.done",
                response_id=self.response_id,
                item_id=item.id,
                output_index=output.index,
                call_id=item.call_id,
                name=item.name,
                arguments=output.text,
            )
        self._close(output)

    def _close(self, output: _Output) -> None:
        output.open = False
        item = wire_item(output.placed.item)
        if self._conversation is not None:
            self._emit("conversation.item.done", previous_item_id=output.previous, item=item)
        self._emit(
            "response.output_item.done", response_id=self.response_id, output_index=output.index, item=item
        )

    def _wire(self, status: str, details: dict[str, object] | None) -> dict[str, object]:
        request = self.request
        wire: dict[str, object] = {
            "object": "realtime.response",
            "id": self.response_id,
            "status": status,
            "status_details": details,
            "output": [wire_item(output.placed.item) for output in self._outputs] if self.done else [],
            "output_modalities": [request.modality],
            "max_output_tokens": request.max_output_tokens,
            "audio": {
                "output": {"format": wire_format(_KINDS[request.output_format]), "voice": request.voice}
            },
            "usage": _wire_usage(self.usage) if self.done else None,
            "metadata": request.metadata,
        }
        if self._conversation is not None:
            wire["conversation_id"] = self._conversation_id
        return wire


def _wire_usage(usage: Usage) -> dict[str, object]:
    """Tokens of the language model; a cascade has none of audio."""
    cached = {"text_tokens": usage.cached_tokens, "audio_tokens": 0, "image_tokens": 0}
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_details": cached,
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }

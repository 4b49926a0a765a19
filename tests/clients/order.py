"""Is what a client received a lawful Realtime conversation? Checks plain events against the recorded sequences.

:func:`faults` takes the server events of one connection, oldest first, as dictionaries, and says in sentences what
is out of order, missing, or not as stock clients insist on. It needs nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from clients.ladder import Event, Ladder, null_fields

Wire: TypeAlias = Literal["websocket", "webrtc"]

TYPES = frozenset(
    [
        *("error", "session.created", "session.updated", "rate_limits.updated"),
        *(f"conversation.item.{end}" for end in ("added", "done", "retrieved", "truncated", "deleted")),
        *(
            f"conversation.item.input_audio_transcription.{end}"
            for end in ("delta", "completed", "failed", "segment")
        ),
        *(
            f"input_audio_buffer.{end}"
            for end in ("committed", "cleared", "speech_started", "speech_stopped", "timeout_triggered")
        ),
        "input_audio_buffer.dtmf_event_received",
        *(f"output_audio_buffer.{end}" for end in ("started", "stopped", "cleared")),
        *(f"response.{end}" for end in ("created", "done")),
        *(f"response.{what}.{end}" for what in ("output_item", "content_part") for end in ("added", "done")),
        *(
            f"response.{what}.{end}"
            for what in ("output_audio", "output_audio_transcript", "output_text", "function_call_arguments")
            for end in ("delta", "done")
        ),
    ]
)
"""What a server without remote tools sends: the present names only, none of the beta's."""

MAX_BYTES: dict[Wire, int] = {"websocket": 2**20, "webrtc": 60 * 1024}
"""Pipecat's limit for a message; what a data channel takes from every peer."""


def faults(
    events: Iterable[Event],
    *,
    wire: Wire = "websocket",
    finished: bool = True,
    errors: Collection[str] = (),
    placed: Collection[str] = (),
) -> list[str]:
    """What is wrong with the events of a connection; empty when nothing is.

    Args:
        events: Server events in order of arrival. Audio deltas may be shortened.
        wire: Which transport they came by.
        finished: All responses should have ended, and all spoken items have their words.
        errors: Codes of ``error`` events that were provoked.
        placed: Ids of items that the client made with audio, or at a place of its choice.
    """
    checker = Order(wire, errors, placed)
    for number, event in enumerate(events):
        checker.take(number, event)
    if finished:
        checker.finish()
    return checker.faults


class Order:
    """The state of one connection, as far as the order of its events goes.

    Attributes:
        faults: Sentences, each with the number and type of the event at fault.
    """

    def __init__(self, wire: Wire, errors: Collection[str] = (), placed: Collection[str] = ()) -> None:
        self.faults: list[str] = []
        self._wire = wire
        self._errors, self._placed = errors, placed
        self._where = ""
        self._event_ids: set[str] = set()
        self._session: Mapping[str, Any] | None = None
        self._items: list[str] = []  # the conversation, in order
        self._known: dict[str, Mapping[str, Any]] = {}  # as added
        self._previous: dict[str, str | None] = {}
        self._done: set[str] = set()
        self._speaking: str | None = None  # the user's item between speech_started and speech_stopped
        self._stage: dict[str, str] = {}  # a user's item → the last input event about it
        self._heard: dict[str, str] = {}  # a user's item → transcription deltas so far
        self._transcribed: set[str] = set()
        self._responses: dict[str, Ladder] = {}
        self._playing: dict[str, str] = {}  # response → last output_audio_buffer event

    # ------------------------------------------------------------ each event

    def take(self, number: int, event: Event) -> None:
        """Check the next event."""
        kind = str(event.get("type"))
        self._where = f"#{number} {kind}"
        self._check_envelope(number, kind, event)
        if kind.startswith("response."):
            self._response(kind, event)
        elif kind.startswith("conversation.item.input_audio_transcription."):
            self._transcription(kind.rsplit(".", 1)[1], event)
        elif kind.startswith("conversation.item."):
            self._item(kind.rsplit(".", 1)[1], event)
        elif kind.startswith("input_audio_buffer."):
            self._input(kind.rsplit(".", 1)[1], event)
        elif kind.startswith("output_audio_buffer."):
            self._output(kind.rsplit(".", 1)[1], event)
        elif kind.startswith("session."):
            self._session = event.get("session", {})
        elif kind == "error":
            error = event.get("error", {})
            if error.get("code") not in self._errors:
                self._fault(f"an error nobody provoked: {error.get('code')}: {error.get('message')}")

    def finish(self) -> None:
        """The connection is over and nothing should be left open."""
        self._where = "at the end"
        for response_id, ladder in self._responses.items():
            if not ladder.done:
                self._fault(f"{response_id} never had its response.done")
        for item_id in self._items:
            if item_id not in self._done:
                self._fault(f"{item_id} was added and never done")
        for item_id, stage in self._stage.items():
            if stage in ("speech_started", "speech_stopped", "committed"):
                self._fault(f"the user's item {item_id} ended at {stage}")
            elif self._wants_words and item_id not in self._transcribed:
                self._fault(f"the user's item {item_id} never had its transcription")
        for response_id, state in self._playing.items():
            if state == "started":
                self._fault(f"the sound of {response_id} started and neither stopped nor was cleared")

    def _check_envelope(self, number: int, kind: str, event: Event) -> None:
        if kind not in TYPES and not kind.startswith("voice."):
            self._fault("not an event of the protocol")
        event_id = event.get("event_id")
        if kind != "input_audio_buffer.dtmf_event_received":
            if not isinstance(event_id, str) or not event_id or event_id in self._event_ids:
                self._fault(f"event_id {event_id!r} is missing or was used before")
            self._event_ids.add(str(event_id))
        if (number == 0) != (kind == "session.created"):
            self._fault("session.created comes first, and once")
        size = len(json.dumps(event))
        if size > MAX_BYTES[self._wire]:
            self._fault(f"{size:,} bytes are more than clients take")

    def _fault(self, sentence: str) -> None:
        self.faults.append(f"{self._where}: {sentence}")

    # ------------------------------------------------------------ settings in force

    def _input_setting(self, name: str) -> Any:
        audio = (self._session or {}).get("audio") or {}
        return (audio.get("input") or {}).get(name)

    @property
    def _wants_words(self) -> bool:
        return self._input_setting("transcription") is not None

    @property
    def _interrupts(self) -> bool:
        detection = self._input_setting("turn_detection")
        return bool(detection and detection.get("interrupt_response", True))

    # ------------------------------------------------------------ items

    def _item(self, end: str, event: Event) -> None:
        if end in ("truncated", "deleted"):
            item_id = event.get("item_id", "")
            if item_id not in self._known:
                self._fault(f"{item_id} is not an item")
            elif end == "deleted":
                self._items.remove(item_id)
                self._done.add(item_id)
            elif self._known[item_id].get("role") != "assistant" or event.get("audio_end_ms", -1) < 0:
                self._fault("only sound of the assistant is cut, at a time from 0")
            return
        item = event.get("item", {})
        item_id = item.get("id", "")
        for path in null_fields(item):
            self._fault(f"{path} is null; clients want it left out")
        if end == "added":
            self._added(item_id, item, event.get("previous_item_id"))
        elif end == "done":
            if item_id not in self._known or item_id in self._done:
                self._fault(f"{item_id} was not added, or is done twice")
            previous = self._previous.get(item_id)
            if event.get("previous_item_id", previous) != previous:  # it may be left out here
                self._fault("previous_item_id is not the one it was added with")
            if item.get("status") == "in_progress":
                self._fault("an item that is done is completed or incomplete")
            self._done.add(item_id)
            self._forward("conversation.item.done", item_id, event)
        if self._stage.get(item_id) and end in ("added", "done"):
            self._advance(item_id, f"item.{end}")

    def _added(self, item_id: str, item: Mapping[str, Any], previous: str | None) -> None:
        if not item_id or item_id in self._known:
            self._fault(f"item {item_id!r} has no id, or was added before")
        last = self._items[-1] if self._items else None
        if item_id in self._placed:
            place = self._items.index(previous) + 1 if previous in self._items else 0
            self._items.insert(place, item_id)
        else:
            if previous != last:
                self._fault(f"previous_item_id is {previous}; the last item is {last}")
            self._items.append(item_id)
        self._known[item_id], self._previous[item_id] = item, previous
        for part in item.get("content", ()):
            if part.get("type") == "input_audio" and "transcript" not in part:
                self._fault("input_audio needs a transcript key, null at least")
            if (
                part.get("type") == "input_audio"
                and item_id not in self._stage
                and item_id not in self._placed
            ):
                self._fault("the user's audio becomes an item by input_audio_buffer.committed")
            if part.get("audio"):
                self._fault("audio bytes are only in conversation.item.retrieved")
        self._forward("conversation.item.added", item_id, {"item": item})

    def _forward(self, kind: str, item_id: str, event: Event) -> None:
        """Items that a response makes have their place in its ladder."""
        for ladder in self._responses.values():
            if not ladder.done and ladder.owns(item_id):
                self.faults += [f"{self._where}: {fault}" for fault in ladder.take(kind, event)]

    # ------------------------------------------------------------ the user's side

    _NEXT: Mapping[str | None, Collection[str]] = {
        None: ("speech_started", "committed"),
        "speech_started": ("speech_stopped",),
        "speech_stopped": ("committed",),
        "committed": ("item.added",),
        "item.added": ("item.done",),
        "item.done": (),
    }
    """The user's turn: each event about an item, and what may come next about it."""

    def _advance(self, item_id: str, event: str) -> None:
        stage = self._stage.get(item_id)
        if event not in self._NEXT[stage]:
            self._fault(f"{event} of {item_id} can't come after {stage or 'nothing'}")
        self._stage[item_id] = event

    def _input(self, end: str, event: Event) -> None:
        item_id = event.get("item_id", "")
        if end in ("cleared", "dtmf_event_received", "timeout_triggered"):
            return
        self._advance(item_id, end)
        if end == "speech_started":
            if self._speaking:
                self._fault(f"{self._speaking} still speaks")
            self._speaking = item_id
            if self._interrupts:
                for ladder in self._responses.values():
                    ladder.interrupted = not ladder.done and ladder.in_conversation
        elif end in ("speech_stopped", "committed"):
            self._speaking = None
        if end == "committed":
            last = self._items[-1] if self._items else None
            if event.get("previous_item_id") != last:
                self._fault(f"previous_item_id is {event.get('previous_item_id')}; the last item is {last}")

    def _transcription(self, end: str, event: Event) -> None:
        item_id = event.get("item_id", "")
        if item_id not in self._stage and item_id not in self._known:
            self._fault(f"{item_id} was never announced")
        if item_id in self._transcribed:
            self._fault(f"the words of {item_id} were complete")
        if end == "delta":
            self._heard[item_id] = self._heard.get(item_id, "") + event.get("delta", "")
            return
        self._transcribed.add(item_id)
        heard, whole = self._heard.get(item_id), event.get("transcript")
        if end == "completed" and heard is not None and heard != whole:
            self._fault(f"the deltas make {heard!r}, the whole is {whole!r}")

    # ------------------------------------------------------------ the agent's side

    def _response(self, kind: str, event: Event) -> None:
        if kind == "response.created":
            ladder = Ladder(event.get("response", {}))
            active = [r for r, one in self._responses.items() if not one.done and one.in_conversation]
            if ladder.in_conversation and active:
                self._fault(f"{active[0]} is still active")
            if ladder.response_id in self._responses:
                self._fault(f"{ladder.response_id} was created before")
            self._responses[ladder.response_id] = ladder
        response_id = event.get("response_id") or event.get("response", {}).get("id")
        if response_id not in self._responses:
            self._fault(f"response {response_id} was never created")
            return
        if kind == "response.output_audio.delta" and self._wire == "webrtc":
            self._fault("by WebRTC the sound comes on its own track")
        found = self._responses[response_id].take(kind, event)
        self.faults += [f"{self._where}: {fault}" for fault in found]

    def _output(self, end: str, event: Event) -> None:
        response_id = event.get("response_id", "")
        before = self._playing.get(response_id)
        if self._wire != "webrtc":
            self._fault("only WebRTC has an output buffer")
        if response_id not in self._responses:
            self._fault(f"response {response_id} was never created")
        elif end == "started" and before is not None:
            self._fault(f"the sound of {response_id} had {before}")
        elif end != "started" and before != "started":
            self._fault(f"the sound of {response_id} had not started")
        elif end == "stopped" and not self._responses[response_id].done:
            self._fault("the sound stops after response.done")
        self._playing[response_id] = end


def kinds(events: Sequence[Event]) -> list[str]:
    """The types of the events, each run of deltas as one."""
    names: list[str] = []
    for event in events:
        name = str(event["type"])
        if not (names and names[-1] == name and name.endswith(".delta")):
            names.append(name)
    return names

"""What a client does to the items of the conversation: create, retrieve, delete and truncate, in the protocol's
conversation and in the session's history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transports.realtime.conversation import Placed, entry_of, with_transcript
from transports.realtime.errors import RealtimeError
from transports.realtime.events import ItemCreate
from transports.realtime.items import InputAudio, Item, parse_item, wire_item
from transports.realtime.response_input import call_taken
from voice.audio import Decoder, resample
from voice.chat import AgentEntry, Entry, ToolEntry, UserEntry
from voice.errors import BadAudio
from voice.interfaces import ASR_RATE_HZ, Pcm16

if TYPE_CHECKING:
    from transports.realtime.protocol import RealtimeProtocol

_TRUNCATE_SLACK_MS = 100
"""A client's clock may be this much ahead of what was sent."""


class ItemRequests:
    """Carries out the client's requests about items; what is wrong with one is raised as :class:`RealtimeError`.

    Args:
        protocol: Whose conversation, session and connection they are about.
        plays: The transport plays the agent's audio, so that the client can't know better how much was sent.
    """

    def __init__(self, protocol: RealtimeProtocol, *, plays: bool) -> None:
        self._protocol, self._plays = protocol, plays

    def create(self, event: ItemCreate) -> None:
        """Put an item into the conversation."""
        item = parse_item(event.item)
        previous = self._protocol.conversation.previous(event.previous_item_id)
        if item.id in self._protocol.conversation:
            raise RealtimeError(
                f"There is an item '{item.id}' in the conversation already.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        if (
            item.type == "function_call"
            and self._protocol.session.chat.find_call(item.call_id or "") is not None
        ):
            raise call_taken(item.call_id)
        placed = Placed(replace(item, status="completed"))
        if item.type == "function_call_output":
            placed.entry = self._take_output(item)
        else:
            placed.entry = entry_of(item)
            self._enter(placed.entry, item, previous, event.previous_item_id)
        self._protocol.conversation.add(placed, event.previous_item_id)
        self._protocol.tell_item(placed, previous)

    def _enter(self, entry: Entry, item: Item, previous: str | None, asked: str | None) -> None:
        """Put an entry into the history where its item is in the conversation."""
        after = None if asked is None else self._protocol.conversation.last_before(previous, self._kept_entry)
        first = asked is not None and after is None
        spoken = b"".join(
            part.audio
            for part in item.content
            if isinstance(part, InputAudio) and part.audio is not None and part.transcript is None
        )
        if spoken and isinstance(entry, UserEntry):
            pcm = self._decoded(spoken)
            self._protocol.session.add_spoken(entry, pcm, after=after, first=first)
            self._protocol.conversation.await_words(item.id)
        else:
            self._protocol.session.add(entry, after=after, first=first)

    def _decoded(self, spoken: bytes) -> Pcm16:
        """A whole piece of the user's audio at 16 kHz.

        Raises:
            BadAudio: Longer than the recogniser takes; said before the work is done.
        """
        audio_format = self._protocol.config.input_format
        seconds = len(spoken) / audio_format.frame_bytes / audio_format.rate_hz
        most_s = self._protocol.session.agent.stages.recogniser.capabilities.max_audio_s
        if seconds > most_s:
            raise BadAudio(f"{seconds:.0f} s of audio in one piece; at most {most_s:.0f} s")
        pcm = Decoder(audio_format, audio_format.rate_hz).decode(spoken)
        return resample(pcm, audio_format.rate_hz, ASR_RATE_HZ)

    def _take_output(self, item: Item) -> ToolEntry:
        call_id, output = item.call_id or "", item.output or ""
        for entry in self._protocol.session.chat.entries:
            if isinstance(entry, ToolEntry) and entry.call.call_id == call_id and entry.by_client:
                self._protocol.session.tool_result(call_id, output)
                return entry
        raise RealtimeError(
            f"There is no function call '{call_id}' in the conversation.", param="item.call_id"
        )

    def placed(self, item_id: str, code: str) -> Placed:
        """An item of the conversation.

        Raises:
            RealtimeError: There is none of that id; ``code`` says what was asked.
        """
        placed = self._protocol.conversation.get(item_id)
        if placed is None:
            raise RealtimeError(
                f"There is no item '{item_id}' in the conversation.", code=code, param="item_id"
            )
        return placed

    def retrieve(self, item_id: str) -> None:
        """Show an item."""
        placed = self.placed(item_id, "item_retrieve_invalid_item_id")
        self._protocol.emit("conversation.item.retrieved", item=wire_item(placed.item))

    def delete(self, item_id: str) -> None:
        """Take an item, and what it was in the history, out."""
        placed = self.placed(item_id, "item_delete_invalid_item_id")
        if placed.item.status == "in_progress":
            raise RealtimeError(f"The item '{item_id}' is still being made.", param="item_id")
        if placed.item.type != "function_call_output":  # a call without its output is no longer a call
            for entry in self.entries_of(placed):
                self._protocol.session.remove(entry)
        self._protocol.conversation.remove(item_id)
        self._protocol.emit("conversation.item.deleted", item_id=item_id)

    def entries_of(self, placed: Placed) -> list[Entry]:
        """What an item is in the history."""
        if placed.item.role == "assistant" and placed.response_id is not None:
            return list(self._said(placed.response_id))
        entry = placed.entry
        if placed.item.type == "function_call" and entry is None:
            entry = self._protocol.session.chat.find_call(placed.item.call_id or "")
        return [] if entry is None else [entry]

    def _kept_entry(self, placed: Placed) -> Entry | None:
        """The last entry of an item that the history still holds."""
        kept = [
            e for e in self.entries_of(placed) if any(e is one for one in self._protocol.session.chat.entries)
        ]
        return kept[-1] if kept else None

    def _said(self, response_id: str) -> list[AgentEntry]:
        entries = self._protocol.session.chat.entries
        return [e for e in entries if isinstance(e, AgentEntry) and e.response_id == response_id]

    def truncate(self, item_id: str, content_index: int, end_ms: float) -> None:
        """The client says how much of an answer was heard."""
        placed = self.placed(item_id, "item_truncate_invalid_item_id")
        if placed.response_id is None or placed.item.role != "assistant":
            raise RealtimeError("Only the agent's spoken messages can be truncated.", param="item_id")
        if content_index != 0:
            raise RealtimeError("A spoken message has one part, of index 0.", param="content_index")
        if end_ms > placed.made_ms + _TRUNCATE_SLACK_MS and not self._plays:
            raise RealtimeError(
                f"Audio content of {placed.made_ms:.0f}ms is already shorter than {end_ms:.0f}ms",
                param="audio_end_ms",
            )
        self._protocol.session.truncate(placed.response_id, end_ms / 1000.0)
        placed.item = with_transcript(
            placed.item, "".join(entry.heard for entry in self._said(placed.response_id))
        )
        self._protocol.emit(
            "conversation.item.truncated",
            item_id=item_id,
            content_index=content_index,
            audio_end_ms=int(end_ms),
        )

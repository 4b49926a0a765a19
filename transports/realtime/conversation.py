"""Which items does the client know of, in which order, and where is each in the session's history?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from transports.realtime.errors import RealtimeError
from transports.realtime.items import InputAudio, InputImage, Item, OutputAudio
from voice.chat import AgentEntry, Entry, SystemEntry, ToolEntry, UserEntry
from voice.interfaces import ToolCall

MAX_ITEMS = 1000
"""Items kept for ``retrieve``, ``delete`` and the like; the oldest are forgotten. The history has its own bounds."""

ROOT = "root"
"""As ``previous_item_id``: the item becomes the first."""


@dataclass(slots=True)
class Placed:
    """An item of the conversation.

    Attributes:
        item: As the client is shown it, without pictures and sound.
        entry: Where it is in the history; ``None`` for what has no place there (speech without words).
        response_id: Of the answer it belongs to.
        made_ms: Audio of the agent that was sent under it.
    """

    item: Item
    entry: Entry | None = None
    response_id: str | None = None
    made_ms: float = 0.0


class Conversation:
    """The items of one session, oldest first."""

    def __init__(self, most: int = MAX_ITEMS) -> None:
        self._most = most
        self._items: dict[str, Placed] = {}
        self._order: list[str] = []
        self._wordless: set[str] = set()  # spoken items whose words are still to come, deleted ones too

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def get(self, item_id: str) -> Placed | None:
        """The item of that id."""
        return self._items.get(item_id)

    def previous(self, after: str | None) -> str | None:
        """The id of the item after which one comes that is added ``after`` (``None``: at the end).

        Raises:
            RealtimeError: There is no such item.
        """
        if after is None:
            return self._order[-1] if self._order else None
        if after == ROOT:
            return None
        if after not in self._items:
            raise RealtimeError(
                f"There is no item '{after}' in the conversation.",
                code="item_create_invalid_previous_item_id",
                param="previous_item_id",
            )
        return after

    def add(self, placed: Placed, after: str | None = None) -> str | None:
        """Put an item at the end, after another one, or first (:data:`ROOT`). Returns the id of the one before it.

        It takes the place of one of the same id: a client may have guessed an id that we were going to use.

        Raises:
            RealtimeError: See :meth:`previous`.
        """
        item = placed.item
        self.remove(item.id)
        previous = self.previous(after)
        placed.item = _without_media(item)
        index = 0 if previous is None else self._order.index(previous) + 1
        self._order.insert(index if after is not None else len(self._order), item.id)
        self._items[item.id] = placed
        while len(self._order) > self._most:
            del self._items[self._order.pop(0)]
        return previous

    def remove(self, item_id: str) -> None:
        """Forget an item."""
        if self._items.pop(item_id, None) is not None:
            self._order.remove(item_id)

    def await_words(self, item_id: str) -> None:
        """The words of a spoken item are still to come."""
        self._wordless.add(item_id)

    def has_words(self, item_id: str) -> bool:
        """The words of a spoken item are known now; returns whether somebody still wants them: not when the item was
        deleted meanwhile."""
        awaited = item_id in self._wordless
        self._wordless.discard(item_id)
        return item_id in self._items or not awaited

    def last_before(self, item_id: str | None, entry_of: Callable[[Placed], Entry | None]) -> Entry | None:
        """The history's entry of that item, or of the nearest one before it that has any."""
        index = self._order.index(item_id) if item_id in self._items else -1
        while index >= 0:
            entry = entry_of(self._items[self._order[index]])
            if entry is not None:
                return entry
            index -= 1
        return None


def _without_media(item: Item) -> Item:
    """Pictures and sound are with the history or the recogniser; they are not held twice."""
    parts = tuple(
        replace(part, data=b"")
        if isinstance(part, InputImage)
        else (replace(part, audio=None) if isinstance(part, InputAudio) else part)
        for part in item.content
    )
    return replace(item, content=parts)


def entry_of(item: Item) -> Entry:
    """What the history holds of an item that a client made; of a call's output, the model is told by its call."""
    if item.type == "function_call":
        call = ToolCall(item.call_id or "", item.name or "", item.arguments or "")
        return ToolEntry(call, f"client_{item.id}", 0, by_client=True)
    if item.role == "assistant":
        return AgentEntry(item.id, f"client_{item.id}", item.text, item.text)
    if item.role == "system":
        return SystemEntry(item.id, item.text)
    return UserEntry(item.id, item.text, item.images)


def spoken_user_item(item_id: str, transcript: str | None = None) -> Item:
    """The item of a turn that the user spoke."""
    return Item(item_id, "message", role="user", content=(InputAudio(None, transcript),))


def with_transcript(item: Item, transcript: str) -> Item:
    """The item with its speech's words."""
    parts = tuple(
        replace(part, transcript=transcript) if isinstance(part, InputAudio | OutputAudio) else part
        for part in item.content
    )
    return replace(item, content=parts)

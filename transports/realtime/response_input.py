"""What is the model shown when a client gives a response its own ``input``? Entries beside the conversation's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from transports.realtime.conversation import entry_of
from transports.realtime.errors import RealtimeError
from transports.realtime.items import Item, ItemReference
from voice.chat import Entry, ToolEntry


def input_entries(
    given: Sequence[Item | ItemReference], referred: Callable[[str], Sequence[Entry]]
) -> list[Entry]:
    """The entries of ``given``, in order; those of the conversation are the same objects, and are not changed.

    Args:
        given: The response's ``input``.
        referred: The entries of an item of the conversation.

    Raises:
        RealtimeError: Two calls of one id, an output without its call, or as ``referred`` says.
    """
    entries: list[Entry] = []
    for one in given:
        if isinstance(one, Item) and one.type == "function_call_output":
            _fill_call(entries, one)
            continue
        added = referred(one.id) if isinstance(one, ItemReference) else [entry_of(one)]
        for entry in added:
            if any(entry is known for known in entries):
                continue
            if isinstance(entry, ToolEntry) and _call_in(entries, entry.call.call_id) is not None:
                raise call_taken(entry.call.call_id)
            entries.append(entry)
    return entries


def _fill_call(entries: list[Entry], item: Item) -> None:
    """Give a call its output here, and only here: it may be the conversation's."""
    index = _call_in(entries, item.call_id)
    if index is None:
        message = f"There is no function call '{item.call_id}' in the input."
        raise RealtimeError(message, param="response.input")
    call = entries[index]
    assert isinstance(call, ToolEntry)
    entries[index] = filled = replace(call, returned=asyncio.Event())
    filled.fill(item.output or "")


def _call_in(entries: Sequence[Entry], call_id: str | None) -> int | None:
    """Where among entries a function call is."""
    found = (i for i, e in enumerate(entries) if isinstance(e, ToolEntry) and e.call.call_id == call_id)
    return next(found, None)


def call_taken(call_id: str | None) -> RealtimeError:
    """A client's call has the id of another one."""
    return RealtimeError(f"There is a function call '{call_id}' already.", param="item.call_id")

"""Chat: the conversation as it was heard, and the prompt that is made from it.

What can't be represented can't go wrong: a tool's result lives in the same entry as its call, so a prompt never
holds one without the other, and trimming removes both together. The agent's words are what the ear got.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from voice.interfaces import (
    ContentPart,
    ImagePart,
    Message,
    ModelOptions,
    Prompt,
    TextPart,
    ToolCall,
    ToolSpec,
)
from voice.options import Limits

PENDING_OUTPUT = "The tool is still running; its result will follow."
CANCELLED_OUTPUT = "The call was cancelled before it had a result."
_OLD_IMAGE = TextPart("[a picture shown earlier]")
_TRIM_TO = 0.7
"""Trimming goes this far below the bound, so that the prompt's start (the prefix cache) stays put for many turns."""


@dataclass(slots=True)
class UserEntry:
    """What the user said, wrote or showed."""

    item_id: str
    text: str
    images: tuple[ImagePart, ...] = ()
    recognised: asyncio.Event | None = None  # set once the words of its audio are in ``text``


@dataclass(slots=True)
class AgentEntry:
    """What the agent said.

    Attributes:
        generated: All that the model wrote for this stretch.
        heard: The part that reached the ear; grows while it is spoken.
        interrupted: It was cut: ``heard`` is not all of it.
    """

    item_id: str
    response_id: str
    generated: str = ""
    heard: str = ""
    interrupted: bool = False


@dataclass(slots=True)
class ToolEntry:
    """A tool call and its result (``None`` while it runs). Calls of one ``step`` were made by one generation."""

    call: ToolCall
    response_id: str
    step: int
    by_client: bool = False  # the session's owner runs it
    output: str | None = None
    images: tuple[ImagePart, ...] = ()
    returned: asyncio.Event = field(default_factory=asyncio.Event)

    def fill(self, output: str, images: tuple[ImagePart, ...] = ()) -> None:
        """The tool returned, or never will: what the model is told."""
        self.output, self.images = output, images
        self.returned.set()


@dataclass(slots=True)
class SystemEntry:
    """A message of the owner to the model in mid conversation."""

    item_id: str
    text: str


Entry: TypeAlias = UserEntry | AgentEntry | ToolEntry | SystemEntry


@dataclass(slots=True)
class Chat:
    """The history of one session. Bounded: see :class:`~voice.options.Limits`.

    ``tag`` goes into the ids that are made here, so that those of another conversation can be replayed into this one.
    What is added here also enters ``record``, if there is one.
    """

    instructions: str = ""
    limits: Limits = field(default_factory=Limits)
    entries: list[Entry] = field(default_factory=list)
    tag: str = ""
    record: Chat | None = None
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_id(self, prefix: str = "item") -> str:
        """A fresh id, unique in this chat."""
        return "_".join(part for part in (prefix, self.tag, f"{next(self._ids):06d}") if part)

    def aside(self, entries: Sequence[Entry] | None = None, *, recorded: bool = False) -> Chat:
        """A chat that begins with ``entries`` (``None``: this one's); what is added there stays there, or, when
        ``recorded``, enters this one too."""
        seen = self.entries if entries is None else entries
        record = self if recorded else None
        return Chat(self.instructions, self.limits, list(seen), self.tag, record, self._ids)

    # ------------------------------------------------------------ writing

    def add_user(self, text: str, images: Sequence[ImagePart] = (), item_id: str | None = None) -> UserEntry:
        """The user's words (and pictures) enter the history."""
        entry = UserEntry(item_id or self.new_id(), text, tuple(images))
        self._append(entry)
        return entry

    def add_system(self, text: str) -> SystemEntry:
        """A message of the owner."""
        entry = SystemEntry(self.new_id(), text)
        self._append(entry)
        return entry

    def add_agent(self, response_id: str, item_id: str | None = None) -> AgentEntry:
        """The agent begins to speak; its words follow by changing the entry."""
        entry = AgentEntry(item_id or self.new_id(), response_id)
        self._append(entry)
        return entry

    def add_tool(self, call: ToolCall, response_id: str, step: int, *, by_client: bool = False) -> ToolEntry:
        """A tool was called; fill ``output`` when it returns."""
        entry = ToolEntry(call, response_id, step, by_client)
        self._append(entry)
        return entry

    def add(self, entry: Entry, *, after: Entry | None = None, first: bool = False) -> None:
        """Put an entry where it belongs: at the end, at the front, or after another one that is still there."""
        if first or (after is not None and any(e is after for e in self.entries)):
            index = 0 if first else next(i for i, e in enumerate(self.entries) if e is after) + 1
            self.entries.insert(index, entry)
            self._forget_images()
            self._trim()
        else:
            self._append(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry; one that has left already is no error."""
        self.entries[:] = [e for e in self.entries if e is not entry]

    def find(self, item_id: str) -> Entry | None:
        """The user, agent or system entry with that id."""
        for entry in self.entries:
            if not isinstance(entry, ToolEntry) and entry.item_id == item_id:
                return entry
        return None

    @property
    def pending_tools(self) -> list[ToolEntry]:
        """Calls without a result yet, of tools that run here."""
        return [e for e in self.entries if isinstance(e, ToolEntry) and e.output is None and not e.by_client]

    def find_call(self, call_id: str) -> ToolEntry | None:
        """The call of that id."""
        for entry in reversed(self.entries):
            if isinstance(entry, ToolEntry) and entry.call.call_id == call_id:
                return entry
        return None

    async def words_known(self, timeout_s: float) -> None:
        """Wait until all user entries have their words, at most ``timeout_s``."""
        waiting = [
            e.recognised for e in self.entries if isinstance(e, UserEntry) and e.recognised is not None
        ]
        try:
            async with asyncio.timeout(timeout_s):
                for recognised in waiting:
                    await recognised.wait()
        except TimeoutError:
            pass  # the model is shown what is known

    def _append(self, entry: Entry) -> None:
        if self.record is not None:
            self.record._append(entry)
        self.entries.append(entry)
        self._forget_images()
        self._trim()

    def _forget_images(self) -> None:
        """Old pictures leave the memory, not only the prompt."""
        left = self.limits.images
        for entry in reversed(self.entries):
            if isinstance(entry, UserEntry | ToolEntry) and entry.images:
                if left <= 0 and isinstance(entry, UserEntry):
                    entry.text = f"{_OLD_IMAGE.text} {entry.text}".strip()
                entry.images = entry.images[:left]
                left -= len(entry.images)

    def _trim(self) -> None:
        """Drop the oldest entries; the newest user entry and what follows it always stays."""
        sizes = [_size(e) for e in self.entries]
        total, count = sum(sizes), len(sizes)
        if total <= self.limits.history_chars and count <= self.limits.history_entries:
            return
        keep_from = max(
            (i for i, e in enumerate(self.entries) if isinstance(e, UserEntry)), default=count - 1
        )
        chars, most = self.limits.history_chars * _TRIM_TO, int(self.limits.history_entries * _TRIM_TO)
        first = 0
        while first < keep_from and (total > chars or count - first > most):
            step = self._step_at(first)
            total -= sum(sizes[first : first + step])
            first += step
        del self.entries[:first]

    def _step_at(self, index: int) -> int:
        """How many entries from ``index`` belong together: a generation's calls leave as one."""
        entry = self.entries[index]
        if not isinstance(entry, ToolEntry):
            return 1
        key = (entry.response_id, entry.step)
        return sum(1 for _ in itertools.takewhile(lambda e: _step_key(e) == key, self.entries[index:]))

    # ------------------------------------------------------------ reading

    def prompt(
        self,
        tools: Sequence[ToolSpec] = (),
        options: ModelOptions | None = None,
        *,
        saying: str | None = None,
        instructions: str | None = None,
    ) -> Prompt:
        """What the model is shown.

        Args:
            saying: User words that are not certain yet (a guess), added at the end.
            instructions: For this once, instead of the chat's.
        """
        self._forget_images()  # a tool may have returned some since the last entry
        messages: list[Message] = []
        system = self.instructions if instructions is None else instructions
        if system:
            messages.append(_text("system", system))
        for step in self._steps():
            messages.extend(_render(step))
        if saying:
            messages.append(_text("user", saying))
        return Prompt(tuple(_merged(messages)), tuple(tools), options or ModelOptions())

    def _steps(self) -> Iterable[list[Entry]]:
        """Entries that make one group of messages: an agent's words with the calls of the same generation."""
        group: list[Entry] = []
        for entry in self.entries:
            if isinstance(entry, ToolEntry) and group:
                last = group[-1]
                same = _step_key(last) == _step_key(entry) if isinstance(last, ToolEntry) else True
                if (
                    same
                    and isinstance(last, ToolEntry | AgentEntry)
                    and last.response_id == entry.response_id
                ):
                    group.append(entry)
                    continue
            if group:
                yield group
            group = [entry]
        if group:
            yield group


def _step_key(entry: Entry) -> tuple[str, int] | None:
    return (entry.response_id, entry.step) if isinstance(entry, ToolEntry) else None


def _size(entry: Entry) -> int:
    match entry:
        case UserEntry() | SystemEntry():
            return len(entry.text)
        case AgentEntry():
            return len(entry.heard)
        case ToolEntry():
            return len(entry.call.arguments) + len(entry.output or PENDING_OUTPUT)


def _text(role: str, text: str) -> Message:
    match role:
        case "system":
            return Message("system", (TextPart(text),))
        case "user":
            return Message("user", (TextPart(text),))
        case _:
            return Message("assistant", (TextPart(text),))


def _render(group: Sequence[Entry]) -> Iterable[Message]:
    first = group[0]
    match first:
        case SystemEntry():
            yield _text("system", first.text)
            return
        case UserEntry():
            parts: list[ContentPart] = [TextPart(first.text)] if first.text else []
            parts.extend(first.images)
            if parts:
                yield Message("user", tuple(parts))
            return
        case _:
            pass
    heard = "".join(e.heard for e in group if isinstance(e, AgentEntry)).strip()
    tools = [e for e in group if isinstance(e, ToolEntry)]
    if heard or tools:
        content = (TextPart(heard),) if heard else ()
        yield Message("assistant", content, tuple(e.call for e in tools))
    for entry in tools:
        output = PENDING_OUTPUT if entry.output is None else entry.output
        yield Message("tool", (TextPart(output),), tool_call_id=entry.call.call_id)
    images = [i for e in tools for i in e.images]
    if images:
        yield Message("user", (TextPart("[pictures from the tool]"), *images))


def _merged(messages: Iterable[Message]) -> Iterable[Message]:
    """Neighbours of one role become one message: a turn that was answered too early reads as one."""
    held: Message | None = None
    for message in messages:
        plain = message.role in ("user", "assistant") and not message.tool_calls
        if held is not None and plain and held.role == message.role and not held.tool_calls:
            gap = (TextPart(" "),) if held.text and message.text else ()
            held = Message(held.role, _joined((*held.content, *gap, *message.content)))
            continue
        if held is not None:
            yield held
        held = message
    if held is not None:
        yield held


def _joined(parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    out: list[ContentPart] = []
    for part in parts:
        if isinstance(part, TextPart) and out and isinstance(out[-1], TextPart):
            out[-1] = TextPart(out[-1].text + part.text)
        else:
            out.append(part)
    return tuple(out)

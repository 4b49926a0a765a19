"""The tools of one answer: calls that its model writes get ids of our own, run side by side and end in the history."""

from __future__ import annotations

import asyncio

from voice.answer_parts import Attempt, Owner, Parts
from voice.chat import CANCELLED_OUTPUT, ToolEntry
from voice.errors import EngineFailed
from voice.events import ToolArguments, ToolEnded, ToolStarted
from voice.interfaces import ToolCall, ToolCallDelta
from voice.scope import Scope
from voice.tools import SessionHandle, run_tool

_MOST_ARGUMENT_CHARS = 100_000
"""Arguments of one generation's calls that are longer than this have run away."""


class AnswerTools:
    """See the module's docstring.

    Args:
        parts: Tools and history.
        owner: The session.
        scope: The answer's.
        response_id: The answer's.
        context: The session, as tools may use it.
    """

    def __init__(
        self, parts: Parts, owner: Owner, scope: Scope, response_id: str, context: SessionHandle | None
    ) -> None:
        self.parts, self.owner, self.scope = parts, owner, scope
        self.response_id = response_id
        self._context = context

    async def run(self, calls: list[ToolCall], step: int) -> bool:
        """Run all calls of one generation side by side. Those that may not be undone outlive an interruption.

        Returns whether some of them are the owner's to run.
        """
        tasks = []
        theirs = {spec.name for spec in self.parts.client_tools} - set(self.parts.tools)
        for call in calls:
            by_client = call.name in theirs
            entry = self.parts.chat.add_tool(call, self.response_id, step, by_client=by_client)
            self.owner.emit(ToolStarted(self.response_id, call, by_client))
            if by_client:
                continue
            tool = self.parts.tools.get(call.name)
            finish = tool is None or tool.on_interrupt == "finish"
            scope = (self.owner.tool_scope if finish else self.scope).child("tool")
            scope.on_cancel(lambda _, entry=entry: _stand_in(entry))  # type: ignore[misc]
            tasks.append(scope.run(self._run_one(entry, scope), f"tool {call.name} {call.call_id}"))
        if tasks:
            await asyncio.wait(tasks)
        return any(call.name in theirs for call in calls)

    async def _run_one(self, entry: ToolEntry, scope: Scope) -> None:
        try:
            result = await run_tool(
                self.parts.tools, entry.call, scope, context=self._context, executor=self.parts.executor
            )
            entry.fill(result.output, result.images)
            self.owner.emit(ToolEnded(self.response_id, entry.call, result.output, result.error))
            if self.scope.cancelled:
                self.owner.late_result(entry.call.call_id)
        finally:
            _stand_in(entry)
            scope.close()

    # ------------------------------------------------------------ while the model writes them

    def with_own_id(self, call: ToolCall, attempt: Attempt) -> ToolCall:
        """A call that is whole, by the name that it has in the history."""
        own = self._own_id(call.call_id, attempt)
        attempt.call_ids.pop(call.call_id, None)  # the next call of that id is another one
        return ToolCall(own, call.name, call.arguments)

    def arguments(self, event: ToolCallDelta, attempt: Attempt) -> ToolArguments:
        """More of a call's arguments, for the owner.

        Raises:
            EngineFailed: They have no end.
        """
        attempt.argument_chars += len(event.arguments)
        if attempt.argument_chars > _MOST_ARGUMENT_CHARS:
            raise EngineFailed("the model wrote tool arguments without end", retryable=False)
        call_id = self._own_id(event.call_id, attempt)
        return ToolArguments(self.response_id, call_id, event.name, event.arguments)

    def _own_id(self, call_id: str, attempt: Attempt) -> str:
        """Ids are unique in the history, whatever the model's server hands out."""
        if call_id and call_id in attempt.call_ids:
            return attempt.call_ids[call_id]
        chat = self.parts.chat
        entries = [*chat.entries, *(() if chat.record is None else chat.record.entries)]
        known = {e.call.call_id for e in entries if isinstance(e, ToolEntry)}
        known.update(call.call_id for call in attempt.calls)
        own = call_id if call_id and call_id not in known else self.parts.chat.new_id("call")
        if call_id:
            attempt.call_ids[call_id] = own
        return own


def _stand_in(entry: ToolEntry) -> None:
    if entry.output is None:
        entry.fill(CANCELLED_OUTPUT)

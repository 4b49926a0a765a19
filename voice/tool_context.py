"""What may a running tool know of, and ask of, the conversation it was called in?"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from voice.errors import BadRequest, VoiceError
from voice.scope import Scope

log = logging.getLogger("voice")


class SessionHandle(Protocol):
    """What a tool may ask of its conversation: plain methods that return at once, called on the loop."""

    def say(self, text: str) -> object: ...

    def interrupt(self) -> object: ...

    def hang_up(self) -> object: ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool knows about its call. Ask for it with a parameter of this type.

    ``say``, ``interrupt`` and ``hang_up`` may be called from a tool's thread too. They are carried out soon
    after, never waited for: a tool that ends its own turn would otherwise wait for itself. Once the call is
    cancelled they do nothing.

    Attributes:
        scope: The scope of this call.
        call_id: The model's name for this call.
        session: The conversation, where there is one.
    """

    scope: Scope
    call_id: str
    session: SessionHandle | None = None
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more. A blocking tool looks at each step, and stops."""
        return self.scope.cancelled

    def say(self, text: str) -> None:
        """Have the agent say something now, such as "I'm looking that up"."""
        self._schedule("say", text)

    def interrupt(self) -> None:
        """Stop what the agent is saying."""
        self._schedule("interrupt")

    def hang_up(self) -> None:
        """End the conversation."""
        self._schedule("hang_up")

    def _schedule(self, method: str, *args: str) -> None:
        if self.scope.cancelled:
            return
        if self.session is None or self._loop is None:
            raise BadRequest(f"{method}() needs a conversation, but this tool was called outside of one")
        self._loop.call_soon_threadsafe(self._ask, method, args)

    def _ask(self, method: str, args: tuple[str, ...]) -> None:
        try:
            getattr(self.session, method)(*args)
        except VoiceError as error:  # the tool may be over: there is nobody else to tell
            log.warning("a tool asked its session to %s, which was refused: %s", method, error)

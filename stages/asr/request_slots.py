"""How many requests may an engine have at once, and who gets the next place? One bound for all sessions.

Partials never wait: the next one comes soon anyway. Finals wait, best class first, until their deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from stages.patience import Patience
from voice.compute import ComputeGate
from voice.errors import BadRequest, Overloaded
from voice.scope import Priority

MOST_WAITING = 1024
"""More waiting requests than this are refused: no queue is without end."""


class RequestSlots:
    """Places for requests, shared by all sessions.

    Args:
        name: The engine, as errors name it.
        slots: How many requests run at once. Partials leave one of several free, so that a final need not wait for
            them.

    Attributes:
        refused: Requests turned away so far.
    """

    def __init__(self, name: str, slots: int) -> None:
        if slots < 1:
            raise BadRequest(f"max_concurrent must be at least 1, not {slots}")
        self.name = name
        self.refused = 0
        self._gate = ComputeGate(slots)

    @asynccontextmanager
    async def one(self, patience: Patience) -> AsyncIterator[None]:
        """Hold a place for the body of ``async with``; the class is that of the request's scope.

        Raises:
            Overloaded: A partial for which no place is free, or far too many wait.
            EngineFailed, DeadlineExceeded, ScopeCancelled: As the patience says.
        """
        self._check(patience.scope.priority)
        async with AsyncExitStack() as held:
            await patience.wait(held.enter_async_context(self._gate.slot(patience.scope)))
            yield

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(self._gate.stats.waiting.values())

    def _check(self, priority: Priority) -> None:
        now = self._gate.stats
        if priority is Priority.PARTIAL:
            taken = now.running >= max(1, now.slots - 1)
        else:
            taken = self.waiting >= MOST_WAITING
        if taken:
            self.refused += 1
            raise Overloaded(f"{self.name} has {now.running} requests at work, at most {now.slots} are sent")

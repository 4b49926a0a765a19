"""What goes wrong at an await, where and when: drawn from a seed, counted, and over when it is to be calm."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

from voice import events
from voice.errors import EngineFailed, Overloaded

FAULTS = (
    *("engine", "engine", "final", "other", "value", "os", "timeout", "overloaded"),
    *("hang", "slow", "slow", "cancelled", "cancels itself", "stubborn"),
)
"""What may happen at an await; some more often than others."""
KINDS = (
    *dict.fromkeys(FAULTS),
    *("outages", "bugs of the turn model", "no probability"),
    *("line stall", "line reset", "line bug", "line cancelled"),
    *(f"owner at {event.__name__}" for event in get_args(events.SessionEvent)),
)
"""All that :meth:`Trouble.wants` is asked for: what can be left out."""


class Trouble:
    """What goes wrong, where and when.

    Args:
        chance: Draws.
        rate: Share of awaits at which something does, 0–1.
        leave_out: Kinds of faults that don't happen.

    Attributes:
        calm: Nothing goes wrong any more.
        failed: What must not happen and did.
        happened: How often what did, by ``place: kind``.
        open: Calls under way, by engine.
    """

    def __init__(self, chance: random.Random, rate: float, leave_out: Sequence[str] = ()) -> None:
        self.chance, self.rate = chance, rate
        self.calm = False
        self.failed: list[str] = []
        self.happened: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self._left_out = frozenset(leave_out)
        self._kinds = [kind for kind in FAULTS if kind not in leave_out]
        self._down: dict[str, tuple[float, float, bool]] = {}

    def strikes(self, rate: float | None = None) -> bool:
        """Whether something goes wrong now."""
        return not self.calm and self.chance.random() < (self.rate if rate is None else rate)

    def wants(self, kind: str) -> bool:
        """Whether that kind of fault is to happen."""
        return kind not in self._left_out

    def note(self, place: str, kind: str) -> None:
        """Count it."""
        key = f"{place}: {kind}"
        self.happened[key] = self.happened.get(key, 0) + 1

    @contextmanager
    def call(self, engine: str) -> Iterator[None]:
        """Count a call of an engine, until it ends in whatever way."""
        self.open[engine] = self.open.get(engine, 0) + 1
        try:
            yield
        finally:
            self.open[engine] -= 1

    def is_down(self, engine: str) -> str | None:
        """Whether the engine is dead now, and how: for some seconds, now and then."""
        now = asyncio.get_running_loop().time()
        start, end, hangs = self._down.get(engine, (0.0, -1.0, False))
        if now > end:
            start = now + self.chance.expovariate(1 / 90.0)
            self._down[engine] = start, start + self.chance.uniform(1.0, 15.0), self.chance.random() < 0.3
        if self.calm or not start <= now <= end or not self.wants("outages"):
            return None
        return "hangs" if hangs else "down"

    async def pass_time(self, seconds: float, engine: str, where: str) -> None:
        """An await of ``seconds`` at which anything may happen instead."""
        place = f"{engine} {where}"
        if (how := self.is_down(engine)) is not None:
            self.note(place, how)
            if how == "hangs":
                await asyncio.Event().wait()
            raise EngineFailed(f"the {engine} is down")
        if self._kinds and self.strikes():
            kind = self.chance.choice(self._kinds)
            self.note(place, kind)
            await self._strike(kind, place)
        await asyncio.sleep(seconds)

    async def _strike(self, kind: str, place: str) -> None:
        match kind:
            case "engine" | "final":
                raise EngineFailed(f"{place} failed", retryable=kind == "engine")
            case "other":
                raise RuntimeError(f"{place} has a bug")
            case "value":
                raise ValueError(f"{place} got something odd")
            case "os":
                raise ConnectionResetError(f"{place} lost its server")
            case "timeout":
                raise TimeoutError(f"{place} waited in vain")
            case "overloaded":
                raise Overloaded(f"{place} has too much to do", 1.0)
            case "hang":
                await asyncio.Event().wait()
            case "slow":
                await asyncio.sleep(self.chance.uniform(0.5, 6.0))
            case "cancelled":
                raise asyncio.CancelledError
            case "cancels itself":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case "stubborn":
                try:
                    await asyncio.sleep(self.chance.uniform(0.5, 3.0))
                except asyncio.CancelledError:  # swallowed: that is the fault
                    await asyncio.sleep(self.chance.uniform(0.0, 1.0))

"""Do calls leave anything behind in the server's process? Tasks, threads, sockets, objects and memory before and after
many of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from loadtest.rtc.server import LONG, Held, Watched
from loadtest.webrtc_caller import WebRtcCaller

WARM_CALLS = 60
"""Calls before the first look: by then what is made once is made, and the allocator has its arenas."""
MOST_MEMORY_KB = 4_000
"""Memory that the process may hold more after 100 calls. Measured: 40 KB on a machine with time to spare, where it
stays the same from call 60 to call 420; up to 1,800 on a busy one, where calls end more slowly than others begin."""
_SETTLE_S = 15.0
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Leaks:
    """What the server held before and after so many calls."""

    calls: int
    before: Held
    after: Held

    @property
    def holds(self) -> bool:
        """Whether nothing is left."""
        a, b = self.after, self.before
        counts = a.tasks <= b.tasks and a.threads <= b.threads and a.sockets <= b.sockets
        memory_kb = a.memory_kb - b.memory_kb
        return counts and a.objects <= b.objects and memory_kb <= MOST_MEMORY_KB * max(1.0, self.calls / 100)

    def __str__(self) -> str:
        def change(name: str) -> str:
            return f"{name} {getattr(self.before, name)} -> {getattr(self.after, name)}"

        names = ("tasks", "threads", "sockets", "objects", "memory_kb")
        return f"  {self.calls} calls: " + ", ".join(change(name) for name in names)


async def measure(server: Watched, calls: int, *, warm: int = WARM_CALLS) -> Leaks:
    """Connect and hang up so often, each time in another way."""
    for number in range(warm):
        await _one(server, number)
    before = await _settled(server, None)
    for number in range(calls):
        await _one(server, number)
    return Leaks(calls, before, await _settled(server, before))


async def _one(server: Watched, number: int) -> None:
    """The caller hangs up at once, or in the middle of an answer; the server hangs up; half a call."""
    async with WebRtcCaller(server.url) as caller:
        match number % 3:
            case 1:
                caller.ask(LONG)
                with contextlib.suppress(TimeoutError):
                    await caller.until(lambda: "output_audio_buffer.started" in caller.kinds, 5.0)
            case 2:
                await caller.hang_up_there()


async def _settled(server: Watched, before: Held | None) -> Held:
    """What is held once it no longer shrinks, or is back at what it was."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _SETTLE_S
    held = await server.held()
    while loop.time() < until:
        await asyncio.sleep(_LOOK_S)
        last, held = held, await server.held()
        quiet = (held.tasks, held.sockets, held.objects) == (last.tasks, last.sockets, last.objects)
        if quiet and held.objects == 0 and (before is None or held.tasks <= before.tasks):
            break
    return held

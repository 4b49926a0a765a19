"""slow_tool: a tool that takes its time and tells how often it ran and how it ended."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast


class SlowTool(Protocol):
    """An async function without arguments, with counters.

    Attributes:
        runs, finished, cancelled: How often it was begun, ended by itself (well or not), and was cancelled.
        times: Loop times at which it was begun.
    """

    __name__: str
    runs: int
    finished: int
    cancelled: int
    times: list[float]

    async def __call__(self) -> Any: ...


def slow_tool(seconds: float, result: object = "done", name: str = "slow_tool") -> SlowTool:
    """A tool that returns ``result`` after ``seconds``; a ``result`` that is an exception is raised.

    To give it arguments, call it from a function of your own.
    """

    async def run() -> Any:
        """Take a while."""
        tool.runs += 1
        tool.times.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            tool.cancelled += 1
            raise
        tool.finished += 1
        if isinstance(result, Exception):
            raise result
        return result

    tool = cast(SlowTool, run)
    run.__name__ = run.__qualname__ = name
    tool.runs = tool.finished = tool.cancelled = 0
    tool.times = []
    return tool

"""What does a session cost the server by each transport? Silent stages, so that nothing else is measured."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from loadtest import process
from loadtest.calls import machine_load
from loadtest.silent_server import running
from loadtest.webrtc_caller import WebRtcCaller
from transports.websocket import RealtimeClient, connect
from voice.errors import BadRequest
from voice.interfaces import Pcm16
from voice.testing import speak

RATE_HZ = 24_000
FRAME_S = 0.02
TALK_S = 1.0
"""A talking caller speaks so long, then listens for the rest of :data:`PERIOD_S`; the answer takes 2 s of it."""
PERIOD_S = 5.0
WARM_S = 3.0


class Caller(Protocol):
    """One caller, however it is connected."""

    async def hear(self, pcm: Pcm16) -> None:
        """The caller's next audio: int16, 24 kHz, as it is spoken."""


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used, user and system.

    Raises:
        BadRequest: This system has no /proc.
    """
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        raise BadRequest("CPU times are read from /proc, which this system does not have")
    return process.cpu_s(process.stat_fields(path))


async def _talk(caller: Caller, talks: bool, stop: asyncio.Event) -> None:
    """Stream audio in real time on an absolute grid until told to stop."""
    loop = asyncio.get_running_loop()
    voice = speak(TALK_S, 220, rate=RATE_HZ)
    quiet = np.zeros(int((PERIOD_S - TALK_S) * RATE_HZ), np.int16)
    sound = np.concatenate([voice, quiet]) if talks else np.zeros(int(PERIOD_S * RATE_HZ), np.int16)
    frame = int(FRAME_S * RATE_HZ)
    start, count = loop.time(), 0
    while not stop.is_set():
        at = count * frame % sound.size
        await caller.hear(sound[at : at + frame])
        count += 1
        await asyncio.sleep(max(0.0, start + count * FRAME_S - loop.time()))


async def _drain(client: RealtimeClient) -> None:
    async for _ in client:
        pass


@asynccontextmanager
async def _websocket(url: str) -> AsyncIterator[Caller]:
    async with connect(url) as client:
        reader = asyncio.create_task(_drain(client))
        try:
            yield client
        finally:
            reader.cancel()


@asynccontextmanager
async def _webrtc(url: str) -> AsyncIterator[Caller]:
    async with WebRtcCaller(url) as caller:
        yield caller


async def _measure(kind: str, sessions: int, seconds: float, talks: bool) -> float:
    """CPU milliseconds of the server for a second of one session."""
    dial = {"websocket": _websocket, "webrtc": _webrtc}[kind]
    async with running() as (url, pid), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(dial(url)) for _ in range(sessions)]
        stop = asyncio.Event()
        talking = [asyncio.create_task(_talk(caller, talks, stop)) for caller in callers]
        await asyncio.sleep(WARM_S)
        loop = asyncio.get_running_loop()
        before, since = cpu_s(pid), loop.time()
        await asyncio.sleep(seconds)
        used, lasted = cpu_s(pid) - before, loop.time() - since
        stop.set()
        await asyncio.gather(*talking)
    return used * 1000.0 / lasted / sessions


async def run(sessions: int, seconds: float, runs: int) -> bool:
    """Print the cost by transport, for callers that only listen and for callers that talk."""
    print(f"{sessions} sessions, {seconds:.0f} s, median of {runs} runs; {machine_load()}", flush=True)
    base: float | None = None
    for kind in ("websocket", "webrtc"):
        for talks in (False, True):
            figures = [await _measure(kind, sessions, seconds, talks) for _ in range(runs)]
            median = statistics.median(figures)
            base = base or median
            print(
                f"{kind:<10} {'talking' if talks else 'listening':<10} {median:6.2f} ms CPU a session-second "
                f"({60 * median / 1000:.2f} s a session-minute, {median / base:.2f} x a listening WebSocket; "
                f"runs {', '.join(f'{figure:.2f}' for figure in figures)})",
                flush=True,
            )
    print(machine_load(), file=sys.stderr)
    return True

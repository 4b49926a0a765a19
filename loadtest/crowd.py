"""How does a load come, stay and go? Callers, as many as are wanted, and a look each second at what both sides use."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtest.caller import Caller
from loadtest.setting import Setting
from loadtest.stub_server import ServerSample, StubServer, process_sample
from loadtest.tally import Tally, percentile
from voice.errors import BadRequest

SAMPLE_S = 1.0
_RECENT_S = 5.0
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Moment:
    """One second of a run.

    Attributes:
        at_s: Since the run began.
        sessions: Callers in a conversation.
        recent_p50_ms, recent_p95_ms: Voice-to-voice of the turns of the last seconds; ``None``: there were none.
        gaps, errors, refusals: So far.
        caller_cpu: Cores that the callers' process uses.
        caller_lag_ms: The latest that a frame left in this second.
        server: What the server uses; ``None``: not known.
        server_cpu: Cores that it uses; ``None``: not known.
        machine_cpu: Cores that all processes of the callers' machine use; ``None``: not known.
    """

    at_s: float
    sessions: int
    recent_p50_ms: float | None
    recent_p95_ms: float | None
    turns: int
    gaps: int
    errors: int
    refusals: int
    caller_cpu: float
    caller_lag_ms: float
    server: ServerSample | None
    server_cpu: float | None
    machine_cpu: float | None


class Crowd:
    """Callers of one server.

    Args:
        setting: What they share; its pacer runs while the crowd lives.
        seed: Of all that callers draw.
        server: Watched when it is our own child; ``None``: not.
        pid: The process to be watched instead; ``None``: none.
        on_moment: Told each second.

    Attributes:
        tally: What is heard now. See :meth:`begin`.
        moments: Each second since :meth:`begin`.
    """

    def __init__(
        self,
        setting: Setting,
        seed: int,
        *,
        server: StubServer | None = None,
        pid: int | None = None,
        on_moment: Callable[[Moment], None] | None = None,
    ) -> None:
        self._setting, self._seed, self._server, self._pid = setting, seed, server, pid
        self.on_moment = on_moment
        self._callers: list[tuple[Caller, asyncio.Task[None]]] = []
        self._number = 0
        self._watching: asyncio.Task[None] | None = None
        self.moments: list[Moment] = []
        self.tally = Tally(0.0)

    async def __aenter__(self) -> Crowd:
        self.begin()
        self._setting.pacer.start()
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await self.resize(0, 0.0)
        self._setting.pacer.stop()

    def begin(self) -> Tally:
        """Forget what was heard so far: a new measurement begins."""
        self.tally = Tally(asyncio.get_running_loop().time())
        self.moments = []
        for caller, _ in self._callers:
            caller.tally = self.tally
        return self.tally

    @property
    def connected(self) -> int:
        """Callers in a conversation."""
        return sum(caller.connected for caller, _ in self._callers)

    @property
    def size(self) -> int:
        """Callers, in a conversation or not."""
        return len(self._callers)

    async def resize(self, size: int, within_s: float) -> None:
        """Have more callers come, evenly within that time, or have some leave at once."""
        loop = asyncio.get_running_loop()
        if len(self._callers) > size:
            await self._dismiss(self._callers[size:])
            del self._callers[size:]
        began_s, wanted = loop.time(), size - len(self._callers)
        for count in range(wanted):
            await asyncio.sleep(max(0.0, began_s + count * within_s / wanted - loop.time()))
            caller = Caller(self._number, self._setting, self.tally, self._seed)
            self._number += 1
            self._callers.append((caller, loop.create_task(caller.run(), name=f"caller {caller.number}")))
        await asyncio.sleep(max(0.0, began_s + within_s - loop.time()) if wanted > 0 else 0.0)

    async def _dismiss(self, leaving: list[tuple[Caller, asyncio.Task[None]]]) -> None:
        for caller, _ in leaving:
            caller.leave()
        _, late = await asyncio.wait({task for _, task in leaving}, timeout=LEAVE_S)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*(task for _, task in leaving), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    # ------------------------------------------------------------ each second

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        before = self._used(due_s)
        while True:
            due_s += SAMPLE_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            now = self._used(loop.time())
            moment = self._moment(before, now)
            before = now
            self.moments.append(moment)
            if self.on_moment is not None:
                self.on_moment(moment)

    def _moment(self, before: _Used, now: _Used) -> Moment:
        tally = self.tally
        at_s = now.at_s - tally.began_s
        recent = []
        for turn in reversed(tally.turns):  # nearly in order: by when the speech ended
            if turn.at_s < at_s - 2 * _RECENT_S:
                break
            recent.append(turn.received_s * 1000)
        lasted_s = now.at_s - before.at_s
        return Moment(
            round(at_s, 2),
            self.connected,
            _rounded(percentile(recent, 0.5)),
            _rounded(percentile(recent, 0.95)),
            len(tally.turns),
            len(tally.gaps),
            sum(tally.errors.values()),
            len(tally.refusals),
            round((now.caller_s - before.caller_s) / lasted_s, 3),
            round(self._setting.pacer.take_worst_s() * 1000, 2),
            self._sample(),
            _rate(before.server_s, now.server_s, lasted_s),
            _rate(before.machine_s, now.machine_s, lasted_s),
        )

    def _sample(self) -> ServerSample | None:
        if self._server is not None:
            return self._server.latest
        return None if self._pid is None else _seen(self._pid)

    def _used(self, now_s: float) -> _Used:
        pid = self._server.pid if self._server is not None else self._pid
        seen = None if pid is None else _seen(pid)
        server_s = None if seen is None else seen.cpu_s
        return _Used(now_s, time.process_time(), server_s, machine_cpu_s())


def _seen(pid: int) -> ServerSample | None:
    """What that process uses; ``None``: it has ended."""
    try:
        return process_sample(pid)
    except BadRequest:
        return None


class _Used(NamedTuple):
    """CPU seconds up to a moment: of the callers, the server and the machine."""

    at_s: float
    caller_s: float
    server_s: float | None
    machine_s: float | None


def machine_cpu_s() -> float | None:
    """CPU seconds that all processes of this machine have used; ``None``: it has no /proc."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq = Path("/proc/stat").read_text().split(None, 8)[1:8]
    except OSError:
        return None
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _rate(before: float | None, now: float | None, lasted_s: float) -> float | None:
    return None if before is None or now is None else round((now - before) / lasted_s, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)

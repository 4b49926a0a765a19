"""Who may use the processor now: one gate for heavy native calls, and the thread budget of all engines
together.

Native pools that run side by side multiply each other's latency: two calls that take 100 ms alone can take
400 ms each on two cores. So heavy calls (final recognition, prefill, synthesis, partials) pass one gate, best
class first.
Voice activity detection does not: its calls are short and always due.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from voice.errors import BadRequest
from voice.scope import Priority, Scope

CPU_SHARE = "VOICE_CPU_SHARE"
"""Environment variable: among how many processes like this one the machine's cores are divided."""

SlotClass: TypeAlias = Scope | Priority | Callable[[], Priority]
"""What tells the class of a waiting call. A scope or a function is asked again whenever a slot comes free."""


@dataclass(frozen=True, slots=True)
class GateStats:
    """The gate at one moment.

    Attributes:
        slots: How many calls may run at once.
        running: How many run.
        waiting: How many wait, by class (0 = committed).
        oldest_wait_s: How long the longest waiting one has waited, in seconds; 0 when none waits.
        granted: Slots given out so far.
        waited_s: Seconds that granted calls had to wait, all together.
    """

    slots: int
    running: int
    waiting: dict[Priority, int]
    oldest_wait_s: float
    granted: int
    waited_s: float


@dataclass(slots=True, eq=False)
class _Waiter:
    priority: SlotClass
    loop: asyncio.AbstractEventLoop
    wake: asyncio.Future[None]
    since: float
    arrived: int
    granted: bool = False

    def rank(self) -> Priority:
        if isinstance(self.priority, Priority):
            return self.priority
        return self.priority.priority if isinstance(self.priority, Scope) else self.priority()


_LOAD_S = 3.0
"""Over about so many seconds the load is a mean: longer than the calls of one turn, shorter than a turn."""


class _Busy:
    """The share of time that something was true, forgetting exponentially."""

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._share = self._at = 0.0
        self._on = False

    def share(self, now: float) -> float:
        """0 to 1. A clock that began anew (another loop's) adds nothing."""
        old = math.exp(-max(0.0, now - self._at) / self._over_s)
        return self._share * old + (1.0 - old) * self._on

    def set(self, on: bool, now: float | None) -> None:
        """It becomes true or false; ``now`` is ``None`` where there is no clock any more: the span is left out."""
        at = self._at if now is None else now
        self._share, self._at, self._on = self.share(at), at, on


class ComputeGate:
    """Lets a fixed number of heavy calls run at once: best class first, first come first served within a
    class.

    No class starves: a call that ``patience`` others have overtaken is next, at most every ``patience``-th
    time. Serves any number of event loops, also in different threads.

    Args:
        slots: How many calls may run at once, at least 1.
        patience: How many grants a waiting call may be passed over for.
    """

    def __init__(self, slots: int = 1, *, patience: int = 32) -> None:
        if slots < 1:
            raise ValueError(f"a gate needs at least one slot, not {slots}")
        self.slots = slots
        self.patience = patience
        self._lock = threading.Lock()  # held for a few instructions only, never over an await
        self._running = 0
        self._waiters: list[_Waiter] = []  # one per engine with work: as bounded as the engines are
        self._granted = 0
        self._overtaken_at = 0
        self._waited_s = 0.0
        self._full = _Busy(_LOAD_S)

    @asynccontextmanager
    async def slot(self, priority: SlotClass = Priority.COMMITTED) -> AsyncIterator[None]:
        """Hold a slot for the body of ``async with``. Cancelling the wait gives up the place and loses no
        slot."""
        waiter = self._enter(priority)
        if waiter is not None:
            try:
                await waiter.wake
            except BaseException:
                self._leave(waiter)
                raise
        try:
            yield
        finally:
            self._release()

    def _enter(self, priority: SlotClass) -> _Waiter | None:
        """Take a free slot, or a place in the queue."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._running < self.slots:
                self._running += 1
                self._granted += 1
                self._full.set(self._running == self.slots, loop.time())
                return None
            waiter = _Waiter(priority, loop, loop.create_future(), loop.time(), self._granted)
            self._waiters.append(waiter)
            return waiter

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if not waiter.granted:
                self._waiters.remove(waiter)
                return
        self._release()  # the slot came in the same moment as the cancellation: pass it on

    def _release(self) -> None:
        with self._lock:
            self._running -= 1
            while self._waiters and self._running < self.slots:
                waiter = self._next()
                self._waiters.remove(waiter)
                if waiter.loop.is_closed():  # its loop ended without cancelling it
                    continue
                self._waited_s += waiter.loop.time() - waiter.since
                waiter.granted = True
                self._running += 1
                self._granted += 1
                _wake(waiter)
            self._full.set(self._running == self.slots, _now())

    def _next(self) -> _Waiter:
        oldest = self._waiters[0]
        if self._granted - max(oldest.arrived, self._overtaken_at) >= self.patience:
            self._overtaken_at = self._granted
            return oldest
        return min(self._waiters, key=_Waiter.rank)  # the first of equals: arrival order

    def load(self, now: float) -> float:
        """How busy the processor is, 0–1: the share of the last seconds in which no slot was free.

        Args:
            now: Loop time.
        """
        with self._lock:
            return self._full.share(now)

    @property
    def stats(self) -> GateStats:
        """What runs and waits now."""
        with self._lock:
            waiting = dict.fromkeys(Priority, 0)
            for waiter in self._waiters:
                waiting[waiter.rank()] += 1
            oldest = max((w.loop.time() - w.since for w in self._waiters), default=0.0)
            return GateStats(self.slots, self._running, waiting, oldest, self._granted, self._waited_s)


def _now() -> float | None:
    """The running loop's time; ``None`` when a slot is given back after its loop's end."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None


def _wake(waiter: _Waiter) -> None:
    def wake() -> None:
        if not waiter.wake.done():
            waiter.wake.set_result(None)

    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is waiter.loop:
        wake()
    else:
        waiter.loop.call_soon_threadsafe(wake)


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """How many threads each native pool may use, so that together they fit the machine.

    Attributes:
        cores: Cores this process may use.
        asr_threads: Threads of one recognition.
        llm_threads: Threads of the language model while it writes; it should neither poll nor spin.
        prefill_threads: Threads of the language model while it reads its prompt, behind the compute gate.
        onnx_threads: Threads (intra and inter) of each ONNX session, without spinning.
    """

    cores: int
    asr_threads: int
    llm_threads: int
    onnx_threads: int = 1
    prefill_threads: int = 1

    @classmethod
    def detect(cls, processes: int = 1) -> CpuBudget:
        """The budget for this process: its CPU affinity, cut by the container's CPU quota and divided by
        ``VOICE_CPU_SHARE`` where that is set, as in the workers of ``voice serve``; at least one core.

        Args:
            processes: The budget of one of so many that this process will start.

        Raises:
            BadRequest: ``VOICE_CPU_SHARE`` is not a whole number of at least 1.
        """
        cores = _affinity()
        quota = _cgroup_quota()
        if quota is not None:
            cores = max(1, min(cores, int(quota)))
        cores = max(1, cores // (_sharing() * processes))
        # Encoder and decoder gain little beyond 8 threads, and memory bandwidth is shared by then.
        return cls(
            cores=cores,
            asr_threads=min(cores, 8),
            llm_threads=min(cores, 16),
            prefill_threads=min(cores, 16),
        )

    def environment(self, processes: int) -> dict[str, str]:
        """The environment of one of so many processes that this one will start, each with this budget."""
        found = {**os.environ, CPU_SHARE: str(processes * _sharing())}
        found.setdefault("OMP_NUM_THREADS", str(self.cores))  # of libraries that would use every core
        return found

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.cores} core{'s' if self.cores != 1 else ''}: recognition {self.asr_threads} threads, "
            f"language model {self.llm_threads} (prompt {self.prefill_threads}), ONNX sessions {self.onnx_threads} each"
        )


def _sharing() -> int:
    text = os.environ.get(CPU_SHARE, "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadRequest(f"{CPU_SHARE} must be a whole number of at least 1, not {text!r}")
    return int(text)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores granted by the CPU quota of control groups version 2 or 1; ``None`` without a quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # version 2 writes "max" for none
        return None
    return cores if cores > 0 else None  # version 1 writes -1 for none

"""Virtual time: an event loop whose clock jumps to the next timer: a minute of talk takes milliseconds.

A run depends on its coroutine and its seed only. What would make it depend on the machine (sockets, child
processes, threads nobody told the loop about) is refused with an error that says what to do instead.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor as PoolExecutor
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from voice.errors import VoiceError
from voice.testing.tasks import VirtualFuture, VirtualTask, describe_tasks

log = logging.getLogger("voice")
T = TypeVar("T")

SPIN_LIMIT = 100_000
"""Loop iterations at one instant after which the run is called stuck; a real run needs a few dozen."""
_FEW_TIMERS = 100
"""So many cancelled timers are not worth sorting out."""
SOCKET_GRACE_S = 0.005
"""Real seconds a run with allowed sockets waits for the kernel before its clock jumps."""


class VirtualTimeError(VoiceError):
    """A virtual run can't go on, or ended untidily."""


class Deadlocked(VirtualTimeError):
    """Nothing is ready, no timer is set and no thread works: the run would hang for ever."""


class TimeLimit(VirtualTimeError):
    """The run passed its limit of virtual time, or spins without letting time pass."""


class LeftOver(VirtualTimeError):
    """The coroutine returned and tasks it started still ran, or a callback had failed."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, starting at 0. Most tests want :func:`run_virtual` instead.

    Args:
        seed: Seed of :attr:`random`, from which the fakes draw.
        limit_s: Virtual time at which the run fails with :class:`TimeLimit`.
        allow_sockets: Let sockets and child processes through; the run is then no longer deterministic.
        thread_wait_s: Real seconds without a result after which a working thread counts as hung.

    Attributes:
        random: The run's only source of chance.
        callback_errors: What callbacks of the loop raised, at most 100.
        dropped_generators: Names of async generators that were left without being closed, at most 100.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int
    _clock_resolution: float
    _debug: bool
    _selector: Any
    _ssock: Any
    _thread_id: int | None
    _default_executor: ThreadPoolExecutor | None
    _process_events: Callable[[Any], None]

    def __init__(
        self,
        seed: int = 0,
        limit_s: float = 3600.0,
        *,
        allow_sockets: bool = False,
        thread_wait_s: float = 30.0,
    ) -> None:
        self._now = 0.0
        self.limit_s = limit_s
        self.seed = seed
        self.random = random.Random(seed)
        self.allow_sockets = allow_sockets
        self.thread_wait_s = thread_wait_s
        self.callback_errors: list[BaseException] = []
        self.dropped_generators: list[str] = []
        self._threads: set[object] = set()
        self._stray: str | None = None
        self._arrivals: dict[float, list[Callable[[], object]]] = {}
        self._spins = 0
        self._count = 0
        super().__init__()
        # A timer fires when it is due, no clock tick before: 1 ns covers the rounding of sums of floats.
        self._clock_resolution = 1e-9
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        """Virtual seconds since the start of the run."""
        return self._now

    def processor_time(self) -> float:
        """Processor time of the loop's thread in virtual seconds: none. What was really used depends on the machine."""
        return 0.0

    # ------------------------------------------------------------ the clock

    def _run_once(self) -> None:
        if self._stray is not None:
            stray, self._stray = self._stray, None
            raise VirtualTimeError(
                f"thread {stray!r} called into a virtual run that did not know of it; start its work through "
                "voice.executor.Executor, or tell loop.thread_started(future)"
            )
        if self._stopping:
            pass
        elif self._ready:
            self._count_spin()
        else:
            self._wait()
        mostly_cancelled = self._timer_cancelled_count > max(_FEW_TIMERS, len(self._scheduled) // 2)
        if self._threads or self.allow_sockets or self._debug or mostly_cancelled:
            super()._run_once()  # type: ignore[misc]
        else:
            self._run_ready()

    def _run_ready(self) -> None:
        """A round of asyncio's loop without its question to the kernel, which here has nothing to say."""
        ready, scheduled = self._ready, self._scheduled
        end = self._now + self._clock_resolution
        while scheduled and scheduled[0].when() < end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):  # what these add comes in the next round
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _count_spin(self) -> None:
        self._spins = 0 if self._threads else self._spins + 1
        if self._spins > SPIN_LIMIT:
            raise TimeLimit(
                f"{SPIN_LIMIT} rounds of the loop without any time passing at t={self._now:.3f} s: some task "
                f"spins. Tasks:\n{describe_tasks(self)}"
            )

    def _wait(self) -> None:
        """Nothing is ready: let threads or sockets come in, else jump to the next timer."""
        self._spins = 0
        if self._threads:
            events = self._selector.select(self.thread_wait_s)
            if not events:
                raise VirtualTimeError(
                    f"a real thread gave no result for {self.thread_wait_s:g} s of real time. "
                    f"Tasks:\n{describe_tasks(self)}"
                )
            self._process_events(events)
            return
        sockets = self.allow_sockets and len(self._selector.get_map()) > 1
        if sockets and (events := self._selector.select(SOCKET_GRACE_S)):
            self._process_events(events)
            return
        while self._scheduled and self._scheduled[0].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not self._scheduled:
            raise Deadlocked(
                f"nothing can happen any more at t={self._now:.3f} s: no timer is set and no thread works. "
                f"Tasks that wait:\n{describe_tasks(self)}"
            )
        due = self._scheduled[0].when()
        if due > self.limit_s:
            raise TimeLimit(
                f"the run passed its limit of {self.limit_s:g} s of virtual time. "
                f"Tasks:\n{describe_tasks(self)}"
            )
        self._now = max(self._now, due)

    def arrive_at(self, when: float, callback: Callable[[], object]) -> None:
        """Call back at ``when``; what arrives at the same instant comes in an order drawn from the seed."""
        due = round(max(when, self._now), 9)
        waiting = self._arrivals.get(due)
        if waiting is None:
            waiting = self._arrivals[due] = []
            self.call_at(due, self._arrive, due)
        waiting.append(callback)

    def _arrive(self, due: float) -> None:
        callbacks = self._arrivals.pop(due)
        self.random.shuffle(callbacks)
        for callback in callbacks:
            self.call_soon(callback)

    # ------------------------------------------------------------ threads

    def thread_started(self, future: asyncio.Future[Any]) -> None:
        """A real thread works until ``future`` is done; the clock stands still until then."""
        if not future.done():
            self._threads.add(future)
            future.add_done_callback(self._threads.discard)

    @property
    def threads(self) -> int:
        """How many pieces of work real threads still have."""
        return len(self._threads)

    def run_in_executor(  # type: ignore[override]
        self, executor: PoolExecutor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As in asyncio; the clock stands still until ``func`` returns, even if the future is cancelled."""
        if executor is None:
            executor = self._default_executor
            if executor is None:
                executor = ThreadPoolExecutor(thread_name_prefix="virtual")
                self.set_default_executor(executor)
        ticket = object()  # known before the thread starts, which may call back at once
        self._threads.add(ticket)
        try:
            work = executor.submit(func, *args)
        except BaseException:
            self._threads.discard(ticket)
            raise
        future = asyncio.wrap_future(work, loop=self)
        work.add_done_callback(lambda _: self._thread_ended(ticket))
        return future

    def _thread_ended(self, ticket: object) -> None:
        if not self.is_closed():
            self.call_soon_threadsafe(self._threads.discard, ticket)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """As in asyncio. From a thread that the loop was not told of, the run fails."""
        if (
            not self._threads
            and threading.get_ident() != getattr(self, "_thread_id", None)
            and self.is_running()
        ):
            self._stray = threading.current_thread().name
        return super().call_soon_threadsafe(callback, *args, context=context)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Stop the default threads; waits for them unless one hangs."""
        if self._default_executor is not None:
            self._default_executor.shutdown(wait=not self._threads, cancel_futures=True)

    # ------------------------------------------------------------ bookkeeping

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any
    ) -> asyncio.Task[Any]:
        self._count += 1
        return VirtualTask(self._count, coro, loop=loop, **kwargs)

    def create_future(self) -> asyncio.Future[Any]:
        """As in asyncio."""
        self._count += 1
        return VirtualFuture(self._count, loop=self)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException) and len(self.callback_errors) < 100:
            self.callback_errors.append(error)
        self.default_exception_handler(context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if len(self.dropped_generators) < 100:
            self.dropped_generators.append(agen.__qualname__)
        log.warning("async generator %s was dropped without being closed; use aclosing", agen.__qualname__)
        super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
        self._refuse_fd(fd)
        return super()._add_reader(fd, callback, *args)  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:
        self._refuse_fd(fd)
        return super()._add_writer(fd, callback, *args)  # type: ignore[misc]

    def _refuse_fd(self, fd: Any) -> None:
        own = self._ssock.fileno()
        if not self.allow_sockets and fd != own:
            raise _outside("watching a file descriptor")


def _outside(what: str) -> VirtualTimeError:
    return VirtualTimeError(
        f"{what} reaches outside the run, where virtual time has no hold: use a fake from voice.testing, or "
        "run_virtual(..., allow_sockets=True) and give up exact replay"
    )


def _guard(name: str) -> None:
    original = getattr(VirtualLoop, name)

    async def guarded(self: VirtualLoop, *args: Any, **kwargs: Any) -> Any:
        if not self.allow_sockets:
            raise _outside(f"loop.{name}()")
        return await original(self, *args, **kwargs)

    guarded.__name__ = name
    setattr(VirtualLoop, name, guarded)


for _name in (
    *("create_connection", "create_server", "create_datagram_endpoint", "connect_accepted_socket"),
    *("create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo", "sendfile", "start_tls"),
    *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"),
    *("sock_sendall", "sock_sendfile", "sock_sendto", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
):
    if hasattr(VirtualLoop, _name):
        _guard(_name)

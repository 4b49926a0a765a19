"""What keeps the event loop from turning? A watchdog thread that names it: a tool that computes or waits on the loop,
the garbage collector, too much at once, or a machine that gives the process no time.

A blocked loop is silence in every conversation of the process. The loop beats 10 times a second; the thread looks
where the loop's thread stands only when a beat is late. Nothing is done per frame.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, TracebackType
from typing import Literal, NamedTuple, TypeAlias

log = logging.getLogger("voice.watchdog")

BEAT_S = 0.1
LIMIT_S = 0.1
"""Five frames of audio: what a client has in hand (60 ms and up) is used up."""
Cause: TypeAlias = Literal["computes", "waits", "collects", "crowded", "starved"]
CAUSES: tuple[Cause, ...] = ("computes", "waits", "collects", "crowded", "starved")

_TOLD_AT_LATEST_S = 5.0
"""A loop that never turns again is told of after so long."""
_REPEAT_S = 10.0
"""The same place is not logged again for so long; it is counted all the same."""
_MOST_LOOKS = 32
_OUTER, _INNER = 30, 10
"""Of a deep stack, so many frames are kept from each end."""
_OURS = frozenset(("voice", "stages", "transports"))
_LOOP_CODES: frozenset[CodeType] = frozenset(
    function.__code__
    for function in (
        asyncio.Handle._run,
        asyncio.BaseEventLoop._run_once,  # type: ignore[attr-defined]
        asyncio.BaseEventLoop.run_forever,
        asyncio.BaseEventLoop.run_until_complete,
        asyncio.Runner.run,
        asyncio.run,
    )
)
_SAYS: dict[Cause, str] = {
    "computes": "which computes",
    "waits": "which waits",
    "collects": "where garbage was collected",
    "crowded": "one of many callbacks in a row",
    "starved": "which got no processor time",
}


class Place(NamedTuple):
    """A line of code that runs."""

    module: str
    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Blocked:
    """The event loop did not turn for a while.

    Attributes:
        cause: ``"computes"`` and ``"waits"``: the code at ``place`` did, on the loop; ``"collects"``: a garbage
            collection; ``"crowded"``: many callbacks, none of them long; ``"starved"``: the loop's thread was ready
            but got no processor, or another thread kept the interpreter.
        place: The function of the user's that was running, or ours where none was; ``None``: not seen.
        seconds: How long, at least; up to 0.1 s more.
        cpu_s: Processor time of the loop's thread in it.
        process_cpu_s: Processor time of all threads in it: tells a busy machine from a busy process.
        stack: What ran, from the loop inwards, a line each.
    """

    cause: Cause
    place: Place | None
    seconds: float
    cpu_s: float
    process_cpu_s: float
    stack: tuple[Place, ...]


@dataclass(slots=True)
class _Beat:
    """The loop's last sign of life: ``due`` is when the next one should come, in seconds of ``time.monotonic``."""

    due: float
    cpu_s: float
    process_cpu_s: float
    collected_s: float


@dataclass(slots=True)
class _Watch:
    """What the thread saw since a beat.

    Attributes:
        looks: Where the loop's thread stood at each look.
        run: The outermost frame of the callback that ran at the last look.
        runs: How many callbacks were seen to run.
        ready: Looks at which it was ready to run.
        late_s: How much too late the thread itself woke, at most.
        told: The incident has been logged.
        paused: The loop was not running: nothing is wrong.
    """

    beat: _Beat
    looks: list[tuple[Place, ...]] = field(default_factory=list)
    run: FrameType | None = None
    runs: int = 0
    ready: int = 0
    late_s: float = 0.0
    told: bool = False
    paused: bool = False

    def judge(self, measured: Blocked) -> Blocked:
        """What the loop measured, with what was seen."""
        ready = 2 * self.ready > len(self.looks)
        return judge(measured, self.looks, runs=self.runs, ready=ready, late_s=self.late_s)


class Watchdog:
    """Watches the event loop it is started on; use it as an async context manager, or :meth:`start` and :meth:`stop`.

    A block of ``limit_s`` + 0.1 s is always noticed, one of less than ``limit_s`` never. On a virtual loop, whose
    time is not the machine's, it does nothing. The thread ends with the loop, stopped or not.

    Args:
        limit_s: How late a beat may be, in seconds.

    Attributes:
        counts: Incidents, by cause.
        blocked_s: Seconds of all incidents together.
        worst: The longest.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        if not 0.01 <= limit_s <= 60.0:
            raise ValueError(f"limit_s must be 0.01 to 60 s, not {limit_s}")
        self.limit_s = limit_s
        self.counts: Counter[Cause] = Counter()
        self.blocked_s = 0.0
        self.worst: Blocked | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._last = _Beat(0.0, 0.0, 0.0, 0.0)
        self._late: deque[tuple[_Beat, Blocked]] = deque(maxlen=64)  # from the loop to the thread
        self._collected_s = self._collects_since = 0.0
        self._logged: dict[str, float] = {}

    async def __aenter__(self) -> Watchdog:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Watch the running loop. Does nothing where it is watched already."""
        loop = asyncio.get_running_loop()
        if loop is self._loop or hasattr(loop, "thread_started"):  # the mark of a virtual loop
            return
        self.stop()
        self._loop, self._ended = loop, threading.Event()
        self._last = self._beat_now(time.monotonic())
        self._timer = loop.call_later(BEAT_S, self._beat)
        gc.callbacks.append(self._collecting)
        who = (loop, threading.get_ident(), threading.get_native_id(), self._ended)
        threading.Thread(target=self._watch, args=who, name="voice-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more; the thread ends by itself in a moment. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        self._ended.set()
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    # ------------------------------------------------------------ on the loop

    def _beat_now(self, now: float) -> _Beat:
        return _Beat(now + BEAT_S, time.thread_time(), time.process_time(), self._collected_s)

    def _beat(self) -> None:
        loop, last, now = self._loop, self._last, time.monotonic()
        if loop is None:
            return
        new = self._last = self._beat_now(now)
        if (late_s := now - last.due) >= self.limit_s:
            self._late.append((last, self._measured(last, new, late_s)))
        self._timer = loop.call_later(BEAT_S, self._beat)

    def _measured(self, last: _Beat, new: _Beat, late_s: float) -> Blocked:
        """An incident as the loop itself knows it; the thread adds what it saw."""
        cpu_s = new.cpu_s - last.cpu_s
        collects = new.collected_s - last.collected_s >= late_s / 2
        cause: Cause = "collects" if collects else "computes" if cpu_s >= late_s / 2 else "waits"
        return Blocked(cause, None, late_s, cpu_s, new.process_cpu_s - last.process_cpu_s, ())

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:  # the others take no time to speak of
            now = time.monotonic()
            if phase == "start":
                self._collects_since = now
            else:
                self._collected_s += now - self._collects_since

    # ------------------------------------------------------------ in the thread

    def _watch(
        self, loop: asyncio.AbstractEventLoop, thread: int, native: int, ended: threading.Event
    ) -> None:
        seen = _Watch(self._last)
        step_s = self.limit_s / 2
        while True:
            now, due = time.monotonic(), seen.beat.due + step_s
            wait_s = step_s if seen.looks else max(0.001, due - now)
            if ended.wait(wait_s) or loop.is_closed():
                break
            woke_at = time.monotonic()
            late_s = woke_at - now - wait_s
            seen.late_s = max(seen.late_s, late_s)
            self._settle(seen, late_s)
            if self._last is not seen.beat:
                seen = _Watch(self._last)
                seen.late_s = min(late_s, max(0.0, woke_at - seen.beat.due))
            elif woke_at >= due:
                self._look(loop, thread, native, seen)
        self._settle(seen, 0.0)
        if self._loop is loop:  # it was closed and nobody stopped the watchdog
            self.stop()

    def _look(self, loop: asyncio.AbstractEventLoop, thread: int, native: int, seen: _Watch) -> None:
        if not loop.is_running():
            seen.paused = True
        if len(seen.looks) >= _MOST_LOOKS:
            seen.looks.pop(0)
        seen.ready += _is_ready(native)
        frames = frames_of(sys._current_frames().get(thread))
        seen.runs += not frames or frames[0] is not seen.run
        seen.run = frames[0] if frames else None
        seen.looks.append(stack_of(frames))
        del frames
        late_s = time.monotonic() - seen.beat.due
        if late_s >= _TOLD_AT_LATEST_S and not seen.told and not seen.paused:
            seen.told = True
            cpu_s = _cpu_s(thread, seen.beat.cpu_s) - seen.beat.cpu_s
            process_cpu_s = time.process_time() - seen.beat.process_cpu_s
            cause: Cause = "computes" if cpu_s >= late_s / 2 else "waits"
            blocked = Blocked(cause, None, late_s, cpu_s, process_cpu_s, ())
            self._tell(seen.judge(blocked), over=False)

    def _settle(self, seen: _Watch, late_s: float) -> None:
        """Count what is over. ``late_s``: how much too late the thread has just woken."""
        while self._late:
            beat, blocked = self._late.popleft()
            watch = seen if beat is seen.beat else _Watch(beat, late_s=late_s)
            if watch.paused:
                continue
            blocked = watch.judge(blocked)
            self.counts[blocked.cause] += 1
            self.blocked_s += blocked.seconds
            if self.worst is None or blocked.seconds > self.worst.seconds:
                self.worst = blocked
            if not watch.told:
                self._tell(blocked, over=True)

    def _tell(self, blocked: Blocked, *, over: bool) -> None:
        now = time.monotonic()
        key = f"{blocked.cause} {blocked.place[:3] if blocked.place else None}"
        if now - self._logged.get(key, -_REPEAT_S) < _REPEAT_S:
            return
        self._logged.pop(key, None)
        self._logged[key] = now
        if len(self._logged) > 64:
            del self._logged[next(iter(self._logged))]
        inmost = blocked.stack[-1] if blocked.stack else None
        log.warning(
            "the event loop %s %.2f s by %s%s, %s; no conversation went on meanwhile",
            "was blocked for" if over else "has been blocked for",
            blocked.seconds,
            blocked.place or "what was not seen",
            "" if inmost == blocked.place else f" in {inmost}",
            _SAYS[blocked.cause],
            extra={
                "cause": blocked.cause,
                "cpu_s": round(blocked.cpu_s, 3),
                "process_cpu_s": round(blocked.process_cpu_s, 3),
                "stack": " < ".join(str(place) for place in reversed(blocked.stack)),
            },
        )


# ---------------------------------------------------------------- whose fault it is


def judge(
    measured: Blocked, looks: list[tuple[Place, ...]], *, runs: int, ready: bool, late_s: float
) -> Blocked:
    """The incident with its place, and its cause put right by what the thread saw.

    Args:
        measured: As the loop itself measured it.
        looks: The stacks seen, oldest first.
        runs: How many callbacks they are of.
        ready: At most looks the loop's thread was ready to run, so it did not wait for anything.
        late_s: How late the watchdog's own thread was woken.
    """
    cause, half_s = measured.cause, measured.seconds / 2
    if cause == "waits" and (ready or late_s >= half_s):
        cause = "starved"
    elif cause == "computes" and len(looks) >= 3 and 2 * runs > len(looks):
        cause = "crowded"
    blamed = [(place, stack) for stack in looks if (place := blame(stack)) is not None]
    if not blamed:
        return replace(measured, cause=cause)
    most = Counter(place[:3] for place, _ in blamed).most_common(1)[0][0]
    place, stack = next((p, s) for p, s in blamed if p[:3] == most)
    return replace(measured, cause=cause, place=place, stack=stack)


def blame(stack: tuple[Place, ...]) -> Place | None:
    """Of what the loop ran, outermost first: the user's function; else another's that ours called; else ours."""
    theirs = [p for p in stack if (top := _top(p)) not in _OURS and top not in sys.stdlib_module_names]
    ours = [p for p in stack if _top(p) in _OURS]
    own = [p for p in theirs if "site-packages" not in p.file and "dist-packages" not in p.file]
    return next(iter([*own, *reversed(ours), *theirs, *stack]), None)


def frames_of(frame: FrameType | None) -> list[FrameType]:
    """The frames of what the event loop runs in a thread, outermost first; none when it is idle."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code not in _LOOP_CODES:
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    idle = bool(frames) and _module(frames[0]) == "selectors"  # it waits for something to do
    return [] if idle else frames


def stack_of(frames: list[FrameType]) -> tuple[Place, ...]:
    """Where frames stand; our own doings left out."""
    kept = frames if len(frames) <= _OUTER + _INNER else frames[:_OUTER] + frames[-_INNER:]
    return tuple(
        Place(_module(f), f.f_code.co_filename, f.f_code.co_qualname, f.f_lineno)
        for f in kept
        if f.f_code.co_filename != __file__
    )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _top(place: Place) -> str:
    return place.module.partition(".")[0]


def _cpu_s(thread: int, unknown: float) -> float:
    """Processor time of a thread of this process so far; ``unknown`` where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return unknown
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _is_ready(native: int) -> bool:
    """Whether a thread of this process runs or would if there were a processor for it; ``False`` where it's not
    known."""
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False

"""Scope: who a piece of work belongs to, until when it may run, and how it is stopped.

Scopes form a tree: process → session → turn → speculation → stage call. Cancelling is synchronous and goes
downward: first every descendant is marked, then the callbacks run (the playout drops its audio, batchers and
remote requests let go), then all tasks are cancelled side by side. Nothing waits for a task to unwind.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from voice.errors import DeadlineExceeded, ScopeCancelled

log = logging.getLogger("voice")
T = TypeVar("T")


class Reason(StrEnum):
    """Why a scope was cancelled."""

    BARGE_IN = "barge_in"
    RESUMED = "resumed"  # the user went on speaking: the guess or the unheard answer is void
    SUPERSEDED = "superseded"  # a newer turn, revision or response took its place
    CLIENT = "client"  # the owner or the client asked for it
    DEADLINE = "deadline"
    FAILED = "failed"
    CLOSED = "closed"  # the session ended


class Priority(IntEnum):
    """The class of a request at a shared engine; lower runs first."""

    COMMITTED = 0
    SPECULATIVE = 1
    PARTIAL = 2
    BACKGROUND = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose result this is. The sink compares it with what is current and drops what is stale."""

    session: str
    turn: int
    revision: int


_NO_CONFIG: Mapping[str, object] = MappingProxyType({})
_ids = itertools.count(1)


class Scope:
    """A node of the scope tree. Make the root with ``Scope("process")``, all others with :meth:`child`.

    Args:
        kind: ``process``, ``session``, ``turn``, ``speculation``, ``response``, ``stage`` or ``tool``.
        parent: The scope this one ends with.
        identity: Session, turn and revision; inherited when ``None``.
        deadline: Hard end in loop time (seconds); never later than the parent's. ``None``: the parent's.
        priority: Class at shared engines; inherited when ``None``.
        config: Frozen configuration that tags results; merged over the parent's.
        reaper: Where cancelled tasks go; inherited when ``None``.
    """

    def __init__(
        self,
        kind: str,
        *,
        parent: Scope | None = None,
        identity: Identity | None = None,
        deadline: float | None = None,
        priority: Priority | None = None,
        config: Mapping[str, object] | None = None,
        reaper: Reaper | None = None,
    ) -> None:
        self.kind = kind
        self.number = next(_ids)
        self.parent = parent
        self.cancelled = False
        self.reason: Reason | None = None
        self.closed = False
        self._children: dict[int, Scope] = {}
        self._callbacks: dict[int, Callable[[Reason], None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if parent is None:
            self.identity = identity or Identity("", 0, 0)
            self.deadline = deadline
            self._priority = priority
            self.config = MappingProxyType(dict(config or {}))
            self.reaper = reaper or Reaper()
        else:
            self.identity = identity or parent.identity
            ends = [d for d in (deadline, parent.deadline) if d is not None]
            self.deadline = min(ends) if ends else None
            self._priority = priority
            self.config = MappingProxyType({**parent.config, **config}) if config else parent.config
            self.reaper = reaper or parent.reaper
            if parent.cancelled or parent.closed:
                self.cancelled, self.reason = True, parent.reason or Reason.CLOSED
            else:
                parent._children[self.number] = self
        if deadline is not None and not self.cancelled and self.deadline == deadline:
            self._timer = asyncio.get_running_loop().call_at(deadline, self.cancel, Reason.DEADLINE)

    def __repr__(self) -> str:
        state = f" cancelled={self.reason}" if self.cancelled else ""
        i = self.identity
        return f"<Scope {self.kind}#{self.number} {i.session}/{i.turn}.{i.revision}{state}>"

    def child(
        self,
        kind: str,
        *,
        identity: Identity | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Scope:
        """A scope under this one; born cancelled when this one is over. ``timeout_s`` counts from now."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        return Scope(
            kind, parent=self, identity=identity, deadline=deadline, priority=priority, config=config
        )

    @property
    def priority(self) -> Priority:
        """The class of this scope's requests now; a guess rises to committed when :meth:`promote` is called."""
        scope: Scope | None = self
        while scope is not None:
            if scope._priority is not None:
                return scope._priority
            scope = scope.parent
        return Priority.COMMITTED

    def promote(self, priority: Priority = Priority.COMMITTED) -> None:
        """The guess became certain: this scope and what inherits from it move to ``priority``."""
        self._priority = priority

    def remaining(self) -> float | None:
        """Seconds until the deadline (0 when past); ``None`` without one."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raise if the work should not go on.

        Raises:
            DeadlineExceeded: The deadline passed.
            ScopeCancelled: Cancelled for another reason.
        """
        if self.cancelled:
            if self.reason is Reason.DEADLINE:
                raise DeadlineExceeded(f"the deadline of this {self.kind} passed")
            raise ScopeCancelled(f"this {self.kind} was cancelled: {self.reason}")

    def on_cancel(self, callback: Callable[[Reason], None]) -> Callable[[], None]:
        """Call ``callback(reason)`` inside :meth:`cancel`; at once if already cancelled. Returns its remover.

        The callback must be quick and must not raise; one that raises is logged and the others still run.
        """
        if self.cancelled:
            self._call(callback)
            return lambda: None
        key = next(_ids)
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None) and None

    def run(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that ends with this scope. Its failure is its own: siblings are not touched."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        if self.cancelled or self.closed:
            task.cancel()
            self.reaper.adopt(task)
            return task
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s of %r failed", task.get_name(), self, exc_info=error)

    def cancel(self, reason: Reason) -> None:
        """Stop this scope and all below it. Returns when everything is marked and silent; unwinding goes on alone.

        A second call does nothing. The caller's own task may be among those cancelled: it sees
        ``CancelledError`` at its next await.
        """
        if self.cancelled or self.closed:
            return
        family = self._mark(reason)
        for scope in family:
            callbacks, scope._callbacks = list(scope._callbacks.values()), {}
            for callback in callbacks:
                scope._call(callback)
        for scope in family:
            tasks, scope._tasks = scope._tasks, set()
            for task in tasks:
                task.remove_done_callback(scope._task_done)
                task.cancel()
                scope.reaper.adopt(task)
            scope._detach()

    def _mark(self, reason: Reason) -> list[Scope]:
        self.cancelled, self.reason = True, reason
        family = [self]
        for scope in list(self._children.values()):
            if not scope.cancelled:
                family.extend(scope._mark(reason))
        return family

    def _call(self, callback: Callable[[Reason], None]) -> None:
        try:
            callback(self.reason or Reason.CLOSED)
        except Exception:
            log.exception("a cancel callback of %r failed", self)

    def _detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.parent is not None:
            self.parent._children.pop(self.number, None)
        self._children.clear()
        self._callbacks.clear()

    def close(self) -> None:
        """The work is done: leave the tree. What still runs below is cancelled."""
        if self.closed or self.cancelled:
            self.closed = True
            return
        if self._children or self._tasks:
            self.cancel(Reason.CLOSED)
        self.closed = True
        self._detach()

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Reaper:
    """Holds cancelled tasks until they have unwound, so that nobody else has to wait for them.

    Attributes:
        slow_s: A task that is still running this long after its cancel is named in the log: it swallowed
            ``CancelledError`` or is stuck in a call.
        detached: How many tasks :meth:`drain` gave up on.
    """

    slow_s: float = 1.0
    detached: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _named: int = 0

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Take over a task that has been cancelled."""
        if task.done():
            self._done(task)
            return
        self._tasks.add(task)
        task.add_done_callback(self._done)
        handle = asyncio.get_running_loop().call_later(self.slow_s, self._name, task)
        task.add_done_callback(lambda _: handle.cancel())

    def _name(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            self._named += 1
            log.warning("task %s ignores its cancel for %.1f s", task.get_name(), self.slow_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ScopeCancelled):  # that one is how it was told to stop
            log.warning("task %s failed while it was cancelled: %r", task.get_name(), error)

    @property
    def pending(self) -> int:
        """Tasks that have been cancelled and still run."""
        return len(self._tasks)

    @property
    def ignored_cancels(self) -> int:
        """How many tasks ignored their cancel for longer than ``slow_s``."""
        return self._named

    async def drain(self, timeout_s: float = 2.0) -> int:
        """Wait until all adopted tasks are gone, at most ``timeout_s``; returns how many were left behind."""
        waiting = {t for t in self._tasks if t is not asyncio.current_task()}
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        left = {t for t in waiting if not t.done()}
        for task in left:
            log.warning("task %s did not stop within %.1f s and was left behind", task.get_name(), timeout_s)
        self._tasks -= left
        self.detached += len(left)
        return len(left)

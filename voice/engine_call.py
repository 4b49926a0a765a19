"""One engine call off the event loop: a time limit, one result for each item, and whose fault a failure
is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Generic, TypeVar, cast

from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.executor import Executor

In = TypeVar("In")
Out = TypeVar("Out")


class EngineCall(Generic[In, Out]):
    """Runs an engine's native function, never twice at the same time.

    Args:
        run: The function; one result for each item, in the same order.
        executor: Where it runs.
        timeout_s: Longest call, in seconds.
    """

    def __init__(
        self, run: Callable[[Sequence[In]], Sequence[Out]], executor: Executor, timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self._run = run
        self._executor = executor
        self._one_call = threading.Lock()  # holds even if the executor has many threads
        self._hung: asyncio.Future[list[Out]] | None = None

    @property
    def hangs(self) -> bool:
        """A call that exceeded its time limit is still running."""
        return self._hung is not None

    def forget_hang(self) -> None:
        """The loop of the call has ended, so its end would not be seen."""
        self._hung = None

    async def outcome(self, items: list[In]) -> list[Out] | BaseException:
        """The results, or what went wrong. Raises nothing but ``CancelledError``."""
        try:
            future = self._executor.run(self._native, items)
        except RuntimeError as error:  # closed
            return EngineFailed(f"its executor takes no work: {error}", retryable=False)
        future.add_done_callback(_see)
        await asyncio.wait({future}, timeout=self.timeout_s)
        if not future.done():
            self._hung = future
            future.add_done_callback(self._came_back)
            return EngineFailed(f"no answer within {self.timeout_s:g} s")
        if future.cancelled():
            return EngineFailed("its executor was closed during the call", retryable=False)
        return future.exception() or future.result()

    def _native(self, items: list[In]) -> list[Out]:
        with self._one_call:
            try:
                results: object = self._run(items)
            except StopIteration as error:  # no future takes it: the call would seem to hang
                raise RuntimeError("it raised StopIteration") from error
            if (count := _count(results)) != len(items):
                got = "no list of results" if count is None else f"{count} results"
                raise EngineFailed(f"{len(items)} items, {got}: whose is whose?", retryable=False)
            return list(cast(Sequence[Out], results))

    def _came_back(self, future: asyncio.Future[list[Out]]) -> None:
        if self._hung is future:
            self._hung = None


def _count(results: object) -> int | None:
    """How many results there are, in an order; ``None``: it is nothing of the kind."""
    if isinstance(results, str | bytes | bytearray | Mapping | Set) or getattr(results, "ndim", 1) == 0:
        return None
    indexed = hasattr(results, "__getitem__") and hasattr(results, "__len__")
    return len(cast(Sequence[object], results)) if indexed else None


def _see(future: asyncio.Future[list[Out]]) -> None:
    """Mark a failure as seen even where nobody waits for the call any more."""
    if not future.cancelled():
        future.exception()


def is_engine_fault(failure: BaseException) -> bool:
    """The whole call failed; running a part of its items would fail as well."""
    return isinstance(failure, EngineFailed | MemoryError) or not isinstance(failure, Exception)


def is_input_fault(failure: BaseException) -> bool:
    """The engine works and says that the input is wrong. Neither fault: unknown, so try with fewer items."""
    return isinstance(failure, VoiceError | ValueError | TypeError) and not is_engine_fault(failure)


def input_error(name: str, failure: BaseException) -> VoiceError:
    """What the owner of an input is told that ``name`` failed on."""
    if isinstance(failure, VoiceError):
        return failure
    told: VoiceError
    if is_input_fault(failure):
        told = BadRequest(f"{name} can't use this input: {failure}")
    else:
        told = EngineFailed(f"{name} failed on this input: {failure!r}", retryable=False)
    told.__cause__ = failure
    return told


def engine_error(name: str, failure: BaseException) -> EngineFailed:
    """What everyone in a failed call is told; one for each, or a shared one would collect all tracebacks."""
    retryable = failure.retryable if isinstance(failure, EngineFailed) else True
    told = EngineFailed(f"{name} failed: {str(failure) or type(failure).__name__}", retryable=retryable)
    told.__cause__ = failure
    return told

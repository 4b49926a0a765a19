"""B48: one bad input breaks a batch; the worker dies and every later request waits for ever.

The kind of fault: one caller's input ends what all callers share. It is made impossible in ``voice/batching.py``
(halves are run again until only the culprit has the error; what fits no bucket is refused before it waits) and in
``voice/engine_call.py`` (whatever a call raises or returns, there is an outcome within the time limit).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from voice.batching import Batcher
from voice.errors import BadRequest, EngineFailed, ScopeCancelled
from voice.executor import Executor, ThreadExecutor
from voice.scope import Reason, Scope
from voice.testing import VirtualExecutor, run_virtual

MOST_WORDS = 512
SOON_S = 1.0
Vector = tuple[int, ...]


def vector(text: str) -> Vector:
    return tuple(hashlib.sha256(text.encode()).digest()[:8])


class Embedder:
    """Texts to vectors for all sessions, in batches. Breaks on any text with ``BAD`` in it.

    Args:
        error: What it raises then.
        truncate: Over-long texts are cut to ``MOST_WORDS``; else they are refused.
    """

    def __init__(
        self,
        error: Callable[[], BaseException] = lambda: ValueError("BAD"),
        *,
        truncate: bool = False,
        executor: Executor | None = None,
        **options: Any,
    ) -> None:
        self.error, self.truncate = error, truncate
        self.calls = 0
        self.batcher: Batcher[str, Vector] = Batcher(
            self._run,
            name="embedder",
            executor=executor or VirtualExecutor(0.02, threads=1),
            max_batch=16,
            bucket=self._bucket,
            **options,
        )

    def _bucket(self, text: str) -> int:
        words = len(text.split())
        if not words:
            raise BadRequest("there is nothing to embed")
        if words > MOST_WORDS:
            raise BadRequest(f"{words} words; {MOST_WORDS} are the most")
        return max(16, 1 << (words - 1).bit_length())

    def _run(self, texts: Sequence[str]) -> list[Vector]:
        self.calls += 1
        assert all(0 < len(text.split()) <= MOST_WORDS for text in texts)
        if any("BAD" in text for text in texts):
            raise self.error()
        return [vector(text) for text in texts]

    async def embed(self, texts: str | list[str], scope: Scope) -> Any:
        """A vector for a text; for a list the vectors in its order."""
        if isinstance(texts, list):
            return await asyncio.gather(*(self.embed(text, scope) for text in texts))
        text = " ".join(texts.split()[:MOST_WORDS]) if self.truncate else texts
        return await self.batcher.submit(text, scope)


async def together(embedder: Embedder, texts: Sequence[str], scope: Scope) -> list[Any]:
    return await asyncio.gather(*(embedder.embed(text, scope) for text in texts), return_exceptions=True)


async def ten_more(embedder: Embedder, scope: Scope) -> None:
    """Ten good texts, one after the other, each answered soon."""
    for number in range(10):
        async with asyncio.timeout(SOON_S):
            assert await embedder.embed(f"good {number}", scope) == vector(f"good {number}")


# ---------------------------------------------------------------- one bad text


@pytest.mark.parametrize(
    "error", [ValueError, IndexError, ZeroDivisionError, UnicodeError, StopIteration, RuntimeError]
)
def test_the_bad_text_gets_its_error_its_neighbours_their_vectors_and_ten_more_come_soon(
    error: type[Exception],
) -> None:
    async def main() -> None:
        embedder, scope = Embedder(error), Scope("process")
        first, bad, last = await together(embedder, ["ok one", "BAD", "ok two"], scope)
        assert (first, last) == (vector("ok one"), vector("ok two"))
        assert isinstance(bad, BadRequest | EngineFailed)
        await ten_more(embedder, scope)
        assert embedder.batcher.stats.depth == 0

    run_virtual(main())


@pytest.mark.parametrize("error", [MemoryError, lambda: EngineFailed("the device is lost")])
def test_a_text_that_takes_the_engine_with_it_keeps_nobody_waiting_and_others_are_served_again(
    error: Callable[[], BaseException],
) -> None:
    async def main() -> None:
        embedder, scope = Embedder(error), Scope("process")
        async with asyncio.timeout(SOON_S):
            results = await together(embedder, ["ok one", "BAD", "ok two"], scope)
            assert all(isinstance(r, EngineFailed) for r in results)
            [at_once] = await together(embedder, ["ok three"], scope)
            assert isinstance(at_once, EngineFailed)
        await asyncio.sleep(1.0)  # the breaker's
        await ten_more(embedder, scope)

    run_virtual(main())


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_no_exception_of_a_real_thread_keeps_the_engine_for_ever(error: type[BaseException]) -> None:
    executor = ThreadExecutor("embedder")
    embedder = Embedder(error, executor=executor, cooldown_s=0.02, timeout_s=20.0)

    async def main() -> None:
        scope = Scope("process")
        results = await together(embedder, ["ok one", "BAD", "ok two"], scope)
        assert isinstance(results[1], EngineFailed)
        await asyncio.sleep(0.05)
        await ten_more(embedder, scope)

    try:
        asyncio.run(asyncio.wait_for(main(), 15))
    finally:
        executor.close()


def test_a_call_off_the_loop_that_raises_stop_iteration_is_answered() -> None:
    def broken() -> int:
        return next(iter([]))

    async def main() -> None:
        executor = ThreadExecutor("any engine")
        try:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await executor.run(broken)
        finally:
            executor.close()

    asyncio.run(asyncio.wait_for(main(), 15))


# ---------------------------------------------------------------- over-long, empty, single and list


LONG = "word " * (MOST_WORDS + 1)


@pytest.mark.parametrize("text", [LONG, "", "   "])
def test_a_text_that_fits_no_batch_is_refused_at_once_alone_and_in_a_list_and_never_waits(text: str) -> None:
    async def main() -> None:
        embedder, scope = Embedder(), Scope("process")
        told = []
        for form in (text, [text], ["ok", text, "ok"]):
            with pytest.raises(BadRequest) as caught:
                await embedder.embed(form, scope)
            told.append(str(caught.value))
        assert len(set(told)) == 1
        assert asyncio.get_running_loop().time() == 0.0, "nothing was waited for"
        await ten_more(embedder, scope)

    run_virtual(main())


def test_truncation_cuts_a_single_text_and_one_of_a_list_alike() -> None:
    async def main() -> None:
        embedder, scope = Embedder(truncate=True), Scope("process")
        cut = vector(" ".join(["word"] * MOST_WORDS))
        assert await embedder.embed(LONG, scope) == cut
        assert await embedder.embed([LONG, "ok", LONG], scope) == [cut, vector("ok"), cut]

    run_virtual(main())


def test_vectors_keep_the_order_of_a_list_of_many_lengths() -> None:
    async def main() -> None:
        embedder, scope = Embedder(), Scope("process")
        texts = [f"{n} " + "word " * (7 * n) for n in range(60)]
        assert await embedder.embed(texts, scope) == [vector(text) for text in texts]
        assert embedder.calls < 20

    run_virtual(main())


# ---------------------------------------------------------------- under load


@pytest.mark.parametrize("error", [ValueError, RuntimeError, StopIteration])
@pytest.mark.parametrize("seed", range(2))
def test_of_many_sessions_at_once_only_those_with_bad_texts_get_errors(
    seed: int, error: type[Exception]
) -> None:
    """Forty sessions with 25 texts each: some bad, some over-long, some empty, some given up."""
    print(f"seed={seed}")
    chance = random.Random(seed)
    embedder = Embedder(error)

    async def session(number: int, process: Scope) -> None:
        loop = asyncio.get_running_loop()
        for turn in range(25):
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            text = chance.choices(
                [f"session {number} turn {turn} " + "word " * chance.randrange(200), "BAD", LONG, ""],
                [0.9, 0.04, 0.03, 0.03],
            )[0]
            scope = process.child("turn")
            if chance.random() < 0.1:
                loop.call_later(chance.uniform(0.0, 0.1), scope.cancel, Reason.BARGE_IN)
            asked_at = loop.time()
            [result] = await together(embedder, [text], scope)
            if not isinstance(result, ScopeCancelled):
                good = text not in ("BAD", LONG, "")
                assert result == vector(text) if good else isinstance(result, BadRequest | EngineFailed)
            assert loop.time() - asked_at <= SOON_S
            scope.close()

    async def main() -> None:
        process = Scope("process")
        await asyncio.gather(*(session(number, process) for number in range(40)))
        await ten_more(embedder, process)

    run_virtual(main(), seed=seed)
    assert not embedder.batcher.stats.broken


def test_a_session_that_sends_nothing_but_bad_texts_costs_the_others_no_answer() -> None:
    embedder = Embedder(RuntimeError)

    async def main() -> None:
        process = Scope("process")

        async def bad() -> None:
            for _ in range(100):
                [result] = await together(embedder, ["BAD"], process)
                assert isinstance(result, EngineFailed)

        async def good(number: int) -> None:
            for turn in range(20):
                text = f"session {number} turn {turn}"
                async with asyncio.timeout(SOON_S):
                    assert await embedder.embed(text, process) == vector(text)
                await asyncio.sleep(0.1)

        await asyncio.gather(bad(), *(good(number) for number in range(8)))

    run_virtual(main())

"""Batcher: order, refusals, cancelling, bad input, engine failures; and that no request gets another's
result."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.batching import Batcher
from voice.compute import ComputeGate
from voice.errors import (
    BadAudio,
    BadRequest,
    DeadlineExceeded,
    EngineFailed,
    Overloaded,
    ScopeCancelled,
    VoiceError,
)
from voice.executor import ThreadExecutor
from voice.scope import Priority, Reason, Scope
from voice.testing import VirtualExecutor, run_virtual


class Engine:
    """Answers each item with its hash, and remembers its calls."""

    def __init__(self, fault: Callable[[Sequence[Any]], BaseException | None] = lambda _: None) -> None:
        self.calls: list[list[Any]] = []
        self.fault = fault

    def __call__(self, items: Sequence[Any]) -> list[str]:
        self.calls.append(list(items))
        error = self.fault(items)
        if error is not None:
            raise error
        return [digest(item) for item in items]


def digest(item: Any) -> str:
    return hashlib.sha256(repr(item).encode()).hexdigest()


def make(
    engine: Callable[[Sequence[Any]], Sequence[Any]], cost_s: Any = 0.1, max_batch: int = 4, **options: Any
) -> Batcher[Any, Any]:
    executor = VirtualExecutor(cost_s, threads=1)
    return Batcher(engine, name="engine", executor=executor, max_batch=max_batch, **options)


def ask(batcher: Batcher[Any, Any], item: Any, scope: Scope) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(batcher.submit(item, scope))


async def outcomes(*tasks: asyncio.Task[Any]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- forming batches


def test_what_waits_together_goes_in_one_call() -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> None:
        scope = Scope("session")
        results = await outcomes(*(ask(batcher, i, scope) for i in range(3)))
        assert results == [digest(i) for i in range(3)]

    run_virtual(main())
    assert engine.calls == [[0, 1, 2]]
    assert batcher.stats.calls == 1 and batcher.stats.items == 3 and batcher.stats.mean_batch == 3


def test_the_next_batch_is_taken_the_moment_the_engine_is_free() -> None:
    engine = Engine()
    batcher = make(engine, target_batch=4, max_wait_s=0.015)

    async def main() -> float:
        scope, loop = Scope("session"), asyncio.get_running_loop()
        first = [ask(batcher, i, scope) for i in range(4)]
        await asyncio.sleep(0.05)
        late = ask(batcher, "late", scope)  # below the target, but it has waited longer than 15 ms at 0.1 s
        await asyncio.gather(*first, late)
        return loop.time()

    assert run_virtual(main()) == pytest.approx(0.2)


def test_a_batch_below_its_target_waits_at_most_max_wait() -> None:
    engine = Engine()
    batcher = make(engine, target_batch=4, max_wait_s=0.015)

    async def main() -> float:
        scope = Scope("session")
        one = ask(batcher, 1, scope)
        await asyncio.sleep(0.010)
        two = ask(batcher, 2, scope)
        await asyncio.gather(one, two)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.115)
    assert engine.calls == [[1, 2]]


def test_a_batch_that_reaches_its_target_waits_no_longer() -> None:
    batcher = make(Engine(), target_batch=2, max_wait_s=10.0)

    async def main() -> float:
        scope = Scope("session")
        one = ask(batcher, 1, scope)
        await asyncio.sleep(0.010)
        await asyncio.gather(one, ask(batcher, 2, scope))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.11)


def test_waiting_for_company_never_costs_a_deadline() -> None:
    batcher = make(Engine(), target_batch=4, max_wait_s=1.0)

    async def main() -> float:
        scope = Scope("session")
        await asyncio.gather(*(batcher.submit(i, scope) for i in range(4)))  # measured now: 0.1 s
        began = asyncio.get_running_loop().time()
        await batcher.submit("tight", scope.child("turn", timeout_s=0.3))
        return asyncio.get_running_loop().time() - began

    assert run_virtual(main()) == pytest.approx(0.2)  # 0.2 to spare: waited 0.1, ran 0.1


def test_a_call_has_one_bucket() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=8, bucket=lambda item: item % 2)

    async def main() -> None:
        scope = Scope("session")
        results = await outcomes(*(ask(batcher, i, scope) for i in range(8)))
        assert results == [digest(i) for i in range(8)]

    run_virtual(main())
    assert engine.calls == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_bucket_that_refuses_an_item_is_an_answer_to_that_item_alone() -> None:
    def bucket(item: int) -> int:
        if item == 2:
            raise BadAudio("too long")
        return 0

    batcher = make(Engine(), bucket=bucket)

    async def main() -> list[Any]:
        scope = Scope("session")
        return await outcomes(*(ask(batcher, i, scope) for i in (1, 2, 3)))

    good, bad, other = run_virtual(main())
    assert isinstance(bad, BadAudio) and good == digest(1) and other == digest(3)


# ---------------------------------------------------------------- order


def test_class_goes_first_then_the_earliest_deadline_then_arrival() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=1)

    async def main() -> None:
        process = Scope("process")
        tasks = [ask(batcher, "busy", process)]
        await asyncio.sleep(0.01)
        for name, priority, timeout_s in (
            ("background", Priority.BACKGROUND, None),
            ("partial", Priority.PARTIAL, 5.0),
            ("guess", Priority.SPECULATIVE, 5.0),
            ("no deadline", Priority.COMMITTED, None),
            ("no deadline either", Priority.COMMITTED, None),
            ("later", Priority.COMMITTED, 9.0),
            ("sooner", Priority.COMMITTED, 8.0),
        ):
            tasks.append(ask(batcher, name, process.child("turn", priority=priority, timeout_s=timeout_s)))
        await asyncio.gather(*tasks)

    run_virtual(main())
    order = [call[0] for call in engine.calls]
    assert order == [
        "busy",
        "sooner",
        "later",
        "no deadline",
        "no deadline either",
        "guess",
        "partial",
        "background",
    ]


def test_a_guess_that_becomes_certain_moves_up_while_it_waits() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=1)

    async def main() -> None:
        process = Scope("process")
        tasks = [ask(batcher, "busy", process)]
        await asyncio.sleep(0.01)
        guess = process.child("speculation", priority=Priority.SPECULATIVE)
        tasks += [ask(batcher, "other guess", process.child("speculation", priority=Priority.SPECULATIVE))]
        tasks += [ask(batcher, "guess", guess)]
        await asyncio.sleep(0.01)
        guess.promote()
        await asyncio.gather(*tasks)

    run_virtual(main())
    assert [call[0] for call in engine.calls] == ["busy", "guess", "other guess"]


def test_no_class_starves_under_endless_better_work() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=1)

    async def main() -> int:
        process = Scope("process")
        stop = False

        async def flood(i: int) -> None:
            while not stop:
                await batcher.submit(("committed", i), process)

        floods = [asyncio.get_running_loop().create_task(flood(i)) for i in range(3)]
        await asyncio.sleep(0.5)
        low = process.child("stage", priority=Priority.BACKGROUND)
        lows = [ask(batcher, ("background", i), low) for i in range(3)]
        await asyncio.gather(*lows)
        stop = True
        await asyncio.gather(*floods)
        return len(engine.calls)

    calls = run_virtual(main())
    share = [call[0][0] for call in engine.calls].count("background")
    assert share == 3 and calls < 45  # one of eight calls each, and not more than that
    positions = [i for i, call in enumerate(engine.calls) if call[0][0] == "background"]
    assert min(b - a for a, b in itertools.pairwise(positions)) >= 8


# ---------------------------------------------------------------- leaving before the call


def test_a_cancelled_request_leaves_before_the_call() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=4)

    async def main() -> list[Any]:
        process = Scope("process")
        busy = ask(batcher, "busy", process)
        await asyncio.sleep(0.01)
        turn = process.child("turn")
        gone, stays = ask(batcher, "gone", turn), ask(batcher, "stays", process)
        await asyncio.sleep(0.01)
        turn.cancel(Reason.BARGE_IN)
        assert batcher.stats.depth == 1 and batcher.stats.cancelled == 1
        return await outcomes(busy, gone, stays)

    busy, gone, stays = run_virtual(main())
    assert isinstance(gone, ScopeCancelled) and stays == digest("stays") and busy == digest("busy")
    assert engine.calls == [["busy"], ["stays"]]


def test_a_cancelled_task_takes_its_request_along() -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> None:
        process = Scope("process")
        busy = ask(batcher, "busy", process)
        await asyncio.sleep(0.01)
        gone = ask(batcher, "gone", process)
        await asyncio.sleep(0.01)
        gone.cancel()
        assert isinstance((await outcomes(gone))[0], asyncio.CancelledError)
        await busy

    run_virtual(main())
    assert engine.calls == [["busy"]] and batcher.stats.cancelled == 1


def test_a_result_that_comes_after_its_cancel_is_dropped() -> None:
    batcher = make(Engine())
    heard: list[Any] = []

    async def main() -> None:
        remove = batcher.post("late", heard.append)
        await asyncio.sleep(0.05)
        remove()
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert heard == [] and batcher.stats.cancelled == 1 and batcher.stats.items == 0


def test_an_expired_request_leaves_before_the_call() -> None:
    engine = Engine()
    batcher = make(engine)
    heard: list[Any] = []

    async def main() -> None:
        batcher.post("busy", heard.append)
        await asyncio.sleep(0.01)
        batcher.post("expires", heard.append, deadline=0.05)
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert engine.calls == [["busy"]] and batcher.stats.expired == 1
    assert isinstance(heard[1], DeadlineExceeded)


def test_a_scope_whose_deadline_passes_in_the_queue_gets_its_error_at_the_deadline() -> None:
    batcher = make(Engine(), cost_s=5.0)

    async def main() -> tuple[Any, float]:
        process = Scope("process")
        busy = ask(batcher, "busy", process)
        await asyncio.sleep(0.01)
        late = ask(batcher, "late", process.child("turn", timeout_s=1.0))
        result = (await outcomes(late))[0]
        at = asyncio.get_running_loop().time()
        await busy
        return result, at

    result, at = run_virtual(main())
    assert isinstance(result, DeadlineExceeded) and at == pytest.approx(1.01)


def test_work_that_cannot_finish_by_its_deadline_is_refused_at_once() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=1)

    async def main() -> list[Any]:
        process = Scope("process")
        await batcher.submit("measure", process)  # 0.1 s a call
        tasks = [ask(batcher, i, process) for i in range(5)]
        await asyncio.sleep(0)
        return await outcomes(
            ask(batcher, "in time", process.child("turn", timeout_s=0.35)),  # its deadline makes it first
            ask(batcher, "too tight", process.child("turn", timeout_s=0.05)),
            *tasks,
        )

    in_time, too_tight, *_ = run_virtual(main())
    assert in_time == digest("in time")
    assert isinstance(too_tight, Overloaded) and too_tight.retry_after_s is not None
    assert ["too tight"] not in engine.calls and batcher.stats.refused == 1


def test_the_queue_ahead_counts_against_a_deadline() -> None:
    batcher = make(Engine(), max_batch=2)

    async def main() -> list[Any]:
        process = Scope("process")
        await batcher.submit("measure", process)
        ahead = [ask(batcher, i, process.child("turn", timeout_s=1.0)) for i in range(8)]  # four calls: 0.4 s
        await asyncio.sleep(0)
        hopeless = ask(batcher, "hopeless", process.child("turn", priority=Priority.PARTIAL, timeout_s=0.45))
        fine = ask(batcher, "fine", process.child("turn", priority=Priority.PARTIAL, timeout_s=0.55))
        return await outcomes(hopeless, fine, *ahead)

    hopeless, fine, *_ = run_virtual(main())
    assert isinstance(hopeless, Overloaded) and fine == digest("fine")


def test_a_batch_is_not_made_so_large_that_a_deadline_is_missed() -> None:
    engine = Engine()
    batcher = make(engine, max_batch=8, cost_s=lambda call, args: 0.1 * len(args[0]))

    async def main() -> list[Any]:
        process = Scope("process")
        for size in (1, 2, 1, 2):  # measured: 0.1 s an item
            await asyncio.gather(*(batcher.submit(i, process) for i in range(size)))
        engine.calls.clear()
        tight = [ask(batcher, i, process.child("turn", timeout_s=0.25)) for i in range(2)]
        return await outcomes(*tight, *(ask(batcher, i, process) for i in range(2, 8)))

    results = run_virtual(main())
    assert results == [digest(i) for i in range(8)]
    assert sorted(engine.calls[0]) == [0, 1]


def test_one_slow_call_does_not_lock_out_everyone_for_ever() -> None:
    costs = iter([3.0])
    batcher = make(Engine(), cost_s=lambda call, args: next(costs, 0.1))

    async def main() -> list[Any]:
        process = Scope("process")
        await batcher.submit("warm-up", process)
        refused = await outcomes(ask(batcher, 1, process.child("turn", timeout_s=1.0)))
        await asyncio.sleep(6.0)  # the measurement is old now: one call finds out
        return refused + await outcomes(ask(batcher, 2, process.child("turn", timeout_s=1.0)))

    refused, served = run_virtual(main())
    assert isinstance(refused, Overloaded) and served == digest(2)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    batcher = make(Engine(), max_batch=1, max_queue=2)

    async def main() -> list[Any]:
        process = Scope("process")
        await batcher.submit("measure", process)
        busy = ask(batcher, "busy", process)
        await asyncio.sleep(0.01)
        return await outcomes(busy, *(ask(batcher, i, process) for i in range(3)))

    *served, refused = run_virtual(main())
    assert served == [digest("busy"), digest(0), digest(1)]
    assert isinstance(refused, Overloaded) and refused.retry_after_s == pytest.approx(0.2)


def test_a_full_queue_gives_the_place_of_the_worst_class_to_a_better_one() -> None:
    batcher = make(Engine(), max_batch=1, max_queue=2)

    async def main() -> list[Any]:
        process = Scope("process")
        low = process.child("stage", priority=Priority.BACKGROUND)
        busy = ask(batcher, "busy", process)
        await asyncio.sleep(0.01)
        return await outcomes(
            busy, ask(batcher, "old", low), ask(batcher, "young", low), ask(batcher, "better", process)
        )

    _, old, young, better = run_virtual(main())
    assert old == digest("old") and better == digest("better") and isinstance(young, Overloaded)


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("error", [BadAudio("bad"), ValueError("bad"), KeyError("bad"), RuntimeError("bad")])
def test_bad_input_costs_nobody_else_anything(error: Exception) -> None:
    engine = Engine(lambda items: error if "BAD" in items else None)
    batcher = make(engine, max_batch=16)

    async def main() -> list[Any]:
        process = Scope("process")
        items = [0, 1, "BAD", 3, 4, 5]
        results = await outcomes(*(ask(batcher, i, process) for i in items))
        return results + await outcomes(*(ask(batcher, i, process) for i in range(10)))

    results = run_virtual(main())
    bad = results.pop(2)
    assert isinstance(bad, VoiceError) and "bad" in str(bad)
    assert results == [digest(i) for i in (0, 1, 3, 4, 5, *range(10))]
    assert batcher.stats.failed == 1 and not batcher.stats.broken


def test_a_wrong_value_is_told_as_a_bad_request_and_others_as_raised() -> None:
    async def main(error: Exception) -> Any:
        batcher = make(Engine(lambda _: error))
        return (await outcomes(ask(batcher, 1, Scope("process"))))[0]

    assert isinstance(run_virtual(main(ValueError("x"))), BadRequest)
    own = BadAudio("x")
    assert run_virtual(main(own)) is own
    odd = run_virtual(main(IndexError("x")))
    assert isinstance(odd, EngineFailed) and not odd.retryable and isinstance(odd.__cause__, IndexError)


@pytest.mark.parametrize("error", [EngineFailed("device lost"), MemoryError()])
def test_an_engine_failure_fails_the_batch_and_opens_the_breaker(error: BaseException) -> None:
    broken = True
    engine = Engine(lambda _: error if broken else None)
    batcher = make(engine, max_batch=2, cooldown_s=1.0)

    async def main() -> None:
        nonlocal broken
        process, loop = Scope("process"), asyncio.get_running_loop()
        failed = await outcomes(*(ask(batcher, i, process) for i in range(4)))  # two in the call, two waiting
        assert all(isinstance(e, EngineFailed) for e in failed) and len({id(e) for e in failed}) == 4
        assert len(engine.calls) == 1 and loop.time() == pytest.approx(0.1)
        assert isinstance((await outcomes(ask(batcher, 5, process)))[0], EngineFailed)
        assert loop.time() == pytest.approx(0.1) and len(engine.calls) == 1  # at once, without a call
        await asyncio.sleep(1.0)
        broken = False
        probe, second = ask(batcher, "probe", process), ask(batcher, "second", process)
        results = await outcomes(probe, second)
        assert results == [digest("probe"), digest("second")]  # who came meanwhile waited for what it found
        assert await batcher.submit("after", process) == digest("after") and not batcher.stats.broken

    run_virtual(main())


def test_a_probe_that_fails_opens_the_breaker_again_and_one_that_leaves_makes_room() -> None:
    broken = True
    batcher = make(Engine(lambda _: EngineFailed("dead") if broken else None), cooldown_s=1.0)

    async def main() -> None:
        nonlocal broken
        process = Scope("process")
        await outcomes(ask(batcher, 1, process))
        await asyncio.sleep(1.0)
        await outcomes(ask(batcher, "probe", process))
        early = (await outcomes(ask(batcher, 2, process)))[0]
        assert isinstance(early, EngineFailed)
        await asyncio.sleep(1.0)
        broken = False
        remove = batcher.post("gives up", lambda _: None)
        remove()
        assert await batcher.submit("probe", process) == digest("probe")

    run_virtual(main())


@pytest.mark.parametrize("results", [["one"], ["a", "b", "c"], [], None])
def test_a_wrong_number_of_results_is_never_handed_out(results: Any) -> None:
    batcher = make(lambda _: results)

    async def main() -> list[Any]:
        process = Scope("process")
        return await outcomes(ask(batcher, 1, process), ask(batcher, 2, process))

    assert all(isinstance(r, EngineFailed) for r in run_virtual(main()))
    assert batcher.stats.broken


def test_a_hang_fails_the_batch_in_time_and_nobody_is_sent_into_it() -> None:
    engine = Engine()
    costs = iter([10.0])
    batcher = make(engine, cost_s=lambda call, args: next(costs, 0.1), timeout_s=2.0, cooldown_s=1.0)

    async def main() -> None:
        process, loop = Scope("process"), asyncio.get_running_loop()
        hung = (await outcomes(ask(batcher, "hangs", process)))[0]
        assert isinstance(hung, EngineFailed) and loop.time() == pytest.approx(2.0)
        await asyncio.sleep(5.0)  # the cool-down is over, but the call still runs
        assert isinstance((await outcomes(ask(batcher, "next", process)))[0], EngineFailed)
        assert loop.time() == pytest.approx(7.0)
        await asyncio.sleep(4.0)
        assert await batcher.submit("back", process) == digest("back")

    run_virtual(main())
    assert engine.calls == [["hangs"], ["back"]]


def test_an_engine_that_fails_every_single_input_is_broken() -> None:
    batcher = make(Engine(lambda _: RuntimeError("CUDA error")), max_batch=4)

    async def main() -> None:
        process = Scope("process")
        await outcomes(*(ask(batcher, i, process) for i in range(12)))

    run_virtual(main())
    assert batcher.stats.broken


def test_a_closed_executor_is_an_engine_failure() -> None:
    executor = VirtualExecutor(0.1)
    batcher: Batcher[int, str] = Batcher(Engine(), name="engine", executor=executor, max_batch=4)

    async def main() -> Any:
        executor.close()
        return (await outcomes(ask(batcher, 1, Scope("process"))))[0]

    assert isinstance(run_virtual(main()), EngineFailed)


def test_closing_fails_what_waits_answers_what_runs_and_takes_no_more() -> None:
    batcher = make(Engine(), max_batch=1)

    async def main() -> list[Any]:
        process = Scope("process")
        runs = ask(batcher, "runs", process)
        await asyncio.sleep(0.01)
        waits = ask(batcher, "waits", process)
        await asyncio.sleep(0.01)
        batcher.close()
        return await outcomes(runs, waits, ask(batcher, "late", process))

    runs, waits, late = run_virtual(main())
    assert runs == digest("runs") and isinstance(waits, EngineFailed) and isinstance(late, BadRequest)


# ---------------------------------------------------------------- posting


def test_a_post_is_answered_once_and_never_before_it_returns() -> None:
    batcher = make(Engine(), max_queue=1)
    heard: list[Any] = []

    async def main() -> None:
        batcher.post("busy", heard.append)
        await asyncio.sleep(0.01)
        batcher.post("waits", heard.append)
        batcher.post("refused", heard.append)
        assert heard == []
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert len(heard) == 3 and isinstance(heard[0], Overloaded)
    assert heard[1:] == [digest("busy"), digest("waits")]


def test_a_callback_that_raises_hurts_no_neighbour() -> None:
    batcher = make(Engine())
    heard: list[Any] = []

    def broken(_: Any) -> None:
        raise RuntimeError("my own fault")

    async def main() -> None:
        batcher.post(1, broken)
        batcher.post(2, heard.append)
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert heard == [digest(2)]


def test_a_callback_may_post_the_next_item() -> None:
    batcher = make(Engine())
    times: list[float] = []

    def again(_: Any) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            batcher.post(len(times), again)

    async def main() -> None:
        batcher.post(0, again)
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert times == pytest.approx([0.1, 0.2, 0.3, 0.4])


# ---------------------------------------------------------------- gate, loops, threads


def test_two_engines_behind_one_gate_run_by_class() -> None:
    order: list[str] = []

    def engine(items: Sequence[str]) -> list[str]:
        order.extend(items)
        return list(items)

    gate = ComputeGate(1)
    first = make(engine, gate=gate, max_batch=1)
    second = make(engine, gate=gate, max_batch=1)

    async def main() -> float:
        process = Scope("process")
        guess = process.child("speculation", priority=Priority.SPECULATIVE)
        tasks = [ask(first, "busy", process)]
        await asyncio.sleep(0.01)
        tasks += [
            ask(first, "guess", guess),
            ask(second, "partial", process.child("x", priority=Priority.PARTIAL)),
        ]
        await asyncio.sleep(0.01)
        tasks += [ask(second, "committed", process)]  # lifts the second engine's place at the gate
        await asyncio.gather(*tasks)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.4)
    assert order == ["busy", "committed", "guess", "partial"]


def test_one_batcher_serves_one_loop_after_another() -> None:
    batcher = make(Engine())

    async def main() -> str:
        return str(await batcher.submit("hello", Scope("process")))

    async def leave() -> None:
        batcher.post("abandoned", lambda _: None)
        await asyncio.sleep(0.01)

    assert run_virtual(main()) == digest("hello")
    run_virtual(leave(), strict=False)  # ends in the middle of a call
    assert run_virtual(main()) == digest("hello")


def test_real_threads_run_one_call_at_a_time_on_one_loop_after_another() -> None:
    running, most = 0, 0

    def engine(items: Sequence[int]) -> list[str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        results = [digest(item) for item in items]
        running -= 1
        return results

    executor = ThreadExecutor("engine", threads=4)
    batcher: Batcher[int, str] = Batcher(engine, name="engine", executor=executor, max_batch=3)

    async def main() -> None:
        scope = Scope("process")
        results = await asyncio.gather(*(batcher.submit(i, scope) for i in range(50)))
        assert results == [digest(i) for i in range(50)]

    try:
        asyncio.run(main())
        asyncio.run(main())
    finally:
        executor.close()
    assert most == 1


# ---------------------------------------------------------------- property


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    max_batch=st.integers(1, 16),
    buckets=st.integers(1, 4),
    bad_share=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    max_queue=st.sampled_from([4, 256]),
)
def test_every_request_gets_its_own_result_or_its_own_error(
    seed: int, max_batch: int, buckets: int, bad_share: float, max_queue: int
) -> None:
    """Result i carries the hash of input i over random arrivals, shapes, cancels, deadlines and bad inputs
    (B58)."""
    chance = random.Random(seed)
    bad = {i for i in range(60) if chance.random() < bad_share}
    answers: Counter[int] = Counter()
    done: set[int] = set()

    def engine(items: Sequence[tuple[int, int]]) -> list[str]:
        assert len({shape for _, shape in items}) == 1, "mixed shapes in one call"
        assert len(items) <= max_batch
        assert not done & {i for i, _ in items}, "a request that was answered or cancelled was run"
        if any(i in bad for i, _ in items):
            raise ValueError("bad item in the batch")
        return [digest(item) for item in items]

    batcher = make(
        engine,
        cost_s=(0.001, 0.2),
        max_batch=max_batch,
        max_queue=max_queue,
        target_batch=chance.randint(1, max_batch),
        max_wait_s=chance.choice([0.0, 0.015]),
        bucket=lambda item: item[1],
        gate=chance.choice([None, ComputeGate(1)]),
    )

    async def one(i: int, process: Scope) -> None:
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        item = (i, chance.randrange(buckets))
        scope = process.child(
            "turn",
            priority=chance.choice(list(Priority)),
            timeout_s=chance.choice([None, None, chance.uniform(0.0, 2.0)]),
        )
        task = ask(batcher, item, scope)
        fate = chance.random()
        if fate < 0.2:
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            scope.cancel(Reason.BARGE_IN) if fate < 0.1 else task.cancel()
        elif fate < 0.4:
            scope.promote()
        [result] = await outcomes(task)
        done.add(i)
        answers[i] += 1
        if isinstance(result, str):
            assert result == digest(item) and i not in bad
        elif isinstance(result, BadRequest):
            assert i in bad
        else:
            assert isinstance(
                result, Overloaded | DeadlineExceeded | ScopeCancelled | asyncio.CancelledError
            ), result

    async def main() -> None:
        process = Scope("process")
        await asyncio.gather(*(one(i, process) for i in range(60)))
        await asyncio.sleep(1.0)
        stats = batcher.stats
        assert stats.depth == 0 and not stats.broken
        assert stats.items + stats.refused + stats.expired + stats.cancelled + stats.failed <= 60

    run_virtual(main(), seed=seed)
    assert set(answers.values()) == {1} and len(answers) == 60

"""Virtual time: the clock jumps, threads hold it, the outside is refused, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from voice.executor import ThreadExecutor
from voice.testing import (
    Deadlocked,
    LeftOver,
    TimeLimit,
    VirtualExecutor,
    VirtualLoop,
    VirtualTimeError,
    run_virtual,
)


def now() -> float:
    return asyncio.get_running_loop().time()


async def forever() -> None:
    await asyncio.Event().wait()


def test_the_clock_starts_at_zero_and_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        seen = [now()]
        for seconds in (0.02, 59.98, 1800):
            await asyncio.sleep(seconds)
            seen.append(now())
        return seen

    assert run_virtual(main()) == [0.0, 0.02, 60.0, 1860.0]


def test_timers_fire_in_order_and_a_cancelled_timer_moves_no_clock() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, fired = asyncio.get_running_loop(), []
        loop.call_at(2.0, lambda: fired.append(("late", now())))
        loop.call_at(1.0, lambda: fired.append(("early", now())))
        loop.call_at(1.5, lambda: fired.append(("cancelled", now()))).cancel()
        await asyncio.sleep(2.5)
        assert now() == 2.5
        return fired

    assert run_virtual(main()) == [("early", 1.0), ("late", 2.0)]


def test_a_timeout_runs_out_at_its_exact_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(12.5):
                await forever()
        return now()

    assert run_virtual(main()) == 12.5


def test_a_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def main() -> None:
        task = asyncio.create_task(forever(), name="the-waiter")
        await asyncio.sleep(3)
        await task

    with pytest.raises(Deadlocked, match=r"t=3\.000 s") as caught:
        run_virtual(main(), seed=7)
    assert "the-waiter: forever at locks.py" in str(caught.value)
    assert "seed=7" in "".join(caught.value.__notes__)


def test_the_limit_of_virtual_time_ends_a_run_that_goes_on_for_ever() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - a task that never ends is the point
            await asyncio.sleep(1)

    with pytest.raises(TimeLimit, match="60 s of virtual time"):
        run_virtual(main(), limit_s=60)


def test_a_task_that_spins_without_letting_time_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.testing.loop.SPIN_LIMIT", 1000)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - a task that spins is the point
            await asyncio.sleep(0)

    with pytest.raises(TimeLimit, match="some task spins"):
        run_virtual(main())


def test_the_clock_stands_still_while_a_real_thread_works() -> None:
    async def main() -> float:
        gate = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(None, gate.wait, 20)
        timer = asyncio.create_task(asyncio.sleep(1000))
        asyncio.get_running_loop().call_soon(gate.set)
        assert await future
        at = now()
        timer.cancel()
        return at

    assert run_virtual(main()) == 0.0


def test_the_clock_waits_for_a_thread_whose_result_nobody_wants_any_more() -> None:
    order: list[str] = []
    gate = threading.Event()

    def work() -> None:
        gate.wait(20)
        order.append("thread")

    async def main() -> None:
        future = asyncio.get_running_loop().run_in_executor(None, work)
        await asyncio.sleep(0)
        future.cancel()
        threading.Timer(0.02, gate.set).start()
        await asyncio.sleep(500)
        order.append("timer")

    run_virtual(main())
    assert order == ["thread", "timer"]


def test_the_threads_of_our_own_executor_hold_the_clock() -> None:
    executor = ThreadExecutor("test")

    async def main() -> tuple[str, float]:
        name = await executor.run(lambda: threading.current_thread().name)
        return name, now()

    name, at = run_virtual(main())
    assert name.startswith("test")
    assert at == 0.0
    executor.close()


def test_a_hung_thread_ends_the_run_instead_of_hanging_it() -> None:
    gate = threading.Event()

    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, gate.wait, 20)

    try:
        with pytest.raises(VirtualTimeError, match="a real thread gave no result"):
            run_virtual(main(), thread_wait_s=0.05)
    finally:
        gate.set()


def test_a_thread_that_the_loop_does_not_know_of_fails_the_run() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        thread = threading.Thread(
            target=asyncio.get_running_loop().call_soon_threadsafe,
            args=(future.set_result, None),
            name="the-stray",
        )
        thread.start()
        thread.join()
        await future
        await asyncio.sleep(0)

    with pytest.raises(VirtualTimeError, match="'the-stray'"):
        run_virtual(main())


@pytest.mark.parametrize(
    "reach_out",
    [
        lambda: asyncio.open_connection("localhost", 9),
        lambda: asyncio.start_server(lambda r, w: None, "localhost", 0),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 9),
    ],
)
def test_sockets_and_child_processes_are_refused(reach_out: Callable[[], object]) -> None:
    async def main() -> None:
        await reach_out()  # type: ignore[misc]

    with pytest.raises(VirtualTimeError, match="outside the run"):
        run_virtual(main())


def test_sockets_work_when_they_are_allowed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def main() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        line = await asyncio.wait_for(reader.readline(), 30)
        writer.close()
        server.close()
        await asyncio.sleep(0.1)
        return line

    assert run_virtual(main(), allow_sockets=True) == b"hello\n"


def test_tasks_left_over_fail_the_run_by_name_and_are_cancelled() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def left() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append("unwound")

        asyncio.get_running_loop().create_task(left(), name="forgotten")
        await asyncio.sleep(1)

    with pytest.raises(LeftOver, match="forgotten"):
        run_virtual(main())
    run_virtual(main(), strict=False)
    assert ended == ["unwound", "unwound"]


def test_a_task_that_was_cancelled_just_before_the_end_is_not_left_over() -> None:
    async def main() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(1)
        task.cancel()

    run_virtual(main())


def test_a_task_that_refuses_to_be_cancelled_does_not_hang_the_end() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                pass

    kept: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly

    async def main() -> None:
        kept.append(asyncio.get_running_loop().create_task(stubborn(), name="stubborn"))
        await asyncio.sleep(1)

    with pytest.raises(LeftOver, match="stubborn"):
        run_virtual(main())
    kept.clear()
    gc.collect()  # asyncio complains of such a task when it is freed: here, not in the middle of another test


def test_a_callback_that_raises_fails_a_strict_run() -> None:
    empty: dict[str, int] = {}

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, empty.__getitem__, "nothing")
        await asyncio.sleep(2)

    with pytest.raises(LeftOver) as caught:
        run_virtual(main())
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_failure_of_the_coroutine_comes_out_as_it_is_with_the_seed_in_a_note() -> None:
    async def main() -> None:
        await asyncio.sleep(1.5)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        run_virtual(main(), seed=3)
    assert caught.value.__notes__ == ["virtual run: seed=3, t=1.500 s"]


def test_a_generator_left_open_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> None:
        async for _ in numbers():
            break

    with caplog.at_level(logging.WARNING, "voice"):
        run_virtual(main())
    assert "numbers was dropped" in caplog.text


def test_runs_follow_each_other_and_leave_no_current_loop() -> None:
    assert [run_virtual(asyncio.sleep(1, n)) for n in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_tasks_and_futures_in_sets_are_walked_in_the_same_order_in_every_run() -> None:
    async def main() -> list[list[int]]:
        loop, order = asyncio.get_running_loop(), []

        async def wait(number: int) -> None:
            try:
                await forever()
            finally:
                order.append(number)

        ballast = [object() for _ in range(len(keep) * 7)]  # other memory addresses in every run
        keep.append(ballast)
        tasks = {loop.create_task(wait(n)) for n in range(40)}
        futures = {loop.create_future(): n for n in range(40)}
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return [order, [futures[f] for f in set(futures)]]

    keep: list[object] = []
    runs = [run_virtual(main()) for _ in range(4)]
    assert runs[1:] == runs[:-1]


# ---------------------------------------------------------------- work off the loop


def race(seed: int) -> list[tuple[float, str]]:
    """Who arrives when, of sixteen calls with drawn costs and eight of equal cost."""

    async def main() -> list[tuple[float, str]]:
        arrived: list[tuple[float, str]] = []
        drawn, equal = VirtualExecutor((0.01, 0.5)), VirtualExecutor(0.25)

        async def call(executor: VirtualExecutor, name: str) -> None:
            arrived.append((now(), await executor.run(str, name)))
            arrived[-1] = (now(), arrived[-1][1])

        async with asyncio.TaskGroup() as group:
            for n in range(16):
                group.create_task(call(drawn, f"drawn{n}"))
            for n in range(8):
                group.create_task(call(equal, f"equal{n}"))
        return arrived

    return run_virtual(main(), seed=seed)


def test_a_run_replays_from_its_seed_and_another_seed_gives_another_order() -> None:
    assert race(1) == race(1)
    orders = {tuple(name for _, name in race(seed) if name.startswith("equal")) for seed in range(8)}
    assert len(orders) > 4


def test_the_result_of_a_call_arrives_after_its_stated_cost() -> None:
    async def main() -> None:
        executor = VirtualExecutor(lambda call, args: args[0])
        assert await executor.run(lambda s: s * 2, 0.3) == 0.6
        assert now() == 0.3
        with pytest.raises(ZeroDivisionError):
            await VirtualExecutor(0.7).run(lambda: 1 / 0)
        assert now() == pytest.approx(1.0)

    run_virtual(main())


def test_one_virtual_thread_takes_one_call_at_a_time() -> None:
    async def main() -> None:
        executor = VirtualExecutor(1.0, threads=1)
        begun: list[float] = []
        loop = asyncio.get_running_loop()
        futures = [executor.run(lambda: begun.append(loop.time())) for _ in range(4)]
        futures[2].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert begun == [0.0, 1.0, 2.0], "a call that was cancelled while it waited is not made"
        assert executor.calls == 3
        assert executor.peak == 1

    run_virtual(main())


def test_cancelling_drops_the_result_of_a_call_under_way_and_its_thread_stays_busy() -> None:
    async def main() -> None:
        executor = VirtualExecutor(1.0, threads=1)
        first = executor.run(int)
        first.cancel()
        await executor.run(int)
        assert now() == 2.0

    run_virtual(main())


def test_a_call_sees_no_running_loop_just_as_in_a_thread() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            await VirtualExecutor().run(asyncio.get_running_loop)
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)

    run_virtual(main())


def test_a_closed_executor_cancels_what_waits_and_takes_no_more() -> None:
    async def main() -> None:
        executor = VirtualExecutor(1.0, threads=1)
        under_way, waits = executor.run(int), executor.run(int)
        executor.close()
        assert await under_way == 0
        assert waits.cancelled()
        with pytest.raises(RuntimeError, match="closed"):
            executor.run(int)

    run_virtual(main())


def test_an_executor_serves_one_run_after_another() -> None:
    executor = VirtualExecutor(5.0, threads=1)

    async def abandon() -> None:
        executor.run(int)

    async def use() -> float:
        await executor.run(int)
        return now()

    run_virtual(abandon())
    assert run_virtual(use()) == 5.0


def test_a_virtual_executor_on_a_real_loop_says_what_to_use() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="ThreadExecutor"):
            VirtualExecutor().run(int)

    asyncio.run(main())

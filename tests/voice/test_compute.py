"""The compute gate gives its slots by class and loses none; the CPU budget fits the machine it runs on."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.compute import ComputeGate, CpuBudget, _cgroup_quota
from voice.scope import Priority, Reason, Scope
from voice.testing import run_virtual


async def hold(
    gate: ComputeGate, name: str, priority: Priority | Scope, log: list[str], s: float = 0.1
) -> None:
    async with gate.slot(priority):
        log.append(name)
        await asyncio.sleep(s)


def test_class_goes_first_and_arrival_within_a_class() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name, priority in (
                ("first", Priority.PARTIAL),
                ("background", Priority.BACKGROUND),
                ("partial", Priority.PARTIAL),
                ("committed a", Priority.COMMITTED),
                ("guess", Priority.SPECULATIVE),
                ("committed b", Priority.COMMITTED),
            ):
                group.create_task(hold(gate, name, priority, log))

    run_virtual(main())
    assert log == ["first", "committed a", "committed b", "guess", "partial", "background"]


def test_no_more_run_at_once_than_there_are_slots() -> None:
    gate, log = ComputeGate(2), list[str]()

    async def main() -> float:
        await asyncio.gather(*(hold(gate, str(i), Priority.COMMITTED, log) for i in range(6)))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.3)


def test_a_promoted_scope_moves_up_while_it_waits() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def main() -> None:
        process = Scope("process")
        guess = process.child("speculation", priority=Priority.SPECULATIVE)
        other = process.child("speculation", priority=Priority.SPECULATIVE)
        async with asyncio.TaskGroup() as group:
            for name, scope in (("busy", process), ("other", other), ("guess", guess)):
                group.create_task(hold(gate, name, scope, log))
            await asyncio.sleep(0.05)
            guess.promote()

    run_virtual(main())
    assert log == ["busy", "guess", "other"]


def test_no_class_starves() -> None:
    gate, log = ComputeGate(1, patience=8), list[str]()

    async def flood() -> None:
        while "background" not in log:
            await hold(gate, "committed", Priority.COMMITTED, log)

    async def main() -> None:
        await asyncio.gather(flood(), flood(), flood(), hold(gate, "background", Priority.BACKGROUND, log))

    run_virtual(main())
    assert 8 <= log.index("background") <= 12


def test_a_wait_that_is_cancelled_in_the_moment_of_its_grant_passes_the_slot_on() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with gate.slot():
            waiter = loop.create_task(hold(gate, "cancelled", Priority.COMMITTED, log))
            await asyncio.sleep(0.1)
        # the slot is the waiter's now, but it has not run since
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await asyncio.wait_for(hold(gate, "next", Priority.COMMITTED, log), 1.0)
        assert gate.stats.running == 0

    run_virtual(main())
    assert log == ["next"]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_random_cancels_lose_no_slot_and_never_exceed_them(seed: int, slots: int) -> None:
    chance = random.Random(seed)
    gate = ComputeGate(slots)
    running = 0

    async def one(process: Scope) -> None:
        nonlocal running
        await asyncio.sleep(chance.choice([0.0, 0.1, 0.2, 0.3]))
        async with gate.slot(process.child("turn", priority=chance.choice(list(Priority)))):
            running += 1
            assert running <= slots
            try:
                await asyncio.sleep(chance.choice([0.0, 0.1, 0.2]))
            finally:
                running -= 1

    async def main() -> None:
        process, loop = Scope("process"), asyncio.get_running_loop()
        tasks = [loop.create_task(one(process)) for _ in range(30)]
        for task in tasks:
            if chance.random() < 0.5:
                loop.call_later(chance.choice([0.0, 0.1, 0.2, 0.3, 0.4]), task.cancel)
        await asyncio.wait(tasks, timeout=60)
        assert all(task.done() for task in tasks), "a slot was lost"
        assert not [task for task in tasks if not task.cancelled() and task.exception()]
        stats = gate.stats
        assert stats.running == 0 and sum(stats.waiting.values()) == 0

    run_virtual(main(), seed=seed)


def test_stats_name_who_waits() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(hold(gate, "a", Priority.COMMITTED, log, 1.0))
            group.create_task(hold(gate, "b", Priority.PARTIAL, log))
            await asyncio.sleep(0.4)
            stats = gate.stats
            assert stats.running == 1 and stats.waiting[Priority.PARTIAL] == 1
            assert stats.oldest_wait_s == pytest.approx(0.4)
        assert gate.stats.granted == 2 and gate.stats.waited_s == pytest.approx(1.0)

    run_virtual(main())


def test_a_gate_outlives_its_loops() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def stuck() -> None:
        asyncio.get_running_loop().create_task(hold(gate, "held", Priority.COMMITTED, log, 1e6))
        asyncio.get_running_loop().create_task(hold(gate, "waits", Priority.COMMITTED, log, 1e6))
        await asyncio.sleep(0.01)

    run_virtual(stuck(), strict=False)
    run_virtual(hold(gate, "next", Priority.COMMITTED, log))
    assert log == ["held", "next"] and gate.stats.running == 0


def test_one_gate_serves_loops_in_two_threads() -> None:
    gate = ComputeGate(1)
    inside, most = 0, 0

    async def work() -> None:
        async def one() -> None:
            nonlocal inside, most
            async with gate.slot():
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.wait_for(asyncio.gather(*(one() for _ in range(100))), 30)

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert most == 1 and gate.stats.running == 0 and gate.stats.granted == 200


def test_a_cancelled_scope_may_still_give_back_its_slot() -> None:
    gate, log = ComputeGate(1), list[str]()

    async def main() -> None:
        turn = Scope("process").child("turn")
        turn.run(hold(gate, "turn", turn, log, 100.0), "turn")
        await asyncio.sleep(0.1)
        turn.cancel(Reason.BARGE_IN)
        await hold(gate, "next", Priority.BACKGROUND, log)

    run_virtual(main())
    assert log == ["turn", "next"]


def test_the_budget_is_at_least_one_core_and_says_so() -> None:
    budget = CpuBudget.detect()
    assert budget.cores >= 1 and budget.onnx_threads == 1
    assert 1 <= budget.asr_threads <= budget.cores and 1 <= budget.llm_threads <= budget.cores
    assert str(budget.cores) in budget.describe()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
        ({"cpu.max": "nonsense"}, None),
    ],
)
def test_a_container_quota_is_read_in_both_versions(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _cgroup_quota(tmp_path) == cores


# ---------------------------------------------------------------- load


def load_after(slots: int, spans: list[tuple[int, float]]) -> float:
    """The load after spans of (calls that run, seconds)."""
    gate = ComputeGate(slots)

    async def main() -> float:
        for calls, seconds in spans:
            await asyncio.gather(
                asyncio.sleep(seconds),
                *(hold(gate, "", Priority.COMMITTED, [], seconds) for _ in range(calls)),
            )
        return gate.load(asyncio.get_running_loop().time())

    return run_virtual(main())


@pytest.mark.parametrize(
    ("name", "slots", "spans", "least", "most"),
    [
        ("nothing ran", 1, [(0, 10.0)], 0.0, 0.0),
        ("it was taken all the time", 1, [(1, 20.0)], 0.99, 1.0),
        ("one turn's calls after a quiet time", 1, [(0, 10.0), (1, 0.5)], 0.1, 0.2),
        ("half the time", 1, [(1, 0.2), (0, 0.2)] * 50, 0.45, 0.55),
        ("a slot was always free", 2, [(1, 20.0)], 0.0, 0.0),
        ("both slots were taken", 2, [(2, 20.0)], 0.99, 1.0),
        ("long ago", 1, [(1, 20.0), (0, 15.0)], 0.0, 0.01),
    ],
)
def test_load_is_the_share_of_the_last_seconds_without_a_free_slot(
    name: str, slots: int, spans: list[tuple[int, float]], least: float, most: float
) -> None:
    assert least <= load_after(slots, spans) <= most, name


def test_load_between_two_grants_counts_the_call_that_runs() -> None:
    gate, seen = ComputeGate(1), list[float]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with gate.slot():
            for _ in range(4):
                seen.append(gate.load(loop.time()))
                await asyncio.sleep(1.0)

    run_virtual(main())
    assert seen == sorted(seen) and seen[0] == 0.0 and seen[-1] > 0.5


def test_load_recovers_on_a_new_loop_whose_clock_begins_anew() -> None:
    gate = ComputeGate(1)
    run_virtual(hold(gate, "", Priority.COMMITTED, [], 20.0))

    async def later() -> float:
        await hold(gate, "", Priority.COMMITTED, [], 0.1)
        await asyncio.sleep(20.0)
        return gate.load(asyncio.get_running_loop().time())

    assert run_virtual(later()) < 0.01

"""The scope tree: cancelling is downward, synchronous and waits for nobody; what is done leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from voice.errors import DeadlineExceeded, ScopeCancelled
from voice.scope import Identity, Priority, Reaper, Reason, Scope
from voice.testing import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main())


async def stubborn(seconds: float) -> None:
    """Swallows its cancel, and takes ``seconds`` of its own after it."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)


# ---------------------------------------------------------------- the tree


def test_a_child_inherits_who_it_works_for_and_how_urgent_it_is() -> None:
    root = Scope("process", config={"model": "a", "voice": "x"})
    turn = root.child("turn", identity=Identity("s", 3, 1), config={"voice": "y"})
    guess = turn.child("speculation", priority=Priority.SPECULATIVE)
    stage = guess.child("stage")
    assert stage.identity == Identity("s", 3, 1)
    assert stage.config == {"model": "a", "voice": "y"}
    assert root.config == {"model": "a", "voice": "x"}
    assert (turn.priority, stage.priority) == (Priority.COMMITTED, Priority.SPECULATIVE)
    guess.promote()
    assert stage.priority is Priority.COMMITTED


def test_configuration_is_frozen() -> None:
    scope = Scope("process", config={"model": "a"}).child("session")
    with pytest.raises(TypeError):
        scope.config["model"] = "b"  # type: ignore[index]


def test_cancelling_marks_everything_below_before_it_returns_and_nothing_beside_or_above() -> None:
    root = Scope("process")
    one, two = root.child("session"), root.child("session")
    deep = one.child("turn").child("speculation").child("stage")
    one.cancel(Reason.BARGE_IN)
    assert one.cancelled and deep.cancelled
    assert deep.reason is Reason.BARGE_IN
    assert not root.cancelled and not two.cancelled


def test_a_second_cancel_changes_nothing() -> None:
    calls: list[Reason] = []
    scope = Scope("turn")
    scope.on_cancel(calls.append)
    scope.cancel(Reason.RESUMED)
    scope.cancel(Reason.CLOSED)
    assert calls == [Reason.RESUMED]
    assert scope.reason is Reason.RESUMED


def test_a_child_of_a_cancelled_scope_is_born_cancelled_and_its_tasks_never_begin() -> None:
    async def main() -> None:
        began: list[str] = []

        async def work() -> None:
            began.append("work")

        scope = Scope("turn")
        scope.cancel(Reason.RESUMED)
        child = scope.child("stage")
        assert child.cancelled and child.reason is Reason.RESUMED
        task = child.run(work(), "late")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert began == []

    virtually(main)


def test_a_child_of_a_closed_scope_is_born_cancelled_too() -> None:
    async def main() -> None:
        scope = Scope("turn")
        scope.close()
        child = scope.child("stage")
        assert child.cancelled
        with pytest.raises(ScopeCancelled):
            child.check()
        task = scope.run(asyncio.sleep(3600), "late")
        with pytest.raises(asyncio.CancelledError):
            await task

    virtually(main)


# ---------------------------------------------------------------- silence first


def test_every_mark_is_set_before_the_first_callback_runs_and_every_callback_before_any_task_stops() -> None:
    async def main() -> None:
        order: list[str] = []
        root = Scope("turn")
        leaf = root.child("response").child("stage")

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                order.append(name)

        tasks = [root.run(work("root task"), "a"), leaf.run(work("leaf task"), "b")]
        await asyncio.sleep(0)

        def look(name: str) -> Callable[[Reason], None]:
            def callback(_: Reason) -> None:
                assert root.cancelled and leaf.cancelled
                assert not any(task.cancelling() for task in tasks)
                order.append(name)

            return callback

        root.on_cancel(look("root callback"))
        leaf.on_cancel(look("leaf callback"))
        root.cancel(Reason.BARGE_IN)
        assert order == ["root callback", "leaf callback"]
        await asyncio.wait(tasks)
        assert sorted(order[2:]) == ["leaf task", "root task"]

    virtually(main)


def test_a_callback_that_raises_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Reason] = []

    def broken(_: Reason) -> None:
        raise RuntimeError("broken callback")

    scope = Scope("turn")
    scope.on_cancel(broken)
    scope.on_cancel(calls.append)
    scope.cancel(Reason.FAILED)
    assert calls == [Reason.FAILED]
    assert "broken callback" in caplog.text


def test_a_callback_set_after_the_cancel_is_called_at_once_and_a_removed_one_never() -> None:
    calls: list[str] = []
    scope = Scope("turn")
    remove = scope.on_cancel(lambda _: calls.append("removed"))
    remove()
    remove()
    scope.cancel(Reason.CLIENT)
    scope.on_cancel(lambda reason: calls.append(str(reason)))
    assert calls == ["client"]


def test_a_callback_may_start_work_which_is_born_cancelled() -> None:
    async def main() -> None:
        scope = Scope("turn")
        made: list[Scope] = []
        scope.on_cancel(lambda _: made.append(scope.child("stage")))
        scope.cancel(Reason.CLOSED)
        assert made[0].cancelled

    virtually(main)


def test_tasks_unwind_side_by_side_not_one_after_another() -> None:
    async def main() -> None:
        scope = Scope("session")
        tasks = [scope.child("stage").run(stubborn(1.0), f"stage {n}") for n in range(20)]
        await asyncio.sleep(0.1)
        began = now()
        scope.cancel(Reason.CLOSED)
        assert now() == began
        assert scope.reaper.pending == 20
        await asyncio.wait(tasks)
        assert now() - began == pytest.approx(1.0)
        assert scope.reaper.pending == 0

    virtually(main)


def test_a_task_may_cancel_its_own_scope_and_sees_it_at_its_next_await() -> None:
    async def main() -> None:
        scope = Scope("tool")
        steps: list[str] = []

        async def hang_up() -> None:
            scope.cancel(Reason.CLIENT)
            steps.append("still running")
            await asyncio.sleep(0)
            steps.append("never")

        task = scope.run(hang_up(), "tool")
        await asyncio.wait({task})
        assert task.cancelled()
        assert steps == ["still running"]

    virtually(main)


def test_a_failing_task_stops_no_sibling_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def fail() -> None:
            raise RuntimeError("one stage fails")

        async def work() -> str:
            await asyncio.sleep(1)
            return "done"

        with Scope("turn") as scope:
            scope.run(fail(), "broken")
            assert await scope.run(work(), "sibling") == "done"
            assert not scope.cancelled

    virtually(main)
    assert "one stage fails" in caplog.text


# ---------------------------------------------------------------- deadlines


def test_a_deadline_is_never_later_than_the_parents() -> None:
    async def main() -> None:
        turn = Scope("process").child("turn", timeout_s=5.0)
        assert turn.child("stage", timeout_s=60.0).deadline == turn.deadline
        assert turn.child("stage").deadline == turn.deadline
        assert turn.child("stage", timeout_s=1.0).deadline == pytest.approx(now() + 1.0)
        await asyncio.sleep(2.0)
        assert turn.child("stage", timeout_s=60.0).remaining() == pytest.approx(3.0)
        turn.close()

    virtually(main)


def test_a_passed_deadline_cancels_all_below_with_its_reason() -> None:
    async def main() -> None:
        turn = Scope("process").child("turn", timeout_s=5.0)
        stage = turn.child("stage")
        task = stage.run(asyncio.sleep(3600), "stage")
        await asyncio.wait({task})
        assert now() == pytest.approx(5.0)
        assert turn.reason is stage.reason is Reason.DEADLINE
        assert stage.remaining() == 0.0
        with pytest.raises(DeadlineExceeded):
            stage.check()

    virtually(main)


def test_a_childs_earlier_deadline_leaves_the_parent_alone_and_a_closed_scope_has_no_timer() -> None:
    async def main() -> None:
        turn = Scope("process").child("turn", timeout_s=5.0)
        early, done = turn.child("stage", timeout_s=1.0), turn.child("stage", timeout_s=2.0)
        done.close()
        await asyncio.sleep(3.0)
        assert early.cancelled and not turn.cancelled and not done.cancelled
        turn.close()
        await asyncio.sleep(5.0)
        assert not turn.cancelled

    virtually(main)


def test_no_deadline_means_no_remaining_time_to_tell() -> None:
    assert Scope("process").child("session").remaining() is None


# ---------------------------------------------------------------- what does not stop


def test_the_reaper_names_a_task_that_swallows_its_cancel(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        scope = Scope("turn")
        quick = scope.run(asyncio.sleep(3600), "quick one")
        slow = scope.run(stubborn(5.0), "stubborn one")
        await asyncio.sleep(0)
        scope.cancel(Reason.BARGE_IN)
        await asyncio.wait({quick, slow})
        assert scope.reaper.ignored_cancels == 1
        assert scope.reaper.pending == 0

    with caplog.at_level(logging.WARNING):
        virtually(main)
    assert "stubborn one" in caplog.text
    assert "quick one" not in caplog.text


def test_draining_waits_no_longer_than_it_is_told_and_counts_who_was_left_behind() -> None:
    async def main() -> None:
        scope = Scope("session")
        tasks = [scope.run(stubborn(seconds), f"{seconds} s") for seconds in (0.5, 1.0, 30.0)]
        await asyncio.sleep(0)
        scope.cancel(Reason.CLOSED)
        began = now()
        assert await scope.reaper.drain(2.0) == 1
        assert now() - began == pytest.approx(2.0)
        assert (scope.reaper.detached, scope.reaper.pending) == (1, 0)
        await asyncio.wait(tasks)

    virtually(main)


def test_draining_ends_as_soon_as_all_is_gone_and_never_waits_for_its_own_task() -> None:
    async def main() -> None:
        scope = Scope("session")
        took: list[float] = []

        async def close_from_within() -> None:
            scope.cancel(Reason.CLOSED)
            began = now()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await scope.reaper.drain(2.0)
            took.append(now() - began)

        other = scope.run(stubborn(0.3), "other")
        await asyncio.sleep(0)
        await asyncio.wait({scope.run(close_from_within(), "own"), other})
        assert took == [pytest.approx(0.3)]

    virtually(main)


def test_a_task_that_fails_while_it_unwinds_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def fail_late() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                raise RuntimeError("fails on its way out")

        scope = Scope("turn")
        task = scope.run(fail_late(), "messy")
        await asyncio.sleep(0)
        scope.cancel(Reason.BARGE_IN)
        await asyncio.wait({task})
        await asyncio.sleep(0)
        assert scope.reaper.pending == 0

    virtually(main)
    assert "fails on its way out" in caplog.text


# ---------------------------------------------------------------- nothing is left


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_a_scope_that_ended_is_forgotten_by_its_parent(end: str) -> None:
    async def main() -> None:
        root = Scope("session", reaper=Reaper())
        refs: list[weakref.ref[Scope]] = []
        for _ in range(100):
            turn = root.child("turn", timeout_s=60.0)
            stage = turn.child("stage")
            await stage.run(asyncio.sleep(0), "work")
            refs += [weakref.ref(turn), weakref.ref(stage)]
            turn.close() if end == "close" else turn.cancel(Reason.CLOSED)
        del turn, stage
        await asyncio.sleep(0)
        gc.collect()
        assert [ref for ref in refs if ref() is not None] == []

    virtually(main)


def test_closing_a_scope_with_running_work_stops_the_work() -> None:
    async def main() -> None:
        with Scope("turn") as scope:
            task = scope.child("stage").run(asyncio.sleep(3600), "work")
        await asyncio.wait({task})
        assert task.cancelled()
        assert now() == 0.0

    virtually(main)


def test_closing_a_finished_scope_calls_no_cancel_callback() -> None:
    calls: list[Reason] = []
    with Scope("turn") as scope:
        scope.on_cancel(calls.append)
    scope.cancel(Reason.CLOSED)
    assert calls == []
    assert not scope.cancelled

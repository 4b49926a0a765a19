"""Stage buffers hold producers back and lose nothing unseen; the sample log finds audio by its index."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.buffers import Latest, SampleLog, StageBuffer
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, Overloaded, ScopeCancelled
from voice.scope import Reason, Scope
from voice.testing import run_virtual

# ---------------------------------------------------------------- stage buffer


def test_a_full_buffer_holds_its_producer_back() -> None:
    async def main() -> None:
        buffer: StageBuffer[str] = StageBuffer(10, size=len)
        times: list[float] = []

        async def produce() -> None:
            for _ in range(4):
                await buffer.put("12345")
                times.append(asyncio.get_running_loop().time())
            buffer.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            await asyncio.sleep(1.0)
            assert buffer.depth == 10
            got = []
            async for item in buffer:
                got.append(item)
                await asyncio.sleep(1.0)
        assert got == ["12345"] * 4
        assert times == pytest.approx([0.0, 0.0, 1.0, 2.0])
        assert buffer.stats.put_wait_s == pytest.approx(2.0) and buffer.stats.drops == 0

    run_virtual(main())


def test_put_nowait_refuses_what_does_not_fit_and_force_does_not() -> None:
    async def main() -> None:
        buffer: StageBuffer[str] = StageBuffer(4, size=len)
        buffer.put_nowait("abc")
        with pytest.raises(Overloaded):
            buffer.put_nowait("de")
        buffer.force("de")
        assert buffer.depth == 5 and [await anext(buffer), await anext(buffer)] == ["abc", "de"]

    run_virtual(main())


def test_an_item_larger_than_the_bound_passes_when_it_is_alone() -> None:
    async def main() -> None:
        buffer: StageBuffer[str] = StageBuffer(3, size=len)
        await buffer.put("much too long")
        with pytest.raises(Overloaded):
            buffer.put_nowait("x")
        assert await anext(buffer) == "much too long"

    run_virtual(main())


def test_closing_ends_the_iteration_after_what_is_left_and_takes_no_more() -> None:
    async def main() -> None:
        buffer: StageBuffer[int] = StageBuffer(4)
        buffer.put_nowait(1)
        buffer.close()
        with pytest.raises(BadRequest):
            await buffer.put(2)
        assert [item async for item in buffer] == [1]
        assert [item async for item in buffer] == []

    run_virtual(main())


def test_a_producer_that_waits_learns_of_the_close_and_the_consumer_of_an_error() -> None:
    async def main() -> None:
        buffer: StageBuffer[int] = StageBuffer(1)
        buffer.put_nowait(1)
        producer = asyncio.get_running_loop().create_task(buffer.put(2))
        await asyncio.sleep(0.1)
        buffer.close(EngineFailed("died"))
        with pytest.raises(BadRequest):
            await producer
        assert await anext(buffer) == 1
        with pytest.raises(EngineFailed):
            await anext(buffer)

    run_virtual(main())


def test_clearing_is_immediate_counted_and_lets_producers_go_on() -> None:
    async def main() -> None:
        buffer: StageBuffer[int] = StageBuffer(2)
        buffer.put_nowait(1)
        buffer.put_nowait(2)
        producer = asyncio.get_running_loop().create_task(buffer.put(3))
        await asyncio.sleep(0.1)
        assert buffer.clear() == 2 and buffer.stats.items == 0 and buffer.stats.drops == 2
        await producer
        assert await anext(buffer) == 3

    run_virtual(main())


@pytest.mark.parametrize(
    ("reason", "error"), [(Reason.BARGE_IN, ScopeCancelled), (Reason.DEADLINE, DeadlineExceeded)]
)
def test_a_cancelled_scope_wakes_both_sides_and_drops_the_content(
    reason: Reason, error: type[Exception]
) -> None:
    async def main() -> None:
        turn = Scope("turn")
        full: StageBuffer[int] = StageBuffer(1, scope=turn)
        empty: StageBuffer[int] = StageBuffer(1, scope=turn)
        full.put_nowait(1)
        loop = asyncio.get_running_loop()
        sides = [loop.create_task(full.put(2)), loop.create_task(anext(empty))]  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        turn.cancel(reason)
        assert full.depth == 0
        results = await asyncio.gather(*sides, return_exceptions=True)
        assert [type(r) for r in results] == [error, error]
        with pytest.raises(error):
            await anext(full)
        with pytest.raises(error):
            full.put_nowait(3)

    run_virtual(main())


def test_a_cancelled_consumer_loses_no_item() -> None:
    async def main() -> None:
        buffer: StageBuffer[int] = StageBuffer(4)
        consumer = asyncio.get_running_loop().create_task(anext(buffer))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        buffer.put_nowait(1)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
        assert await anext(buffer) == 1

    run_virtual(main())


def test_a_second_consumer_is_a_mistake_that_is_told() -> None:
    async def main() -> None:
        buffer: StageBuffer[int] = StageBuffer(4)
        first = asyncio.get_running_loop().create_task(anext(buffer))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        with pytest.raises(BadRequest):
            await anext(buffer)
        buffer.put_nowait(1)
        assert await first == 1

    run_virtual(main())


def test_stats_tell_depth_age_and_waits() -> None:
    async def main() -> None:
        buffer: StageBuffer[str] = StageBuffer(100, size=len)
        consumer = asyncio.get_running_loop().create_task(anext(buffer))  # type: ignore[arg-type]
        await asyncio.sleep(2.0)
        buffer.put_nowait("x")
        await consumer
        buffer.put_nowait("abc")
        await asyncio.sleep(1.5)
        buffer.put_nowait("de")
        stats = buffer.stats
        assert (stats.depth, stats.items) == (5, 2)
        assert stats.oldest_age_s == pytest.approx(1.5) and stats.get_wait_s == pytest.approx(2.0)

    run_virtual(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 20.0))
def test_everything_put_comes_out_in_order_within_the_bound(seed: int, bound: float) -> None:
    chance = random.Random(seed)
    sizes = [chance.uniform(0.0, 8.0) for _ in range(50)]

    async def main() -> None:
        buffer: StageBuffer[tuple[int, float]] = StageBuffer(bound, size=lambda item: item[1])

        async def produce() -> None:
            for item in enumerate(sizes):
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.1]))
                await buffer.put(item)
                assert buffer.depth <= bound + 1e-6 or buffer.stats.items == 1
            buffer.close()

        producer = asyncio.get_running_loop().create_task(produce())
        got = []
        async for number, _ in buffer:
            got.append(number)
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.1]))
        await producer
        assert got == list(range(50))

    run_virtual(main(), seed=seed)


# ---------------------------------------------------------------- latest


def test_the_newest_replaces_what_was_not_taken() -> None:
    async def main() -> None:
        partials: Latest[str] = Latest()
        for text in ("I", "I want", "I want to"):
            partials.put(text)
        assert partials.stats.items == 1 and partials.stats.drops == 2
        assert await anext(partials) == "I want to"
        partials.put("I want to go")
        partials.close()
        assert [text async for text in partials] == ["I want to go"]

    run_virtual(main())


def test_a_consumer_waits_for_the_next_newest() -> None:
    async def main() -> None:
        partials: Latest[int] = Latest()
        loop = asyncio.get_running_loop()
        for i in range(10):
            loop.call_later(i * 0.1 + 0.05, partials.put, i)
        loop.call_later(2.0, partials.close)
        got = []
        async for value in partials:
            got.append(value)
            await asyncio.sleep(0.3)
        assert got[0] == 0 and got[-1] == 9 and got == sorted(got) and len(got) < 6

    run_virtual(main())


def test_a_cancelled_scope_ends_the_wait_for_the_latest() -> None:
    async def main() -> None:
        turn = Scope("turn")
        partials: Latest[int] = Latest(scope=turn)
        asyncio.get_running_loop().call_later(1.0, turn.cancel, Reason.BARGE_IN)
        with pytest.raises(ScopeCancelled):
            await anext(partials)

    run_virtual(main())


# ---------------------------------------------------------------- sample log


def ramp(a: int, b: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.arange(a, b) % 30011).astype(np.int16)


def test_audio_is_found_by_its_index_across_blocks() -> None:
    log = SampleLog(10.0, 1000)
    for a in range(0, 5000, 333):
        assert log.append(ramp(a, a + 333)) == 333
    assert (log.start, log.end) == (0, 5328)
    np.testing.assert_array_equal(log.read(990, 4321), ramp(990, 4321))
    assert len(log.read(7, 7)) == 0


def test_what_is_read_is_a_copy() -> None:
    log = SampleLog(10.0, 1000)
    log.append(ramp(0, 100))
    log.read(0, 100)[:] = 0
    np.testing.assert_array_equal(log.read(0, 100), ramp(0, 100))


def test_a_full_log_takes_what_fits_and_says_how_much() -> None:
    log = SampleLog(2.0, 1000)
    assert log.append(ramp(0, 1500)) == 1500 and not log.full
    assert log.append(ramp(1500, 2600)) == 500 and log.full and log.dropped == 600
    np.testing.assert_array_equal(log.read(0, 2000), ramp(0, 2000))
    log.drop_before(1000)
    assert not log.full and log.append(ramp(2000, 2100)) == 100


def test_an_overwriting_log_keeps_the_newest_and_the_index_counts_on() -> None:
    log = SampleLog(1.0, 1000, overwrite=True)
    for a in range(0, 10_000, 250):
        log.append(ramp(a, a + 250))
    assert (log.start, log.end) == (9000, 10_000) and not log.full
    np.testing.assert_array_equal(log.read(9000, 10_000), ramp(9000, 10_000))
    log.append(ramp(10_000, 15_000))
    assert (log.start, log.end) == (14_000, 15_000) and log.dropped == 14_000
    np.testing.assert_array_equal(log.read(14_000, 15_000), ramp(14_000, 15_000))


def test_reading_what_is_not_there_is_refused() -> None:
    log = SampleLog(2.0, 1000)
    log.append(ramp(0, 1000))
    log.drop_before(100)
    for a, b in ((99, 200), (900, 1001), (300, 200)):
        with pytest.raises(BadRequest):
            log.read(a, b)


def test_memory_follows_what_is_kept() -> None:
    log = SampleLog(120.0, 16_000)
    for i in range(100):
        log.append(ramp(i * 16_000, (i + 1) * 16_000))
        log.drop_before((i - 1) * 16_000)
        assert len(log._blocks) <= 2
    log.drop_before(log.end)
    assert len(log) == 0 and not log._blocks
    log.append(ramp(0, 10))
    assert len(log._blocks) == 1  # an idle session: one block of 32 kB


def test_the_bound_can_change_between_idle_and_speech() -> None:
    log = SampleLog(1.0, 1000, overwrite=True)
    log.append(ramp(0, 5000))
    log.limit(3.0, overwrite=False)
    assert log.append(ramp(5000, 8000)) == 2000 and log.full
    log.limit(1.0, overwrite=True)
    assert (log.start, log.end) == (6000, 7000)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_log_equals_a_list_that_forgets(seed: int, overwrite: bool) -> None:
    chance = random.Random(seed)
    log = SampleLog(0.5, 100, overwrite=overwrite, start=chance.randrange(1000))
    start, held = log.start, []  # the model: index of the first value, and all values
    for _ in range(60):
        if chance.random() < 0.7:
            values = [chance.randrange(-32768, 32768) for _ in range(chance.choice([0, 1, 7, 60, 130]))]
            taken = log.append(np.array(values, np.int16))
            held += values[:taken]
            assert taken == len(values) or (not overwrite and len(held) == 50)
            if overwrite and len(held) > 50:
                start, held = start + len(held) - 50, held[-50:]
        else:
            at = start + chance.randrange(-5, 80)
            gone = min(max(at - start, 0), len(held))
            assert log.drop_before(at) == gone
            start, held = start + gone, held[gone:]
        assert (log.start, log.end, len(log)) == (start, start + len(held), len(held))
        a = chance.randint(start, start + len(held))
        b = chance.randint(a, start + len(held))
        assert log.read(a, b).tolist() == held[a - start : b - start]

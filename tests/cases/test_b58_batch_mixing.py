"""B58: in a batch with different lengths, rows are given to the wrong request, or one request's to all.

The kind of fault: who a row belongs to is kept beside the batch instead of with it. It is made impossible in
``voice/batching.py``: a request and its item are one object, a batch is a list of those, and results are paired
with it by position after ``voice/engine_call.py`` has made sure that there are as many, in an order.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from voice.batching import Batcher
from voice.errors import EngineFailed, ScopeCancelled
from voice.interfaces import Pcm16
from voice.scope import Priority, Reason, Scope
from voice.testing import VirtualExecutor, run_virtual

SCHEDULES = int(os.environ.get("VOICE_BATCH_SCHEDULES", "1000"))
SECONDS = (0.4, 3.0, 12.0, 35.0)
RATE_HZ = 100
"""Of the fakes' audio: hashes need no more."""
NOISE = np.random.default_rng(58).integers(-9999, 9999, 100 * RATE_HZ, np.int16)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- the two engines


def recognise(utterances: Sequence[Pcm16]) -> list[str]:
    """A batched recogniser: pads all to the longest, as real ones do, and says each row's hash."""
    lengths = [len(u) for u in utterances]
    rows = np.zeros((len(utterances), max(lengths)), np.int16)
    for row, utterance in zip(rows, utterances, strict=True):
        row[: len(utterance)] = utterance
    return [digest(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


@dataclass(frozen=True)
class Step:
    """What one stream's next frame is made of: its text, how far it is, and what came before."""

    text: str
    frame: int
    state: bytes


def speak_step(steps: Sequence[Step]) -> list[tuple[bytes, bytes]]:
    """A batched decoder: the next frame and state of each stream, which depend on all its earlier frames."""
    states = [hashlib.sha256(s.state + s.text.encode() + bytes([s.frame])).digest() for s in steps]
    return [(state, state[:8]) for state in states]


def frames_of(text: str) -> int:
    return math.ceil(float(text.split()[0]) / 6.0)


def spoken_alone(text: str) -> bytes:
    """The same stream at batch size 1, without any batcher."""
    state, audio = b"", b""
    for frame in range(frames_of(text)):
        [(state, piece)] = speak_step([Step(text, frame, state)])
        audio += piece
    return audio


# ---------------------------------------------------------------- a schedule


class Schedule:
    """One random run: who asks when, how large batches are, how long calls take, who leaves in the middle."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        max_batch = 1 + seed % 16
        options: dict[str, Any] = {
            "max_batch": max_batch,
            "target_batch": chance.randint(1, max_batch),
            "max_wait_s": chance.choice([0.0, 0.015, 0.03]),
        }
        by_length = chance.random() < 0.5
        self.recogniser: Batcher[Pcm16, str] = Batcher(
            recognise,
            name="recogniser",
            executor=VirtualExecutor((0.01, 0.2), threads=1),
            bucket=(lambda audio: len(audio).bit_length()) if by_length else None,
            **options,
        )
        self.voice: Batcher[Step, tuple[bytes, bytes]] = Batcher(
            speak_step, name="voice", executor=VirtualExecutor((0.005, 0.04), threads=1), **options
        )
        self.answered = self.cancelled = 0

    async def run(self) -> None:
        process = Scope("process")
        rows = [*SECONDS, *self.chance.choices(SECONDS, k=self.chance.randint(0, 4))]
        self.chance.shuffle(rows)
        leaver = self.chance.randrange(len(rows))
        async with asyncio.TaskGroup() as group:
            for number, seconds in enumerate(rows):
                scope = process.child("turn", priority=self.chance.choice(list(Priority)))
                after_s = self.chance.uniform(0.0, 0.05)
                group.create_task(self.listen(number, seconds, scope, after_s))
                group.create_task(self.speak(number, seconds, scope, after_s))
                if number == leaver:  # most often while a call with its row in it runs
                    after_s = self.chance.uniform(0.0, 0.2)
                    asyncio.get_running_loop().call_later(after_s, scope.cancel, Reason.BARGE_IN)
        await asyncio.sleep(1.0)  # the last call may be one whose only row has left

    async def listen(self, number: int, seconds: float, scope: Scope, after_s: float) -> None:
        audio = NOISE[number : number + int(seconds * RATE_HZ)]
        await asyncio.sleep(after_s)
        try:
            assert await self.recogniser.submit(audio, scope) == digest(audio.tobytes())
            self.answered += 1
        except ScopeCancelled:
            self.cancelled += 1

    async def speak(self, number: int, seconds: float, scope: Scope, after_s: float) -> None:
        """A stream that asks frame by frame: short ones end while others go on."""
        text, state, audio = f"{seconds} seconds of number {number}", b"", b""
        await asyncio.sleep(after_s)
        try:
            for frame in range(frames_of(text)):
                state, piece = await self.voice.submit(Step(text, frame, state), scope)
                audio += piece
            assert audio == spoken_alone(text)
            self.answered += 1
        except ScopeCancelled:
            self.cancelled += 1
            assert spoken_alone(text).startswith(audio)


def test_every_row_of_a_thousand_random_schedules_gets_its_own_result_as_at_batch_size_one() -> None:
    answered = cancelled = items = calls = 0
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        try:
            run_virtual(schedule.run(), seed=seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise
        for stats in (schedule.recogniser.stats, schedule.voice.stats):
            assert stats.depth == 0 and not stats.broken and stats.failed == 0, f"schedule {seed}"
            items, calls = items + stats.items, calls + stats.calls
        answered += schedule.answered
        cancelled += schedule.cancelled
    print(f"{answered} answered, {cancelled} cancelled, {items / calls:.2f} rows a call")
    assert answered > 9 * SCHEDULES
    assert cancelled > SCHEDULES / 2
    assert items > 1.3 * calls, "batches, not single rows"


def test_a_row_that_is_cancelled_while_its_batch_runs_shifts_none_of_the_others() -> None:
    for size in range(2, 17):
        for leaver in range(size):
            calls: list[int] = []

            def engine(items: Sequence[int], calls: list[int] = calls) -> list[str]:
                calls.append(len(items))
                return [digest(bytes([item])) for item in items]

            async def main(size: int = size, leaver: int = leaver) -> list[Any]:
                batcher: Batcher[int, str] = Batcher(
                    engine,
                    name="e",
                    executor=VirtualExecutor(1.0, threads=1),
                    max_batch=size,
                )
                scopes = [Scope("turn") for _ in range(size)]
                asyncio.get_running_loop().call_later(0.5, scopes[leaver].cancel, Reason.BARGE_IN)
                asked = [batcher.submit(i, scope) for i, scope in enumerate(scopes)]
                return await asyncio.gather(*asked, return_exceptions=True)

            results = run_virtual(main())
            assert calls == [size]
            for number, result in enumerate(results):
                if number == leaver:
                    assert isinstance(result, ScopeCancelled)
                else:
                    assert result == digest(bytes([number]))


# ---------------------------------------------------------------- results that do not fit


@pytest.mark.parametrize(
    "results",
    [
        np.zeros((2, 4)),
        np.zeros((1, 3)),
        np.zeros((4, 3)),
        np.zeros(()),
        np.float32(0.5),
        "abc",
        b"abc",
        {"a": 1, "b": 2, "c": 3},
        {1, 2, 3},
        iter([1, 2, 3]),
        7,
        ["one for all"],
    ],
    ids=[
        "a row too few",
        "one row for all",
        "a row too many",
        "no rows",
        "a number",
        "a text as long as the batch",
        "bytes as long as the batch",
        "a mapping as long as the batch",
        "a set as long as the batch",
        "an iterator",
        "an int",
        "a list of one",
    ],
)
def test_results_that_do_not_fit_fail_the_whole_batch_and_are_given_to_nobody(results: Any) -> None:
    given = [results]

    def engine(items: Sequence[int]) -> Any:
        return given.pop() if given else [item * 10 for item in items]

    batcher: Batcher[int, Any] = Batcher(
        engine, name="e", executor=VirtualExecutor(0.1, threads=1), max_batch=4, cooldown_s=1.0
    )

    async def main() -> None:
        scope = Scope("process")
        got = await asyncio.gather(*(batcher.submit(i, scope) for i in range(3)), return_exceptions=True)
        assert all(isinstance(result, EngineFailed) for result in got), got
        await asyncio.sleep(1.0)
        assert await asyncio.gather(*(batcher.submit(i, scope) for i in range(1))) == [0]
        assert await asyncio.gather(*(batcher.submit(i, scope) for i in range(3))) == [0, 10, 20]

    run_virtual(main())
    assert not given


@pytest.mark.parametrize("results", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.ones((3, 4, 5))])
def test_results_that_fit_are_rows_of_a_list_a_tuple_or_an_array(results: Any) -> None:
    batcher: Batcher[int, Any] = Batcher(
        lambda _: results, name="e", executor=VirtualExecutor(0.1, threads=1), max_batch=4
    )

    async def main() -> list[Any]:
        scope = Scope("process")
        return await asyncio.gather(*(batcher.submit(i, scope) for i in range(3)))

    for row, got in zip(results, run_virtual(main()), strict=True):
        assert np.array_equal(row, got)

"""The microphone transport, with a sound card made of timers: what is heard, what is played, what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transports.microphone import AHEAD_BLOCKS, MAX_WAITING, Microphone
from voice.errors import EngineFailed
from voice.interfaces import Pcm16
from voice.testing import VirtualExecutor, run_virtual


class PortAudioError(Exception):
    pass


class Card:
    """A sound card: both streams tick while they are started; records what was played."""

    PortAudioError = PortAudioError

    def __init__(
        self, rates: tuple[int, ...] = (16_000, 24_000), missing: str = "", broken: str = ""
    ) -> None:
        self.rates, self.missing, self.broken = rates, missing, broken
        self.streams: dict[str, CardStream] = {}

    def InputStream(self, **options: Any) -> CardStream:
        return self._make("input", options)

    def OutputStream(self, **options: Any) -> CardStream:
        return self._make("output", options)

    def _make(self, kind: str, options: dict[str, Any]) -> CardStream:
        if kind == self.missing or options["samplerate"] not in self.rates:
            raise PortAudioError("Invalid sample\nrate")
        self.streams[kind] = CardStream(kind, options, self.broken == kind)
        return self.streams[kind]

    def query_devices(self, device: int | str | None, kind: str) -> dict[str, Any]:
        if kind == self.missing:
            raise PortAudioError("Error querying device -1")
        return {"default_samplerate": float(self.rates[0])}


class CardStream:
    latency = 0.015

    def __init__(self, kind: str, options: dict[str, Any], broken: bool) -> None:
        self.kind, self.options, self.broken = kind, options, broken
        self.closed = False
        self.started = False
        self.ticks = 0
        self.played: list[Pcm16] = []

    def start(self) -> None:
        if self.broken:
            raise PortAudioError("device busy")
        self.started = True

    def tick(self) -> None:
        """One callback, as the sound system's thread makes it."""
        size = self.options["blocksize"]
        data = np.full((size, 1), self.ticks % 100 + 1, dtype=np.int16)
        self.options["callback"](data, size, None, None)
        self.ticks += 1
        if self.kind == "output":
            self.played.append(data[:, 0].copy())

    def abort(self) -> None:
        self.started = False

    def close(self) -> None:
        self.closed = True

    @property
    def sound(self) -> Pcm16:
        return np.concatenate(self.played)


class Line:
    def __init__(self, value: int = 500) -> None:
        self.playout = self
        self.value = value
        self.heard: list[Pcm16] = []
        self.read_at: list[int] = []

    def hear(self, pcm: Pcm16) -> None:
        self.heard.append(pcm)

    def read(self, samples: int) -> Pcm16:
        self.read_at.append(samples)
        return np.full(samples if self.value else 0, self.value, dtype=np.int16)

    def is_quiet(self) -> bool:
        return False


async def during(
    card: Card, line: Line, blocks: int, each: Callable[[int, Microphone], None] = lambda n, m: None
) -> Microphone:
    """Let the card tick for so many blocks of 10 ms, then hang up."""
    microphone = Microphone(sound=card, executor=VirtualExecutor())
    await microphone.open()
    task = asyncio.ensure_future(microphone.run(line))
    await asyncio.sleep(0.001)
    for n in range(blocks):
        each(n, microphone)
        for stream in card.streams.values():
            stream.tick()
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return microphone


def test_what_is_spoken_is_heard_and_what_is_read_is_played_without_a_gap() -> None:
    card, line = Card(), Line()
    microphone = run_virtual(during(card, line, 50))
    assert [int(pcm[0]) for pcm in line.heard] == [n % 100 + 1 for n in range(50)]
    assert all(len(pcm) == 160 for pcm in line.heard)
    assert np.all(card.streams["output"].sound == 500)
    assert (microphone.gaps, microphone.lost_blocks) == (0, 0)


def test_a_pause_is_silent_after_the_blocks_that_lie_ready() -> None:
    card, line = Card(), Line()

    def pause(n: int, _: Microphone) -> None:
        if n == 20:
            line.value = 0

    run_virtual(during(card, line, 40, pause))
    blocks = [bool(np.any(block)) for block in card.streams["output"].played]
    assert blocks == [True] * (20 + AHEAD_BLOCKS) + [False] * (20 - AHEAD_BLOCKS)


def test_the_delay_to_the_ear_is_what_lies_ready_and_what_the_card_holds() -> None:
    microphone = run_virtual(during(Card(), Line(), 1))
    assert microphone.capabilities.playout == "can_pause"
    assert microphone.capabilities.delay_s == pytest.approx(AHEAD_BLOCKS * 0.01 + 0.015)


def test_a_card_with_rates_of_its_own_is_resampled_both_ways() -> None:
    card, line = Card(rates=(48_000,)), Line()
    run_virtual(during(card, line, 100))
    heard = np.concatenate(line.heard)
    assert len(heard) == pytest.approx(16_000, abs=160)
    played = card.streams["output"].sound
    assert len(played) == 48_000
    assert np.all(np.abs(played[2000:].astype(int) - 500) <= 2)


def test_both_devices_are_closed_when_the_call_ends_and_nothing_is_heard_after_it() -> None:
    card, line = Card(), Line()

    async def main() -> None:
        await during(card, line, 5)
        count = len(line.heard)
        card.streams["input"].tick()
        await asyncio.sleep(0.1)
        assert len(line.heard) == count

    run_virtual(main())
    assert all(stream.closed for stream in card.streams.values())


def test_a_loop_that_stands_still_bounds_what_waits_and_counts_the_gaps() -> None:
    card, line = Card(), Line()

    def stall(n: int, _: Microphone) -> None:
        if n == 10:
            for _ in range(80):  # 800 ms of callbacks, while the loop does nothing
                for stream in card.streams.values():
                    stream.tick()

    microphone = run_virtual(during(card, line, 20, stall))
    assert microphone.lost_blocks == 80 - MAX_WAITING + 1  # and the block of the tick that followed
    assert microphone.gaps == 80 - AHEAD_BLOCKS + 1
    assert len(line.heard) == 20 - 1 + MAX_WAITING
    assert np.all(card.streams["output"].sound[-9 * 240 :] == 500)


@pytest.mark.parametrize(("missing", "name"), [("input", "microphone"), ("output", "loudspeaker")])
def test_a_missing_device_is_one_sentence(missing: str, name: str) -> None:
    card = Card(missing=missing)
    with pytest.raises(EngineFailed, match=f"no default {name} can't be opened: Error querying device -1"):
        run_virtual(Microphone(sound=card, executor=VirtualExecutor()).open())
    assert all(stream.closed for stream in card.streams.values())


def test_a_device_that_cannot_be_started_is_named_and_closed() -> None:
    card = Card(broken="output")
    with pytest.raises(EngineFailed, match="loudspeaker can't be started: device busy"):
        run_virtual(Microphone(sound=card, executor=VirtualExecutor()).run(Line()))
    assert all(stream.closed for stream in card.streams.values())


def test_a_device_that_goes_away_ends_the_call_with_an_error() -> None:
    async def main() -> None:
        card = Card()
        task = asyncio.ensure_future(Microphone(sound=card, executor=VirtualExecutor()).run(Line()))
        await asyncio.sleep(0.1)
        card.streams["input"].options["finished_callback"]()
        with pytest.raises(EngineFailed, match="unplugged"):
            await asyncio.wait_for(task, 1.0)

    run_virtual(main())


def test_callbacks_from_another_thread_reach_the_loop_in_order() -> None:
    card, line = Card(), Line()

    async def main() -> None:
        microphone = Microphone(sound=card)
        await microphone.open()
        task = asyncio.ensure_future(microphone.run(line))
        for _ in range(1000):
            if "output" in card.streams and card.streams["output"].started:
                break
            await asyncio.sleep(0.001)

        def ticks() -> None:
            for _ in range(40):
                for stream in card.streams.values():
                    stream.tick()

        thread = threading.Thread(target=ticks)
        thread.start()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert [int(pcm[0]) for pcm in line.heard] == list(range(1, 41))

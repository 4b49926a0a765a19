"""The figures of the framework comparison, from what the callers and the process wrote down."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.framework_caller import Record, Turn
from loadtest.stubs import RATE_HZ, ServiceTimes

SILENCE_S = 0.2
"""The silence after which a turn is over: part of the ideal answer time."""
_LOOP_TICK_S = 0.01
_RSS_TICK_S = 0.5
_QUIET_S = 0.1
"""An old answer that is heard again after so much quiet, or after the new one, is stale."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some figures in milliseconds; ``None`` where there are none."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    worst: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """From seconds."""
        if not seconds:
            return cls(0, None, None, None, None)
        p50, p95, p99 = (round(float(q) * 1000, 1) for q in np.percentile(seconds, (50, 95, 99)))
        return cls(len(seconds), p50, p95, p99, round(max(seconds) * 1000, 1))


@dataclass(frozen=True, slots=True)
class FrameworkRun:
    """One run; the terms are those of the comparison's description in ``loadtest.framework``.

    Attributes:
        cpu_s_per_session_minute: Of the whole process, harness included.
        cores: CPU seconds used for each second.
        rss_ready_mb, rss_peak_mb: Resident memory once the sessions are open, and at most.
        rss_loaded_mb: Before any session, the detector loaded.
    """

    kind: str
    sessions: int
    seconds: float
    turns: int
    missed: int
    voice_to_voice: Spread
    overhead: Spread
    barge_in: Spread
    stale: int
    underruns: int
    sentences: int
    loop_lag: Spread
    feed_lag: Spread
    collections: Spread
    cpu_s_per_session_minute: float
    cores: float
    rss_loaded_mb: float
    rss_ready_mb: float
    rss_peak_mb: float
    load: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> FrameworkRun:
        """What :meth:`as_dict` gave, as JSON."""
        values: dict[str, Any] = json.loads(text)
        spreads = {name: Spread(**value) for name, value in values.items() if isinstance(value, dict)}
        return cls(**{**values, **spreads})

    def line(self) -> str:
        """For people."""
        return (
            f"{self.kind:<16} N={self.sessions:<4} turns {self.turns} missed {self.missed}  "
            f"overhead {_ms(self.overhead.p50)}/{_ms(self.overhead.p95)}  barge-in {_ms(self.barge_in.p50)}/"
            f"{_ms(self.barge_in.p95)}  stale {self.stale}  underruns {self.underruns}/{self.sentences}  "
            f"stall {_ms(self.loop_lag.worst)}  feed p99 {_ms(self.feed_lag.p99)}  gc {_ms(self.collections.worst)}  "
            f"CPU {self.cpu_s_per_session_minute:.3f} s/session-min ({self.cores:.2f} cores)  "
            f"RSS {self.rss_loaded_mb:.0f}/{self.rss_ready_mb:.0f}/{self.rss_peak_mb:.0f} MB  load {self.load:.2f}"
        )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


class ProcessWatch:
    """CPU, memory, the loop's lag and the garbage collector's pauses between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self.collections_s: list[float] = []
        self.rss_loaded = self.rss_ready = self.rss_peak = 0
        self.cpu_s = self.wall_s = 0.0
        self._collecting_since = 0.0
        self._stop = threading.Event()

    def loaded(self) -> None:
        """The engines are loaded; no session is open."""
        self.rss_loaded = resident_bytes()

    def start(self) -> None:
        """The callers begin now."""
        self.rss_ready = self.rss_peak = resident_bytes()
        gc.callbacks.append(self._collector)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self._cpu_at, self._wall_at = cpu_s(), time.monotonic()

    def stop(self) -> None:
        """The callers are done."""
        self.cpu_s, self.wall_s = cpu_s() - self._cpu_at, time.monotonic() - self._wall_at
        gc.callbacks.remove(self._collector)
        self._ticker.cancel()
        self._stop.set()
        self._sampler.join()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_LOOP_TICK_S)
            self.lags_s.append(loop.time() - before - _LOOP_TICK_S)

    def _sample(self) -> None:
        while not self._stop.wait(_RSS_TICK_S):
            self.rss_peak = max(self.rss_peak, resident_bytes())

    def _collector(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self.collections_s.append(time.monotonic() - self._collecting_since)


def report(
    kind: str, records: Sequence[Record], watch: ProcessWatch, seconds: float, times: ServiceTimes
) -> FrameworkRun:
    """All figures of a run."""
    ideal_s = SILENCE_S + times.recognition_s + times.first_token_s + times.first_audio_s
    turns = [(record, turn) for record in records for turn in record.turns if turn.over_at]
    answered = [
        record.first_handed[turn.answer] - turn.over_at for record, turn in turns if turn.answer is not None
    ]
    stops, stale = [], 0
    for record in records:
        for number, turn in enumerate(record.turns):
            stop_s, late = _stopped(record, turn, record.turns[number + 1 :])
            stale += late
            if stop_s is not None:
                stops.append(stop_s)
    minutes = len(records) * seconds / 60
    return FrameworkRun(
        kind,
        len(records),
        seconds,
        len(turns),
        len(turns) - len(answered),
        Spread.of(answered),
        Spread.of([v2v - ideal_s - times.first_sentence_s for v2v in answered]),
        Spread.of(stops),
        stale,
        sum(record.underruns for record in records),
        sum(len({(p.answer, p.sentence) for p in record.played}) for record in records),
        Spread.of(watch.lags_s),
        Spread.of([late for record in records for late in record.late_s]),
        Spread.of(watch.collections_s),
        watch.cpu_s / minutes,
        watch.cpu_s / watch.wall_s,
        watch.rss_loaded / 2**20,
        watch.rss_ready / 2**20,
        watch.rss_peak / 2**20,
        os.getloadavg()[0],
    )


def _stopped(record: Record, turn: Turn, later: Sequence[Turn]) -> tuple[float | None, int]:
    """How long after the barge-in the old answer's last piece began, and how many pieces of it came too late."""
    old = [piece for piece in record.played if piece.answer == turn.cut]
    played_on = [p for p in old if p.at + p.samples / RATE_HZ + SILENCE_S > turn.begun_at]
    if not turn.barges or not played_on or old[0].at >= turn.begun_at:
        return None, 0
    answered = record.first_handed.get(turn.answer, float("inf")) if turn.answer is not None else float("inf")
    last, stale = old[0], 0
    for piece in old[1:]:
        quiet_s = piece.at - (last.at + last.samples / RATE_HZ)
        if stale or piece.at >= answered or (piece.at > turn.begun_at and quiet_s > _QUIET_S):
            stale += 1
        else:
            last = piece
    return last.at - turn.begun_at, stale


def cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system has no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""Does a server stay as it is? A long run with stub engines: memory, tasks, handles and latency against time, and what
is left when all callers have gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.calls import machine_load
from loadtest.crowd import Crowd, Moment
from loadtest.load_options import Target, opened
from loadtest.progress import Progress, line
from loadtest.run import scenario_of
from loadtest.scenario import HangUp, Interject, Scenario
from loadtest.stub_server import ServerSample
from loadtest.tally import Tally, percentile

GROWTH_MB = 1.0
"""Most that memory may grow in an hour, for each session, after the warm-up."""
DRIFT_MS = 20.0
"""Most that the median latency may rise between the first and the last quarter after the warm-up."""
ROW_S = 5.0
WRITE_S = 60.0
WARM_UP = 0.2
WARM_UP_S = 600.0
"""The warm-up is a fifth of the run, at most ten minutes: histories and caches fill."""
EMPTY_S = 20.0
"""So long after the last caller has gone nothing may be left of them."""
_LONG_MINUTES = 20.0
"""Of a shorter run no growth an hour can be told: a megabyte more or less decides."""


@dataclass(frozen=True)
class Row:
    """What was seen at one moment. Without slots: its dictionary is written as it is.

    Attributes:
        at_s: Since the run began.
        p50_ms, p95_ms: Voice-to-voice of the last seconds.
    """

    at_s: float
    sessions: int
    rss_mb: float
    tasks: int
    handles: int
    threads: int
    loop_lag_ms: float
    server_cpu: float
    caller_cpu: float
    caller_lag_ms: float
    machine_cpu: float | None
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Minute:
    """The answers of one minute."""

    minute: int
    turns: int
    p50_ms: float | None
    p95_ms: float | None
    gaps: int


@dataclass(frozen=True, slots=True)
class Check:
    """A bound, and whether it held; ``None``: the run was too short to tell."""

    what: str
    held: bool | None
    found: str


async def run(args: argparse.Namespace) -> bool:
    """Run it, print the checks; whether all held."""
    scenario = scenario_of(args, everyday())
    progress = Progress(every_s=60.0)
    async with opened(args, scenario) as target:
        progress.say(
            f"soak: {args.sessions} sessions, {args.minutes:g} minutes, seed {target.seed}; {machine_load()}"
        )
        result = await _soak(target, args.sessions, args.minutes * 60.0, args.json, progress)
    _tell(result)
    if args.html is not None:
        from loadtest import report

        args.html.write_text(report.soak_page(result), encoding="utf-8")
        print(f"report: {args.html}")
    return all(check["held"] is not False for check in result["checks"])


def _tell(result: dict[str, Any]) -> None:
    for check in result["checks"]:
        mark = {True: "pass", False: "FAIL", None: "  - "}[check["held"]]
        print(f"{mark}  {check['what']}: {check['found']}", flush=True)


def everyday() -> Scenario:
    """Conversations as they are, with some callers who hang up and call again."""
    return Scenario(
        name="soak", barge_in=Interject(0.3), backchannel=Interject(0.1), hang_up=HangUp(0.03), ramp_s=10.0
    )


async def _soak(
    target: Target, sessions: int, length_s: float, file: Path | None, progress: Progress
) -> dict[str, Any]:
    rows: list[Row] = []
    before = await _idle_sample(target)
    written_s = 0.0
    crowd = Crowd(target.setting, target.seed, server=target.server)

    def seen(moment: Moment) -> None:
        nonlocal written_s
        progress.show(moment.at_s, line(moment, sessions, length_s))
        if moment.server is not None and (not rows or moment.at_s >= rows[-1].at_s + ROW_S - 0.5):
            rows.append(_row(moment))
        if file is not None and moment.at_s >= written_s + WRITE_S:
            written_s = moment.at_s
            _write(file, _result(target, sessions, length_s, rows, crowd.tally, before, None))

    crowd.on_moment = seen
    try:
        async with crowd:
            await crowd.resize(sessions, target.setting.scenario.ramp_s)
            left_s = length_s - target.setting.scenario.ramp_s
            await asyncio.sleep(max(0.0, left_s))
        progress.end()
        after = await _emptied(target)
    except asyncio.CancelledError:  # stopped: what was seen so far is told
        progress.end()
        stopped = _result(target, sessions, rows[-1].at_s if rows else 0.0, rows, crowd.tally, before, None)
        if file is not None:
            _write(file, stopped)
        _tell(stopped)
        raise
    result = _result(target, sessions, length_s, rows, crowd.tally, before, after)
    if file is not None:
        _write(file, result)
    return result


async def _idle_sample(target: Target) -> ServerSample:
    """What the server uses before anybody calls."""
    assert target.server is not None
    return await target.server.next_sample()


async def _emptied(target: Target) -> ServerSample:
    """What it uses a while after the last caller has gone."""
    assert target.server is not None
    await asyncio.sleep(EMPTY_S)
    return await target.server.next_sample()


# ---------------------------------------------------------------- figures


def _row(moment: Moment) -> Row:
    server = moment.server
    assert server is not None
    return Row(
        moment.at_s,
        moment.sessions,
        round(server.rss_mb, 2),
        server.tasks or 0,
        server.handles or 0,
        server.threads or 0,
        server.loop_lag_ms or 0.0,
        moment.server_cpu or 0.0,
        moment.caller_cpu,
        moment.caller_lag_ms,
        moment.machine_cpu,
        moment.recent_p50_ms,
        moment.recent_p95_ms,
    )


def minutes_of(tally: Tally) -> list[Minute]:
    """The answers by the minute."""
    last_s = max((turn.at_s for turn in tally.turns), default=0.0)
    within: list[list[float]] = [[] for _ in range(int(last_s // 60) + 1)]
    for turn in tally.turns:
        within[int(turn.at_s // 60)].append(1000 * turn.received_s)
    gaps = Counter(int(gap.at_s // 60) for gap in tally.gaps)
    return [
        Minute(n, len(ms), _rounded(percentile(ms, 0.5)), _rounded(percentile(ms, 0.95)), gaps[n])
        for n, ms in enumerate(within)
    ]


def per_hour(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of a straight line through (seconds, value), by least squares, in units an hour."""
    if len(points) < 3 or points[0][0] == points[-1][0]:
        return None
    at_s, values = np.array(points, float).T
    return float(np.polyfit(at_s / 3600.0, values, 1)[0])


def drift_ms(tally: Tally, from_s: float, to_s: float) -> float | None:
    """How much higher the median latency is in the last quarter than in the first."""
    quarter_s = (to_s - from_s) / 4
    first = [turn.received_s for turn in tally.turns if from_s <= turn.at_s < from_s + quarter_s]
    last = [turn.received_s for turn in tally.turns if to_s - quarter_s <= turn.at_s]
    before, after = percentile(first, 0.5), percentile(last, 0.5)
    return None if before is None or after is None else 1000 * (after - before)


def _result(
    target: Target,
    sessions: int,
    length_s: float,
    rows: Sequence[Row],
    tally: Tally,
    before: ServerSample,
    after: ServerSample | None,
) -> dict[str, Any]:
    warm_s = min(WARM_UP_S, WARM_UP * length_s)
    steady = [row for row in rows if row.at_s >= warm_s]
    growth = per_hour([(row.at_s, row.rss_mb) for row in steady])
    cpu = [row.server_cpu for row in steady]
    figures = {
        "growth_mb_per_hour": _rounded(growth, 3),
        "growth_mb_per_hour_per_session": None if growth is None else round(growth / sessions, 4),
        "drift_ms": _rounded(drift_ms(tally, warm_s, rows[-1].at_s if rows else 0.0)),
        "rss_before_mb": round(before.rss_mb, 1),
        "rss_warm_mb": steady[0].rss_mb if steady else None,
        "rss_end_mb": steady[-1].rss_mb if steady else None,
        "cpu_s_per_session_minute": round(60 * float(np.mean(cpu)) / sessions, 3) if cpu else None,
        "loop_lag_worst_ms": max((row.loop_lag_ms for row in steady), default=None),
        "caller_lag_worst_ms": max((row.caller_lag_ms for row in steady), default=None),
    }
    return {
        "kind": "soak",
        "settings": {
            "sessions": sessions,
            "minutes": length_s / 60,
            "seed": target.seed,
            "frame_ms": target.setting.scenario.frame_ms,
            "scenario": target.setting.scenario.as_dict(),
        },
        "machine": machine_load(),
        "finished": after is not None,
        "figures": figures,
        "heard": tally.summary(target.ideal_s),
        "left_over": None if after is None else {"before": asdict(before), "after": asdict(after)},
        "minutes": [asdict(minute) for minute in minutes_of(tally)],
        "rows": [vars(row) for row in rows],
        "checks": [asdict(check) for check in checks(figures, tally, before, after, length_s)],
    }


def checks(
    figures: dict[str, Any], tally: Tally, before: ServerSample, after: ServerSample | None, length_s: float
) -> list[Check]:
    """What must hold."""
    long = length_s >= 60 * _LONG_MINUTES
    growth, drift = figures["growth_mb_per_hour_per_session"], figures["drift_ms"]
    found = [
        Check(
            f"memory grows by less than {GROWTH_MB:g} MB an hour and session",
            growth < GROWTH_MB if long and growth is not None else None,
            "not known"
            if growth is None
            else f"{growth:.3f} MB ({figures['growth_mb_per_hour']:.2f} MB in all)"
            + ("" if long else f"; told from {_LONG_MINUTES:g} minutes on"),
        ),
        Check(
            f"the median latency rises by less than {DRIFT_MS:g} ms",
            None if drift is None else drift < DRIFT_MS,
            "not known" if drift is None else f"{drift:+.1f} ms from the first to the last quarter",
        ),
    ]
    if after is not None:
        for name in ("tasks", "handles", "threads", "sessions"):
            old, new = getattr(before, name) or 0, getattr(after, name) or 0
            found.append(Check(f"no {name} are left over", new <= old, f"{old} before, {new} after"))
    counts = tally.counts
    for name, what in (
        ("wrong_voice", "nobody hears another caller's answer"),
        ("stale", "no audio of an old answer comes after it was cut"),
        ("unanswered", "every turn is answered"),
        ("lost", "the server ends no call"),
        ("server_errors", "the server tells no error"),
        ("failed_answers", "no answer fails"),
    ):
        found.append(Check(what, counts[name] == 0, f"{counts[name]} of {len(tally.turns)} turns"))
    return found


def _write(file: Path, result: dict[str, Any]) -> None:
    """Whole or not at all: it may be read while the run goes on, and in little time: callers wait meanwhile."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    os.replace(part, file)


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)

"""How does a server serve so many callers? One load, what they hear, and what both sides use."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from loadtest import scenario as scenarios
from loadtest.calls import machine_load
from loadtest.crowd import Crowd, Moment
from loadtest.load_options import Target, opened
from loadtest.progress import Progress, line
from loadtest.scenario import Scenario
from loadtest.tally import percentile

CALLER_CORE = 0.8
"""Cores: above it the callers' process, which has one thread, is near its own limit."""
CALLER_LATE_MS = 25.0
"""When frames leave later than this (95 % of the seconds are better), what callers hear is late by their own fault."""

FULL = 0.9
"""Of a machine's cores."""


async def run(args: argparse.Namespace) -> bool:
    """Run it and print what came of it; whether any turn was answered."""
    scenario = scenario_of(args, Scenario())
    progress = Progress()
    async with opened(args, scenario) as target:
        progress.say(f"{args.sessions} sessions, seed {target.seed}; {machine_load()}")
        length_s = scenario.ramp_s + args.seconds
        crowd = Crowd(target.setting, target.seed, server=target.server, pid=target.pid)
        crowd.on_moment = lambda moment: progress.show(moment.at_s, line(moment, args.sessions, length_s))
        async with crowd:
            try:
                await crowd.resize(args.sessions, scenario.ramp_s)
                await asyncio.sleep(args.seconds)
            finally:  # when it is stopped, what was heard so far is told, too
                result = result_of(target, crowd, args.sessions, scenario.ramp_s)
                progress.end()
                print(json.dumps(result, indent=1) if args.json else "\n".join(lines_of(result)), flush=True)
    if args.html is not None:
        from loadtest import report

        args.html.write_text(report.run_page(result), encoding="utf-8")
        progress.say(f"report: {args.html}")
    return bool(result["heard"]["turns"])


def scenario_of(args: argparse.Namespace, default: Scenario) -> Scenario:
    """What is asked for."""
    scenario = default if args.scenario is None else scenarios.load(args.scenario)
    return scenario if args.ramp is None else replace(scenario, ramp_s=args.ramp)


def result_of(target: Target, crowd: Crowd, sessions: int, from_s: float) -> dict[str, Any]:
    """All that is known of a run, for JSON and reports.

    Args:
        target: The server.
        crowd: Its callers, still there.
        sessions: How many were wanted.
        from_s: Figures are those from here on; counts are of the whole run.
    """
    moments = [moment for moment in crowd.moments if moment.at_s >= from_s]
    tally = crowd.tally.since(from_s)
    return {
        "kind": "run",
        "settings": {
            "server": "our own with stub engines" if target.server is not None else target.setting.url,
            "sessions": sessions,
            "seed": target.seed,
            "figures_from_s": from_s,
            "scenario": target.setting.scenario.as_dict(),
        },
        "machine": machine_load(),
        "heard": tally.summary(target.ideal_s),
        "used": used(moments),
        "moments": [asdict(moment) for moment in crowd.moments],
        "turns": [
            [round(turn.at_s, 2), round(turn.received_s, 4), round(turn.played_s, 4)]
            for turn in crowd.tally.turns
        ],
    }


def used(moments: Sequence[Moment]) -> dict[str, Any]:
    """What server and callers used."""
    caller = [moment.caller_cpu for moment in moments]
    late = [moment.caller_lag_ms for moment in moments]
    late_p95 = percentile(late, 0.95)
    server = [(m.server_cpu, m.sessions) for m in moments if m.server_cpu is not None and m.sessions]
    rss = [moment.server.rss_mb for moment in moments if moment.server is not None]
    lags = [
        m.server.loop_lag_ms for m in moments if m.server is not None and m.server.loop_lag_ms is not None
    ]
    machine = [moment.machine_cpu for moment in moments if moment.machine_cpu is not None]
    caller_cpu, machine_cpu = _mean(caller), _mean(machine)
    return {
        "server_cores": _rounded(_mean([cores for cores, _ in server]), 3),
        "cpu_s_per_session_minute": _rounded(60 * sum(c for c, _ in server) / sum(n for _, n in server), 3)
        if server
        else None,
        "server_rss_mb": _rounded(max(rss, default=None), 1),
        "server_loop_lag_worst_ms": max(lags, default=None),
        "server_threads_cores": thread_cores(moments),
        "caller_cores": _rounded(caller_cpu, 3),
        "caller_late_p95_ms": late_p95,
        "caller_late_worst_ms": max(late, default=None),
        "machine_cores": _rounded(machine_cpu, 2),
        "callers_fault": callers_fault(caller_cpu or 0.0, late_p95 or 0.0, machine_cpu or 0.0),
    }


def callers_fault(caller_cores: float, late_p95_ms: float, machine_cores: float) -> str | None:
    """Why what callers heard says little of the server; ``None``: it does not."""
    if caller_cores > CALLER_CORE:
        return f"the callers' own process was the limit: it used {caller_cores:.2f} of one core"
    if late_p95_ms <= CALLER_LATE_MS:
        return None
    cores = os.cpu_count() or 1
    why = f"the callers' frames left late (p95 {late_p95_ms:.0f} ms)"
    if machine_cores > FULL * cores:
        return f"{why}: the machine they run on was full, {machine_cores:.2f} of {cores} cores in use"
    return f"{why}: their own process was the limit"


def thread_cores(moments: Sequence[Moment]) -> dict[str, float]:
    """Cores by kind of thread of our own server."""
    seen = [moment for moment in moments if moment.server is not None and moment.server.thread_cpu_s]
    if len(seen) < 2:
        return {}
    first, last = seen[0].server, seen[-1].server
    assert first is not None and last is not None
    lasted_s = seen[-1].at_s - seen[0].at_s
    return {
        name: round((cpu_s - first.thread_cpu_s.get(name, 0.0)) / lasted_s, 3)
        for name, cpu_s in last.thread_cpu_s.items()
    }


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """A run's result for people."""
    heard, used = result["heard"], result["used"]
    found = [
        f"{heard['turns']} turns answered, {heard['counts'].get('unanswered', 0)} not; {result['machine']}"
    ]
    for name, label in (
        ("voice_to_voice_ms", "voice to voice"),
        ("voice_to_voice_played_ms", "  as played"),
        ("overhead_ms", "  over the ideal"),
        ("barge_in_silence_ms", "silent after a barge-in"),
        ("gap_ms", "gaps inside answers"),
        ("connect_ms", "connecting"),
        ("refusal_ms", "refusals"),
    ):
        if (spread := heard.get(name)) is not None:
            figures = "  ".join(f"{key} {value:.0f}" for key, value in spread.items())
            found.append(f"{label:<26}{figures} ms")
    found.append(
        f"gaps {heard['gaps']} ({heard['gaps_inside_sentences']} inside a sentence)  refusals {heard['refusals']}  "
        f"stale audio {heard['stale_audio_s']:.2f} s  "
        + "  ".join(f"{name} {number}" for name, number in heard["counts"].items())
    )
    found += [f"{number} x {message}" for message, number in heard["errors"].items()]
    if used["server_cores"] is not None:
        threads = ", ".join(f"{name} {cores:.2f}" for name, cores in used["server_threads_cores"].items())
        lag = used["server_loop_lag_worst_ms"]
        found.append(
            f"server  {used['server_cores']:.2f} cores ({threads or 'threads not known'})  "
            f"{used['cpu_s_per_session_minute']:.2f} CPU s a session-minute  {used['server_rss_mb']:.0f} MB"
            + ("" if lag is None else f"  worst loop lag {lag:.0f} ms")
        )
    found.append(
        f"callers {used['caller_cores'] or 0:.2f} cores, frames late p95 {used['caller_late_p95_ms'] or 0:.0f} ms, "
        f"worst {used['caller_late_worst_ms'] or 0:.0f} ms; the machine {used['machine_cores'] or 0:.2f} cores"
    )
    if used["callers_fault"]:
        found.append(f"what they heard says little of the server: {used['callers_fault']}")
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)

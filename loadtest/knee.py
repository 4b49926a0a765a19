"""How many conversations does a server hold? Load is doubled until the service level breaks; then it is bisected."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadtest.calls import machine_load
from loadtest.crowd import Crowd, Moment
from loadtest.load_options import Target, opened
from loadtest.progress import Progress, line
from loadtest.run import FULL, scenario_of, used
from loadtest.scenario import Interject, Scenario, Spread
from loadtest.server_metrics import stage_loads
from loadtest.stub_server import EVENT_LOOP
from voice.errors import BadRequest

INTERRUPTING = Scenario(name="interrupting", think=Spread(0.2, 0.5), barge_in=Interject(1.0, 2.0, 4.0))
"""Many turns in little time: the latency of a load is known sooner."""
OVERHEAD_MS, VOICE_TO_VOICE_MS = 500.0, 1500.0
SETTLE_S = 5.0
"""After callers have come, before what they hear counts: the first turns come together."""
COME_PER_S = 10.0
PRECISION = 0.1
"""The place is known when the two loads around it differ by less than a tenth."""
_FULL_CORE = 0.85
_DETECTOR_LATE_MS = 32.0
"""A window of the detector: it has fallen behind when one waits longer."""


@dataclass(frozen=True, slots=True)
class Level:
    """The service level.

    Attributes:
        p95_ms: Longest p95 of the overhead, or of voice-to-voice where no ideal is known.
        gaps, errors: Shares: answers with a gap inside; turns that failed, calls that were lost or refused.
    """

    p95_ms: float
    gaps: float
    errors: float

    def broken(self, heard: Mapping[str, Any]) -> list[str]:
        """What did not hold; empty: all did."""
        found: list[str] = []
        latency = heard.get("overhead_ms") or heard["voice_to_voice_ms"]
        name = "overhead" if heard.get("overhead_ms") else "voice to voice"
        counts = heard["counts"]
        failed = sum(
            counts.get(what, 0)
            for what in ("unanswered", "failed_answers", "lost", "failed_calls", "server_errors")
        )
        failed += heard["refusals"]
        tries = heard["turns"] + failed
        if latency is not None and latency["p95"] > self.p95_ms:
            found.append(f"p95 {name} {latency['p95']:.0f} ms is over {self.p95_ms:.0f}")
        if heard["turns"] and heard["gaps"] > self.gaps * heard["turns"]:
            found.append(f"{heard['gaps']} gaps in {heard['turns']} answers")
        if tries and failed > self.errors * tries:
            found.append(f"{failed} of {tries} turns or calls failed")
        if not heard["turns"]:
            found.append("no turn was answered in time; hold each load longer (--seconds)")
        return found


async def run(args: argparse.Namespace) -> bool:
    """Find it and print it; whether the first load was held.

    Raises:
        BadRequest: The first load is above the last.
    """
    if args.least > args.most:
        raise BadRequest(f"--from {args.least} is more than --to {args.most}")
    scenario = scenario_of(args, INTERRUPTING)
    progress = Progress()
    async with opened(args, scenario) as target:
        default_ms = VOICE_TO_VOICE_MS if target.ideal_s is None else OVERHEAD_MS
        level = Level(args.p95_ms or default_ms, args.gaps / 100, args.errors / 100)
        progress.say(f"service level: {_words(level)}; seed {target.seed}; {machine_load()}")
        search = Search(target, level, args.seconds, progress)
        result = await search.run(args.least, args.most)
    progress.end()
    print(json.dumps(result, indent=1) if args.json else "\n".join(result["lines"]))
    if args.html is not None:
        from loadtest import report

        args.html.write_text(report.knee_page(result), encoding="utf-8")
        progress.say(f"report: {args.html}")
    return result["knee"] is not None


class Search:
    """One search.

    Args:
        target: The server.
        level: What must hold.
        seconds: How long each load is held.
        progress: Where it is shown.
    """

    def __init__(self, target: Target, level: Level, seconds: float, progress: Progress) -> None:
        self._target, self._level, self._seconds, self._progress = target, level, seconds, progress
        self._steps: list[dict[str, Any]] = []
        self._moments: list[Moment] = []
        self._base_mb: float | None = None

    async def run(self, least: int, most: int) -> dict[str, Any]:
        """Double from ``least`` to ``most``, then bisect."""
        target = self._target
        crowd = Crowd(target.setting, target.seed, server=target.server, pid=target.pid)
        async with crowd:
            await asyncio.sleep(1.5)  # for a first look at the empty server
            self._base_mb = next((m.server.rss_mb for m in crowd.moments if m.server is not None), None)
            good, bad, sessions = 0, most + 1, least
            while sessions < bad and sessions > good:
                if await self._holds(crowd, sessions):
                    good = sessions
                    sessions = min(2 * sessions, most) if bad > most else (good + bad) // 2
                else:
                    bad = sessions
                    sessions = (good + bad) // 2
                if bad <= most and bad - good <= max(1, PRECISION * bad):
                    break
        return self._result(good, bad if bad <= most else None)

    async def _holds(self, crowd: Crowd, sessions: int) -> bool:
        fewer = crowd.size > sessions
        await crowd.resize(sessions, 0.0 if fewer else max(1.0, (sessions - crowd.size) / COME_PER_S))
        await asyncio.sleep(SETTLE_S)
        began_s = self._moments[-1].at_s if self._moments else 0.0
        tally = crowd.begin()
        crowd.on_moment = lambda moment: self._progress.show(
            moment.at_s, line(moment, sessions, self._seconds)
        )
        await asyncio.sleep(self._seconds)
        loads = await stage_loads(self._target.setting.url, self._target.setting.token)
        crowd.on_moment = None
        moments = list(crowd.moments)
        heard = tally.summary(self._target.ideal_s)
        broken = self._level.broken(heard)
        self._moments += [_later(moment, began_s) for moment in moments]
        step = {
            "sessions": sessions,
            "broken": broken,
            "heard": heard,
            "used": used(moments),
            "stage_loads": loads,
            "limit": limit_of(moments, used(moments), loads),
        }
        self._steps.append(step)
        self._progress.say(f"{sessions:>5} sessions: {'; '.join(broken) or 'held'}  {_figures(step)}")
        return not broken

    def _result(self, knee: int, broke_at: int | None) -> dict[str, Any]:
        target = self._target
        held = next((step for step in self._steps if step["sessions"] == knee), None)
        broke = next((step for step in self._steps if step["sessions"] == broke_at), None)
        return {
            "kind": "knee",
            "settings": {
                "server": "our own with stub engines" if target.server is not None else target.setting.url,
                "level": asdict(self._level),
                "seconds": self._seconds,
                "seed": target.seed,
                "scenario": target.setting.scenario.as_dict(),
            },
            "machine": machine_load(),
            "knee": knee or None,
            "broke_at": broke_at,
            "lines": self._lines(held, broke),
            "steps": self._steps,
            "moments": [asdict(moment) for moment in self._moments],
        }

    def _lines(self, held: Mapping[str, Any] | None, broke: Mapping[str, Any] | None) -> list[str]:
        if held is None:
            why = "; ".join(broke["broken"]) if broke else "nothing was measured"
            return [f"the service level does not hold at the first load: {why}"]
        knee, cost = held["sessions"], held["used"]
        found = [f"knee: {knee} sessions" + ("" if broke else " and more: nothing broke")]
        if broke is not None:
            found.append(f"at {broke['sessions']}: {'; '.join(broke['broken'])}; the limit: {broke['limit']}")
        if cost["server_cores"]:
            found.append(
                f"{knee / cost['server_cores']:.0f} sessions a core, {cost['cpu_s_per_session_minute']:.2f} CPU s a "
                f"session-minute, {cost['server_cores']:.2f} cores in use at the knee"
            )
        if cost["server_rss_mb"] is not None and self._base_mb is not None:
            least = min(self._steps, key=lambda step: step["sessions"])
            from_mb, others = self._base_mb, knee
            if least["sessions"] < knee:  # what the first sessions need is needed once
                from_mb, others = least["used"]["server_rss_mb"], knee - least["sessions"]
            grown_mb = (cost["server_rss_mb"] - from_mb) / others
            found.append(f"{grown_mb:.2f} MB an added session; {self._base_mb:.0f} MB empty")
        found.append(f"the callers used {cost['caller_cores'] or 0:.2f} cores at the knee")
        return found


def limit_of(moments: Sequence[Moment], cost: Mapping[str, Any], loads: Mapping[str, float]) -> str:
    """What could not take more, as far as it can be seen.

    Args:
        moments: The seconds at that load.
        cost: What both sides used, see :func:`loadtest.run.used`.
        loads: See :func:`loadtest.server_metrics.stage_loads`.
    """
    if cost["callers_fault"]:
        return f"not the server: {cost['callers_fault']}; run the load tester on another machine"
    heaviest = max(loads, key=lambda name: loads[name], default=None)
    if heaviest is not None and loads[heaviest] > 1.0:
        return f"{heaviest}, at {loads[heaviest]:.0%} of its target"
    threads = cost["server_threads_cores"]
    busiest = max(threads, key=lambda name: threads[name], default=None)
    if busiest is not None and threads[busiest] > _FULL_CORE:
        return busiest if busiest == EVENT_LOOP else f"the thread of {busiest}"
    ages = [m.server.detector_age_ms for m in moments if m.server is not None and m.server.detector_age_ms]
    if ages and sorted(ages)[len(ages) // 2] > _DETECTOR_LATE_MS:
        return "the queue of the voice detector"
    cores = os.cpu_count()
    if cost["machine_cores"] is not None and cores and cost["machine_cores"] > FULL * cores:
        return f"the machine: {cost['machine_cores']:.2f} of {cores} cores in use"
    if busiest is not None:
        return f"unknown; the busiest thread is that of the {busiest} at {threads[busiest]:.2f} cores"
    return "unknown"


def _later(moment: Moment, by_s: float) -> Moment:
    return replace(moment, at_s=round(moment.at_s + by_s, 2))


def _figures(step: Mapping[str, Any]) -> str:
    heard, cost = step["heard"], step["used"]
    latency = heard.get("overhead_ms") or heard["voice_to_voice_ms"]
    said = "" if latency is None else f"p50/p95 {latency['p50']:.0f}/{latency['p95']:.0f} ms, "
    server = "" if cost["server_cores"] is None else f"server {cost['server_cores']:.2f} cores, "
    return f"({said}{heard['turns']} turns, {server}callers {cost['caller_cores'] or 0:.2f} cores)"


def _words(level: Level) -> str:
    return f"p95 at most {level.p95_ms:.0f} ms, gaps {level.gaps:.1%}, failures {level.errors:.1%}"

"""How many conversations would an installation carry? The real session code in virtual time, on engines and workers
that only take the time which a profile says.

Sessions are divided over workers. A worker's frame path is a share of its processor that is gone; what is left serves
its turns one callback after another, so edges and results come late when it is busy. Engines are shared by all workers
of a process of the simulation; with several processes each has its part of the workers, sessions and replicas.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from loadtest.drawn_stages import Pool, drawn_stages, pools_of
from loadtest.profile import Profile
from loadtest.simulated_callers import Habits, Heard, SimulatedCaller
from voice.agent import Agent
from voice.errors import BadRequest
from voice.options import Limits, TurnOptions
from voice.scope import Scope
from voice.testing import ScriptedDetector, run_virtual

FULL_LOAD = 0.7
"""Utilisation that capacity is planned for: queues grow without bound towards 1."""
_PASSES_OF_A_TURN = 12
"""Callbacks that a turn's processor time is divided over: its edges, words, pieces of text and of audio."""
_LEAST_LEFT = 0.02
_LIMITS = Limits(playout_s=3600.0)


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated.

    Attributes:
        sessions: Callers at once, from the start to the end.
        workers: Event loops they are divided over.
        replicas: Of the profile's engines, by name; 1 when not named.
        seconds: Measured, of virtual time, after ``warm_up_s``.
        seed: Of all that is drawn.
        answer_words: Fewest and most words of an answer.
        speculate: Guess at the pause.
    """

    sessions: int
    workers: int = 1
    replicas: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 60.0
    warm_up_s: float = 20.0
    seed: int = 0
    habits: Habits = field(default_factory=Habits)
    answer_words: tuple[int, int] = (20, 40)
    speculate: bool = True

    def __post_init__(self) -> None:
        if min(self.sessions, self.workers, *self.replicas.values()) < 1 or self.seconds <= 0:
            raise BadRequest("sessions, workers and replicas are at least 1, and seconds positive")

    def part(self, number: int, parts: int) -> Load:
        """What one of several processes simulates.

        Raises:
            BadRequest: There are fewer workers or sessions than processes, or replicas that can't be divided.
        """
        if min(self.workers, self.sessions) < parts or any(k < parts for k in self.replicas.values()):
            raise BadRequest(f"{parts} processes need as many sessions, workers and replicas of each engine")
        share = {name: _share(k, number, parts) for name, k in self.replicas.items()}
        return replace(
            self,
            sessions=_share(self.sessions, number, parts),
            workers=_share(self.workers, number, parts),
            replicas=share,
            seed=zlib.crc32(f"{self.seed} {number}".encode()),
        )


def _share(whole: int, number: int, parts: int) -> int:
    return whole * (number + 1) // parts - whole * number // parts


class Worker:
    """One event loop: what its frame path leaves serves the turns of its sessions, in order.

    Attributes:
        busy_s: Processor time of turns, so far.
        frame_load: Share of the processor that the frame path takes.
    """

    def __init__(self, sessions: int, profile: Profile) -> None:
        self.frame_load = sessions * profile.frame_cpu_s
        self.busy_s = 0.0
        self._cpu_s = profile.turn_cpu_s / _PASSES_OF_A_TURN
        self._free_at = 0.0

    def delay(self, now: float) -> float:
        """Seconds until a callback that is due now has been served."""
        self.busy_s += self._cpu_s
        self._free_at = max(now, self._free_at) + self._cpu_s / max(_LEAST_LEFT, 1.0 - self.frame_load)
        return self._free_at - now


@dataclass(slots=True)
class Outcome:
    """What came of a simulation.

    Attributes:
        turns: Answered in the measured time.
        latencies_s: Voice to voice of each turn answered in the measured time.
        demand: Engine → seconds of places that a turn takes.
        waited_s: Engine → mean wait for a place.
        used: Engine → share of its places in use.
        worker_load: Share of its processor that the busiest worker uses.
        cycle_s: Seconds of a session for each of its turns.
        virtual_s, cpu_s, wall_s: Of the simulation; processor seconds are of all its processes.
        problems: Turns unanswered, and answers with an error.
    """

    sessions: int = 0
    turns: int = 0
    latencies_s: list[float] = field(default_factory=list)
    demand: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    worker_load: float = 0.0
    cycle_s: float = 0.0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    unanswered: int = 0
    problems: int = 0

    def percentile_s(self, percent: float) -> float:
        """Of voice to voice; not a number without turns."""
        return float(np.percentile(self.latencies_s, percent)) if self.latencies_s else math.nan

    @property
    def turns_per_cpu_s(self) -> float:
        """Turns simulated in a second of a processor; those of the warm-up count too, as they cost the same."""
        return self.virtual_s / max(1e-9, self.cycle_s) * self.sessions / max(1e-9, self.cpu_s)

    def knee(self, places: Mapping[str, int], worker_sessions: float) -> dict[str, float]:
        """Sessions at which each engine, and the workers, have nothing left, at the rate of turns without queues."""
        waited_s = sum(self.waited_s.values())
        cycle_s = max(1e-9, self.cycle_s - waited_s)
        knees = {name: k * cycle_s / max(1e-9, self.demand[name]) for name, k in places.items()}
        knees["workers"] = worker_sessions / max(1e-9, self.worker_load)
        return knees


def simulate(profile: Profile, load: Load) -> Outcome:
    """Simulate in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    with _few_collections():
        outcome = run_virtual(_run(profile, load), seed=load.seed, limit_s=1e9)
    outcome.cpu_s, outcome.wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return outcome


@contextmanager
def _few_collections() -> Iterator[None]:
    """Thousands of sessions live throughout: looking at them again and again for garbage is a sixth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _run(profile: Profile, load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    chance = random.Random(f"{load.seed} callers")
    workers = [Worker(_share(load.sessions, n, load.workers), profile) for n in range(load.workers)]
    pools = pools_of(profile, load.replicas)
    of_session = {f"caller-{n}": workers[n % load.workers] for n in range(load.sessions)}

    def delay(session: str) -> float:
        return of_session[session].delay(loop.time())

    stages = drawn_stages(
        profile,
        pools,
        random.Random(f"{load.seed} stages"),
        ScriptedDetector(),
        delay=delay,
        answer_words=load.answer_words,
    )
    turns = TurnOptions(idle_s=None, echo_guard=False, speculate=load.speculate)
    agent = Agent("Answer briefly.", stages, turns=turns, limits=_LIMITS)
    heard = Heard()
    callers = [
        SimulatedCaller(agent, name, profile, load.habits, heard, random.Random(f"{load.seed} {name}"), delay)
        for name in of_session
    ]
    with Scope("process") as scope:
        for caller in callers:  # spread over the warm-up's first half, so that they don't speak in step
            loop.call_later(chance.uniform(0.0, load.warm_up_s / 2), begin, scope, caller)
        await asyncio.sleep(load.warm_up_s)
        before = _Counts(pools, workers, loop.time())
        await asyncio.sleep(load.seconds)
        outcome = before.outcome(heard, load.sessions, loop.time())
        await asyncio.gather(*(caller.hang_up() for caller in callers))
    return outcome


def begin(scope: Scope, caller: SimulatedCaller) -> None:
    """Have a caller call, now."""
    scope.run(caller.call(scope), "a caller calls")


class _Counts:
    """What had been counted when the measured time began."""

    def __init__(self, pools: Mapping[str, Pool], workers: list[Worker], now: float) -> None:
        self._pools, self._workers, self._now = pools, workers, now
        self._before = {name: (p.busy_s, p.waited_s, p.calls) for name, p in pools.items()}
        self._busy = [worker.busy_s for worker in workers]

    def outcome(self, heard: Heard, sessions: int, now: float) -> Outcome:
        """What was counted since then."""
        span_s = now - self._now
        latencies = [s for at, s in heard.turns if at >= self._now]
        turns = max(1, len(latencies))
        outcome = Outcome(
            sessions, len(latencies), latencies, cycle_s=span_s * sessions / turns, virtual_s=now
        )
        for name, pool in self._pools.items():
            busy_s, waited_s, calls = (
                new - old
                for new, old in zip((pool.busy_s, pool.waited_s, pool.calls), self._before[name], strict=True)
            )
            outcome.demand[name] = busy_s / turns
            outcome.used[name] = min(1.0, busy_s / span_s / pool.places)
            outcome.waited_s[name] = waited_s / max(1, calls)
        loads = [
            w.frame_load + (w.busy_s - b) / span_s for w, b in zip(self._workers, self._busy, strict=True)
        ]
        outcome.worker_load = max(loads)
        outcome.unanswered, outcome.problems = heard.unanswered, heard.apologies
        return outcome


# ---------------------------------------------------------------- several processes, and what is printed


def simulate_in(processes: int, profile: Profile, load: Load) -> Outcome:
    """Simulate, with the load's workers, sessions and replicas divided over processes.

    Raises:
        BadRequest: See :meth:`Load.part`.
    """
    if processes == 1:
        return simulate(profile, load)
    given = {name: load.replicas.get(name, 1) for name in profile.engines}
    whole = replace(load, replicas=given)
    parts = [whole.part(number, processes) for number in range(processes)]
    wall = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(simulate, [profile] * processes, parts))
    return _joined(done, load.sessions, time.perf_counter() - wall)


def _joined(parts: list[Outcome], sessions: int, wall_s: float) -> Outcome:
    """One outcome of all parts; means by their turns."""
    turns = max(1, sum(part.turns for part in parts))

    def mean(value: Callable[[Outcome], float]) -> float:
        return sum(value(part) * part.turns for part in parts) / turns

    names = parts[0].demand
    return Outcome(
        sessions=sessions,
        turns=sum(part.turns for part in parts),
        latencies_s=[one for part in parts for one in part.latencies_s],
        demand={name: mean(lambda part: part.demand[name]) for name in names},  # noqa: B023
        waited_s={name: mean(lambda part: part.waited_s[name]) for name in names},  # noqa: B023
        used={name: mean(lambda part: part.used[name]) for name in names},  # noqa: B023
        worker_load=max(part.worker_load for part in parts),
        cycle_s=mean(lambda part: part.cycle_s),
        virtual_s=parts[0].virtual_s,
        cpu_s=sum(part.cpu_s for part in parts),
        wall_s=wall_s,
        unanswered=sum(part.unanswered for part in parts),
        problems=sum(part.problems for part in parts),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows for a target load: session counts, and replicas for it at :data:`FULL_LOAD`."""

    knees: Mapping[str, float]
    target: int
    replicas: Mapping[str, int]
    workers: int


def plan_for(profile: Profile, load: Load, outcome: Outcome, target: int) -> Plan:
    """Which stage is full at how many sessions, and what ``target`` sessions need."""
    places = {name: engine.places * load.replicas.get(name, 1) for name, engine in profile.engines.items()}
    knees = outcome.knee(places, load.sessions)
    replicas = {
        name: max(1, math.ceil(target / (FULL_LOAD * knees[name] / load.replicas.get(name, 1))))
        for name in profile.engines
    }
    workers = max(1, math.ceil(target / (FULL_LOAD * knees["workers"] / load.workers)))
    return Plan(knees, target, replicas, workers)


def run(path: Path, load: Load, processes: int, target: int | None, as_json: bool) -> bool:
    """Simulate by a profile file; prints, returns whether every turn got an answer.

    Args:
        path: Of the profile.
        load: What is simulated.
        processes: Of this machine.
        target: Sessions that replicas are counted for; ``None``: those simulated.
        as_json: Print one JSON object.
    """
    profile = Profile.read(path)
    unknown = set(load.replicas) - set(profile.engines)
    if unknown:
        raise BadRequest(f"{path} has no engine {', '.join(unknown)}; it has {', '.join(profile.engines)}")
    outcome = simulate_in(processes, profile, load)
    plan = plan_for(profile, load, outcome, target or load.sessions)
    if as_json:
        print(json.dumps(_as_json(outcome, plan), indent=1))
    else:
        _tell(profile, load, outcome, plan)
    return outcome.turns > 0 and not outcome.unanswered


def _as_json(outcome: Outcome, plan: Plan) -> dict[str, object]:
    values = asdict(outcome)
    del values["latencies_s"]
    values["p50_ms"], values["p95_ms"] = (outcome.percentile_s(p) * 1000 for p in (50, 95))
    values["speed"] = outcome.virtual_s / outcome.wall_s
    values["turns_per_cpu_s"] = outcome.turns_per_cpu_s
    return {**values, "plan": asdict(plan)}


def _tell(profile: Profile, load: Load, outcome: Outcome, plan: Plan) -> None:
    print(
        f"{profile.name}: {load.sessions} sessions on {load.workers} workers, {outcome.turns} turns in "
        f"{load.seconds:.0f} s, a turn every {outcome.cycle_s:.1f} s"
    )
    print(
        f"  voice to voice p50 {outcome.percentile_s(50) * 1000:.0f} ms, p95 {outcome.percentile_s(95) * 1000:.0f} ms; "
        f"{outcome.unanswered} turns unanswered, {outcome.problems} answers with an error"
    )
    first = min(plan.knees, key=lambda name: plan.knees[name])
    print(
        f"  full at (sessions){'':17} in use   mean wait   needed for {plan.target} sessions at {FULL_LOAD:.0%}"
    )
    for name, knee in plan.knees.items():
        limit = "  the limit" if name == first else ""
        if name == "workers":
            used, wait, needed = outcome.worker_load, "", f"{plan.workers} workers"
        else:
            used, wait = outcome.used[name], f"{outcome.waited_s[name] * 1000:8.0f} ms"
            needed = f"{plan.replicas[name]} replicas"
        print(f"    {name:14} {knee:14.0f}   {used:9.0%}   {wait:>11}   {needed}{limit}")
    print(
        f"  {outcome.virtual_s / outcome.wall_s:.1f} times real time, "
        f"{outcome.turns_per_cpu_s:.0f} turns simulated per CPU second"
    )

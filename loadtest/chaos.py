"""Does every turn end well when anything may fail at any await? Thousands of random turns in virtual time, in rounds
that replay from their seed.

A round is some callers at once on shared engines. All of them, engines, tools, lines and owners, fail at random; then
nothing fails any more, everything must come to rest, and a question must get its answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from loadtest.chaos_callers import LIMITS, SPEECH, ChaosCaller, Violation
from loadtest.chaos_stages import ChaosModel, ChaosRecogniser, chaos_stages, chaos_tools
from loadtest.chaos_trouble import Trouble
from voice.agent import Agent
from voice.errors import BadRequest
from voice.scope import Scope
from voice.testing import ScriptedDetector, VirtualExecutor, VirtualTimeError, run_virtual

CALLERS = 6
ACT_S = 90.0
_IDLE_ROUNDS = 100
"""So many without a turn, one after another: there will be none."""
_CLOSE_S = 25.0
"""The longest call that a hung engine makes ends within this."""


@dataclass(slots=True)
class Round:
    """What happened in a round.

    Attributes:
        seed: Replays it.
        failed: What must not happen and did, with what came before it.
        happened: Faults by place and kind.
    """

    seed: str
    turns: int = 0
    events: int = 0
    failed: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Options:
    """Of all rounds.

    Attributes:
        rate: Share of awaits at which something goes wrong.
        leave_out: Kinds of faults that don't happen; see :data:`loadtest.chaos_trouble.FAULTS`.
    """

    rate: float = 0.02
    leave_out: tuple[str, ...] = ()
    callers: int = CALLERS
    act_s: float = ACT_S


class _Faults(logging.Handler):
    """Notes tasks that failed with something nobody caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("task "):
            self.found.append(f"{text}: {record.exc_info[1]!r}" if record.exc_info else text)


@contextmanager
def _watched() -> Iterator[_Faults]:
    """The log is silent but for what must not be in it."""
    log, handler = logging.getLogger("voice"), _Faults()
    others, propagate, level = log.handlers[:], log.propagate, log.level
    log.handlers[:], log.propagate = [handler], False
    log.setLevel(logging.ERROR)
    quiet = logging.getLogger("asyncio")
    before, quiet.disabled = quiet.disabled, True
    try:
        yield handler
    finally:
        log.handlers[:], log.propagate = others, propagate
        log.setLevel(level)
        quiet.disabled = before


def play(seed: str, options: Options | None = None) -> Round:
    """One round; never raises: what went wrong is in it."""
    options = options or Options()
    done = Round(seed)
    trouble = Trouble(random.Random(f"{seed} trouble"), options.rate, options.leave_out)
    with _watched() as log:
        try:
            run_virtual(_round(seed, options, trouble, done), seed=random.Random(seed).getrandbits(31))
        except (Violation, VirtualTimeError) as error:
            notes = "; ".join(getattr(error, "__notes__", []))
            if not isinstance(error, Violation):
                trouble.failed.append(f"{type(error).__name__}: {error} {error.__cause__ or ''} {notes}")
    done.failed = list(dict.fromkeys(trouble.failed)) + log.found
    done.happened = Counter(trouble.happened)
    return done


async def _round(seed: str, options: Options, trouble: Trouble, done: Round) -> None:
    stages, recogniser, models = chaos_stages(trouble, ScriptedDetector())
    agent = Agent("", stages, tools=list(chaos_tools(trouble)), speech=SPEECH, limits=LIMITS)
    executor = VirtualExecutor((0.0, 4.0), threads=3)
    process = Scope("process")
    callers: list[ChaosCaller] = []

    async def call(line: int) -> None:
        """One caller after another, until the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + options.act_s
        while loop.time() < end and len(callers) < 100:
            caller = ChaosCaller(len(callers) + 1, agent, trouble, models[0].asked_by, seed)
            callers.append(caller)
            await caller.start(process, executor)
            await caller.act(end - loop.time())
            if caller.session.ended is None:
                return

    try:
        await _all(call(line) for line in range(options.callers))
        trouble.calm = True
        await _all(caller.check_recovered() for caller in callers)
        for caller in callers:
            caller.check_history()
        await _close(callers)
    finally:
        trouble.calm = True
        done.turns = sum(caller.turns for caller in callers)
        done.events = sum(caller.events for caller in callers)
        for caller in callers:
            await caller.session.close()
    await asyncio.sleep(_CLOSE_S)
    trouble.failed += _left(process, recogniser, models, trouble)


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them side by side; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(callers: Sequence[ChaosCaller]) -> None:
    loop = asyncio.get_running_loop()
    for caller in callers:
        since = loop.time()
        await caller.session.close()
        if loop.time() - since > LIMITS.close_s + 0.01:
            caller._fail(f"closing took {loop.time() - since:.1f} s")


def _left(
    process: Scope, recogniser: ChaosRecogniser, models: Sequence[ChaosModel], trouble: Trouble
) -> list[str]:
    """What is left when all is closed."""
    found = [complaint for model in models for complaint in model.complaints]
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if tasks:
        found.append(f"tasks are left: {', '.join(sorted(tasks))}")
    if process._children:
        found.append(f"scopes are left: {list(process._children.values())}")
    stats = recogniser.batcher.stats
    if stats.depth:
        found.append(f"{stats.depth} requests wait in the batcher")
    if open_calls := {name: count for name, count in trouble.open.items() if count}:
        found.append(f"calls are open: {open_calls}")
    return found


# ---------------------------------------------------------------- many rounds


def run(turns: int, seed: str, processes: int = 1, options: Options | None = None) -> bool:
    """Play rounds until so many turns were had; prints, returns whether all held.

    Args:
        turns: User turns with words, at least.
        seed: A number, from which the rounds' seeds follow; or a round's own (``N:M``), which is played alone.
        processes: Side by side.
        options: Of all rounds.

    Raises:
        BadRequest: Rounds like these have no turns.
    """
    options = options or Options()
    if ":" in seed:
        only = play(seed, options)
        _show(only, 100)
        return not only.failed
    began, had, shown, failed, idle, happened = time.monotonic(), 0, 0, 0, 0, Counter[str]()
    for done in _rounds(turns, seed, processes, options):
        had += done.turns
        idle = 0 if done.turns else idle + 1
        happened += done.happened
        failed += bool(done.failed)
        if done.failed and shown < 5:
            shown += 1
            _show(done, 30)
        print(f"\r  {had} turns, {failed} rounds failed", end="", flush=True)
        if idle >= _IDLE_ROUNDS:
            raise BadRequest(f"{idle} rounds had no turn: make them longer, or the rate lower")
    seconds = time.monotonic() - began
    print(
        f"\r{had} turns in {seconds:.0f} s, {sum(happened.values())} faults at {len(happened)} places and kinds"
    )
    print(f"seed {seed}: {'everything held' if not failed else f'{failed} rounds failed'}")
    return not failed


def _rounds(turns: int, seed: str, processes: int, options: Options) -> Iterator[Round]:
    """Rounds as they end, until they have so many turns."""
    if processes == 1:
        number, had = 0, 0
        while had < turns:
            done = play(f"{seed}:{number}", options)
            number, had = number + 1, had + done.turns
            yield done
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(play, f"{seed}:{number}", options) for number in range(2 * processes)}
        number, had = 2 * processes, 0
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                done = future.result()
                had += done.turns
                yield done
                if had < turns:
                    running.add(pool.submit(play, f"{seed}:{number}", options))
                    number += 1


def _show(done: Round, lines: int) -> None:
    """What failed, with the newest of what came before it."""
    for what in done.failed[:2]:
        first, *trace = what.split("\n")
        print(f"\rround {done.seed}: {first}", *trace[-lines:], sep="\n")
    if done.failed:
        print(f"  to replay it: python -m loadtest chaos --seed {done.seed}")
    else:
        print(f"round {done.seed}: {done.turns} turns, {sum(done.happened.values())} faults, everything held")

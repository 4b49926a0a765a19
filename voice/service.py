"""How well are all sessions of a set of stages served, and what is done about it? One object for all of them.

It measures the load, gives up what can be spared when that is too high (:mod:`voice.degradation`), remembers which
engines are dead (:mod:`voice.engine_watch`) and bounds retries (:mod:`voice.retry_budget`). ``Stages`` has one; nothing
needs to be started: it looks at the load while sessions live.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from voice.batching import BatcherStats
from voice.compute import ComputeGate
from voice.degradation import Ladder, LadderOptions, Rung, Step
from voice.engine_watch import EngineWatch, Role
from voice.load import Load, LoadTargets, LoopMeter, Recent, StageLoad
from voice.retry_budget import RetryBudget
from voice.speculation import Level

log = logging.getLogger("voice")

TICK_S = 0.25
"""How often the load is looked at while sessions live."""

_FRESH_S = 0.1
"""A look at the load is good for so long."""

_PROCESSOR_S = 10.0
"""The processor's load is a mean over so many seconds more. One answer keeps the gate busy for seconds, as speech is
made ahead of the ear: nobody waits for that. Over a few turns it shows how many callers there are."""

_MOST_ENGINES = 64
"""Engines that are known; the one not used for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What is good service, and what is done when it can't be kept up.

    Attributes:
        targets: Of the load.
        ladder: When what can be spared is given up.
        short_answer_tokens: Longest answer on the rung of short answers, in tokens; three times as many where tools
            are offered, whose arguments must not be cut.
        short_answer_chars: On that rung an answer ends with the sentence that reaches so many characters.
        retry_share: Retries per call of a stage, in the long run.
        retry_reserve: Retries of a stage that are let through at once, whatever came before.
    """

    targets: LoadTargets = field(default_factory=LoadTargets)
    ladder: LadderOptions = field(default_factory=LadderOptions)
    short_answer_tokens: int = 120
    short_answer_chars: int = 200
    retry_share: float = 0.1
    retry_reserve: float = 10.0


@dataclass(slots=True, eq=False)
class _Member:
    """A session that is told of steps."""

    tell: weakref.WeakMethod[Callable[[Step], None]]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True)
class _Engine:
    engine: object = field(repr=False)  # kept, so that no other object gets its id
    watch: EngineWatch


class Service:
    """Shared by all sessions of the stages. Measures on one event loop at a time.

    Args:
        options: Targets and bounds; ``None``: the defaults.
        processor: The gate that the engines' heavy calls pass, if they share one.

    Attributes:
        ladder: What is given up now.
        retries: Budgets by kind of stage.
        small_recogniser: Some stages have a smaller recogniser to turn to.
        steps: Steps of the ladder, by the label of the rung they led to.
    """

    def __init__(
        self, options: ServiceOptions | None = None, *, processor: ComputeGate | None = None
    ) -> None:
        self.options = options or ServiceOptions()
        self.ladder = Ladder(self.options.ladder)
        roles: tuple[Role, ...] = ("recogniser", "model", "synthesiser")
        share, reserve = self.options.retry_share, self.options.retry_reserve
        self.retries: dict[Role, RetryBudget] = {role: RetryBudget(share, reserve) for role in roles}
        self.small_recogniser = False
        self.steps: Counter[str] = Counter()
        self._processor = processor
        self._engines: dict[tuple[Role, int], _Engine] = {}
        self._sources: dict[str, Callable[[float], StageLoad]] = {}
        self._members: dict[int, _Member] = {}
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._meter = LoopMeter(self.options.targets)
        self._busy = Recent(_PROCESSOR_S)
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._load = Load((), self.options.targets)
        self._looked_at: float | None = None

    # ------------------------------------------------------------ what sessions ask

    @property
    def rung(self) -> Rung:
        """What is given up now."""
        return self.ladder.rung

    @property
    def local(self) -> bool:
        """Whether the engines work on this machine's processor."""
        return self._processor is not None

    @property
    def sessions(self) -> int:
        """Sessions that live."""
        return len(self._members)

    def engine(self, role: Role, engine: object) -> EngineWatch:
        """What is known of an engine; it begins to be known with this."""
        known = self._engines.pop((role, id(engine)), None)
        if known is None:
            name = str(getattr(engine, "name", type(engine).__name__))
            known = _Engine(engine, EngineWatch(role, name, self.retries.get(role), _stats_of(engine)))
        self._engines[role, id(engine)] = known  # last in order: most recently used
        if len(self._engines) > _MOST_ENGINES:
            del self._engines[next(iter(self._engines))]
        return known.watch

    @property
    def engines(self) -> list[EngineWatch]:
        """All engines that are known."""
        return [known.watch for known in self._engines.values()]

    def most_guessed(self) -> Level:
        """The most that may be begun before a turn is certain."""
        return Level.WORDS if self.rung >= Rung.NO_GUESSES else Level.FULL

    def join(self, on_step: Callable[[Step], None]) -> Callable[[], None]:
        """A session begins; call what is returned when it ends.

        Args:
            on_step: A method, called on the session's event loop whenever a rung is climbed or left. It is not kept
                alive: a session that is dropped without its end leaves by itself.
        """
        self._bind()
        self._numbers += 1
        number, loop = self._numbers, asyncio.get_running_loop()
        self._members[number] = _Member(weakref.WeakMethod(on_step), loop)
        if self._timer is None and loop is self._loop:
            self._arm()
        return lambda: self._leave(number)

    def _leave(self, number: int) -> None:
        self._members.pop(number, None)
        if not self._members:
            self._stop()

    # ------------------------------------------------------------ load

    def watch(self, name: str, source: Callable[[float], StageLoad]) -> None:
        """Measure something else, too: ``source`` is asked at a loop time, often, and must be quick."""
        self._sources[name] = source

    def load(self) -> Load:
        """How busy all stages are now."""
        self._bind()
        now = asyncio.get_running_loop().time()
        fresh_s = 2 * TICK_S if self._timer is not None else _FRESH_S
        if self._looked_at is None or now - self._looked_at > fresh_s:
            self._look(now, None)
        return self._load

    def _look(self, now: float, lag_s: float | None) -> None:
        # in virtual time the processor's clock means nothing
        loop = asyncio.get_running_loop()
        cpu_s: float = getattr(loop, "processor_time", time.thread_time)()
        self._meter.add(now, cpu_s, lag_s)
        stages = [self._meter.load()]
        if self._processor is not None:
            gate = self._processor.stats
            waiting = gate.running + sum(gate.waiting.values())
            if self._looked_at is not None:
                self._busy.add(self._processor.load(now), now - self._looked_at)
            busy, oldest_s = self._busy.value, gate.oldest_wait_s
            stages.append(StageLoad("processor", utilisation=busy, waiting=waiting, oldest_s=oldest_s))
        stages += [known.watch.load(now) for known in self._engines.values()]
        for name, source in self._sources.items():
            try:
                stages.append(source(now))
            except Exception:
                log.exception("the load of %s could not be measured", name)
        self._load, self._looked_at = Load(tuple(stages), self.options.targets), now

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for number, member in list(self._members.items()):
            if member.tell() is None:
                del self._members[number]
        if not self._members:
            self._stop()
            return
        self._look(now, max(0.0, now - self._due_at))
        self._arm()
        skip = () if self.small_recogniser else (Rung.SMALL_RECOGNISER,)
        step = self.ladder.look(self._load.pressure, now, self._load.why(), skip)
        if step is not None:
            self._announce(step)

    def _announce(self, step: Step) -> None:
        self.steps[step.rung.label] += 1
        level = logging.WARNING if step.rung > step.before else logging.INFO
        extra = {"rung": int(step.rung), "before": int(step.before)}
        log.log(level, "service changed to %s: %s", step.rung.label, step.why, extra=extra)
        for member in list(self._members.values()):
            if member.loop is self._loop:
                _tell(member, step)
            elif not member.loop.is_closed():
                member.loop.call_soon_threadsafe(_tell, member, step)

    # ------------------------------------------------------------ one timer, while sessions live

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + TICK_S
        self._timer = loop.call_at(self._due_at, self._tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.ladder.rung is not Rung.FULL:
            log.info("service changed to %s: nobody is served", Rung.FULL.label)
        self.ladder.reset()

    def _bind(self) -> None:
        """Measure on the running loop, unless another one is measured on and runs still."""
        loop = asyncio.get_running_loop()
        if loop is self._loop or (self._loop is not None and self._loop.is_running()):
            return
        self._loop, self._timer, self._looked_at = loop, None, None
        self._members = {n: m for n, m in self._members.items() if not m.loop.is_closed()}
        self._meter = LoopMeter(self.options.targets)
        self._busy = Recent(_PROCESSOR_S)
        self._load = Load((), self.options.targets)
        self.ladder.reset()
        for known in self._engines.values():
            known.watch.restart(loop.time())
        if self._members:
            self._arm()


def _tell(member: _Member, step: Step) -> None:
    on_step = member.tell()
    if on_step is None:
        return
    try:
        on_step(step)
    except Exception:
        log.exception("a session could not be told that service changed")


def _stats_of(engine: object) -> Callable[[], BatcherStats] | None:
    """How an engine's batcher is read, if it has one and shows it (``engine.stats``)."""
    if isinstance(getattr(engine, "stats", None), BatcherStats):
        return lambda: engine.stats  # type: ignore[attr-defined]
    return None

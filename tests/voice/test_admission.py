"""Who is let in, who waits, who is refused: decided on measured load, in tables and in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from voice.admission import LOCAL_COST, Admission, AdmissionOptions, Admit, Door, Refuse, Wait
from voice.compute import ComputeGate
from voice.degradation import Rung
from voice.errors import BadRequest, Overloaded
from voice.load import Load, LoadTargets, LoopMeter, StageLoad
from voice.service import TICK_S, Service
from voice.testing import run_virtual

TARGETS = LoadTargets()


def busy(share: float, **more: Any) -> Load:
    """A load with one stage that is at a share of its utilisation's target."""
    return Load((StageLoad("event loop", utilisation=share * TARGETS.utilisation, **more),))


# ---------------------------------------------------------------- what the load is


@pytest.mark.parametrize(
    ("stage", "pressure"),
    [
        (StageLoad("a", utilisation=0.425), 0.5),
        (StageLoad("a", utilisation=1.0), 1 / 0.85),
        (StageLoad("a", wait_s=0.5), 2.0),
        (StageLoad("a", late_s=0.5), 0.5),
        (StageLoad("a", lag_s=0.1), 2.0),
        (StageLoad("a", oldest_s=60.0, waiting=100), 0.0),  # a long call is no queue
    ],
)
def test_a_stage_is_as_loaded_as_its_worst_measure(stage: StageLoad, pressure: float) -> None:
    assert stage.pressure(TARGETS) == pytest.approx(pressure)


def test_the_slowest_stage_is_named() -> None:
    load = Load((StageLoad("model m", late_s=1.5), StageLoad("event loop", utilisation=0.5)))
    assert load.slowest is not None
    assert load.slowest.name == "model m"
    assert load.why() == "model m is at 150% of its target"
    assert load.share == pytest.approx(0.5 / 0.85)
    assert Load().why() == "nothing is measured"


def test_the_loops_processor_time_becomes_its_utilisation_within_a_few_seconds() -> None:
    meter = LoopMeter(TARGETS)
    for n in range(41):
        meter.add(n * 0.25, n * 0.25 * 0.6, 0.002)
    assert meter.load().utilisation == pytest.approx(0.6, abs=0.03)
    assert meter.load().lag_s == pytest.approx(0.002, abs=0.0002)
    for n in range(41, 82):
        meter.add(n * 0.25, 40 * 0.15, 0.0)
    assert meter.load().utilisation < 0.03


def test_one_long_stall_is_no_load_but_many_delays_are() -> None:
    one, many = LoopMeter(TARGETS), LoopMeter(TARGETS)
    for n in range(20):
        one.add(n * 0.25, 0.0, 3.0 if n == 19 else 0.0)
        many.add(n * 0.25, 0.0, 0.08)
    assert one.load().pressure(TARGETS) < 0.5
    assert many.load().pressure(TARGETS) > 1.0


@pytest.mark.parametrize(
    "wrong", [{"utilisation": 0.0}, {"utilisation": 1.5}, {"wait_s": 0.0}, {"lag_s": -1.0}]
)
def test_targets_that_can_not_be_met_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        LoadTargets(**wrong)


# ---------------------------------------------------------------- the decision


@pytest.mark.parametrize(
    ("load", "rung", "decision"),
    [
        (busy(0.0), Rung.FULL, Admit),
        (busy(0.8), Rung.FULL, Admit),
        (busy(0.95), Rung.FULL, Refuse),
        (busy(0.2, wait_s=0.3), Rung.FULL, Refuse),
        (busy(0.2, late_s=1.2), Rung.FULL, Refuse),
        (busy(0.2, lag_s=0.06), Rung.FULL, Refuse),
        (busy(0.2), Rung.NO_GUESSES, Admit),
        (busy(0.2), Rung.SMALL_RECOGNISER, Refuse),
    ],
)
def test_a_caller_is_let_in_while_the_load_leaves_room(load: Load, rung: Rung, decision: type) -> None:
    assert isinstance(Admission().decide(load, rung, 10, 0, 100.0), decision)


def test_a_refusal_names_the_stage_that_is_the_limit() -> None:
    refused = Admission().decide(Load((StageLoad("recogniser w", wait_s=1.0),)), Rung.FULL, 3, 0, 0.0)
    assert isinstance(refused, Refuse)
    assert "recogniser w is at 400%" in refused.why


def test_what_a_conversation_costs_is_assumed_first_and_measured_later() -> None:
    it, local = Admission(), Admission(local=True)
    assert local.cost(busy(0.0), 0, 0.0) == pytest.approx(LOCAL_COST)
    assert it.cost(busy(0.0), 0, 0.0) == pytest.approx(0.01)
    assert it.cost(busy(0.5), 200, 0.0) == pytest.approx(0.5 / 200, rel=0.15)
    assert it.cost(busy(0.5), 4, 0.0) > 0.04  # heavy ones are noticed at once


def test_a_burst_is_not_let_in_on_the_reading_of_an_idle_machine() -> None:
    it = Admission()
    decisions = []
    for _ in range(500):
        ahead = sum(isinstance(d, Wait) for d in decisions)
        inside = sum(isinstance(d, Admit) for d in decisions)
        decisions.append(it.decide(busy(0.0), Rung.FULL, inside, ahead, 0.0))
        if isinstance(decisions[-1], Admit):
            it.admitted(0.0)
    let_in, wait, refused = (sum(isinstance(d, kind) for d in decisions) for kind in (Admit, Wait, Refuse))
    assert let_in == 90  # 0.9 / 0.01
    assert wait == 0  # none of them is measured within 2 s
    assert let_in + wait + refused == 500


def test_who_was_let_in_counts_less_as_its_cost_is_measured() -> None:
    it = Admission(AdmissionOptions(blind_s=4.0, ramp_s=12.0))
    for _ in range(10):
        it.admitted(100.0)
    assert it.unmeasured(100.0, 10) == pytest.approx(10.0)
    assert it.unmeasured(104.0, 10) == pytest.approx(10.0)
    assert it.unmeasured(108.0, 10) == pytest.approx(5.0)
    assert it.unmeasured(104.0, 3) == pytest.approx(3.0)  # the other seven have left again
    assert it.unmeasured(112.0, 10) == 0.0
    it.admitted(3.0)  # another loop's clock
    assert it.unmeasured(3.0, 10) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"admit_below": 0.0}, {"admit_below": 1.1}, {"session_cost": 0.0}, {"ramp_s": 4.0}, {"wait_s": -1.0}],
)
def test_admission_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        AdmissionOptions(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the door


@dataclass
class House:
    """A server whose load is what its conversations cost, measured late, as on a real machine."""

    cost: float
    options: AdmissionOptions = field(default_factory=AdmissionOptions)
    speaks_after_s: float = 3.0
    inside: list[float] = field(default_factory=list)
    load: Callable[[], Load] | None = None

    def __post_init__(self) -> None:
        self.door = Door(
            self.options,
            load=self.load or self.measured,
            rung=lambda: Rung.FULL,
            sessions=lambda: len(self.inside),
        )

    @property
    def true_share(self) -> float:
        return self.cost * len(self.inside)

    def measured(self) -> Load:
        """Each costs nothing until it speaks; then the mean of the last seconds creeps up."""
        now = asyncio.get_running_loop().time()
        past = (max(0.0, now - came - self.speaks_after_s) for came in self.inside)
        return busy(self.cost * sum(1.0 - math.exp(-s / 3.0) for s in past))

    async def caller(self) -> tuple[bool, float]:
        """Whether it was let in, and how long it took to know."""
        now = asyncio.get_running_loop().time
        came = now()
        try:
            await self.door.enter()
        except Overloaded as refused:
            assert refused.retry_after_s is not None
            assert 5.0 <= refused.retry_after_s <= 10.0
            return False, now() - came
        self.inside.append(now())
        return True, now() - came


@pytest.mark.parametrize("cost", [0.002, 0.01, 0.02])
def test_callers_that_keep_coming_fill_the_house_and_never_overfill_it(cost: float) -> None:
    async def run() -> None:
        house = House(cost)
        fates: list[asyncio.Task[tuple[bool, float]]] = []
        for _ in range(1200):
            fates.append(asyncio.ensure_future(house.caller()))
            await asyncio.sleep(0.1)
        told = [await fate for fate in fates]
        assert 0.75 <= house.true_share <= 1.0
        refused = sorted(s for let_in, s in told if not let_in)
        assert refused
        at_once = sum(s <= 0.1 for s in refused)
        assert at_once >= 0.9 * len(refused)
        assert max(s for _, s in told) <= house.options.wait_s + 0.11

    run_virtual(run())


def test_five_hundred_at_once_get_in_as_far_as_what_they_cost_is_known() -> None:
    async def run() -> None:
        house = House(0.005)
        told = await asyncio.gather(*(house.caller() for _ in range(500)))
        assert sum(let_in for let_in, _ in told) == 90
        assert all(s <= 0.1 for _, s in told)
        await asyncio.sleep(15)
        again = await asyncio.gather(*(house.caller() for _ in range(500)))
        assert sum(let_in for let_in, _ in again) >= 50  # what the first cost is known now
        assert house.true_share <= 1.0

    run_virtual(run())


def test_who_waits_is_let_in_in_the_order_of_arrival_and_nobody_passes_by() -> None:
    async def run() -> None:
        options = AdmissionOptions(session_cost=0.3, blind_s=0.0, ramp_s=3.0, wait_s=2.0)
        house = House(0.001, options)
        order: list[int] = []

        async def one(number: int) -> None:
            if (await house.caller())[0]:
                order.append(number)

        callers = []
        for n in range(6):
            callers.append(asyncio.ensure_future(one(n)))
            await asyncio.sleep(0.01)
        assert order == [0, 1, 2]
        assert house.door.waiting == 2  # the last was refused: no room for it within 2 s
        await asyncio.wait(callers)
        assert order == [0, 1, 2, 3, 4]
        assert house.door.waited == 2
        assert house.door.waiting == 0

    run_virtual(run())


def test_who_waits_may_leave_and_gives_up_its_place() -> None:
    async def run() -> None:
        house = House(0.001, AdmissionOptions(session_cost=0.3, blind_s=0.0, ramp_s=3.0, wait_s=2.0))
        for _ in range(3):
            assert (await house.caller())[0]
        first, second = (asyncio.ensure_future(house.caller()) for _ in range(2))
        await asyncio.sleep(0.01)
        assert house.door.waiting == 2
        first.cancel()
        let_in, after_s = await second
        assert let_in
        assert after_s < 1.5
        assert house.door.waiting == 0

    run_virtual(run())


def test_who_is_cancelled_in_the_moment_it_is_let_in_leaves_no_trace() -> None:
    async def run(seed: int) -> None:
        chance = random.Random(seed)
        house = House(0.001, AdmissionOptions(session_cost=0.3, blind_s=0.0, ramp_s=3.0, wait_s=2.0))
        callers = [asyncio.ensure_future(house.caller()) for _ in range(5)]
        await asyncio.sleep(chance.choice([0.0, 0.1, 0.9, 1.0, 1.0, 1.1]))
        for caller in callers:
            if chance.random() < 0.5:
                caller.cancel()
        await asyncio.wait(callers)
        assert house.door._granted == 0
        assert house.door.waiting == 0

    for seed in range(50):
        run_virtual(run(seed), seed=seed)


def test_a_house_that_stays_full_turns_away_who_waited_long_enough() -> None:
    async def run() -> None:
        full = False
        options = AdmissionOptions(session_cost=0.5, blind_s=0.0, ramp_s=4.0)
        house = House(0.0, options, load=lambda: busy(0.95 if full else 0.0))
        assert (await house.caller())[0]
        waiting = asyncio.ensure_future(house.caller())
        await asyncio.sleep(0.01)
        full = True
        assert (await house.caller()) == (False, 0.0)
        let_in, after_s = await waiting
        assert not let_in
        assert after_s == pytest.approx(options.wait_s, abs=0.11)

    run_virtual(run())


def test_closing_the_door_turns_away_all_who_wait() -> None:
    async def run() -> None:
        house = House(0.001, AdmissionOptions(session_cost=0.3, blind_s=0.0, ramp_s=3.0))
        for _ in range(3):
            await house.caller()
        waiting = [asyncio.ensure_future(house.door.enter()) for _ in range(2)]
        await asyncio.sleep(0.01)
        house.door.close(lambda: Overloaded("closing"))
        for one in waiting:
            with pytest.raises(Overloaded, match="closing"):
                await one

    run_virtual(run())


# ---------------------------------------------------------------- measured


def test_the_gates_load_is_the_processors_over_a_few_turns_and_read_without_sessions_too() -> None:
    async def run() -> None:
        gate = ComputeGate()
        service = Service(processor=gate)
        assert service.load().pressure == 0.0

        async def work(seconds: float) -> None:
            async with gate.slot():
                await asyncio.sleep(seconds)

        async def look(seconds: float) -> float:
            for _ in range(int(seconds / 0.25)):
                await asyncio.sleep(0.25)
                load = service.load()
            assert load.slowest is not None
            assert load.slowest.name == "processor"
            return load.pressure

        answer = asyncio.ensure_future(work(4.0))
        assert await look(4.0) < 0.4  # one answer is no overload
        await look(12.0)
        await answer
        working = asyncio.ensure_future(work(40.0))
        assert await look(40.0) > 1.0
        await working
        assert await look(60.0) < 0.05

    run_virtual(run())


def test_another_source_that_fails_is_left_out() -> None:
    async def run() -> None:
        service = Service()
        service.watch("queue", lambda now: StageLoad("queue", wait_s=0.25 + 0 * now))
        service.watch("bad", lambda now: StageLoad("bad", wait_s=1 / (now - now)))
        load = service.load()
        assert [stage.name for stage in load.stages] == ["event loop", "queue"]
        assert load.pressure == pytest.approx(1.0)

    run_virtual(run())


def test_the_service_looks_while_sessions_live_and_stops_with_the_last() -> None:
    class Owner:
        def on_step(self, step: object) -> None: ...

    async def run() -> None:
        looks: list[float] = []

        def source(now: float) -> StageLoad:
            looks.append(now)
            return StageLoad("queue")

        service, owner = Service(), Owner()
        service.watch("queue", source)
        leave = [service.join(owner.on_step) for _ in range(3)]
        await asyncio.sleep(1.01)
        assert looks == pytest.approx([TICK_S * n for n in range(1, 5)])
        for one in leave:
            one()
        one()
        await asyncio.sleep(5)
        assert len(looks) == 4
        service.join(owner.on_step)
        del owner  # dropped without its end
        await asyncio.sleep(5)
        assert service.sessions == 0
        assert service._timer is None

    run_virtual(run())

"""What is given up under load, in which order, and how it shows in sessions. Pure, and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk

from voice.agent import Agent
from voice.degradation import Ladder, LadderOptions, Rung
from voice.errors import BadRequest
from voice.events import ServiceChanged, UserSaid
from voice.interfaces import Pcm16
from voice.load import StageLoad
from voice.scope import Scope
from voice.service import Service, ServiceOptions
from voice.testing import (
    ScriptedModel,
    ScriptedRecogniser,
    run_virtual,
    speak,
)

# ---------------------------------------------------------------- the ladder


def climb(ladder: Ladder, looks: list[tuple[float, float]], **more: Any) -> list[tuple[float, int]]:
    """When it went to which rung, over (until, load) pairs looked at four times a second."""
    steps, now = [], 0.0
    for until, load in looks:
        while now < until:
            if (step := ladder.look(load, now, **more)) is not None:
                assert step.rung is ladder.rung
                steps.append((now, int(step.rung)))
            now += 0.25
    return steps


@pytest.mark.parametrize(
    ("looks", "steps"),
    [
        ([(60.0, 0.99)], []),
        ([(1.9, 1.5), (60.0, 0.5)], []),  # not for long enough
        ([(1.5, 1.5), (1.75, 0.9), (3.5, 1.5), (4.0, 0.9)], []),  # not without a break
        ([(3.0, 1.5), (20.0, 0.9)], [(2.0, 1)]),  # between the marks nothing changes
        ([(30.0, 9.9)], [(2.0, 1), (4.25, 2), (6.5, 3), (8.75, 4)]),  # one at a time, and then no further
        ([(5.0, 1.5), (40.0, 0.5)], [(2.0, 1), (4.25, 2), (15.0, 1), (25.25, 0)]),
        ([(3.0, 1.5), (12.0, 0.5), (12.5, 0.8), (40.0, 0.5)], [(2.0, 1), (22.5, 0)]),  # the wait begins anew
    ],
)
def test_rungs_are_climbed_soon_and_left_late(
    looks: list[tuple[float, float]], steps: list[tuple[float, int]]
) -> None:
    assert climb(Ladder(), looks) == steps


def test_a_rung_that_gives_nothing_up_is_skipped_both_ways() -> None:
    ladder = Ladder()
    steps = climb(ladder, [(9.0, 2.0), (60.0, 0.1)], skip=(Rung.SMALL_RECOGNISER,))
    assert [rung for _, rung in steps] == [1, 2, 4, 2, 1, 0]
    assert (ladder.climbed, ladder.left) == (3, 3)


def test_the_ladder_ends_where_its_owner_wants() -> None:
    ladder = Ladder(LadderOptions(highest=Rung.NO_GUESSES))
    assert [rung for _, rung in climb(ladder, [(60.0, 2.0)])] == [1, 2]


def test_each_relapse_doubles_the_wait_before_the_next_step_down() -> None:
    """What is given back brings the load back: without patience the service would change every few seconds."""
    ladder, steps = Ladder(), []
    for n in range(4 * 1200):
        load = 1.2 if ladder.rung is Rung.FULL else 0.6
        if (step := ladder.look(load, n / 4)) is not None:
            steps.append((n / 4, int(step.rung)))
    waits = [down[0] - up[0] for up, down in zip(steps[::2], steps[1::2], strict=False)]
    assert waits[:5] == pytest.approx([10.25, 20.25, 40.25, 80.25, 120.25])
    assert waits[4:] == pytest.approx([120.25] * len(waits[4:]))
    assert len(steps) < 26


@pytest.mark.parametrize("seed", range(20))
def test_in_an_overload_with_noise_the_service_goes_down_and_up_without_flapping(seed: int) -> None:
    chance = random.Random(seed)
    relief = {Rung.FULL: 1.0, Rung.FEWER_PARTIALS: 0.95, Rung.NO_GUESSES: 0.75}
    ladder, rungs = Ladder(), [Rung.FULL]
    for n in range(4 * 600):
        now = n / 4
        offered = 0.6 if now < 60 or now > 360 else 1.2
        pressure = offered * relief.get(ladder.rung, 0.7) * chance.uniform(0.9, 1.1)
        if ladder.look(pressure, now) is not None:
            rungs.append(ladder.rung)
            assert abs(rungs[-1] - rungs[-2]) == 1
    assert max(rungs) is Rung.NO_GUESSES
    assert rungs[-1] is Rung.FULL
    assert len(rungs) == 5  # 0 1 2 1 0: nothing in between


@pytest.mark.parametrize(
    "wrong", [{"down_below": 1.0}, {"climb_after_s": 0.0}, {"down_most_s": 1.0}, {"down_below": 0.0}]
)
def test_ladders_that_could_flap_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        LadderOptions(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- whole sessions


class Pressure:
    """A stage whose load the test sets."""

    def __init__(self, agent: Agent, value: float = 0.0, **service: Any) -> None:
        self.value = value
        self.service = Service(ServiceOptions(**service))
        self.service.watch("queue", lambda now: StageLoad("queue", wait_s=0.25 * self.value))
        agent.stages = replace(agent.stages, service=self.service)


def at_rung(agent: Agent, rung: Rung) -> Agent:
    """The agent, whose service stands on a rung and stays there."""
    pressure = Pressure(agent, 0.9)
    pressure.service.ladder.rung = rung
    return agent


@contextlib.asynccontextmanager
async def held(agent: Agent, rung: Rung, **options: Any) -> AsyncIterator[Talk]:
    """A conversation on a rung: the ladder is put there once the session lives, as an empty service is a full one."""
    async with talk(agent, **options) as it:
        agent.stages.service.ladder.rung = rung
        yield it


def test_all_sessions_are_told_of_each_step_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        agent = make_agent()
        pressure = Pressure(agent)
        async with talk(agent, session_id="s0") as first, talk(agent, session_id="s1") as second:
            await asyncio.sleep(5)
            pressure.value = 1.5
            await asyncio.sleep(5)
            pressure.value = 0.1
            await asyncio.sleep(25)
            for it in (first, second):
                changes = it.of(ServiceChanged)
                assert [(c.level, c.label) for c in changes] == [
                    (1, "fewer partials"),
                    (2, "no guesses"),
                    (1, "fewer partials"),
                    (0, "full service"),
                ]
                assert changes[0].why == "queue is at 150% of its target"
                assert it.times_of(ServiceChanged)[0] == pytest.approx(7.25, abs=0.3)
        assert pressure.service.steps == {"fewer partials": 2, "no guesses": 1, "full service": 1}

    with caplog.at_level(logging.INFO, "voice"):
        run_virtual(run())
    said = [r for r in caplog.records if r.getMessage().startswith("service changed")]
    assert [r.levelname for r in said] == ["WARNING", "WARNING", "INFO", "INFO"]


def test_a_service_that_serves_nobody_is_a_full_one_again() -> None:
    async def run() -> None:
        agent = make_agent()
        pressure = Pressure(agent, 2.0)
        async with talk(agent):
            await asyncio.sleep(5)
            assert pressure.service.rung is Rung.NO_GUESSES
        assert pressure.service.rung is Rung.FULL

    run_virtual(run())


def test_the_same_stages_serve_one_event_loop_after_another() -> None:
    agent = make_agent()
    pressure = Pressure(agent, 2.0)

    async def run() -> None:
        async with talk(agent) as it:
            await asyncio.sleep(5)
            assert [change.level for change in it.of(ServiceChanged)] == [1, 2]

    run_virtual(run())
    run_virtual(run())
    assert pressure.service.sessions == 0


@pytest.mark.parametrize(("rung", "interim"), [(Rung.FULL, 5), (Rung.FEWER_PARTIALS, 3)])
def test_words_of_a_sound_that_goes_on_are_asked_for_less_often(rung: Rung, interim: int) -> None:
    async def run() -> None:
        recogniser = ScriptedRecogniser(["Hello there."])
        agent = at_rung(make_agent([ONE_TO_FORTY], recogniser=recogniser), rung)
        async with held(agent, rung) as it:
            it.client.say(speak(1.0), at_s=0.5)
            await it.client.run(4.0)
            before = recogniser.calls
            it.client.say(speak(2.9), at_s=4.2)  # a hum
            await it.client.run(2.9)
            assert recogniser.calls - before == interim
            await it.client.run(3.0)
            assert it.session.counters.barge_ins == 0  # the decision is as good

    run_virtual(run())


class Judge:
    """A turn model that is never sure."""

    name, window_s = "judge", 8.0

    def __init__(self) -> None:
        self.asked = 0

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        self.asked += 1
        return 0.3


@pytest.mark.parametrize(("rung", "least", "most"), [(Rung.FULL, 3, 4), (Rung.FEWER_PARTIALS, 1, 1)])
def test_the_turn_model_is_asked_once_a_pause_only(rung: Rung, least: int, most: int) -> None:
    async def run() -> None:
        judge = Judge()
        agent = at_rung(make_agent(said=["And then I", ""]), rung)
        agent.stages = replace(agent.stages, turn=judge)
        async with held(agent, rung) as it:
            it.client.say(speak(1.0), at_s=0.5)
            await it.client.run(8.0)
            assert least <= judge.asked <= most
            assert it.ended.status == "completed"

    run_virtual(run())


@pytest.mark.parametrize(("rung", "guesses"), [(Rung.FEWER_PARTIALS, 1), (Rung.NO_GUESSES, 0)])
def test_no_answer_is_begun_before_its_turn_is_certain(rung: Rung, guesses: int) -> None:
    async def run() -> None:
        agent = at_rung(make_agent(), rung)
        async with held(agent, rung) as it:
            it.client.say(speak(1.0), at_s=0.5)
            await it.client.run(5.0)
            assert it.session.counters.guesses == guesses
            assert it.ended.status == "completed"

    run_virtual(run())


@pytest.mark.parametrize(("rung", "small_hears"), [(Rung.NO_GUESSES, False), (Rung.SMALL_RECOGNISER, True)])
def test_the_small_recogniser_hears(rung: Rung, small_hears: bool) -> None:
    async def run() -> None:
        small = ScriptedRecogniser(["Small."])
        agent = at_rung(make_agent(said=["Usual."]), rung)
        agent.stages = replace(agent.stages, small_recogniser=small)
        assert agent.stages.service.small_recogniser
        async with held(agent, rung) as it:
            it.client.say(speak(1.0), at_s=0.5)
            await it.client.run(4.0)
            assert [said.text for said in it.of(UserSaid)] == ["Small." if small_hears else "Usual."]

    run_virtual(run())


LONG = " ".join(f"This is sentence number {n} of a long answer." for n in range(1, 41))


@pytest.mark.parametrize("rung", [Rung.SMALL_RECOGNISER, Rung.SHORT_ANSWERS])
def test_answers_end_sooner_and_with_a_sentence(rung: Rung) -> None:
    async def run() -> None:
        model = ScriptedModel([LONG])
        agent = at_rung(make_agent(model), rung)
        async with held(agent, rung) as it:
            it.client.say(speak(1.0), at_s=0.5)
            await it.client.run(100.0)
            written = it.ended.generated
            if rung is Rung.SHORT_ANSWERS:
                assert 200 <= len(written) < 260
                assert written.endswith("answer.")
                assert it.ended.finish == "length"
                assert model.prompts[-1].options.max_tokens == 120
            else:
                assert written == LONG
                assert model.prompts[-1].options.max_tokens is None

    run_virtual(run())

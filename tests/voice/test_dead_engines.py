"""How dead engines are remembered by all sessions, and how often is tried again. Pure, and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from talk import make_agent, talk

from voice.agent import Agent
from voice.degradation import Rung
from voice.engine_watch import COOLDOWN_S, LONGEST_COOLDOWN_S, EngineWatch
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, Overloaded, VoiceError
from voice.events import Problem, ResponseEnded
from voice.interfaces import Pcm16, RecogniserCapabilities, Transcript
from voice.load import LoadTargets
from voice.options import SpeechOptions, TurnOptions
from voice.recognition import recognise
from voice.retry_budget import RetryBudget
from voice.scope import Priority, Scope
from voice.service import Service, ServiceOptions
from voice.testing import (
    Fail,
    Hang,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    silence,
    speak,
)

ASKED = ["How are you?"] * 20
LATER = TurnOptions(min_delay_s=0.5, max_delay_s=0.5, speculate=False)


# ---------------------------------------------------------------- retry budgets


def test_retries_are_held_to_a_tenth_of_the_calls_and_a_reserve() -> None:
    budget = RetryBudget(0.1, reserve=5.0, reserve_per_s=0.0)
    let_through = 0
    for n in range(1000):
        budget.called()
        let_through += budget.spend(n * 0.01)
    assert let_through == pytest.approx(5 + 100, abs=1)
    assert (budget.spent, budget.denied) == (let_through, 1000 - let_through)


def test_a_spent_budget_fills_with_time_and_with_calls_up_to_its_reserve() -> None:
    budget = RetryBudget(0.1, reserve=3.0, reserve_per_s=0.1)
    assert [budget.spend(0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.spend(9.0)
    assert budget.spend(10.1)
    for _ in range(10):
        budget.called()
    assert budget.spend(10.1)
    for _ in range(1000):
        budget.called()
    assert [budget.spend(10.1) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"reserve": 0.5}, {"reserve_per_s": -1.0}])
def test_budgets_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        RetryBudget(**wrong)


# ---------------------------------------------------------------- what is known of an engine


@pytest.fixture
def scope() -> Iterator[Scope]:
    with Scope("process") as made:
        yield made


DEAD = EngineFailed("it is gone")


@pytest.mark.parametrize(
    ("errors", "broken"),
    [
        ([None], False),
        ([EngineFailed("gone")], True),
        ([DeadlineExceeded("hangs")], True),
        ([EngineFailed("no such voice", retryable=False)] * 2, False),
        ([EngineFailed("wrong key", retryable=False)] * 3, True),  # it blames every request
        ([EngineFailed("a", retryable=False)] * 2 + [None] + [EngineFailed("a", retryable=False)] * 2, False),
        ([Overloaded("busy")] * 10, False),
        ([BadRequest("a voice")] * 10, False),
    ],
)
def test_what_says_that_an_engine_is_dead(
    errors: list[VoiceError | None], broken: bool, scope: Scope
) -> None:
    watch = EngineWatch("model", "m")
    for n, error in enumerate(errors):
        watch.begin(scope, float(n)).ended(error, n + 0.5)
    assert watch.breaker.is_open is broken
    assert watch.usable(len(errors) - 0.5) is not broken


def test_one_call_at_a_time_probes_and_each_failed_probe_doubles_the_wait(scope: Scope) -> None:
    watch, now, waits = EngineWatch("model", "m"), 0.0, []
    watch.begin(scope, now).ended(DEAD, now)
    for _ in range(8):
        since = now
        while not watch.usable(now):
            now += 0.5
        waits.append(now - since)
        probe = watch.begin(scope, now)
        assert probe.probes
        assert not watch.usable(now)
        assert not watch.begin(scope, now).probes
        probe.ended(DEAD, now)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert (COOLDOWN_S, LONGEST_COOLDOWN_S) == (2.0, 60.0)
    assert watch.trips == 1
    now += 60.0
    watch.begin(scope, now).ended(None, now)
    assert watch.usable(now)
    watch.begin(scope, now).ended(DEAD, now)
    assert watch.usable(now + COOLDOWN_S)  # it begins anew


def test_a_probe_that_nobody_wants_any_more_makes_room_for_the_next(scope: Scope) -> None:
    watch = EngineWatch("model", "m")
    watch.begin(scope, 0.0).ended(DEAD, 0.0)
    probe = watch.begin(scope, 2.0)
    probe.given_up()
    probe.ended(None, 2.5)  # nothing
    assert watch.breaker.is_open
    assert watch.usable(2.5)


def test_calls_that_were_under_way_when_it_broke_change_nothing(scope: Scope) -> None:
    watch = EngineWatch("model", "m")
    good, bad, first = (watch.begin(scope, 0.0) for _ in range(3))
    first.ended(DEAD, 4.0)
    bad.ended(DEAD, 5.9)
    good.ended(None, 5.95)
    assert watch.breaker.is_open
    assert watch.usable(6.0)


def test_an_engine_is_late_by_what_it_takes_longer_than_usual(scope: Scope) -> None:
    watch, now = EngineWatch("model", "m"), 0.0
    for _ in range(20):
        call = watch.begin(scope, now)
        call.answered(now + 3.0)
        call.ended(None, now + 5.0)
        now += 5.0
    slow = watch.load(now)
    assert slow.late_s == 0.0  # slow, but as ever
    assert slow.service_s == pytest.approx(3.0)
    calls = [watch.begin(scope, now) for _ in range(10)]
    assert watch.load(now + 3.0).late_s == 0.0
    waiting = watch.load(now + 6.0)
    assert (waiting.waiting, waiting.oldest_s) == (10, 6.0)
    assert waiting.late_s == pytest.approx(2.0)
    for call in calls:
        call.answered(now + 7.0)
    assert watch.load(now + 7.0).late_s == pytest.approx(3.7, abs=0.3)
    assert watch.load(now + 60.0).late_s < 0.05  # nobody has asked it since


def test_one_request_that_hangs_among_many_is_no_load(scope: Scope) -> None:
    watch = EngineWatch("model", "m")
    hangs = watch.begin(scope, 0.0)
    for n in range(40):
        call = watch.begin(scope, n * 0.1)
        call.answered(n * 0.1 + 0.1)
    assert hangs is not None
    assert watch.load(4.0).pressure(LoadTargets()) < 1.0


def test_work_of_a_lower_class_may_wait(scope: Scope) -> None:
    watch, guess = EngineWatch("model", "m"), scope.child("speculation", priority=Priority.SPECULATIVE)
    watch.begin(scope, 0.0).answered(0.1)
    for n in range(10):
        watch.begin(guess, float(n)).answered(n + 5.0)
        watch.begin(guess, float(n))
    assert watch.load(20.0).late_s == 0.0


# ---------------------------------------------------------------- dead engines


async def ask(agent: Agent, session_id: str, *, at_s: float = 0.5) -> tuple[str, float]:
    """One question in a session of its own: what was answered, and how long after the question it was heard."""
    async with talk(agent, session_id=session_id) as it:
        it.client.say(speak(1.0), at_s=at_s)
        await it.client.run(at_s + 12.0)
        ms = it.ended.times.voice_to_voice_ms
        assert ms is not None
        return it.ended.heard, ms / 1000.0


class Sick(ScriptedModel):
    """A model that hangs while it is ill."""

    name = "sick"
    ill = True

    def __init__(self) -> None:
        super().__init__(lambda prompt: [Hang()] if self.ill else "I am well.")


def test_the_second_session_does_not_wait_for_a_model_that_the_first_found_dead() -> None:
    async def run() -> None:
        model, fallback = Sick(), ScriptedModel(["I am the other."])
        agent = make_agent(model, fallback=fallback, said=ASKED, turns=LATER, speech=SpeechOptions(filler=""))
        watch = agent.stages.service.engine("model", model)
        heard, first_s = await ask(agent, "s1")
        assert heard == "I am the other."
        assert first_s > 4.0  # it waited for the first token
        assert watch.breaker.is_open
        assert watch.trips == 1
        asked = model.opened
        probing, told_at_once = await asyncio.gather(ask(agent, "s2"), ask(agent, "s3", at_s=0.6))
        assert model.opened == asked + 1  # one of them found out whether it is back
        assert probing[0] == told_at_once[0] == "I am the other."
        assert 2.0 < probing[1] < 3.5  # and waited half as long
        assert told_at_once[1] < 1.5
        model.ill = False
        await asyncio.sleep(10.0)
        assert (await ask(agent, "s4"))[0] == "I am well."
        assert not watch.breaker.is_open
        heard, seconds = await ask(agent, "s5")
        assert heard == "I am well."
        assert seconds < 1.5

    run_virtual(run())


def test_a_model_without_a_fallback_is_asked_however_often_it_failed() -> None:
    async def run() -> None:
        model = ScriptedModel([[Fail()]] * 6 + ["I am well."])
        agent = make_agent(model, said=ASKED, turns=LATER)
        for n in range(3):
            await ask(agent, f"s{n}")
        heard, seconds = await ask(agent, "s9")
        assert heard == "I am well."
        assert seconds < 1.5

    run_virtual(run())


def test_a_guess_that_is_thrown_away_says_nothing_of_the_model() -> None:
    async def run() -> None:
        model = ScriptedModel([[Hang()]])
        agent = make_agent(model, fallback=ScriptedModel(), speech=SpeechOptions(filler=""))
        async with talk(agent) as it:
            at_s = 0.5
            for _ in range(6):  # pauses of 300 ms: each is guessed at, none is the end
                it.client.say(speak(0.6), at_s=at_s)
                at_s += 0.9
            await it.client.run(at_s)
            watch = agent.stages.service.engine("model", model)
            assert not watch.breaker.is_open
            assert watch.load(asyncio.get_running_loop().time()).waiting <= 1

    run_virtual(run())


class Ears(ScriptedRecogniser):
    """A recogniser that can fall ill."""

    ill: VoiceError | None = None
    hangs = False

    async def transcribe(self, audio: Pcm16, scope: Scope, **options: Any) -> Transcript:
        transcript = await super().transcribe(audio, scope, **options)
        if self.hangs:
            await asyncio.Event().wait()
        if self.ill is not None:
            raise self.ill
        return transcript


@dataclass
class Listeners:
    usual: Ears
    small: Ears
    agent: Agent

    async def hear(self, seconds: float = 1.0, language: str | None = "en") -> tuple[str, float]:
        """Who heard it, and how long that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        audio = silence(seconds)
        with Scope("process") as scope:
            found = await recognise(self.agent.stages, audio, scope, language=language)
        return found.text, loop.time() - began


def listeners(**small: Any) -> Listeners:
    usual = Ears(lambda audio: "usual", capabilities=RecogniserCapabilities(("en", "de")))
    other = Ears(lambda audio: "small", capabilities=RecogniserCapabilities(**small))
    agent = make_agent(recogniser=usual)
    agent.stages = replace(agent.stages, small_recogniser=other)
    return Listeners(usual, other, agent)


@pytest.mark.parametrize(
    "illness", [EngineFailed("gone"), EngineFailed("no", retryable=False), Overloaded("full")]
)
def test_what_the_recogniser_can_not_do_the_small_one_does(illness: VoiceError) -> None:
    async def run() -> None:
        them = listeners()
        them.usual.ill = illness
        assert (await them.hear())[0] == "small"
        assert them.usual.calls == 1

    run_virtual(run())


def test_a_recogniser_that_hangs_is_left_soon_and_remembered() -> None:
    async def run() -> None:
        them = listeners()
        them.usual.hangs = True
        assert await them.hear() == ("small", pytest.approx(6.1, abs=0.1))
        assert await them.hear() == ("small", pytest.approx(0.05))
        them.usual.hangs = False
        await asyncio.sleep(COOLDOWN_S)
        assert (await them.hear())[0] == "usual"
        assert (await them.hear())[0] == "usual"

    run_virtual(run())


@pytest.mark.parametrize(
    ("small", "seconds", "language", "who"),
    [
        ({}, 1.0, "en", "small"),
        ({}, 1.0, "de", "usual"),  # it knows English only
        ({}, 1.0, None, "usual"),  # the language is to be found out
        ({"languages": ("en", "de")}, 1.0, None, "small"),
        ({"max_audio_s": 10.0}, 11.0, "en", "usual"),
    ],
)
def test_the_small_recogniser_is_used_for_what_it_can(
    small: dict[str, Any], seconds: float, language: str | None, who: str
) -> None:
    async def run() -> None:
        them = listeners(**small)
        them.agent.stages.service.ladder.rung = Rung.SMALL_RECOGNISER
        assert (await them.hear(seconds, language))[0] == who

    run_virtual(run())


# ---------------------------------------------------------------- retries of all sessions together


@pytest.mark.parametrize("stage", ["recogniser", "model", "synthesiser"])
def test_when_an_engine_fails_everyone_retries_stay_within_their_budget(stage: str) -> None:
    async def run() -> None:
        recogniser, model, voice = Ears(lambda audio: "Hello."), ScriptedModel(), ToneSynthesiser()
        calls = {
            "recogniser": lambda: recogniser.calls,
            "model": lambda: model.opened,
            "synthesiser": lambda: voice.opened,
        }[stage]
        if stage == "recogniser":
            recogniser.ill = DEAD
        elif stage == "model":
            model.replies = [[Fail()]]
        else:

            def broken(*_: Any) -> Any:
                raise DEAD

            voice._pieces = broken  # type: ignore[method-assign]
        speech = SpeechOptions(apology="", filler="", empty="")
        agent = make_agent(model, recogniser=recogniser, synthesiser=voice, turns=LATER, speech=speech)
        agent.stages = replace(agent.stages, service=Service(ServiceOptions(retry_reserve=4.0)))
        budget = agent.stages.service.retries[stage]  # type: ignore[index]

        async def one(number: int) -> list[Any]:
            async with talk(agent, session_id=f"s{number}") as it:
                it.client.say(speak(0.5), at_s=0.5 + number * 0.01)
                await it.client.run(2.5)
                return [*it.of(Problem), *it.of(ResponseEnded)]

        told = await asyncio.gather(*(one(n) for n in range(40)))
        assert 40 <= calls() <= 40 * 1.1 + 5
        assert budget.spent == calls() - 40
        assert budget.denied == 80 - calls()
        assert all(told)  # each was told

    run_virtual(run())

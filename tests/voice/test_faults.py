"""An engine dies or hangs in mid call and comes back: the turn it was needed for is answered by plan (DESIGN §7), the
other sessions notice nothing, and the next turn is a normal one."""

from __future__ import annotations

import asyncio
import functools
import math
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from talk import Talk, longest_silence_s, make_agent, talk

from voice.agent import Agent
from voice.batching import Batcher
from voice.errors import EngineFailed, VoiceError
from voice.events import Problem, ResponseEnded, UserSaid
from voice.interfaces import ModelEvent, Pcm16, Prompt, Speech, ToolCall, Transcript
from voice.options import SpeechOptions, TurnOptions
from voice.scope import Scope
from voice.testing import (
    Hang,
    Pause,
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    VirtualExecutor,
    run_virtual,
    speak,
)
from voice.tools import tool
from voice.turns import State

APOLOGY, FILLER = SpeechOptions().apology, SpeechOptions().filler
ANSWER = "One two three four."
OUTAGE_S = (0.0, 6.5)
ASKED_AT_S, AGAIN_AT_S, END_S = 1.0, 9.5, 13.0
MOST_S = 24.0
"""By then a turn whose engine hangs has ended in an answer or a clear error: the synthesiser gets 10 s, twice."""


# ---------------------------------------------------------------- engines with outages


class Outage:
    """A time in which an engine fails.

    Args:
        fault: ``"dies"``, ``"hangs"`` (until the end of the outage), or an exception it raises.
        between_s: Begin and end, in loop time.
        only: The session whose calls fail; ``None``: everybody's.
    """

    def __init__(
        self, fault: str | type[Exception], between_s: tuple[float, float] = OUTAGE_S, only: str | None = "s0"
    ) -> None:
        self.fault, self.between_s, self.only = fault, between_s, only
        self.hits = 0

    async def meet(self, scope: Scope) -> None:
        now, (begin_s, end_s) = asyncio.get_running_loop().time(), self.between_s
        if not begin_s <= now < end_s or self.only not in (None, scope.identity.session):
            return
        self.hits += 1
        if self.fault == "hangs":
            await asyncio.sleep(end_s - now)
        elif self.fault == "dies":
            raise EngineFailed("the engine is gone")
        elif isinstance(self.fault, type):
            raise self.fault("inside an engine")


class FaultyRecogniser(ScriptedRecogniser):
    outage: Outage | None = None

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        if self.outage is not None:
            await self.outage.meet(scope)
        return await super().transcribe(audio, scope, language=language, hints=hints)


class FaultyModel(ScriptedModel):
    outage: Outage | None = None

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        if self.outage is not None:
            await self.outage.meet(scope)
        async for event in super().generate(prompt, scope):
            yield event


class FaultyVoice(ToneSynthesiser):
    outage: Outage | None = None

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        if self.outage is not None:
            await self.outage.meet(scope)
        async for piece in super().synthesise(text, scope, voice=voice):
            yield piece


def agent_of(stage: str | None = None, outage: Outage | None = None, **agent: Any) -> Agent:
    recogniser = FaultyRecogniser(lambda audio: "Hello there.")
    model, voice = FaultyModel([ANSWER]), FaultyVoice()
    if stage is not None:
        engines: dict[str, Any] = {"recogniser": recogniser, "model": model, "voice": voice}
        engines[stage].outage = outage
    return make_agent(model, recogniser=recogniser, synthesiser=voice, **agent)


async def calls(agent: Agent, sessions: int = 2, *, again_at_s: float = AGAIN_AT_S) -> list[Talk]:
    """Conversations side by side, each with two questions; session 0 is the first to ask."""
    end_s = again_at_s + END_S - AGAIN_AT_S

    async def call(number: int) -> Talk:
        client = (PushClient, PullClient)[number % 2](frame_s=0.1, record_s=end_s)
        async with talk(agent, client, session_id=f"s{number}") as it:
            for at_s in (ASKED_AT_S, again_at_s):
                client.say(speak(0.8), at_s=at_s + number / 2)
            await client.run(end_s)
            assert it.session.state is State.LISTENING
            assert it.session.ended is None
            return it

    return list(await asyncio.gather(*(call(number) for number in range(sessions))))


def same_call(one: Talk, other: Talk) -> bool:
    times_of = [[(type(event), round(at, 2)) for at, event in it.events] for it in (one, other)]
    return one.sounds == other.sounds and one.words == other.words and times_of[0] == times_of[1]


FAULTS: list[str | type[Exception]] = ["dies", "hangs", ZeroDivisionError, MemoryError]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("stage", ["recogniser", "model", "voice"])
def test_a_fault_in_one_sessions_call_is_told_no_other_notices_and_the_next_turn_is_normal(
    stage: str, fault: str | type[Exception]
) -> None:
    outage = Outage(fault)
    hurt, *others = run_virtual(calls(agent_of(stage, outage)))
    assert outage.hits >= 1
    check_plan(hurt)
    for other, usual in zip(others, usual_calls()[1:], strict=True):
        assert same_call(other, usual)


@functools.cache
def usual_calls() -> list[Talk]:
    """The same conversations without any fault."""
    return run_virtual(calls(agent_of()))


def check_plan(hurt: Talk) -> None:
    """The first turn ended in an answer, if a late one, or in a clear error; the second is a normal one."""
    answered = (1, 4) in hurt.words
    assert answered or hurt.of(Problem), "never a turn that ends in nothing"
    assert min(hurt.times_of(ResponseEnded) + hurt.times_of(Problem)) <= MOST_S
    assert hurt.words[-1] == (2, 4)
    assert hurt.ended.status == "completed"


@pytest.mark.parametrize("stage", ["recogniser", "model", "voice"])
def test_an_engine_that_hangs_for_long_is_given_up_within_its_deadline(stage: str) -> None:
    agent = agent_of(stage, Outage("hangs", (0.0, MOST_S + 1.0)))
    [it] = run_virtual(calls(agent, 1, again_at_s=MOST_S + 4.0))
    assert (1, 4) not in it.words
    check_plan(it)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_model_that_fails_is_apologised_for_or_replaced_by_the_fallback(
    fault: str | type[Exception],
) -> None:
    plain = run_virtual(calls(agent_of("model", Outage(fault)), 1))[0]
    said = (len(FILLER.split()) if fault == "hangs" else 0) + len(APOLOGY.split())
    assert plain.words == [(1, said), (2, 4)]
    hedged = agent_of("model", Outage(fault), fallback=ScriptedModel(["Five six."]))
    it = run_virtual(calls(hedged, 1))[0]
    filler = len(FILLER.split()) if fault == "hangs" else 0
    assert it.words[0] == (1, filler + 2)
    assert it.words[1] in [(2, 4), (2, 2)], "the engine's own words, or the fallback's while it is probed"
    assert it.of(Problem) == []


# ---------------------------------------------------------------- an outage for everybody


@pytest.mark.parametrize("fault", ["dies", "hangs"])
@pytest.mark.parametrize("stage", ["recogniser", "model", "voice"])
def test_an_outage_for_all_touches_only_the_turns_in_it_and_passes(stage: str, fault: str) -> None:
    """Five sessions ask at random; an engine is gone for six seconds."""
    seed = 5
    print(f"seed={seed}")
    chance, begin_s, end_s, last_s = random.Random(seed), 9.0, 15.0, 30.0
    agent = agent_of(stage, Outage(fault, (begin_s, end_s), only=None), turns=TurnOptions(echo_guard=False))

    async def call(number: int) -> None:
        client = PushClient(frame_s=0.1, record_s=last_s)
        asked: list[float] = []
        async with talk(agent, client, session_id=f"s{number}") as it:
            at_s = chance.uniform(0.5, 4.0)
            while at_s < last_s - 6.0:
                client.say(speak(0.6), at_s=round(at_s, 1))
                asked.append(at_s)
                at_s += chance.uniform(5.0, 7.0)
            await client.run(last_s)
            assert it.session.state is State.LISTENING
        said = [event.generated for _, event in it.events if isinstance(event, ResponseEnded)]
        assert len(it.of(UserSaid)) == len(asked) or stage == "recogniser"
        for asked_s in asked:
            answers = [(at, e) for at, e in it.events if isinstance(e, ResponseEnded) and at > asked_s]
            if asked_s + 4.0 < begin_s or asked_s > end_s + 2.0:  # nowhere near it
                assert answers[0][0] < asked_s + 4.0
                assert answers[0][1].heard == ANSWER, (asked_s, said)

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(5)))

    run_virtual(main())


def test_an_answer_that_is_being_heard_goes_on_through_the_death_of_what_made_it() -> None:
    async def main(outage: Outage | None) -> Talk:
        agent = agent_of()
        model, voice, recogniser = (
            agent.stages.model,
            agent.stages.synthesiser,
            agent.stages.recogniser,
        )
        model.replies = ["word " * 30]  # type: ignore[attr-defined]
        for engine in (model, voice, recogniser):
            engine.outage = outage  # type: ignore[attr-defined]
        async with talk(agent, PushClient(frame_s=0.1, record_s=20.0)) as it:
            it.session.send_text("Tell me.")
            await it.client.run(12.0)
            return it

    usual, hit = run_virtual(main(None)), run_virtual(main(Outage("dies", (2.5, 99.0), only=None)))
    assert hit.words == usual.words == [(0, 30)]
    assert hit.of(Problem) == []


# ---------------------------------------------------------------- a model that stalls


@pytest.mark.parametrize("token", range(7))
def test_a_model_that_stalls_before_any_of_its_tokens_is_given_up_and_answers_the_next_time(
    token: int,
) -> None:
    words = ["Well ", "let ", "me ", "see. ", "It ", "is ", "six."]
    stalls = [*words[:token], Hang(), *words[token:]]
    model = ScriptedModel([stalls, ANSWER])

    async def main() -> Talk:
        async with talk(make_agent(model), PullClient(frame_s=0.1, record_s=20.0)) as it:
            it.session.send_text("What is it?")
            await it.client.run(11.0)
            assert it.session.state is State.LISTENING
            it.session.send_text("Say it again.")
            await it.client.run(4.0)
            return it

    it = run_virtual(main())
    first, second = it.of(ResponseEnded)
    assert first.heard == "".join(words[:token]) + (APOLOGY if token else f"{FILLER} {APOLOGY}")
    assert longest_silence_s(it, 0.0, it.sounds[-1][1]) <= 8.0
    assert longest_silence_s(it, 0.0, 4.0) <= 3.0, "of the turn that stalled"
    assert second.heard == ANSWER
    assert model.running == 0


# ---------------------------------------------------------------- a detector behind a batcher


class BatchedDetector:
    """A detector whose windows, of all sessions, are judged in calls off the loop; loud ones are speech."""

    name, window_samples = "batched-detector", 512

    def __init__(self, fault: str | None, between_s: tuple[float, float]) -> None:
        self._fault, self._between_s = fault, between_s
        self.batcher: Batcher[Pcm16, float] = Batcher(
            self._judge,
            name=self.name,
            executor=VirtualExecutor(self._cost_s, threads=1),
            max_batch=32,
            timeout_s=0.5,
        )

    def _failing(self) -> bool:
        begin_s, end_s = self._between_s
        return self._fault is not None and begin_s <= self._now() < end_s

    def _cost_s(self, call: Callable[..., Any], args: tuple[Any, ...]) -> float:
        self._now = asyncio.get_running_loop().time
        return self._between_s[1] - self._now() if self._failing() and self._fault == "hangs" else 0.001

    def _judge(self, windows: Sequence[Pcm16]) -> list[float]:
        if self._failing() and self._fault == "dies":
            raise EngineFailed("the device is lost")
        return [0.98 if np.abs(w).max() > 3000 else 0.02 for w in windows]

    def open(self) -> BatchedStream:
        return BatchedStream(self.batcher)


class BatchedStream:
    def __init__(self, batcher: Batcher[Pcm16, float]) -> None:
        self._batcher, self._remove = batcher, lambda: None

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        def done(result: float | VoiceError) -> None:
            on_result(math.nan if isinstance(result, VoiceError) else result)

        self._remove = self._batcher.post(window.copy(), done)

    def reset(self) -> None: ...

    def close(self) -> None:
        self._remove()


@pytest.mark.parametrize("fault", ["dies", "hangs"])
@pytest.mark.parametrize("begins", ["while the user speaks", "while nobody speaks"])
def test_a_detector_that_fails_for_three_seconds_loses_no_turn_that_it_saw_begin(
    fault: str, begins: str
) -> None:
    begin_s = 1.6 if begins == "while the user speaks" else 5.0
    end_s = begin_s + 3.0

    async def main() -> None:
        agent = make_agent(
            detector=BatchedDetector(fault, (begin_s, end_s)),
            recogniser=ScriptedRecogniser(lambda audio: "Hello there."),
        )

        async def call(number: int) -> Talk:
            client = PushClient(frame_s=0.1, record_s=20.0)
            async with talk(agent, client, session_id=f"s{number}") as it:
                if number == 0:
                    client.say(speak(1.0), at_s=1.0)
                client.say(speak(1.0), at_s=11.0)
                await client.run(16.0)
                return it

        for it in await asyncio.gather(*(call(number) for number in range(4))):
            spoke = it.times_of(ResponseEnded)
            if it.session.session_id == "s0":
                assert len(spoke) == 2
                assert spoke[0] < (end_s + 3.0 if begins == "while the user speaks" else 5.0)
            assert len(spoke) == (2 if it.session.session_id == "s0" else 1), "no turn out of nothing"
            assert 12.0 < spoke[-1] < 14.5
            assert it.session.ear.failures > 0

    run_virtual(main())


class FaultyTurnModel:
    name, window_s = "faulty-turn-model", 8.0

    def __init__(self, outage: Outage, odd: float = 0.99) -> None:
        self._outage, self._odd = outage, odd

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        await self._outage.meet(scope)
        return self._odd


@pytest.mark.parametrize("fault", [*FAULTS, math.nan, 7.0], ids=str)
def test_without_its_turn_model_silence_decides(fault: Any) -> None:
    odd = isinstance(fault, float)
    outage = Outage("none" if odd else fault, (0.0, 99.0))
    agent = agent_of()
    object.__setattr__(agent.stages, "turn", FaultyTurnModel(outage, fault if odd else 0.99))
    it = run_virtual(calls(agent, 1))[0]
    assert it.words == [(1, 4), (2, 4)]
    assert it.sounds[0][0] <= ASKED_AT_S + 0.8 + TurnOptions().max_delay_s + 0.8


# ---------------------------------------------------------------- clients, clocks, memory


def test_a_client_that_stops_reading_while_the_model_stalls_is_served_when_both_are_back() -> None:
    async def main() -> Talk:
        model = ScriptedModel([["word ", "word ", Pause(1.8), *["word "] * 20], ANSWER])
        client = PushClient(record_s=30.0)
        async with talk(make_agent(model), client) as it:
            it.session.send_text("Tell me.")
            await client.run(0.5)
            client.stop_reading()
            await client.run(4.0)
            client.resume_reading()
            await client.run(8.0)
            it.session.send_text("And again.")
            await client.run(3.0)
            assert it.session.ended is None
            return it

    it = run_virtual(main())
    assert [event.status for event in it.of(ResponseEnded)] == ["completed"] * 2
    assert sum(count for _, count in it.words) == 22 + 4
    assert it.of(Problem) == []


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, -1.0e9])
def test_a_step_of_the_wall_clock_changes_nothing(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = usual_calls()[0]
    wall = time.time
    steps = iter(range(10**9))
    # the clock is set anew again and again, in the middle of whatever looks at it
    monkeypatch.setattr(time, "time", lambda: wall() + (step_s if next(steps) % 3 else 0.0))
    stepped = run_virtual(calls(agent_of(), 1))[0]
    assert same_call(stepped, usual)


def test_a_tool_that_runs_out_of_memory_is_told_to_the_model_and_the_call_goes_on() -> None:
    @tool
    async def picture() -> str:
        """Draw."""
        raise MemoryError

    model = ScriptedModel([[ToolCall("", "picture", "{}")], "I could not.", ANSWER])

    async def main() -> Talk:
        async with talk(make_agent(model, tools=[picture]), PullClient(frame_s=0.1)) as it:
            for text in ("Draw.", "Again."):
                it.session.send_text(text)
                await it.client.run(4.0)
            return it

    assert [event.heard for event in run_virtual(main()).of(ResponseEnded)] == ["I could not.", ANSWER]


def starved_of_memory(limit_mib: int = 256) -> None:
    """Run in a process of its own: an engine asks for more memory than there is, in mid call."""
    import resource

    class Hungry(ScriptedModel):
        async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
            if prompt.messages[-1].text == "Much.":
                await VirtualExecutor().run(np.ones, (1 << 31,))
            async for event in super().generate(prompt, scope):
                yield event

    async def main() -> None:
        agent = make_agent(Hungry([ANSWER]))
        async with talk(agent, PullClient(frame_s=0.1, record_s=20.0)) as it:
            most = psutil.Process().memory_info().vms + limit_mib * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            for text in ("Hello.", "Much.", "Hello again."):
                it.session.send_text(text)
                await it.client.run(5.0)
            print("|".join(event.heard for event in it.of(ResponseEnded)))

    run_virtual(main())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such limit")
def test_a_real_memory_limit_fails_the_turn_that_meets_it_and_no_other() -> None:
    tests = Path(__file__).resolve().parent.parent
    paths: Collection[str] = [str(tests.parent), str(tests), str(tests / "voice")]
    code = f"import sys; sys.path[:0] = {list(paths)!r}; import test_faults as it; it.starved_of_memory()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"{ANSWER}|{APOLOGY}|{ANSWER}", done.stderr[-2000:]


def test_a_failing_detector_is_logged_once_and_not_with_every_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ScriptedDetector):
        def judge(self, window: Pcm16, index: int) -> float:
            raise ZeroDivisionError

    async def main() -> None:
        async with talk(make_agent(detector=Broken()), PullClient(frame_s=0.1)) as it:
            await it.client.run(10.0)
            assert it.session.ear.failures > 300
            assert it.session.ended is None

    run_virtual(main())
    assert sum("detector failed" in r.getMessage() for r in caplog.records) == 1

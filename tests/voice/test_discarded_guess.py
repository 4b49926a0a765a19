"""A discarded guess leaves nothing: no tool run, no history item, no event, no usage, no sound, no work under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voice.agent import Agent
from voice.chat import AgentEntry, ToolEntry, UserEntry
from voice.events import (
    ResponseEnded,
    ResponseStarted,
    ResponseText,
    SessionEnded,
    SessionEvent,
    SpeechStarted,
    SpeechStopped,
    ToolEnded,
    ToolStarted,
    UserSaid,
)
from voice.interfaces import Prompt, Stages, TextDelta, ToolCall, ToolCallDelta
from voice.options import TurnOptions
from voice.scope import Reason
from voice.session import Session
from voice.testing import (
    Fail,
    Hang,
    Pause,
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    slow_tool,
    speak,
    words_heard,
)

BOOK = ToolCall("", "book", "{}")
CERTAIN_AFTER_S = 1.0
OPTIONS = TurnOptions(min_delay_s=CERTAIN_AFTER_S, max_delay_s=CERTAIN_AFTER_S)

Step = str | Pause | Fail | Hang | ToolCall | ToolCallDelta | TextDelta
SCRIPTS: dict[str, Sequence[Step]] = {
    "calls a tool": [BOOK],
    "speaks and calls two tools": ["Let me", " see", " about that.", BOOK, BOOK],
    "shows the call's arguments": [ToolCallDelta("c", "book", "{"), ToolCallDelta("c", "book", "}"), BOOK],
    "speaks": ["One", " two three.", " Four", " five six seven.", " Eight."],
    "fails": ["One two", " three.", Fail()],
    "fails at once": [Fail(retryable=False)],
    "hangs": ["One", " two three.", Hang()],
    "stalls": [Pause(0.3), "One", Pause(0.4), " two three.", BOOK],
    "says nothing": [],
}


@dataclass
class Caller:
    """A session with fake engines and all it told."""

    kind: Literal["pull", "push"]
    script: Sequence[Step] | None
    first_token_s: float = 0.05
    fail_synthesis: bool = False
    events: list[SessionEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = slow_tool(0.2, "booked", "book")
        self.model = ScriptedModel(self.reply, first_token_s=self.first_token_s)
        self.synthesiser = ToneSynthesiser(fail_at=range(100) if self.fail_synthesis else ())
        # however much was said, its pitch gives words that look complete
        self.recogniser = ScriptedRecogniser(lambda pcm: f"Words of {len(pcm) / 16000:.2f} seconds.")
        stages = Stages(ScriptedDetector(), self.recogniser, self.model, self.synthesiser)
        self.client = PullClient() if self.kind == "pull" else PushClient()
        agent = Agent("Be kind.", stages, tools=[self.book], turns=OPTIONS)
        self.session = Session(agent, self.client, session_id="s0", on_event=self.events.append)

    def reply(self, prompt: Prompt) -> Sequence[Step]:
        if self.script is None or prompt.messages[-1].role == "tool":
            return ["It", " is", " done."]
        return self.script

    async def speak(self, said: Sequence[tuple[float, float]], start_s: float = 0.5) -> float:
        """Stretches of speech, each with the silence after it; returns when the last stretch ends."""
        at = start_s
        for speech_s, silence_s in said:
            self.client.say(speak(speech_s), at_s=at)
            at = round(at + speech_s + silence_s, 3)
        return at - said[-1][1]

    async def to(self, at_s: float) -> None:
        await self.client.run(at_s - self.client.now_s)

    def of(self, *kinds: type[SessionEvent]) -> list[SessionEvent]:
        return [e for e in self.events if isinstance(e, kinds)]


SPEECH_S = st.floats(0.2, 1.2).map(lambda s: round(s, 2))
# long enough for a pause to be noticed, short enough to go on before the turn is certain
UNCERTAIN_S = st.floats(0.2, CERTAIN_AFTER_S - 0.15).map(lambda s: round(s, 2))
UNCERTAIN = st.lists(st.tuples(SPEECH_S, UNCERTAIN_S), min_size=1, max_size=4)
KIND = st.sampled_from(["pull", "push"])
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@EXAMPLES
@given(
    UNCERTAIN,
    KIND,
    st.sampled_from(sorted(SCRIPTS)),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from(["goes on", "cleared", "typed note", "hangs up", "fails"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_guess_that_was_discarded_leaves_no_trace(
    said: list[tuple[float, float]],
    kind: Literal["pull", "push"],
    script: str,
    first_token_s: float,
    end: str,
    fail_synthesis: bool,
    seed: int,
) -> None:
    async def main() -> None:
        caller = Caller(kind, SCRIPTS[script], first_token_s, fail_synthesis)
        session, entries = caller.session, 0
        async with session:
            caller.client.attach(session)
            last_s = await caller.speak([*said, (1.0, 0.0)])
            if end == "goes on":
                await caller.to(last_s - 0.1)
            else:
                await caller.to(last_s - 1.0 - 0.05)  # in the last pause, its guess waits or is being made
                if end == "typed note":
                    session.send_text("A note.", answer=False)
                    entries = 1
                    await caller.to(last_s - 0.5)
                elif end == "cleared":
                    session.clear()
                elif end == "hangs up":
                    await session.close()
                    await asyncio.sleep(1.0)
                else:
                    session.scope.cancel(Reason.FAILED)
            await asyncio.sleep(0.001)
            check_nothing_is_left(caller, entries)
        check_nothing_is_left(caller, entries)

    run_virtual(main(), seed=seed)


def check_nothing_is_left(caller: Caller, entries: int) -> None:
    allowed = (SpeechStarted, SpeechStopped, SessionEnded)
    if entries == 0:
        assert [e for e in caller.events if not isinstance(e, (*allowed, UserSaid))] == []
    assert all(e.text == "" for e in caller.events if isinstance(e, UserSaid))
    assert caller.of(ResponseStarted, ResponseText, ResponseEnded, ToolStarted, ToolEnded) == []
    assert caller.book.runs == 0
    assert len(caller.session.chat.entries) == entries
    assert words_heard(caller.client.heard) == []
    counters = caller.session.counters
    assert counters.turns == counters.guesses_kept == 0
    assert caller.model.running == caller.synthesiser.running == caller.recogniser.running == 0


@pytest.mark.parametrize("kind", ["pull", "push"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_pause_of_a_hesitant_caller_makes_a_guess_that_is_forgotten(
    kind: Literal["pull", "push"], script: str
) -> None:
    async def main() -> None:
        caller = Caller(kind, SCRIPTS[script])
        async with caller.session:
            caller.client.attach(caller.session)
            last_s = await caller.speak([(0.5, 0.8), (0.5, 0.7), (0.5, 0.6), (0.5, 0.0)])
            await caller.to(last_s)
            counters = caller.session.counters
            assert (counters.guesses, counters.guesses_dropped) == (3, 3)
            assert caller.model.opened >= 3
            check_nothing_is_left(caller, 0)

    run_virtual(main())


@EXAMPLES
@given(
    st.lists(st.tuples(SPEECH_S, st.one_of(UNCERTAIN_S, st.just(4.0))), min_size=1, max_size=5),
    KIND,
    st.sampled_from(["calls a tool", "speaks and calls two tools", "speaks", "stalls"]),
    st.integers(0, 1000),
)
def test_only_what_was_certain_is_told_run_counted_and_remembered(
    said: list[tuple[float, float]], kind: Literal["pull", "push"], script: str, seed: int
) -> None:
    async def main() -> None:
        caller = Caller(kind, SCRIPTS[script])
        async with caller.session:
            caller.client.attach(caller.session)
            last_s = await caller.speak(said)
            await caller.to(last_s + 8.0)

            turns = sum(silence_s == 4.0 for _, silence_s in said[:-1]) + 1
            events, counters, chat = caller.events, caller.session.counters, caller.session.chat
            assert counters.turns == turns
            assert counters.guesses == counters.guesses_kept + counters.guesses_dropped
            assert len(caller.of(UserSaid)) == turns
            assert len([e for e in chat.entries if isinstance(e, UserEntry)]) == turns
            started = [e.response_id for e in events if isinstance(e, ResponseStarted)]
            ended = [e for e in events if isinstance(e, ResponseEnded)]
            assert len(started) == turns
            assert [e.response_id for e in ended] == started

            calls = sum(isinstance(step, ToolCall) for step in SCRIPTS[script])
            assert (
                caller.book.runs == calls * turns == len(caller.of(ToolStarted)) == len(caller.of(ToolEnded))
            )
            assert len([e for e in chat.entries if isinstance(e, ToolEntry)]) == calls * turns
            agent = [e for e in chat.entries if isinstance(e, AgentEntry)]
            assert {e.response_id for e in agent} == set(started)
            for answer in ended:
                texts = [e.text for e in events if isinstance(e, ResponseText)]
                assert answer.generated in "".join(texts)
                tokens = sum(isinstance(step, str) for step in SCRIPTS[script]) + 3 * bool(calls)
                assert answer.usage.completion_tokens == tokens  # of the answer that was kept, of no other
            assert caller.model.running == caller.synthesiser.running == 0

    run_virtual(main(), seed=seed)


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_a_tool_call_waits_at_the_gate_until_the_turn_is_certain(kind: Literal["pull", "push"]) -> None:
    async def main() -> None:
        caller = Caller(kind, SCRIPTS["calls a tool"], first_token_s=0.0)
        async with caller.session:
            caller.client.attach(caller.session)
            last_s = await caller.speak([(1.0, 0.0)])
            await caller.to(last_s + CERTAIN_AFTER_S - 0.04)
            assert caller.model.finished == 1  # the guess has its call
            assert caller.book.runs == 0
            assert caller.session.chat.entries == []
            await caller.to(last_s + CERTAIN_AFTER_S + 0.1)
            assert caller.book.runs == 1
            assert caller.model.opened == 1

    run_virtual(main())

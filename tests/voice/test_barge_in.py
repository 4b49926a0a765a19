"""Barge-in, exact in virtual time: silence within 60 ms although stages take a second to unwind, or refuse to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from talk import ONE_TO_FORTY, Talk, WatchedDetector, make_agent, talk

from voice.agent import Agent
from voice.events import ResponseEnded, SpeechStarted, UserSaid
from voice.interfaces import ModelEvent, Prompt, Speech, TextDelta, ToolCall
from voice.options import TurnOptions
from voice.scope import Reason, Scope
from voice.testing import PullClient, PushClient, ScriptedModel, ToneSynthesiser, run_virtual, silence, speak
from voice.tools import tool

SILENT_S = 0.06
"""The agent is silent this long after the edge, or after the decision."""
UNWIND_S = 1.0
BARGE_IN_S = 4.0
TOLERANCE_S = 0.002
"""How exact the recording is read."""

UNWINDING = ["at once", "after a second", "never"]


class SlowModel(ScriptedModel):
    """Takes a second to unwind after its cancel; ``swallow``: and goes on as if nothing had happened."""

    def __init__(self, replies: Any, unwinding: str, **options: Any) -> None:
        super().__init__(replies, **options)
        self.unwinding = unwinding

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        events = super().generate(prompt, scope)
        try:
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event
        except (asyncio.CancelledError, GeneratorExit) as error:
            if self.unwinding != "at once":
                await asyncio.sleep(UNWIND_S)
            if self.unwinding != "never" or isinstance(error, GeneratorExit):
                raise
            for _ in range(20):
                yield TextDelta("Stale words. ")
                await asyncio.sleep(0.05)


class SlowVoice(ToneSynthesiser):
    """The same for a synthesiser: one that goes on yields audio of the cancelled answer."""

    def __init__(self, unwinding: str, **options: Any) -> None:
        super().__init__(**options)
        self.unwinding = unwinding

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        pieces = super().synthesise(text, scope, voice=voice)
        last: Speech | None = None
        try:
            async with aclosing(pieces):  # type: ignore[type-var]
                async for piece in pieces:
                    last = piece
                    yield piece
        except (asyncio.CancelledError, GeneratorExit) as error:
            if self.unwinding != "at once":
                await asyncio.sleep(UNWIND_S)
            if self.unwinding != "never" or isinstance(error, GeneratorExit) or last is None:
                raise
            for _ in range(20):
                yield last
                await asyncio.sleep(0.05)


def stubborn_tool(unwinding: str) -> Any:
    @tool(on_interrupt="cancel")
    async def look() -> str:
        """Look something up."""
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if unwinding != "at once":
                await asyncio.sleep(UNWIND_S)
            if unwinding != "never":
                raise
        return "a stale result"

    return look


def agent_for(stage: str, unwinding: str, **options: Any) -> Agent:
    """An agent whose ``stage`` is under way when the user interrupts, and unwinds as told."""
    how = {name: unwinding if name == stage else "at once" for name in ("model", "synthesiser", "tool")}
    first: Any = ONE_TO_FORTY
    if stage == "tool":
        first = [" ".join(ONE_TO_FORTY.split()[:15]) + " ", ToolCall("", "look", "{}")]
    # slow tokens and slow synthesis: both are still at work when the user barges in
    model = SlowModel([first, "Alright then."], how["model"], token_s=0.1 if stage == "model" else 0.01)
    voice = SlowVoice(how["synthesiser"], rtf=0.6 if stage == "synthesiser" else 0.02, chunk_s=0.2)
    return make_agent(model, synthesiser=voice, tools=[stubborn_tool(how["tool"])], **options)


async def _interrupted(agent: Agent, client: PullClient | PushClient, seen: list[Talk]) -> None:
    async with talk(agent, client) as it:
        client.say(speak(1.0), at_s=1.0)
        client.say(speak(1.0), at_s=BARGE_IN_S)
        await client.run(9.0)
        seen.append(it)
    await asyncio.sleep(5.0)  # what ignored its cancel ends by itself


def interrupted(agent: Agent, client: PullClient | PushClient) -> Talk:
    seen: list[Talk] = []
    run_virtual(_interrupted(agent, client, seen))
    return seen[0]


def edge_s(it: Talk) -> float:
    """When the detector saw the interruption begin."""
    detector = it.session.agent.stages.detector
    assert isinstance(detector, WatchedDetector)
    return next(at for at in detector.edges if at > BARGE_IN_S)


def silent_from_s(it: Talk) -> float:
    """When the first answer was last heard."""
    return max(end for start, end in it.sounds if start < BARGE_IN_S + 0.5)


def heard_words(it: Talk) -> int:
    """Words of the first answer at the ear."""
    return next(words for turn, words in it.words if turn == 1)


def check_history(it: Talk) -> None:
    """The history ends within one word of what was heard, and says that it was cut."""
    entry = it.agent_entries[0]
    assert entry.interrupted
    assert abs(len(entry.heard.split()) - heard_words(it)) <= 1
    assert ONE_TO_FORTY.startswith(entry.heard)
    assert "Stale" not in "".join(e.generated for e in it.agent_entries)


# ---------------------------------------------------------------- silence


@pytest.mark.parametrize("unwinding", UNWINDING)
@pytest.mark.parametrize("stage", ["model", "synthesiser", "tool"])
def test_a_client_that_can_pause_is_silent_60_ms_after_the_edge(stage: str, unwinding: str) -> None:
    it = interrupted(agent_for(stage, unwinding), PullClient())
    assert BARGE_IN_S < edge_s(it) < BARGE_IN_S + 0.15
    assert silent_from_s(it) <= edge_s(it) + SILENT_S
    check_history(it)


@pytest.mark.parametrize("unwinding", UNWINDING)
@pytest.mark.parametrize("hold_s", [0.25, 0.0])
@pytest.mark.parametrize("stage", ["model", "synthesiser", "tool"])
def test_a_client_that_can_only_flush_is_silent_60_ms_after_the_decision(
    stage: str, hold_s: float, unwinding: str
) -> None:
    client = PushClient()
    it = interrupted(agent_for(stage, unwinding, turns=TurnOptions(hold_s=hold_s)), client)
    decided_s = it.times_of(SpeechStarted)[1]
    assert decided_s <= edge_s(it) + hold_s + 0.01
    assert list(client.cleared_s) == [pytest.approx(decided_s)]
    assert silent_from_s(it) <= decided_s + SILENT_S
    late = [sent for sent in client.sent if sent.at_s > edge_s(it) and sent.response_id.endswith("00001")]
    assert late == [], "sending stops at the edge, not at the decision"
    check_history(it)


@pytest.mark.parametrize("client_type", [PullClient, PushClient])
@pytest.mark.parametrize("stage", ["model", "synthesiser", "tool"])
def test_nothing_of_the_cut_answer_is_heard_later_and_the_next_one_is(stage: str, client_type: Any) -> None:
    it = interrupted(agent_for(stage, "never"), client_type())
    assert [turn for turn, _ in it.words] == [1, 2]
    assert it.words[1] == (2, 2)


@pytest.mark.parametrize("client_type", [PullClient, PushClient])
@pytest.mark.parametrize("stage", ["model", "synthesiser", "tool"])
def test_the_next_answer_is_not_delayed_by_what_still_unwinds(stage: str, client_type: Any) -> None:
    starts = [
        interrupted(agent_for(stage, unwinding), client_type()).sounds[-1][0] for unwinding in UNWINDING
    ]
    assert starts[1] == pytest.approx(starts[0], abs=TOLERANCE_S)
    assert starts[2] == pytest.approx(starts[0], abs=TOLERANCE_S)


def test_the_reaper_names_the_stage_that_ignored_its_cancel(caplog: pytest.LogCaptureFixture) -> None:
    it = interrupted(agent_for("model", "never"), PullClient())
    assert it.session.scope.reaper.ignored_cancels == 1
    assert "model scripted-model" in caplog.text


# ---------------------------------------------------------------- other ways to be cut


@pytest.mark.parametrize("unwinding", UNWINDING)
@pytest.mark.parametrize("client_type", [PullClient, PushClient])
def test_the_owner_silences_the_agent_at_once(client_type: Any, unwinding: str) -> None:
    async def main() -> None:
        async with talk(agent_for("synthesiser", unwinding), client_type()) as it:
            it.client.say(speak(1.0), at_s=1.0)
            await it.client.run(4.0)
            it.session.interrupt()
            began = asyncio.get_running_loop().time()
            assert it.session.playout.track is None
            await it.client.run(3.0)
            assert it.sounds[-1][1] <= began + 0.02 + TOLERANCE_S
            check_history(it)
        await asyncio.sleep(5.0)

    run_virtual(main())


def test_a_short_sound_without_words_only_pauses_the_answer_and_loses_none_of_it() -> None:
    async def main() -> None:
        agent = make_agent([ONE_TO_FORTY], said=["Hello there.", ""])
        async with talk(agent) as it:
            it.client.say(speak(1.0), at_s=1.0)
            it.client.say(speak(0.25), at_s=BARGE_IN_S)
            await it.client.run(14.0)
            assert it.words == [(1, 40)]
            assert it.session.counters.barge_ins == 0
            assert it.session.counters.false_alarms == 1
            entry = it.agent_entries[0]
            assert (entry.heard, entry.interrupted) == (ONE_TO_FORTY, False)
            gap_start, gap_end = it.sounds[0][1], it.sounds[1][0]
            assert gap_start <= edge_s(it) + SILENT_S
            assert gap_end - gap_start < 1.0

    run_virtual(main())


def test_the_cut_answer_is_told_why() -> None:
    async def main() -> None:
        reasons: list[Reason] = []

        class Asking(ScriptedModel):
            async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
                scope.on_cancel(reasons.append)
                async with aclosing(super().generate(prompt, scope)) as events:  # type: ignore[type-var]
                    async for event in events:
                        yield event

        model = Asking([ONE_TO_FORTY, "Fine."], token_s=0.1)  # still writing when it is cut
        async with talk(make_agent(model)) as it:
            it.client.say(speak(1.0), at_s=1.0)
            it.client.say(speak(1.0), at_s=BARGE_IN_S)
            await it.client.run(9.0)
        assert reasons == [Reason.BARGE_IN]

    run_virtual(main())


@pytest.mark.parametrize("rate, lag_s", [(0.05, 2.5), (0.05, 3.0), (0.3, 2.0), (0.3, 2.5), (0.6, 2.0)])
def test_speech_that_comes_late_and_then_all_at_once_interrupts_as_if_it_had_come_in_time(
    rate: float, lag_s: float
) -> None:
    """A line that stalls for seconds in the middle of a barge-in: the words are whole, and as long as they were."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with talk(make_agent([ONE_TO_FORTY] * 4), PushClient()) as it:
            it.session.respond()
            audio = np.concatenate([silence(1.0), speak(1.84), silence(5.0)])
            began, slow_s = loop.time(), lag_s / (1 - rate)
            for number, frame in enumerate(np.split(audio[: audio.size // 320 * 320], audio.size // 320)):
                due_s = (number + 1) * 0.02
                comes_s = max(due_s / rate if due_s / rate < slow_s else slow_s, due_s)
                await asyncio.sleep(max(0.0, began + comes_s - loop.time()))
                it.session.hear(frame)
            cut = it.of(ResponseEnded)[0]
            assert (cut.status, cut.reason) == ("interrupted", "barge_in")
            assert [said.text for said in it.of(UserSaid)] == ["Hello there."]

    run_virtual(main())

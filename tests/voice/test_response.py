"""How an answer is made when an engine is late, fails, says nothing, never ends or outruns the ear (DESIGN §5, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from talk import ONE_TO_FORTY, Talk, make_agent, talk

from voice.agent import Agent
from voice.chat import ToolEntry
from voice.errors import EngineFailed
from voice.events import Problem, ResponseEnded, ResponseStarted, ToolEnded, ToolStarted
from voice.interfaces import ModelEvent, Prompt, TextDelta, ToolCall
from voice.options import Limits, SpeechOptions, TurnOptions
from voice.scope import Scope
from voice.session import Session
from voice.testing import (
    Fail,
    Hang,
    Pause,
    PullClient,
    ScriptedModel,
    ToneSynthesiser,
    run_virtual,
    slow_tool,
    speak,
)
from voice.tools import as_tool
from voice.turns import State

APOLOGY_WORDS = len(SpeechOptions().apology.split())
FILLER_WORDS = len(SpeechOptions().filler.split())
LATER = TurnOptions(min_delay_s=0.5, max_delay_s=0.5, speculate=False)
SPEECH_END_S = 2.0


async def _asked(agent: Agent, seconds: float, heard: list[Talk]) -> None:
    async with talk(agent) as it:
        it.client.say(speak(1.0), at_s=SPEECH_END_S - 1.0)
        await it.client.run(seconds)
        assert it.session.state is State.LISTENING
        heard.append(it)


def ask(agent: Agent, seconds: float = 10.0) -> Talk:
    """One question, and the whole conversation after ``seconds``, by which the agent has finished."""
    heard: list[Talk] = []
    run_virtual(_asked(agent, seconds, heard))
    return heard[0]


def spoken(agent: Agent) -> list[str]:
    synthesiser = agent.stages.synthesiser
    assert isinstance(synthesiser, ToneSynthesiser)
    return list(synthesiser.texts)


def words_spoken(it: Talk) -> int:
    return sum(words for _, words in it.words)


# ---------------------------------------------------------------- failing models


@pytest.mark.parametrize("turns", [TurnOptions(), LATER], ids=["guessed", "not guessed"])
def test_a_model_that_fails_before_its_first_word_is_asked_again_in_silence(turns: TurnOptions) -> None:
    model = ScriptedModel([[Fail()], "One two three."])
    it = ask(make_agent(model, turns=turns))
    assert model.opened == 2
    assert it.words == [(1, 3)]
    assert it.of(Problem) == []
    assert it.ended.status == "completed"
    assert it.agent_entries[-1].heard == "One two three."


def test_a_failure_that_can_not_pass_is_not_tried_again() -> None:
    model = ScriptedModel([[Fail(retryable=False)], "One two three."])
    it = ask(make_agent(model, turns=LATER))
    assert model.opened == 1
    assert words_spoken(it) == APOLOGY_WORDS
    assert len(it.of(Problem)) == 1


def test_a_failure_that_can_not_pass_is_taken_to_the_fallback_engine() -> None:
    model, fallback = ScriptedModel([[Fail(retryable=False)]]), ScriptedModel(["Four five."])
    it = ask(make_agent(model, fallback=fallback, turns=LATER))
    assert it.words == [(1, 2)]
    assert it.of(Problem) == []


def test_a_stranger_exception_is_a_failure_of_the_model_like_any_other() -> None:
    class Broken:
        name = "broken"

        async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
            raise ZeroDivisionError("inside an engine")
            yield

    it = ask(make_agent(Broken(), turns=LATER))
    assert words_spoken(it) == APOLOGY_WORDS
    assert "broken failed: ZeroDivisionError" in it.of(Problem)[0].message


def test_both_attempts_failing_end_in_one_short_apology_and_one_problem() -> None:
    model = ScriptedModel([[Fail()]])
    it = ask(make_agent(model, turns=LATER))
    assert model.opened == 2
    assert words_spoken(it) == APOLOGY_WORDS
    assert len(it.of(Problem)) == 1
    assert it.ended.error is not None
    assert it.agent_entries[-1].heard == SpeechOptions().apology


def test_a_guess_whose_model_fails_for_good_is_made_anew_when_the_turn_is_certain() -> None:
    model = ScriptedModel([[Fail()], [Fail()], "One two three."])
    it = ask(make_agent(model))
    assert it.words == [(1, 3)]
    assert len(it.of(ResponseStarted)) == 1


def test_a_model_that_fails_after_its_first_word_is_not_asked_again() -> None:
    model = ScriptedModel([["One ", "two ", "three, ", Fail()], "One two three four."])
    it = ask(make_agent(model, turns=LATER))
    assert model.opened == 1
    assert words_spoken(it) == 3 + APOLOGY_WORDS
    assert it.agent_entries[-1].heard == f"One two three, {SpeechOptions().apology}"


# ---------------------------------------------------------------- late models


def test_a_model_without_a_first_token_in_time_is_hedged_by_the_fallback_engine() -> None:
    model, fallback = ScriptedModel([[Hang()]]), ScriptedModel(["Four five."])
    it = ask(make_agent(model, fallback=fallback, turns=LATER), 15.0)
    assert model.closed_early == 1
    assert it.words[0] == (1, FILLER_WORDS + 2)
    called_s = SPEECH_END_S + 0.5
    first_s, last_s = it.sounds[0][0], it.sounds[-1][0]
    assert first_s == pytest.approx(called_s + SpeechOptions().first_audio_s, abs=0.1)
    assert last_s == pytest.approx(called_s + SpeechOptions().first_token_s, abs=0.3)


def test_a_model_that_ignores_its_cancel_does_not_delay_the_fallback_engine() -> None:
    class Stubborn:
        name = "stubborn"

        async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(3)
            yield TextDelta("Never heard.")

    speech = SpeechOptions(filler="")
    quick = ask(make_agent([[Hang()]], fallback=ScriptedModel(["Four five."]), turns=LATER, speech=speech))
    slow = ask(make_agent(Stubborn(), fallback=ScriptedModel(["Four five."]), turns=LATER, speech=speech))
    assert slow.words == quick.words == [(1, 2)]
    assert slow.sounds == quick.sounds


def test_a_late_answer_is_bridged_by_a_filler_once_and_the_history_has_both() -> None:
    model = ScriptedModel(["One two three."], first_token_s=3.5)
    agent = make_agent(model, turns=LATER)
    it = ask(agent)
    committed_s = SPEECH_END_S + 0.5
    assert it.sounds[0][0] == pytest.approx(committed_s + SpeechOptions().first_audio_s, abs=0.1)
    assert it.words == [(1, FILLER_WORDS + 3)]
    assert it.agent_entries[-1].heard == f"{SpeechOptions().filler} One two three."
    assert spoken(agent).count(SpeechOptions().filler) == 1


def test_an_answer_in_time_has_no_filler() -> None:
    it = ask(make_agent(ScriptedModel(["One two three."], first_token_s=2.0), turns=LATER))
    assert it.words == [(1, 3)]


def test_words_that_are_with_the_synthesiser_already_need_no_filler() -> None:
    agent = make_agent(["One two three."], synthesiser=ToneSynthesiser(first_byte_s=3.0), turns=LATER)
    assert ask(agent).words == [(1, 3)]


def test_a_clause_is_spoken_when_the_model_falls_quiet_after_it() -> None:
    replies = [["Well let me think ", Pause(1.5), "about it."]]
    it = ask(make_agent(replies, turns=LATER))
    token_s = SPEECH_END_S + 0.5 + 0.1
    assert it.sounds[0][0] == pytest.approx(token_s + SpeechOptions().release_s, abs=0.1)
    assert it.words == [(1, 6)]
    assert it.agent_entries[-1].heard == "Well let me think about it."


def test_a_gap_between_tokens_ends_the_attempt_and_what_was_said_stays() -> None:
    replies = [["Well let me think ", Hang()]]
    it = ask(make_agent(replies, turns=LATER))
    assert it.words == [(1, 4 + APOLOGY_WORDS)]
    assert "between two tokens" in it.of(Problem)[0].message
    assert it.agent_entries[-1].heard == f"Well let me think {SpeechOptions().apology}"


def test_an_answer_that_is_not_over_at_its_hard_end_is_cut_and_the_session_listens_again() -> None:
    model = ScriptedModel([" ".join(f"word{n}." for n in range(400))], token_s=0.5)
    it = ask(make_agent(model, speech=SpeechOptions(timeout_s=5.0)), 15.0)
    assert it.ended.status == "interrupted"
    assert model.closed_early == 1
    assert it.sounds[-1][1] < SPEECH_END_S + 6.0


# ---------------------------------------------------------------- synthesisers


def test_a_synthesiser_that_fails_before_any_audio_is_tried_once_more() -> None:
    class Once(ToneSynthesiser):
        async def synthesise(
            self, text: str, scope: Scope, *, voice: str | None = None
        ) -> AsyncIterator[Any]:
            if not self.texts:
                self.texts.append(text)
                raise EngineFailed("the first call fails")
            async for piece in super().synthesise(text, scope, voice=voice):
                yield piece

    agent = make_agent(["One two three."], synthesiser=Once())
    it = ask(agent)
    assert it.words == [(1, 3)]
    assert spoken(agent) == ["One two three."] * 2
    assert it.of(Problem) == []


def test_a_synthesiser_that_fails_in_mid_sentence_loses_that_sentence_only_and_repeats_nothing() -> None:
    reply = "One two three four five. Six seven eight nine ten."
    agent = make_agent([reply], synthesiser=ToneSynthesiser(fail_at=[0], chunk_s=0.4))
    it = ask(agent)
    assert it.words == [(1, 2 + 5)]
    assert len(it.of(Problem)) == 1
    assert len(spoken(agent)) == 2


def test_a_synthesiser_that_stops_in_mid_sentence_is_given_up_and_the_answer_goes_on() -> None:
    reply = "One two three four five. Six seven eight nine ten."
    agent = make_agent([reply], synthesiser=ToneSynthesiser(hang_at=[0], chunk_s=0.4))
    it = ask(agent, 15.0)
    assert it.words == [(1, 2 + 5)]
    assert "made no audio" in it.of(Problem)[0].message


# ---------------------------------------------------------------- tools


def test_a_tool_runs_between_two_rounds_of_the_model_and_the_history_pairs_it() -> None:
    tool = slow_tool(0.5, "rain", name="weather")
    model = ScriptedModel([["Let me look. ", ToolCall("", "weather", "{}")], "It rains."])
    it = ask(make_agent(model, tools=[as_tool(tool)]))
    assert tool.runs == 1
    assert it.words == [(1, 5)]
    assert [type(e).__name__ for e in it.session.chat.entries] == [
        "UserEntry",
        "AgentEntry",
        "ToolEntry",
        "AgentEntry",
    ]
    assert [len(it.of(kind)) for kind in (ToolStarted, ToolEnded, ResponseStarted, ResponseEnded)] == [1] * 4
    last = model.prompts[-1].messages
    assert [m.role for m in last[-2:]] == ["assistant", "tool"]
    assert last[-1].text == "rain"


def test_tools_of_one_round_run_side_by_side() -> None:
    tools = [slow_tool(1.0, name="one"), slow_tool(1.0, name="two")]
    calls = [ToolCall("", "one", "{}"), ToolCall("", "two", "{}")]
    it = ask(make_agent([calls, "Done now."], tools=[as_tool(t) for t in tools]))
    assert tools[0].times == tools[1].times
    assert it.words == [(1, 2)]


def test_a_model_that_calls_tools_for_ever_is_stopped_with_an_apology() -> None:
    tool = slow_tool(0.01, name="again")
    speech = SpeechOptions(max_tool_rounds=3)
    model = ScriptedModel([[ToolCall("", "again", "{}")]])
    it = ask(make_agent(model, tools=[as_tool(tool)], speech=speech))
    assert (tool.runs, model.opened) == (3, 3)
    assert it.words == [(1, APOLOGY_WORDS)]
    assert "again and again" in it.of(Problem)[0].message


def test_a_round_has_at_most_sixteen_calls() -> None:
    tool = slow_tool(0.01, name="many")
    it = ask(make_agent([[ToolCall("", "many", "{}")] * 40, "Done."], tools=[as_tool(tool)]))
    assert tool.runs == 16
    assert it.words == [(1, 1)]


def test_calls_with_the_ids_of_earlier_calls_get_their_own() -> None:
    tool = slow_tool(0.01, name="look")
    call = ToolCall("call_0", "look", "{}")
    model = ScriptedModel([[call, call], [call], "Done."])
    it = ask(make_agent(model, tools=[as_tool(tool)]))
    ids = [e.call.call_id for e in it.session.chat.entries if isinstance(e, ToolEntry)]
    assert len(ids) == len(set(ids)) == 3
    assert it.words == [(1, 1)]


# ---------------------------------------------------------------- bounds


def test_an_answer_that_runs_away_is_ended() -> None:
    model = ScriptedModel([["x" * 99 + ". "] * 1000], token_s=0.0)
    agent = make_agent(model, speech=SpeechOptions(timeout_s=600.0))
    it = ask(agent, 200.0)
    assert it.ended.status == "completed"
    assert 19_000 <= len(it.ended.generated) <= 20_000
    assert model.closed_early == 1


async def _watched(agent: Agent, seconds: float, look: Any) -> None:
    async with talk(agent, PullClient(record_s=20.0)) as it:
        it.client.say(speak(1.0), at_s=1.0)
        run = asyncio.create_task(it.client.run(seconds))
        while not run.done():
            look(it.session)
            await asyncio.sleep(0.05)


def test_the_synthesiser_is_held_back_when_ten_seconds_are_queued() -> None:
    queued: list[float] = []

    def look(session: Session) -> None:
        if session.playout.track is not None:
            queued.append(session.playout.track.queued_s)

    reply = " ".join(f"Word{n}, word, word, word, word." for n in range(40))
    synthesiser = ToneSynthesiser(rtf=0.01, chunk_s=0.1)
    agent = make_agent(ScriptedModel([reply], token_s=0.0), synthesiser=synthesiser)
    run_virtual(_watched(agent, 50.0, look))
    assert 9.9 <= max(queued) <= Limits().playout_s + 0.1 + 1e-6
    assert synthesiser.opened == synthesiser.finished >= 40


def test_the_model_is_held_back_when_the_synthesiser_is_and_that_is_no_stall() -> None:
    sentence = "Word, word, word, word, word, word, word, word, word, word. "
    model = ScriptedModel([[sentence] * 40], token_s=0.0)
    synthesiser = ToneSynthesiser(rtf=0.01)
    ahead: list[int] = []
    problems: list[Problem] = []

    def look(session: Session) -> None:
        # all that was written less all that the synthesiser was given; a sentence is with the splitter, one in hand
        written = sum(len(e.generated) for e in session.chat.entries if hasattr(e, "generated"))
        ahead.append(written - sum(len(t) + 1 for t in synthesiser.texts))

    async def main() -> None:
        async with talk(make_agent(model, synthesiser=synthesiser), PullClient(record_s=20.0)) as it:
            it.client.say(speak(1.0), at_s=1.0)
            run = asyncio.create_task(it.client.run(95.0))
            while not run.done():
                look(it.session)
                await asyncio.sleep(0.1)
            problems.extend(it.of(Problem))
            assert it.ended.status == "completed"
            assert it.ended.heard == sentence * 40

    agent_limit = Limits().text_chars + 3 * len(sentence)
    run_virtual(main())
    assert 300 < max(ahead) <= agent_limit
    assert problems == []
    assert model.finished == 1


def test_the_words_of_the_whole_answer_are_heard_once_and_in_order() -> None:
    agent = make_agent([ONE_TO_FORTY])
    it = ask(agent, 15.0)
    assert it.words == [(1, 40)]
    assert " ".join(spoken(agent)).split() == ONE_TO_FORTY.split()
    assert it.ended.heard == it.ended.generated == ONE_TO_FORTY

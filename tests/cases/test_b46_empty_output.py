"""B46: the model returns nothing that can be spoken; the turn closes without a sound and no timer is armed.

The kind of fault: a turn's end hangs on audio that never comes. It is made impossible in ``voice/response.py``:
``Response._generate`` counts what is meant for the ear, not tokens, and ends every answer that has none with a fixed
phrase after one retry; in ``voice/playout.py`` a track ends when its text ends, with or without audio; and in
``voice/turns.py`` the idle timer follows from the state, so each return to listening arms it.
"""

from __future__ import annotations

from typing import Any

import pytest
from talk import Talk, make_agent, talk

from voice.events import Idle, Problem, ResponseEnded
from voice.interfaces import ToolCall
from voice.options import SpeechOptions, TurnOptions
from voice.testing import ScriptedModel, ToneSynthesiser, run_virtual, slow_tool, speak
from voice.tools import as_tool
from voice.turns import State

PHRASE = SpeechOptions().empty
NOTHING: dict[str, list[Any]] = {
    "no token": [],
    "spaces": ["  ", " \n"],
    "dots": ["..."],
    "an emoji": ["🙂"],
    "a marker": ["**", "**"],
    "a reasoning tag": ["<think>", "The user said hello. ", "I say nothing.", "</think>"],
}


def three_turns(model: ScriptedModel, voice: ToneSynthesiser, turns: TurnOptions, **agent: Any) -> Talk:
    async def main() -> Talk:
        async with talk(make_agent(model, synthesiser=voice, turns=turns, **agent)) as it:
            for turn in range(1, 4):
                it.client.say(speak(0.6))
                await it.client.run(7.0)
                assert it.session.state is State.LISTENING
                assert len(it.of(Idle)) == turn, "the idle timer was armed"
                assert len(it.of(ResponseEnded)) == turn
            return it

    return run_virtual(main())


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("nothing", NOTHING)
def test_nothing_to_say_is_asked_once_more_and_then_put_in_a_phrase(nothing: str, speculate: bool) -> None:
    model, voice = ScriptedModel([NOTHING[nothing]]), ToneSynthesiser()
    it = three_turns(model, voice, TurnOptions(idle_s=1.5, speculate=speculate))
    assert list(voice.texts) == [PHRASE] * 3, "no call of the synthesiser for what can't be spoken"
    assert it.words == [(turn, len(PHRASE.split())) for turn in (1, 2, 3)]
    if not speculate:
        assert model.opened == 6, "one retry each"
    assert all(entry.heard.endswith(PHRASE) for entry in it.agent_entries)


def test_an_empty_answer_that_is_better_the_second_time_is_heard_without_the_phrase() -> None:
    model, voice = (
        ScriptedModel([[], "Here I am.", "...", "Here I am.", [" "], "Here I am."]),
        ToneSynthesiser(),
    )
    it = three_turns(model, voice, TurnOptions(idle_s=1.5))
    assert list(voice.texts) == ["Here I am."] * 3
    assert it.of(Problem) == []


def test_a_reply_that_is_only_a_tool_call_is_normal() -> None:
    tool = slow_tool(0.1, "done", name="act")
    call = [ToolCall("", "act", "{}")]
    model, voice = ScriptedModel([call, "Done now."] * 3), ToneSynthesiser()
    it = three_turns(model, voice, TurnOptions(idle_s=1.5), tools=[as_tool(tool)])
    assert tool.runs == 3
    assert list(voice.texts) == ["Done now."] * 3
    assert it.of(Problem) == []
    assert [e.error for e in it.of(ResponseEnded)] == [None] * 3

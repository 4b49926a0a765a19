"""B44: the model's stream stalls before a sentence end; nothing is spoken and the caller hears silence.

The kind of fault: waiting without a bound for the next piece of a stream. It is made impossible in
``voice/response.py``: ``Response._attempt`` is the only place that waits for a model, and every wait there has an
end (``first_token_s``, ``release_s`` for the clause in hand, ``gap_s``). What stalls is left behind, not waited for.
"""

from __future__ import annotations

import pytest
from talk import Talk, longest_silence_s, make_agent, talk

from voice.options import SpeechOptions, TurnOptions
from voice.testing import Hang, Pause, ScriptedModel, run_virtual, speak
from voice.turns import State

START = ["Sorry, ", "did ", "you ", "mean "]
MOST_SILENCE_S = 3.0
SPEECH_END_S = 2.0


def stalled(model: ScriptedModel, seconds: float, *, hello_at_s: float | None = None) -> Talk:
    async def main() -> Talk:
        async with talk(make_agent(model, turns=TurnOptions(idle_s=None))) as it:
            it.client.say(speak(1.0), at_s=SPEECH_END_S - 1.0)
            if hello_at_s is not None:
                it.client.say(speak(0.5), at_s=hello_at_s)
            await it.client.run(seconds)
            assert it.session.state is State.LISTENING
            assert model.running == 0
            return it

    return run_virtual(main())


def test_the_clause_in_hand_is_spoken_and_an_apology_follows_when_the_stream_stalls() -> None:
    it = stalled(ScriptedModel([[*START, Pause(9.0), "Tuesday?"]]), 12.0)
    apology = SpeechOptions().apology
    assert it.agent_entries[-1].heard == "".join(START) + apology
    assert it.words == [(1, len(START) + len(apology.split()))]
    assert longest_silence_s(it, SPEECH_END_S, it.sounds[-1][1]) <= MOST_SILENCE_S


def test_a_token_every_second_and_a_half_is_spoken_as_it_comes() -> None:
    slow = [step for token in [*START, "Tuesday ", "or ", "Wednesday?"] for step in (token, Pause(1.5))]
    it = stalled(ScriptedModel([slow]), 20.0)
    assert it.words == [(1, 7)]
    assert it.agent_entries[-1].heard == "Sorry, did you mean Tuesday or Wednesday?"
    assert longest_silence_s(it, SPEECH_END_S, it.sounds[-1][1]) <= MOST_SILENCE_S
    assert it.ended.error is None


@pytest.mark.parametrize("hello_at_s", [4.2, 5.0, 12.0])
def test_a_hello_during_or_after_the_stall_is_answered_and_does_not_stall_again(hello_at_s: float) -> None:
    model = ScriptedModel([[*START, Hang()], "Yes, I am here."])
    it = stalled(model, 18.0, hello_at_s=hello_at_s)
    assert it.agent_entries[-1].heard == "Yes, I am here."
    assert it.words[-1] == (2, 4)
    answered_s = next(start for start, _ in it.sounds if start > hello_at_s + 0.5)
    assert answered_s - (hello_at_s + 0.5) <= 1.5
    assert model.closed_early == 1, "the stalled stream was closed"


def test_a_stream_that_never_starts_is_bridged_and_given_up() -> None:
    model = ScriptedModel([[Hang()]])
    it = stalled(model, 20.0)
    assert it.words == [(1, len(f"{SpeechOptions().filler} {SpeechOptions().apology}".split()))]

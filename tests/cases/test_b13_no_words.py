"""B13: a sound that has no words ends the turn, and timers are never armed again."""

from __future__ import annotations

import pytest
from conversation import Conversation

from voice.events import Idle, ResponseEnded, ResponseStarted, UserSaid
from voice.options import TurnOptions
from voice.testing import ScriptedModel, ScriptedRecogniser, run_virtual
from voice.turns import State

IDLE_S = 6.0


def coughed(texts: dict[int, str], delay_s: float = 0.05) -> Conversation:
    return Conversation(
        recogniser=ScriptedRecogniser(texts, delay_s=delay_s),
        model=ScriptedModel(["Okay."] * 3),
        turns=TurnOptions(idle_s=IDLE_S),
    )


def test_a_cough_asks_the_model_nothing_and_the_idle_timer_runs_again() -> None:
    async def main() -> None:
        async with coughed({150: ""}) as it:
            it.say(1.0, 0.3, 150)
            await it.to(3.0)
            assert it.session.state is State.LISTENING
            assert [said.text for said in it.of(UserSaid)] == [
                ""
            ]  # the owner is told that there were no words
            closed_s = it.times(UserSaid)[0]
            await it.to(closed_s + IDLE_S + 0.2)
            assert it.times(Idle) == [pytest.approx(closed_s + IDLE_S, abs=0.05)]
            assert it.model.opened == 0 and it.user_texts == [] and not it.of(ResponseStarted)

    run_virtual(main())


def test_words_that_come_late_are_still_the_turn_and_are_answered() -> None:
    async def main() -> None:
        async with coughed({150: "Hello there."}, delay_s=2.5) as it:
            it.say(1.0, 0.5, 150)
            await it.to(8.0)
            assert it.user_texts == ["Hello there."]
            assert [ended.status for ended in it.of(ResponseEnded)] == ["completed"]
            assert it.session.state is State.LISTENING

    run_virtual(main())


def test_a_turn_after_an_empty_one_is_answered() -> None:
    async def main() -> None:
        async with coughed({150: "", 200: "Are you there?"}) as it:
            it.say(1.0, 0.3, 150)
            it.say(3.0, 0.8, 200)
            await it.to(6.0)
            assert it.user_texts == ["Are you there?"]
            assert len(it.of(ResponseEnded)) == 1

    run_virtual(main())

"""B19: "mm-hm" or "right" while the agent talks kills the reply and is answered as if it were a question."""

from __future__ import annotations

from itertools import pairwise

import pytest
from conversation import KINDS, Conversation, Kind, words

from voice.events import ResponseEnded, SpeechStarted
from voice.options import TurnOptions
from voice.testing import ScriptedModel, ScriptedRecogniser, run_virtual

NODS = {150: "Mm-hm.", 190: "Okay.", 230: "Yeah, right.", 270: "I see."}
STOP_HZ = 310
TEXTS = {350: "Tell me.", **NODS, STOP_HZ: "Stop."}
REPLY = words(60, ends=range(6, 61, 6))
"""Twelve seconds."""
PATIENT = TurnOptions(hold_s=1.0)
"""A client that can only flush needs a longer wait, to tell a nod from a word."""


def listener(kind: Kind, *replies: str, turns: TurnOptions = PATIENT) -> Conversation:
    return Conversation(
        kind, recogniser=ScriptedRecogniser(TEXTS), model=ScriptedModel(list(replies)), turns=turns
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_reply_survives_nods_and_stops_at_stop(kind: Kind) -> None:
    async def main() -> None:
        async with listener(kind, REPLY, "Stopped.") as it:
            it.say(0.5, 0.6, 350)
            begun_s = 2.0
            for n, hz in enumerate(NODS):
                it.say(begun_s + 2.0 * (n + 1), 0.45, hz)
            await it.to(begun_s + 9.9)
            assert not it.of(ResponseEnded), "the reply goes on"
            assert len(it.of(SpeechStarted)) == 1, "a nod is no turn"
            it.say(begun_s + 10.0, 0.4, STOP_HZ)
            await it.to(begun_s + 13.0)
            first = it.of(ResponseEnded)[0]
            assert first.status == "interrupted" and first.reason == "barge_in"
            silent_s = it.sound_of(turn=1)[-1][1]
            assert silent_s <= begun_s + 10.0 + 0.4 + 0.3
            assert it.user_texts == ["Tell me.", "Stop."], "the nods did not add up"
            # nothing was lost or repeated: what was heard is a beginning of the reply, word by word
            heard = first.heard.split()
            assert heard == REPLY.split()[: len(heard)]
            assert sum(run.words for run in it.heard if run.turn == 1) == pytest.approx(len(heard), abs=1)

    run_virtual(main())


def test_the_dip_of_a_nod_is_short_and_the_reply_goes_on_where_it_was() -> None:
    async def main() -> None:
        async with listener("pull", words(20, ends=[10, 20]), "Never.") as it:
            it.say(0.5, 0.6, 350)
            it.say(4.0, 0.45, 150)
            await it.to(9.0)
            assert [e.status for e in it.of(ResponseEnded)] == ["completed"]
            assert sum(run.words for run in it.heard) == 20
            pieces = it.sound_of(turn=1)
            dips = [b - a for (_, a), (b, _) in pairwise(pieces)]
            assert max(dips) <= 0.45 + 0.12 + 0.2  # the nod, its pause, its words

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_okay_is_an_answer_when_the_agent_has_just_asked(kind: Kind) -> None:
    async def main() -> None:
        async with listener(kind, "Shall I book it?", "It is booked.") as it:
            it.say(0.5, 0.6, 350)
            await it.until(ResponseEnded)
            it.say(it.client.now_s + 0.3, 0.45, 190)
            await it.until(ResponseEnded, 2)
            assert it.user_texts == ["Tell me.", "Okay."]
            assert it.of(ResponseEnded)[1].heard == "It is booked."

    run_virtual(main())


def test_okay_over_the_last_words_of_a_question_is_an_answer_too() -> None:
    async def main() -> None:
        async with listener("pull", "Your table is ready now. Shall I book it?", "It is booked.") as it:
            it.say(0.5, 0.6, 350)
            await it.to(3.4)
            assert not it.of(ResponseEnded)
            it.say(it.client.now_s, 0.45, 190)
            await it.to(8.0)
            assert it.user_texts == ["Tell me.", "Okay."]

    run_virtual(main())


def test_a_nod_that_outlasts_a_statement_is_no_turn() -> None:
    async def main() -> None:
        async with listener("pull", words(10, ends=[10]), "Never.") as it:
            it.say(0.5, 0.6, 350)
            await it.to(3.3)
            assert not it.of(ResponseEnded)
            it.say(it.client.now_s, 0.45, 150)
            await it.to(8.0)
            assert len(it.of(ResponseEnded)) == 1
            assert it.user_texts == ["Tell me."]

    run_virtual(main())

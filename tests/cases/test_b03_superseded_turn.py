"""B03: the user goes on after a pause and the agent still answers the half sentence.

The kind of fault: work for a turn that is no longer the newest goes on and reaches the ear. It is made impossible in
``voice/turns.py``: speech before the first audible sample takes the answer's turn away in the same call
(``_speech_began``: ``Reopen`` or ``Interrupt``), and the session cancels the scope that everything of it hangs from
before the call returns. What comes late belongs to a track that is not the current one and is never read.
"""

from __future__ import annotations

import pytest
from conversation import KINDS, Conversation, Kind

from voice.events import ResponseEnded, SpeechStarted, UserSaid
from voice.interfaces import Prompt
from voice.options import TurnOptions
from voice.testing import ScriptedModel, ToneSynthesiser, run_virtual

TEXTS = {220: "I want to go to", 250: "Paris tomorrow."}
HALF_S, REST_S = 1.0, 1.0


def reply(prompt: Prompt) -> str:
    whole = "Paris" in prompt.messages[-1].text
    return "Paris it is then." if whole else "Where do you want to go to exactly?"


def options(speculate: bool) -> TurnOptions:
    return TurnOptions(min_delay_s=0.8, max_delay_s=0.8, speculate=speculate)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("speculate", "first_token_s", "first_byte_s"),
    [(False, 0.9, 0.0), (False, 0.3, 0.9), (True, 1.3, 0.0), (True, 0.3, 1.3)],
)
def test_a_user_who_goes_on_before_any_sound_gets_one_answer_to_the_whole(
    kind: Kind, speculate: bool, first_token_s: float, first_byte_s: float
) -> None:
    async def main() -> None:
        model = ScriptedModel(reply, first_token_s=first_token_s)
        synthesiser = ToneSynthesiser(first_byte_s=first_byte_s)
        talk = Conversation(kind, texts=TEXTS, model=model, synthesiser=synthesiser, turns=options(speculate))
        async with talk:
            talk.say(1.0, HALF_S)
            resume_s = 1.0 + HALF_S + 1.3
            talk.say(resume_s, REST_S, 250)
            await talk.to(resume_s)
            assert model.opened == 1
            edge_s = await talk.until(SpeechStarted, 2)
            assert edge_s <= resume_s + 0.15
            await talk.to(round(edge_s + 0.02, 2))
            assert model.running == synthesiser.running == 0  # cancelled the moment speech resumed
            await talk.to(12.0)

            assert [run.turn for run in talk.heard] == [2]
            assert talk.heard[0].words == 4
            assert [m.text for m in model.prompts[-1].messages if m.role == "user"] == [
                "I want to go to Paris tomorrow."
            ]
            ended = talk.of(ResponseEnded)
            assert [(e.status, e.heard) for e in ended] == [
                ("cancelled", ""),
                ("completed", "Paris it is then."),
            ]

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_who_goes_on_before_the_turn_is_certain_stays_in_one_item(kind: Kind) -> None:
    async def main() -> None:
        model = ScriptedModel(reply, first_token_s=0.05)
        talk = Conversation(kind, texts=TEXTS, model=model, turns=options(True))
        async with talk:
            talk.say(1.0, HALF_S)
            talk.say(1.0 + HALF_S + 0.6, REST_S, 250)
            await talk.to(8.0)

            assert talk.heard == [(0, 1, 4)]
            assert [e.text for e in talk.of(UserSaid)] == ["I want to go to Paris tomorrow."]
            assert talk.user_texts == ["I want to go to Paris tomorrow."]
            assert len({e.item_id for e in talk.of(SpeechStarted)}) == 1
            assert [e.heard for e in talk.of(ResponseEnded)] == ["Paris it is then."]
            assert (talk.session.counters.guesses_dropped, talk.session.counters.guesses_kept) == (1, 1)

    run_virtual(main())

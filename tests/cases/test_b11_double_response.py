"""B11: one utterance arrives in two parts, and two complete replies are played one after the other."""

from __future__ import annotations

import pytest
from conversation import KINDS, Conversation, Kind, words

from voice.events import ResponseEnded
from voice.testing import ScriptedModel, ScriptedRecogniser, run_virtual

PARTS = {150: "I bought a kettle", 200: "and it leaks."}
REPLY = words(6, ends=[6])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap_s", [0.05, 0.3, 0.9, 1.5])
@pytest.mark.parametrize("first_token_s", [0.05, 0.6, 2.0])
def test_one_reply_is_heard_and_it_is_made_from_both_parts(
    kind: Kind, gap_s: float, first_token_s: float
) -> None:
    async def main() -> None:
        model = ScriptedModel([REPLY] * 6, first_token_s=first_token_s)
        async with Conversation(kind, recogniser=ScriptedRecogniser(PARTS), model=model) as it:
            it.say(1.0, 1.0, 150)
            it.say(2.0 + gap_s, 1.0, 200)
            await it.to(2.0 + gap_s + 8.0)
            whole = [e for e in it.of(ResponseEnded) if e.status == "completed"]
            assert len(whole) == 1
            # a reply to the first part alone is at most begun, when the pause was longer than the turn's end takes
            cut = [e for e in it.of(ResponseEnded) if e.status == "interrupted"]
            assert len(cut) <= (gap_s > 0.6 and first_token_s < 1.0)
            assert " ".join(it.user_texts) == "I bought a kettle and it leaks."
            assert len(it.user_texts) <= 2
            shown = " ".join(m.text for m in model.prompts[-1].messages if m.role == "user")
            assert "kettle" in shown and "leaks" in shown
            assert model.running == 0
            complete = [run for run in it.heard if run.words == 6]
            assert len(complete) == 1

    run_virtual(main())

"""B10: the turn ends between the digits of a dictated number, and the agent talks over the rest."""

from __future__ import annotations

import pytest
from conversation import KINDS, Conversation, Kind

from voice.events import UserSaid
from voice.options import TurnOptions
from voice.testing import ScriptedModel, ScriptedRecogniser, run_virtual, tone_runs

NUMBER = {150: "555,", 200: "01", 250: "23"}
ADDRESS = {150: "My address is", 200: "12 Hill Road."}
CAP_S = TurnOptions().max_delay_s


def dictation(kind: Kind, texts: dict[int, str], gap_s: float, asked: str | None = None) -> Conversation:
    """The stretches of ``texts``, 0.6 s each, with pauses between; answered with a word."""
    it = Conversation(
        kind, recogniser=ScriptedRecogniser(texts), model=ScriptedModel(["Thanks."] * 5), greeting=asked
    )
    at_s = 4.0
    for hz in texts:
        it.say(at_s, 0.6, hz)
        at_s += 0.6 + gap_s
    return it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap_s", [0.5, 0.8])
def test_a_number_with_pauses_between_its_digits_is_one_turn(kind: Kind, gap_s: float) -> None:
    async def main() -> None:
        async with dictation(kind, NUMBER, gap_s, "What is your account number?") as it:
            end_s = 4.0 + 3 * 0.6 + 2 * gap_s
            await it.to(end_s + CAP_S + 1.0)
            assert [said.text for said in it.of(UserSaid)] == ["555, 01 23"]
            assert it.user_texts == ["555, 01 23"]
            answered = [
                run.start_s for run in tone_runs(it.client.heard, it.client.rate) if run.start_s > 3.0
            ]
            assert answered and answered[0] >= end_s + it.agent.turns.min_delay_s
            assert answered[0] <= end_s + CAP_S + 0.5

    run_virtual(main())


def test_an_address_that_has_only_begun_is_waited_for() -> None:
    async def main() -> None:
        async with dictation("pull", ADDRESS, 1.0, "Where shall I send it?") as it:
            await it.to(10.0)
            assert it.user_texts == ["My address is 12 Hill Road."]

    run_virtual(main())


@pytest.mark.parametrize(
    "open_end", ["It's 555", "I need a table,", "I'd like to, um", "I want to go to", "So"]
)
def test_words_that_go_on_are_waited_for_longer_than_words_that_are_complete_but_never_above_the_cap(
    open_end: str,
) -> None:
    async def wait_s(text: str) -> float:
        async with Conversation(texts={150: text}, greeting="How can I help?") as it:
            it.say(3.0, 1.0, 150)
            return await it.until(UserSaid) - 4.0

    open_s, done_s = run_virtual(wait_s(open_end)), run_virtual(wait_s("What time do you close?"))
    assert done_s == pytest.approx(TurnOptions().min_delay_s, abs=0.1)
    assert done_s + 0.4 < open_s <= CAP_S + 0.05

"""B05: after an interruption the history holds words the user never heard.

The kind of fault: what was generated is taken for what was said. It is made impossible in ``voice/playout.py`` and
``Response.conclude``: the history's text is looked up from the ear's position in the track (``Track.written_at``), the
position is never more than what was sent nor than what time allowed, and prompts are made of ``AgentEntry.heard``.
"""

from __future__ import annotations

import re

import pytest
from conversation import KINDS, Conversation, Kind

from voice.events import AudioStarted, ResponseEnded, ResponseStarted, SpeechStarted
from voice.options import TurnOptions
from voice.testing import PushClient, ScriptedModel, ToneSynthesiser, run_virtual

REPLY = " ".join(f"w{number}" for number in range(11, 41))
"""30 words of one length: without word times, the synthesiser's pace is all there is to go by."""
TEXTS = {220: "Count.", 250: "Stop it."}
AT_THE_EDGE = TurnOptions(hold_s=0.0)


def count_of(text: str) -> int:
    found = re.findall(r"w(\d+)", text)
    assert [int(n) for n in found] == list(range(11, len(found) + 11)), (
        f"not a beginning of the reply: {text!r}"
    )
    return len(found)


def in_sentences(of: int) -> str:
    """The reply in sentences of ``of`` words."""
    return " ".join(f"w{n}." if (n - 10) % of == 0 else f"w{n}" for n in range(11, 41))


def counting(kind: Kind, **options: object) -> Conversation:
    options = {"model": ScriptedModel([REPLY, "All right then."]), "turns": AT_THE_EDGE, **options}
    return Conversation(kind, texts=TEXTS, **options)  # type: ignore[arg-type]


def last_prompt_said(talk: Conversation) -> list[str]:
    return [m.text for m in talk.model.prompts[-1].messages if m.role == "assistant"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rtf", [0.05, 0.6, 2.0])
def test_the_history_ends_within_a_word_of_what_was_heard(kind: Kind, rtf: float) -> None:
    async def main() -> None:
        # where the audio is being made as it is heard, a first sentence tells the voice's pace
        model = ScriptedModel([REPLY if rtf < 0.5 else in_sentences(of=5), "All right then."])
        talk = counting(kind, model=model, synthesiser=ToneSynthesiser(rtf=rtf))
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            talk.say(round(first_s + 2.0 - 0.08, 2), 1.0, 250)  # the edge comes 80 ms after the voice
            await talk.until(SpeechStarted, 2)
            (entry,) = talk.agent_entries
            heard = talk.heard[0].words
            if rtf < 1.0:
                assert abs(heard - 10) <= 1
            assert abs(count_of(entry.heard) - heard) <= 1
            assert entry.interrupted
            assert entry.generated.startswith(entry.heard)
            await talk.until(ResponseEnded, 2)
            assert last_prompt_said(talk) == [entry.heard]
            assert talk.of(ResponseEnded)[0].heard == entry.heard
            assert talk.of(ResponseEnded)[0].status == "interrupted"

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_sentence_that_is_still_being_made_is_cut_where_its_word_times_say(kind: Kind) -> None:
    async def main() -> None:
        talk = counting(kind, synthesiser=ToneSynthesiser(rtf=0.9, word_times=True))
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            await talk.to(round(first_s + 2.0, 2))
            talk.session.interrupt()
            await talk.to(round(talk.client.now_s + 0.2, 2))
            assert abs(count_of(talk.agent_entries[0].heard) - talk.heard[0].words) <= 1

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", range(12))
def test_the_history_is_right_whenever_the_answer_is_cut(kind: Kind, moment: int) -> None:
    async def main() -> None:
        model = ScriptedModel(["w11 w12 w13 w14. w15 w16, w17 w18 w19 w20! w21 w22 w23 w24 w25 w26."])
        synthesiser = ToneSynthesiser(lead_s=0.3, word_times=moment % 2 == 0)
        talk = counting(kind, model=model, synthesiser=synthesiser)
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            await talk.to(round(first_s + 0.14 + 0.3 * moment, 2))
            talk.session.interrupt()
            await talk.to(round(talk.client.now_s + 0.2, 2))
            heard = sum(run.words for run in talk.heard)
            assert abs(count_of(talk.agent_entries[0].heard) - heard) <= 1

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_cut_before_its_first_frame_leaves_no_words(kind: Kind) -> None:
    async def main() -> None:
        talk = counting(kind, synthesiser=ToneSynthesiser(first_byte_s=1.5))
        async with talk:
            talk.say(1.0, 1.0)
            await talk.until(ResponseStarted)
            await talk.to(round(talk.client.now_s + 0.5, 2))
            talk.session.interrupt()
            assert [e.heard for e in talk.agent_entries] == [""]
            assert talk.of(ResponseEnded)[0].status == "cancelled"
            talk.say(5.0, 1.0)
            await talk.until(ResponseEnded, 2)
            assert last_prompt_said(talk) == []
            assert [run.turn for run in talk.heard] == [2]

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_cut_in_its_last_frame_was_heard_but_for_a_word(kind: Kind) -> None:
    async def main() -> None:
        talk = counting(kind)
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            await talk.to(round(first_s + 30 * 0.2 - 0.02, 2))
            talk.session.interrupt()
            assert count_of(talk.agent_entries[0].heard) in (29, 30)

    run_virtual(main())


class Boaster(PushClient):
    """A client that says it has played a minute of every answer."""

    def _tick(self) -> None:
        assert self._session is not None
        if self.sent:
            self._session.playout.report(self.sent[-1].response_id, 60 * self.rate)


@pytest.mark.parametrize("ahead_s", [0.4, 2.0])
def test_a_reported_position_beyond_what_can_have_been_played_is_not_believed(ahead_s: float) -> None:
    async def main() -> None:
        talk = counting("push", client=Boaster(reports_position=True, ahead_s=ahead_s, burst_s=ahead_s))
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            await talk.to(round(first_s + 2.0, 2))
            talk.session.interrupt()
            assert abs(count_of(talk.agent_entries[0].heard) - 10) <= 1
            await talk.to(10.0)

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_clients_truncate_corrects_the_history_within_what_was_played(kind: Kind) -> None:
    async def main() -> None:
        talk = counting(kind)
        async with talk:
            talk.say(1.0, 1.0)
            first_s = await talk.until(AudioStarted)
            await talk.to(round(first_s + 2.0, 2))
            item = talk.agent_entries[0].item_id
            talk.session.truncate(item, 1.0)
            assert abs(count_of(talk.agent_entries[0].heard) - 5) <= 1
            talk.session.truncate(item, 500.0)
            assert abs(count_of(talk.agent_entries[0].heard) - 10) <= 1
            talk.session.truncate(item, -3.0)
            assert talk.agent_entries[0].heard == ""
            assert talk.agent_entries[0].interrupted

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_heard_to_its_end_is_whole_in_the_history(kind: Kind) -> None:
    async def main() -> None:
        talk = counting(kind)
        async with talk:
            talk.say(1.0, 1.0)
            await talk.until(ResponseEnded)
            assert talk.heard == [(0, 1, 30)]
            assert talk.agent_entries[0].heard == REPLY
            assert not talk.agent_entries[0].interrupted

    run_virtual(main())

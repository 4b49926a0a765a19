"""B43: the model fails after it has begun to speak, and a retry from the top makes two voices play at once.

The kind of fault: work that already had an effect is repeated. It is made impossible in ``voice/response.py``:
``Response._generate`` asks again only while the attempt has written no text, and in ``voice/speaking.py``: one task
speaks one answer's segments in order into its one track, so that two can't sound at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from talk import Talk, make_agent, talk

from voice.events import ResponseEnded
from voice.interfaces import Speech
from voice.options import SpeechOptions, TurnOptions
from voice.scope import Scope
from voice.testing import Fail, Pause, ScriptedModel, ToneSynthesiser, run_virtual, speak
from voice.turns import State

WORDS = [f"word{n}{'.' if n in (4, 8, 12, 15) else ''} " for n in range(1, 16)]
FULL = "".join(WORDS).strip()
APOLOGY = SpeechOptions().apology
SLOW_START = [Pause(0.5)]
"""Holds a guess's first word back until the turn is certain."""
WAYS = {
    "guessed": (TurnOptions(), 0.001),
    "guessed, fails after the commit": (TurnOptions(), 0.05),
    "not guessed": (TurnOptions(speculate=False), 0.02),
}


class OneVoice(ToneSynthesiser):
    """Notes how many calls of one session were ever under way at once."""

    most = 0

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        async with aclosing(super().synthesise(text, scope, voice=voice)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                self.most = max(self.most, self.running)
                yield piece


def failing_after(words: int, way: str) -> Talk:
    turns, token_s = WAYS[way]
    start = SLOW_START if "after the commit" in way else []
    model = ScriptedModel([[*start, *WORDS[:words], Fail()], FULL], token_s=token_s)
    voice = OneVoice()

    async def main() -> Talk:
        async with talk(make_agent(model, synthesiser=voice, turns=turns)) as it:
            it.client.say(speak(1.0), at_s=1.0)
            await it.client.run(14.0)
            assert it.session.state is State.LISTENING
            return it

    it = run_virtual(main())
    assert voice.most == 1, "two voices at once"
    assert len(it.of(ResponseEnded)) == 1
    return it


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_before_the_first_word_is_followed_by_a_silent_retry(way: str) -> None:
    it = failing_after(0, way)
    assert it.words == [(1, 15)]
    assert it.agent_entries[-1].heard == FULL
    assert it.ended.error is None


@pytest.mark.parametrize("words", [1, 10])
@pytest.mark.parametrize("way", ["guessed, fails after the commit", "not guessed"])
def test_a_failure_in_mid_answer_keeps_the_words_and_ends_with_an_apology(way: str, words: int) -> None:
    it = failing_after(words, way)
    assert it.words == [(1, words + len(APOLOGY.split()))]
    assert it.agent_entries[-1].heard == "".join(WORDS[:words]) + APOLOGY
    assert it.ended.error is not None


@pytest.mark.parametrize("words", [1, 10])
def test_a_failure_behind_the_gate_is_never_heard(words: int) -> None:
    it = failing_after(words, "guessed")
    assert it.words == [(1, 15)]
    assert it.agent_entries[-1].heard == FULL


@pytest.mark.parametrize("way", ["guessed, fails after the commit", "not guessed"])
def test_a_failure_between_the_last_word_and_the_end_mark_loses_and_adds_nothing(way: str) -> None:
    it = failing_after(15, way)
    assert it.words == [(1, 15)]
    assert it.agent_entries[-1].heard.rstrip() == FULL

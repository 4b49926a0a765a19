"""B34: a one-word English utterance is taken for another language, and the session stays stuck in the wrong one.

The recogniser here is what a multilingual Whisper is: told a language it writes that, else it guesses, and of short
sounds it guesses anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from conversation import Conversation

from voice.errors import BadRequest
from voice.events import LanguageChanged, Problem, UserPartial, UserSaid
from voice.interfaces import Pcm16, RecogniserCapabilities, Speech, Transcript
from voice.options import TurnOptions
from voice.scope import Scope
from voice.testing import ScriptedModel, ToneSynthesiser, run_virtual, tone_runs

SAYS: dict[int, dict[str, str]] = {
    150: {"en": "Yes.", "cy": "Ie."},
    180: {"en": "I am sorry, but I can't follow you.", "de": "Es tut mir leid."},
    220: {"en": "Key arrow our lar a war a Barcelona.", "es": "Quiero hablar ahora de Barcelona."},
    260: {"en": "Thank you for the help.", "es": "Gracias.", "cy": "Diolch."},
    320: {"en": "", "cy": ""},
}
"""What is heard of a pitch, in each language."""
GUESSES = {150: ("cy", 0.97), 180: ("de", 0.41), 220: ("es", 0.96), 260: ("cy", 0.3), 320: ("cy", 0.99)}
"""What it is taken for when the recogniser is told nothing, and how surely."""
YES, FOLLOW, SPANISH, THANKS, NOISE = GUESSES


class Multilingual:
    """Knows beforehand what is said, and what it will be mistaken for."""

    name = "multilingual"

    def __init__(self, *, says_how_sure: bool = True) -> None:
        self.capabilities = RecogniserCapabilities(languages=("en", "es", "de", "cy"))
        self.asked: deque[str | None] = deque(maxlen=100)
        self._says_how_sure = says_how_sure

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        await asyncio.sleep(0.05)
        self.asked.append(language)
        runs = tone_runs(audio, 16_000, grid_hz=5.0, min_s=0.05, floor=1500)
        if not runs:
            return Transcript("", language, rejected="silence")
        pitch = min(SAYS, key=lambda hz: abs(hz - runs[-1].hz))
        guess, probability = GUESSES[pitch]
        text = SAYS[pitch].get(language or guess, "")
        if language is not None:
            return Transcript(text, language)
        return Transcript(text, guess, language_probability=probability if self._says_how_sure else None)


class TwoVoices(ToneSynthesiser):
    """Remembers who spoke."""

    def __init__(self) -> None:
        super().__init__()
        self.spoke: list[str | None] = []

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        self.spoke.append(voice)
        async for speech in super().synthesise(text, scope):
            yield speech


class Talk(Conversation):
    """A conversation whose language is found out."""

    def __init__(self, recogniser: Multilingual | None = None, **more: Any) -> None:
        self.voices = TwoVoices()
        more = {"language": None, "voice": "joe", "voices": {"es": "maria"}} | more
        super().__init__(recogniser=recogniser or Multilingual(), synthesiser=self.voices, **more)

    async def turn(self, seconds: float, pitch: int) -> str:
        """The user speaks, and hears the answer; returns what was understood."""
        self.say(self.client.now_s + 0.1, seconds, pitch)
        await self.until(UserSaid, len(self.of(UserSaid)) + 1)
        await self.to(self.client.now_s + 2.5)
        return self.of(UserSaid)[-1].text

    def spoke(self) -> set[str | None]:
        """Whose voices were used since last asked."""
        voices, self.voices.spoke = set(self.voices.spoke), []
        return voices


def test_the_whole_case_short_words_a_spanish_sentence_a_request_and_noise() -> None:
    async def call() -> None:
        it = Talk()
        async with it:
            it.session.use_language("en")
            for _ in range(3):
                assert await it.turn(0.5, YES) == "Yes."
            assert await it.turn(3.0, FOLLOW) == "I am sorry, but I can't follow you."
            assert it.session.language == "en" and it.spoke() == {"joe"}

            assert await it.turn(3.0, SPANISH) == "Quiero hablar ahora de Barcelona."
            assert it.session.language == "es" and it.spoke() == {"maria"}, (
                "language and voice change at once"
            )
            assert await it.turn(0.6, THANKS) == "Gracias." and it.spoke() == {"maria"}

            it.session.use_language("en")  # a tool heard "in English, please"
            assert await it.turn(0.6, THANKS) == "Thank you for the help." and it.spoke() == {"joe"}
            assert await it.turn(3.0, NOISE) == ""
            assert it.session.language == "en"
            assert [event.language for event in it.of(LanguageChanged)] == ["en", "es", "en"]

    run_virtual(call())


def test_the_change_is_told_before_the_words_it_was_heard_in_and_no_guess_speaks_the_old_language() -> None:
    async def call() -> None:
        it = Talk()
        async with it:
            it.session.use_language("en")
            await it.turn(3.0, SPANISH)
            kinds = [type(event) for _, event in it.events]
            assert kinds.index(UserSaid) - kinds.index(LanguageChanged, 1) == 1
            assert it.session.counters.guesses == 0

    run_virtual(call())


def test_the_owner_may_change_the_prompt_when_it_is_told() -> None:
    async def call() -> None:
        model = ScriptedModel()

        def told(event: object) -> None:
            if event == LanguageChanged("es"):
                it.session.chat.instructions = "Habla español."

        it = Talk(model=model, on_event=told)
        async with it:
            it.session.use_language("en")
            await it.turn(3.0, SPANISH)
            assert model.prompts[-1].messages[0].text == "Habla español."

    run_virtual(call())


def test_without_a_probability_the_session_keeps_its_language() -> None:
    async def call() -> None:
        it = Talk(Multilingual(says_how_sure=False))
        async with it:
            it.session.use_language("en")
            assert await it.turn(3.0, SPANISH) == SAYS[SPANISH]["en"]
            assert it.session.language == "en"

    run_virtual(call())


@pytest.mark.parametrize("nonsense", [{"language_probability": "very"}, {"language": 5}])
def test_a_recogniser_that_answers_with_nonsense_costs_the_words_and_not_the_turn(nonsense: Any) -> None:
    class Nonsense(Multilingual):
        async def transcribe(self, *args: Any, **options: Any) -> Transcript:
            return replace(await super().transcribe(*args, **options), **nonsense)

    async def call() -> None:
        it = Talk(Nonsense())
        async with it:
            assert await it.turn(3.0, SPANISH) == ""
            assert it.of(Problem)

    run_virtual(call())


def test_a_fixed_language_stays_and_is_never_asked_about() -> None:
    async def call() -> None:
        recogniser = Multilingual()
        it = Talk(recogniser, language="en")
        async with it:
            await it.turn(3.0, SPANISH)
            await it.turn(0.5, YES)
            assert it.session.language == "en" and set(recogniser.asked) == {"en"}
            assert not it.of(LanguageChanged)

    run_virtual(call())


def test_a_word_that_begins_a_conversation_does_not_settle_its_language() -> None:
    async def call() -> None:
        it = Talk()
        async with it:
            await it.turn(0.5, YES)
            assert it.session.language is None
            assert await it.turn(3.0, SPANISH) == "Quiero hablar ahora de Barcelona."
            assert it.session.language == "es"

    run_virtual(call())


def test_partials_of_another_language_are_told_when_it_is_sure_and_not_at_all_otherwise() -> None:
    async def call() -> None:
        it = Talk(turns=TurnOptions(partials=True))
        async with it:
            it.session.use_language("en")
            await it.turn(4.0, FOLLOW)  # German, the recogniser guesses, and is not sure
            assert not any("leid" in event.text for event in it.of(UserPartial))
            await it.turn(4.0, SPANISH)
            assert it.of(UserPartial)[-1].text == "Quiero hablar ahora de Barcelona."

    run_virtual(call())


def test_a_language_that_nobody_hears_is_refused_and_changes_nothing() -> None:
    async def call() -> None:
        it = Talk()
        async with it:
            it.session.use_language("es")
            with pytest.raises(BadRequest, match="doesn't hear"):
                it.session.use_language("tlh")
            assert it.session.language == "es" and len(it.of(LanguageChanged)) == 1

    run_virtual(call())


@pytest.mark.parametrize("voices", [{"es": 3}, {"": "joe"}, ["es"], {"es": ""}])
def test_voices_map_languages_to_names(voices: object) -> None:
    with pytest.raises(BadRequest, match="voices"):
        Talk(voices=voices)

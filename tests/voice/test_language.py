"""Which language a session speaks: one short or doubtful utterance never changes it."""

from __future__ import annotations

import pytest

from voice.errors import BadRequest
from voice.interfaces import Transcript
from voice.language import Finding, SpokenLanguage

KNOWN = ("en", "es", "de", "cy")


def heard(
    language: str | None, sure: float | None, text: str = "words", rejected: str | None = None
) -> Transcript:
    return Transcript(text, language, language_probability=sure, rejected=rejected)


def english() -> SpokenLanguage:
    spoken = SpokenLanguage(None, KNOWN)
    spoken.request("en")
    return spoken


def test_a_fixed_language_stays_whatever_is_heard() -> None:
    spoken = SpokenLanguage("en", KNOWN)
    assert spoken.expected(0.3) == spoken.expected(20.0) == "en"
    assert spoken.judge(heard("es", 0.99), 20.0) is Finding.STAYS


def test_a_recogniser_of_one_language_has_nothing_to_find_out() -> None:
    spoken = SpokenLanguage(None, ("de",))
    assert spoken.current == spoken.expected(9.0) == "de"


def test_while_nothing_is_known_every_utterance_is_found_out_and_only_a_sure_one_is_kept() -> None:
    spoken = SpokenLanguage(None, KNOWN)
    assert spoken.expected(0.4) is None and spoken.expected(4.0) is None
    assert spoken.judge(heard("cy", 0.99), 0.4) is Finding.STAYS
    assert spoken.judge(heard("cy", 0.5), 4.0) is Finding.STAYS
    assert spoken.judge(heard("cy", None), 4.0) is Finding.STAYS
    assert spoken.judge(heard("es", 0.9), 4.0) is Finding.CHANGES


def test_short_utterances_are_heard_in_the_language_of_the_session() -> None:
    spoken = english()
    assert spoken.expected(1.4) == "en" and spoken.expected(1.6) is None


@pytest.mark.parametrize("sure", [None, 0.0, 0.79])
def test_an_unsure_detection_asks_for_another_look_in_the_language_of_the_session(sure: float | None) -> None:
    assert english().judge(heard("es", sure), 5.0) is Finding.DOUBTFUL


def test_a_long_and_sure_utterance_changes_it_and_noise_does_not() -> None:
    spoken = english()
    assert spoken.judge(heard("es", 0.95), 5.0) is Finding.CHANGES
    assert spoken.judge(heard("en", 0.3), 5.0) is Finding.STAYS
    assert spoken.judge(heard("es", 0.95, text=""), 5.0) is Finding.DOUBTFUL
    assert spoken.judge(heard("es", 0.95, rejected="no_speech"), 5.0) is Finding.DOUBTFUL
    assert spoken.judge(heard("xx", 0.95), 5.0) is Finding.DOUBTFUL
    assert spoken.judge(heard(None, None), 5.0) is Finding.STAYS


def test_the_end_of_a_turn_is_judged_by_what_its_beginning_was() -> None:
    assert english().judge(heard("es", 0.4), 2.0, pending="es") is Finding.STAYS
    assert english().judge(heard("en", 0.4), 2.0, pending="es") is Finding.DOUBTFUL


def test_little_speech_leaves_it_open_unless_it_is_fixed() -> None:
    assert english().is_open(1.4) and not english().is_open(1.6)
    assert not SpokenLanguage("en", KNOWN).is_open(0.2) and not SpokenLanguage(None, ("en",)).is_open(0.2)


def test_who_asks_for_a_language_gets_it() -> None:
    spoken = english()
    assert spoken.request("es-MX") and spoken.current == "es"
    assert not spoken.request("es")
    fixed = SpokenLanguage("en", KNOWN)
    assert fixed.request(" DE ") and fixed.expected(0.2) == fixed.expected(20.0) == "de"


@pytest.mark.parametrize("wrong", ["", "xx", "english", None, 3, "-", "é" * 500])
def test_a_language_that_the_recogniser_does_not_hear_is_refused(wrong: object) -> None:
    spoken = english()
    with pytest.raises(BadRequest, match="en, es, de, cy"):
        spoken.request(wrong)  # type: ignore[arg-type]
    assert spoken.current == "en"


def test_settings_that_say_the_same_again_do_not_undo_what_was_asked_for() -> None:
    spoken = SpokenLanguage("en", KNOWN)
    spoken.request("es")
    spoken.give("en")
    assert spoken.current == "es"
    spoken.give("de")
    assert spoken.current == spoken.fixed == "de"
    spoken.give(None)
    assert spoken.fixed is None and spoken.current == "de"

"""Interruption policies as tables: which sounds over the answer take the floor, which don't, and when that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voice.backchannels import ENGLISH, Backchannels, Meaning
from voice.interruption import Interruptions, Sound, Verdict
from voice.options import TurnOptions

OPTIONS = TurnOptions()
OVER = Sound(voiced_s=0.6, text_s=0.6, ended_s=0.3)
"""A short sound over the agent's voice that has ended; its words are filled in."""


def judge(sound: Sound, options: TurnOptions = OPTIONS) -> Verdict:
    return Interruptions().judge(sound, options).verdict


@pytest.mark.parametrize(
    "text",
    [
        "Mm-hm.", "mm hmm", "Mhm", "M-M-M-M", "Uh-huh.", "Uh uh", "Hmm...", "Ah.", "Oh", "Aha!", "Um",
        "Yeah.", "yeah, yeah", "Right.", "Okay", "Oh, okay.", "OK", "I see...", "Got it!", "Sure", "Yeah, right.",
        "Oh I see", "All right", "Of course.", "That's right", "no problem", "Uh-huh, sure, thank you",
    ],
)  # fmt: skip
def test_a_listener_who_nods_does_not_interrupt(text: str) -> None:
    assert ENGLISH.judge(text).meaning in (Meaning.NOD, Meaning.HUM)
    assert judge(replace(OVER, text=text)) is Verdict.IGNORE


@pytest.mark.parametrize(
    "text",
    [
        "Stop.", "stop stop", "Okay, stop.", "No wait...", "No", "Wait a moment", "Yeah, but...", "hold on", "What?",
        "Yeah but what about Sunday", "I meant the other one", "right, and how much is it", "Sorry", "cancel that",
        "mm-hm I have another question",
    ],
)  # fmt: skip
def test_a_listener_who_wants_to_speak_interrupts(text: str) -> None:
    assert judge(replace(OVER, text=text)) is Verdict.INTERRUPT


@pytest.mark.parametrize("text", ["", " ", "...", "you", "You.", "Thanks for watching!", "Bye."])
def test_what_a_recogniser_makes_of_a_cough_is_nothing(text: str) -> None:
    assert ENGLISH.judge(text).meaning is Meaning.NOTHING
    assert judge(replace(OVER, text=text)) is Verdict.IGNORE


def test_a_cough_longer_than_speech_may_be_does_not_interrupt_while_it_has_no_words() -> None:
    cough = Sound(voiced_s=1.1, text="", text_s=1.0)
    assert judge(cough) is Verdict.WAIT
    assert judge(replace(cough, ended_s=0.1)) is Verdict.IGNORE
    assert judge(replace(cough, voiced_s=4.1)) is Verdict.INTERRUPT  # this is no cough


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("yeah", Verdict.INTERRUPT),
        ("okay", Verdict.INTERRUPT),
        ("mm-hm", Verdict.INTERRUPT),
        ("Tuesday", Verdict.INTERRUPT),
        ("", Verdict.IGNORE),
    ],
)
def test_the_same_words_are_an_answer_to_a_question_that_has_all_but_ended(
    text: str, verdict: Verdict
) -> None:
    assert judge(replace(OVER, text=text, asked=True)) is verdict


def test_unknown_words_interrupt_by_length() -> None:
    limit_s = OPTIONS.interrupt_after_s
    assert judge(Sound(voiced_s=limit_s - 0.01)) is Verdict.WAIT
    assert judge(Sound(voiced_s=limit_s)) is Verdict.INTERRUPT


def test_words_that_never_come_are_waited_for_then_judged_by_length() -> None:
    short, long = Sound(voiced_s=0.3, ended_s=0.2), Sound(voiced_s=0.9, ended_s=0.2)
    assert judge(short) is judge(long) is Verdict.WAIT
    assert judge(replace(short, ended_s=OPTIONS.decide_s)) is Verdict.IGNORE
    assert judge(replace(long, ended_s=OPTIONS.decide_s)) is Verdict.INTERRUPT


def test_words_known_so_far_decide_while_the_sound_goes_on() -> None:
    going_on = Sound(voiced_s=0.9, text_s=0.6)
    assert judge(replace(going_on, text="no wait")) is Verdict.INTERRUPT
    assert judge(replace(going_on, text="can you tell")) is Verdict.INTERRUPT
    assert judge(replace(going_on, text="yeah")) is Verdict.WAIT
    assert (
        judge(replace(going_on, text="yeah", voiced_s=0.6 + OPTIONS.interrupt_after_s)) is Verdict.INTERRUPT
    )


def test_words_that_cover_only_the_beginning_do_not_end_the_matter() -> None:
    assert judge(Sound(voiced_s=1.4, text="yeah", text_s=0.5, ended_s=0.1)) is Verdict.WAIT
    assert judge(Sound(voiced_s=1.4, text="yeah", text_s=1.4, ended_s=0.1)) is Verdict.IGNORE


def test_nods_do_not_add_up() -> None:
    assert [judge(replace(OVER, text=t)) for t in ("mm hm", "okay", "yeah right")] == [Verdict.IGNORE] * 3


def test_the_agents_own_words_are_nobodys_interruption() -> None:
    echoed = Sound(voiced_s=1.0, text="take the number six", text_s=1.0, ended_s=0.2, echoes=True)
    said = "You can walk along the river, or take the number six tram"
    assert judge(replace(echoed, agent_text=said)) is Verdict.IGNORE
    assert judge(replace(echoed, agent_text=said, text="number six stop please")) is Verdict.INTERRUPT
    assert (
        judge(replace(echoed, agent_text=said, echoes=False)) is Verdict.INTERRUPT
    )  # headphones: they repeat it


def test_a_short_sound_that_is_over_holds_a_stop_but_no_sentence() -> None:
    scrap = Sound(voiced_s=0.35, text="at the magazine", text_s=0.35, ended_s=0.2, echoes=True)
    assert judge(scrap) is Verdict.IGNORE
    assert judge(replace(scrap, text="no wait")) is Verdict.INTERRUPT
    assert judge(replace(scrap, asked=True)) is Verdict.INTERRUPT
    assert judge(replace(scrap, echoes=False)) is Verdict.IGNORE  # a nod, misheard
    assert judge(replace(scrap, ended_s=None)) is Verdict.INTERRUPT  # it goes on
    assert judge(replace(scrap, voiced_s=OPTIONS.ask_words_s, text_s=0.5)) is Verdict.INTERRUPT


def test_a_click_or_a_faint_voice_never_interrupts_nor_silences() -> None:
    interruptions = Interruptions()
    click = Sound(voiced_s=0.05, text="What", text_s=0.05, ended_s=0.2)
    faint = Sound(voiced_s=2.0, text="and then he went home", text_s=2.0, ended_s=0.2, over_noise_db=3.0)
    assert judge(click) is judge(faint) is Verdict.IGNORE
    assert not interruptions.holds(replace(faint, ended_s=None), OPTIONS)
    assert interruptions.holds(Sound(voiced_s=0.06, over_noise_db=20.0), OPTIONS)
    assert not interruptions.holds(Sound(voiced_s=0.06, over_noise_db=20.0, echoes=True), OPTIONS)


def test_more_words_may_be_asked_for() -> None:
    many = replace(OPTIONS, interrupt_words=4)
    assert judge(replace(OVER, text="what about Sunday")) is Verdict.INTERRUPT  # "what" asks to speak
    assert judge(replace(OVER, text="the blue one"), many) is Verdict.IGNORE
    assert judge(replace(OVER, text="the blue one please"), many) is Verdict.INTERRUPT
    assert judge(replace(OVER, text="stop"), many) is Verdict.INTERRUPT


def test_words_are_asked_for_at_growing_length_and_time_alone_changes_the_verdict_when_said() -> None:
    interruptions = Interruptions()
    assert not interruptions.wants_words(Sound(voiced_s=0.4), OPTIONS)
    assert interruptions.wants_words(Sound(voiced_s=0.5), OPTIONS)
    assert not interruptions.wants_words(Sound(voiced_s=0.9, text="yeah", text_s=0.5), OPTIONS)
    assert interruptions.wants_words(Sound(voiced_s=1.0, text="yeah", text_s=0.5), OPTIONS)
    assert interruptions.next_look_s(Sound(voiced_s=0.3), OPTIONS) == pytest.approx(0.2)
    assert interruptions.next_look_s(Sound(voiced_s=0.7), OPTIONS) == pytest.approx(0.5)
    assert interruptions.next_look_s(Sound(voiced_s=0.7, ended_s=0.4), OPTIONS) == pytest.approx(0.6)


@pytest.mark.parametrize("text", [None, "", "yeah", "mm"])
def test_every_wait_ends(text: str | None) -> None:
    """Whatever is known, a sound that goes on for ever interrupts, and one that ended is decided."""
    interruptions = Interruptions()
    sound = Sound(voiced_s=0.2, text=text)
    for _ in range(20):
        if judge(sound) is not Verdict.WAIT:
            break
        wait_s = interruptions.next_look_s(sound, OPTIONS)
        assert wait_s > 0.0
        sound = replace(sound, voiced_s=sound.voiced_s + wait_s)
    assert judge(sound) is Verdict.INTERRUPT
    assert judge(replace(sound, voiced_s=0.2, ended_s=OPTIONS.decide_s)) is not Verdict.WAIT


def test_a_policy_of_ones_own_goes_first_and_is_named() -> None:
    class Never:
        name = "never"

        def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
            return Verdict.IGNORE

    judgement = Interruptions([Never()]).judge(Sound(voiced_s=9.0), OPTIONS)
    assert (judgement.verdict, judgement.by) == (Verdict.IGNORE, "never")


def test_words_of_another_language() -> None:
    german = Backchannels(["ja", "genau", "ach so"], ["halt", "nein", "moment mal"])
    assert german.judge("Ja, genau! Ach so.").meaning is Meaning.NOD
    assert german.judge("Moment mal bitte").meaning is Meaning.STOP
    assert german.judge("am Montag").words == 2


def test_the_agents_words_are_taken_out_of_what_was_heard() -> None:
    assert (
        ENGLISH.without_own_words("Expect it. Yeah, stop!", "the driver expects it between two and four")
        == "yeah stop"
    )
    assert ENGLISH.without_own_words("", "hello") == ""
    assert ENGLISH.without_own_words("Wait, I know.", "I want to say what I mean") == "wait know"


@pytest.mark.parametrize("text", ["Halt!", "¡Para!", "停"])
def test_in_a_language_whose_nods_nobody_has_listed_every_word_counts(text: str) -> None:
    assert judge(replace(OVER, text=text, language="de")) is Verdict.INTERRUPT
    assert judge(replace(OVER, text="", language="de")) is Verdict.IGNORE
    german = Interruptions(backchannels=Backchannels(["genau", "ja"], ["halt"], language="de"))
    assert german.judge(replace(OVER, text="Ja, genau.", language="de-AT"), OPTIONS).verdict is Verdict.IGNORE
    assert german.judge(replace(OVER, text="Halt!", language="de"), OPTIONS).verdict is Verdict.INTERRUPT

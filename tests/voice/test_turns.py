"""TurnTaker over more than one event: what is owed, what is said beside an answer, options that change, idleness.

Each event in each situation: ``test_turns_table.py``. Sounds over the answer: ``test_over_answer.py``. When a turn is
certain: ``test_turn_certainty.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from turn_situations import (
    OPTIONS,
    TEXT,
    TO_BESIDE,
    TO_GREETING,
    TO_SPEAKING,
    TO_THINKING,
    TO_USER_SPEAKING,
    taker_after,
)

from voice.scope import Reason
from voice.turn_events import (
    Audible,
    CloseEmpty,
    Commit,
    Committed,
    Decision,
    Finished,
    GoneIdle,
    Heard,
    Hold,
    Interrupt,
    OpenTurn,
    Recognise,
    Release,
    Respond,
    SpeechBegan,
    SpeechPaused,
    Spoke,
    Tick,
    Typed,
)
from voice.turns import State

# ---------------------------------------------------------------- an answer that was never heard


def test_a_question_whose_answer_was_cut_unheard_is_answered_after_an_empty_turn() -> None:
    taker = taker_after([*TO_THINKING, SpeechBegan(3.1, 3.0), SpeechPaused(3.4, 3.2)])
    taker.feed(Heard(3.5, 2, 0, ""))
    assert taker.feed(Tick(3.7)) == [CloseEmpty(2, announced=True), Respond()]
    assert taker.state is State.THINKING


def test_an_answer_owed_is_given_with_the_next_one_and_not_twice() -> None:
    taker = taker_after([*TO_THINKING, SpeechBegan(3.1, 3.0), SpeechPaused(3.4, 3.2)])
    assert taker.feed(Heard(3.8, 2, 0, TEXT)) == [Commit(2, 0, TEXT)]
    taker.feed(Audible(4.0))
    taker.feed(Finished(5.0))
    taker.feed(SpeechBegan(6.1, 6.0))
    taker.feed(SpeechPaused(6.4, 6.2))
    assert taker.feed(Heard(7.0, 3, 0, "")) == [CloseEmpty(3, announced=True)]


def test_what_the_owner_made_the_agent_say_is_not_owed_to_the_user() -> None:
    taker = taker_after([Spoke(1.0), SpeechBegan(1.2, 1.1), SpeechPaused(1.6, 1.4)])
    assert taker.feed(Heard(2.0, 1, 0, "")) == [CloseEmpty(1, announced=True)]


def test_an_answer_that_the_owner_asked_for_is_owed() -> None:
    taker = taker_after([Spoke(1.0, answer=True), SpeechBegan(1.2, 1.1), SpeechPaused(1.6, 1.4)])
    assert taker.feed(Heard(2.0, 1, 0, "")) == [CloseEmpty(1, announced=True), Respond()]


def test_a_second_commit_without_words_does_not_lose_the_answer_to_the_first() -> None:
    taker = taker_after([*TO_THINKING, Committed(2.7)])
    assert taker.feed(Heard(2.8, 2, 0, "")) == [CloseEmpty(2, announced=True), Respond()]


def test_a_message_typed_while_the_user_speaks_is_answered_even_if_the_speech_had_no_words() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Typed(1.5), SpeechPaused(2.2, 2.0)])
    assert taker.feed(Heard(2.6, 1, 0, "")) == [CloseEmpty(1, announced=True), Respond()]


# ---------------------------------------------------------------- beside an answer that must be heard


def test_what_is_said_beside_an_answer_is_answered_when_that_is_over() -> None:
    taker = taker_after([*TO_BESIDE, SpeechPaused(2.2, 2.0), Heard(2.6, 1, 0, TEXT)])
    assert taker.feed(Finished(4.0)) == [Respond()]
    assert taker.feed(Finished(6.0)) == []
    assert taker.state is State.LISTENING


def test_a_message_typed_after_it_gets_one_answer_for_both() -> None:
    taker = taker_after([*TO_BESIDE, SpeechPaused(2.2, 2.0), Heard(2.6, 1, 0, TEXT)])
    assert taker.feed(Typed(3.0)) == [Interrupt(Reason.CLIENT), Respond()]
    assert taker.feed(Finished(6.0)) == []


def test_a_message_typed_while_the_user_speaks_beside_an_answer_waits_for_its_end() -> None:
    taker = taker_after([*TO_BESIDE, Typed(1.5), SpeechPaused(2.2, 2.0), Heard(2.6, 1, 0, "")])
    assert taker.state is State.SPEAKING
    assert taker.feed(Finished(4.0)) == [Respond()]


def test_speech_that_outlasts_the_answer_is_a_turn_like_any_other() -> None:
    taker = taker_after([*TO_BESIDE, Finished(1.8)])
    assert taker.feed(SpeechPaused(2.2, 2.0)) == [Recognise(1, 0)]
    assert taker.feed(Heard(2.6, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]


@pytest.mark.parametrize(
    ("asked", "decision"),
    [("Welcome.", CloseEmpty(1, announced=True)), ("Shall I go on?", Commit(1, 0, "Yeah."))],
)
def test_a_nod_that_outlasts_the_answer_asks_for_nothing_unless_that_was_a_question(
    asked: str, decision: Decision
) -> None:
    taker = taker_after([*TO_BESIDE, SpeechPaused(2.2, 2.0)])
    taker.certainty.agent_said = asked
    taker.feed(Finished(2.3))
    assert taker.feed(Heard(2.6, 1, 0, "Yeah.")) == [decision]


def test_what_is_said_before_the_greeting_is_audible_does_not_stop_it() -> None:
    taker = taker_after([*TO_GREETING, SpeechBegan(0.6, 0.55), SpeechPaused(1.2, 1.0)])
    assert taker.feed(Heard(1.6, 1, 0, TEXT)) == [Commit(1, 0, TEXT, respond=False)]
    assert taker.state is State.THINKING
    assert taker.feed(Finished(3.0)) == [Respond()]


def test_the_next_answer_may_be_interrupted_again() -> None:
    taker = taker_after([*TO_BESIDE, Finished(1.8), SpeechPaused(2.2, 2.0), Heard(2.6, 1, 0, TEXT)])
    taker.feed(Audible(3.0))
    assert taker.feed(SpeechBegan(4.0, 3.95)) == [Hold()]


# ---------------------------------------------------------------- options that change, manual mode


def test_a_turn_that_only_enters_the_history_is_not_answered() -> None:
    taker = taker_after([*TO_USER_SPEAKING, SpeechPaused(2.2, 2.0)], options=replace(OPTIONS, respond=False))
    assert taker.feed(Heard(2.3, 1, 0, TEXT)) == []
    assert taker.feed(Tick(2.5)) == [Commit(1, 0, TEXT, respond=False)]
    assert taker.state is State.LISTENING


def test_a_turn_closed_over_an_answer_that_goes_on_leaves_it_alone() -> None:
    taker = taker_after(TO_SPEAKING, options=replace(OPTIONS, respond=True))
    taker.configure(replace(OPTIONS, respond=False))
    taker.feed(SpeechBegan(3.1, 3.0))
    taker.configure(replace(OPTIONS, respond=False, interrupt=False))
    assert taker.feed(Committed(3.3)) == [OpenTurn(2), Release(), Recognise(2, 0)]
    assert taker.feed(Heard(3.5, 2, 0, TEXT)) == [Commit(2, 0, TEXT, respond=False)]
    assert taker.state is State.SPEAKING


def test_idle_is_told_once_and_again_only_after_something_happened() -> None:
    taker = taker_after([])
    assert taker.feed(Tick(15.0)) == [GoneIdle()]
    assert taker.wake_at is None
    assert taker.feed(Tick(30.0)) == []
    for event in TO_SPEAKING:
        taker.feed(replace(event, now=event.now + 40))
    taker.feed(Finished(50.0))
    assert taker.wake_at == pytest.approx(65.0)


def test_a_note_from_the_user_starts_the_wait_anew() -> None:
    taker = taker_after([Tick(15.0), Typed(20.0, answer=False)])
    assert taker.feed(Tick(35.0)) == [GoneIdle()]


def test_without_idle_s_nobody_is_woken_in_silence() -> None:
    assert taker_after([], options=replace(OPTIONS, idle_s=None)).wake_at is None


def test_in_manual_mode_the_voice_decides_nothing() -> None:
    taker = taker_after([], options=replace(OPTIONS, mode="manual"))
    assert taker.feed(SpeechBegan(1.1, 1.0)) == []
    assert taker.feed(SpeechPaused(2.2, 2.0)) == []
    assert taker.feed(Committed(3.0)) == [OpenTurn(1), Recognise(1, 0)]
    assert taker.feed(Heard(3.1, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]
    taker.feed(Audible(3.2))
    assert taker.feed(SpeechBegan(3.5, 3.4)) == []
    assert taker.state is State.SPEAKING


def test_a_turn_open_when_detection_is_switched_off_waits_for_the_owner() -> None:
    taker = taker_after(TO_USER_SPEAKING)
    taker.configure(replace(OPTIONS, mode="manual"))
    assert taker.feed(Tick(200.0)) == []
    assert taker.feed(SpeechPaused(201.0, 200.8)) == []
    assert taker.wake_at is None
    assert taker.feed(Committed(202.0)) == [Recognise(1, 0)]

"""TurnTaker: a table of what each event does in each situation, and what longer conversations come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from voice.options import TurnOptions
from voice.scope import Reason
from voice.turn_events import (
    Audible,
    Cleared,
    CloseEmpty,
    Commit,
    Committed,
    CutInput,
    Decision,
    Finished,
    GoneIdle,
    Guess,
    Heard,
    Hold,
    Interrupt,
    OpenTurn,
    Recognise,
    Release,
    Reopen,
    Respond,
    SpeechBegan,
    SpeechPaused,
    Spoke,
    Stopped,
    Tick,
    TurnInput,
    Typed,
)
from voice.turns import State, TurnTaker

TEXT = "Hello there."
OPTIONS = TurnOptions(pause_s=0.2, min_delay_s=0.5)
"""With the defaults: max_delay 1, interrupt_after 0.4, decide 1, hold 0.25, idle 15, max_turn 120."""

# ---------------------------------------------------------------- the table

TO_USER_SPEAKING: list[TurnInput] = [SpeechBegan(1.1, 1.0)]
TO_PAUSED: list[TurnInput] = [*TO_USER_SPEAKING, SpeechPaused(2.2, 2.0)]
TO_GUESSED: list[TurnInput] = [*TO_PAUSED, Heard(2.3, 1, 0, TEXT)]
TO_THINKING: list[TurnInput] = [*TO_GUESSED, Tick(2.5)]
TO_SPEAKING: list[TurnInput] = [*TO_THINKING, Audible(2.6)]
TO_HELD: list[TurnInput] = [*TO_SPEAKING, SpeechBegan(3.1, 3.0)]
TO_JUDGING: list[TurnInput] = [*TO_HELD, SpeechPaused(3.4, 3.2)]  # a short sound; its words are not known yet

SITUATIONS: dict[str, tuple[list[TurnInput], State]] = {
    "listening": ([], State.LISTENING),
    "user speaking": (TO_USER_SPEAKING, State.USER_SPEAKING),
    "paused": (TO_PAUSED, State.MAYBE_DONE),
    "guessed": (TO_GUESSED, State.MAYBE_DONE),
    "thinking": (TO_THINKING, State.THINKING),
    "speaking": (TO_SPEAKING, State.SPEAKING),
    "held": (TO_HELD, State.HELD),
    "judging": (TO_JUDGING, State.HELD),
}

BARGED = [Interrupt(Reason.BARGE_IN), OpenTurn(2)]
L, U, M, T, S, H = (
    State.LISTENING,
    State.USER_SPEAKING,
    State.MAYBE_DONE,
    State.THINKING,
    State.SPEAKING,
    State.HELD,
)

Row = tuple[TurnInput, list[Decision], State]
TABLE: dict[str, list[Row]] = {
    "listening": [
        (SpeechBegan(1.1, 1.0), [OpenTurn(1)], U),
        (SpeechPaused(1.1, 1.0), [], L),
        (Heard(1.0, 1, 0, TEXT), [], L),
        (Tick(14.9), [], L),
        (Tick(15.0), [GoneIdle()], L),
        (Audible(1.0), [], L),
        (Finished(1.0), [], L),
        (Typed(1.0), [Respond()], T),
        (Typed(1.0, answer=False), [], L),
        (Committed(1.0), [OpenTurn(1), Recognise(1, 0)], M),
        (Cleared(1.0), [], L),
        (Stopped(1.0), [], L),
        (Spoke(1.0), [], T),
    ],
    "user speaking": [
        (SpeechBegan(1.5, 1.4), [], U),
        (SpeechPaused(2.2, 2.0), [Recognise(1, 0)], M),
        (Heard(2.0, 1, 0, TEXT), [], U),
        (Tick(120.9), [], U),
        (Tick(121.0), [CutInput(1), Recognise(1, 0)], M),
        (Audible(2.0), [], U),
        (Finished(2.0), [], U),
        (Typed(2.0), [], U),
        (Typed(2.0, answer=False), [], U),
        (Committed(2.0), [Recognise(1, 0)], M),
        (Cleared(2.0), [CloseEmpty(1, announced=True)], L),
        (Stopped(2.0), [], U),
        (Spoke(2.0), [], U),
    ],
    "paused": [
        (SpeechBegan(2.4, 2.3), [Reopen(1, 1)], U),
        (SpeechPaused(2.4, 2.3), [], M),
        (Heard(2.3, 1, 0, TEXT), [Guess(1, 0, TEXT)], M),
        (Heard(2.6, 1, 0, TEXT), [Commit(1, 0, TEXT)], T),
        (Heard(2.3, 1, 0, " "), [], M),
        (Heard(2.6, 1, 0, ""), [CloseEmpty(1, announced=True)], L),
        (Heard(2.3, 1, 1, TEXT), [], M),
        (Heard(2.3, 0, 0, TEXT), [], M),
        (Tick(9.0), [], M),
        (Audible(2.3), [], M),
        (Finished(2.3), [], M),
        (Typed(2.3), [], M),
        (Typed(2.3, answer=False), [], M),
        (Committed(2.3), [], M),
        (Cleared(2.3), [CloseEmpty(1, announced=True)], L),
        (Stopped(2.3), [], M),
        (Spoke(2.3), [], M),
    ],
    "guessed": [
        (SpeechBegan(2.4, 2.35), [Reopen(1, 1)], U),
        (SpeechPaused(2.4, 2.3), [], M),
        (Heard(2.4, 1, 1, "Else."), [], M),
        (Tick(2.49), [], M),
        (Tick(2.5), [Commit(1, 0, TEXT)], T),
        (Audible(2.4), [], M),
        (Finished(2.4), [], M),
        (Typed(2.4), [Reopen(1, 1, speech=False), Guess(1, 1, TEXT)], M),
        (Typed(2.4, answer=False), [Reopen(1, 1, speech=False), Guess(1, 1, TEXT)], M),
        (Committed(2.4), [Commit(1, 0, TEXT)], T),
        (Cleared(2.4), [CloseEmpty(1, announced=True)], L),
        (Stopped(2.4), [], M),
        (Spoke(2.4), [], M),
    ],
    "thinking": [
        (SpeechBegan(3.1, 3.0), [Interrupt(Reason.RESUMED), OpenTurn(2)], U),
        (SpeechPaused(3.1, 3.0), [], T),
        (Heard(2.6, 1, 0, TEXT), [], T),
        (Tick(60.0), [], T),
        (Audible(2.6), [], S),
        (Finished(2.6), [], L),
        (Typed(2.6), [Interrupt(Reason.CLIENT), Respond()], T),
        (Typed(2.6, answer=False), [], T),
        (Committed(2.6), [Interrupt(Reason.CLIENT), OpenTurn(2), Recognise(2, 0)], M),
        (Cleared(2.6), [], T),
        (Stopped(2.6), [Interrupt(Reason.CLIENT)], L),
        (Spoke(2.6), [], T),
    ],
    "speaking": [
        (SpeechBegan(3.1, 3.0), [Hold()], H),
        (SpeechPaused(3.1, 3.0), [], S),
        (Heard(3.0, 1, 0, TEXT), [], S),
        (Tick(60.0), [], S),
        (Audible(3.0), [], S),
        (Finished(3.0), [], L),
        (Typed(3.0), [Interrupt(Reason.CLIENT), Respond()], T),
        (Typed(3.0, answer=False), [], S),
        (Committed(3.0), [Interrupt(Reason.CLIENT), OpenTurn(2), Recognise(2, 0)], M),
        (Cleared(3.0), [], S),
        (Stopped(3.0), [Interrupt(Reason.CLIENT)], L),
        (Spoke(3.0), [], S),
    ],
    "held": [
        (SpeechBegan(3.2, 3.15), [], H),
        (SpeechPaused(3.4, 3.2), [Recognise(2, 0, probe=True)], H),
        (SpeechPaused(3.7, 3.5), [*BARGED, Recognise(2, 0)], M),
        (Heard(3.2, 2, 0, TEXT), [], H),
        (Tick(3.3, voiced_until=3.3), [], H),
        (Tick(3.5, voiced_until=3.45), BARGED, U),
        (Audible(3.2), [], H),
        (Finished(3.2), [OpenTurn(2)], U),
        (Typed(3.2), BARGED, U),
        (Typed(3.2, answer=False), [], H),
        (Committed(3.2), [*BARGED, Recognise(2, 0)], M),
        (Cleared(3.2), [], H),
        (Stopped(3.2), BARGED, U),
        (Spoke(3.2), [], H),
    ],
    "judging": [
        (SpeechBegan(3.6, 3.5), [], H),
        (SpeechPaused(3.6, 3.5), [], H),
        (Heard(3.5, 2, 0, "Wait."), [*BARGED, Guess(2, 0, "Wait.")], M),
        (Heard(3.8, 2, 0, "Wait."), [*BARGED, Commit(2, 0, "Wait.")], T),
        (Heard(3.5, 2, 0, ""), [CloseEmpty(2, announced=False), Release()], S),
        (Heard(3.5, 2, 1, "Wait."), [], H),
        (Heard(3.5, 1, 0, TEXT), [], H),
        (Tick(4.19), [], H),
        (Tick(4.2), [CloseEmpty(2, announced=False), Release()], S),
        (Audible(3.5), [], H),
        (Finished(3.5), [OpenTurn(2)], M),
        (Typed(3.5), BARGED, M),
        (Typed(3.5, answer=False), [], H),
        (Committed(3.5), BARGED, M),
        (Cleared(3.5), [], H),
        (Stopped(3.5), BARGED, M),
        (Spoke(3.5), [], H),
    ],
}


def taker_after(
    events: Sequence[TurnInput],
    playout: Literal["can_pause", "flush_only"] = "can_pause",
    options: TurnOptions = OPTIONS,
) -> TurnTaker:
    taker = TurnTaker(options, playout)
    taker.listen(0.0)
    for event in events:
        taker.feed(event)
    return taker


@pytest.mark.parametrize(
    ("situation", "event", "decisions", "state"),
    [(s, *row) for s, rows in TABLE.items() for row in rows],
    ids=[f"{s}-{row[0]}" for s, rows in TABLE.items() for row in rows],
)
def test_each_event_does_what_the_table_says(
    situation: str, event: TurnInput, decisions: list[Decision], state: State
) -> None:
    events, before = SITUATIONS[situation]
    taker = taker_after(events)
    assert taker.state is before
    assert (taker.feed(event), taker.state) == (decisions, state)


def test_the_table_has_every_event_in_every_situation() -> None:
    kinds = set(TurnInput.__args__)  # type: ignore[attr-defined]
    for situation, rows in TABLE.items():
        assert {type(row[0]) for row in rows} == kinds, situation


# ---------------------------------------------------------------- words and silence


def test_words_that_plainly_go_on_wait_for_the_longest_delay() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, "I want to go to")])
    assert taker.wake_at == pytest.approx(3.0)
    assert taker.feed(Tick(2.6)) == []
    assert taker.feed(Tick(3.0)) == [Commit(1, 0, "I want to go to")]


def test_without_speculation_nothing_is_begun_before_the_shortest_delay() -> None:
    taker = taker_after(TO_USER_SPEAKING, options=replace(OPTIONS, speculate=False))
    assert taker.feed(SpeechPaused(2.2, 2.0)) == []
    assert taker.feed(Typed(2.35)) == []
    assert taker.feed(Tick(2.5)) == [Recognise(1, 0)]
    assert taker.feed(Heard(2.6, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]


def test_without_speculation_words_that_go_on_wait_without_a_guess() -> None:
    taker = taker_after([*TO_PAUSED, Tick(2.5)], options=replace(OPTIONS, speculate=False))
    assert taker.feed(Heard(2.6, 1, 0, "I want to go to")) == []
    assert taker.feed(Tick(3.0)) == [Commit(1, 0, "I want to go to")]


def test_a_resumed_turn_ignores_the_words_of_its_first_half() -> None:
    taker = taker_after([*TO_PAUSED, SpeechBegan(2.4, 2.3)])
    assert taker.feed(Heard(2.5, 1, 0, "I want to")) == []
    assert taker.feed(SpeechPaused(3.2, 3.0)) == [Recognise(1, 1)]
    assert taker.feed(Heard(3.25, 1, 0, "I want to")) == []
    assert taker.feed(Heard(3.3, 1, 1, TEXT)) == [Guess(1, 1, TEXT)]


def test_words_that_come_later_than_the_delay_commit_at_once() -> None:
    taker = taker_after(TO_PAUSED)
    assert taker.feed(Tick(4.0)) == []
    assert taker.feed(Heard(5.0, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]


def test_a_committed_turn_does_not_wait_for_silence() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Committed(1.5)])
    assert taker.feed(Heard(1.6, 1, 0, "I want to")) == [Commit(1, 0, "I want to")]


def test_a_turn_that_is_too_long_is_certain_as_soon_as_its_words_are_known() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Tick(121.0)])
    assert taker.feed(Heard(121.5, 1, 0, "and so")) == [Commit(1, 0, "and so")]


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


def test_a_second_commit_without_words_does_not_lose_the_answer_to_the_first() -> None:
    taker = taker_after([*TO_THINKING, Committed(2.7)])
    assert taker.feed(Heard(2.8, 2, 0, "")) == [CloseEmpty(2, announced=True), Respond()]


def test_a_message_typed_while_the_user_speaks_is_answered_even_if_the_speech_had_no_words() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Typed(1.5), SpeechPaused(2.2, 2.0)])
    assert taker.feed(Heard(2.6, 1, 0, "")) == [CloseEmpty(1, announced=True), Respond()]


# ---------------------------------------------------------------- a sound over the answer


def test_speech_longer_than_interrupt_after_interrupts_while_it_lasts() -> None:
    taker = taker_after(TO_HELD)
    assert taker.wake_at == pytest.approx(3.4)
    assert taker.feed(Tick(3.4, voiced_until=3.38)) == []
    assert taker.feed(Tick(3.42, voiced_until=3.41)) == BARGED


def test_a_second_short_sound_is_judged_together_with_the_first() -> None:
    taker = taker_after([*TO_HELD, SpeechPaused(3.3, 3.1), SpeechBegan(3.3, 3.25)])
    assert taker.feed(Heard(3.35, 2, 0, "mm")) == []
    assert taker.feed(SpeechPaused(3.5, 3.35)) == [Recognise(2, 1, probe=True)]
    assert taker.feed(Heard(3.6, 2, 1, "")) == [CloseEmpty(2, announced=False), Release()]


def test_the_number_of_a_false_alarm_is_not_used_again() -> None:
    taker = taker_after([*TO_JUDGING, Heard(3.5, 2, 0, "")])
    taker.feed(SpeechBegan(5.1, 5.0))
    assert taker.feed(Heard(5.15, 2, 0, "late words")) == []
    assert taker.feed(SpeechPaused(5.4, 5.2)) == [Recognise(3, 0, probe=True)]


@pytest.mark.parametrize("playout", ["can_pause", "flush_only"])
def test_audio_that_stops_coming_in_mid_sound_does_not_silence_the_agent_for_ever(
    playout: Literal["can_pause", "flush_only"],
) -> None:
    taker = taker_after(TO_HELD, playout)
    decisions: list[Decision] = []
    for _ in range(500):  # the microphone was muted: no pause edge, and the voice ended at 3.1
        if taker.wake_at is None:
            break
        decisions += taker.feed(Tick(taker.wake_at, voiced_until=3.1))
    assert [type(d) for d in decisions if isinstance(d, Release | Interrupt)] == [Release]
    assert taker.state is State.SPEAKING
    assert taker.wake_at is None


def test_turn_detection_switched_off_in_mid_sound_does_not_leave_the_agent_silenced() -> None:
    taker = taker_after(TO_HELD)
    taker.configure(replace(OPTIONS, mode="manual"))
    assert taker.feed(SpeechPaused(3.4, 3.2)) == [Recognise(2, 0, probe=True)]
    assert taker.feed(Heard(3.5, 2, 0, "")) == [CloseEmpty(2, announced=False), Release()]


# ---------------------------------------------------------------- a transport that can only flush


def test_a_flushing_transport_holds_at_most_hold_s_while_the_voice_goes_on() -> None:
    taker = taker_after(TO_HELD, "flush_only")
    assert taker.wake_at == pytest.approx(3.35)
    assert taker.feed(Tick(3.35, voiced_until=3.32)) == BARGED
    assert taker.state is State.USER_SPEAKING


def test_a_flushing_transport_goes_on_after_hold_s_when_the_voice_has_stopped() -> None:
    taker = taker_after(TO_HELD, "flush_only")
    assert taker.feed(Tick(3.35, voiced_until=3.2)) == [Release()]
    assert taker.state is State.SPEAKING
    assert taker.feed(SpeechPaused(3.45, 3.2)) == [Recognise(2, 0, probe=True)]
    assert taker.feed(Heard(3.5, 2, 0, "Stop.")) == [*BARGED, Guess(2, 0, "Stop.")]


def test_a_flushing_transport_with_no_hold_decides_at_the_edge() -> None:
    taker = taker_after(TO_SPEAKING, "flush_only", replace(OPTIONS, hold_s=0.0))
    assert taker.feed(SpeechBegan(3.1, 3.0)) == BARGED


# ---------------------------------------------------------------- idle, manual mode


def test_idle_is_told_once_and_again_only_after_something_happened() -> None:
    taker = taker_after([])
    assert taker.feed(Tick(15.0)) == [GoneIdle()]
    assert taker.wake_at is None
    assert taker.feed(Tick(30.0)) == []
    for event in TO_SPEAKING:
        taker.feed(replace(event, now=event.now + 40))
    taker.feed(Finished(50.0))
    assert taker.wake_at == pytest.approx(65.0)


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

"""TurnTaker at a pause: when the turn is certain, and what is done before: words, a guess, a look by the turn model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from turn_situations import (
    OPTIONS,
    PATIENT,
    TEXT,
    TO_PAUSED,
    TO_USER_SPEAKING,
    taker_after,
)

from voice.speculation import Level
from voice.turn_events import (
    Commit,
    Committed,
    Decision,
    Guess,
    Heard,
    Judge,
    Judged,
    Recognise,
    Reopen,
    SpeechBegan,
    SpeechPaused,
    Tick,
    Typed,
)
from voice.turns import State, TurnTaker

OPEN = "I want to go to"


def ticks(taker: TurnTaker, until: float) -> list[tuple[float, Decision]]:
    """What it does by itself, and when, when the wakes are kept."""
    done: list[tuple[float, Decision]] = []
    for _ in range(100):
        now = taker.wake_at
        if now is None or now > until:
            return done
        done += [(round(now, 3), decision) for decision in taker.feed(Tick(now))]
    raise AssertionError("a busy loop")


# ---------------------------------------------------------------- silence and words


def test_words_that_plainly_go_on_wait_for_the_longest_delay() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, OPEN)], options=PATIENT)
    assert taker.feed(Tick(2.6)) == []
    assert [at for at, decision in ticks(taker, 9.0) if isinstance(decision, Commit)] == [4.5]


def test_a_turn_that_is_surely_over_waits_for_the_shortest_delay() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, "What time is it?")], options=PATIENT)
    assert ticks(taker, 9.0) == [(2.5, Commit(1, 0, "What time is it?"))]


def test_words_that_come_later_than_the_delay_commit_at_once() -> None:
    taker = taker_after(TO_PAUSED)
    assert taker.feed(Tick(4.0)) == []
    assert taker.feed(Heard(5.0, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]


def test_a_resumed_turn_ignores_the_words_of_its_first_half() -> None:
    taker = taker_after([*TO_PAUSED, SpeechBegan(2.4, 2.3)])
    assert taker.feed(Heard(2.5, 1, 0, "I want to")) == []
    assert taker.feed(SpeechPaused(3.2, 3.0)) == [Recognise(1, 1)]
    assert taker.feed(Heard(3.25, 1, 0, "I want to")) == []
    assert taker.feed(Heard(3.3, 1, 1, TEXT)) == [Guess(1, 1, TEXT)]


def test_words_that_changed_since_the_last_pause_are_trusted_later() -> None:
    def certain_at(first: str) -> float | None:
        taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, first), SpeechBegan(2.4, 2.3)], options=PATIENT)
        taker.feed(SpeechPaused(3.2, 3.0))
        taker.feed(Heard(3.3, 1, 1, "I saw the cat."))
        return taker.wake_at

    stable, changed = certain_at("I saw"), certain_at("Eyesore")
    assert stable is not None and changed is not None and changed > stable


def test_a_committed_turn_does_not_wait_for_silence() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Committed(1.5)], options=PATIENT)
    assert taker.feed(Heard(1.6, 1, 0, OPEN)) == [Commit(1, 0, OPEN)]


def test_a_turn_that_is_too_long_is_certain_as_soon_as_its_words_are_known() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Tick(121.0)], options=PATIENT)
    assert taker.feed(Heard(121.5, 1, 0, "and so")) == [Commit(1, 0, "and so")]


# ---------------------------------------------------------------- this caller's pauses


def test_pauses_inside_turns_are_remembered_also_when_the_turn_was_ended_in_them() -> None:
    taker = taker_after([*TO_PAUSED, SpeechBegan(2.5, 2.4), SpeechPaused(3.2, 3.0)])
    taker.feed(Heard(3.3, 1, 1, TEXT))
    taker.feed(Tick(3.5))
    assert taker.state is State.THINKING
    taker.feed(SpeechBegan(3.8, 3.75))
    assert list(taker.certainty.pauses_s) == pytest.approx([0.4, 0.75])


def test_gaps_between_words_and_long_silences_are_not_pauses() -> None:
    taker = taker_after([*TO_PAUSED, SpeechBegan(2.25, 2.05), SpeechPaused(3.2, 3.0), SpeechBegan(9.1, 9.0)])
    assert list(taker.certainty.pauses_s) == []


def test_a_caller_who_pauses_long_is_given_more_time() -> None:
    taker = taker_after(TO_PAUSED, options=PATIENT)
    taker.certainty.pauses_s.extend([1.5] * 10)
    taker.feed(Heard(2.4, 1, 0, TEXT))
    slow = [at for at, decision in ticks(taker, 9.0) if isinstance(decision, Commit)]
    taker = taker_after([*TO_PAUSED, Heard(2.4, 1, 0, TEXT)], options=PATIENT)
    assert slow > [at for at, decision in ticks(taker, 9.0) if isinstance(decision, Commit)]


# ---------------------------------------------------------------- the guess


def test_a_guess_waits_until_the_turn_is_certain_within_a_second() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, OPEN)], options=PATIENT)
    assert ticks(taker, 9.0) == [(3.5, Guess(1, 0, OPEN)), (4.5, Commit(1, 0, OPEN))]


def test_a_turn_that_goes_on_is_guessed_at_anew() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, TEXT)])
    assert taker.feed(SpeechBegan(2.4, 2.35)) == [Reopen(1, 1)]
    assert taker.feed(SpeechPaused(3.2, 3.0)) == [Recognise(1, 1)]
    assert taker.feed(Heard(3.3, 1, 1, TEXT)) == [Guess(1, 1, TEXT)]


def test_without_speculation_nothing_is_begun_before_the_shortest_delay() -> None:
    taker = taker_after(TO_USER_SPEAKING, options=replace(OPTIONS, speculate=False))
    assert taker.feed(SpeechPaused(2.2, 2.0)) == []
    assert taker.feed(Typed(2.35)) == []
    assert taker.feed(Tick(2.5)) == [Recognise(1, 0)]
    assert taker.feed(Heard(2.6, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]


def test_without_speculation_words_that_go_on_wait_without_a_guess() -> None:
    taker = taker_after([*TO_PAUSED, Tick(2.5)], options=replace(PATIENT, speculate=False))
    assert taker.feed(Heard(2.6, 1, 0, OPEN)) == []
    assert ticks(taker, 9.0) == [(4.5, Commit(1, 0, OPEN))]


@pytest.mark.parametrize(
    ("level", "begun"),
    [
        (Level.NONE, [(2.5, Recognise(1, 0))]),
        (Level.WORDS, [(2.2, Recognise(1, 0))]),
        (Level.FULL, [(2.2, Recognise(1, 0)), (2.7, Guess(1, 0, TEXT))]),
    ],
)
def test_the_level_of_a_pause_says_what_may_be_begun_in_it(
    level: Level, begun: list[tuple[float, Decision]]
) -> None:
    taker = taker_after(TO_USER_SPEAKING, options=replace(PATIENT, min_delay_s=1.5))
    done = [(2.2, decision) for decision in taker.feed(SpeechPaused(2.2, 2.0, level=level))]
    done += ticks(taker, 2.6)
    done += [(2.7, decision) for decision in taker.feed(Heard(2.7, 1, 0, TEXT))] if done else []
    done += ticks(taker, 3.4)
    assert [one for one in done if one[0] < 3.5] == (begun if level is not Level.NONE else [])
    if level is Level.NONE:
        assert ticks(taker, 3.6) == [(3.5, Recognise(1, 0))]
        assert taker.feed(Heard(3.7, 1, 0, TEXT)) == [Commit(1, 0, TEXT)]
    else:
        assert ticks(taker, 9.0) == [(3.5, Commit(1, 0, TEXT))]


# ---------------------------------------------------------------- the turn model


def looked(*completions: tuple[float, float | None], text: str = OPEN) -> list[tuple[float, Decision]]:
    """What is done at a pause at 2.0 whose words come at 2.1; the turn model takes 50 ms."""
    taker = taker_after(TO_USER_SPEAKING, options=PATIENT, judges=True)
    taker.feed(SpeechPaused(2.12, 2.0))
    done = [(2.1, decision) for decision in taker.feed(Heard(2.1, 1, 0, text))]
    for silence_s, probability in completions:
        done += ticks(taker, 2.0 + silence_s)
        now = 2.05 + silence_s
        done += [(now, d) for d in taker.feed(Judged(now, 1, 0, silence_s, probability))]
    return done + ticks(taker, 9.0)


def test_the_turn_model_is_asked_again_at_growing_pauses_until_it_is_certain() -> None:
    done = looked((0.2, 0.1), (0.4, 0.1), (0.8, 0.1), (1.4, 0.1))
    assert [(at, d.silence_s) for at, d in done if isinstance(d, Judge)] == [
        (2.2, 0.2), (2.4, 0.4), (2.8, 0.8), (3.4, 1.4)
    ]  # fmt: skip
    assert done[-1] == (4.5, Commit(1, 0, OPEN))


def test_the_turn_model_s_word_makes_the_turn_certain_sooner() -> None:
    sure = looked((0.2, 0.999), text="I saw the cat.")
    unsure = looked((0.2, 0.05), text="I saw the cat.")
    assert [type(d) for _, d in sure].count(Judge) == 1 and isinstance(sure[-1][1], Commit)
    at = [at for at, d in unsure if isinstance(d, Judge | Commit)][1]
    assert at > sure[-1][0] or unsure[-1][0] > sure[-1][0]


def test_a_turn_model_that_failed_is_not_asked_again_at_this_pause() -> None:
    done = looked((0.2, None))
    assert len([d for _, d in done if isinstance(d, Judge)]) == 1
    assert done[-1] == (4.5, Commit(1, 0, OPEN))


def test_a_turn_model_that_never_answers_holds_nothing_up() -> None:
    assert looked()[-1] == (4.5, Commit(1, 0, OPEN))


def test_it_is_not_asked_when_the_turn_is_certain_before_it_could_answer() -> None:
    done = looked(text="What time is it?")
    assert [type(d) for _, d in done if isinstance(d, Judge)] == [Judge]  # at 0.2, not again at 0.4
    late = taker_after([*TO_PAUSED, Heard(2.45, 1, 0, "What time is it?")], options=PATIENT, judges=True)
    assert ticks(late, 9.0) == [(2.5, Commit(1, 0, "What time is it?"))]


def test_a_judgement_of_an_older_pause_or_one_nobody_asked_for_changes_nothing() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, OPEN)], options=PATIENT, judges=True)
    assert taker.feed(SpeechBegan(2.4, 2.3)) == [Reopen(1, 1)]
    assert taker.feed(Judged(2.5, 1, 0, 0.2, 0.99)) == []
    taker.feed(SpeechPaused(3.2, 3.0))
    assert taker.feed(Judged(3.25, 1, 0, 0.2, 0.99)) == []
    assert taker.feed(Judged(3.25, 1, 1, 0.2, 0.99)) == []
    assert taker.feed(Heard(3.3, 1, 1, OPEN)) == [Judge(1, 1, 0.2)]
    wake = taker.wake_at
    assert taker.feed(Judged(3.35, 1, 0, 0.2, 0.99)) == []
    assert taker.wake_at == wake


def test_after_a_typed_message_it_is_asked_about_the_new_revision() -> None:
    taker = taker_after([*TO_PAUSED, Heard(2.3, 1, 0, TEXT)], options=PATIENT, judges=True)
    assert taker.feed(Typed(2.35)) == [Reopen(1, 1, speech=False), Guess(1, 1, TEXT)]
    assert taker.wake_at == 2.35
    assert taker.feed(Tick(2.35)) == [Judge(1, 1, 0.2)]


def test_a_committed_turn_asks_no_turn_model() -> None:
    taker = taker_after([*TO_USER_SPEAKING, Committed(1.5)], options=PATIENT, judges=True)
    assert taker.feed(Heard(1.6, 1, 0, OPEN)) == [Commit(1, 0, OPEN)]

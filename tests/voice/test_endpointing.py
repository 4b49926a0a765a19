"""How much silence makes a turn certain: each policy as a table, and all of them together."""

from __future__ import annotations

import itertools

import pytest

from voice.endpointing import (
    CallerPace,
    EnoughSaid,
    Evidence,
    ExpectedAnswer,
    LastWords,
    Policy,
    StableWords,
    TurnEnd,
    TurnModelSays,
    Unfinished,
    default_policies,
)
from voice.options import TurnOptions

OPTIONS = TurnOptions(min_delay_s=0.3, max_delay_s=2.5)


def heard(text: str | None = None, asked: str = "", **more: object) -> Evidence:
    return Evidence(text=text, agent_asked=asked, **more)  # type: ignore[arg-type]


def delay_s(evidence: Evidence) -> float:
    return TurnEnd().delay_s(evidence, OPTIONS)


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


@pytest.mark.parametrize(
    ("policy", "evidence", "expected"),
    [
        (TurnModelSays(), heard(), 0),
        (TurnModelSays(), heard(completions=((0.2, 0.9),)), 1),
        (TurnModelSays(), heard(completions=((0.2, 0.9), (0.4, 0.1))), -1),  # all its answers count
        (TurnModelSays(), heard(completions=((0.2, 0.5), (0.4, 0.99), (0.8, 0.99))), 1),
        (TurnModelSays(), heard(completions=((0.2, 0.5),)), -1),  # it says "done" too easily
        (LastWords(), heard(None), 0),
        (LastWords(), heard(""), 0),
        (LastWords(), heard("What time is it?"), 1),
        (LastWords(), heard("I would like to pay."), 1),
        (LastWords(), heard("Medium."), 0),
        (LastWords(), heard("I want to talk to"), -1),
        (LastWords(), heard("Let me see."), -1),
        (LastWords(), heard("Ich rufe dich an", language="de"), 0),
        (LastWords(), heard("I want an", language="en-GB"), -1),
        (Unfinished(), heard("You can call me at 555 12"), -1),
        (Unfinished(), heard("I live at 14 Maple Street"), -1),
        (Unfinished(), heard("A sandwich, two coffees."), -1),
        (Unfinished(), heard("Is it number 12?"), 0),
        (Unfinished(), heard("555 12", "What is your phone number?"), 0),  # that is ExpectedAnswer's
        (ExpectedAnswer(), heard("Yes.", "Is that correct?"), 1),
        (ExpectedAnswer(), heard("Yes.", "How can I help?"), 0),
        (ExpectedAnswer(), heard("555 12", "What is your phone number?"), -1),
        (ExpectedAnswer(), heard("It's", "What is your phone number?"), -1),
        (ExpectedAnswer(), heard("I would rather not tell you that.", "What is your phone number?"), 0),
        (ExpectedAnswer(), heard("I don't know.", "What is your email?"), 0),
        (ExpectedAnswer(), heard("Sorry, no.", "What is your phone number?"), 0),
        (ExpectedAnswer(), heard("555 123 4567", "What is your phone number?"), 1),
        (ExpectedAnswer(), heard("4719", "What is the order number?"), -1),  # of unknown length
        (ExpectedAnswer(), heard("Three.", "How many people?"), 1),
        (ExpectedAnswer(), heard("March the third", "When were you born?"), -1),
        (ExpectedAnswer(), heard("March 3rd 1985", "When were you born?"), 1),
        (ExpectedAnswer(), heard("joe at example", "What is your email?"), -1),
        (ExpectedAnswer(), heard("joe at example dot com", "What is your email?"), 1),
        (ExpectedAnswer(), heard("12 Green Lane", "Where should we deliver it?"), -1),
        (ExpectedAnswer(), heard("A sandwich.", "What would you like to order?"), -1),
        (ExpectedAnswer(), heard("A sandwich and a tea.", "What would you like to order?"), 1),
        (ExpectedAnswer(), heard(None, "Is that correct?"), 0),
        (ExpectedAnswer(), heard("Ja", "Is that correct?", language="de"), 0),
        (EnoughSaid(), heard("I called last week.", "How can I help?"), -1),
        (EnoughSaid(), heard("I called last week and you said someone would come.", "How can I help?"), 1),
        (EnoughSaid(), heard("I called last week.", "Is that right?"), 0),  # that was no open question
        (EnoughSaid(), heard("I called last week."), 0),
        (EnoughSaid(), heard("I called last week and", "How can I help?"), 0),  # LastWords has said it
        (EnoughSaid(), heard("You can call me back on five five five", "How can I help?"), 0),
        (EnoughSaid(), heard("Please tell me a joke.", "How can I help?"), 0),
        (EnoughSaid(), heard("Ich rufe an", "How can I help?", language="de"), 0),
        (ExpectedAnswer(), heard("No.", "Is that correct?"), -1),  # what is wrong comes next
        (ExpectedAnswer(), heard("No, it's not.", "Is that correct?"), 1),
        (ExpectedAnswer(), heard("Yes.", "Would you like a receipt?"), 1),
        (ExpectedAnswer(), heard("No.", "Would you like a receipt?"), 0),
        (ExpectedAnswer(), heard("Yes.", "Is there anything else?"), -1),
        (ExpectedAnswer(), heard("No, that's all.", "Is there anything else?"), 1),
        (ExpectedAnswer(), heard("Yes.", "Do you have a booking?"), -1),
        (ExpectedAnswer(), heard("Yes, I do.", "Do you have a booking?"), 1),
        (ExpectedAnswer(), heard("Tuesday.", "Which day suits you?"), 1),
        (ExpectedAnswer(), heard("471902", "What is the order number?"), 0),
        (ExpectedAnswer(), heard("I think I know it by heart.", "What is the order number?"), -1),
        (StableWords(), heard("Yes.", stable=False), -1),
        (StableWords(), heard("Yes."), 0),
    ],
)
def test_what_each_policy_makes_of_a_pause(policy: Policy, evidence: Evidence, expected: int) -> None:
    assert sign(policy.score(evidence)) == expected


def test_the_delay_falls_with_the_odds_and_stays_within_the_options() -> None:
    last = float("inf")
    for step in range(-100, 101):

        class Fixed:
            name = "fixed"

            def score(self, evidence: Evidence, value: float = step / 10) -> float:
                return value

        delay = TurnEnd([Fixed()]).delay_s(Evidence(), OPTIONS)
        assert OPTIONS.min_delay_s <= delay <= OPTIONS.max_delay_s
        assert delay <= last
        last = delay
    assert last == OPTIONS.min_delay_s


def test_a_question_is_certain_at_once_and_an_open_sentence_is_waited_for() -> None:
    question = heard("What time do you close?", completions=((0.2, 0.9),))
    statement = heard("I would like to pay.", completions=((0.2, 0.9),))
    nothing_known = heard()
    open_words = heard("I would like to talk to", completions=((0.2, 0.9),))
    delays = [delay_s(e) for e in (question, statement, nothing_known, open_words)]
    assert delays == sorted(delays)
    assert delays[0] == OPTIONS.min_delay_s and delays[-1] > 1.9


def test_a_yes_is_a_quick_turn_only_as_an_answer() -> None:
    assert delay_s(heard("Yes.", "Is that correct?")) < delay_s(heard("Yes.", "How can I help?"))


def test_a_number_is_waited_for_until_its_last_digit() -> None:
    asked = "What is your phone number?"
    digits = "5551234567"
    delays = [delay_s(heard(digits[:n], asked)) for n in range(1, 11)]
    assert all(a >= b for a, b in itertools.pairwise(delays))
    assert delays[2] > 1.5 and delays[9] == OPTIONS.min_delay_s


def test_a_number_with_one_digit_lost_is_not_waited_for_as_long_as_half_a_number() -> None:
    asked = "What is your card number?"
    half, nearly, whole = (delay_s(heard(("4071" * 4)[:n], asked)) for n in (8, 14, 16))
    assert half > nearly > whole


def test_a_comma_after_the_last_digit_delays_nothing() -> None:
    assert delay_s(heard("5551234567,", "What is your phone number?")) == OPTIONS.min_delay_s


def test_short_statements_are_waited_for_only_after_an_open_question() -> None:
    text = "My internet is not working."
    assert delay_s(heard(text, "How can I help?")) > 0.8 > delay_s(heard(text, "Which one is broken?"))
    assert delay_s(heard(text, "How can I help?")) > delay_s(heard(text))
    longer = "My internet is not working since yesterday evening."
    assert delay_s(heard(longer, "How can I help?")) == OPTIONS.min_delay_s


def test_delays_follow_the_callers_own_pauses() -> None:
    text = "I would like to pay"
    usual = delay_s(heard(text))
    assert (
        delay_s(heard(text, pauses_s=(1.6, 1.2, 1.9)))
        > usual
        > delay_s(heard(text, pauses_s=(0.2, 0.25, 0.2)))
    )
    fixed = TurnEnd(adapt=False)
    assert fixed.delay_s(heard(text, pauses_s=(1.6, 1.2, 1.9)), OPTIONS) == fixed.delay_s(
        heard(text), OPTIONS
    )


def test_one_long_pause_makes_no_slow_agent() -> None:
    pace = CallerPace()
    assert pace.factor(()) == 1.0
    assert pace.factor((2.5,)) < 1.7
    assert pace.factor((2.5,) * 50) == pace.most
    assert pace.factor((0.0,) * 50) == pace.least


def test_without_english_words_the_sound_still_counts() -> None:
    done = heard("Ich möchte bezahlen", language="de", completions=((0.2, 0.97),))
    not_done = heard("Ich möchte bezahlen", language="de", completions=((0.2, 0.02),))
    assert delay_s(done) < delay_s(not_done)


def test_each_part_of_a_score_can_be_read() -> None:
    ends = TurnEnd()
    evidence = heard("What time is it?", completions=((0.2, 0.9),))
    parts = ends.explain(evidence)
    assert set(parts) == {policy.name for policy in default_policies()}
    assert ends.score(evidence) == pytest.approx(sum(parts.values()))

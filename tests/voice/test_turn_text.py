"""Signs in a transcript, as tables."""

from __future__ import annotations

import random

import pytest

from voice.turn_text import (
    Ending,
    Expected,
    bare_answer,
    expected_answer,
    has_place,
    has_year,
    is_command,
    is_email,
    is_no_more,
    is_refusal,
    is_yes_or_no,
    read_signs,
)
from voice.turn_text import trailing_digits as digits


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("", Ending.NOTHING),
        ("...", Ending.NOTHING),
        ("I want to talk to", Ending.OPEN),
        ("I want to talk to.", Ending.OPEN),  # recognisers close everything
        ("It was the...", Ending.OPEN),
        ("Yes, and", Ending.OPEN),
        ("My name is.", Ending.OPEN),
        ("It's the, um", Ending.HESITATION),
        ("Hold on.", Ending.HESITATION),
        ("Let me see.", Ending.HESITATION),
        ("Well.", Ending.HESITATION),
        ("It works well.", Ending.SENTENCE),
        ("I can't wait.", Ending.HESITATION),  # a false friend: costs a pause, not a cut-off
        ("I would like a coffee, a tea,", Ending.CUT),
        ("I was thinking...", Ending.CUT),
        (
            "Who should I talk to about.",
            Ending.SENTENCE,
        ),  # a preposition ends a question without its mark, too
        ("What time do you close, eh?", Ending.QUESTION),
        ("What I want is the", Ending.OPEN),
        ("If the train is late.", Ending.CLAUSE),
        ("If the train is late, I will call you.", Ending.SENTENCE),
        ("When does the train leave?", Ending.QUESTION),
        ("What is it made of?", Ending.QUESTION),  # a preposition ends a question
        ("I would like to pay.", Ending.SENTENCE),
        ("Thanks. I would like to pay", Ending.FRAGMENT),
        ("Medium.", Ending.FRAGMENT),
    ],
)
def test_how_english_words_end(text: str, ending: Ending) -> None:
    assert read_signs(text).ending is ending


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("Ich rufe dich an.", Ending.SENTENCE),  # "an" is open in English only
        ("Wie geht es dir?", Ending.QUESTION),
        ("明日は、", Ending.CUT),
        ("Ich möchte", Ending.FRAGMENT),
    ],
)
def test_of_other_languages_only_punctuation_counts(text: str, ending: Ending) -> None:
    assert read_signs(text, english=False).ending is ending


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("five five five one two", 5),
        ("555-12", 5),
        ("It's 5 5 5, 1 2.", 5),
        ("double four nine", 3),
        ("triple seven", 3),
        ("twenty one", 2),
        ("twenty oh one", 4),
        ("nineteen eighty five", 4),
        ("0.0 8 6", 4),
        ("two cats", 0),
        ("I am two years old.", 0),
        ("", 0),
    ],
)
def test_digits_at_the_end_are_counted_in_words_and_figures(text: str, count: int) -> None:
    assert digits(text) == count


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("", Expected()),
        ("Your table is booked.", Expected()),
        ("I have your phone number.", Expected()),  # nothing was asked
        ("I need your phone number.", Expected("number", 7, 10)),
        ("How can I help?", Expected("open")),
        ("What happened?", Expected("open")),
        ("Could you describe the noise?", Expected("open")),
        ("Please tell me more.", Expected("open")),
        ("And when would you like to come?", Expected("detail")),
        ("Which size would you like?", Expected("detail")),
        ("What day is it?", Expected("detail")),
        ("How long do you stay?", Expected("detail")),
        ("What is your phone number?", Expected("number", 7, 10)),
        ("Thanks! And the last four digits of your card?", Expected("number", 4, 4)),
        ("Please enter your 6-digit code.", Expected("number", 6, 6)),
        ("What's your ZIP code?", Expected("number", 5, 5)),
        ("Could you give me the order number?", Expected("number", 0, 0)),
        ("How many people?", Expected("quantity")),
        ("What is your date of birth?", Expected("date")),
        ("What's the delivery address?", Expected("address")),
        ("What is your email address?", Expected("email")),
        ("May I have your full name?", Expected("name")),
        ("Is that correct?", Expected("check")),
        ("At noon, right?", Expected("check")),
        ("Can you hear me?", Expected("check")),
        ("Great. Would you like a receipt?", Expected("offer")),
        ("Do you have a reservation?", Expected("yes_no")),
        ("Is there anything else?", Expected("more")),
        ("Do you have any other questions?", Expected("more")),
        ("Would you like tea or coffee?", Expected("detail")),
        ("Which days suit you?", Expected("list")),
        ("I have booked it. What is your phone number? I will call you.", Expected("number", 7, 10)),
    ],
)
def test_what_the_agent_asked_for(question: str, expected: Expected) -> None:
    assert expected_answer(question) == expected


def test_kinds_of_answers() -> None:
    assert is_yes_or_no("Yeah, that's right.") and is_yes_or_no("No, thank you.")
    assert not is_yes_or_no("Yes, at nine.") and not is_yes_or_no("")
    assert bare_answer("Yeah.") == bare_answer("Yes, sure") == "yes" and bare_answer("No, no.") == "no"
    assert bare_answer("Yes, please.") is bare_answer("No, I am not.") is bare_answer("") is None
    assert is_no_more("No.") and is_no_more("That’s all I need.") and not is_no_more("No, I need two.")
    assert is_command("Please tell me a joke.") and is_command("Hi there. Play some music.")
    assert not is_command("I can tell you.") and not is_command("Please.") and not is_command("")
    assert is_refusal("I don't know.") and is_refusal("Sorry, no.") and not is_refusal("I can't sleep.")
    assert has_year("March 3rd 1985") and has_year("nineteen eighty five") and has_year("3/14/85")
    assert not has_year("March the third")
    assert has_place("12 Green Lane, Chester") and not has_place("12 Green Lane")
    assert is_email("joe at example dot com.") and not is_email("joe at example")


@pytest.mark.parametrize(
    ("text", "in_list"),
    [
        ("Two coffees, a sandwich.", True),
        ("Monday, Tuesday.", True),
        ("Milk. Eggs.", True),
        ("Two coffees, and a sandwich.", False),
        ("Yeah, I do.", False),
        ("No, thank you.", False),
        ("Thanks, I would like to pay now.", False),
    ],
)
def test_a_list_is_open_until_its_last_item(text: str, in_list: bool) -> None:
    assert read_signs(text).in_list is in_list


def test_a_house_number_and_a_street_alone_are_part_of_an_address() -> None:
    assert read_signs("I live at 14.").in_address
    assert read_signs("I live at 14 Maple").in_address
    assert read_signs("I live at 14 Maple Street").in_address
    assert not read_signs("I live at 14 Maple Street in Boston.").in_address


def test_any_text_can_be_read() -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    draw = random.Random(seed)
    letters = "ab ,.-?!…'’\"19 \n\t٣é日,.  "
    for _ in range(3000):
        text = "".join(draw.choice(letters) for _ in range(draw.randrange(30)))
        signs = read_signs(text, english=draw.random() < 0.8)
        assert signs.digits >= 0 and (signs.ending is Ending.NOTHING) == (signs.words == 0)
        expected_answer(text), is_yes_or_no(text), has_year(text), has_place(text), is_email(text)
        bare_answer(text), is_no_more(text), is_command(text), is_refusal(text)

"""What counts as a word error: normalising, alignment, pooling and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.wer import Errors, compare, main, normalise, pooled


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello, World!", "hello world"),
        ("I'm sorry, that's not a valid extension.", "I am sorry that is not a valid extension"),
        ("It can't be; we won't.", "it cannot be we will not"),
        ("twenty-one", "21"),
        ("one hundred and two", "102"),
        ("two thousand three hundred forty five", "2,345"),
        ("five five five, oh one two three", "555-0123"),
        ("three point one four", "3.14"),
        ("ten percent", "10%"),
        ("Dr. Smith", "doctor smith"),
        ("um, well, uh yes", "well yes"),
        ("The third [laughs] time", "the third time"),
        ("It’s OK", "it is okay"),
    ],
)
def test_texts_that_sound_alike_are_the_same_words(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(("one", "other"), [("twenty one", "22"), ("no", "not"), ("twenty ten", "2010 a")])
def test_texts_that_sound_different_stay_different(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_numbers_that_are_no_number_together_stay_apart() -> None:
    assert normalise("nineteen eighty four") == ["19", "84"]
    assert normalise("thirty forty") == ["30", "40"]
    assert normalise("salt and two eggs") == ["salt", "and", "2", "eggs"]


def test_each_kind_of_error_is_counted() -> None:
    assert compare("the boat sailed past", "the boat sailed past") == Errors(4)
    assert compare("the boat sailed past", "a boat sailed past") == Errors(4, substituted=1)
    assert compare("the boat sailed past", "the boat past") == Errors(4, deleted=1)
    assert compare("the boat sailed past", "the boat sailed right past") == Errors(4, inserted=1)
    assert compare("", "you") == Errors(0, inserted=1)


def test_an_empty_reference_is_right_only_when_nothing_was_heard() -> None:
    assert compare("", "").rate == 0.0
    assert compare("", "you").rate == float("inf")


def test_pooling_weighs_texts_by_their_words() -> None:
    errors = pooled(
        [
            ("yes", "no"),
            ("one of the nine other words here is right", "one of the nine other words here is right"),
        ]
    )
    assert (errors.total, errors.words) == (1, 10)
    assert errors.rate == pytest.approx(0.1)


def test_the_command_prints_the_rate_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, results = tmp_path / "m.jsonl", tmp_path / "r.jsonl"
    manifest.write_text("\n".join(json.dumps({"text": t}) for t in ("press star", "good morning")))
    turns = [{"type": "turn", "user": "Press start."}, {"type": "turn", "user": "Good morning!"}]
    results.write_text("\n".join(json.dumps(row) for row in [*turns, {"type": "summary", "turns": 2}]))
    assert main([str(manifest), str(results)]) == 0
    out = capsys.readouterr().out
    assert "25.00 % (1 of 4 words" in out
    assert "'Press start.'" in out


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, results = tmp_path / "m.jsonl", tmp_path / "r.jsonl"
    manifest.write_text('{"text": "yes"}\n{"text": "no"}\n')
    results.write_text('{"user": "yes"}\n')
    assert main([str(manifest)]) == 2
    assert main([str(manifest), str(results)]) == 1
    assert main([str(manifest), str(tmp_path / "none.jsonl")]) == 1
    assert "but there are 1 turns" in capsys.readouterr().err

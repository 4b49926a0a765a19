"""B37: the sentence splitter cuts at a decimal point: "Pi is 3." / "14 and".

Kind of fault: a decision is taken before the text that decides it has arrived. Made impossible in
``voice/spoken/splitter.py``: ``_after_number`` returns "wait" for a stop after a digit while the next
character is unknown, and nothing is cut at a position that waits; only ``finish`` and ``release`` (a stalled
model) resolve it.
"""

from __future__ import annotations

import re

import pytest

from voice.spoken import SpeechText

CASES = [
    ("Pi is 3.14.", 1),
    ("It costs $3.5 or 8,848.86 m.", 1),
    ("Version 2.4.1 is out.", 1),
    ("Room 12. Next floor.", 2),
    ("Done 3.", 1),
]


def after_points(text: str) -> list[str]:
    return re.findall(r"[^.]*\.|[^.]+", text)


@pytest.mark.parametrize(("text", "count"), CASES)
@pytest.mark.parametrize("cut", [list, after_points, lambda text: [text]])
def test_a_number_stays_in_one_chunk(text: str, count: int, cut: object) -> None:
    speech = SpeechText()
    seen, chunks = "", []
    for delta in cut(text):  # type: ignore[operator]
        seen += delta
        for segment in speech.feed(delta):
            chunks.append(segment)
            given = "".join(s.written for s in chunks)
            assert not (re.search(r"\d\.$", given) and given == seen), (
                "cut while the next character is unknown"
            )
    chunks += speech.finish()
    assert len([c for c in chunks if c.spoken]) == count
    assert "".join(c.written for c in chunks) == text


def test_a_stop_after_an_ordinary_word_needs_no_look_ahead() -> None:
    speech = SpeechText()
    assert [s.spoken for s in speech.feed("I like the weather.")] == ["I like the weather."]


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. Jones.",
        "Bring fruit, e.g. apples.",
        "He left the U.S. Army.",
        "It opens at 9 a.m. on weekdays.",
        "Write to bob.smith@ex.am today.",
        "Go to https://ex.am/a.b.c now.",
        "Wait... what happened?",
        "J. Smith wrote it.",
        "It is No. 5 of them.",
        "Mix it approx. five minutes.",
    ],
)
def test_abbreviations_addresses_and_ellipses_end_no_sentence(text: str) -> None:
    speech = SpeechText(first_clause_words=99)
    tokens = re.findall(r"\s*\S+", text)
    segments = [s for token in tokens for s in speech.feed(token)] + speech.finish()
    assert len([s for s in segments if s.spoken]) == 1


def test_a_stalled_model_gives_out_the_number_in_hand() -> None:
    speech = SpeechText()
    assert speech.feed("You are in room 12.") == []
    assert [s.written for s in speech.release()] == ["You are in room 12."]

"""Speech text: when segments leave, what they say, and which written words they stand for."""

from __future__ import annotations

import re

import pytest

from voice.errors import BadRequest
from voice.spoken import Segment, SpeechText, prepare


def speak(text: str, **options: object) -> list[Segment]:
    speech = SpeechText(**options)  # type: ignore[arg-type]
    tokens = re.findall(r"\s*[^\W_]+|\s+|[^\s\w]+|_", text)
    assert "".join(tokens) == text
    return [s for token in tokens for s in speech.feed(token)] + speech.finish()


def spoken(text: str, **options: object) -> list[str]:
    return [s.spoken for s in speak(text, **options) if s.spoken]


# ---------------------------------------------------------------- when segments leave


def test_the_first_clause_leaves_early_and_later_text_by_sentences() -> None:
    text = "Well, if you ask me, it is fine, really. Then we go, you and I, to the park."
    assert spoken(text) == [
        "Well, if you ask me,",
        "it is fine, really.",
        "Then we go, you and I, to the park.",
    ]


def test_a_clause_of_fewer_words_than_asked_for_waits() -> None:
    assert spoken("Sure, yes.", first_clause_words=3) == ["Sure, yes."]


@pytest.mark.parametrize("mark", [",", ";", ":", " —", " -"])
def test_every_clause_mark_lets_the_first_clause_out_without_the_next_word(mark: str) -> None:
    speech = SpeechText()
    segments = speech.feed(f"I think so too{mark} ")
    assert [s.spoken.rstrip(",;:") for s in segments] == ["I think so too"]
    assert not segments[0].ends_sentence


def test_a_comma_in_a_number_or_date_is_no_clause() -> None:
    assert spoken("It was about 1,000 then.") == ["It was about one thousand then."]
    assert len(spoken("It was on November 30, 2026 then.")) == 1


def test_a_typical_sentence_end_leaves_at_once_and_an_abbreviation_waits() -> None:
    speech = SpeechText()
    assert [s.spoken for s in speech.feed("It rains. ")] == ["It rains."]
    assert speech.feed("Ask Dr.") == []
    assert speech.feed(" No.") == []
    assert [s.spoken for s in speech.feed(" 5!")] == ["Ask Doctor number five!"]


def test_a_stall_gives_out_whole_words_and_keeps_a_number_from_its_unit() -> None:
    speech = SpeechText()
    speech.feed("We will drive about 5 ")
    assert [s.spoken for s in speech.release()] == ["We will drive about"]
    assert speech.pending_chars > 0
    assert [s.spoken for s in speech.feed("km today.")] == ["five kilometers today."]


def test_a_stall_keeps_the_word_that_may_be_incomplete() -> None:
    speech = SpeechText()
    speech.feed("The answer to this is forty")
    assert [s.written for s in speech.release()] == ["The answer to this is "]
    assert speech.release() == []
    assert [s.spoken for s in speech.feed("-two.")] == ["forty-two."]


def test_a_stall_before_a_few_words_are_there_gives_out_nothing() -> None:
    speech = SpeechText()
    speech.feed("The ")
    assert speech.release() == []


def test_nothing_may_be_fed_after_the_end() -> None:
    speech = SpeechText()
    speech.finish()
    assert speech.finish() == []
    with pytest.raises(BadRequest):
        speech.feed("more")


def test_a_limit_too_small_for_numbers_is_refused() -> None:
    with pytest.raises(BadRequest, match="at least 40"):
        SpeechText(max_chars=10)


# ---------------------------------------------------------------- what is said


def test_lists_headings_and_rows_end_with_a_pause_and_numbers_of_items_are_kept() -> None:
    assert spoken("## Plan\n1. Open it\n2. Close it!\n\n| a | b |\n|---|---|\n| c | d |\n") == [
        "Plan.",
        "1, Open it.",
        "2, Close it!",
        "a, b.",
        "c, d.",
    ]


def test_short_lines_are_parted_by_a_pause_and_long_ones_flow_on() -> None:
    assert spoken("Flour\nEggs\nMilk") == ["Flour, Eggs, Milk"]
    long = "this line is long enough to have been wrapped by a program\nand goes on here"
    assert spoken(long) == [long.replace("\n", " ")]


def test_a_segment_without_letters_or_digits_is_silent() -> None:
    for text in ("...", "-", "😀👍", "—", "?!", "\n\n", "***"):
        assert spoken(text) == []
        assert "".join(s.written for s in speak(text)) == text


def test_a_domain_cut_after_its_point_still_says_all_its_words() -> None:
    assert spoken("Visit example.com now.") == ["Visit example.", "dot com now."]
    whole = SpeechText()
    assert [s.spoken for s in whole.feed("Visit example.com now.")] == ["Visit example dot com now."]


def test_what_follows_code_or_reasoning_is_spoken_at_once() -> None:
    speech = SpeechText()
    assert speech.feed("<think>" + "hmm " * 300)[-1].spoken == ""
    assert speech.pending_chars < 20
    assert [s.spoken for s in speech.feed("</think>Yes, of course. ") if s.spoken] == ["Yes, of course."]


@pytest.mark.parametrize("language", ["en", "de", "it", "zh", "xx"])
def test_a_language_can_be_loaded_ahead(language: str) -> None:
    prepare(language)


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("de", "Das ist z.B. gut. Dr. Meier kommt am 3. Mai. Bis dann.", 3),
        ("es", "El Sr. Pérez vino. Bien.", 2),
        ("fr", "Il a 3,5 euros. Oui.", 2),
        ("hi", "यह है। वह है।", 2),
    ],
)
def test_other_languages_keep_their_abbreviations_together(language: str, text: str, count: int) -> None:
    assert len(spoken(text, language=language)) == count


# ---------------------------------------------------------------- what was heard


def test_a_word_counts_as_heard_from_its_half() -> None:
    (segment,) = speak("Hello wonderful world.", first_clause_words=9)
    assert segment.written_until(2.4) == ""
    assert segment.written_until(2.5) == "Hello"
    assert segment.written_until(6 + 4) == "Hello"
    assert segment.written_until(6 + 5) == "Hello wonderful"
    assert segment.written_until(len(segment.spoken)) == "Hello wonderful world."


def test_a_link_target_and_markup_are_never_cut_and_belong_to_their_word() -> None:
    (segment,) = speak("See **this** [page](https://ex.am/p?q=1) today.")
    assert segment.spoken == "See this page today."
    heard = {segment.written_until(n) for n in range(len(segment.spoken))}
    assert heard == {
        "",
        "See",
        "See **this**",
        "See **this** [page](https://ex.am/p?q=1)",
        "See **this** [page](https://ex.am/p?q=1) today.",
    }


def test_the_host_of_a_url_stands_for_all_of_it() -> None:
    (segment,) = speak("Look at https://www.ex.am/a/b?c=1. ", first_clause_words=9)[:1]
    assert segment.spoken == "Look at ex dot am."
    assert {segment.written_until(n) for n in range(10, 18)} <= {
        "Look at",
        "Look at https://www.ex.am/a/b?c=1.",
    }


def test_ideographs_are_heard_one_by_one() -> None:
    (segment,) = speak("今天很好。", language="zh")
    assert [segment.written_until(n) for n in (0.4, 0.5, 1.5, 5)] == ["", "今", "今天", "今天很好。"]


def test_words_tell_where_they_lie() -> None:
    (segment,) = speak("It costs $5.")
    assert [w.text for w in segment.words()] == ["It", "costs", "five", "dollars."]
    assert all(segment.spoken[w.start : w.end] == w.text for w in segment.words())

"""Properties of the speech text that hold for every answer and every way the stream may cut it."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from voice.spoken import Segment, SpeechText

# Pieces that touch every rule, glued at random, so that markup, numbers and stops meet in all orders.
PIECES = [
    "Hello there, my friend", "The weather is nice", "No", "Dr. ", "e.g. ", "U.S. ", "J. Smith", "etc. ",
    "St. ", ". ", ".", "! ", "?", "... ", "…", ", ", "; ", ": ", " — ", " - ", "-", "\n", "\n\n", "\r\n",
    "\t", " ", "3.14", "$49.95", "$3.5", "8,848.86 m", "2.4.1", "555-0123", "+1 (415) 555-2671",
    "2026-11-30", "10%", "5 km", "1/2", "A17", "-3", "8:05 pm", "12", "3", "1️⃣", "**", "*", "_", "__",
    "~~", "`", "```", "```py\nx = 1\n```", "# ", "#1", "- ", "* ", "1. ", "> ", "| a | b |", "|---|---|",
    "|", "---", "[", "]", "](https://ex.am/p?q=(1))", "[site](https://ex.am/p?q=1)", "![pic](a.png)",
    "[1]", "https://ex.am/p?q=1", "www.ex.am", "ht", "http", "bob@ex.am", "main.py", "example.com", "<",
    ">", "<b>", "</b>", "<br/>", "<think>", "</think>", "<thi", "a < b", "<tool_call>", "</tool_call>",
    "<|im_end|>", "<a href='x'>", '{"name": "f", "arguments": {}}', "{", "}", "[{", '"', "&amp;", "&",
    "👨‍👩‍👧", "🇩🇪", "😀", "❤️", "\u200d", "\ufe0f", "\ud83d", "\ude00", "\x07", "\\", "\\*", "(", ")",
    "snake_case", "2 * 3", "C#", "你好。", "今天，", "東京", "」", "é", "e\u0301", "½", "don't", "“Yes.” ",
    "weather.It",
]  # fmt: skip
answers = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=24).map("".join)
languages = st.sampled_from(["en", "de", "it", "zh", "xx"])


def speak(text: str, cuts: list[int] | None = None, **options: object) -> list[Segment]:
    speech = SpeechText(**options)  # type: ignore[arg-type]
    places = sorted({0, len(text), *(c for c in cuts or [] if c < len(text))})
    segments = [s for a, b in pairwise(places) for s in speech.feed(text[a:b])]
    segments += speech.finish()
    assert speech.pending_chars == 0 and speech.finish() == []
    return segments


def spoken_words(segments: list[Segment]) -> list[str]:
    return re.findall(r"[^\W_]", " ".join(s.spoken for s in segments))


@given(answers, st.lists(st.integers(0, 200)), languages)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_written_text_comes_back_exactly_however_it_was_cut(
    text: str, cuts: list[int], language: str
) -> None:
    assert "".join(s.written for s in speak(text, cuts, language=language)) == text


@given(answers, st.lists(st.integers(0, 200)), st.sampled_from([40, 300]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_same_words_are_spoken_however_the_stream_was_cut(
    text: str, cuts: list[int], max_chars: int
) -> None:
    assert spoken_words(speak(text, cuts, max_chars=max_chars)) == spoken_words(
        speak(text, max_chars=max_chars)
    )


@given(answers)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_same_words_are_spoken_character_by_character(text: str) -> None:
    assert spoken_words(speak(text, list(range(len(text))))) == spoken_words(speak(text))


@given(answers, st.lists(st.integers(0, 200)), languages, st.sampled_from([40, 80, 300]))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_segments_are_speakable_and_their_spans_consistent(
    text: str, cuts: list[int], language: str, max_chars: int
) -> None:
    for segment in speak(text, cuts, language=language, max_chars=max_chars):
        assert len(segment.spoken) <= max_chars
        assert segment.spoken == segment.spoken.strip()
        assert not segment.spoken or any(c.isalnum() for c in segment.spoken)
        assert not re.search(r"[\x00-\x1f\ue000\ud800-\udfff😀👨❤]", segment.spoken)
        spoken_at = written_at = 0
        for span in segment.spans:
            assert span.spoken_start == spoken_at < span.spoken_end
            assert written_at <= span.written_start <= span.written_end <= len(segment.written)
            spoken_at, written_at = span.spoken_end, span.written_end
        assert spoken_at == len(segment.spoken)


@given(answers, st.lists(st.floats(0, 400), min_size=2, max_size=6))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_heard_text_is_a_prefix_that_grows(text: str, positions: list[float]) -> None:
    for segment in speak(text):
        heard = [segment.written_until(p) for p in sorted(positions)]
        assert all(segment.written.startswith(h) for h in heard)
        assert all(len(a) <= len(b) for a, b in pairwise(heard))
        assert segment.written_until(len(segment.spoken)) == segment.written


@given(answers, st.lists(st.integers(0, 200)))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_stall_anywhere_loses_no_text_and_keeps_the_limits(text: str, cuts: list[int]) -> None:
    speech = SpeechText(max_chars=60)
    segments: list[Segment] = []
    places = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    for a, b in pairwise(places):
        segments += speech.feed(text[a:b]) + speech.release()
    segments += speech.finish()
    assert "".join(s.written for s in segments) == text
    assert all(len(s.spoken) <= 60 for s in segments)


@given(answers, st.integers(40, 300))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_what_is_held_back_stays_bounded(text: str, max_chars: int) -> None:
    speech = SpeechText(max_chars=max_chars)
    for piece in re.findall(r"(?s).{1,7}", text * 8):
        speech.feed(piece)
        assert speech.pending_chars <= max_chars + 400

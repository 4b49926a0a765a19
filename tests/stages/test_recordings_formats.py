"""Transcripts of recordings: when words are said, who says them, and how it is written down."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.asr.recordings.cut import Piece
from stages.asr.recordings.formats import LINE_CHARS, LONGEST_CUE_S, cues, written
from stages.asr.recordings.result import RecordingTranscript, Segment
from stages.asr.recordings.speakers import with_speakers
from stages.asr.recordings.timing import Stretch, estimated, placed, segment_of, segments
from stages.asr.speakers.diarise import SpeakerTurn
from voice.interfaces import Transcript, Word

SPANS = st.lists(st.tuples(st.floats(0.1, 12.0), st.floats(0.1, 4.0)), min_size=1, max_size=6)
TEXT = st.text(st.sampled_from("abcdefgh    .,?!<>&-世界"), min_size=1, max_size=300)


def spans_of(lengths: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    at, found = 1.0, []
    for speech_s, pause_s in lengths:
        found.append((at, at + speech_s))
        at += speech_s + pause_s
    return tuple(found)


def words(text: str, start_s: float = 0.0, each_s: float = 0.4) -> tuple[Word, ...]:
    return tuple(
        Word(word, start_s + n * each_s, start_s + (n + 1) * each_s, 0.9)
        for n, word in enumerate(text.split())
    )


def transcript(*parts: Segment) -> RecordingTranscript:
    return RecordingTranscript(Path("a.wav"), parts, 10.0, language="en")


# ---------------------------------------------------------------- times


@settings(max_examples=60, deadline=None)
@given(TEXT, SPANS)
def test_estimated_words_are_in_order_inside_the_speech(
    text: str, lengths: list[tuple[float, float]]
) -> None:
    spans = spans_of(lengths)
    found = estimated(text if text.strip() else "a", spans)
    assert "".join(w.text for w in found) == "".join((text if text.strip() else "a").split())
    assert spans[0][0] <= found[0].start_s
    assert found[-1].end_s <= spans[-1][1] + 1e-6
    for word in found:
        assert word.start_s <= word.end_s
    for before, after in pairwise(found):
        assert before.end_s <= after.start_s + 1e-6


def test_a_pause_is_put_where_the_text_pauses() -> None:
    found = estimated("Yes. That is the number of the second office.", [(0.0, 1.0), (3.0, 6.0)])
    assert found[0].end_s == pytest.approx(1.0)
    assert found[1].start_s == pytest.approx(3.0)


def test_sentences_and_long_pauses_make_segments() -> None:
    stretch = Stretch(((0.0, 1.0), (3.0, 6.0)))
    found = segments(stretch, Transcript("Yes. That is the number. Call it"))
    assert [s.text for s in found] == ["Yes.", "That is the number.", "Call it"]
    timed = (Word("one", 0.0, 0.4), Word("two", 0.4, 0.9), Word("three", 3.0, 3.5))
    found = segments(stretch, Transcript("one two three", words=timed))
    assert [(s.text, s.start_s, s.end_s) for s in found] == [("one two", 0.0, 0.9), ("three", 3.0, 3.5)]


def test_the_engines_words_move_with_their_piece() -> None:
    piece = Piece(
        ((16_000, 32_000), (80_000, 96_000)), ((16_000, 32_000), (80_000, 96_000)), np.zeros(32_000, np.int16)
    )
    moved = placed(piece, Transcript("a b", words=(Word("a", 0.5, 0.8), Word("b", 1.5, 1.8))))
    assert [(w.start_s, w.end_s) for w in moved.words] == [(1.5, 1.8), (5.5, 5.8)]


def test_scripts_without_spaces_stay_without_them() -> None:
    (segment,) = segments(Stretch(((0.0, 2.0),)), Transcript("今日は世界"))
    assert segment.text == "今日は世界"
    assert len(segment.words) == 5


def test_words_that_carry_their_own_spaces_are_joined_by_them() -> None:
    parts = (Word(" twenty", 0.0, 0.3), Word("-one", 0.3, 0.5), Word(" days", 0.5, 0.8))
    assert segment_of(parts).text == "twenty-one days"


def test_no_text_makes_no_segment() -> None:
    assert segments(Stretch(((0.0, 1.0),)), Transcript("  ")) == []


# ---------------------------------------------------------------- subtitles


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, SPANS), max_size=4), st.booleans())
def test_subtitles_keep_their_limits_whatever_is_said(
    said: list[tuple[str, list[tuple[float, float]]]], named: bool
) -> None:
    at_s, parts = 0.0, []
    for text, lengths in said:
        spans = tuple((a + at_s, b + at_s) for a, b in spans_of(lengths))
        at_s = spans[-1][1]
        parts += segments(Stretch(spans), Transcript(text))
    if named:
        parts = with_speakers(parts, [SpeakerTurn(0.0, at_s + 1, "A")], exact_words=False)
    found = cues(parts, name_speakers=named)
    for cue in found:
        assert 0 < cue.end_ms - cue.start_ms <= LONGEST_CUE_S * 1000
        assert 1 <= len(cue.lines) <= 2
        assert all(0 < len(line) <= LINE_CHARS for line in cue.lines)
    for before, after in pairwise(found):
        assert before.end_ms <= after.start_ms
    shown = "".join("".join(cue.lines) for cue in found).replace(" ", "")
    spoken = "".join(text for text, _ in said)
    assert shown.replace("A:", "") == "".join(spoken.split()).replace("A:", "")


def test_subrip_is_numbered_and_has_commas() -> None:
    text = written(transcript(segment_of(words("Hello there.")), segment_of(words("Who is it?", 3.0))), "srt")
    assert text == (
        "1\n00:00:00,000 --> 00:00:01,000\nHello there.\n\n2\n00:00:03,000 --> 00:00:04,200\nWho is it?\n"
    )


def test_webvtt_names_its_speakers_and_escapes() -> None:
    text = written(transcript(segment_of(words("Is 1 < 2 & so?", 3661.5), "B")), "vtt")
    assert text.startswith("WEBVTT\n\n01:01:01.500 --> 01:01:03.900\n")
    assert text.endswith("<v B>Is 1 &lt; 2 &amp; so?\n")


def test_long_sentences_are_cut_at_a_comma_and_lines_are_even() -> None:
    text = "If the weather stays as it is, we will leave the harbour tomorrow morning, " * 2
    found = cues([segment_of(words(text, each_s=0.1))])
    assert found[0].lines[-1].endswith(",")
    assert all(abs(len(c.lines[0]) - len(c.lines[1])) < 15 for c in found if len(c.lines) == 2)


def test_a_text_that_looks_like_a_cue_is_none() -> None:
    text = written(transcript(segment_of(words("00:01 --> 00:02 x"))), "srt")
    assert len(re.findall("-->", text)) == 1


# ---------------------------------------------------------------- text, JSON


def test_text_has_a_line_for_each_speaker_and_after_each_long_pause() -> None:
    parts = [
        segment_of(words("Good day.", 0.0), "A"),
        segment_of(words("Sit down.", 1.0), "A"),
        segment_of(words("Thanks.", 2.0), "B"),
        segment_of(words("Well?", 9.0), "B"),
    ]
    assert written(transcript(*parts), "text") == "A: Good day. Sit down.\nB: Thanks.\nB: Well?\n"
    assert written(transcript(), "text") == ""


def test_json_has_words_only_if_the_engine_gave_them() -> None:
    segment = segment_of(words("Good day."), "A")
    plain = json.loads(written(transcript(segment), "json"))
    assert plain["segments"] == [{"start_s": 0.0, "end_s": 0.8, "text": "Good day.", "speaker": "A"}]
    exact = RecordingTranscript(Path("a.wav"), (segment,), 10.0, exact_words=True)
    (row,) = json.loads(written(exact, "json"))["segments"]
    assert row["words"][0] == {"text": "Good", "start_s": 0.0, "end_s": 0.4, "probability": 0.9}


# ---------------------------------------------------------------- speakers


def test_a_segment_is_his_who_talks_most_in_it() -> None:
    turns = [SpeakerTurn(0.0, 1.0, "A"), SpeakerTurn(1.0, 4.0, "B")]
    parts = [segment_of(words("one two three four five six"))]
    assert [s.speaker for s in with_speakers(parts, turns, exact_words=False)] == ["B"]


def test_with_the_words_times_a_segment_is_cut_where_the_speaker_changes() -> None:
    turns = [SpeakerTurn(0.0, 1.2, "A"), SpeakerTurn(1.2, 4.0, "B")]
    found = with_speakers([segment_of(words("one two three four five six"))], turns, exact_words=True)
    assert [(s.speaker, s.text) for s in found] == [("A", "one two three"), ("B", "four five six")]


def test_a_flicker_of_the_diariser_cuts_no_sentence() -> None:
    turns = [SpeakerTurn(0.0, 0.8, "A"), SpeakerTurn(0.8, 1.1, "B"), SpeakerTurn(1.1, 4.0, "A")]
    found = with_speakers(
        [segment_of(words("one two three four five six", each_s=0.35))], turns, exact_words=True
    )
    assert [s.speaker for s in found] == ["A"]


def test_words_that_no_turn_covers_are_the_nearest_speakers() -> None:
    turns = [SpeakerTurn(0.0, 1.0, "A"), SpeakerTurn(8.0, 9.0, "B")]
    found = with_speakers([segment_of(words("hello", 7.0))], turns, exact_words=False)
    assert [s.speaker for s in found] == ["B"]
    assert with_speakers([segment_of(words("hello"))], [], exact_words=False)[0].speaker is None

"""B39: Chinese or Japanese text is never split, or a long text overruns the synthesiser.

Kind of fault: a splitter that only knows spaces and Latin stops, and a limit that is not enforced. Made
impossible in ``voice/spoken/splitter.py`` (full-width stops need nothing after them) and
``voice/spoken/stream.py``: ``_cut`` never lets clean text grow past the limit (``fallback.long_cut``: clause
mark, space, count), and ``_segments`` cuts again whatever has become longer than ``max_chars`` when spelt
out.
"""

from __future__ import annotations

import pytest

from voice.spoken import Segment, SpeechText

LIMIT = 510


def speak(text: str, language: str, size: int = 1) -> list[Segment]:
    speech = SpeechText(language, max_chars=LIMIT)
    deltas = [text[i : i + size] for i in range(0, len(text), size)]
    return [s for delta in deltas for s in speech.feed(delta)] + speech.finish()


def test_the_first_chinese_sentence_leaves_at_its_full_width_stop() -> None:
    speech = SpeechText("zh")
    text = "".join(f"今天是第{i}天，天气很好。" for i in range(20))
    segments: list[Segment] = []
    for at, char in enumerate(text, 1):
        segments += speech.feed(char)
        if char == "。":
            assert "".join(s.written for s in segments) == text[:at]
    assert len(segments) == 20
    assert "".join(s.spoken for s in segments + speech.finish()) == text


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_text_without_any_stop_is_cut_by_count(size: int) -> None:
    text = "一二三四五六七八九十" * 60
    segments = speak(text, "zh", size)
    assert all(len(s.spoken) <= LIMIT for s in segments)
    assert "".join(s.spoken for s in segments) == text == "".join(s.written for s in segments)


def test_a_long_sentence_is_cut_at_a_full_width_comma_first() -> None:
    text = ("今天天气很好" * 10 + "，") * 12 + "。"
    segments = speak(text, "zh")
    assert all(s.spoken.endswith(("，", "。")) and len(s.spoken) <= LIMIT for s in segments)
    assert "".join(s.spoken for s in segments) == text


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_latin_run_on_is_cut_at_spaces(size: int) -> None:
    text = "word " * 180
    segments = [s for s in speak(text, "en", size) if s.spoken]
    assert len(segments) >= 2 and all(len(s.spoken) <= LIMIT for s in segments)
    assert " ".join(s.spoken for s in segments) == text.strip()
    assert "".join(s.written for s in segments) == text


def test_japanese_quotes_stay_with_their_sentence() -> None:
    assert [s.spoken for s in speak("「はい。」と言いました。次です！", "ja", 100)] == [
        "「はい。」",
        "と言いました。",
        "次です！",
    ]

"""How is a transcript written down: text, JSON, SubRip or WebVTT?

Subtitles follow the usual limits: two lines of 42 characters, at most 7 s on the screen. (BBC and Netflix guides agree
on these within a few characters.)
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.asr.recordings.result import RecordingTranscript, Segment
from stages.asr.recordings.timing import CLAUSE_ENDS, segment_of
from voice.interfaces import Word

FORMATS = ("text", "json", "srt", "vtt")

LINE_CHARS, LINES = 42, 2
LONGEST_CUE_S = 7.0
SHORTEST_CUE_S = 1.0
"""A shorter cue stays for so long, if the next one lets it."""

PARAGRAPH_S = 2.0
"""A pause so long begins a new line of text."""


@dataclass(frozen=True, slots=True)
class Cue:
    """What is on the screen for a while: one or two lines."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None = None


def written(transcript: RecordingTranscript, form: str) -> str:
    """The transcript in one of :data:`FORMATS`, with a line break at its end; empty where text has nothing to say."""
    match form:
        case "json":
            return json.dumps(as_json(transcript), ensure_ascii=False) + "\n"
        case "srt":
            return _srt(cues(transcript.segments, name_speakers=True))
        case "vtt":
            return _vtt(cues(transcript.segments))
        case _:
            return "".join(f"{line}\n" for line in paragraphs(transcript.segments))


def paragraphs(segments: Sequence[Segment]) -> Iterator[str]:
    """Lines of text: a new one after a long pause, or when another speaker speaks, who is then named."""
    line: list[Segment] = []
    for segment in segments:
        if line and (segment.start_s - line[-1].end_s >= PARAGRAPH_S or segment.speaker != line[-1].speaker):
            yield _paragraph(line)
            line = []
        line.append(segment)
    if line:
        yield _paragraph(line)


def _paragraph(segments: Sequence[Segment]) -> str:
    speaker = segments[0].speaker
    text = " ".join(segment.text for segment in segments)
    return f"{speaker}: {text}" if speaker else text


def as_json(transcript: RecordingTranscript) -> dict[str, Any]:
    """The transcript as plain values. Words are there only where the engine gave their times."""
    return {
        "file": str(transcript.path).encode("utf-8", "replace").decode(),
        "text": transcript.text,
        "language": transcript.language,
        "duration_s": round(transcript.duration_s, 3),
        "segments": [_segment_json(s, words=transcript.exact_words) for s in transcript.segments],
    }


def _segment_json(segment: Segment, *, words: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "start_s": round(segment.start_s, 3),
        "end_s": round(segment.end_s, 3),
        "text": segment.text,
    }
    if segment.speaker is not None:
        row["speaker"] = segment.speaker
    if words:
        row["words"] = [
            {
                "text": word.text.strip(),
                "start_s": round(word.start_s, 3),
                "end_s": round(word.end_s, 3),
                "probability": None if word.probability is None else round(word.probability, 3),
            }
            for word in segment.words
        ]
    return row


# ---------------------------------------------------------------- subtitles


def cues(segments: Sequence[Segment], *, name_speakers: bool = False) -> list[Cue]:
    """Subtitles: within the limits, in order, none over another, each at least a millisecond long.

    With ``name_speakers`` the text of each segment begins with its speaker's name.
    """
    found: list[Cue] = []
    for segment in segments:
        said = list(segment.words)
        if name_speakers and segment.speaker:
            said[0] = replace(said[0], text=f"{segment.speaker}: {said[0].text.strip()}")
        for words in _groups(said):
            text = segment_of(words).text
            start_ms = round(words[0].start_s * 1000)
            end_ms = min(round(words[-1].end_s * 1000), start_ms + round(LONGEST_CUE_S * 1000))
            if found:
                start_ms = max(start_ms, found[-1].end_ms)
            found.append(Cue(start_ms, max(end_ms, start_ms + 1), _lines(text), segment.speaker))
    for number, cue in enumerate(found):
        free_ms = found[number + 1].start_ms if number + 1 < len(found) else cue.start_ms + 60_000
        wanted_ms = cue.start_ms + round(SHORTEST_CUE_S * 1000)
        if cue.end_ms < wanted_ms:
            found[number] = replace(cue, end_ms=max(cue.end_ms, min(wanted_ms, free_ms)))
    return found


def _groups(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """The words of each cue of a segment: as many as fit, cut after a comma where that is not much fewer."""
    left = [part for word in words for part in _short_words(word)]
    while left:
        fits = 1
        while fits < len(left) and _fits(left[: fits + 1]):
            fits += 1
        if fits < len(left):
            commas = [
                n for n in range((fits + 1) // 2, fits + 1) if left[n - 1].text.rstrip().endswith(CLAUSE_ENDS)
            ]
            fits = commas[-1] if commas else fits
        yield left[:fits]
        left = left[fits:]


def _short_words(word: Word) -> list[Word]:
    """A word that is wider than a line, in parts."""
    text = word.text.strip()
    if len(text) <= LINE_CHARS:
        return [word]
    parts = textwrap.wrap(text, LINE_CHARS, break_on_hyphens=False)
    step_s = (word.end_s - word.start_s) / len(parts)
    return [
        Word(part, word.start_s + n * step_s, word.start_s + (n + 1) * step_s, word.probability)
        for n, part in enumerate(parts)
    ]


def _fits(words: Sequence[Word]) -> bool:
    if words[-1].end_s - words[0].start_s > LONGEST_CUE_S:
        return False
    return len(textwrap.wrap(segment_of(words).text, LINE_CHARS, break_on_hyphens=False)) <= LINES


def _lines(text: str) -> tuple[str, ...]:
    """One line, or two of about the same length."""
    if len(text) <= LINE_CHARS:
        return (text,)
    for width in range(-(-len(text) // 2), LINE_CHARS + 1):
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(lines) <= LINES:
            return tuple(lines)
    return tuple(textwrap.wrap(text, LINE_CHARS, break_on_hyphens=False))


def _srt(found: Sequence[Cue]) -> str:
    blocks = []
    for number, cue in enumerate(found, start=1):
        lines = "\n".join(cue.lines).replace("-->", "→")
        blocks.append(f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{lines}\n")
    return "\n".join(blocks)


def _vtt(found: Sequence[Cue]) -> str:
    blocks = ["WEBVTT\n"]
    for cue in found:
        lines = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        named = f"<v {cue.speaker}>{lines}" if cue.speaker else lines
        blocks.append(f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{named}\n")
    return "\n".join(blocks)


def _clock(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"

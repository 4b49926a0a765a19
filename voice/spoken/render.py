"""Rendering: a stretch of clean text becomes spoken text with its span map."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voice.spoken.clean import BREAK, JOINT, CleanText
from voice.spoken.languages import CJK, CJK_CHAR, CLOSERS
from voice.spoken.normalise import Replacement, replacements
from voice.spoken.segment import Segment, Span

_CJK_PUNCTUATION = "，、。！？；：…—～·"
_OPENERS = "「『（《“‘【〈［"
_TOKEN = re.compile(
    rf"\s+|[—–]+|[{_OPENERS}]*[{CJK}][{_CJK_PUNCTUATION}{re.escape(CLOSERS)}]*|[^\s—–{CJK}{_OPENERS}]+|[{_OPENERS}]+"
)
_GLUED = re.compile(rf"[,.;:!?…%{_CJK_PUNCTUATION}{re.escape(CLOSERS)}]+")  # no space before these
_JOINED = re.compile(rf"[^\s{JOINT}]+(?:{JOINT}[^\s{JOINT}]*)+")
_LEADING = " .,;:!?…·" + CLOSERS + _CJK_PUNCTUATION


@dataclass(slots=True)
class _Builder:
    """Collects spoken text and spans; a span whose written range overlaps the one before is merged into
    it."""

    offset: int
    text: str = ""
    spans: list[Span] | None = None
    space: bool = False

    def word(self, spoken: str, start: int, end: int) -> None:
        spans = self.spans = self.spans or []
        if self.space and self.text:
            self._lengthen(" ", None)
        self.space = False
        at = len(self.text)
        self.text += spoken
        start, end = max(0, start - self.offset), max(0, end - self.offset)
        if spans and (start < spans[-1].written_end or end == start):
            last = spans[-1]
            spans[-1] = Span(
                last.spoken_start, len(self.text), last.written_start, max(end, last.written_end)
            )
        else:
            spans.append(Span(at, len(self.text), start, end))

    def mark(self, spoken: str, end: int) -> None:
        """Punctuation: part of the word before it."""
        if not self.spans:
            return
        if spoken in (",", ";", ":") and self.text[-1:] in ",.;:!?…，。！？；：":
            spoken = ""  # one pause is enough
        self.space = False
        self._lengthen(spoken, end - self.offset)

    def trim(self) -> None:
        """No space at the end."""
        if self.spans and self.text[-1:] == " ":
            self.text = self.text.rstrip()
            last = self.spans[-1]
            end = len(self.text)
            self.spans[-1] = Span(last.spoken_start, end, last.written_start, last.written_end)

    def _lengthen(self, spoken: str, written_end: int | None) -> None:
        assert self.spans
        self.text += spoken
        last = self.spans[-1]
        end = last.written_end if written_end is None else max(written_end, last.written_end)
        self.spans[-1] = Span(last.spoken_start, len(self.text), last.written_start, end)


def render(
    clean: CleanText, written: str, offset: int, language: str, max_chars: int, sentence: bool
) -> Segment:
    """Make a segment of ``clean``.

    Args:
        written: The raw stretch the segment stands for, which begins at ``offset`` of the answer.
        max_chars: A number whose words would be longer than this is left as digits.
    """
    builder = _Builder(offset)
    pos = 0
    for start, end, spoken in speakable_replacements(clean.text, language, max_chars):
        _plain(builder, clean, pos, start)
        if spoken[:1] == " " or (builder.text[-1:].isalnum() and spoken[:1].isalnum()):
            builder.space = True
        builder.word(spoken.strip(), clean.starts[start], max(clean.ends[start:end]))
        joins = spoken[-1:].isalnum() and clean.text[end : end + 1].isalnum()
        builder.space = joins or spoken[-1:] == " "
        pos = end
    _plain(builder, clean, pos, len(clean.text))
    builder.trim()
    spoken = builder.text
    if not any(c.isalnum() for c in spoken):
        return Segment("", written, (), False)
    if clean.text.endswith(BREAK) and (spoken[-1].isalnum() or spoken[-1] in ")\"'”’"):
        builder.mark("。" if CJK_CHAR.match(spoken[-1]) else ".", offset)
    return Segment(builder.text, written, tuple(builder.spans or ()), sentence)


def speakable_replacements(text: str, language: str, max_chars: int) -> list[Replacement]:
    """The replacements of ``text`` that fit a segment."""
    return [r for r in replacements(text, language) if len(r[2]) < max_chars]


def indivisible(text: str, language: str, max_chars: int) -> list[tuple[int, int]]:
    """Ranges of ``text`` in which it must not be cut: what is read as something else, and hosts of URLs."""
    numbers = [(start, end) for start, end, _ in speakable_replacements(text, language, max_chars)]
    if JOINT not in text:
        return numbers
    return numbers + [m.span() for m in _JOINED.finditer(text)]


def _plain(builder: _Builder, clean: CleanText, pos: int, limit: int) -> None:
    """Text that is spoken as it stands, word by word; ideographs one by one."""
    for m in _TOKEN.finditer(clean.text, pos, limit):
        token = m.group()
        if token.isspace():
            builder.space = True
            continue
        start, end = clean.starts[m.start()], max(clean.ends[m.start() : m.end()])
        token = token.replace(JOINT, " ")
        if not builder.spans:
            stripped = token.lstrip(_LEADING)
            if not stripped:
                continue  # what is left of an ellipsis or a quotation that ended with the last segment
            token = stripped
        if token[0] in "—–":
            builder.mark(",", end)
            builder.space = True
        elif token == "-" and builder.space and not clean.text[m.end() : m.end() + 1].strip():
            builder.mark(",", end)
        elif _GLUED.fullmatch(token):
            builder.mark(token, end)
        else:
            builder.word(token, start, end)

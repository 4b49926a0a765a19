"""Cuts where no sentence ends: a text that is too long, and a model that has stalled."""

from __future__ import annotations

import re
import unicodedata

from voice.spoken.abbreviations import Stop, stop_after
from voice.spoken.clean import BREAK
from voice.spoken.languages import CJK_CHAR, CLOSERS, FULL_STOPS
from voice.spoken.splitter import ANY_WORD, Cut

_CLAUSE = re.compile(r"[,;:—–](?=\s)|(?<=\s)[-—–](?=\s)|[，、；：]|(?<=[^\s\d])[—–](?=\S)")
_SPACE = re.compile(r"\s")
_SPACE_AFTER_WORD = re.compile(r"(?<=[^\s\d])\s+")  # after a number its unit may come
_BEFORE_NUMBER = re.compile(r"(?:[$€£¥]|\b(?:No|Dr|Mr|Mrs|Ms|Prof|St)\.)\s*$")
_JOINED = "\u200c\u200d，、。！？；：,.;:" + CLOSERS
_LONGEST_CLUSTER = 16  # characters stepped back over to keep marks with their letter


def long_cut(text: str, limit: int, kept: list[tuple[int, int]]) -> int:
    """Where to cut a text that is longer than ``limit``: at the last clause mark, else space, else by count.

    Args:
        kept: Ranges that must stay whole where that is possible (numbers, addresses).
    """

    def free(at: int) -> bool:
        return 0 < at <= limit and not any(start < at < end for start, end in kept)

    for pattern, least in ((_CLAUSE, limit // 3), (_SPACE, limit // 4)):
        places = [m.end() for m in pattern.finditer(text, 0, limit + 1) if free(m.end()) and m.end() >= least]
        if places:
            return places[-1]
    at = limit
    for start, end in kept:
        if start < at < end and start:
            at = start
    back = at
    while back > max(1, at - _LONGEST_CLUSTER) and _joins_previous(text[back : back + 1]):
        back -= 1
    return back if not _joins_previous(text[back : back + 1]) else at


def _joins_previous(char: str) -> bool:
    """Combining marks, joiners and closing punctuation stay with the character before."""
    return bool(char) and (unicodedata.combining(char) > 0 or char in _JOINED)


def stalled_cut(text: str, kept: list[tuple[int, int]], words: int, language: str) -> Cut | None:
    """Where to cut when no more text has come for a while: as late as is safe.

    A sentence's end is taken as such though nothing is known of what follows. Else the last clause mark or,
    with at least ``words`` words before it, the last space: a word that may be incomplete is kept.
    """
    body = text.rstrip()
    if body and (body[-1] in ".!?…" or body[-1] in FULL_STOPS):
        start = max(body.rfind(" "), body.rfind(BREAK)) + 1
        last = body[start:].rstrip(".").lstrip("(\"'“")
        if not (last.isalpha() or "." in last) or stop_after(last, language, start == 0) is not Stop.NEVER:
            return Cut(len(body), True)

    def free(at: int) -> bool:
        return (
            at > 0
            and not any(start < at < end for start, end in kept)
            and not _BEFORE_NUMBER.search(text[:at])
        )

    clauses = [m.end() for m in _CLAUSE.finditer(text) if free(m.end())]
    spaces = [m.end() for m in _SPACE_AFTER_WORD.finditer(text) if free(m.end())]
    if spaces and len(ANY_WORD.findall(text, 0, spaces[-1])) >= words:
        return Cut(max(spaces[-1], clauses[-1] if clauses else 0), False)
    if clauses:
        return Cut(clauses[-1], False)
    cjk = [m.end() for m in CJK_CHAR.finditer(text)]
    if len(cjk) > words * 2:
        return Cut(cjk[-2], False)
    return None

"""Stretches of an answer that are swallowed as they stream: reasoning, tool calls, code, link targets, URL
tails.

Each keeps a few characters of state, so an endless stretch holds nothing back and costs nothing.
"""

from __future__ import annotations

import re
from typing import Protocol

from voice.spoken.languages import CJK


class Silence(Protocol):
    """A stretch that is not spoken.

    Attributes:
        of_word: Its characters belong to the word before it, and are never cut from it.
        done: The stretch has ended.
    """

    of_word: bool
    done: bool

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        """How far the stretch reaches from ``pos`` on; ``None`` when that can't be told without more text."""


class UntilTag:
    """Everything up to a closing mark (``</think>``, ``-->``), in any case of letters; ``""``: up to the
    end."""

    of_word = False

    def __init__(self, closing: str) -> None:
        self.closing = closing
        self._pattern = re.compile(re.escape(closing), re.IGNORECASE)
        self.done = False

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        if not self.closing:
            return len(raw)
        found = self._pattern.search(raw, pos)
        if found:
            self.done = True
            return found.end()
        if final:
            return len(raw)
        end = max(pos, len(raw) - len(self.closing) + 1)  # the mark may have begun
        return end if end > pos else None


class Json:
    """One JSON object or array, its strings respected."""

    of_word = False
    _MARK = re.compile(r'["{}\[\]\\]')

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        while pos < len(raw):
            if self._escaped:
                self._escaped = False
                pos += 1
                continue
            m = self._MARK.search(raw, pos)
            if m is None:
                return len(raw)
            pos = m.end()
            mark = m.group()
            if mark == "\\":
                self._escaped = self._in_string
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self.done = True
                    return pos
        return pos


class Fence:
    """The content of a fenced code block and its closing line."""

    of_word = False

    def __init__(self, fence: str) -> None:
        self.done = False
        self._mark = fence[0]
        self._closing = re.compile(rf"[ \t]*{re.escape(fence)}{re.escape(fence[0])}*[ \t\r]*(?=\n|$)")
        self._at_line_start = True

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        if self._at_line_start:
            end = raw.find("\n", pos)
            if (m := self._closing.match(raw, pos)) and (final or m.end() < len(raw)):
                self.done = True
                return m.end()
            line = raw[pos : end if end >= 0 else len(raw)].lstrip(" \t")
            if end < 0 and not final and not line.lstrip(self._mark).strip():
                return None  # nothing of this line yet but what a closing line may begin with
            self._at_line_start = False
        end = raw.find("\n", pos)
        if end < 0:
            return len(raw)
        self._at_line_start = True
        return end + 1


class LinkTarget:
    """``(…)`` after a link's label, with balanced parentheses. Given up at a blank line or after 2,000
    characters."""

    of_word = True
    _MARK = re.compile(r"[()\n]")

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._length = 0
        self._newline = False

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        start = pos
        while pos < len(raw):
            m = self._MARK.search(raw, pos)
            end = m.end() if m else len(raw)
            self._newline = self._newline and not raw[pos : end - 1].strip()
            pos = end
            if m and m.group() == "\n":
                if self._newline:
                    self.done = True
                    break
                self._newline = True
            elif m:
                self._newline = False
                self._depth += 1 if m.group() == "(" else -1
                if self._depth <= 0:
                    self.done = True
                    break
        self._length += pos - start
        self.done = self.done or self._length > 2_000
        return pos


class UrlTail:
    """What follows a URL's host. Punctuation at the end belongs to the sentence, not to the URL."""

    of_word = True
    _CHARS = re.compile(rf"[^\s<>\"`|\\^\[\]{{}}{CJK}（），。、！？；：」』”’]*")
    _TRAILING = ".,;:!?)'*_~"

    def __init__(self, in_angles: bool) -> None:
        self.done = False
        self._in_angles = in_angles

    def step(self, raw: str, pos: int, final: bool) -> int | None:
        m = self._CHARS.match(raw, pos)
        end = m.end() if m else pos
        ended = final or end < len(raw)
        end = pos + len(raw[pos:end].rstrip(self._TRAILING))
        if ended:
            self.done = True
            if self._in_angles and raw[end : end + 1] == ">":
                end += 1
            return end
        return end if end > pos else None

"""Splitter: where clean text that is still growing may be cut, decided as soon as it is certain.

A full stop after an ordinary word is certain at once. After a digit, an initial or an abbreviation the next
character (or word) decides, and until it is known nothing is cut. Positions are looked at once: a position
that must wait is where the next look begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from voice.spoken.abbreviations import (
    Stop,
    ordinal_joins,
    starts_sentence,
    stop_after,
    writes_ordinal_stop,
)
from voice.spoken.clean import BREAK, JOINT
from voice.spoken.languages import CJK_CHAR, CLOSERS, FULL_STOPS

_MARK = re.compile(rf"[.!?…,;:—–\-\n{FULL_STOPS}]")
_SENTENCE_MARK = re.compile(rf"[.!?…\n{FULL_STOPS}]")
_DOTS = re.compile(r"[.…]+")
_CLOSERS = re.compile(rf"[{re.escape(CLOSERS)}]*")
_FULL_RUN = re.compile(rf"[{FULL_STOPS}!?]+")
_BANG_RUN = re.compile(r"[!?]+")
_WORD_CHARS = "._'’-@/"
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_SPACES = re.compile(r"[^\S\n]*")
ANY_WORD = re.compile(r"\w+(?:['’.,-]\w+)*")
_LONGEST_WORD = 64  # characters looked back over; a longer one is no abbreviation


@dataclass(frozen=True, slots=True)
class Cut:
    """Clean text may be cut before ``end``.

    Attributes:
        sentence: A sentence ends here, not just a clause.
        blind: Nothing was known of what follows: ``example.`` may go on with ``com``.
    """

    end: int
    sentence: bool
    blind: bool = False


class Splitter:
    """Finds the next cut of a text that grows at its end.

    Args:
        language: Base language, such as ``"en"``.
        first_clause_words: How many words the first clause needs to go out before its sentence is complete.
    """

    def __init__(self, language: str, first_clause_words: int) -> None:
        self._language = language
        self._first_clause_words = first_clause_words
        self._scan = 0

    def restart(self) -> None:
        """The text was cut: look from its new beginning."""
        self._scan = 0

    def next_cut(self, text: str, *, first: bool, final: bool, limit: int) -> Cut | None:
        """The first place before ``limit`` where ``text`` is to be cut; ``None`` when there is none yet.

        Args:
            first: Nothing was given out yet, so a clause will do.
            final: The text will not grow.
        """
        pattern = _MARK if first else _SENTENCE_MARK
        while True:
            m = pattern.search(text, self._scan, limit)
            if m is None:
                self._scan = min(len(text), limit)
                return None
            pos = m.start()
            char = m.group()
            verdict = self._look(text, pos, char, final)
            if isinstance(verdict, Cut):
                if verdict.sentence or self._is_clause(text, verdict.end):
                    return verdict
                verdict = pos + 1
            if verdict is None:
                self._scan = pos
                return None
            self._scan = verdict

    def _look(self, text: str, pos: int, char: str, final: bool) -> Cut | int | None:
        """A cut, where to look on, or ``None``: wait."""
        if char == BREAK:
            return Cut(pos + 1, True) if text[:pos].strip() else pos + 1
        if char in FULL_STOPS:
            return self._after_closers(text, _end(_FULL_RUN, text, pos))
        if char in "!?":
            end = _end(_BANG_RUN, text, pos)
            after = text[end : end + 1]
            if (
                after == "="
                or after == "_"
                or (after.isalnum() and not after.isupper() and not CJK_CHAR.match(after))
            ):
                return end
            return self._after_closers(text, end)
        if char in ".…":
            return self._stop(text, pos, final)
        return _clause(text, pos, char, final)

    def _after_closers(self, text: str, end: int) -> Cut:
        return Cut(_end(_CLOSERS, text, end), True, blind=end == len(text))

    def _is_clause(self, text: str, end: int) -> bool:
        return len(ANY_WORD.findall(text, 0, end)) >= self._first_clause_words and not CJK_CHAR.search(
            text, 0, end
        )

    # ------------------------------------------------------------ full stops

    def _stop(self, text: str, pos: int, final: bool) -> Cut | int | None:
        dots_end = _end(_DOTS, text, pos)
        if dots_end - pos > 1 or text[pos] == "…":
            return self._ellipsis(text, dots_end, final)
        after = text[pos + 1 : pos + 2]
        if not after and final:
            return Cut(pos + 1, True)
        before = text[pos - 1 : pos] if pos else ""
        if before.isdigit():
            return self._after_number(text, pos, after, final)
        if before.isalpha():
            return self._after_word(text, pos, after, final)
        if before and (before in CLOSERS or before in "%°"):
            return pos + 1 if after.islower() else self._after_closers(text, pos + 1)
        if not after:
            return None
        return pos + 1 if after.isalnum() else self._after_closers(text, pos + 1)

    def _ellipsis(self, text: str, end: int, final: bool) -> Cut | int | None:
        closed = _end(_CLOSERS, text, end)
        following = _end(_SPACES, text, closed)
        if following == len(text):
            return Cut(closed, True) if final else None
        char = text[following]
        if char == BREAK or (char.isalnum() and following == closed):
            return closed
        return Cut(closed, True) if char.isupper() or CJK_CHAR.match(char) else closed

    def _after_number(self, text: str, pos: int, after: str, final: bool) -> Cut | int | None:
        if not after:
            return None
        if after.isalnum() or after in "_-/":
            return pos + 1
        start = pos
        while start and text[start - 1].isdigit():
            start -= 1
        number = text[start:pos]
        if writes_ordinal_stop(number, self._language):
            following = _following(text, pos + 1, final)
            if following is None:
                return None
            if following and ordinal_joins(number, following, self._language):
                return pos + 1
        return self._after_closers(text, pos + 1)

    def _after_word(self, text: str, pos: int, after: str, final: bool) -> Cut | int | None:
        start = pos
        while (
            start
            and pos - start < _LONGEST_WORD
            and (text[start - 1].isalnum() or text[start - 1] in _WORD_CHARS)
        ):
            start -= 1
        word = text[start:pos].lstrip(_WORD_CHARS)
        if text[start - 1 : start] == JOINT:  # the end of a host that is spelt out
            stop = Stop.ENDS
        else:
            stop = stop_after(word, self._language, not text[:start].strip())
        if after.isalnum() or (after and after in "_@/-"):
            # Right after an ordinary word only a lower-case letter goes on with a name (example.com,
            # ASP.NET); anything else lacks a space.
            in_name = after.islower() or (after.isupper() and text[pos - 1].isupper())
            return pos + 1 if in_name or stop is not Stop.ENDS else Cut(pos + 1, True)
        if stop is Stop.ENDS:
            return self._after_closers(text, pos + 1)
        if not after:
            return None
        if stop is Stop.IN_NAME:
            return self._after_closers(text, pos + 1)
        following = _following(text, pos + 1, final)
        if following is None:
            return None
        if not following:  # a pause or punctuation comes next
            return Cut(pos + 1, True) if after in CLOSERS else pos + 1
        if stop is Stop.UNLESS_LOWER or word.lower() == "no":
            ends = following[0].isupper()
        else:
            ends = (
                stop is not Stop.NEVER
                and following[0].isupper()
                and starts_sentence(following, word, self._language)
            )
        return self._after_closers(text, pos + 1) if ends else pos + 1


def _clause(text: str, pos: int, char: str, final: bool) -> Cut | int | None:
    """Clause marks: certain after a letter, part of a number after a digit."""
    before = text[pos - 1 : pos] if pos else ""
    if char in ",;:":
        return Cut(pos + 1, False) if before.isalpha() or (before in CLOSERS and before) else pos + 1
    if char == "-":
        after = text[pos + 1 : pos + 2]
        if not before.isspace():
            return pos + 1
        if not after:
            return None if not final else pos + 1
        return Cut(pos + 1, False) if after.isspace() else pos + 1
    return pos + 1 if before.isdigit() else Cut(pos + 1, False)


def _following(text: str, pos: int, final: bool) -> str | None:
    """The word after closers and spaces; ``""`` when no word comes; ``None`` when it may still grow."""
    start = _end(_SPACES, text, _end(_CLOSERS, text, pos))
    start += len(text[start : start + 2]) - len(text[start : start + 2].lstrip("\"'“‘(«"))
    if start >= len(text):
        return "" if final else None
    m = _WORD.match(text, start)
    if m is None:
        return ""
    if m.end() >= len(text) - 1 and not final and (text[start].isupper() or m.end() == len(text)):
        tail = text[m.end() :]
        if not tail or tail in "'’.-":
            return m.group() if text[start].islower() or text[start].isdigit() else None
    return m.group()


def _end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    m = pattern.match(text, pos)
    return m.end() if m else pos

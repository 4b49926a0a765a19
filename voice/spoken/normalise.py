"""Normalising: which parts of a clean text are read as something else than they are written, per language."""

from __future__ import annotations

import re

Replacement = tuple[int, int, str]

_DIGIT = re.compile(r"\d")
_ENGLISH = re.compile(r"[\d/&@+=×÷~≈½¼¾⅓⅔⅛⅜⅝⅞%]|\w\.")


def load(language: str) -> None:
    """Load the tables of a base language: up to 100 ms the first time."""
    if language == "en":
        from voice.spoken import english  # noqa: F401
    else:
        from voice.spoken import foreign

        foreign.load()


def replacements(text: str, language: str) -> list[Replacement]:
    """Ranges of ``text``, in order and disjoint, with what is spoken for each. Unknown forms are left
    alone."""
    if language == "en":
        return _english(text) if _ENGLISH.search(text) else []
    if not _DIGIT.search(text):
        return []
    from voice.spoken import foreign

    return foreign.replacements(text, language)


def _english(text: str) -> list[Replacement]:
    from voice.spoken import english  # some sixty patterns: not at import

    taken: list[Replacement] = []
    for rule in english.RULES:
        for m in rule.pattern.finditer(text):
            if any(m.start() < end and start < m.end() for start, end, _ in taken):
                continue
            spoken = rule.reading(m)
            if spoken is not None:
                taken.append((m.start(), m.end(), spoken))
    return sorted(taken)

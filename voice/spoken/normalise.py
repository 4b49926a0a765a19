"""Normalising: which parts of a clean text are read as something else than they are written, per language."""

from __future__ import annotations

import re

from voice.spoken import english, foreign

Replacement = tuple[int, int, str]

_DIGIT = re.compile(r"\d")
_ENGLISH = re.compile(r"[\d&@+=×÷~≈½¼¾⅓⅔⅛⅜⅝⅞%]|\w\.")


def replacements(text: str, language: str) -> list[Replacement]:
    """Ranges of ``text``, in order and disjoint, with what is spoken for each. Unknown forms are left alone."""
    if language == "en":
        return _english(text) if _ENGLISH.search(text) else []
    return foreign.replacements(text, language) if _DIGIT.search(text) else []


def _english(text: str) -> list[Replacement]:
    taken: list[Replacement] = []
    for rule in english.RULES:
        for m in rule.pattern.finditer(text):
            if any(m.start() < end and start < m.end() for start, end, _ in taken):
                continue
            spoken = rule.reading(m)
            if spoken is not None:
                taken.append((m.start(), m.end(), spoken))
    return sorted(taken)

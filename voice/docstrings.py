"""What does a docstring say about a function and each of its parameters?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Docstring:
    """The first paragraph as one line, and the text of each parameter."""

    summary: str
    parameters: Mapping[str, str]


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Params|Attributes)\s*:\s*$")
_OTHER_SECTION = re.compile(r"^[A-Z][A-Za-z ]{2,20}:\s*$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_REST_ENTRY = re.compile(r"^:(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")


def docstring_of(thing: object) -> Docstring:
    """Read a Google-style (``Args:``) or reST (``:param name:``) docstring."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    if isinstance(thing, type) and text.startswith(f"{thing.__name__}("):
        text = ""  # what dataclasses write by themselves
    lines = text.splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _OTHER_SECTION.match(line) or line.startswith(":"):
            break
        summary.append(line.strip())
    return Docstring(" ".join(summary), {**_google(lines), **_rest(lines)})


def _google(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    inside, indent, name = False, 0, ""
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth == 0:
            inside, indent, name = bool(_SECTION.match(line)), 0, ""
        elif inside:
            indent = indent or depth
            entry = _GOOGLE_ENTRY.match(line.strip()) if depth <= indent else None
            if entry:
                name = entry[1]
                found[name] = entry[2].strip()
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _rest(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _REST_ENTRY.match(line.strip())
        if entry:
            name = entry[1]
            found[name] = entry[2].strip()
        elif name and line.startswith((" ", "\t")):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found

"""What kind of Markdown block a line begins, told from as few of its first characters as possible."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """Kinds of line. ``TEXT`` lines flow together; every other kind ends with a pause."""

    TEXT = auto()
    HEADING = auto()
    ITEM = auto()
    QUOTE = auto()
    TABLE = auto()
    SILENT = auto()  # a rule, or the line between a table's head and body
    FENCE = auto()


@dataclass(frozen=True, slots=True)
class Block:
    """A block's opening mark: its kind, where its content begins, and what is spoken for the mark."""

    kind: Kind
    end: int
    spoken: str = ""
    fence: str = ""  # the closing fence must begin with this


class Wait:
    """More characters are needed to tell."""


WAIT: Final = Wait()

_INDENT = re.compile(r"[ \t]*")
_INDENT_MAX = 250  # more is no indentation; endless space must not be held
_HEADING = re.compile(r"#{1,6}[ \t]+")
_ITEM = re.compile(r"[-*+•‣◦–][ \t]+(?:\[[ xX]\][ \t]+)?")
_ITEM_PART = re.compile(r"[-*+•‣◦–](?:[ \t]+(?:\[(?:[ xX]\]?)?)?)?$")
_ORDERED = re.compile(r"(\d{1,3})[.)][ \t]+")
_ORDERED_PART = re.compile(r"\d{1,3}[.)]?$")
_RULE = re.compile(r"([-*_=])(?:[ \t]*\1){2,99}[ \t\r]*(?=\n|$)")
_RULE_PART = re.compile(r"([-*_=])(?:[ \t]*\1){0,99}[ \t\r]*$")
_QUOTE = re.compile(r">[ \t]?")
_SEPARATOR = re.compile(r"\|?[ \t]*:?-+[\s:|-]*?(?=\n|$)")
_SEPARATOR_PART = re.compile(r"\|[ \t:|-]*\r?$")
_FENCE = re.compile(r"(`{3,60}|~{3,60})[^`\n]{0,200}(?:\n|$)")
_FENCE_PART = re.compile(r"(?:`{1,60}|~{1,60})$|(?:`{3,60}|~{3,60})[^`\n]{0,200}$")


def match_block(raw: str, pos: int, final: bool) -> Block | Wait | None:
    """The block that begins at ``raw[pos]``, the start of a line; ``None`` for plain text.

    ``WAIT`` while the answer could change with more text. With ``final`` nothing more will come.
    """
    indent = _INDENT.match(raw, pos)
    start = indent.end() if indent else pos
    if start - pos > _INDENT_MAX:
        return None
    if start >= len(raw):
        return None if final else WAIT
    match raw[start]:
        case "#":
            if m := _HEADING.match(raw, start):
                return Block(Kind.HEADING, m.end())
            run = len(raw) - start
            return WAIT if not final and run <= 6 and raw[start:] == "#" * run else None
        case ">":
            m = _QUOTE.match(raw, start)
            return Block(Kind.QUOTE, m.end()) if m else None
        case "|":
            return _table(raw, start, final)
        case "`" | "~":
            return _fence(raw, start, final)
        case "-" | "*" | "+" | "_" | "=" | "•" | "‣" | "◦" | "–":
            return _item_or_rule(raw, start, final)
        case first if first in "0123456789":
            if m := _ORDERED.match(raw, start):
                return Block(Kind.ITEM, m.end(), spoken=f"{m[1]},")
            return WAIT if not final and _ORDERED_PART.match(raw, start) else None
    return None


def _item_or_rule(raw: str, start: int, final: bool) -> Block | Wait | None:
    if (m := _RULE.match(raw, start)) and (final or m.end() < len(raw)):
        return Block(Kind.SILENT, m.end())
    if not final and (_RULE_PART.match(raw, start) or _ITEM_PART.match(raw, start)):
        return WAIT
    m = _ITEM.match(raw, start)
    return Block(Kind.ITEM, m.end()) if m else None


def _table(raw: str, start: int, final: bool) -> Block | Wait | None:
    if (m := _SEPARATOR.match(raw, start)) and (final or m.end() < len(raw)):
        return Block(Kind.SILENT, m.end())
    if not final and _SEPARATOR_PART.match(raw, start):
        return WAIT
    if raw.startswith("||", start):
        return None
    return Block(Kind.TABLE, start + 1)


def _fence(raw: str, start: int, final: bool) -> Block | Wait | None:
    m = _FENCE.match(raw, start)
    if m and (final or m.end() < len(raw) or raw[m.end() - 1] == "\n"):
        return Block(Kind.FENCE, m.end(), fence=m[1])
    return WAIT if not final and _FENCE_PART.match(raw, start) else None

"""What the mark at a place within a line is: emphasis, code, bracket, tag, entity, JSON, or just a
character."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from enum import Enum, auto

from voice.spoken.blocks import WAIT, Wait
from voice.spoken.languages import word_set
from voice.spoken.silent import Json, LinkTarget, Silence, UntilTag

_CITATION = re.compile(r"\[(?:\^[^\]\s]{1,30}|\d{1,3}(?:\s?[,–-]\s?\d{1,3}){0,4})\]")
_CITATION_PART = re.compile(r"\[(?:\^[^\]\s]{0,30}|\d[\d ,–-]{0,24})?$")
_JSON = re.compile(r'\[\s{0,40}\{\s{0,40}"|\{\s{0,40}"[^"\\\n]{0,60}"\s{0,40}:')
_JSON_PART = re.compile(r'\[\s{0,40}(?:\{\s{0,40})?$|\{\s{0,40}(?:"[^"\\\n]{0,60}(?:"\s{0,40})?)?$')
_TOOL_CALLS = "[TOOL_CALLS]"  # Mistral's mark: what follows, to the end, is no text
_ENTITY = re.compile(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,7});")
_ENTITY_PART = re.compile(r"&#?\w{0,8}$")

_ATTRIBUTES = r"""(?:\s+[\w:@.-]+\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>]+))*"""
_TAG = re.compile(rf"<(/?)([A-Za-z][\w:.-]*)(?:=[\w.-]+)?{_ATTRIBUTES}\s*(/?)>")
_TAG_PART = re.compile(
    rf"""<(?:/?(?:[A-Za-z][\w:.-]*(?:=[\w.-]*)?{_ATTRIBUTES}"""
    r"""(?:\s+(?:[\w:@.-]+\s*(?:=\s*(?:"[^"<]*|'[^'<]*|[^\s"'<>]*))?)?)?\s*/?)?)?$"""
)
_TAG_MAX = 300
_RUN_MAX = 64  # a longer run of one mark is dropped in parts, so that an endless one is not held
_SPECIAL = re.compile(r"<\|[\w\s./:-]{0,60}\|>")  # chat templates' control tokens
_SPECIAL_PART = re.compile(r"<(?:\|[\w\s./:-]{0,60}\|?)?$")
_COMMENT_PART = re.compile(r"<(?:!-?)?$")
_AUTOLINK = re.compile(r"<(?=https?://)", re.IGNORECASE)
_AUTOLINK_PART = re.compile(r"<(?:h|ht|htt|https?:?/?)?$", re.IGNORECASE)

_SWALLOWED = word_set(
    "think thinking thought thoughts reasoning reflection scratchpad analysis tool_call tool_calls "
    "tool_code tool_use tool_response tool_result function_call function_calls function tool invoke "
    "script style"
)
_BREAKING = word_set("br p li div tr h1 h2 h3 h4 h5 h6 ul ol table blockquote")
_HTML = _BREAKING | word_set(
    "a abbr b big center cite code del details em font hr i img ins kbd mark pre q s samp small span "
    "strike strong sub summary sup tbody td th thead tt u var"
)


class Act(Enum):
    """What becomes of a mark's characters."""

    LITERAL = auto()  # spoken as written
    SILENT = auto()  # dropped
    CLOSE = auto()  # dropped, and part of the word before
    SPACE = auto()  # dropped, but words do not join
    PAUSE = auto()  # dropped, and a sentence's pause
    PUT = auto()  # something else is spoken


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark up to ``end``, what becomes of it, and the silent stretch it opens, if any."""

    end: int
    act: Act
    spoken: str = ""
    silence: Silence | None = None


def match_emphasis(raw: str, pos: int, prev: str, opened: int, final: bool) -> Mark | Wait:
    """A run of ``*``, ``_`` or ``~``. ``opened``: asterisks that are open before it."""
    char = raw[pos]
    end = pos + 1
    while end < len(raw) and raw[end] == char and end - pos < _RUN_MAX:
        end += 1
    if end - pos == _RUN_MAX:
        return Mark(end, Act.SILENT)
    if end == len(raw) and not final:
        return WAIT
    after = raw[end : end + 1]
    count = end - pos
    within = prev.isalnum() and after.isalnum()
    between_spaces = not prev.strip() and not after.strip()
    if char == "*":
        product = prev.isdigit() and after.isdigit()
        literal = between_spaces or product or (within and count == 1 and not opened)
    elif char == "_":
        literal = within
    else:
        literal = count == 1
    if literal:
        return Mark(end, Act.LITERAL)
    closes = prev.strip() and (opened if char == "*" else not after.isalnum())
    return Mark(end, Act.CLOSE if closes else Act.SILENT)


def match_bracket(raw: str, pos: int, prev: str, final: bool) -> Mark | Wait | None:
    """``[``: a citation, a footnote or tool calls; ``None`` for any other bracket."""
    if m := _CITATION.match(raw, pos):
        if m.end() == len(raw) and not final:
            return WAIT
        return Mark(m.end(), Act.CLOSE, silence=LinkTarget() if raw.startswith("(", m.end()) else None)
    if raw.startswith(_TOOL_CALLS, pos):
        return Mark(pos + len(_TOOL_CALLS), Act.SILENT, silence=UntilTag(""))
    if _JSON.match(raw, pos):
        return Mark(pos, Act.SILENT, silence=Json())
    if not final and (
        _CITATION_PART.match(raw, pos) or _JSON_PART.match(raw, pos) or _TOOL_CALLS.startswith(raw[pos:])
    ):
        return WAIT
    return None


def match_brace(raw: str, pos: int, final: bool) -> Mark | Wait | None:
    """``{``: a JSON object, or just a brace."""
    if _JSON.match(raw, pos):
        return Mark(pos, Act.SILENT, silence=Json())
    return WAIT if not final and _JSON_PART.match(raw, pos) else None


def match_entity(raw: str, pos: int, final: bool) -> Mark | Wait | None:
    """``&``: an HTML entity, spoken as its character, or just an ampersand."""
    if m := _ENTITY.match(raw, pos):
        char = html.unescape(m.group())
        if char != m.group() and char.isprintable():
            return Mark(m.end(), Act.PUT, char)
        return Mark(m.end(), Act.SPACE if char != m.group() else Act.LITERAL)
    return WAIT if not final and _ENTITY_PART.match(raw, pos) else None


def match_angle(raw: str, pos: int, prev: str, final: bool) -> Mark | Wait | None:
    """``<``: a tag, comment, control token or link in angle brackets; ``None`` for less-than."""
    if raw.startswith("<!--", pos):
        return Mark(pos + 4, Act.SILENT, silence=UntilTag("-->"))
    if _AUTOLINK.match(raw, pos):
        return Mark(pos + 1, Act.SILENT)
    if m := _SPECIAL.match(raw, pos):
        return Mark(m.end(), Act.SILENT)
    if (m := _TAG.match(raw, pos)) and m.end() - pos <= _TAG_MAX:
        return _tag(m, prev)
    if final:
        return None
    parts = (_TAG_PART, _SPECIAL_PART, _COMMENT_PART, _AUTOLINK_PART)
    return WAIT if len(raw) - pos <= _TAG_MAX and any(p.match(raw, pos) for p in parts) else None


def _tag(m: re.Match[str], prev: str) -> Mark | None:
    closing, name, empty = m[1], m[2].lower(), m[3]
    if name in _SWALLOWED or name.startswith("antml:"):
        silence = None if closing or empty else UntilTag(f"</{m[2]}>")
        return Mark(m.end(), Act.SPACE, silence=silence)
    if prev.isalnum() and not closing and name not in _HTML:
        return None  # List<int>
    if name in _BREAKING and (closing or name in ("br", "p", "li")):
        return Mark(m.end(), Act.PAUSE)
    if name in ("td", "th") and closing:
        return Mark(m.end(), Act.PUT, ", ")
    return Mark(m.end(), Act.CLOSE if closing and prev.strip() else Act.SILENT)

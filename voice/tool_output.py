"""What does the model read of what a tool returned? Bounded text and pictures, however large it is."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import numbers
import pathlib
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set

from voice.errors import BadRequest
from voice.interfaces import ImagePart, TextPart

MAX_OUTPUT_CHARS = 20_000
"""The longest text of one result, note about the cut included: some 5,000 tokens."""
MAX_IMAGES = 8
"""Pictures of one result; the rest is left out, with a note."""
MAX_DEPTH = 50
"""Levels of lists and dicts in one result; deeper is taken for a structure that contains itself."""


def output_of(value: object) -> tuple[str, tuple[ImagePart, ...]]:
    """Text and pictures of a tool's return value.

    Text stays as it is, ``None`` is "done", dataclasses, dicts, lists and other plain values become JSON. A
    picture, or pictures in a list or tuple, are taken out. At most about :data:`MAX_OUTPUT_CHARS` characters
    are ever made, so a huge result costs no second copy.

    Raises:
        BadRequest: The value has no JSON form, or contains itself.
    """
    images: list[ImagePart] = []
    if isinstance(value, ImagePart):
        images, value = [value], None
    elif isinstance(value, list | tuple) and any(isinstance(part, ImagePart) for part in value):
        images = [part for part in value if isinstance(part, ImagePart)]
        value = [part for part in value if not isinstance(part, ImagePart)] or None
        if isinstance(value, list) and all(isinstance(part, str | TextPart) for part in value):
            value = "\n".join(part.text if isinstance(part, TextPart) else part for part in value)
    if isinstance(value, TextPart):
        value = value.text
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        text = _cut(value[: MAX_OUTPUT_CHARS + 1], f"{len(value):,}")
    elif value is None:
        text = _count(len(images)) if images else "done"
    else:
        text = _cut(_json(value), "more")
    if len(images) > MAX_IMAGES:
        text = f"{text}\n[only the first {MAX_IMAGES} of {len(images)} images are shown]"
    return text.encode(errors="replace").decode(), tuple(images[:MAX_IMAGES])


def _count(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _cut(text: str, total: str) -> str:
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    note = f"\n[cut here: the first {MAX_OUTPUT_CHARS:,} characters of {total}]"
    return text[: MAX_OUTPUT_CHARS - len(note)] + note


def _json(value: object) -> str:
    pieces: list[str] = []
    length = 0
    for piece in _pieces(value, 0):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_OUTPUT_CHARS:
            break
    return "".join(pieces)


def _pieces(value: object, depth: int) -> Iterator[str]:
    """JSON in small pieces, made only as far as the reader asks."""
    if depth > MAX_DEPTH:
        raise BadRequest(f"it is nested more than {MAX_DEPTH} levels deep or contains itself")
    if (scalar := _scalar(value)) is not None:
        yield scalar
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        yield from _object(named, depth)
    elif isinstance(value, Mapping):
        yield from _object(((_key(key), part) for key, part in value.items()), depth)
    elif isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        yield "["
        for i, part in enumerate(value):
            if i:
                yield ", "
            yield from _pieces(part, depth + 1)
        yield "]"
    else:
        raise BadRequest(
            f"a value of type {type(value).__name__} has no JSON form; return text, numbers, lists, dicts, "
            "dataclasses or ImagePart"
        )


def _object(members: Iterator[tuple[str, object]], depth: int) -> Iterator[str]:
    yield "{"
    for i, (name, part) in enumerate(members):
        yield f"{', ' if i else ''}{_quoted(name)}: "
        yield from _pieces(part, depth + 1)
    yield "}"


def _scalar(value: object) -> str | None:
    match value:
        case None:
            return "null"
        case enum.Enum():
            plain = isinstance(value.value, str | int | float)
            return _scalar(value.value if plain else value.name)
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case TextPart():
            return _quoted(value.text)
        case numbers.Integral():
            return _quoted("a number of very many digits") if abs(int(value)) > 10**1000 else str(int(value))
        case numbers.Real():
            number = float(value)
            return json.dumps(number if math.isfinite(number) else str(number))
        case datetime.date() | datetime.time():
            return _quoted(value.isoformat())
        case decimal.Decimal() | uuid.UUID() | pathlib.PurePath() | datetime.timedelta():
            return _quoted(str(value))
    return None


def _quoted(text: str) -> str:
    return json.dumps(text[: MAX_OUTPUT_CHARS + 1], ensure_ascii=False)


def _key(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if (scalar := _scalar(key)) is not None:
        return scalar.strip('"')
    raise BadRequest(f"a dict key of type {type(key).__name__} has no JSON form; use text keys")

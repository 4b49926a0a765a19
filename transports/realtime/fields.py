"""What must a client's JSON value be? Each reader gives the value back, or a ``RealtimeError`` that names its path.

They take any decoded JSON whatever: other types, NaN, integers of any size, lone surrogates, deep nesting.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from transports.realtime.errors import RealtimeError, missing, wrong_type, wrong_value
from voice.schema import clip

T = TypeVar("T", bound=str)

MAX_DEPTH = 32
"""Deepest nesting of free-form JSON that is kept, such as a tool's schema."""


def as_object(value: object, param: str) -> dict[str, object]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def as_list(value: object, param: str, most: int) -> list[object]:
    """A JSON array of at most ``most`` elements."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if len(value) > most:
        raise wrong_value(param, f"at most {most} elements", value)
    return value


def as_text(value: object, param: str, *, most: int, least: int = 0) -> str:
    """A string of ``least`` to ``most`` characters that UTF-8 can hold."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if len(value) > most:
        message = f"Invalid '{param}': {len(value):,} characters; at most {most:,} are taken."
        raise RealtimeError(message, code="string_above_max_length", param=param)
    if len(value) < least:
        raise wrong_value(param, "a string that is not empty", value)
    if not _fits_utf8(value):
        raise wrong_value(param, "Unicode text without lone surrogates", value)
    return value


def as_bool(value: object, param: str) -> bool:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        raise wrong_type(param, "a boolean", value)
    return value


def as_number(value: object, param: str, least: float, most: float) -> float:
    """A finite number within bounds, both included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(param, "a number", value)
    if not least <= value <= most:  # also false for NaN
        raise wrong_value(param, f"a number from {least:g} to {most:g}", value)
    return float(value)


def as_integer(value: object, param: str, least: int, most: int) -> int:
    """A whole number within bounds, both included; ``3.0`` is one, as some clients know only floats."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(param, "an integer", value)
    if not least <= value <= most:
        raise wrong_value(param, f"an integer from {least} to {most}", value)
    return value


def as_one_of(value: object, param: str, choices: Collection[T]) -> T:
    """One of a few strings."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    for choice in choices:
        if value == choice:
            return choice
    raise wrong_value(param, "one of " + ", ".join(f"'{choice}'" for choice in choices), value)


def required(data: Mapping[str, object], key: str, param: str) -> object:
    """The value of ``key`` in the object at ``param``; ``null`` counts as absent."""
    value = data.get(key)
    if value is None:
        raise missing(f"{param}.{key}")
    return value


def only_known(
    data: Mapping[str, object], param: str, known: Collection[str], moved: Mapping[str, str] | None = None
) -> None:
    """Refuse a field that the object at ``param`` does not have.

    Args:
        moved: Names of the beta protocol, each with what to do instead.
    """
    for key in data:
        if key in known:
            continue
        path = f"{param}.{clip(key, 64)}"
        message = f"Unknown parameter: '{path}'."
        if moved and key in moved:
            message += f" It belongs to the beta protocol: {moved[key]}."
        raise RealtimeError(message, code="unknown_parameter", param=path)


def as_schema(value: object, param: str, most_bytes: int) -> tuple[dict[str, object], int]:
    """A free-form JSON object that can be kept and written again, and the bytes of its text.

    Args:
        most_bytes: Longest JSON text.
    """
    data = as_object(value, param)
    _check_json(data, param, 0)
    size = len(msgspec.json.encode(data))
    if size > most_bytes:
        message = f"Invalid '{param}': {size:,} bytes of JSON; at most {most_bytes:,} are taken."
        raise RealtimeError(message, param=param)
    return data, size


def _check_json(value: object, param: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RealtimeError(f"Invalid '{param}': nested deeper than {MAX_DEPTH} levels.", param=param)
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str) or not _fits_utf8(key):
                raise wrong_value(param, "keys of Unicode text", key)
            _check_json(part, param, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _check_json(part, param, depth + 1)
    elif isinstance(value, str):
        if not _fits_utf8(value):
            raise wrong_value(param, "Unicode text without lone surrogates", value)
    elif isinstance(value, int | float):
        if not abs(value) < 1e300:
            raise wrong_value(param, "finite numbers", value)
    elif value is not None:
        raise wrong_type(param, "JSON", value)


def _fits_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

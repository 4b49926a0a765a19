"""Is an event exactly what the ``openai`` package knows? Stricter than the package itself, which lets much pass.

Used with whichever version of the package the client at hand has installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import pydantic
from openai.types.realtime import RealtimeServerEvent


def _types() -> dict[str, type[pydantic.BaseModel]]:
    union = get_args(RealtimeServerEvent)[0]
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}


TYPES = _types()
"""Type of a server event → the package's class for it."""


UNTYPED = {
    f"session.{end}.session.{name}"
    for end in ("created", "updated")
    for name in ("object", "id", "expires_at")
}
"""What the vendor sends, and clients read, beyond the package's class for a session."""


def misfits(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """What does not fit the package's classes: missing fields, wrong types, and fields or events it does not know."""
    return [misfit for event in events for misfit in _of(event)]


def _of(event: Mapping[str, Any]) -> Iterator[str]:
    name = event["type"]
    if name not in TYPES:
        yield f"{name} is not known"
        return
    try:
        parsed = TYPES[name].model_validate_json(json.dumps(event), strict=True)
    except pydantic.ValidationError as error:
        yield f"{name}: " + "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]
        )
        return
    yield from (f"{path} is not known" for path in _unknown(parsed, name) if path not in UNTYPED)


def _unknown(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, pydantic.BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _unknown(inner, f"{path}[]")

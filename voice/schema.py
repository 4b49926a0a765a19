"""What JSON may a Python type take? Types become JSON schemas, and JSON values become checked Python values.

The readers are our own and not ``msgspec.convert``, because a language model reads the complaints: all of
them at once, each with its path, what was expected and what came.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypeAlias, Union, get_args, get_origin

import msgspec

from voice.docstrings import docstring_of
from voice.errors import BadRequest

JsonSchema: TypeAlias = dict[str, Any]
Complaints: TypeAlias = list[str]
Choice: TypeAlias = str | int | bool | None

SUPPORTED = (
    "str, int, float, bool, None, Any, Optional and other unions, Literal, Enum, list, tuple, set, "
    "dict[str, ...], dataclasses, TypedDict and Annotated[..., 'description']"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A type as the model sees it.

    Attributes:
        schema: Its JSON schema.
        words: The type in plain words, to go after "expected".
        read: ``read(value, path, complaints)`` gives the Python value of a decoded JSON value. What is wrong
            is appended to ``complaints``; if anything was, the value returned means nothing.
        hashable: Whether its values may be items of a set.
    """

    schema: JsonSchema
    words: str
    read: Callable[[object, str, Complaints], object]
    hashable: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """A named member of an object.

    Attributes:
        required: False when Python has a default for it.
        default: What the model is shown as the default; ``None``: nothing.
    """

    name: str
    shape: Shape
    required: bool
    description: str = ""
    default: object = None


def shape_of(annotation: object, where: str, *, inside: tuple[type, ...] = ()) -> Shape:
    """The shape of a resolved annotation (no strings left in it).

    Args:
        annotation: A type of :data:`SUPPORTED`.
        where: Names the place in errors, such as ``'parameter "seats" of tool "book"'``.
        inside: Classes that are being described, to find one that contains itself.

    Raises:
        BadRequest: The type has no clear JSON form.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return Shape({"type": "null"}, "null", _reader("null", lambda value: value is None))
    if annotation is Any or annotation is object:
        return Shape({}, "any JSON value", lambda value, path, complaints: value, hashable=False)
    if isinstance(annotation, type) and annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Annotated:
        return described(shape_of(arguments[0], where, inside=inside), annotated_text(annotation))
    if origin is Union or origin is types.UnionType:
        return _union([shape_of(member, where, inside=inside) for member in arguments])
    if origin is Literal:
        return _choice([(_literal(value, where), value) for value in arguments])
    if isinstance(annotation, typing.NewType):
        return shape_of(annotation.__supertype__, where, inside=inside)
    if hasattr(annotation, "__value__") and origin is None:  # ``type Name = ...`` of Python 3.12
        return shape_of(annotation.__value__, where, inside=inside)
    container = origin or annotation
    if container in _LISTS or container in _SETS:
        element = shape_of(arguments[0] if arguments else Any, where, inside=inside)
        return _array(element, container, where)
    if container is tuple:
        return _tuple(arguments, where, inside)
    if container in _MAPS:
        return _map(arguments, where, inside)
    if isinstance(annotation, type):
        return _class(annotation, where, inside)
    raise unsupported(annotation, where)


def unsupported(annotation: object, where: str) -> BadRequest:
    """The error for a type that has no JSON form here."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return BadRequest(f"{where} has the type {name}, which a model can't fill in; use {SUPPORTED}")


def described(shape: Shape, description: str) -> Shape:
    """The same shape with a description in its schema; unchanged when there is none."""
    if not description:
        return shape
    return dataclasses.replace(shape, schema={**shape.schema, "description": description})


def annotated_text(annotation: object) -> str:
    """The first string in ``Annotated[..., "text"]``, or nothing."""
    if get_origin(annotation) is not Annotated:
        return ""
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), "")


# ---------------------------------------------------------------- complaints


def in_words(value: object) -> str:
    """A decoded JSON value for a sentence, at most some 60 characters."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {clip(str(value) if abs(value) < 1e300 else format(float('inf')), 40)}"
        case str():
            return f"the string {json.dumps(clip(value, 40), ensure_ascii=False)}"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"


def clip(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters, ending in "…" where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _expected(words: str, value: object, path: str) -> str:
    return f'"{path}": expected {words}, got {in_words(value)}'


def _reader(words: str, accepts: Callable[[object], bool]) -> Callable[[object, str, Complaints], object]:
    def read(value: object, path: str, complaints: Complaints) -> object:
        if not accepts(value):
            complaints.append(_expected(words, value, path))
        return value

    return read


# ---------------------------------------------------------------- scalars and choices


def _read_int(value: object, path: str, complaints: Complaints) -> object:
    if isinstance(value, float) and value.is_integer():  # JSON schema counts 2.0 as an integer
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        complaints.append(_expected("a whole number", value, path))
    return value


def _read_float(value: object, path: str, complaints: Complaints) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    complaints.append(_expected("a number", value, path))
    return value


_SCALARS: Mapping[type, Shape] = {
    str: Shape({"type": "string"}, "a string", _reader("a string", lambda value: isinstance(value, str))),
    int: Shape({"type": "integer"}, "a whole number", _read_int),
    float: Shape({"type": "number"}, "a number", _read_float),
    bool: Shape(
        {"type": "boolean"}, "true or false", _reader("true or false", lambda value: isinstance(value, bool))
    ),
}


def _literal(value: object, where: str) -> Choice:
    if value is None or (isinstance(value, str | int | bool) and not isinstance(value, enum.Enum)):
        return value
    raise BadRequest(
        f"{where} has Literal[{value!r}], but only text, whole numbers, true, false and null are possible"
    )


def _choice(choices: Sequence[tuple[Choice, object]]) -> Shape:
    """One of some JSON scalars, each given with its Python value."""
    # True == 1 in Python but not in JSON, so the kind is part of what is compared
    table = {(type(key), key): value for key, value in choices}
    kinds = {_JSON_KIND[kind] for kind, _ in table}
    schema: JsonSchema = {"enum": [key for _, key in table]}
    if len(kinds) == 1:
        schema = {"type": kinds.pop(), **schema}
    words = "one of " + ", ".join(json.dumps(key, ensure_ascii=False) for _, key in table)

    def read(value: object, path: str, complaints: Complaints) -> object:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int | bool | None) and (type(value), value) in table:
            return table[type(value), value]
        complaints.append(_expected(words, value, path))
        return value

    return Shape(schema, words, read)


_JSON_KIND: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


# ---------------------------------------------------------------- unions and containers


def _union(members: Sequence[Shape]) -> Shape:
    words = " or ".join(dict.fromkeys(member.words for member in members))

    def read(value: object, path: str, complaints: Complaints) -> object:
        # ``int | float``: 2 stays whole and 2.0 stays a float, whichever the author wrote first
        first = "number" if isinstance(value, float) else "integer"
        failures: list[Complaints] = []
        for member in sorted(members, key=lambda m: m.schema.get("type") != first):
            found: Complaints = []
            result = member.read(value, path, found)
            if not found:
                return result
            failures.append(found)
        # a member that failed only deeper inside is the one that was meant
        deeper = [found for found in failures if not found[0].startswith(f'"{path}": ')]
        complaints.extend(deeper[0] if deeper else [_expected(words, value, path)])
        return value

    hashable = all(member.hashable for member in members)
    return Shape({"anyOf": [member.schema for member in members]}, words, read, hashable)


_LISTS: tuple[object, ...] = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_SETS: tuple[object, ...] = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_MAPS: tuple[object, ...] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _array(element: Shape, container: object, where: str) -> Shape:
    is_set = container in _SETS
    if is_set and not element.hashable:
        raise BadRequest(f"{where} is a set of {element.words}, which Python can't put in a set; use a list")
    build = frozenset if container is frozenset else set if is_set else list
    schema: JsonSchema = {"type": "array", "items": element.schema}
    if is_set:
        schema["uniqueItems"] = True
    words = "a list" if not element.schema else f"a list (each: {element.words})"

    def read(value: object, path: str, complaints: Complaints) -> object:
        if not isinstance(value, list):
            complaints.append(_expected(words, value, path))
            return value
        before = len(complaints)
        items = [element.read(item, f"{path}[{i}]", complaints) for i, item in enumerate(value)]
        return build(items) if len(complaints) == before else value

    return Shape(schema, words, read, hashable=build is frozenset)


def _tuple(arguments: tuple[Any, ...], where: str, inside: tuple[type, ...]) -> Shape:
    if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
        item = shape_of(arguments[0] if arguments else Any, where, inside=inside)
        many = _array(item, list, where)

        def read_many(value: object, path: str, complaints: Complaints) -> object:
            items = many.read(value, path, complaints)
            return tuple(items) if isinstance(items, list) else items

        return Shape(many.schema, many.words, read_many, item.hashable)
    items = [shape_of(argument, where, inside=inside) for argument in arguments if argument != ()]
    words = f"a list of exactly {len(items)} ({', '.join(item.words for item in items)})"
    schema: JsonSchema = {"type": "array", "minItems": len(items), "maxItems": len(items)}
    if items and all(item.schema == items[0].schema for item in items):
        schema["items"] = items[0].schema
    else:
        schema["prefixItems"] = [item.schema for item in items]

    def read(value: object, path: str, complaints: Complaints) -> object:
        if not isinstance(value, list) or len(value) != len(items):
            complaints.append(_expected(words, value, path))
            return value
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(item.read(part, f"{path}[{i}]", complaints) for i, (item, part) in pairs)

    return Shape(schema, words, read, all(item.hashable for item in items))


def _map(arguments: tuple[Any, ...], where: str, inside: tuple[type, ...]) -> Shape:
    key, of = arguments or (str, Any)
    if key is not str:
        raise BadRequest(f"{where} is a dict with keys other than str, but JSON objects only have text keys")
    inner = shape_of(of, where, inside=inside)

    def read(value: object, path: str, complaints: Complaints) -> object:
        if not isinstance(value, dict):
            complaints.append(_expected("an object", value, path))
            return value
        return {name: inner.read(part, f"{path}.{name}", complaints) for name, part in value.items()}

    return Shape({"type": "object", "additionalProperties": inner.schema}, "an object", read, hashable=False)


# ---------------------------------------------------------------- classes and objects


def _class(cls: type, where: str, inside: tuple[type, ...]) -> Shape:
    if issubclass(cls, enum.Enum):
        members = list(cls)
        if not members:
            raise unsupported(cls, where)
        by_value = all(type(member.value) in _JSON_KIND for member in members)
        return _choice([(member.value if by_value else member.name, member) for member in members])
    typed_dict = issubclass(cls, dict) and hasattr(cls, "__total__")
    if not typed_dict and not dataclasses.is_dataclass(cls):
        raise unsupported(cls, where)
    if cls in inside:
        raise BadRequest(
            f"{where} uses {cls.__name__}, which contains itself; a schema for it would have no end"
        )
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise BadRequest(f"{where}: a type in {cls.__name__} can't be found: {error}") from None
    within = (*inside, cls)
    texts = docstring_of(cls).parameters
    if typed_dict:
        fields = _typed_dict_fields(cls, hints, texts, where, within)
        return object_shape(fields, lambda values: values, hashable=False)
    fields = []
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]  # checked above
        if not one.init:
            continue
        place = f"{where} (field {cls.__name__}.{one.name})"
        shape = shape_of(hints[one.name], place, inside=within)
        default = None if one.default is dataclasses.MISSING else one.default
        required = one.default is one.default_factory is dataclasses.MISSING
        fields.append(Field(one.name, shape, required, texts.get(one.name, ""), default))
    hashable = cls.__hash__ is not None and all(field.shape.hashable for field in fields)
    return object_shape(fields, lambda values: cls(**values), hashable=hashable)


def _typed_dict_fields(
    cls: type, hints: Mapping[str, object], texts: Mapping[str, str], where: str, inside: tuple[type, ...]
) -> list[Field]:
    fields = []
    needed: frozenset[str] = getattr(cls, "__required_keys__", frozenset())
    for name, hint in hints.items():
        required = name in needed
        # with postponed annotations __required_keys__ is blind to these two, so the resolved hint decides
        while get_origin(hint) in (Required, NotRequired):
            required = get_origin(hint) is Required
            (hint,) = get_args(hint)
        shape = shape_of(hint, f"{where} (key {cls.__name__}[{name!r}])", inside=inside)
        fields.append(Field(name, shape, required, texts.get(name, "")))
    return fields


def object_shape(
    fields: Sequence[Field], build: Callable[[dict[str, Any]], object], *, hashable: bool = False
) -> Shape:
    """An object with exactly these fields. ``build`` gets those that were given (defaults are Python's own).

    What ``build`` raises as ``ValueError`` or ``TypeError`` (a dataclass that checks itself) is a complaint.
    """
    known = {field.name: field for field in fields}
    schema: JsonSchema = {
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }
    words = f"an object with {', '.join(known)}" if known else "an empty object"

    def read(value: object, path: str, complaints: Complaints) -> object:
        if not isinstance(value, dict):
            complaints.append(_expected(words, value, path or "arguments"))
            return value
        before = len(complaints)
        at = f"{path}." if path else ""
        for name in value.keys() - known.keys():
            complaints.append(f'"{at}{clip(name, 40)}": unknown; the names are: {", ".join(known) or "none"}')
        for name, field in known.items():
            if field.required and name not in value:
                complaints.append(f'"{at}{name}": missing; expected {field.shape.words}')
        values = {
            name: known[name].shape.read(part, at + name, complaints)
            for name, part in value.items()
            if name in known
        }
        if len(complaints) > before:
            return value
        try:
            return build(values)
        except (ValueError, TypeError) as error:
            complaints.append(f'"{path or "arguments"}": {clip(str(error), 200)}')
            return value

    return Shape(schema, words, read, hashable)


def _property(field: Field) -> JsonSchema:
    schema = dict(field.shape.schema)
    if field.description and "description" not in schema:
        schema["description"] = field.description
    if not field.required and field.default is not None:
        try:
            default = msgspec.to_builtins(field.default)
        except (TypeError, ValueError):
            return schema
        complaints: Complaints = []
        # a default that the model could not have sent itself would only mislead it
        if field.shape.read(default, field.name, complaints) == field.default and not complaints:
            schema["default"] = default
    return schema

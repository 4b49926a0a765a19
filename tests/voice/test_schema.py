"""Types become JSON schemas, and what a reader accepts is what its schema says."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.docstrings import docstring_of
from voice.errors import BadRequest
from voice.schema import shape_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 3


class Handle(enum.Enum):
    FIRST = (1, 2)
    SECOND = (3, 4)


@dataclass(frozen=True)
class Point:
    """A place on the map.

    Attributes:
        x: Metres to the east.
    """

    x: int
    y: Annotated[int, "Metres to the north."] = 0


@dataclass
class Order:
    items: list[str]
    at: Point | None = None
    tags: set[str] = field(default_factory=set)


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n <= 0:
            raise ValueError("n must be above 0")


@dataclass
class Tree:
    value: int
    children: list[Tree]


class Options(TypedDict):
    unit: Literal["C", "F"]
    days: NotRequired[int]


UserId = NewType("UserId", str)


def read(annotation: object, value: object) -> tuple[object, list[str]]:
    complaints: list[str] = []
    return shape_of(annotation, "x").read(value, "x", complaints), complaints


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (UserId, {"type": "string"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Size, {"type": "integer", "enum": [1, 3]}),
        (Handle, {"type": "string", "enum": ["FIRST", "SECOND"]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array", "items": {}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (Iterable[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, int],
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        ),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict, {"type": "object", "additionalProperties": {}}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (
            Point,
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "description": "Metres to the east."},
                    "y": {"type": "integer", "description": "Metres to the north.", "default": 0},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            Options,
            {
                "type": "object",
                "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "integer"}},
                "required": ["unit"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_type_has_its_schema(annotation: object, schema: object) -> None:
    assert shape_of(annotation, "x").schema == schema


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        (int, 2.0, 2),
        (float, 2, 2.0),
        (int | float, 2.0, 2.0),
        (float | int, 2, 2),
        (Colour, "red", Colour.RED),
        (Size, 3, Size.LARGE),
        (Handle, "SECOND", Handle.SECOND),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[()], [], ()),
        (set[str], ["a", "b", "a"], {"a", "b"}),
        (frozenset[int], [1], frozenset({1})),
        (set[Point], [{"x": 1}], {Point(1)}),
        (Order, {"items": ["tea"], "at": {"x": 1}}, Order(["tea"], Point(1, 0))),
        (Options, {"unit": "C", "days": 2}, {"unit": "C", "days": 2}),
        (dict[str, Colour], {"a": "blue"}, {"a": Colour.BLUE}),
        (list[int] | list[float], [1, 2.5], [1.0, 2.5]),
        (Literal[0, False], False, False),
    ],
)
def test_json_becomes_the_python_value(annotation: object, value: object, result: object) -> None:
    got, complaints = read(annotation, value)
    assert complaints == []
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (int, "5", '"x": expected a whole number, got the string "5"'),
        (int, True, '"x": expected a whole number, got true'),
        (int, 2.5, '"x": expected a whole number, got the number 2.5'),
        (float, False, '"x": expected a number, got false'),
        (float, 10**400, '"x": expected a number, got the number inf'),
        (str, None, '"x": expected a string, got null'),
        (bool, 1, '"x": expected true or false, got the number 1'),
        (Literal[1], True, '"x": expected one of 1, got true'),
        (Colour, "green", '"x": expected one of "red", "blue", got the string "green"'),
        (int | None, "a", '"x": expected a whole number or null, got the string "a"'),
        (list[int], [1, "b"], '"x[1]": expected a whole number, got the string "b"'),
        (list[int], {}, '"x": expected a list (each: a whole number), got an object'),
        (
            tuple[int, str],
            [1],
            '"x": expected a list of exactly 2 (a whole number, a string), got a list of 1',
        ),
        (dict[str, int], {"k": None}, '"x.k": expected a whole number, got null'),
        (Point, {"y": 1}, '"x.x": missing; expected a whole number'),
        (Point, {"x": 1, "z": 2}, '"x.z": unknown; the names are: x, y'),
        (Point | None, {"x": "a"}, '"x.x": expected a whole number, got the string "a"'),
        (Positive, {"n": -1}, '"x": n must be above 0'),
        (str, ["x" * 500], '"x": expected a string, got a list of 1'),
    ],
)
def test_a_wrong_value_is_told_with_what_was_expected(
    annotation: object, value: object, complaint: str
) -> None:
    assert read(annotation, value)[1] == [complaint]


def test_all_mistakes_are_told_at_once_and_long_values_are_cut() -> None:
    _, complaints = read(Order, {"items": [1, 2], "at": {"x": "east" * 100}})
    assert [text.partition(":")[0] for text in complaints] == ['"x.items[0]"', '"x.items[1]"', '"x.at.x"']
    assert max(map(len, complaints)) < 120


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bytes, "the type bytes"),
        (complex, "the type complex"),
        (typing.Callable[[], int], "can't fill in"),
        (dict[int, str], "keys other than str"),
        (set[list[int]], "use a list"),
        (Literal[b"x"], "only text, whole numbers"),
        (Tree, "contains itself"),
        (typing.TypeVar("T"), "can't fill in"),
        (type("Plain", (), {}), "the type Plain"),
    ],
)
def test_a_type_without_json_form_is_refused_by_name(annotation: object, words: str) -> None:
    with pytest.raises(BadRequest, match="the place") as caught:
        shape_of(annotation, "the place")
    assert words in str(caught.value)


# ---------------------------------------------------------------- properties


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """A JSON schema validator for the keywords we write."""
    if "anyOf" in schema:
        return any(conforms(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(same(value, one) for one in schema["enum"])
    match schema.get("type"):
        case None:
            return True
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "integer":
            return not isinstance(value, bool) and isinstance(value, int | float) and value == int(value)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            if not isinstance(value, list):
                return False
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                return False
            parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
            return all(conforms(v, s) for v, s in zip(value, parts, strict=True))
        case "object":
            if not isinstance(value, dict) or not set(schema.get("required", ())) <= value.keys():
                return False
            known, extra = schema.get("properties", {}), schema["additionalProperties"]
            return all(
                conforms(v, known[k]) if k in known else extra is not False and conforms(v, extra)
                for k, v in value.items()
            )
    raise AssertionError(schema)


def same(a: object, b: object) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


LEAVES = st.sampled_from([str, int, float, bool, None, Colour, Size, Literal["a", 2, True], Point, Options])
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),  # type: ignore[valid-type]
        inner.map(lambda t: dict[str, t]),  # type: ignore[valid-type]
        inner.map(lambda t: tuple[t, ...]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda p: tuple[p[0], p[1]]),  # type: ignore[name-defined]
        st.tuples(inner, inner).map(lambda p: Union[p]),  # noqa: UP007
        inner.map(lambda t: Annotated[t, "text"]),
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(["x", "y", "unit", "days", "red", "a"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-4, 4, width=16) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def values_of(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """JSON values that fit a schema."""
    if "anyOf" in schema:
        return st.one_of([values_of(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "string":
            return st.text(max_size=5)
        case "integer":
            return st.integers()
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "array" if "prefixItems" in schema:
            return st.tuples(*map(values_of, schema["prefixItems"])).map(list)
        case "array":
            return st.lists(
                values_of(schema["items"]),
                min_size=schema.get("minItems", 0),
                max_size=schema.get("maxItems", 3),
            )
        case "object" if "properties" in schema:
            given_ = {k: values_of(v) for k, v in schema["properties"].items()}
            required = {k: v for k, v in given_.items() if k in schema["required"]}
            optional = {k: v for k, v in given_.items() if k not in schema["required"]}
            return st.fixed_dictionaries(required, optional=optional)
        case "object":
            return st.dictionaries(NAMES, values_of(schema["additionalProperties"]), max_size=3)
    raise AssertionError(schema)


@settings(max_examples=300, deadline=None)
@given(TYPES, JSON)
def test_a_reader_accepts_exactly_what_its_schema_says(annotation: object, value: object) -> None:
    shape = shape_of(annotation, "x")
    complaints: list[str] = []
    shape.read(value, "x", complaints)
    assert (not complaints) == conforms(value, shape.schema), complaints


@settings(max_examples=300, deadline=None)
@given(TYPES.flatmap(lambda t: st.tuples(st.just(t), values_of(shape_of(t, "x").schema))))
def test_what_fits_the_schema_is_read_and_writes_back_to_itself(case: tuple[object, Any]) -> None:
    annotation, value = case
    shape = shape_of(annotation, "x")
    complaints: list[str] = []
    result = shape.read(value, "x", complaints)
    assert complaints == []
    again: list[str] = []
    back = shape.read(msgspec.json.decode(msgspec.json.encode(result)), "x", again)
    assert again == []
    assert back == result


# ---------------------------------------------------------------- docstrings


def google(a: int, b: int) -> None:
    """Book a table
    in the evening.

    More about it.

    Args:
        a (int, optional): How many, or
            even more: yes.
        *b: Where.

    Returns:
        c: not a parameter.
    """


def rest(a: int, b: int) -> None:
    """Book a table.

    :param a: How many,
        or even more.
    :param int b: Where.
    :returns: nothing: at all
    """


def no_summary(a: int) -> None:
    """Args:
    a: Too shallow, not a section.
    """


def test_a_google_docstring_is_read() -> None:
    doc = docstring_of(google)
    assert doc.summary == "Book a table in the evening."
    assert doc.parameters == {"a": "How many, or even more: yes.", "b": "Where."}


def test_a_rest_docstring_is_read() -> None:
    doc = docstring_of(rest)
    assert doc.summary == "Book a table."
    assert doc.parameters == {"a": "How many, or even more.", "b": "Where."}


def test_nothing_is_invented_for_missing_docstrings() -> None:
    assert docstring_of(lambda: None).summary == ""
    assert docstring_of(no_summary).summary == ""
    assert docstring_of(dataclasses.make_dataclass("Made", ["x"])).summary == ""

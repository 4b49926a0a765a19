"""Taking an ONNX model apart: cuts, parts, and what is said of bytes that are no model."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.onnx_graph import Cut, Graph
from voice.errors import ModelMissing

# ---------------------------------------------------------------- a small model, written by hand


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(key: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return number(key << 3 | 2) + number(len(raw)) + raw


def plain(key: int, value: int) -> bytes:
    return number(key << 3) + number(value)


def node(op_type: str, inputs: list[str], outputs: list[str], attribute: bytes = b"") -> bytes:
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return field(1, names + field(4, op_type) + (field(5, attribute) if attribute else b""))


def weight(name: str, values: list[float]) -> bytes:
    data = np.array(values, np.float32).tobytes()
    return field(5, plain(1, len(values)) + plain(2, 1) + field(8, name) + field(9, data))


def floats(key: int, name: str) -> bytes:
    dimension = field(1, field(2, "n"))
    return field(key, field(1, name) + field(2, field(1, plain(1, 1) + field(2, dimension))))


def model(*content: bytes) -> bytes:
    graph = field(2, "small") + b"".join(content)
    return plain(1, 8) + field(2, "by hand") + field(7, graph) + field(8, plain(2, 15))


SMALL = model(
    node("Neg", ["w"], ["minus_w"]),
    node("Mul", ["x", "w"], ["a"]),
    node("Add", ["a", "x"], ["b"]),
    node("Relu", ["x"], ["unused"]),
    node("Abs", ["b"], ["c"]),
    node("Add", ["c", "minus_w"], ["y"]),
    weight("w", [2.0]),
    weight("idle", [5.0]),
    floats(11, "x"),
    floats(12, "y"),
)
"""y = |2 x + x| - 2"""


def run(part: bytes, **feed: list[float]) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: np.array(value, np.float32) for name, value in feed.items()}))


# ---------------------------------------------------------------- cuts


def test_a_cut_is_where_all_that_depends_on_the_input_passes_through_few_tensors() -> None:
    cuts = Graph.read(SMALL).cuts("y", 1)
    assert cuts == [Cut(5, ("c",)), Cut(4, ("b",)), Cut(1, ("x",))]
    assert Cut(2, ("a", "x")) in Graph.read(SMALL).cuts("y", 2)


def test_what_is_made_of_weights_alone_does_not_count_as_passing_through_a_cut() -> None:
    assert all("minus_w" not in cut.tensors for cut in Graph.read(SMALL).cuts("y", 3))


def test_nothing_is_cut_before_the_last_random_draw() -> None:
    drawn = model(
        node("Abs", ["x"], ["a"]),
        node("RandomNormalLike", ["a"], ["r"]),
        node("Add", ["a", "r"], ["b"]),
        node("Abs", ["b"], ["y"]),
        floats(11, "x"),
        floats(12, "y"),
    )
    assert [cut.at for cut in Graph.read(drawn).cuts("y", 9)] == [3, 2]


def test_a_graph_with_a_graph_inside_is_not_cut() -> None:
    branch = field(1, "then_branch") + field(6, field(2, "inner"))
    nested = model(
        node("If", ["x"], ["a"], branch), node("Abs", ["a"], ["y"]), floats(11, "x"), floats(12, "y")
    )
    assert Graph.read(nested).cuts("y", 1) == []


# ---------------------------------------------------------------- parts


def test_two_parts_one_after_the_other_give_what_the_whole_gives() -> None:
    graph = Graph.read(SMALL)
    x = [-3.0, 0.0, 1.5]
    (whole,) = run(SMALL, x=x)
    (middle,) = run(graph.part(["x"], ["b"]), x=x)
    (y,) = run(graph.part(["b"], ["y"]), b=list(middle))
    assert np.array_equal(whole, np.abs(3 * np.array(x, np.float32)) - 2)
    assert np.array_equal(y, whole)


def test_a_part_can_give_several_tensors_in_the_order_asked_for() -> None:
    c, a = run(Graph.read(SMALL).part(["x"], ["c", "a"]), x=[-1.0])
    assert (c[0], a[0]) == (3.0, -2.0)


def test_a_part_holds_only_the_nodes_and_weights_it_needs() -> None:
    part = Graph.read(Graph.read(SMALL).part(["b"], ["c"]))
    assert [node.op_type for node in part.nodes] == ["Abs"]
    assert part.initializers == {} and list(part.inputs) == ["b"] and list(part.outputs) == ["c"]
    tail = Graph.read(Graph.read(SMALL).part(["b"], ["y"]))
    assert list(tail.initializers) == ["w"]
    assert [node.op_type for node in tail.nodes] == ["Neg", "Abs", "Add"]


def test_version_and_operator_set_are_kept() -> None:
    part = Graph.read(SMALL).part(["b"], ["y"])
    assert part.startswith(plain(1, 8) + field(2, "by hand") + field(8, plain(2, 15)))
    assert field(2, "small") in part


def test_a_part_that_lacks_an_input_is_refused_with_the_name() -> None:
    with pytest.raises(ModelMissing, match="'x'"):
        Graph.read(SMALL).part([], ["b"])
    with pytest.raises(ModelMissing, match="'nothing'"):
        Graph.read(SMALL).part(["x"], ["nothing"])


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("data", [b"", b"\x00", b"<!doctype html>", b"\xff" * 40, SMALL[:-1], SMALL[:30]])
def test_bytes_that_are_no_model_are_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ModelMissing) as caught:
        Graph.read(data).part(["x"], ["y"])
    assert "\n" not in str(caught.value)


@given(st.integers(0, 2**32 - 1))
def test_a_damaged_model_is_refused_or_read_but_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(SMALL)
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        graph = Graph.read(bytes(data))
        graph.cuts("y", 2)
        graph.part(list(graph.inputs), list(graph.outputs))
    except ModelMissing:
        pass

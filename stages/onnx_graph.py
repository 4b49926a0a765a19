"""How an ONNX model is taken apart without unpacking its weights: where it can be cut, and the model of a part.

Only names are read; nodes and weights stay the bytes they are. :mod:`stages.onnx_build` writes new ones. Field
numbers are those of onnx.proto: ModelProto.graph 7; GraphProto.node 1, .initializer 5, .input 11, .output 12,
.value_info 13, .sparse_initializer 15; NodeProto.input 1, .output 2, .op_type 4, .attribute 5; AttributeProto.g 6,
.graphs 11; TensorProto.dims 1, .data_type 2, .float_data 4, .name 8, .raw_data 9; ValueInfoProto.name 1, .type 2;
TypeProto.tensor_type 1; its elem_type 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voice.errors import ModelMissing

Bytes = bytes | memoryview

_FLOAT_TENSOR = b"\x12\x04\x0a\x02\x08\x01"
"""ValueInfoProto.type of a float32 tensor of any shape."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: what it reads, what it makes, and its message as it is in the file."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: memoryview


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between two nodes: the ``tensors`` alone carry what the nodes from ``at`` on need."""

    at: int
    tensors: tuple[str, ...]


@dataclass(slots=True)
class Graph:
    """A model's graph, as views of the bytes it was read from.

    Attributes:
        nodes: In the file's order, where every tensor is made before it is read.
        initializers: The weights, by name.
        inputs: The messages of what is fed, by name; weights that are listed as inputs too are left out.
        outputs: The messages of what comes out, by name.
        nested: Some node holds a graph of its own, which may read any tensor, or weights are sparse, which have
            no plain names: such a graph has no cuts.
    """

    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, memoryview] = field(default_factory=dict)
    inputs: dict[str, memoryview] = field(default_factory=dict)
    outputs: dict[str, memoryview] = field(default_factory=dict)
    nested: bool = False
    _around: list[bytes] = field(default_factory=list)
    _within: list[bytes] = field(default_factory=list)

    @classmethod
    def read(cls, model: Bytes) -> Graph:
        """Read the names in a model.

        Raises:
            ModelMissing: The bytes are no ONNX model.
        """
        graph = cls()
        try:
            for number, value, raw in fields(memoryview(model)):
                if number == 7 and value is not None:
                    graph._read_graph(value)
                else:
                    graph._around.append(bytes(raw))
        except (ValueError, IndexError) as error:  # UnicodeDecodeError is a ValueError
            raise ModelMissing(f"this is no ONNX model, or a damaged one: {error}") from error
        if not graph.nodes or not graph.outputs:
            raise ModelMissing("this is no ONNX model: it has no nodes or no output")
        for name in graph.initializers:
            graph.inputs.pop(name, None)
        return graph

    def _read_graph(self, message: memoryview) -> None:
        for number, value, raw in fields(message):
            if value is None:
                self._within.append(bytes(raw))
            elif number == 1:
                self._read_node(value)
            elif number == 5:
                self.initializers[_name(value, 8)] = value
            elif number == 11:
                self.inputs[_name(value, 1)] = value
            elif number == 12:
                self.outputs[_name(value, 1)] = value
            elif number != 13:  # shapes of inner tensors are found again when the model is loaded
                self._within.append(bytes(raw))
                self.nested |= number == 15

    def _read_node(self, message: memoryview) -> None:
        inputs: list[str] = []
        outputs: list[str] = []
        op_type = ""
        for number, value, _ in fields(message):
            if value is None:
                continue
            if number == 1:
                inputs.append(str(value, "utf-8"))
            elif number == 2:
                outputs.append(str(value, "utf-8"))
            elif number == 4:
                op_type = str(value, "utf-8")
            elif number == 5:
                self.nested |= any(key in (6, 11) and inner is not None for key, inner, _ in fields(value))
        self.nodes.append(Node(op_type, tuple(inputs), tuple(outputs), message))

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A weight, unpacked.

        Raises:
            ModelMissing: There is none of that name, or it is no float32 tensor with its data in the file.
        """
        shape: list[int] = []
        kind, data = 0, None
        for number, value, raw in fields(self.initializers.get(name, memoryview(b""))):
            if number == 1:
                at, content = (0, value) if value is not None else (1, raw)
                while at < len(content):
                    length, at = varint(content, at)
                    shape.append(length)
            elif number == 2 and value is None:
                kind, _ = varint(raw, 1)
            elif number in (4, 9):
                data = value
        if kind != 1 or data is None or len(data) != 4 * math.prod(shape):
            raise ModelMissing(f"this ONNX model has no float32 weight {name!r}")
        return np.frombuffer(data, "<f4").reshape(shape)

    def made_by(self, op_type: str) -> list[str]:
        """All that nodes of this type make, in order."""
        return [name for node in self.nodes if node.op_type == op_type for name in node.outputs]

    def cuts(self, output: str, width: int) -> list[Cut]:
        """Places where at most ``width`` tensors lead to ``output``; the last first.

        What is made of weights alone doesn't count: both sides can make it. The search ends at the last node
        that draws random numbers, so everything behind a cut is a function of its tensors.
        """
        if self.nested:
            return []
        fixed = self._fixed()
        needed = {output}
        cuts: list[Cut] = []
        for at in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[at]
            if needed.isdisjoint(node.outputs):
                continue
            if node.op_type.startswith("Random"):
                break
            needed.difference_update(node.outputs)
            needed.update(name for name in node.inputs if name and name not in fixed)
            if 0 < len(needed) <= width:
                cuts.append(Cut(at, tuple(sorted(needed))))
        return cuts

    def _fixed(self) -> set[str]:
        """Names that don't depend on what is fed."""
        fixed = set(self.initializers)
        for node in self.nodes:
            drawn = node.op_type.startswith("Random")
            if not drawn and all(name in fixed for name in node.inputs if name):
                fixed.update(node.outputs)
        return fixed

    def part(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """The model that makes ``outputs`` of ``inputs``, with the nodes and weights it needs and no others.

        Args:
            inputs: Names of graph inputs, or of inner tensors, which must be float32.
            outputs: Names of any tensors.

        Raises:
            ModelMissing: An output is made by no node, or needs an input that isn't listed.
        """
        kept, names = self._needed(set(inputs), outputs)
        content: list[Bytes] = [*self._within]
        for node in kept:
            content += field_bytes(1, node.raw)
        for name, raw in self.initializers.items():
            if name in names:
                content += field_bytes(5, raw)
        for name in inputs:
            content += field_bytes(11, self.inputs.get(name) or _named(name) + _FLOAT_TENSOR)
        for name in outputs:
            content += field_bytes(12, self.outputs.get(name) or _named(name))
        size = sum(map(len, content))
        return b"".join([*self._around, varint_bytes(7 << 3 | 2), varint_bytes(size), *content])

    def _needed(self, fed: set[str], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
        """The nodes between ``fed`` and ``outputs``, in order, and all names they read."""
        maker = {name: at for at, node in enumerate(self.nodes) for name in node.outputs if name}
        names: set[str] = set()
        kept: set[int] = set()
        todo = list(outputs)
        while todo:
            name = todo.pop()
            if not name or name in names:
                continue
            names.add(name)
            if name in fed or name in self.initializers:
                continue
            if name not in maker:
                raise ModelMissing(f"the ONNX model can't be cut: nothing in this part makes {name!r}")
            if maker[name] not in kept:
                kept.add(maker[name])
                todo.extend(self.nodes[maker[name]].inputs)
        return [self.nodes[at] for at in sorted(kept)], names


# ---------------------------------------------------------------- the wire format of protocol buffers


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | None, memoryview]]:
    """Number, content (``None`` for a plain number) and whole encoding of each field of a message.

    Raises:
        ValueError, IndexError: Not a protocol buffer.
    """
    at = 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        value: memoryview | None = None
        match key & 7:
            case 0:
                _, at = varint(data, at)
            case 1:
                at += 8
            case 2:
                length, at = varint(data, at)
                value = data[at : at + length]
                at += length
            case 5:
                at += 4
            case other:
                raise ValueError(f"unknown wire type {other}")
        if at > len(data):
            raise ValueError("a message ends inside a field")
        yield key >> 3, value, data[begin:at]


def varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is longer than 64 bits")


def varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_bytes(number: int, content: Bytes) -> tuple[Bytes, Bytes]:
    return varint_bytes(number << 3 | 2) + varint_bytes(len(content)), content


def _named(name: str) -> bytes:
    return b"".join(field_bytes(1, name.encode()))


def _name(message: memoryview, number: int) -> str:
    return next((str(value, "utf-8") for key, value, _ in fields(message) if key == number and value), "")

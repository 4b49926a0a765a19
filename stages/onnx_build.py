"""Writes a small ONNX model: operators, weights, inputs and outputs, in the wire format of protocol buffers.

Field numbers are those of onnx.proto: ModelProto.ir_version 1, .graph 7, .opset_import 8; OperatorSetIdProto.version 2;
GraphProto.node 1, .name 2, .initializer 5, .input 11, .output 12; NodeProto.input 1, .output 2, .op_type 4,
.attribute 5; AttributeProto.name 1, .i 3, .type 20; TensorProto.dims 1, .data_type 2, .name 8, .raw_data 9;
ValueInfoProto.name 1, .type 2; TypeProto.tensor_type 1; its elem_type 1, .shape 2; TensorShapeProto.dim 1; its
dim_value 1, dim_param 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stages.onnx_graph import field_bytes, varint_bytes

IR_VERSION, OPSET = 9, 18
_FLOAT, _INT64 = 1, 7
_KINDS = {np.dtype(np.float32): _FLOAT, np.dtype(np.int64): _INT64}
_ATTRIBUTE_INT = 2


class Builder:
    """Collects a graph. Names are tensors; every method that adds something returns the name of what it makes."""

    def __init__(self) -> None:
        self._content: list[bytes] = []
        self._known: dict[tuple[int, ...], str] = {}
        self._count = 0

    def weight(self, values: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> str:
        """A constant, float32 or int64, of any shape."""
        name = self._new("w")
        kind = _KINDS[values.dtype]
        data = b"".join(_number(1, length) for length in values.shape) + _number(2, kind)
        raw = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        self._content.append(_message(5, data + _message(8, name.encode()) + _message(9, raw)))
        return name

    def ints(self, *values: int) -> str:
        """A vector of whole numbers; equal ones are kept once."""
        if values not in self._known:
            self._known[values] = self.weight(np.array(values, np.int64))
        return self._known[values]

    def op(self, op_type: str, *inputs: str, name: str | None = None, **attributes: int) -> str:
        """An operator with one output, called ``name`` if given."""
        (made,) = self._node(op_type, inputs, [name or self._new("t")], attributes)
        return made

    def split(self, tensor: str, parts: int, axis: int) -> list[str]:
        """Equal parts of a tensor."""
        names = [self._new("t") for _ in range(parts)]
        return self._node("Split", (tensor,), names, {"axis": axis, "num_outputs": parts})

    def _node(
        self, op_type: str, inputs: Sequence[str], outputs: list[str], attributes: dict[str, int]
    ) -> list[str]:
        node = b"".join(_message(1, name.encode()) for name in inputs)
        node += b"".join(_message(2, name.encode()) for name in outputs) + _message(4, op_type.encode())
        for key, value in attributes.items():
            node += _message(5, _message(1, key.encode()) + _number(3, value) + _number(20, _ATTRIBUTE_INT))
        self._content.append(_message(1, node))
        return outputs

    def model(self, inputs: dict[str, int], outputs: dict[str, int]) -> bytes:
        """The whole model. Inputs and outputs are float32 of shape (batch, columns): name → columns."""
        values = [_message(11, _rows(*item)) for item in inputs.items()]
        values += [_message(12, _rows(*item)) for item in outputs.items()]
        graph = b"".join([*self._content, _message(2, b"graph"), *values])
        return _number(1, IR_VERSION) + _message(7, graph) + _message(8, _number(2, OPSET))

    def _new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"


def _rows(name: str, columns: int) -> bytes:
    shape = _message(1, _message(2, b"batch")) + _message(1, _number(1, columns))
    tensor = _number(1, _FLOAT) + _message(2, shape)
    return _message(1, name.encode()) + _message(2, _message(1, tensor))


def _message(number: int, content: bytes) -> bytes:
    return b"".join(field_bytes(number, content))


def _number(number: int, value: int) -> bytes:
    return varint_bytes(number << 3) + varint_bytes(value)

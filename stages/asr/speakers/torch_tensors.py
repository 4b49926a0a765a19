"""Which tensors are in a file that torch wrote before version 1.6, read without torch and without running any of it?

Such a file is five pickles (magic number, protocol, system, the object, the keys of its storages), then each storage:
its length as an int64, and its values. A pickle is a program; here it is only read, instruction by instruction:
those that build numbers, texts, lists and dicts are followed, and three names mean something (an ordered dict, a
float32 storage, a tensor over one). Any other name or instruction is refused. Nothing is imported or called, whatever
the file says. Format: ``torch.serialization._legacy_save``; instructions: the standard library's ``pickletools``.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from voice.errors import ModelMissing

Floats: TypeAlias = npt.NDArray[np.float32]
T = TypeVar("T")

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_BYTES = 4

_ORDERED_DICT = "collections OrderedDict"
_FLOATS = "torch FloatStorage"
_TENSOR = "torch._utils _rebuild_tensor_v2"


@dataclass(frozen=True, slots=True)
class _Name:
    """Something the pickle would import."""

    text: str


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the items of a list, dict or tuple begin on the stack."""


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    length: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]


def read_tensors(data: bytes, member: str) -> dict[str, Floats]:
    """The float32 tensors of the dict that the file's object keeps under ``member``.

    Returns:
        Views of ``data`` by name, with their shapes; what isn't a tensor is left out.

    Raises:
        ModelMissing: Not such a file, a damaged one, or one that asks for more than tensors.
    """
    stream = io.BytesIO(data)
    try:
        head = [_read_pickle(stream) for _ in range(3)]
        whole, keys = _read_pickle(stream), _read_pickle(stream)
        if head[:2] != [MAGIC, PROTOCOL] or not isinstance(head[2], dict) or not head[2].get("little_endian"):
            raise ValueError("it does not begin as torch's old format does")
        if not isinstance(whole, dict) or not isinstance(keys, list):
            raise ValueError("its object is no dict, or the storages have no list")
        tensors = whole.get(member)
        if not isinstance(tensors, dict):
            raise ValueError(f"it has no dict {member!r}")
        storages = _read_storages(data, stream.tell(), keys)
        found = {str(name): value for name, value in tensors.items() if isinstance(value, _Tensor)}
        return {name: _view(tensor, storages) for name, tensor in found.items()}
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ModelMissing(f"this file of torch tensors is damaged or refused: {error}") from error


def _read_storages(data: bytes, at: int, keys: list[object]) -> dict[object, Floats]:
    storages: dict[object, Floats] = {}
    for key in keys:
        (length,) = struct.unpack_from("<q", data, at)
        at += 8
        if not 0 <= length <= (len(data) - at) // _BYTES:
            raise ValueError("a storage reaches past the end of the file")
        storages[key] = np.frombuffer(data, "<f4", length, at)
        at += length * _BYTES
    return storages


def _view(tensor: _Tensor, storages: dict[object, Floats]) -> Floats:
    values = storages[tensor.storage.key]
    size = math.prod(tensor.shape)
    if len(values) != tensor.storage.length or not 0 <= tensor.offset <= len(values) - size:
        raise ValueError("a tensor reaches past the end of its storage")
    return values[tensor.offset : tensor.offset + size].reshape(tensor.shape)


def _read_pickle(stream: io.BytesIO) -> object:
    """What the next pickle says; the stream then stands behind it."""
    stack: list[object] = []
    memo: dict[object, object] = {}
    for opcode, value, _ in pickletools.genops(stream):
        match opcode.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case _:
                _follow(opcode.name, value, stack)
    raise ValueError("a pickle has no end")


def _follow(name: str, value: object, stack: list[object]) -> None:
    """Carry out one instruction that builds something."""
    match name:
        case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
            stack.append(value)
        case "NONE" | "NEWTRUE" | "NEWFALSE":
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        case "MARK":
            stack.append(_Mark())
        case "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            length = int(name[-1])
            stack[-length:] = [tuple(stack[-length:])]
        case "APPEND" | "APPENDS":
            items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
            _checked(list, stack[-1]).extend(items)
        case "SETITEM" | "SETITEMS":
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _since_mark(stack)
            _checked(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        case "BUILD":
            stack.pop()  # attributes of the ordered dict: notes about versions
        case "GLOBAL":
            stack.append(_Name(str(value)))
        case "BINPERSID":
            stack.append(_storage(stack.pop()))
        case "REDUCE":
            arguments = stack.pop()
            stack.append(_made_by(stack.pop(), arguments))
        case _:
            raise ValueError(f"it uses the instruction {name}, which tensors don't need")


def _since_mark(stack: list[object]) -> list[object]:
    at = max(place for place, item in enumerate(stack) if isinstance(item, _Mark))
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _checked(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"it treats a {type(value).__name__} as a {kind.__name__}")
    return value


def _storage(identity: object) -> _Storage:
    """The storage that ("storage", its type, key, place, length, whole view) names."""
    match identity:
        case ("storage", _Name(text=kind), str(key), str(), int(length), None) if kind == _FLOATS:
            return _Storage(key, length)
    raise ValueError("it names a storage that is not of float32")


def _made_by(made_by: object, arguments: object) -> object:
    """What a call would make, for the two calls that are known."""
    if isinstance(made_by, _Name):
        match made_by.text, arguments:
            case text, () if text == _ORDERED_DICT:
                return {}
            case text, (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                text == _TENSOR
            ):
                return _tensor(storage, offset, shape, strides)
        raise ValueError(f"it wants {made_by.text} called, which tensors don't need")
    raise ValueError("it calls what has no name")


def _tensor(
    storage: _Storage, offset: int, shape: tuple[object, ...], strides: tuple[object, ...]
) -> _Tensor:
    lengths = tuple(length for length in shape if isinstance(length, int) and length >= 0)
    in_order = tuple(math.prod(lengths[at + 1 :]) for at in range(len(lengths)))
    if len(lengths) != len(shape) or strides != in_order:
        raise ValueError("a tensor's values do not lie in order")
    return _Tensor(storage, offset, lengths)

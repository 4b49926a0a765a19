"""What the catalogue knows of one model: its files with their sha256, its licence, and where they come from.

Everything is checked when an entry is made, so that code which downloads or unpacks never meets a path that
leaves its folder, or a file format that could run code when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TypeAlias

from voice.errors import BadRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")


class Kind(StrEnum):
    """How a file is read, which decides whether its format is allowed."""

    DATA = "data"
    """ONNX, GGUF, safetensors, JSON, text: reading it can't run code."""

    CTRANSLATE2 = "ctranslate2"
    """CTranslate2's own ``model.bin``: plain tensors, not a pickle in spite of the suffix."""

    TORCH_WEIGHTS_ONLY = "torch, weights only"
    """A torch pickle. Load it with ``torch.load(..., weights_only=True)`` and in no other way."""


_RUNS_CODE = frozenset(
    {".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz"}  # pickles, or may hold one
    | {
        ".nemo",
        ".jit",
        ".keras",
        ".h5",
        ".hdf5",
        ".tar",
        ".gz",
        ".zip",
        ".whl",
    }  # containers of code or pickles
    | {".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat"}
)
_PICKLE_OF_TORCH = frozenset({".pt", ".pth", ".ckpt"})


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model.

    Args:
        name: Where it lies in the model's folder, with forward slashes.
        size_bytes: Its exact size.
        sha256: Its digest, 64 lower-case hex digits.
        kind: How it is read; formats that can run code are refused.

    Raises:
        BadRequest: A name that leaves the folder, a malformed digest, or a format that can run code.
    """

    name: str
    size_bytes: int
    sha256: str
    kind: Kind = Kind.DATA

    def __post_init__(self) -> None:
        check_inside(self.name)
        if not _SHA256.fullmatch(self.sha256):
            raise BadRequest(f"{self.name}: sha256 must be 64 lower-case hex digits")
        if self.size_bytes <= 0:
            raise BadRequest(f"{self.name}: size_bytes must be above 0")
        suffix = PurePosixPath(self.name).suffix.lower()
        if suffix in _RUNS_CODE:
            raise BadRequest(f"{self.name}: files of type {suffix} are refused, reading one can run code")
        if suffix in _PICKLE_OF_TORCH and self.kind is not Kind.TORCH_WEIGHTS_ONLY:
            raise BadRequest(
                f"{self.name}: {suffix} is a pickle, which can run code; use safetensors, "
                "or Kind.TORCH_WEIGHTS_ONLY if it is loaded with weights_only=True"
            )
        if suffix == ".bin" and self.kind is not Kind.CTRANSLATE2:
            raise BadRequest(
                f"{self.name}: a .bin is usually a pickle, which can run code; use safetensors, "
                "or Kind.CTRANSLATE2 if it is CTranslate2's"
            )


@dataclass(frozen=True, slots=True)
class Wheel:
    """A data wheel in the package index. It is only unpacked: never installed, imported or run.

    Args:
        name: Distribution name.
        version: The exact version.
        size_bytes: Size of the wheel, for the progress bar.
    """

    name: str
    version: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or not _VERSION.fullmatch(self.version):
            raise BadRequest(f"a wheel needs a plain name and version, not {self.requirement!r}")

    @property
    def requirement(self) -> str:
        """``name==version``, as pip takes it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a wheel."""

    wheel: Wheel
    path: str

    def __post_init__(self) -> None:
        check_inside(self.path)


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Files taken from data wheels.

    Args:
        files: For each file of the model the members that make it, joined in this order.
    """

    files: Mapping[str, tuple[Member, ...]]


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a model hub's repository at one revision.

    Args:
        repository: ``owner/name``.
        revision: A commit or tag; a branch may move, and the sha256 would then refuse the download.
        files: For each file of the model its path in the repository.
    """

    repository: str
    revision: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.repository) or not _VERSION.fullmatch(self.revision):
            raise BadRequest(f"not a hub repository and revision: {self.repository!r} at {self.revision!r}")
        for path in self.files.values():
            check_inside(path)


Source: TypeAlias = WheelSource | HubSource


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of the catalogue.

    Args:
        name: What it is asked for by; also the name of its folder.
        purpose: What it is for, in a few words.
        licence: SPDX identifier of the weights, with a note where needed.
        files: All files, each with its sha256.
        sources: Where they come from, tried in this order; each must offer every file.

    Raises:
        BadRequest: An unusable name, no file, no source, or a source that lacks a file.
    """

    name: str
    purpose: str
    licence: str
    files: tuple[ModelFile, ...]
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadRequest(f"a model's name has only letters, digits, '.', '_' and '-', not {self.name!r}")
        names = {file.name for file in self.files}
        if not names or len(names) != len(self.files):
            raise BadRequest(f"model {self.name}: it needs files, each under its own name")
        if not self.sources:
            raise BadRequest(f"model {self.name}: it needs a source")
        for source in self.sources:
            if lacking := names - set(source.files):
                raise BadRequest(f"model {self.name}: a source lacks {', '.join(sorted(lacking))}")

    @property
    def size_bytes(self) -> int:
        """Size of all files on disk."""
        return sum(file.size_bytes for file in self.files)


def check_inside(path: str) -> None:
    """Refuse a path that could leave the folder it is meant for.

    Raises:
        BadRequest: Absolute, with a drive, with a backslash, or with an empty, ``.`` or ``..`` part.
    """
    parts = path.split("/")
    if "\\" in path or "\0" in path or _DRIVE.match(path) or any(part in ("", ".", "..") for part in parts):
        raise BadRequest(f"not a plain relative path: {path!r}")

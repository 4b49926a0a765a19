"""Where model files lie on disk, and whether they are what the catalogue says.

Each model has a folder. A stamp file in it records size and modification time of the files whose sha256 was
checked, so that using a model costs a few ``stat`` calls; whatever doesn't match the stamp is hashed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from enum import StrEnum
from pathlib import Path

from voice.errors import ModelMissing
from voice.models.entry import Kind, ModelEntry, ModelFile

log = logging.getLogger("voice")

STAMP = ".verified.json"
_BLOCK_BYTES = 1 << 20


class State(StrEnum):
    """What is on disk of a model."""

    INSTALLED = "installed"
    MISSING = "not installed"  # some or all files are absent; those that are there are right
    CORRUPT = "corrupt"  # a file is there with the wrong content


def folder() -> Path:
    """The folder of all models: ``VOICE_MODELS_DIR``, else ``voice/models`` in the user's cache folder."""
    if chosen := os.environ.get("VOICE_MODELS_DIR"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("voice", appauthor=False)) / "models"


def model_folder(entry: ModelEntry) -> Path:
    """The folder of one model, which may not exist yet."""
    return folder() / entry.name


def check(entry: ModelEntry, *, full: bool = False) -> tuple[State, str]:
    """Compare the files on disk with the catalogue.

    Args:
        entry: The model.
        full: Hash every file, even one that the stamp vouches for.

    Returns:
        The state, and for people what is wrong with which file (empty when installed).
    """
    vouched = {} if full else _read_stamp(entry)
    base = model_folder(entry)
    missing: list[str] = []
    corrupt: list[str] = []
    for file in entry.files:
        fault = _fault(base / file.name, file, vouched)
        if fault is not None:
            (missing if fault[0] is State.MISSING else corrupt).append(fault[1])
    if corrupt:
        _drop_stamp(entry)  # a file that rotted without a new time must not be trusted by the next look
        return State.CORRUPT, "; ".join(corrupt)
    if missing:
        return State.MISSING, "; ".join(missing)
    if vouched != _now(entry):
        write_stamp(entry)
    return State.INSTALLED, ""


def right(path: Path, file: ModelFile) -> bool:
    """Whether ``path`` holds exactly ``file``; hashes it."""
    return path.is_file() and _fault(path, file, {}) is None


def check_content(path: Path, file: ModelFile) -> None:
    """Judge a fresh download before it becomes part of a model.

    Raises:
        ModelMissing: Wrong size or sha256, or a pickle under a name that hides it.
    """
    fault = _fault(path, file, {})
    if fault is not None:
        raise ModelMissing(fault[1])
    if file.kind is not Kind.TORCH_WEIGHTS_ONLY and _is_pickle(path):
        raise ModelMissing(f"{file.name} is a pickle, which can run code when it is loaded, and is refused")


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_stamp(entry: ModelEntry) -> None:
    """Record that all files were verified. A folder that can't be written gets none: each use hashes."""
    path = model_folder(entry) / STAMP
    scratch = path.with_name(f"{STAMP}.{os.getpid()}.{threading.get_ident()}")
    try:
        scratch.write_text(json.dumps(_now(entry), indent=1), encoding="utf-8")
        os.replace(scratch, path)
    except OSError as error:
        log.debug("no stamp for model %s: %s", entry.name, error)


def _fault(path: Path, file: ModelFile, vouched: dict[str, list[object]]) -> tuple[State, str] | None:
    """What is wrong with one file; ``None`` when nothing is."""
    try:
        status = path.stat()
        if not path.is_file():
            return State.CORRUPT, f"{file.name} is not a file"
        if status.st_size != file.size_bytes:
            return State.CORRUPT, f"{file.name} has {status.st_size:,} bytes instead of {file.size_bytes:,}"
        if vouched.get(file.name) == [file.sha256, status.st_size, status.st_mtime_ns]:
            return None
        found = sha256_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return State.MISSING, f"{file.name} is missing"
    except OSError as error:
        return State.CORRUPT, f"{file.name} can't be read ({error.strerror or error})"
    if found != file.sha256:
        return State.CORRUPT, f"{file.name} has sha256 {found[:12]}… instead of {file.sha256[:12]}…"
    return None


def _now(entry: ModelEntry) -> dict[str, list[object]]:
    """What a stamp written now says: sha256, size in bytes and modification time in ns of each file."""
    said: dict[str, list[object]] = {}
    for file in entry.files:
        try:
            status = (model_folder(entry) / file.name).stat()
        except OSError:
            continue  # taken away since it was checked: the stamp won't vouch for it
        said[file.name] = [file.sha256, status.st_size, status.st_mtime_ns]
    return said


def _read_stamp(entry: ModelEntry) -> dict[str, list[object]]:
    try:
        said = json.loads((model_folder(entry) / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no stamp vouches for nothing: all is hashed
    return said if isinstance(said, dict) else {}


def _drop_stamp(entry: ModelEntry) -> None:
    try:
        (model_folder(entry) / STAMP).unlink(missing_ok=True)
    except OSError as error:
        log.debug("the stamp of model %s stays: %s", entry.name, error)


def _is_pickle(path: Path) -> bool:
    """Whether a file is a bare pickle (protocol 2 to 5) or a zip, torch's container for one."""
    if path.suffix == ".safetensors":
        return False  # begins with a length, which may look like anything
    with path.open("rb") as stream:
        head = stream.read(4)
    return head == b"PK\x03\x04" or (
        head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    )

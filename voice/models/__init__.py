"""Which models there are, where their files lie, and how they get there: pinned, verified, resumable.

``path("silero-vad")`` gives a folder of files that are what the catalogue says, and downloads them the first
time. Nothing that is downloaded is imported or run, and file formats that can run code are refused. All
functions are synchronous and may take long: call them at start-up or through an
:class:`~voice.executor.Executor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from voice.errors import ModelMissing
from voice.models import store
from voice.models.entry import (
    HubSource,
    Kind,
    Member,
    ModelEntry,
    ModelFile,
    Source,
    Wheel,
    WheelSource,
)
from voice.models.known import catalogue, get, register
from voice.models.progress import ConsoleProgress, NoProgress, Progress, size_text
from voice.models.store import State, folder

__all__ = [
    "ConsoleProgress",
    "HubSource",
    "Kind",
    "Member",
    "ModelEntry",
    "ModelFile",
    "NoProgress",
    "Progress",
    "Row",
    "Source",
    "State",
    "Wheel",
    "WheelSource",
    "catalogue",
    "folder",
    "get",
    "installed",
    "path",
    "pull",
    "pull_all",
    "register",
    "rows",
    "size_text",
    "verify",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One model as ``voice models`` shows it.

    Attributes:
        name: The model's name.
        size_bytes: Size of its files on disk; :func:`size_text` makes it readable.
        licence: Licence of the weights.
        state: Installed, not installed or corrupt.
        purpose: What it is for.
        detail: What is missing or wrong; empty when it is installed.
    """

    name: str
    size_bytes: int
    licence: str
    state: State
    purpose: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model can be used as it is."""
        return self.state is State.INSTALLED


def path(name: str, *, pull: bool = True, progress: Progress | None = None) -> Path:
    """The folder of model ``name``, with every file verified.

    A use costs a few ``stat`` calls; a file that changed since it was verified is hashed again.

    Args:
        name: A name of the catalogue.
        pull: Download what is missing. A file with wrong content is never replaced here: it may be in use.
        progress: Shows the download; ``None``: a bar on a terminal, else one line on stderr.

    Raises:
        BadRequest: No such model.
        ModelMissing: Not there and not to be had, or corrupt; says what to do.
    """
    entry = get(name)
    state, detail = store.check(entry)
    if state is State.INSTALLED:
        return store.model_folder(entry)
    if state is State.CORRUPT:
        raise ModelMissing(f"model {name} is corrupt: {detail}; run `voice models pull {name}` to repair it")
    if not pull:
        raise ModelMissing(f"model {name} is not installed: {detail}; run `voice models pull {name}`")
    return _pull(entry, progress)


def pull(name: str, progress: Progress | None = None) -> Path:
    """Download what is missing or wrong of model ``name``; returns its folder. Hashes every file.

    Args:
        name: A name of the catalogue.
        progress: Shows the download; ``None``: a bar on a terminal, else one line on stderr.

    Raises:
        BadRequest: No such model.
        ModelMissing: No source gave the right files, or they can't be stored; says why and what to do.
    """
    return _pull(get(name), progress)


def verify(names: Iterable[str] | None = None) -> list[Row]:
    """Hash all files of the named models, or of every model that has files here.

    Raises:
        BadRequest: No such model.
    """
    if names is not None:
        return [_row(get(name), full=True) for name in names]
    return [_row(entry, full=True) for entry in catalogue.values() if store.model_folder(entry).exists()]


def installed() -> tuple[str, ...]:
    """Names of the models that can be used without a download."""
    return tuple(row.name for row in rows() if row.ok)


def rows(names: Iterable[str] | None = None) -> list[Row]:
    """The named models, or all, as a table.

    Raises:
        BadRequest: No such model.
    """
    return [_row(entry) for entry in (catalogue.values() if names is None else map(get, names))]


def pull_all(names: Iterable[str], progress: Progress | None = None) -> list[Row]:
    """Pull several models one after another; one that fails has its reason in its row and stops no other.

    Raises:
        BadRequest: No such model; then nothing is downloaded.
    """
    done: list[Row] = []
    for entry in list(map(get, names)):
        failure = ""
        try:
            _pull(entry, progress)
        except ModelMissing as error:
            failure = str(error)
        row = _row(entry)
        done.append(Row(row.name, row.size_bytes, row.licence, row.state, row.purpose, failure or row.detail))
    return done


def _pull(entry: ModelEntry, progress: Progress | None) -> Path:
    from voice.models import download  # brings subprocess and zipfile, which most uses don't need

    return download.pull(entry, progress)


def _row(entry: ModelEntry, *, full: bool = False) -> Row:
    state, detail = store.check(entry, full=full)
    return Row(entry.name, entry.size_bytes, entry.licence, state, entry.purpose, detail)

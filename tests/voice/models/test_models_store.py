"""What is on disk is what the catalogue says, and the user is told what is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from model_sources import (
    CONFIG,
    WEIGHTS,
    forbid_downloads,
    put_files,
    quiet,
    tiny,
)

from voice import models
from voice.errors import ModelMissing
from voice.models import State


def test_a_model_is_pulled_on_first_use_and_found_afterwards(index: Path, cache: Path) -> None:
    tiny(index)
    assert models.path("tiny", progress=quiet) == cache / "tiny"
    assert (cache / "tiny" / "w.onnx").read_bytes() == WEIGHTS
    assert (cache / "tiny" / "c.json").read_bytes() == CONFIG
    forbid_downloads(index)
    assert models.path("tiny", progress=quiet) == cache / "tiny"
    assert models.installed() == ("tiny",)


def test_only_the_listed_members_are_unpacked(index: Path, cache: Path) -> None:
    tiny(index)
    models.pull("tiny", quiet)
    names = {path.name for path in cache.rglob("*") if path.is_file()}
    assert names == {"w.onnx", "c.json", ".verified.json", ".tiny.lock"}


def test_without_pulling_an_absent_model_is_an_error_that_says_what_to_do(index: Path) -> None:
    tiny(index)
    with pytest.raises(ModelMissing, match=r"not installed.*run `voice models pull tiny`"):
        models.path("tiny", pull=False)


def test_a_second_use_hashes_nothing(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(index)
    put_files(cache)
    models.path("tiny")
    hashed: list[Path] = []
    monkeypatch.setattr("voice.models.store.sha256_of", hashed.append)
    models.path("tiny")
    assert hashed == []


def test_files_copied_in_by_hand_are_hashed_once_and_then_trusted(index: Path, cache: Path) -> None:
    tiny(index)
    forbid_downloads(index)
    put_files(cache)
    assert models.path("tiny", pull=False) == cache / "tiny"
    assert (cache / "tiny" / ".verified.json").exists()


def spoil_truncated(path: Path) -> None:
    path.write_bytes(WEIGHTS[:-1])


def spoil_same_size(path: Path) -> None:
    path.write_bytes(b"!" + WEIGHTS[1:])


def spoil_replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [spoil_truncated, spoil_same_size, spoil_replaced_by_a_folder])
def test_a_corrupt_file_is_reported_not_used_and_repaired_by_a_pull(
    index: Path, cache: Path, spoil: Callable[[Path], None]
) -> None:
    tiny(index)
    put_files(cache)
    models.path("tiny")
    spoil(cache / "tiny" / "w.onnx")
    for _ in range(2):
        with pytest.raises(ModelMissing, match=r"corrupt: w\.onnx .*run `voice models pull tiny`"):
            models.path("tiny")
    assert models.installed() == ()
    models.pull("tiny", quiet)
    assert (models.path("tiny", pull=False) / "w.onnx").read_bytes() == WEIGHTS


def test_rot_that_keeps_size_and_time_is_found_by_verify_and_not_trusted_afterwards(
    index: Path, cache: Path
) -> None:
    tiny(index)
    put_files(cache)
    models.path("tiny")
    path = cache / "tiny" / "w.onnx"
    status = path.stat()
    spoil_same_size(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    [row] = models.verify()
    assert (row.name, row.state, row.ok) == ("tiny", State.CORRUPT, False)
    assert "w.onnx has sha256" in row.detail
    with pytest.raises(ModelMissing, match="corrupt"):
        models.path("tiny")


def test_a_file_that_cant_be_read_is_one_clear_sentence(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    put_files(cache)

    def failing_disk(_: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("voice.models.store.sha256_of", failing_disk)
    with pytest.raises(ModelMissing, match=r"w\.onnx can't be read \(Input/output error\)"):
        models.path("tiny")


def test_verify_looks_at_what_is_here_or_at_what_is_named(index: Path, cache: Path) -> None:
    tiny(index)
    assert models.verify() == []
    assert models.verify(["tiny"])[0].state is State.MISSING
    put_files(cache)
    assert [(row.name, row.ok) for row in models.verify()] == [("tiny", True)]


def test_the_table_shows_every_model_and_what_is_installed(index: Path, cache: Path) -> None:
    tiny(index)
    put_files(cache)
    rows = {row.name: row for row in models.rows()}
    assert set(rows) == set(models.catalogue)
    assert rows["tiny"].ok and not rows["silero-vad"].ok
    assert (rows["tiny"].licence, rows["tiny"].size_bytes) == ("MIT", len(WEIGHTS) + len(CONFIG))


def test_sizes_are_written_for_people() -> None:
    assert [models.size_text(n) for n in (12, 4_794, 92_871_040, 1_500_000_000)] == [
        "12 B",
        "4.8 kB",
        "93 MB",
        "1.5 GB",
    ]


def test_off_a_terminal_a_download_says_one_line(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(index)
    models.path("tiny")
    models.path("tiny")
    said = capsys.readouterr()
    assert said.err.startswith("downloading tiny (") and said.err.count("\n") == 1 and said.out == ""


def test_on_a_terminal_a_bar_grows_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = models.ConsoleProgress()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar.begin("tiny", 1_000)
    bar.at(400)
    bar.at(1_500)
    bar.end()
    assert "downloading tiny" in (err := capsys.readouterr().err) and "100%" in err


@pytest.mark.live
@pytest.mark.parametrize("name", ["silero-vad"])
def test_a_real_model_comes_from_the_package_index(name: str) -> None:
    folder = models.path(name, progress=quiet)
    assert models.verify([name])[0].ok
    assert (folder / "silero_vad.onnx").stat().st_size == 2_327_524

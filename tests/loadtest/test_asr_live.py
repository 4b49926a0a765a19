"""The quality gate on the real recogniser, as small as it can be: it passes against itself, and fails a worse one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loadtest.__main__ import main

pytestmark = pytest.mark.live

SAID = ("Where is the nearest train station?", "I would like to stay for three nights.")


@pytest.fixture
def speech(speech_file: Callable[[str], Path]) -> Path:
    """A folder of recordings with their words."""
    files = [speech_file(text) for text in SAID]
    rows = [json.dumps({"file": file.name, "text": text}) for file, text in zip(files, SAID, strict=True)]
    (files[0].parent / "manifest.jsonl").write_text("\n".join(rows))
    return files[0].parent


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["loadtest", "asr", *arguments])
    return main()


def test_a_run_passes_against_itself_and_fails_against_a_better_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, speech: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, page = tmp_path / "base.json", tmp_path / "page.html"
    common = ("accuracy", "--speech", str(speech), "--slices", "fast", "--worse-rtf", "1e6")

    assert run(monkeypatch, *common, "--write", str(base), "--html", str(page)) == 0
    assert "whisper-tiny.en" in page.read_text() and "load" in capsys.readouterr().out

    kept = msgspec.json.decode(base.read_bytes())
    kept["samples"][0]["heard"]["whisper-tiny.en"]["cpu_s"] = 1e-9
    base.write_bytes(msgspec.json.encode(kept))
    assert run(monkeypatch, *common, "--worse-words", "0", "--baseline", str(base)) == 0
    assert run(monkeypatch, *common[:-1], "0.001", "--baseline", str(base)) == 1
    assert "of its processor time" in capsys.readouterr().out


def test_noise_has_no_words(
    monkeypatch: pytest.MonkeyPatch, speech: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "invented", "--minutes", "0.3", "--tails", "2", "--speech", str(speech)) == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in ("silence", "pink", "hum", "music")) and "seed 1" in out


def test_a_wrong_name_or_slice_is_told_before_anything_is_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "accuracy", "--asr", "whisper-huge") == 1
    assert "there is no recogniser" in capsys.readouterr().err
    assert run(monkeypatch, "accuracy", "--slices", "clean,underwater") == 1
    assert "there is no slice underwater" in capsys.readouterr().err

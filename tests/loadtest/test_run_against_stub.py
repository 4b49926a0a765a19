"""The commands against a real server with stub engines in its own process, in small and in real time; nothing here
judges how fast it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile

from loadtest import __main__ as commands
from loadtest import soak
from voice.testing import speak


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    soundfile.write(path, speak(0.8, rate=16_000), 16_000)
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(
        'name = "small"\nramp_s = 0.2\nlisten_s = 1\n[think]\nleast_s = 0.1\nmost_s = 0.2\n'
        "[network]\ndelay_ms = 5\njitter_ms = 20\nloss = 0.02\nresend_ms = 60\n"
    )
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["loadtest", *arguments])
    return commands.main()


def small(command: str, speech: Path, scenario: Path, *more: str) -> Sequence[str]:
    shared = (
        "--detector",
        "loud",
        "--no-admission",
        "--speech",
        str(speech),
        "--scenario",
        str(scenario),
        "--seed",
        "1",
    )
    return command, *shared, *more


def test_callers_are_answered_by_their_own_voice(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    speech: Path,
    scenario: Path,
) -> None:
    page = tmp_path / "report.html"
    arguments = ("--in-process", "--sessions", "3", "--seconds", "2.5", "--json", "--html", str(page))
    assert run(monkeypatch, *small("run", speech, scenario, *arguments)) == 0
    told = json.loads(capsys.readouterr().out)
    heard = told["heard"]
    assert heard["turns"] >= 3 and heard["counts"]["calls"] == 3
    assert not heard["errors"]
    assert not any(heard["counts"].get(name) for name in ("wrong_voice", "stale", "lost", "failed_answers"))
    assert told["used"]["server_rss_mb"] > 10 and told["moments"][-1]["sessions"] == 3
    assert page.read_text().startswith("<!doctype html>")


def test_a_full_server_refuses_and_those_inside_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], speech: Path, scenario: Path
) -> None:
    arguments = ("--in-process", "--sessions", "4", "--max-sessions", "2", "--seconds", "2", "--json")
    assert run(monkeypatch, *small("run", speech, scenario, *arguments)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["heard"]["refusals"] >= 2 and told["heard"]["turns"] >= 1
    assert told["moments"][-1]["sessions"] == 2


def test_a_soak_writes_its_results_and_finds_nothing_left_over(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    speech: Path,
    scenario: Path,
) -> None:
    monkeypatch.setattr(soak, "EMPTY_S", 1.0)
    file = tmp_path / "soak.json"
    arguments = ("--minutes", "0.05", "--sessions", "2", "--json", str(file))
    run(monkeypatch, *small("soak", speech, scenario, *arguments))
    told = json.loads(file.read_text())
    assert told["finished"] and told["heard"]["turns"] >= 1
    checks = {check["what"]: check for check in told["checks"]}
    for name in ("tasks", "handles", "threads", "sessions"):
        assert checks[f"no {name} are left over"]["held"], checks[f"no {name} are left over"]
    assert "pass  no tasks are left over" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_an_error_of_every_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], speech: Path, scenario: Path
) -> None:
    arguments = ("run", "--url", "ws://127.0.0.1:9", "--sessions", "1", "--seconds", "0.3", "--ramp", "0")
    assert run(monkeypatch, *arguments, "--speech", str(speech), "--scenario", str(scenario), "--json") == 1
    heard = json.loads(capsys.readouterr().out)["heard"]
    assert heard["counts"]["failed_calls"] == 1
    assert "no server answers at ws://127.0.0.1:9" in next(iter(heard["errors"]))

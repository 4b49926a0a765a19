"""The command line as a user meets it: conversations that work, and one clear sentence when something can't."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voice.cli import main
from voice.testing.openai_server import Reply, ScriptedOpenAIServer

RATE = 16_000
SpeechFile = Callable[[str], Path]


def run_cli(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command."""
    try:
        status = main(args)
    except SystemExit as stop:  # argparse
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return status, out, err


def write(path: Path, pcm: object, rate: int = RATE, **options: str) -> str:
    soundfile.write(path, pcm, rate, **options)
    return str(path)


# ---------------------------------------------------------------- wrong use, without any model


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["talk"], "give the caller's audio files"),
        (["talk", "missing.wav"], "there is no file missing.wav"),
        (["talk", "--ask", "Hi", "--out", "answer.mp3"], "must end in .wav"),
        (["talk", "--ask", "Hi", "--out", "nowhere/answer.wav"], "there is no folder"),
        (["talk", "--ask", "Hi", "--llm", "no-such-model"], "there is no language model"),
        (["talk", "--ask", "Hi", "--asr", "no-such-model"], "there is no recogniser"),
        (["talk", "--ask", "Hi", "--tts", "no-such-voice"], "there is no voice"),
        (["talk", "--ask", "Hi", "--agent", "missing.py:agent"], "does not exist"),
        (["talk", "--ask", "Hi", "--agent", "agent"], "FILE.py:NAME"),
        (["speak", " ", "--out", "a.wav"], "nothing to speak"),
        (["models", "pull"], "name the models"),
        (["models", "pull", "whisper-huge"], "whisper-huge"),
    ],
)
def test_wrong_use_is_told_in_one_sentence_and_exits_with_2(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run_cli(capsys, *args)
    assert status == 2
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_unknown_commands_and_options_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(capsys, "sing")[0] == 2
    assert run_cli(capsys)[0] == 2
    assert run_cli(capsys, "talk", "--loud")[0] == 2


@pytest.mark.live
@pytest.mark.parametrize("kind", ["text", "empty", "folder", "nan", "header only"])
def test_files_that_are_no_audio_fail_with_one_sentence(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.wav"
    match kind:
        case "text":
            path.write_text("this is no audio, whatever its name says")
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "nan":
            write(path, np.full(RATE, np.nan, np.float32), subtype="FLOAT")
        case _:
            write(path, np.zeros(0, np.int16))
    for command in ("talk", "transcribe"):
        status, out, err = run_cli(capsys, command, str(path))
        assert status in (1, 2)
        assert out == ""
        assert "bad.wav" in err
        assert len(err.strip().splitlines()) == 1


# ---------------------------------------------------------------- conversations on the real engines


def turns_of(out: str) -> list[dict[str, object]]:
    return [row for line in out.splitlines() if (row := json.loads(line))["type"] == "turn"]


@pytest.mark.live
def test_a_spoken_question_gets_a_spoken_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out_file = tmp_path / "call.wav"
    status, out, _ = run_cli(
        capsys, "talk", "--ask", "What is the capital of France?", "--json", "--out", str(out_file)
    )
    assert status == 0
    (turn,) = turns_of(out)
    assert "capital of france" in str(turn["user"]).lower()
    assert turn["agent"]
    summary = json.loads(out.splitlines()[-1])
    assert summary["turns"] == 1
    assert summary["voice_to_voice_ms"]["p50"] == turn["voice_to_voice_ms"]
    pcm, rate = soundfile.read(out_file, dtype="int16")
    assert (rate, pcm.shape[1]) == (24_000, 2)
    assert np.abs(pcm[:, 0]).max() > 1000
    assert np.abs(pcm[:, 1]).max() > 1000


@pytest.mark.live
@pytest.mark.parametrize(("rate", "channels", "subtype"), [(8_000, 2, "ULAW"), (96_000, 1, "FLOAT")])
def test_any_rate_channels_and_format_is_understood(
    rate: int,
    channels: int,
    subtype: str,
    speech_file: SpeechFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from voice.audio import read_file, resample

    pcm, own = read_file(speech_file("How many days are there in a week?"))
    there = resample(pcm, own, rate).astype(np.float32) / 32768
    caller = write(tmp_path / "caller.wav", np.stack([there] * channels, axis=1), rate, subtype=subtype)
    status, out, _ = run_cli(capsys, "talk", caller, "--json")
    assert status == 0
    (turn,) = turns_of(out)
    assert "days" in str(turn["user"]).lower()


@pytest.mark.live
def test_silence_and_noise_hold_no_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(7).normal(0, 800, 3 * RATE).astype(np.int16)
    files = [write(tmp_path / "s.wav", np.zeros(3 * RATE, np.int16)), write(tmp_path / "n.wav", noise)]
    status, out, _ = run_cli(capsys, "talk", *files, "--json")
    assert status == 0
    assert turns_of(out) == []


@pytest.mark.live
def test_a_server_that_refuses_fails_the_call_with_a_clear_sentence(
    speech_file: SpeechFile, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1#any"
        file = str(speech_file("Where do penguins live?"))
        status, out, err = run_cli(capsys, "talk", file, "--llm", url, "--json")
    assert status == 1
    assert url.split("/")[2] in err
    assert turns_of(out) == []


@pytest.mark.live
def test_tools_are_called_through_an_openai_compatible_server(
    speech_file: SpeechFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``examples/hello.py`` as a program of its own: the server asks for the tool, then uses its result."""
    from voice.interfaces import ToolCall

    def script(request: dict[str, object]) -> Reply:
        messages = request["messages"]
        assert isinstance(messages, list)
        if messages[-1]["role"] == "tool":
            return Reply(text=f"We are {messages[-1]['content']}.")
        return Reply(tool_calls=[ToolCall("call_1", "opening_hours", '{"day": "Sunday"}')])

    question = speech_file("Are you open on Sunday?")
    root = Path(__file__).parent.parent
    done = run_example(script, [str(root / "examples" / "hello.py"), str(question)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "closed" in done.stdout
    assert "heard='We are closed.'" in done.stdout
    assert (tmp_path / "answer.wav").is_file()


def run_example(script: object, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as a program, against a scripted server when there is a script."""
    import asyncio

    async def serve() -> subprocess.CompletedProcess[str]:
        async with ScriptedOpenAIServer(script) as server:  # type: ignore[arg-type]
            return await asyncio.to_thread(run, [*command, f"{server.url}#scripted"])

    def run(args: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        return subprocess.run(
            [sys.executable, *args],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return asyncio.run(serve())


@pytest.mark.live
def test_an_agent_of_ones_own_is_the_model(
    speech_file: SpeechFile, capsys: pytest.CaptureFixture[str]
) -> None:
    example = str(Path(__file__).parent.parent / "examples" / "own_agent.py") + ":agent"
    status, out, _ = run_cli(
        capsys, "talk", str(speech_file("Count these words please.")), "--agent", example, "--json"
    )
    assert status == 0
    (turn,) = turns_of(out)
    assert str(turn["agent"]).startswith("You said 4 words")


@pytest.mark.live
def test_speak_and_transcribe_are_inverse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "a.wav")
    assert run_cli(capsys, "speak", "It costs $49.95 today.", "--out", path)[0] == 0
    status, out, _ = run_cli(capsys, "transcribe", path)
    assert status == 0
    assert "49.95" in out or "forty-nine" in out.lower()


@pytest.mark.live
def test_ten_minutes_of_silence_are_transcribed_as_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "long.wav", np.zeros(600 * RATE, np.int16))
    status, out, _ = run_cli(capsys, "transcribe", path)
    assert (status, out.strip()) == (0, "")


def test_models_are_listed_without_being_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOICE_MODELS_DIR", str(tmp_path))
    status, out, _ = run_cli(capsys, "models")
    assert status == 0
    assert "whisper-tiny.en" in out
    assert "not installed" in out

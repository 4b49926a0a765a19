"""``voice transcribe`` as a user meets it: forms, places, several files, and a clear sentence when something can't."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from recording_fakes import LevelFinder, texts, tones

from stages import presets
from stages.asr.recordings import speech
from stages.asr.recordings.bar import Bar, summary
from voice.cli import main
from voice.errors import EngineFailed
from voice.interfaces import ASR_RATE_HZ, Pcm16, Transcript
from voice.scope import Scope
from voice.testing import ScriptedRecogniser, run_virtual

SpeechFile = Callable[[str], Path]
WORDS = ["Good morning.", "Who is it?", "The number."]


def run_cli(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``voice transcribe``."""
    try:
        status = main(["transcribe", *map(str, args)])
    except SystemExit as stop:  # argparse
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return status, out, err


@pytest.fixture(autouse=True)
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VOICE_JOURNALS_DIR", str(tmp_path / "journals"))
    yield


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedRecogniser:
    """A scripted recogniser in place of Whisper, and levels in place of Silero."""
    scripted = ScriptedRecogniser(texts(WORDS), delay_s=0.0)
    monkeypatch.setattr(presets, "recording_recognisers", lambda asr: [scripted])
    monkeypatch.setattr(speech, "SpeechMeter", LevelFinder)
    return scripted


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Three utterances with pauses of 2.5 s."""
    return tones(tmp_path / "meeting.wav", 3, pause_s=2.5)


# ---------------------------------------------------------------- what is written


def test_text_has_a_line_after_each_long_pause(
    engine: ScriptedRecogniser, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(capsys, recording) == (0, "".join(f"{word}\n" for word in WORDS), "")


def test_json_is_one_object_a_file_with_times(
    engine: ScriptedRecogniser, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--json"], ["--format", "json"]):
        status, out, err = run_cli(capsys, recording, *option)
        assert (status, err) == (0, "")
        (line,) = out.splitlines()
        row = json.loads(line)
        assert row["text"] == " ".join(WORDS)
        assert row["file"] == str(recording)
        assert row["segments"][1]["start_s"] == pytest.approx(6.2, abs=0.1)


def test_subtitles_have_the_times_of_the_recording(
    engine: ScriptedRecogniser, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_cli(capsys, recording, "--format", "srt")
    assert re.findall(r"^\d+$", out, re.M) == ["1", "2", "3"]
    assert "00:00:06,1" in out or "00:00:06,2" in out
    assert run_cli(capsys, recording, "--format", "vtt")[1].startswith("WEBVTT\n\n00:00:02.")


def test_the_ending_of_the_output_file_says_its_form(
    engine: ScriptedRecogniser, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, begins in (
        ("a.srt", "1\n"),
        ("a.vtt", "WEBVTT"),
        ("a.json", "{"),
        ("a.txt", "Good"),
        ("a", "Good"),
    ):
        assert run_cli(capsys, recording, "--out", tmp_path / name) == (0, "", "")
        assert (tmp_path / name).read_text().startswith(begins)
    assert {path.name for path in tmp_path.iterdir()} >= {"a.srt", "a.vtt"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], (
        "no half-written file is left"
    )


def test_several_recordings_are_told_apart_and_go_to_a_folder(
    engine: ScriptedRecogniser, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tones(tmp_path / "other.wav", 1)
    status, out, _ = run_cli(capsys, recording, other)
    assert (status, out.splitlines()) == (
        0,
        [*(f"{recording}: {word}" for word in WORDS), f"{other}: {WORDS[0]}"],
    )
    (tmp_path / "out").mkdir()
    assert run_cli(capsys, recording, other, "--out", tmp_path / "out", "--format", "vtt")[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"meeting.vtt", "other.vtt"}


def test_one_bad_file_does_not_stop_the_others(
    engine: ScriptedRecogniser, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.wav").write_text("no audio")
    soundfile.write(
        tmp_path / "nan.wav", np.full(ASR_RATE_HZ, np.nan, np.float32), ASR_RATE_HZ, subtype="FLOAT"
    )
    status, out, err = run_cli(
        capsys, tmp_path / "bad.wav", recording, tmp_path / "nan.wav", tmp_path / "missing.wav"
    )
    assert status == 1
    assert len(out.splitlines()) == 3
    assert [name in line for name, line in zip(("bad", "missing", "nan"), err.splitlines(), strict=True)] == [
        True
    ] * 3


def test_word_errors_against_a_reference_are_counted(
    engine: ScriptedRecogniser, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said.txt").write_text("good morning\nwho is that the numbers")
    status, out, err = run_cli(capsys, recording, "--reference", tmp_path / "said.txt")
    assert status == 0
    assert len(out.splitlines()) == 3
    assert "2 of 7 words: 2 substituted, 0 deleted, 0 inserted" in err


def test_quick_makes_shorter_pieces(
    engine: ScriptedRecogniser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tones(tmp_path / "long.wav", 12, speech_s=2.0, pause_s=0.5)
    run_cli(capsys, path, "--no-resume")
    usual = engine.calls
    assert run_cli(capsys, path, "--quick", "--no-resume")[0] == 0
    assert engine.calls - usual > usual


def test_notes_about_a_file_go_to_the_error_stream(
    engine: ScriptedRecogniser, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pcm, rate_hz = soundfile.read(recording, dtype="int16")
    soundfile.write(tmp_path / "whole.flac", pcm, rate_hz)
    whole = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) * 2 // 3])
    status, out, err = run_cli(capsys, tmp_path / "cut.flac")
    assert status == 0
    assert out.startswith("Good morning.")
    assert "cut off" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_speed_and_time_left_and_anything_else_nothing() -> None:
    assert summary(1510, 3600, 21.3) == "25:10 of 1:00:00, 21.3 × real time, 1:38 left"
    assert summary(0, 60, 0.0) == "0:00 of 1:00, 0.0 × real time, ? left"

    async def show(stream: io.StringIO) -> str:
        bar = Bar(["a.wav", "b.wav"], stream)
        parts = [bar.recording(), bar.recording()]
        for part in parts:
            if part is not None:
                part.begin(60.0)
                await asyncio.sleep(1.0)
                part.at(60.0, 30.0, 60.0)
                part.end()
        bar.line("a line")
        bar.close()
        return stream.getvalue()

    shown = run_virtual(show(Terminal()))
    assert "2 of 2 files: 2:00 of 2:00, 30.0 × real time, 0:00 left" in shown
    assert "a line\n" in shown
    assert run_virtual(show(io.StringIO())) == "a line\n"


def test_what_is_done_is_written_at_once_and_what_fails_keeps_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    class Breaks(ScriptedRecogniser):
        async def transcribe(self, audio: Pcm16, scope: Scope, **options: Any) -> Transcript:
            if len(audio) > 3 * ASR_RATE_HZ:  # the first recording's, which is long
                while not (out / "second.txt").exists():  # noqa: ASYNC110 - another thread writes it
                    await asyncio.sleep(0.01)
                raise EngineFailed("the engine broke", retryable=False)
            return await super().transcribe(audio, scope, **options)

    monkeypatch.setattr(presets, "recording_recognisers", lambda asr: [Breaks(texts(WORDS), delay_s=0.0)])
    monkeypatch.setattr(speech, "SpeechMeter", LevelFinder)
    first = tones(tmp_path / "first.wav", 1, speech_s=4.0)
    second = tones(tmp_path / "second.wav", 1)
    status, _, err = run_cli(capsys, first, second, "--out", out)
    assert (out / "second.txt").read_text() == "Good morning.\n"
    assert status == 1 and "the engine broke" in err
    assert len(list((tmp_path / "journals").glob("*.jsonl"))) == 1


def test_a_transcript_that_cannot_be_written_is_not_lost(
    engine: ScriptedRecogniser,
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        status, _, err = run_cli(capsys, recording, "--out", tmp_path / "a.txt")
    assert status == 1 and "No space left" in err
    assert not list(tmp_path.glob(".a.txt*")) and not (tmp_path / "a.txt").exists()
    heard = engine.calls
    assert run_cli(capsys, recording, "--out", tmp_path / "a.txt")[0] == 0
    assert engine.calls == heard, "the journal had it all"
    assert (tmp_path / "a.txt").read_text() == "".join(f"{word}\n" for word in WORDS)


def test_letters_that_the_terminal_lacks_end_nothing(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        presets, "recording_recognisers", lambda asr: [ScriptedRecogniser(texts(["Grüße"] * 3))]
    )
    monkeypatch.setattr(speech, "SpeechMeter", LevelFinder)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["transcribe", str(recording)]) == 0
    assert raw.getvalue().startswith(b"Gr\\xfc\\xdfe")


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--json", "--format", "srt"], "one of the two"),
        (["--out", "nowhere/a.txt"], "there is no folder"),
        (["--reference", "missing.txt"], "can't be read"),
        (["--reference", "a", "--reference", "b"], "2 references for 1 recordings"),
    ],
)
def test_wrong_use_is_told_in_one_sentence_and_exits_with_2(
    options: list[str], sentence: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run_cli(capsys, recording, *options)
    assert (status, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_several_recordings_are_not_written_over_each_other(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").mkdir()
    twin = tones(tmp_path / "x" / "meeting.wav", 1)
    for options, sentence in (
        (["--format", "srt"], "need a folder"),
        (["--out", str(tmp_path / "a.txt")], "there is no folder"),
        (["--out", str(tmp_path / "x")], "to the same file"),
    ):
        status, _, err = run_cli(capsys, recording, twin, *options)
        assert status == 2
        assert sentence in err
    status, _, err = run_cli(capsys, recording, "--out", recording)
    assert status == 2
    assert "would replace it" in err
    assert run_cli(capsys, recording, "--asr", "no-such-model")[0] == 2
    assert run_cli(capsys, recording, "--format", "docx")[0] == 2


# ---------------------------------------------------------------- the real engines


@pytest.mark.live
def test_a_spoken_text_is_read_again_with_its_times(
    speech_file: SpeechFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "The meeting begins at nine. Please bring the report about the new office."
    pcm, rate_hz = soundfile.read(speech_file(said), dtype="int16")
    soundfile.write(tmp_path / "a.flac", np.concatenate([np.zeros(3 * rate_hz, np.int16), pcm]), rate_hz)
    (tmp_path / "said.txt").write_text(said)
    status, out, err = run_cli(capsys, tmp_path / "a.flac", "--json", "--reference", tmp_path / "said.txt")
    assert status == 0
    row = json.loads(out)
    assert row["segments"][0]["start_s"] == pytest.approx(3.0, abs=0.3)
    assert row["segments"][-1]["end_s"] == pytest.approx(3.0 + len(pcm) / rate_hz, abs=0.5)
    assert float(re.findall(r"rate ([\d.]+) %", err)[0]) <= 15.0


STOPPED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # may have come ignored from a shell's background job
sys.path.insert(0, {tests!r})
from recording_fakes import LevelFinder, texts
from stages import presets
from stages.asr.recordings import speech
from voice.cli import main
from voice.testing import ScriptedRecogniser

presets.recording_recognisers = lambda asr: [ScriptedRecogniser(texts({words!r}), delay_s=60.0)]
speech.SpeechMeter = LevelFinder
sys.exit(main(["transcribe", {path!r}]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("end", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_says_so_at_once_and_keeps_its_journal(
    end: signal.Signals, status: int, recording: Path, tmp_path: Path
) -> None:
    code = STOPPED.format(tests=str(Path(__file__).parent), words=WORDS, path=str(recording))
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not list((tmp_path / "journals").glob("*.jsonl")):
        threading.Event().wait(0.02)
    run.send_signal(end)
    _, err = run.communicate(timeout=20)
    assert (run.returncode, err) == (status, "voice: stopped; the same command goes on where it was\n")
    assert len(list((tmp_path / "journals").iterdir())) == 1

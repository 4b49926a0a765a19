"""The file caller: real time on a fixed grid, turn after turn, and what its recording holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from transports.file import FileCaller, FileTurn
from voice.agent import Agent
from voice.errors import BadAudio, BadRequest
from voice.events import ResponseEnded, SessionEvent
from voice.interfaces import Pcm16, Stages
from voice.session import Session
from voice.testing import (
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    VirtualExecutor,
    VirtualLoop,
    run_virtual,
)

LOUD = 8000


class Line:
    """The session's side of a call: hears, answers each utterance after a pause, and notes when."""

    def __init__(
        self, answer_s: float = 0.5, think_s: float = 0.3, on_tick: Callable[[int], None] | None = None
    ):
        self.playout = self
        self.heard: list[Pcm16] = []
        self.times: list[float] = []
        self.answer_s, self.think_s, self.on_tick = answer_s, think_s, on_tick
        self._speech_end: float | None = None
        self._left = 0
        self._loud = False

    def hear(self, pcm: Pcm16) -> None:
        now = asyncio.get_running_loop().time()
        self.heard.append(pcm)
        self.times.append(now)
        loud = bool(np.abs(pcm).max() > 100)
        if loud:
            self._speech_end = now
        elif self._speech_end is not None and now >= self._speech_end + self.think_s - 1e-6:
            self._speech_end = None
            self._left = round(self.answer_s * 24_000)
        if self.on_tick is not None:
            self.on_tick(len(self.heard))

    def read(self, samples: int) -> Pcm16:
        size = min(samples, self._left)
        self._left -= size
        return np.full(size, LOUD, dtype=np.int16)

    def is_quiet(self) -> bool:
        return self._speech_end is None and self._left == 0

    @property
    def audio(self) -> Pcm16:
        return np.concatenate(self.heard)


def tone(path: Path, seconds: float = 0.5, rate: int = 16_000, channels: int = 1, **how: str) -> Path:
    wave = 0.3 * np.sin(2 * np.pi * 500 * np.arange(round(seconds * rate)) / rate)
    soundfile.write(path, np.stack([wave] * channels, axis=1), rate, **how)
    return path


def hold(
    files: list[Path], line: Line, record_to: Path | None = None, answer_timeout_s: float = 60.0
) -> list[FileTurn]:
    async def main() -> list[FileTurn]:
        caller = FileCaller(
            files, record_to=record_to, answer_timeout_s=answer_timeout_s, executor=VirtualExecutor()
        )
        return await caller.run(line)

    return run_virtual(main())


def loud_from(pcm: Pcm16, rate: int) -> float:
    return float(np.flatnonzero(np.abs(pcm.astype(np.int32)) > 1000)[0]) / rate


def loud_until(pcm: Pcm16, rate: int) -> float:
    return float(np.flatnonzero(np.abs(pcm.astype(np.int32)) > 1000)[-1] + 1) / rate


def test_the_file_is_heard_in_real_time_and_then_silence_until_the_agent_has_finished(tmp_path: Path) -> None:
    line = Line()
    (turn,) = hold([tone(tmp_path / "a.wav")], line)
    assert (turn.begin_s, turn.end_s, turn.timed_out) == (0.0, 0.5, False)
    assert np.allclose(np.diff(line.times), 0.01)
    assert loud_until(line.audio, 16_000) == pytest.approx(0.5, abs=0.001)
    # 0.5 s of speech, 0.3 s of thought, 0.5 s of answer, 1 s of quiet
    assert line.times[-1] - line.times[0] == pytest.approx(2.3, abs=0.03)


def test_each_file_begins_one_second_after_the_agent_has_finished(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    turns = hold([tone(tmp_path / "a.wav"), tone(tmp_path / "b.wav", 0.25)], Line(), out)
    stereo, rate = soundfile.read(out, dtype="int16")
    agent_end = loud_until(stereo[: round(turns[1].begin_s * rate), 1], rate)
    assert turns[1].begin_s == pytest.approx(agent_end + 1.0, abs=0.03)
    assert turns[1].end_s == pytest.approx(turns[1].begin_s + 0.25)


def test_a_caller_lets_the_agent_finish_its_greeting(tmp_path: Path) -> None:
    line = Line()
    line._left = 24_000  # one second of greeting
    (turn,) = hold([tone(tmp_path / "a.wav")], line)
    assert turn.begin_s == pytest.approx(2.0, abs=0.02)
    assert loud_from(line.audio, 16_000) == pytest.approx(turn.begin_s, abs=0.002)


def test_the_recording_has_both_sides_where_they_were_heard(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    line = Line()
    hold([tone(tmp_path / "a.wav")], line, out)
    info = soundfile.info(out)
    assert (info.samplerate, info.channels, info.subtype) == (24_000, 2, "PCM_16")
    stereo, _ = soundfile.read(out, dtype="int16")
    assert loud_until(stereo[:, 0], 24_000) == pytest.approx(0.5, abs=0.002)
    # Speech ends at 0.5 s; 0.3 s later the frame that ends at 0.8 s tells, and the ear hears from then on.
    assert loud_from(stereo[:, 1], 24_000) == pytest.approx(0.8, abs=1e-6)
    assert loud_until(stereo[:, 1], 24_000) == pytest.approx(1.3, abs=1e-6)
    assert len(stereo) == len(line.heard) * 240
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


@pytest.mark.parametrize(
    ("rate", "channels", "how"),
    [
        (8_000, 2, {"subtype": "ULAW"}),
        (96_000, 1, {"subtype": "FLOAT"}),
        (44_100, 2, {"subtype": "PCM_24"}),
        (11_025, 1, {"subtype": "PCM_U8"}),
    ],
)
def test_any_rate_channels_and_format_is_heard_alike(
    tmp_path: Path, rate: int, channels: int, how: dict[str, str]
) -> None:
    line = Line()
    hold([tone(tmp_path / "a.wav", rate=rate, channels=channels, **how)], line)
    assert loud_until(line.audio, 16_000) == pytest.approx(0.5, abs=0.005)
    assert np.abs(line.audio).max() == pytest.approx(0.3 * 32768, rel=0.05)


@pytest.mark.parametrize("what", ["missing", "text", "empty", "nan"])
def test_a_file_that_is_no_audio_is_named_before_the_call_begins(tmp_path: Path, what: str) -> None:
    bad = tmp_path / "bad.wav"
    if what == "text":
        bad.write_text("not audio")
    elif what == "empty":
        bad.touch()
    elif what == "nan":
        soundfile.write(bad, np.full(1600, np.nan, dtype=np.float32), 16_000, subtype="FLOAT")
    line = Line()
    with pytest.raises(BadAudio, match=r"bad\.wav"):
        hold([tone(tmp_path / "good.wav"), bad], line)
    assert line.heard == []


def test_no_files_are_refused() -> None:
    with pytest.raises(BadRequest):
        FileCaller([])


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="can't be written"):
        hold([tone(tmp_path / "a.wav")], Line(), tmp_path / "no" / "such" / "out.wav")


def test_an_agent_that_never_finishes_holds_up_the_call_no_longer_than_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(think_s=1e9)
    with caplog.at_level(logging.ERROR):
        turns = hold([tone(tmp_path / "a.wav"), tone(tmp_path / "b.wav")], line, answer_timeout_s=3.0)
    assert [turn.timed_out for turn in turns] == [True, True]
    assert turns[1].begin_s == pytest.approx(3.5, abs=0.02)


def stalling(path: Path, stalls: dict[int, float]) -> tuple[Line, FileCaller]:
    """A call on a loop that something blocks for so many seconds at these ticks."""

    async def main() -> tuple[Line, FileCaller]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def stall(tick: int) -> None:
            loop._now += stalls.get(tick, 0.0)  # what a callback that takes so long does to the clock

        line = Line(on_tick=stall)
        caller = FileCaller([path], executor=VirtualExecutor())
        await caller.run(line)
        return line, caller

    return run_virtual(main())


def test_a_late_loop_delivers_the_missed_ticks_at_once_and_does_not_drift(tmp_path: Path) -> None:
    """B30: frames sent with a sleep after each run late for good; here each has its own due time."""
    line, caller = stalling(
        tone(tmp_path / "a.wav"), {tick: 0.4 if tick == 90 else 0.003 for tick in range(5, 150, 5)}
    )
    late = np.array(line.times) - line.times[0] - np.arange(len(line.times)) * 0.01
    assert late.min() > -1e-6 and 0.38 < late.max() < 0.41
    assert late[-1] < 1e-6
    assert caller.lost_s == 0.0
    assert loud_until(line.audio, 16_000) == pytest.approx(0.5, abs=0.001)


def test_a_loop_that_stands_still_for_long_loses_what_a_sound_card_would(tmp_path: Path) -> None:
    line, caller = stalling(tone(tmp_path / "a.wav"), {20: 5.0})
    assert caller.lost_s == pytest.approx(4.0, abs=0.02)
    burst = sum(1 for gap in np.diff(line.times) if gap < 1e-9)
    assert burst <= 100


def test_a_cancelled_call_still_leaves_a_whole_recording(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"

    async def main() -> None:
        caller = FileCaller([tone(tmp_path / "a.wav", 5.0)], record_to=out, executor=VirtualExecutor())
        task = asyncio.ensure_future(caller.run(Line()))
        await asyncio.sleep(2.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    stereo, rate = soundfile.read(out)
    assert len(stereo) / rate == pytest.approx(2.5, abs=0.03)


def test_an_older_recording_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    out.write_bytes(b"old")
    seen: list[bytes] = []
    hold([tone(tmp_path / "a.wav")], Line(on_tick=lambda _: seen.append(out.read_bytes())), out)
    assert set(seen) == {b"old"}
    assert soundfile.info(out).frames > 24_000


def test_a_long_call_does_not_pile_up_in_memory(tmp_path: Path) -> None:
    caller = FileCaller(
        [tone(tmp_path / "a.wav", 120.0)], record_to=tmp_path / "out.wav", executor=VirtualExecutor()
    )
    most = 0

    def look(_: int) -> None:
        nonlocal most
        assert caller._recording is not None
        most = max(most, len(caller._recording._writes))

    run_virtual(caller.run(Line(on_tick=look)))
    assert most <= 2


def test_real_time_is_kept_on_a_real_loop(tmp_path: Path) -> None:
    began = time.process_time()
    turns = asyncio.run(FileCaller([tone(tmp_path / "a.wav", 0.2)], gap_s=0.1).run(Line(0.1, 0.1)))
    assert not turns[0].timed_out
    assert time.process_time() - began < 1.0


def test_a_session_answers_each_file_and_the_recording_holds_both_answers(tmp_path: Path) -> None:
    async def main() -> tuple[list[FileTurn], list[ResponseEnded]]:
        stages = Stages(
            ScriptedDetector(),
            ScriptedRecogniser(["what is new", "and then"]),
            ScriptedModel(["Nothing much today.", "Nothing at all."]),
            ToneSynthesiser(),
        )
        caller = FileCaller(
            [tone(tmp_path / "a.wav", 1.0), tone(tmp_path / "b.wav", 1.0)],
            record_to=tmp_path / "out.wav",
            executor=VirtualExecutor(),
        )
        ended: list[ResponseEnded] = []

        def note(event: SessionEvent) -> None:
            if isinstance(event, ResponseEnded):
                ended.append(event)

        async with Session(Agent("Be brief.", stages), caller, on_event=note) as session:
            turns = await caller.run(session)
        return turns, ended

    turns, ended = run_virtual(main())
    assert [e.heard for e in ended] == ["Nothing much today.", "Nothing at all."]
    assert not any(turn.timed_out for turn in turns)
    stereo, rate = soundfile.read(tmp_path / "out.wav", dtype="int16")
    for turn, response in zip(turns, ended, strict=True):
        after = stereo[round(turn.end_s * rate) :, 1]
        first_audio_s = turn.end_s + loud_from(after, rate)
        assert response.times.first_audio_s == pytest.approx(first_audio_s, abs=0.04)
        assert response.times.speech_end_s == pytest.approx(turn.end_s, abs=0.04)

"""A caller made of audio files: they are the microphone, played in real time; both sides can be recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transports.call import Call
from transports.recording import RATE_HZ, Recording
from voice.audio import read_file, resample
from voice.errors import BadRequest
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16

log = logging.getLogger("voice.file")

TICK_S = 0.01
"""The grid of the call. 10 ms rather than the usual 20: half the delay on the way in and out, and for one
caller on one machine a tick costs nothing worth counting."""

HEAR = int(ASR_RATE_HZ * TICK_S)
PLAY = int(RATE_HZ * TICK_S)

MAX_BEHIND_S = 1.0
"""How much a late loop catches up at once: what the session's microphone ring holds. What is older is lost,
as with a real sound card."""

_SILENCE_HEARD: Pcm16 = np.zeros(HEAR, dtype=np.int16)
_SILENCE: Pcm16 = np.zeros(PLAY, dtype=np.int16)


@dataclass(frozen=True, slots=True)
class FileTurn:
    """When a file was played.

    Attributes:
        path: The file.
        begin_s: Its first sample, in seconds from the start of the call (and of the recording).
        end_s: Its last sample.
        timed_out: The agent was not finished ``answer_timeout_s`` after it.
    """

    path: Path
    begin_s: float
    end_s: float
    timed_out: bool


class FileCaller:
    """Plays files to a session in real time, then silence until the agent has finished.

    Every tick of an absolute grid the session hears 10 ms and the ear takes 10 ms; a late event loop catches
    up, so nothing drifts. In the recording a sample lies where the caller spoke it or the ear got it: audio
    that is taken at the end of a tick is heard during the next one.

    Args:
        files: What the caller says; anything that can be read as audio. Several are several turns: each
            begins ``gap_s`` after the agent has finished.
        record_to: A stereo WAV of the call as it was heard: left the caller, right the agent, 24 kHz.
        gap_s: Quiet before the next turn, and at the end of the call.
        answer_timeout_s: Longest wait for the agent to finish after a file; then the next one begins.
        executor: Where files are read and written; ``None``: a thread of its own.
    """

    capabilities = Capabilities(playout="can_pause", sample_rate=RATE_HZ)

    def __init__(
        self,
        files: Sequence[Path | str],
        *,
        record_to: Path | str | None = None,
        gap_s: float = 1.0,
        answer_timeout_s: float = 60.0,
        executor: Executor | None = None,
    ) -> None:
        if not files:
            raise BadRequest("a caller needs at least one audio file")
        self.files = [Path(file) for file in files]
        self.gap_s = gap_s
        self.answer_timeout_s = answer_timeout_s
        self.lost_s = 0.0
        self._executor = executor or ThreadExecutor("file-caller")
        self._record_to = None if record_to is None else Path(record_to)
        self._sides: list[tuple[Pcm16, Pcm16]] = []
        self._recording: Recording | None = None
        self._ticks = 0
        self._played: Pcm16 = _SILENCE

    async def prepare(self) -> None:
        """Read all files, so that a bad one is known before the call begins. :meth:`run` does it otherwise.

        Raises:
            BadAudio: A file is not there, is no audio, or holds samples that are no numbers.
        """
        if not self._sides:
            self._sides = [await self._executor.run(self._read, path) for path in self.files]

    async def run(self, call: Call) -> list[FileTurn]:
        """Hold the call; returns when the agent has finished after the last file.

        A recording is completed also when the call fails or is cancelled.

        Raises:
            BadAudio: See :meth:`prepare`.
            BadRequest: The recording can't be written.
        """
        await self.prepare()
        if self._record_to is not None:
            self._recording = Recording(self._record_to, self._executor)
            await self._recording.open()
        try:
            return await self._play(call)
        finally:
            if self._recording is not None:
                recording, self._recording = self._recording, None
                await asyncio.shield(recording.close())

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Unused: this transport pulls its audio."""

    def clear_audio(self) -> None:
        """Unused: nothing is ahead of the ear."""

    # ------------------------------------------------ the call

    async def _play(self, call: Call) -> list[FileTurn]:
        grid = _Grid()
        turns: list[FileTurn] = []
        if not call.is_quiet():  # the agent greets: a caller lets it finish
            await self._speak(call, grid, _SILENCE_HEARD[:0], _SILENCE[:0])
        for path, (heard, recorded) in zip(self.files, self._sides, strict=True):
            begin_s = self._ticks * TICK_S
            finished = await self._speak(call, grid, heard, recorded)
            if not finished:
                log.warning("the agent was not finished %.0f s after %s", self.answer_timeout_s, path)
            turns.append(FileTurn(path, begin_s, begin_s + len(heard) / ASR_RATE_HZ, not finished))
        self.lost_s = grid.lost_s
        return turns

    async def _speak(self, call: Call, grid: _Grid, heard: Pcm16, recorded: Pcm16) -> bool:
        """Say something, then be silent until the agent was quiet for ``gap_s``; ``False`` if it never was."""
        begin = self._ticks
        length = -(-len(heard) // HEAR)
        quiet = 0  # ticks of quiet since the last word
        while quiet * TICK_S < self.gap_s:
            if (self._ticks - begin - length) * TICK_S >= self.answer_timeout_s:
                return False
            for _ in range(await grid.due()):
                at = self._ticks - begin
                self._tick(call, _part(heard, at, _SILENCE_HEARD), _part(recorded, at, _SILENCE))
                quiet = quiet + 1 if at >= length and call.is_quiet() else 0
            if self._recording is not None:
                await self._recording.keep_up()
        return True

    def _tick(self, call: Call, heard: Pcm16, recorded: Pcm16) -> None:
        """One step: the microphone's last 10 ms go in, the ear's next 10 ms come out."""
        call.hear(heard)
        if self._recording is not None:
            self._recording.add(recorded, self._played)
        self._played = _whole(call.playout.read(PLAY))
        self._ticks += 1

    def _read(self, path: Path) -> tuple[Pcm16, Pcm16]:
        """The file at the session's rate, and at the recording's if there is one."""
        pcm, rate_hz = read_file(path)
        heard = resample(pcm, rate_hz, ASR_RATE_HZ)
        return heard, _SILENCE[:0] if self._record_to is None else resample(pcm, rate_hz, RATE_HZ)


class _Grid:
    """Tells how many ticks are due: the n-th is due at start + n · 10 ms, whatever happened between."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._done = 0
        self.lost_s = 0.0

    async def due(self) -> int:
        """Wait until at least one tick is due; returns how many are."""
        # sleep(0) too when it is late: others must run while it catches up
        await asyncio.sleep(max(0.0, self._start + (self._done + 1) * TICK_S - self._loop.time()))
        behind_s = self._loop.time() - self._start - self._done * TICK_S
        if behind_s > MAX_BEHIND_S:
            lost_s = behind_s - MAX_BEHIND_S
            log.warning("the event loop stood still: %.1f s of the call are lost", lost_s)
            self.lost_s += lost_s
            self._start += lost_s
            behind_s = MAX_BEHIND_S
        # a timer may fire a hair early; what it was set for is due
        ticks = max(1, int(behind_s / TICK_S + 1e-6))
        self._done += ticks
        return ticks


def _part(pcm: Pcm16, tick: int, silence: Pcm16) -> Pcm16:
    """The tick's share of ``pcm``, filled up with silence."""
    size = len(silence)
    piece = pcm[tick * size : (tick + 1) * size]
    return piece if len(piece) == size else np.concatenate([piece, silence[len(piece) :]])


def _whole(pcm: Pcm16) -> Pcm16:
    return pcm if len(pcm) == PLAY else np.concatenate([pcm, _SILENCE[len(pcm) :]])

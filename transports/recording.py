"""A call as it was heard, on disk: left the caller, right the agent; written while it happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from voice.errors import BadRequest
from voice.executor import Executor
from voice.interfaces import Pcm16

RATE_HZ = 24_000
BLOCK = RATE_HZ
"""Samples handed to the disk at once: one second."""

MAX_WAITING = 30
"""Blocks that may wait for a slow disk; then :meth:`Recording.keep_up` waits."""


class Recording:
    """Writes a stereo WAV in blocks of a second, off the event loop.

    The file appears under its own name only when it is complete: until then it is called ``NAME.part``.

    Args:
        path: The WAV file to make; an older one is replaced when this one is closed.
        executor: Where the disk is written; must run one call at a time.
    """

    def __init__(self, path: Path, executor: Executor) -> None:
        self.path = path
        self.samples = 0
        self._executor = executor
        self._part = path.with_name(path.name + ".part")
        self._block = np.zeros((BLOCK, 2), dtype=np.int16)
        self._filled = 0
        self._file: Any = None
        self._writes: list[asyncio.Future[None]] = []

    async def open(self) -> None:
        """Make the file.

        Raises:
            BadRequest: The place can't be written.
        """
        self._file = await self._executor.run(self._open)

    def add(self, caller: Pcm16, agent: Pcm16) -> None:
        """The next samples of both channels, of equal length (at most a second)."""
        done = 0
        while done < len(caller):
            take = min(len(caller) - done, BLOCK - self._filled)
            rows = self._block[self._filled : self._filled + take]
            rows[:, 0] = caller[done : done + take]
            rows[:, 1] = agent[done : done + take]
            self._filled += take
            done += take
            if self._filled == BLOCK:
                self._hand_over()
        self.samples += len(caller)

    async def keep_up(self) -> None:
        """Wait while the disk is more than half a minute behind.

        Raises:
            BadRequest: The disk took no more.
        """
        self._writes = [write for write in self._writes if not _done(write)]
        while len(self._writes) >= MAX_WAITING:
            await self._writes.pop(0)

    async def close(self) -> None:
        """Write what is left and give the file its name.

        Raises:
            BadRequest: The disk took no more; what was written stays in ``NAME.part``.
        """
        if self._filled:
            self._hand_over()
        waiting, self._writes = self._writes, []
        try:
            for write in waiting:
                await write
        finally:
            await self._executor.run(self._file.close)
        await self._executor.run(self._guarded, os.replace, self._part, self.path)

    def _hand_over(self) -> None:
        block, self._block = self._block[: self._filled], np.zeros((BLOCK, 2), dtype=np.int16)
        self._filled = 0
        self._writes.append(self._executor.run(self._guarded, self._file.write, block))

    def _open(self) -> Any:
        import soundfile

        return self._guarded(
            lambda: soundfile.SoundFile(
                self._part, "w", samplerate=RATE_HZ, channels=2, subtype="PCM_16", format="WAV"
            )
        )

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        import soundfile

        try:
            return call(*args)
        except (OSError, soundfile.SoundFileError) as error:
            raise BadRequest(f"the recording {self.path} can't be written: {error}") from error


def _done(write: asyncio.Future[None]) -> bool:
    """Whether a write is over; raises what it failed with."""
    if write.done():
        write.result()
    return write.done()

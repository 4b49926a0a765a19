"""How far are the recordings? A bar on a terminal with the speed, as times real time, and the time left."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, TextIO

from stages.asr.recordings.options import RecordingProgress

_FORMAT = "{percentage:3.0f}% |{bar}| {desc}"


class Bar:
    """One bar for all recordings of a command; nothing where the stream is no terminal.

    Args:
        names: The recordings, as they are shown.
        stream: ``None``: standard error.
    """

    def __init__(self, names: list[str], stream: TextIO | None = None) -> None:
        self._names = names
        self._stream: TextIO | None = stream or sys.stderr  # None: the program has no standard error
        self._shown = self._stream is not None and self._stream.isatty()
        self._bar: Any = None
        self._began_s = 0.0
        self._parts: list[_Part] = []
        self._ended = 0

    def recording(self) -> RecordingProgress | None:
        """What the next recording's progress is told; ``None`` where nothing is shown."""
        return _Part(self) if self._shown else None

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def line(self, text: str) -> None:
        """Write a line to the stream, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif self._stream is not None:
            print(text, file=self._stream, flush=True)

    def add(self, part: _Part) -> None:
        """A recording begins."""
        self._parts.append(part)
        if self._bar is None:
            from tqdm import tqdm

            self._began_s = asyncio.get_running_loop().time()
            self._bar = tqdm(
                total=1.0, bar_format=_FORMAT, file=self._stream, dynamic_ncols=True, leave=False
            )
        self.update()

    def ended(self) -> None:
        """A recording is done."""
        self._ended += 1
        self.update()

    def update(self) -> None:
        """Draw it anew."""
        if self._bar is None:
            return
        done_s = sum(part.done_s for part in self._parts)
        whole_s = max(1e-3, done_s, sum(part.duration_s or part.done_s for part in self._parts))
        fresh_s = done_s - sum(part.resumed_s for part in self._parts)
        speed = fresh_s / max(1e-3, asyncio.get_running_loop().time() - self._began_s)
        many = len(self._names) > 1
        name = f"{self._ended} of {len(self._names)} files" if many else self._names[0]
        self._bar.set_description_str(f"{name}: {summary(done_s, whole_s, speed)}", refresh=False)
        self._bar.total = whole_s
        self._bar.update(done_s - self._bar.n)


class _Part:
    """A :class:`RecordingProgress` that is a part of the bar."""

    def __init__(self, bar: Bar) -> None:
        self.duration_s: float | None = None
        self.done_s = self.resumed_s = 0.0
        self._bar = bar
        self._over = False

    def begin(self, duration_s: float | None) -> None:
        self.duration_s = duration_s
        self._bar.add(self)

    def at(self, done_s: float, resumed_s: float, duration_s: float | None) -> None:
        self.done_s, self.resumed_s, self.duration_s = done_s, resumed_s, duration_s
        self._bar.update()

    def end(self) -> None:
        if not self._over:
            self._over = True
            self.done_s = self.duration_s or self.done_s
            self._bar.ended()


def summary(done_s: float, whole_s: float, speed: float) -> str:
    """``"25:10 of 1:00:00, 21.3 × real time, 1:38 left"``; ``speed`` is seconds of audio a second."""
    left = clock((whole_s - done_s) / speed) if speed > 0 else "?"
    return f"{clock(done_s)} of {clock(whole_s)}, {speed:.1f} × real time, {left} left"


def clock(seconds: float) -> str:
    """``75`` → ``"1:15"``; hours from 3600 s on."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""How is a run seen while it goes on? One line that is redrawn on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from typing import TextIO

from loadtest.crowd import Moment

PLAIN_EVERY_S = 10.0
_BAR = 16


class Progress:
    """A run's progress on a stream.

    Args:
        stream: Where to; ``None``: standard error.
        every_s: Time between lines where the stream is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, every_s: float = PLAIN_EVERY_S) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._every_s = every_s
        self._shown_s = float("-inf")
        self._width = 0

    def show(self, at_s: float, text: str) -> None:
        """What is going on, ``at_s`` into the run."""
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif at_s - self._shown_s >= self._every_s or at_s < self._shown_s:
            self._shown_s = at_s
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """The redrawn line stays as it is."""
        if self._live and self._width:
            self._stream.write("\n")
            self._stream.flush()
        self._width = 0


def line(moment: Moment, wanted: int, length_s: float) -> str:
    """A moment in words."""
    done = min(1.0, moment.at_s / length_s) if length_s else 1.0
    bar = "#" * round(done * _BAR)
    latency = (
        "-" if moment.recent_p50_ms is None else f"{moment.recent_p50_ms:.0f}/{moment.recent_p95_ms:.0f} ms"
    )
    parts = [
        f"[{bar:<{_BAR}}] {moment.at_s:4.0f}/{length_s:.0f} s",
        f"{moment.sessions}/{wanted} calls",
        f"{moment.turns} turns",
        f"p50/p95 {latency}",
        f"gaps {moment.gaps}",
        f"errors {moment.errors}",
    ]
    if moment.refusals:
        parts.append(f"refused {moment.refusals}")
    if moment.server is not None:
        cpu = 0.0 if moment.server_cpu is None else moment.server_cpu
        parts.append(f"server {cpu:.2f} cores {moment.server.rss_mb:.0f} MB")
    parts.append(f"callers {moment.caller_cpu:.2f} cores, late {moment.caller_lag_ms:.0f} ms")
    return "  ".join(parts)

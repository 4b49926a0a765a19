"""How a download shows itself: a bar on a terminal, one line elsewhere, nothing when silenced."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Progress(Protocol):
    """Told about one download after another. Called from the thread that pulls."""

    def begin(self, name: str, total_bytes: int) -> None:
        """Something named ``name`` is about to be downloaded."""

    def at(self, done_bytes: int) -> None:
        """So much of it is here; may step back when a broken download starts over."""

    def end(self) -> None:
        """It is here, or it failed. Follows every ``begin``."""


class Meter:
    """Sums up a download of several items for a :class:`Progress`, which sees one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._before_bytes = 0

    def at(self, item_bytes: int) -> None:
        """So much of the current item is here."""
        self._progress.at(self._before_bytes + item_bytes)

    def item_done(self, item_bytes: int) -> None:
        """The current item, of this size, is here; the next one begins."""
        self._before_bytes += item_bytes
        self.at(0)


class ConsoleProgress:
    """A tqdm bar on stderr, or a single line there when stderr is no terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, name: str, total_bytes: int) -> None:
        if not sys.stderr.isatty():
            print(f"downloading {name} ({size_text(total_bytes)}) …", file=sys.stderr, flush=True)
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total_bytes,
            desc=f"downloading {name}",
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            dynamic_ncols=True,
        )

    def at(self, done_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(min(done_bytes, self._bar.total) - self._bar.n)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class NoProgress:
    """Says nothing."""

    def begin(self, name: str, total_bytes: int) -> None:
        pass

    def at(self, done_bytes: int) -> None:
        pass

    def end(self) -> None:
        pass


def size_text(size_bytes: int) -> str:
    """A size for people, in decimal units: ``93 MB``, ``4.8 kB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            value = size_bytes / scale
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{size_bytes} B"

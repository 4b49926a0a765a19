"""What may a number, a share or a file on a command line be? Checked before anything is started or measured."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from pathlib import Path

MOST = 1e7
"""Of any number: seconds of a third of a year."""


def whole(text: str) -> int:
    """A whole number, 1 or more.

    Raises:
        ArgumentTypeError: It is none; so do the others.
    """
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is no whole number") from None
    if not 1 <= value <= MOST:
        raise ArgumentTypeError(f"{text} is not 1 to {MOST:.0f}")
    return value


def above_zero(text: str) -> float:
    """A number above 0, such as seconds."""
    value = _number(text)
    if not 0 < value < MOST:
        raise ArgumentTypeError(f"{text} is not above 0, or too much")
    return value


def zero_or_more(text: str) -> float:
    """A number, 0 or more."""
    value = _number(text)
    if not 0 <= value < MOST:
        raise ArgumentTypeError(f"{text} is not 0 or more, or too much")
    return value


def share(text: str) -> float:
    """0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"{text} is not 0 to 1")
    return value


def new_file(text: str) -> Path:
    """A file that can be written: what a run measures is told at its end, when it is too late to name another."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} can't be written")
    return path


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is no number") from None

"""Keypad: the keys of a telephone, pressed one by one, become one input. No I/O, no clock: time comes in."""

from __future__ import annotations

from voice.errors import BadRequest

KEYS = frozenset("0123456789*#ABCD")
"""What a DTMF keypad can send; telephones have the first twelve."""


class Keypad:
    """Collects keys until the caller ends the input or pauses.

    An input ends with the ``terminator``, which is not part of it (unless it is all that was pressed: it is what
    the caller wants to say then), with ``max_keys`` keys, or ``finish_s`` after the last key.

    Args:
        finish_s: The pause that ends an input, in seconds.
        terminator: The key that ends an input; ``None`` for none.
        max_keys: The longest input, in keys; the next key begins another.

    Attributes:
        due: When to call :meth:`expire`, in loop time; ``None`` while nothing is collected.

    Raises:
        BadRequest: A pause or length that is not positive, or a terminator that is no key.
    """

    def __init__(self, finish_s: float = 2.0, terminator: str | None = "#", max_keys: int = 32) -> None:
        if finish_s <= 0 or max_keys < 1:
            raise BadRequest("a keypad needs a pause above 0 s and room for at least one key")
        if terminator is not None:
            _check(terminator)
        self.finish_s, self.terminator, self.max_keys = finish_s, terminator, max_keys
        self.due: float | None = None
        self._keys = ""

    @property
    def keys(self) -> str:
        """What was pressed of the input that is not complete yet."""
        return self._keys

    def press(self, key: str, now: float) -> str | None:
        """A key was pressed at loop time ``now``. Returns the input that this completes.

        Raises:
            BadRequest: Not one of ``0``-``9``, ``*``, ``#``, ``A``-``D``. What was collected stays.
        """
        _check(key)
        if key == self.terminator:
            return self._complete() or key
        self._keys += key
        self.due = now + self.finish_s
        return self._complete() if len(self._keys) >= self.max_keys else None

    def expire(self, now: float) -> str | None:
        """Time has come to ``now``. Returns the input that the pause completes."""
        return self._complete() if self.due is not None and now >= self.due else None

    def clear(self) -> None:
        """Forget what was collected."""
        self._complete()

    def _complete(self) -> str:
        keys, self._keys, self.due = self._keys, "", None
        return keys


def _check(key: str) -> None:
    if not isinstance(key, str) or len(key) != 1 or key not in KEYS:
        shown = repr(key)[:20]
        raise BadRequest(f"{shown} is not a key of a telephone; expected one of 0-9, *, #, A-D")

"""What a process does about garbage: once its engines are loaded, and when conversations have ended."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 2_000, 2, 250
"""When each generation is collected: after so many new containers, and so many collections of the one below. A
collection takes 0.3 to 1 ms for each 1,000 containers that it looks at (the more, the busier the caches): so 2 ms for
the young and 6 ms for the middle. The old, all that conversations hold, take 40 ms with 80 of them: they are looked at
after a million new containers, and where conversations end (:func:`sweep`)."""


def settle() -> None:
    """Collect once, then keep all that lives now (modules, engines, tables) out of later garbage collections.

    Call it after loading and before the first conversation. A full collection in mid conversation would stop every
    session for as long as it takes to look at the whole heap: hundreds of milliseconds in a large process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def settled() -> bool:
    """Whether :func:`settle` was called: what a collection looks at is then the conversations' own."""
    return gc.get_freeze_count() > 0


def sweep() -> None:
    """Free what ended conversations left behind.

    Their parts refer to each other and wait for a full collection, which by itself would come after hours. Call it when
    as many have ended as half of those that go on: it takes about 0.3 ms for each of these. Does nothing in a process
    that was not settled, where all that was ever loaded would be looked at.
    """
    if settled():
        gc.collect()

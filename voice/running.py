"""What a process does once when its engines are loaded, before it takes conversations."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 5_000, 5, 10
"""When each generation is collected: after so many new containers, and so many collections of the one below. A
collection takes about 0.3 ms for each 1,000 containers that it looks at: so 2 ms for the young, 8 ms for the middle.
The old are looked at only when a quarter of them is new, and with :func:`settle` they are the conversations' own."""


def settle() -> None:
    """Collect once, then keep all that lives now (modules, engines, tables) out of later garbage collections.

    Call it after loading and before the first conversation. A full collection in mid conversation would stop every
    session for as long as it takes to look at the whole heap: hundreds of milliseconds in a large process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)

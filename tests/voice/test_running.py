"""What a process does before it takes conversations."""

from __future__ import annotations

import gc

from voice.running import settle


def test_what_lives_before_the_first_conversation_is_left_out_of_collections() -> None:
    thresholds = gc.get_threshold()
    try:
        settle()
        assert gc.get_freeze_count() > 10_000
        young, middle, _ = gc.get_threshold()
        assert young * middle < 50_000  # containers that a collection in mid conversation may look at
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)

"""What a process does before it takes conversations."""

from __future__ import annotations

import gc
import weakref

import pytest

from voice.running import settle, settled, sweep


def test_what_lives_before_the_first_conversation_is_left_out_of_collections() -> None:
    thresholds = gc.get_threshold()
    try:
        settle()
        assert settled() and gc.get_freeze_count() > 10_000
        young, middle, _ = gc.get_threshold()
        assert young * middle < 50_000  # containers that a collection in mid conversation may look at
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


class _Part:
    def __init__(self) -> None:
        self.other = self


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_ended_conversations_left_is_freed_in_a_process_that_was_settled(is_settled: bool) -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        if is_settled:
            settle()
        part = weakref.ref(_Part())
        sweep()
        assert (part() is None) is is_settled
    finally:
        gc.unfreeze()
        gc.enable()
        gc.set_threshold(*thresholds)

"""TurnTaker: what holds in every conversation, whatever happens in which order.

Random conversations, each from its seed. ``VOICE_TURNS_SEQUENCES=100000`` plays that many, ``VOICE_TURNS_SEED=7`` one.
"""

from __future__ import annotations

import os
from dataclasses import replace

from random_turns import Caller
from turn_scripts import Script

from voice.turns import TurnTaker

SEQUENCES = int(os.environ.get("VOICE_TURNS_SEQUENCES", "2000"))
ONE_SEED = os.environ.get("VOICE_TURNS_SEED")


def play(script: Script) -> set[str]:
    """Play it; returns what was seen. Raises :class:`AssertionError` for what must not be."""
    caller = Caller(TurnTaker(script.options, script.playout, judges=script.judges))
    for step in script.steps:
        caller.act(step)
    caller.settle(quiet=script.quiet, words_come=script.words_come)
    return caller.seen


def shrink(script: Script) -> Script:
    """The same failure with fewer steps."""
    again = True
    while again:
        again = False
        for i in range(len(script.steps)):
            shorter = replace(script, steps=script.steps[:i] + script.steps[i + 1 :])
            try:
                play(shorter)
            except AssertionError:
                script, again = shorter, True
                break
    return script


def test_whatever_happens_the_decisions_are_consistent_and_every_state_has_a_way_out() -> None:
    seeds = range(SEQUENCES) if ONE_SEED is None else [int(ONE_SEED)]
    seen: set[str] = set()
    for seed in seeds:
        script = Script.drawn(seed)
        try:
            seen |= play(script)
        except AssertionError as error:
            print(f"VOICE_TURNS_SEED={seed}\n{shrink(script)}")
            raise AssertionError(f"seed {seed}: {error}") from error
    if SEQUENCES >= 1000 and ONE_SEED is None:
        assert seen >= EVERYTHING, "these conversations are tamer than they should be"


EVERYTHING = {
    "OpenTurn", "Reopen", "Recognise", "Judge", "Guess", "Commit", "CloseEmpty", "Respond", "Hold", "Release",
    "Interrupt", "CutInput", "GoneIdle", "words so far", "a turn beside an answer", "an answer owed", "stale words",
}  # fmt: skip

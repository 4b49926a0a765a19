"""Whatever fails, wherever it fails: every turn ends well, and nobody hears or reads another's words.

Some rounds of ``python -m loadtest chaos``; ``VOICE_CHAOS_TURNS=100000`` plays more.
"""

from __future__ import annotations

import os

import pytest

from loadtest.chaos import Options, play

SEED = 5
TURNS = int(os.environ.get("VOICE_CHAOS_TURNS", "0"))


def rounds(options: Options, seed: str, most: int, turns: int = 0) -> None:
    had, number = 0, 0
    while number < most or had < turns:
        print(f"seed {seed}:{number}")
        done = play(f"{seed}:{number}", options)
        assert not done.failed, "\n".join(done.failed[:3])
        had, number = had + done.turns, number + 1
    assert had > 0


def test_turns_end_well_when_anything_may_fail_at_any_await() -> None:
    rounds(Options(rate=0.02), f"{SEED}", 3, TURNS)


def test_turns_end_well_when_hardly_anything_works() -> None:
    rounds(Options(rate=0.15, act_s=40.0), f"{SEED} often", 3)


def test_a_round_without_faults_is_quiet() -> None:
    done = play(f"{SEED} calm:0", Options(rate=0.0, leave_out=("outages",), act_s=30.0))
    assert not done.failed and done.turns > 5
    assert not done.happened


def test_a_round_replays_from_its_seed() -> None:
    options = Options(act_s=30.0)
    once, again = play(f"{SEED} twice:0", options), play(f"{SEED} twice:0", options)
    assert (once.turns, once.events, once.happened) == (again.turns, again.events, again.happened)


@pytest.mark.parametrize("fault", ["a sound", "a word"])
def test_what_is_another_sessions_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: with one session's code given to all, or its name put into all transcripts, rounds fail."""
    if fault == "a sound":
        monkeypatch.setattr("loadtest.chaos_stages.codes_in", lambda text: {0})
        monkeypatch.setattr("loadtest.chaos_stages.number_of", lambda text: 0)
    else:
        monkeypatch.setattr("loadtest.chaos_stages.words_said", lambda level, size: "I am calleraaab.")
    done = play(f"{SEED} mixed:0", Options(rate=0.0, act_s=30.0))
    assert any("another" in why or "is told of" in why or "hears" in why for why in done.failed)

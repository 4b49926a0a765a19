"""How much is guessed: less when guesses are thrown away, nothing when the processor is busy, and always a way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.compute import ComputeGate
from voice.errors import BadRequest
from voice.speculation import GuessBudget, GuessOptions, Level, SessionGuesses, Waste
from voice.testing import run_virtual

PAUSE_EVERY_S = 2.0


def talk(session: SessionGuesses, holds: Sequence[bool], start: float = 0.0) -> list[Level]:
    """A pause every two seconds; ``holds`` says whether a guess made there would be kept. Returns the levels."""
    levels = []
    for number, held in enumerate(holds):
        now = start + number * PAUSE_EVERY_S
        levels.append(session.level(now))
        if levels[-1] is Level.FULL:
            session.started(now)
            (session.kept if held else session.dropped)(now + 0.5)
    return levels


def full(levels: Sequence[Level]) -> int:
    return sum(level is Level.FULL for level in levels)


# ---------------------------------------------------------------- waste


@pytest.mark.parametrize(
    ("who", "holds", "guessed_of_last_40"),
    [
        ("never goes on", [True] * 100, 40),
        ("hesitates in every third turn", [True, True, False] * 34, 40),
        ("hesitates once in each turn", [False, True] * 50, 40),
        ("hesitates three times in each turn", [False, False, False, True] * 25, range(8, 30)),
        ("always goes on", [False] * 100, range(9, 12)),
    ],
)
def test_who_wastes_more_is_guessed_for_less(
    who: str, holds: list[bool], guessed_of_last_40: int | range
) -> None:
    guessed = full(talk(GuessBudget().session(), holds)[-40:])
    if isinstance(guessed_of_last_40, int):
        assert guessed == guessed_of_last_40, who
    else:
        assert guessed in guessed_of_last_40, who


def test_one_or_two_bad_guesses_prove_nothing() -> None:
    assert talk(GuessBudget().session(), [False, False, False])[-1] is Level.FULL


def test_a_wasteful_session_still_has_its_words_at_the_pause() -> None:
    assert set(talk(GuessBudget().session(), [False] * 50)) == {Level.FULL, Level.WORDS}


def test_a_caller_who_changes_gets_every_guess_again() -> None:
    session = GuessBudget().session()
    talk(session, [False] * 40)
    assert full(talk(session, [True] * 40, 80.0)[-10:]) == 10


def test_a_long_silence_is_forgiven() -> None:
    session = GuessBudget().session()
    before = talk(session, [False] * 40)
    assert full(before[-8:]) == 2
    assert talk(session, [False] * 2, 80.0 + 600.0) == [Level.FULL, Level.FULL]


def test_below_its_bound_by_less_than_the_margin_a_session_is_still_sparing() -> None:
    session = GuessBudget(GuessOptions(most_wasted_together=1.0)).session()
    for _ in range(20):
        session.dropped(0.0)
    assert session.level(0.0) is Level.WORDS
    while session.share(0.0) > 0.6:
        session.kept(0.0)
    assert session.share(0.0) > 0.5 and session.level(0.0) is Level.WORDS
    while session.share(0.0) > 0.5:
        session.kept(0.0)
    assert session.level(0.0) is Level.FULL


def test_sessions_do_not_pay_for_each_other_while_the_process_is_within_its_bound() -> None:
    budget = GuessBudget()
    bad, good = budget.session(), budget.session()
    for number in range(30):
        talk(bad, [False], number * 10.0)
        assert full(talk(good, [True] * 3, number * 10.0 + 2.0)) == 3
    assert full(talk(bad, [False] * 8, 300.0)) == 2


def test_when_the_process_wastes_too_much_the_wasteful_guess_less_and_the_good_go_on() -> None:
    lavish, strict = GuessBudget(), GuessBudget(GuessOptions(most_wasted_together=0.35))
    for budget, guesses in ((lavish, 6), (strict, 2)):
        for number in range(20):  # each within its own bound; all together are too many for the strict budget
            talk(budget.session(), [False, False, True], number * 6.0)
        good, wasteful = budget.session(), budget.session()
        assert full(talk(good, [True] * 6, 120.0)) == 6
        assert full(talk(wasteful, [False, False, True] * 2, 120.0)) in range(guesses, guesses + 2)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 100.0)), max_size=60), st.integers(1, 40))
def test_the_share_is_a_share_whatever_happened(outcomes: list[tuple[bool, float]], memory: int) -> None:
    waste, now = Waste(memory, 60.0), 0.0
    for dropped, wait_s in outcomes:
        now += wait_s
        before = waste.share(now)
        waste.add(dropped, now)
        assert 0.0 <= waste.share(now) <= 1.0
        assert waste.share(now) >= before if dropped else waste.share(now) <= before
    assert waste.share(now + 1e6) == pytest.approx(Waste.usual)


# ---------------------------------------------------------------- load


def levels_at(loads: Sequence[float]) -> list[Level]:
    at = iter(loads)
    session = GuessBudget(load=lambda now: next(at)).session()
    return [session.level(float(n)) for n in range(len(loads))]


DOWN, OFF, UP = 0.85, 0.95, 0.7
"""Loads at which guesses stop, at which recognition waits too, and at which neither stops nor begins anew."""
F, W, N = Level.FULL, Level.WORDS, Level.NONE


@pytest.mark.parametrize(
    ("name", "loads", "levels"),
    [
        ("an idle machine guesses", [0.0, 0.3, 0.5], [F, F, F]),
        ("guesses stop first, then recognition waits", [0.5, DOWN, OFF], [F, W, N]),
        ("a machine with no time left stops both at once", [0.5, 1.0], [F, N]),
        ("between the marks nothing changes", [0.5, UP, DOWN, UP, UP, DOWN], [F, F, W, W, W, W]),
        ("what stopped last comes back first", [1.0, UP, UP, 0.3], [N, W, W, F]),
        ("all comes back at once when the load is gone", [1.0, 0.0], [N, F]),
    ],
)
def test_load_turns_guessing_down_and_back(name: str, loads: list[float], levels: list[Level]) -> None:
    assert levels_at(loads) == levels, name


def test_the_process_has_one_load_state_for_all_sessions() -> None:
    now_load = 1.0
    budget = GuessBudget(load=lambda now: now_load)
    one, other = budget.session(), budget.session()
    assert one.level(0.0) is Level.NONE
    now_load = UP
    assert other.level(1.0) is Level.WORDS and one.level(1.0) is Level.WORDS


def test_the_model_reads_ahead_only_where_guesses_are_free_and_asking_changes_no_count() -> None:
    for load, reads in ((0.2, True), (DOWN, False), (1.0, False)):
        budget = GuessBudget(load=lambda now, load=load: load)  # type: ignore[misc]
        assert budget.session().reads_ahead(0.0) is reads
        assert sum(budget.asked.values()) == 0


def test_pauses_and_guesses_are_counted() -> None:
    budget = GuessBudget()
    levels = talk(budget.session(), [False] * 20)
    assert budget.asked[Level.FULL] == budget.begun == budget.dropped == full(levels)
    assert sum(budget.asked.values()) == 20 and budget.kept == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: GuessOptions(most_wasted=1.5),
        lambda: GuessOptions(most_wasted_together=-0.1),
        lambda: GuessOptions(margin=0.7),
        lambda: GuessOptions(probe_every=0),
        lambda: GuessOptions(memory=0.5),
        lambda: GuessOptions(memory_s=0.0),
        lambda: GuessOptions(stop_guesses=0.5, resume_guesses=0.5),
        lambda: GuessOptions(stop_words=0.2),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make: Callable[[], GuessOptions]) -> None:
    with pytest.raises(BadRequest):
        make()


# ---------------------------------------------------------------- with a gate, in virtual time


def test_a_gate_that_is_always_taken_stops_guessing_within_seconds_and_a_free_one_brings_it_back() -> None:
    gate = ComputeGate(1)
    session = GuessBudget(load=gate.load).session()
    seen: list[Level] = []

    async def look(seconds: int) -> None:
        for _ in range(seconds * 2):
            await asyncio.sleep(0.5)
            seen.append(session.level(asyncio.get_running_loop().time()))

    async def main() -> None:
        await look(2)
        async with gate.slot():
            await look(10)
        await look(5)

    run_virtual(main())
    assert seen[:4] == [F] * 4
    busy, free = seen[4:24], seen[24:]
    assert busy[:6] == [F] * 6  # one turn's calls are no load
    assert W in busy[:12] and busy[-1] is N and busy == sorted(busy, reverse=True)
    assert free[-1] is F and free == sorted(free)

"""The final text is begun when the voice falls silent: it is there sooner, it is never short of a word, and it is the
first thing to go under load."""

from __future__ import annotations

import asyncio

import pytest
from spelled import Asked, Speaker, Speller, failing, speaking, text_of

from voice.degradation import Rung
from voice.events import Problem, UserPartial
from voice.interfaces import Transcript
from voice.options import TurnOptions
from voice.scope import Priority
from voice.service import Service
from voice.testing import run_virtual

PAUSE_S = 0.12


def calls_after(words: range, options: TurnOptions, rung: Rung = Rung.FULL) -> list[float]:
    """When the recogniser was asked after the last word had died away, in s from there."""

    async def call() -> list[float]:
        recogniser, service = Speller(), Service()
        one = Speaker(recogniser, options=options, service=service)
        async with speaking(one):
            service.ladder.rung = rung
            start = asyncio.get_running_loop().time() - one.client.now_s
            end = one.say(1.0, words)
            await one.to(end + 3.0)
        assert one.said == [text_of(words)]
        return [asked.at - start - end for asked in recogniser.asked if asked.at - start >= end]

    return run_virtual(call())


def test_the_final_text_is_begun_before_the_pause_is_certain_and_only_once() -> None:
    (at,) = calls_after(range(3), TurnOptions())
    assert 0.04 <= at < PAUSE_S - 0.03


def test_without_guesses_or_under_load_it_waits_for_the_pause() -> None:
    for options, rung in ((TurnOptions(speculate=False), Rung.FULL), (TurnOptions(), Rung.FEWER_PARTIALS)):
        assert min(calls_after(range(3), options, rung)) >= PAUSE_S


@pytest.mark.parametrize("gap_s", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("delay_s", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("partials", [True, False])
def test_who_goes_on_after_a_silence_is_heard_whole(gap_s: float, delay_s: float, partials: bool) -> None:
    options = TurnOptions(pause_s=0.6, min_delay_s=0.7, max_delay_s=2.0, partials=partials)

    async def call() -> None:
        recogniser = Speller(delay_s=delay_s)
        one = Speaker(recogniser, options=options)
        async with speaking(one):
            end = one.say(1.0, range(5))
            end = one.say(end + gap_s, range(5, 9))
            end = one.say(end + gap_s, range(9, 10))
            await one.to(end + 6.0)
        assert " ".join(one.said) == text_of(range(10))
        assert recogniser.most_running == 1, "one pass at a time"

    run_virtual(call())


def test_words_after_a_silence_that_was_none_are_told_as_a_partial() -> None:
    async def call() -> None:
        recogniser = Speller(delay_s=0.05)
        one = Speaker(recogniser, options=TurnOptions(pause_s=0.6, min_delay_s=0.7, partials=True))
        async with speaking(one):
            end = one.say(1.0, range(6))
            one.say(end + 0.3, range(6, 9))
            await one.to(end + 0.25)
            told = one.of(UserPartial)[-1].text
            await one.to(end + 5.0)
        assert told == text_of(range(6))

    run_virtual(call())


def test_one_that_fails_costs_no_words_and_is_no_problem() -> None:
    async def call() -> None:
        failures = iter([True])

        def once(transcript: Transcript, asked: Asked) -> Transcript:
            early = asked.priority is Priority.SPECULATIVE and next(failures, False)
            return failing(transcript, asked) if early else transcript

        one = Speaker(Speller(answer=once))
        async with speaking(one):
            end = one.say(1.0, range(3))
            await one.to(end + 3.0)
        assert one.said == [text_of(range(3))] and not one.of(Problem)

    run_virtual(call())


def test_a_turn_that_is_cut_after_a_silence_has_what_was_said_since() -> None:
    async def call() -> None:
        one = Speaker(Speller(delay_s=2.5), options=TurnOptions(pause_s=0.6, min_delay_s=0.7, max_turn_s=5.0))
        async with speaking(one):
            end = one.say(1.0, range(8))
            end = one.say(end + 0.3, range(8, 20))
            await one.to(end + 8.0)
        assert one.said[0].startswith(text_of(range(12)))

    run_virtual(call())


def test_a_session_that_ends_during_one_leaves_nothing() -> None:
    async def call() -> None:
        recogniser = Speller(delay_s=50.0)
        one = Speaker(recogniser)
        async with speaking(one):
            end = one.say(1.0, range(2))
            await one.to(end + 0.1)
            assert recogniser.running["s0"] == 1
        assert recogniser.running["s0"] == 0

    run_virtual(call())

"""Partial transcripts: they come while the user speaks, their settled words stay, and they are in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spelled import PERIOD_S, Asked, Speaker, Speller, failing, read_all, speaking, spell, text_of

from voice.batching import Batcher
from voice.degradation import Rung
from voice.events import Problem, SpeechStarted, UserPartial, UserSaid
from voice.interfaces import ASR_RATE_HZ, Pcm16, Transcript
from voice.options import TurnOptions
from voice.partials import AgreedPrefix, next_partial_s, quiet_cut, rest_of
from voice.scope import Priority, Scope
from voice.service import Service
from voice.testing import VirtualExecutor, run_virtual

PARTIALS = TurnOptions(partials=True)


# ---------------------------------------------------------------- which words are settled


def stable_after(*passes: str) -> str:
    agreed = AgreedPrefix()
    for heard in passes:
        agreed.take(heard)
    return agreed.stable


def test_words_of_two_passes_are_settled_but_the_last_may_be_cut_off() -> None:
    assert stable_after("I would like to gro") == ""
    assert stable_after("I would like to gro", "I would like to grow a tree") == "I would like to"
    assert stable_after("one two three", "one two three") == "one two"


def test_case_and_punctuation_make_no_difference_and_the_first_spelling_told_stays() -> None:
    agreed = AgreedPrefix()
    agreed.take("Well. I think")
    second = agreed.take("well, I think so do")
    third = agreed.take("Well: I THINK so do they all")
    assert second.stable == "well, I think"
    assert third.stable == "well, I think so do" and third.text == "well, I think so do they all"


def test_settled_words_stay_when_a_later_pass_says_otherwise() -> None:
    agreed = AgreedPrefix()
    agreed.take("send it to marry now please")
    agreed.take("send it to marry now please do")
    last = agreed.take("send it to Mary now please do it")
    assert last.stable == "send it to marry now please" and last.text == "send it to marry now please do it"
    assert agreed.take("send it to Mary now please do it today").stable == "send it to marry now please do it"


def test_a_word_that_vanishes_before_the_settled_ones_repeats_none_of_them() -> None:
    agreed = AgreedPrefix()
    agreed.take("um so I went to the market and")
    agreed.take("um so I went to the market and bought")
    assert (
        agreed.take("so I went to the market and bought some").text
        == "um so I went to the market and bought some"
    )


def test_what_repeats_itself_is_never_settled() -> None:
    loop = "I said " + "thank you very much " * 6
    assert "thank" not in stable_after(loop, loop, loop)
    assert stable_after("no no no no wait", "no no no no wait a minute") == "no no no no wait"
    assert stable_after("go " * 12, "go " * 14) == ""


def test_after_a_pass_that_is_not_believed_two_more_must_agree() -> None:
    agreed = AgreedPrefix()
    agreed.take("one two three")
    agreed.miss()
    assert agreed.take("one two three").stable == ""
    assert agreed.take("one two three").stable == "one two"


def test_a_tentative_pass_is_told_and_settles_nothing() -> None:
    agreed = AgreedPrefix()
    assert agreed.take("key arrow our", tentative=True).text == "key arrow our"
    assert agreed.take("key arrow our", tentative=True).stable == ""
    assert agreed.take("quiero hablar ahora").stable == ""
    assert agreed.take("quiero hablar ahora de").stable == "quiero hablar ahora"


def test_writing_without_blanks_is_settled_character_by_character() -> None:
    assert stable_after("今日は天気", "今日は天気がいい") == "今日は天気"
    assert stable_after("สวัสดี", "สวัสดีครับ") == "สวัสดี"


@given(st.lists(st.text("ab. ,Cé今 ", max_size=24), max_size=8))
@settings(max_examples=150, deadline=None)
def test_whatever_the_passes_hear_settled_text_only_grows(passes: list[str]) -> None:
    agreed, before = AgreedPrefix(), ""
    for heard in passes:
        partial = agreed.take(heard)
        assert partial.stable.startswith(before) and partial.text.startswith(partial.stable)
        before = partial.stable


def test_what_the_final_text_says_otherwise_is_counted_in_words() -> None:
    agreed = AgreedPrefix()
    agreed.take("a b c d e f")
    agreed.take("a b c d e f")
    assert agreed.changed("A, b. C d e f g") == (5, 0)
    assert agreed.changed("a b x d e f") == (5, 1)
    assert agreed.changed("a c d e f") == (5, 1)
    assert agreed.changed("") == (5, 5)
    assert AgreedPrefix().changed("a b") == (0, 0)


def test_the_rest_of_a_text_follows_the_words_told_or_there_is_none() -> None:
    assert rest_of("Hello, my", "Hello, my name is.") == " name is."
    assert rest_of("hello my", "Hello. My name") == " name"
    assert rest_of("hello my", "Hello my") == ""
    assert rest_of("hello your", "hello my name") is None
    assert rest_of("hello my name", "hello") is None


# ---------------------------------------------------------------- when, and where to cut


def test_partials_come_less_often_from_a_slow_recogniser_and_under_load() -> None:
    assert next_partial_s(0.4, 0.1, Rung.FULL) == 0.4
    assert next_partial_s(0.4, 0.5, Rung.FULL) == pytest.approx(1.0)
    assert next_partial_s(0.4, 0.1, Rung.FEWER_PARTIALS) == pytest.approx(1.2)


def test_speech_is_cut_in_the_middle_of_its_last_quietest_gap() -> None:
    speech = spell([*range(20)], gap_s=0.02)
    gap = int(0.1 * ASR_RATE_HZ)
    at = len(spell([*range(12)], gap_s=0.02))
    audio = np.concatenate([speech[:at], np.zeros(gap, np.int16), speech[at:]])
    cut = quiet_cut(audio, ASR_RATE_HZ, len(audio) - ASR_RATE_HZ)
    assert at < cut < at + gap
    assert quiet_cut(np.zeros(800, np.int16), 0, 800) == 400


@given(st.integers(0, 400), st.integers(0, 4000))
@settings(max_examples=40, deadline=None)
def test_a_cut_lies_where_it_may(first: int, more: int) -> None:
    audio = np.random.default_rng(more).integers(-9000, 9000, first + more + 10).astype(np.int16)
    assert first <= quiet_cut(audio, first, first + more) <= first + more


# ---------------------------------------------------------------- in a conversation


def test_the_first_partial_comes_within_0_7_s_of_speech_and_then_one_every_0_4_s() -> None:
    async def call() -> None:
        one = Speaker(Speller(delay_s=0.12))
        async with speaking(one):
            end = one.say(1.0, range(12))
            await one.to(end + 2.0)
        at = one.times(UserPartial)
        assert at[0] <= 1.7, at
        while_speaking = [t for t in at if t < end]
        assert len(while_speaking) >= 6 and all(b - a < 0.61 for a, b in pairwise(while_speaking))
        assert one.said == [text_of(range(12))]
        assert one.partials[-1].text == one.said[0]
        stable = [partial.stable for partial in one.partials]
        assert all(b.startswith(a) for a, b in pairwise(stable)) and "cut" not in stable[-1]
        assert one.partials[0].item_id == one.of(SpeechStarted)[0].item_id == one.of(UserSaid)[0].item_id
        counters = one.session.counters
        assert counters.committed_words >= 9 and counters.committed_words_changed == 0

    run_virtual(call())


@pytest.mark.parametrize("options", [TurnOptions(), TurnOptions(partials=True, mode="manual")])
def test_nobody_pays_for_partials_that_were_not_asked_for(options: TurnOptions) -> None:
    async def call() -> None:
        recogniser = Speller()
        one = Speaker(recogniser, options=options)
        async with speaking(one):
            end = one.say(1.0, range(9))
            await one.to(end + 1.0)
            if options.mode == "manual":
                one.session.commit()
            await one.to(end + 2.0)
        assert one.said == [text_of(range(9))] and not one.partials
        assert not recogniser.of(Priority.PARTIAL)

    run_virtual(call())


def test_a_slow_partial_is_waited_for_and_none_is_queued_behind_it() -> None:
    async def call() -> None:
        recogniser = Speller(delay_s=0.9)
        one = Speaker(recogniser)
        async with speaking(one):
            end = one.say(1.0, range(24))
            await one.to(end + 3.0)
        begun = [asked.at for asked in recogniser.of(Priority.PARTIAL)]
        assert recogniser.most_running == 1 and len(begun) >= 2
        assert all(b - a > 1.7 for a, b in pairwise(begun)), "it takes at most half of the recogniser"
        assert one.said == [text_of(range(24))]

    run_virtual(call())


def final_text_s(options: TurnOptions, delay_s: Callable[[Priority], float]) -> float:
    """From the end of speech to the final text."""

    async def call() -> float:
        recogniser = Speller(delay_s=delay_s)
        one = Speaker(recogniser, options=options)
        async with speaking(one):
            end = one.say(1.0, range(10))
            await one.to(end + 4.0)
        assert one.said == [text_of(range(10))]
        *_, final = recogniser.of(Priority.SPECULATIVE)
        return final.at

    return run_virtual(call())


def test_a_partial_that_hangs_at_the_pause_delays_the_final_text_by_nothing() -> None:
    def hangs(priority: Priority) -> float:
        return 1000.0 if priority is Priority.PARTIAL else 0.1

    assert final_text_s(PARTIALS, hangs) == final_text_s(TurnOptions(), hangs)


def test_partials_that_fail_or_are_not_believed_are_no_problem_and_settle_nothing() -> None:
    def rejected(transcript: Transcript, asked: Asked) -> Transcript:
        invented = Transcript("Thanks for watching!", rejected="invented")
        return invented if asked.priority is Priority.PARTIAL else transcript

    def broken(transcript: Transcript, asked: Asked) -> Transcript:
        return failing(transcript, asked) if asked.priority is Priority.PARTIAL else transcript

    async def call() -> None:
        for answer in (rejected, broken):
            recogniser = Speller(answer=answer)
            one = Speaker(recogniser)
            async with speaking(one):
                end = one.say(1.0, range(9))
                await one.to(end + 2.0)
            assert len(recogniser.of(Priority.PARTIAL)) >= 4
            assert {partial.stable for partial in one.partials} == {
                ""
            }  # of the final text, which none agreed with
            assert one.said == [text_of(range(9))] and not one.of(Problem)
            assert all(watch.trips == 0 for watch in one.stages.service.engines)

    run_virtual(call())


def test_words_settled_before_a_pause_stay_when_the_user_goes_on() -> None:
    async def call() -> None:
        one = Speaker(Speller())
        async with speaking(one):
            end = one.say(1.0, range(6))
            end = one.say(end + 0.4, range(6, 12))
            await one.to(end + 2.0)
        assert one.said == [text_of(range(12))]
        stable = [partial.stable for partial in one.partials]
        assert all(b.startswith(a) for a, b in pairwise(stable))
        assert len({partial.item_id for partial in one.partials}) == 1

    run_virtual(call())


def test_no_partial_begins_once_the_voice_is_off() -> None:
    async def call() -> None:
        recogniser = Speller(delay_s=0.05)
        one = Speaker(recogniser, options=TurnOptions(partials=True, pause_s=0.6, min_delay_s=0.7))
        async with speaking(one):
            end = one.say(1.0, range(6))
            start = asyncio.get_running_loop().time() - one.client.now_s
            await one.to(end + 2.0)
        assert recogniser.of(Priority.PARTIAL)
        assert max(asked.at - start for asked in recogniser.of(Priority.PARTIAL)) <= end + 0.1

    run_virtual(call())


# ---------------------------------------------------------------- long speech


@pytest.mark.parametrize("partials", [True, False])
def test_fifty_seconds_without_a_pause_lose_and_repeat_no_word(partials: bool) -> None:
    words = range(152)

    async def call() -> None:
        recogniser = Speller(delay_s=0.3)
        one = Speaker(recogniser, options=TurnOptions(partials=partials))
        async with speaking(one):
            end = one.say(1.0, words)
            assert end > 51.0
            await one.to(end + 2.0)
        assert one.said == [text_of(words)]
        assert max(asked.audio_s for asked in recogniser.asked) < 24.0
        assert bool(one.partials) is partials
        stable = [partial.stable for partial in one.partials]
        assert all(b.startswith(a) for a, b in pairwise(stable))
        assert one.session.counters.committed_words_changed == 0
        assert one.of(UserSaid)[0].audio_s == pytest.approx(end - 1.0 + 0.6, abs=0.1)

    run_virtual(call())


def test_where_the_beginning_can_not_be_settled_the_final_text_has_it_all() -> None:
    def broken(transcript: Transcript, asked: Asked) -> Transcript:
        return failing(transcript, asked) if asked.audio_s < 19.0 else transcript

    async def call() -> None:
        one = Speaker(Speller(answer=broken), options=TurnOptions())
        async with speaking(one):
            end = one.say(1.0, range(90))
            await one.to(end + 2.0)
        assert one.said == [text_of(range(90))] and not one.of(Problem)

    run_virtual(call())


# ---------------------------------------------------------------- many at once


def test_under_load_partials_are_the_first_to_go() -> None:
    async def partials_at(rung: Rung) -> int:
        recogniser, service = Speller(), Service()
        one = Speaker(recogniser, service=service)
        async with speaking(one):
            service.ladder.rung = rung
            end = one.say(1.0, range(14))
            await one.to(end + 2.0)
        assert one.said == [text_of(range(14))]
        return len(recogniser.of(Priority.PARTIAL)) + len(recogniser.of(Priority.SPECULATIVE)) - 1

    full, fewer, none = [
        run_virtual(partials_at(rung)) for rung in (Rung.FULL, Rung.FEWER_PARTIALS, Rung.NO_GUESSES)
    ]
    assert full >= 11 and 2 <= fewer <= full // 2 and none == 0


def test_sixteen_at_once_get_fewer_partials_and_all_of_their_own_words() -> None:
    callers, turns, length = 16, 2, 12

    def cost_s(run: object, args: tuple[object, ...]) -> float:
        """A small machine: an encoder pass for each utterance of a batch."""
        batch = args[0]
        assert isinstance(batch, list)
        return 0.03 + 0.06 * len(batch)

    async def call() -> tuple[Speller, list[Speaker]]:
        batcher: Batcher[Pcm16, str] = Batcher(
            read_all, name="speller", executor=VirtualExecutor(cost_s, threads=1), max_batch=4
        )
        recogniser, service = Speller(batcher=batcher), Service()
        everyone = [Speaker(recogniser, service=service, session_id=f"s{i}") for i in range(callers)]
        async with speaking(*everyone):
            for i, one in enumerate(everyone):
                at_s = 1.0 + 0.13 * i
                for turn in range(turns):
                    at_s = one.say(at_s, words_of(i, turn)) + 3.0
            await asyncio.gather(*(one.to(18.0) for one in everyone))
        return recogniser, everyone

    def words_of(i: int, turn: int) -> range:
        first = (i * turns + turn) * length
        return range(first, first + length)

    recogniser, everyone = run_virtual(call())
    for i, one in enumerate(everyone):
        assert one.said == [text_of(words_of(i, turn)) for turn in range(turns)], (
            "its own, whole and in order"
        )
        heard = {word.lstrip("cutw") for partial in one.partials for word in partial.text.split()}
        assert heard == {str(word) for turn in range(turns) for word in words_of(i, turn)}
        assert one.session.counters.committed_words_changed == 0
    took_s = recogniser.took_s
    partials, finals = took_s[Priority.PARTIAL], took_s[Priority.SPECULATIVE] + took_s[Priority.COMMITTED]
    wanted = callers * turns * int(length * PERIOD_S / 0.4)
    assert 0.1 * wanted < len(partials) < 0.75 * wanted, (len(partials), wanted)
    assert callers * turns <= len(finals) <= 1.5 * callers * turns, "few begin when the voice falls silent"
    assert max(finals) <= 3 * cost_s(None, ([0] * 4,)), "behind the call that runs, and calls of other finals"


def test_a_recogniser_for_which_others_wait_is_asked_for_no_partial() -> None:
    async def call() -> None:
        batcher: Batcher[Pcm16, str] = Batcher(
            read_all, name="speller", executor=VirtualExecutor(2.5, threads=1), max_batch=1
        )
        recogniser = Speller(batcher=batcher)
        one = Speaker(recogniser)
        other = Scope("session")
        waiting = [other.run(batcher.submit(spell([1]), other), "another") for _ in range(3)]
        async with speaking(one):
            end = one.say(1.0, range(9))
            await one.to(end)
            assert not recogniser.of(Priority.PARTIAL)
            await asyncio.gather(*waiting)
            await one.to(end + 30.0)
        assert one.said == [text_of(range(9))]

    run_virtual(call())

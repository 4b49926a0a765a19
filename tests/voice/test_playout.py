"""Playout: only the current answer is heard, silence is immediate, the ear is never thought ahead of itself."""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np
import pytest

from voice.errors import ScopeCancelled
from voice.interfaces import Capabilities, Pcm16, SpokenWord
from voice.playout import Mark, Playout, Track, heard_text, voiced_samples
from voice.scope import Reason, Scope
from voice.spoken import Segment, SpeechText
from voice.testing import run_virtual

RATE = 24_000
PULL = Capabilities("can_pause", RATE)
PUSH = Capabilities("flush_only", RATE)


def sound(seconds: float, value: int = 1000) -> Pcm16:
    return np.full(round(seconds * RATE), value, np.int16)


def segments(text: str) -> list[Segment]:
    reader = SpeechText("en")
    return [*reader.feed(text), *reader.finish()]


def one_segment(text: str) -> Segment:
    (segment,) = segments(text)
    return segment


def new_track(name: str = "r1", bound_s: float = 10.0) -> Track:
    return Track(name, Scope("response"), RATE, bound_s)


class Listener:
    """A playout, and what it told."""

    def __init__(self, capabilities: Capabilities = PULL) -> None:
        self.audible: list[str] = []
        self.drained: list[str] = []
        self.playout = Playout(
            capabilities,
            lambda track: self.audible.append(track.response_id),
            lambda track: self.drained.append(track.response_id),
        )

    async def play(self, seconds: float, text: str = "one two three four five") -> Track:
        """An answer of which all audio is made."""
        track = new_track()
        await track.put(sound(seconds), track.begin(one_segment(text)), round(seconds * RATE))
        track.finish()
        self.playout.play(track)
        return track

    def read(self, seconds: float) -> Pcm16:
        return self.playout.read(round(seconds * RATE))

    @property
    def position_s(self) -> float:
        return self.playout.position(asyncio.get_running_loop().time()) / RATE


# ---------------------------------------------------------------- the track


def test_audio_is_read_in_the_order_it_was_made_and_no_sample_is_lost() -> None:
    async def main() -> None:
        track = new_track()
        mark = track.begin(one_segment("one two three"))
        made = np.arange(10_000, dtype=np.int16)
        for start in range(0, 10_000, 700):
            await track.put(made[start : start + 700], mark, 700)
        read: list[Pcm16] = []
        while (piece := track.read(333)).size:
            assert piece.size <= 333
            read.append(piece)
        assert np.array_equal(np.concatenate(read), made)
        assert (track.made, track.taken, track.queued_s) == (10_000, 10_000, 0.0)

    run_virtual(main())


def test_a_full_track_holds_its_maker_back_until_the_ear_took_some() -> None:
    async def main() -> None:
        track = new_track(bound_s=1.0)
        mark = track.begin(one_segment("one"))

        async def make() -> None:
            for _ in range(30):
                await track.put(sound(0.1), mark, 1)

        task = asyncio.create_task(make())
        await asyncio.sleep(5.0)
        assert not task.done()
        assert track.queued_s == pytest.approx(1.0)
        for _ in range(20):
            track.read(round(0.1 * RATE))
            await asyncio.sleep(0)
            assert track.queued_s <= 1.0 + 1e-9
        await task
        assert track.waited_s == pytest.approx(5.0)

    run_virtual(main())


def test_a_maker_that_waits_for_room_is_told_when_the_answer_is_cut() -> None:
    async def main() -> None:
        track = new_track(bound_s=1.0)
        track.scope.on_cancel(lambda _: track.drop())
        mark = track.begin(one_segment("one"))
        await track.put(sound(1.0), mark, 1)
        task = asyncio.create_task(track.put(sound(1.0), mark, 1))
        await asyncio.sleep(0)
        track.scope.cancel(Reason.BARGE_IN)
        with pytest.raises(ScopeCancelled):
            await task
        assert track.read(RATE).size == 0

    run_virtual(main())


def test_audio_that_comes_after_the_cut_is_refused() -> None:
    async def main() -> None:
        track = new_track()
        track.scope.cancel(Reason.BARGE_IN)
        with pytest.raises(ScopeCancelled):
            await track.put(sound(1.0), track.begin(one_segment("one")), 1)
        assert track.made == 0

    run_virtual(main())


# ---------------------------------------------------------------- what is heard


def test_a_track_behind_the_gate_fills_and_is_not_heard_before_play() -> None:
    async def main() -> None:
        listener = Listener()
        track = new_track()
        await track.put(sound(1.0), track.begin(one_segment("one")), RATE)
        assert listener.read(1.0).size == 0
        listener.playout.play(track)
        assert listener.read(1.0).size == RATE
        assert listener.audible == ["r1"]

    run_virtual(main())


def test_another_answers_audio_is_never_heard_however_late_it_comes() -> None:
    async def main() -> None:
        listener = Listener()
        old = await listener.play(1.0)
        listener.read(0.1)
        new = new_track("r2")
        await new.put(sound(0.5, 7), new.begin(one_segment("new")), 1)
        listener.playout.play(new)
        await old.put(sound(1.0), old.begin(one_segment("late")), 1)
        assert set(listener.read(2.0).tolist()) == {7}
        assert listener.read(1.0).size == 0

    run_virtual(main())


def test_a_held_answer_fades_within_5_ms_and_goes_on_at_the_very_sample_where_it_fell_silent() -> None:
    async def main() -> None:
        listener = Listener()
        track = new_track()
        made = np.full(4_000, 10_000, np.int16)
        made[::2] = 9_999  # a sample is known by its place
        await track.put(made, track.begin(one_segment("one")), 4_000)
        listener.playout.play(track)
        read, ramp = listener.playout.read, RATE // 200
        before = read(777)
        listener.playout.hold()
        fade = read(777)
        assert fade.size == ramp and read(777).size == 0
        listener.playout.hold()  # once more changes nothing
        assert read(777).size == 0
        listener.playout.release()
        after = read(9_999)
        assert before.size + fade.size + after.size == made.size == track.taken
        assert np.all(np.diff(fade.astype(int)) < 2) and abs(int(fade[-1])) < 100
        assert np.all(np.diff(after[:ramp].astype(int)) > -2) and after[0] == 0
        assert np.array_equal(after[ramp:], made[777 + 2 * ramp :])

    run_virtual(main())


def test_an_answer_held_before_it_was_audible_begins_without_a_scrap_of_it() -> None:
    async def main() -> None:
        listener = Listener()
        track = new_track()
        await track.put(sound(0.5), track.begin(one_segment("one")), 1)
        listener.playout.play(track)
        listener.playout.hold()
        assert listener.playout.read(777).size == 0

    run_virtual(main())


def test_a_new_answer_is_heard_although_the_old_one_was_held() -> None:
    async def main() -> None:
        listener = Listener()
        await listener.play(1.0)
        listener.playout.hold()
        listener.playout.drop()
        await listener.play(1.0)
        assert listener.read(0.1).size == RATE // 10

    run_virtual(main())


def test_the_end_is_told_once_and_only_when_all_audio_has_left() -> None:
    async def main() -> None:
        listener = Listener()
        await listener.play(0.5)
        listener.read(0.4)
        assert listener.drained == []
        listener.read(0.4)
        listener.read(0.4)
        assert listener.drained == ["r1"]

    run_virtual(main())


def test_an_answer_without_sound_ends_as_soon_as_it_is_played() -> None:
    async def main() -> None:
        listener = Listener()
        track = new_track()
        track.finish()
        listener.playout.play(track)
        assert (listener.drained, listener.audible) == (["r1"], [])

    run_virtual(main())


# ---------------------------------------------------------------- where the ear is


def test_a_pulling_ear_has_heard_what_it_took() -> None:
    async def main() -> None:
        listener = Listener()
        await listener.play(2.0)
        assert listener.position_s == 0
        listener.read(0.7)
        await asyncio.sleep(3.0)
        assert listener.position_s == pytest.approx(0.7)
        dropped = listener.playout.drop()
        assert dropped is not None
        assert dropped[1] == round(0.7 * RATE)
        assert listener.playout.drop() is None

    run_virtual(main())


def test_a_device_delay_is_taken_off_until_it_has_passed() -> None:
    async def main() -> None:
        listener = Listener(Capabilities("can_pause", RATE, delay_s=0.1))
        await listener.play(2.0)
        listener.read(0.5)
        assert listener.position_s == pytest.approx(0.4, abs=0.001)
        await asyncio.sleep(0.05)
        assert listener.position_s == pytest.approx(0.45, abs=0.001)
        await asyncio.sleep(1.0)
        assert listener.position_s == pytest.approx(0.5)

    run_virtual(main())


def test_a_pushed_answer_is_heard_at_the_pace_of_the_clock() -> None:
    async def main() -> None:
        listener = Listener(PUSH)
        await listener.play(2.0)
        await asyncio.sleep(1.0)  # nothing was sent yet
        listener.read(0.4)
        assert listener.position_s == 0
        await asyncio.sleep(0.25)
        assert listener.position_s == pytest.approx(0.25)
        assert listener.playout.ahead_s(asyncio.get_running_loop().time()) == pytest.approx(0.15)
        await asyncio.sleep(5.0)
        assert listener.position_s == pytest.approx(0.4)

    run_virtual(main())


def test_time_in_which_a_pushed_ear_had_nothing_to_play_does_not_count_as_heard() -> None:
    async def main() -> None:
        listener = Listener(PUSH)
        await listener.play(2.0)
        listener.read(0.4)
        await asyncio.sleep(3.0)
        listener.read(0.4)
        assert listener.position_s == pytest.approx(0.4)
        await asyncio.sleep(0.1)
        assert listener.position_s == pytest.approx(0.5)

    run_virtual(main())


def test_a_reported_position_is_clamped_to_what_was_sent_and_to_the_time_that_passed() -> None:
    async def main() -> None:
        listener = Listener(Capabilities("flush_only", RATE, reports_position=True))
        await listener.play(5.0)
        listener.read(1.0)
        await asyncio.sleep(0.5)
        listener.playout.report("r1", 100 * RATE)
        assert listener.position_s <= 0.5 + 0.05  # a client's clock may be a little ahead, not its ear
        await asyncio.sleep(5.0)
        listener.playout.report("r1", 100 * RATE)
        assert listener.position_s == pytest.approx(1.0)

    run_virtual(main())


def test_a_reported_position_is_trusted_when_it_lags_and_never_goes_back() -> None:
    async def main() -> None:
        listener = Listener(Capabilities("flush_only", RATE, reports_position=True))
        await listener.play(5.0)
        listener.read(2.0)
        await asyncio.sleep(2.0)
        listener.playout.report("r1", RATE)
        assert listener.position_s == pytest.approx(1.0)
        listener.playout.report("r1", RATE // 2)
        listener.playout.report("r0", 2 * RATE)
        assert listener.position_s == pytest.approx(1.0)

    run_virtual(main())


@pytest.mark.parametrize("playout", ["can_pause", "flush_only"])
def test_the_position_never_goes_back_and_never_passes_what_was_taken(
    playout: Literal["can_pause", "flush_only"],
) -> None:
    seed = 5

    async def main() -> None:
        rng = np.random.default_rng(seed)
        listener = Listener(Capabilities(playout, RATE, delay_s=0.03))
        track = await listener.play(20.0)
        last = 0.0
        for _ in range(300):
            if rng.random() < 0.5:
                listener.read(float(rng.choice([0.02, 0.04, 0.2])))
            await asyncio.sleep(float(rng.choice([0.0, 0.01, 0.1, 0.3])))
            position = listener.position_s
            assert position <= track.taken / RATE, f"seed {seed}"
            assert position >= last - 0.031, (
                f"seed {seed}"
            )  # a new frame's own delay may take back what it added
            last = position

    run_virtual(main(), seed=seed)


# ---------------------------------------------------------------- position → text


def mark_of(text: str, seconds: float, words: tuple[SpokenWord, ...] = ()) -> Mark:
    samples = round(seconds * RATE)
    return Mark(one_segment(text), 0, samples, samples, words)


def test_without_word_times_the_text_is_cut_in_proportion_at_word_ends() -> None:
    mark = mark_of("one two three four five six.", 2.8)
    whole = mark.segment.written
    cuts = {mark.written_at(round(at * RATE / 100), RATE) for at in range(281)}
    assert "" in cuts and whole in cuts
    assert {c.rstrip() for c in cuts} == {
        "",
        "one",
        "one two",
        "one two three",
        "one two three four",
        "one two three four five",
        "one two three four five six.",
    }


def test_word_times_put_the_cut_where_the_words_are() -> None:
    slow_first = (SpokenWord("one", 0.0, 2.0), SpokenWord("two", 2.0, 2.5), SpokenWord("three", 2.5, 3.0))
    mark = mark_of("one two three", 3.0, slow_first)
    assert mark.written_at(round(0.5 * RATE), RATE) == ""
    assert mark.written_at(round(2.0 * RATE), RATE).strip() == "one"
    assert mark.written_at(round(2.45 * RATE), RATE).strip() == "one two"


def test_a_number_is_heard_whole_or_not_at_all() -> None:
    mark = mark_of("It costs $49.95 today.", 3.0)
    for at in range(301):
        heard = mark.written_at(round(at * RATE / 100), RATE)
        assert "$49.95" in heard or "$" not in heard, heard


def test_silence_after_the_last_word_is_not_needed_to_have_heard_it() -> None:
    async def main() -> None:
        track = new_track()
        mark = track.begin(one_segment("one two"))
        await track.put(np.concatenate([sound(0.4), np.zeros(RATE, np.int16)]), mark, round(0.4 * RATE))
        assert heard_text(track.written_at(round(0.4 * RATE))) == mark.segment.written

    run_virtual(main())


def test_a_position_beyond_what_was_made_is_the_end_of_what_was_made() -> None:
    async def main() -> None:
        track = new_track()
        first, second = segments("One two three four five. Six seven eight nine ten.")
        await track.put(sound(1.0), track.begin(first), RATE)
        track.begin(second).partial = True  # nothing of it is made yet
        assert heard_text(track.written_at(100 * RATE)).rstrip() == first.written.rstrip()

    run_virtual(main())


def test_a_sentence_that_is_half_made_is_not_taken_for_heard() -> None:
    async def main() -> None:
        track = new_track()
        first, second = segments("one two three four five. six seven eight nine ten eleven.")
        await track.put(sound(1.0), track.begin(first), RATE)
        track.pace.learn(len(first.spoken), 1.0)
        mark = track.begin(second)
        mark.partial = True
        await track.put(sound(0.4), mark, round(0.4 * RATE))  # two words of six
        heard = heard_text(track.written_at(2 * RATE)).split()
        assert heard[:5] == ["one", "two", "three", "four", "five."]
        assert 6 <= len(heard) <= 8

    run_virtual(main())


def test_text_without_sound_is_heard_with_what_came_before_it_and_not_alone() -> None:
    async def main() -> None:
        silent = Segment("", "```code```")
        track = new_track()
        track.begin(silent)
        await track.put(sound(0.4), track.begin(one_segment("one two")), round(0.4 * RATE))
        track.begin(silent)
        assert heard_text(track.written_at(0)) == ""
        assert heard_text(track.written_at(round(0.01 * RATE))) == "```code```"
        assert heard_text(track.written_at(round(0.4 * RATE))) == "```code```one two```code```"

    run_virtual(main())


def test_leading_silence_that_was_left_out_does_not_shift_the_words() -> None:
    times = (SpokenWord("one", 0.5, 0.7), SpokenWord("two", 0.7, 0.9))
    mark = mark_of("one two", 0.4, times)
    mark.trimmed = round(0.5 * RATE)
    assert mark.written_at(round(0.25 * RATE), RATE).strip() == "one"


def test_the_end_of_sound_is_found_in_blocks_of_ten_milliseconds() -> None:
    quiet = np.full(RATE // 2, 20, np.int16)
    assert voiced_samples(np.concatenate([sound(0.25), quiet]), RATE) == round(0.25 * RATE)
    assert voiced_samples(quiet, RATE) == 0
    assert voiced_samples(sound(0.123), RATE) == round(0.123 * RATE)
    assert voiced_samples(np.zeros(0, np.int16), RATE) == 0

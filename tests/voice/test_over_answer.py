"""TurnTaker when a sound comes over the answer: hold it, let it go on, ask for words, interrupt, drop the sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from turn_situations import (
    OPTIONS,
    TEXT,
    TO_ASKED,
    TO_BESIDE,
    TO_HELD,
    TO_JUDGING,
    TO_SPEAKING,
    taker_after,
)

from voice.interruption import Interruptions, Sound, Verdict, default_policies
from voice.options import TurnOptions
from voice.scope import Reason
from voice.turn_events import (
    NOTHING_AROUND,
    Around,
    CloseEmpty,
    Commit,
    Decision,
    Finished,
    Guess,
    Heard,
    Hold,
    Interrupt,
    OpenTurn,
    Recognise,
    Release,
    SpeechBegan,
    SpeechPaused,
    Tick,
)
from voice.turns import State, TurnTaker

BARGED = [Interrupt(Reason.BARGE_IN), OpenTurn(2)]
FAINT = Around(over_noise_db=2.0)
OWN = Around(agent_text="own", echoes=True)
LOUDSPEAKER = Around(echoes=True, agent_text="your order will arrive")


class Knows:
    """A policy that is told, and says so while the sound goes on."""

    name = "knows"

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        return Verdict.IGNORE if sound.agent_text == "own" else None


TOLD = Interruptions([Knows(), *default_policies()])


def goes_on(
    taker: TurnTaker,
    seconds: float,
    words: Callable[[float], str] | None = None,
    around: Around = NOTHING_AROUND,
    asr_s: float = 0.2,
) -> list[tuple[float, Decision]]:
    """A sound that began at 3.0 goes on; its words, when asked for, are what ``words`` says of its length."""
    done: list[tuple[float, Decision]] = []
    pending: list[tuple[float, Recognise, str]] = []
    for _ in range(1000):
        wake = taker.wake_at
        nexts = [at for at in (wake, *(at for at, _, _ in pending)) if at is not None]
        now = min(nexts, default=99.0)
        if now > 3.0 + seconds or not taker.response_live:
            return done
        if pending and pending[0][0] == now:
            _, asked, text = pending.pop(0)
            decisions = taker.feed(Heard(now, asked.turn, asked.revision, text, around))
        else:
            decisions = taker.feed(Tick(now, now, around))
        for decision in decisions:
            done.append((round(now, 3), decision))
            if isinstance(decision, Recognise) and words is not None:
                pending.append((now + asr_s, decision, words(now - 3.0)))
    raise AssertionError("a busy loop")


# ---------------------------------------------------------------- how long, which words


def test_speech_whose_words_do_not_come_interrupts_once_it_is_long_enough() -> None:
    taker = taker_after(TO_HELD)
    assert goes_on(taker, 9.0) == [
        (3.5, Recognise(2, 0, probe=True, so_far=True)),
        *((4.2, decision) for decision in BARGED),
    ]


def test_words_are_asked_for_while_the_sound_goes_on_and_interrupt_as_soon_as_there_are_enough() -> None:
    taker = taker_after(TO_HELD)
    assert goes_on(taker, 9.0, lambda s: "I" if s < 0.9 else "I would like") == [
        (3.5, Recognise(2, 0, probe=True, so_far=True)),
        (4.0, Recognise(2, 0, probe=True, so_far=True)),
        *((4.2, decision) for decision in BARGED),
    ]


def test_words_that_took_long_to_come_are_asked_for_again_at_once() -> None:
    taker = taker_after(TO_HELD)
    done = goes_on(taker, 1.2, lambda s: "I", asr_s=0.6)
    assert [at for at, _ in done] == [3.5, 4.132]  # a look after they came at 4.1


def test_one_demand_is_enough() -> None:
    taker = taker_after(TO_ASKED)
    assert taker.feed(Heard(3.7, 2, 0, "Stop.")) == BARGED
    assert taker.state is State.USER_SPEAKING
    assert taker.feed(SpeechPaused(4.2, 4.0)) == [Recognise(2, 0)]
    assert taker.feed(Heard(4.3, 2, 0, "Stop it.")) == [Guess(2, 0, "Stop it.")]


def test_late_words_of_a_sound_that_has_become_a_turn_are_not_its_words() -> None:
    taker = taker_after([*TO_ASKED, Tick(4.2, voiced_until=4.2)])
    assert taker.state is State.USER_SPEAKING
    assert taker.feed(Heard(4.3, 2, 0, "Well")) == []


def test_a_nod_that_goes_on_is_asked_about_and_let_pass_when_it_ends() -> None:
    taker = taker_after([*TO_ASKED, Heard(3.7, 2, 0, "Yeah,")])
    assert taker.state is State.HELD
    assert taker.feed(SpeechPaused(4.0, 3.8)) == [Recognise(2, 0, probe=True)]
    assert taker.feed(Heard(4.1, 2, 0, "Yeah, right.")) == [CloseEmpty(2, announced=False), Release()]


def test_a_nod_that_answers_the_agent_s_question_is_a_turn() -> None:
    asked = Around(asked=True)
    taker = taker_after(TO_JUDGING)
    assert taker.feed(Heard(3.5, 2, 0, "Yeah.", asked)) == [*BARGED, Guess(2, 0, "Yeah.")]


def test_a_second_short_sound_is_judged_together_with_the_first() -> None:
    taker = taker_after([*TO_HELD, SpeechPaused(3.4, 3.2), SpeechBegan(3.42, 3.4)])
    assert taker.feed(Heard(3.43, 2, 0, "mm")) == []
    assert taker.feed(SpeechPaused(3.7, 3.5)) == [Recognise(2, 1, probe=True)]
    assert taker.feed(Heard(3.8, 2, 1, "")) == [CloseEmpty(2, announced=False), Release()]


def test_the_number_of_a_false_alarm_is_not_used_again() -> None:
    taker = taker_after([*TO_JUDGING, Heard(3.5, 2, 0, "")])
    taker.feed(SpeechBegan(5.1, 5.0))
    assert taker.feed(Heard(5.15, 2, 0, "late words")) == []
    assert taker.feed(SpeechPaused(5.4, 5.2)) == [Recognise(3, 0, probe=True)]


def test_a_click_is_over_with_its_pause() -> None:
    taker = taker_after(TO_HELD)
    assert taker.feed(SpeechPaused(3.25, 3.05)) == [CloseEmpty(2, announced=False), Release()]
    assert taker.wake_at is None


# ---------------------------------------------------------------- no hold without a way out


@pytest.mark.parametrize("words", ["", "Yeah.", "the"])
@pytest.mark.parametrize("playout", ["can_pause", "flush_only"])
def test_a_sound_that_never_ends_does_not_silence_the_agent_for_ever(
    playout: Literal["can_pause", "flush_only"], words: str
) -> None:
    taker = taker_after(TO_HELD, playout)
    done = goes_on(taker, 60.0, lambda _: words)
    assert [d for _, d in done[-2:]] == BARGED
    assert done[-1][0] <= 3.0 + OPTIONS.wordless_after_s


@pytest.mark.parametrize("playout", ["can_pause", "flush_only"])
def test_audio_that_stops_coming_in_mid_sound_does_not_silence_the_agent_for_ever(
    playout: Literal["can_pause", "flush_only"],
) -> None:
    taker = taker_after(TO_HELD, playout)
    decisions: list[Decision] = []
    for _ in range(500):  # the microphone was muted: no pause edge, and the voice ended at 3.1
        if taker.wake_at is None:
            break
        decisions += taker.feed(Tick(taker.wake_at, voiced_until=3.1))
    assert [type(d) for d in decisions if isinstance(d, Release | Interrupt)] == [Release]
    assert taker.state is State.SPEAKING
    assert taker.wake_at is None


class NeverSure:
    """A policy that waits, whatever comes."""

    name = "never sure"

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        return Verdict.WAIT


def test_policies_that_only_wait_are_not_waited_for_for_ever() -> None:
    def held() -> TurnTaker:
        taker = TurnTaker(OPTIONS, interruptions=Interruptions([NeverSure()]))
        taker.listen(0.0)
        for event in TO_HELD:
            taker.feed(event)
        assert taker.state is State.HELD
        return taker

    taker = held()
    assert [d for _, d in goes_on(taker, 60.0)][-2:] == BARGED
    taker = held()
    taker.feed(SpeechPaused(3.4, 3.2))
    assert taker.feed(Heard(3.9, 2, 0, TEXT)) == []
    done: list[Decision] = []
    for _ in range(100):
        if taker.wake_at is not None:
            done += taker.feed(Tick(taker.wake_at, voiced_until=3.2))
    assert done == [CloseEmpty(2, announced=False), Release()]


def test_turn_detection_switched_off_in_mid_sound_does_not_leave_the_agent_silenced() -> None:
    taker = taker_after(TO_HELD)
    taker.configure(replace(OPTIONS, mode="manual"))
    assert taker.feed(SpeechPaused(3.4, 3.2)) == [Recognise(2, 0, probe=True)]
    assert taker.feed(Heard(3.5, 2, 0, "")) == [CloseEmpty(2, announced=False), Release()]


def test_interruption_switched_off_in_mid_sound_makes_it_a_turn_beside_the_answer() -> None:
    taker = taker_after(TO_HELD)
    taker.configure(replace(OPTIONS, interrupt=False))
    assert taker.feed(Tick(3.3, voiced_until=3.3)) == [OpenTurn(2), Release()]
    assert taker.feed(SpeechPaused(3.6, 3.4)) == [Recognise(2, 0)]
    assert taker.feed(Heard(4.0, 2, 0, TEXT)) == [Commit(2, 0, TEXT, respond=False)]


# ---------------------------------------------------------------- faint sounds, the agent's own voice


def test_a_voice_in_the_next_room_neither_holds_nor_costs_a_recognition() -> None:
    taker = taker_after([*TO_SPEAKING])
    assert taker.feed(SpeechBegan(3.1, 3.0, FAINT)) == []
    assert goes_on(taker, 30.0, around=FAINT) == []
    assert taker.feed(SpeechPaused(33.2, 33.0, FAINT)) == [CloseEmpty(2, announced=False)]


def test_a_sound_that_turns_out_faint_lets_the_answer_go_on_before_long() -> None:
    taker = taker_after(TO_HELD)
    assert goes_on(taker, 30.0, around=FAINT) == [(3.0 + OPTIONS.wordless_after_s, Release())]
    assert taker.state is State.SPEAKING


def test_what_a_policy_ignores_while_it_goes_on_does_not_hold_and_what_was_held_for_it_goes_on() -> None:
    taker = taker_after(TO_SPEAKING, interruptions=TOLD)
    assert taker.feed(SpeechBegan(3.1, 3.0, OWN)) == []
    assert taker.feed(SpeechPaused(3.6, 3.4, OWN)) == [CloseEmpty(2, announced=False)]
    taker = taker_after(TO_HELD, interruptions=TOLD)
    assert taker.feed(Tick(3.2, 3.2, OWN)) == [Release()]
    assert taker.state is State.SPEAKING
    assert taker.feed(Tick(3.4, 3.4)) == [Hold()]  # the user's own voice came to it


def test_with_a_loudspeaker_only_a_sound_longer_than_what_is_left_of_an_echo_holds() -> None:
    taker = taker_after(TO_SPEAKING)
    assert taker.feed(SpeechBegan(3.1, 3.0, LOUDSPEAKER)) == []
    assert goes_on(taker, 0.3, around=LOUDSPEAKER) == [(3.132, Hold())]  # 0.13 s, at the next window


def test_with_a_loudspeaker_the_agent_s_words_are_not_the_user_s() -> None:
    taker = taker_after(
        [*TO_SPEAKING, SpeechBegan(3.2, 3.0, LOUDSPEAKER), SpeechPaused(3.6, 3.4, LOUDSPEAKER)]
    )
    assert taker.feed(Heard(3.7, 2, 0, "your order will", LOUDSPEAKER)) == [
        CloseEmpty(2, announced=False),
        Release(),
    ]


# ---------------------------------------------------------------- at the end of the answer


@pytest.mark.parametrize(
    ("asked", "decisions"),
    [
        ("That is all.", [CloseEmpty(2, announced=True)]),
        ("Is that all?", [Commit(2, 0, "Yeah.")]),
    ],
)
def test_a_nod_at_the_end_of_an_answer_asks_for_nothing_unless_the_agent_asked(
    asked: str, decisions: list[Decision]
) -> None:
    taker = taker_after(TO_JUDGING)
    taker.certainty.agent_said = asked
    assert taker.feed(Finished(3.5)) == [OpenTurn(2)]
    assert taker.feed(Heard(3.8, 2, 0, "Yeah.")) == decisions


def test_a_nod_beside_an_answer_that_goes_on_asks_for_nothing() -> None:
    taker = taker_after([*TO_BESIDE, SpeechPaused(2.2, 2.0)])
    taker.certainty.agent_said = "Is that all?"  # that was the answer before
    assert taker.feed(Heard(2.6, 1, 0, "Yeah.")) == [CloseEmpty(1, announced=True)]
    assert taker.feed(Finished(3.0)) == []


# ---------------------------------------------------------------- a transport that can only flush


def test_a_flushing_transport_holds_at_most_hold_s_while_the_voice_goes_on() -> None:
    taker = taker_after(TO_HELD, "flush_only")
    assert goes_on(taker, 9.0) == [(3.35, decision) for decision in BARGED]
    assert taker.state is State.USER_SPEAKING


def test_a_flushing_transport_goes_on_after_hold_s_when_the_voice_has_stopped() -> None:
    taker = taker_after(TO_HELD, "flush_only")
    assert taker.feed(Tick(3.35, voiced_until=3.2)) == [Release()]
    assert taker.state is State.SPEAKING
    assert taker.feed(SpeechPaused(3.45, 3.2)) == [Recognise(2, 0, probe=True)]
    assert taker.feed(Heard(3.5, 2, 0, "Stop.")) == [*BARGED, Guess(2, 0, "Stop.")]


def test_a_flushing_transport_does_not_hold_twice_for_one_sound() -> None:
    taker = taker_after([*TO_HELD, Tick(3.35, voiced_until=3.2), SpeechPaused(3.45, 3.2)], "flush_only")
    assert taker.feed(SpeechBegan(3.5, 3.45)) == [Recognise(2, 1, probe=True, so_far=True)]
    assert taker.state is State.SPEAKING


def test_a_flushing_transport_with_no_hold_decides_at_the_edge() -> None:
    taker = taker_after(TO_SPEAKING, "flush_only", replace(OPTIONS, hold_s=0.0))
    assert taker.feed(SpeechBegan(3.1, 3.0)) == BARGED


def test_a_flushing_transport_is_not_held_by_what_a_policy_ignores() -> None:
    taker = taker_after(TO_HELD, "flush_only", interruptions=TOLD)
    assert taker.feed(Tick(3.2, 3.2, OWN)) == [Release()]
    assert goes_on(taker, 9.0, around=OWN) == []
    assert taker.state is State.SPEAKING

"""Faults that an attack on the turn-taking found: policies and meters that break their contract, options that change in
mid sound, languages without spaces, handles used from callbacks. None may take the conversation's way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from conversation import KINDS, Conversation, Kind, words

from voice.endpointing import Evidence, TurnEnd, default_policies
from voice.errors import BadRequest, Overloaded
from voice.events import AudioStopped, ResponseEnded, SessionEvent, SpeechStopped, UserSaid
from voice.interfaces import Pcm16
from voice.interruption import Interruptions, Sound, Verdict
from voice.interruption import default_policies as default_interruptions
from voice.options import TurnOptions
from voice.saying import Saying
from voice.scope import Scope
from voice.speculation import GuessBudget
from voice.testing import Fail, ScriptedDetector, ScriptedModel, ScriptedRecogniser, run_virtual

both_kinds = pytest.mark.parametrize("kind", KINDS)


# ---------------------------------------------------------------- policies and meters of the owner's


class Scores:
    """A policy for the end of a turn that does as it is told."""

    name = "mine"

    def __init__(self, score: Callable[[], float]) -> None:
        self._score = score

    def score(self, evidence: Evidence) -> float:
        return self._score()


class Judges:
    """A policy for a sound over the answer that does as it is told."""

    name = "mine"

    def __init__(self, judge: Callable[[], Verdict | None]) -> None:
        self._judge = judge

    def judge(self, sound: Sound, options: TurnOptions) -> Verdict | None:
        return self._judge()


def _raises() -> NoReturn:
    raise ZeroDivisionError


# Before: the exception leaves TurnTaker.feed in a task or a timer, nothing is planned any more
# (Session._feed skips _after/_rearm), and the turn stays in MAYBE_DONE for ever: the caller is never
# answered.
def test_a_policy_that_raises_does_not_leave_the_turn_open_for_ever() -> None:
    async def call() -> None:
        async with Conversation(turn_end=TurnEnd([*default_policies(), Scores(_raises)])) as c:
            c.say(0.5, 1.0)
            await c.to(8.0)
            assert c.user_texts == ["Hello there."]
            assert c.session.is_quiet()

    run_virtual(call(), strict=False)


# Before: max(nan, least) is nan, min(nan, most) is nan, and `now < nan` is false: the turn is certain at
# once, long before min_delay_s (here 0.19 s after the last word), whatever all other policies say.
def test_a_policy_that_scores_no_number_does_not_cut_the_caller_off() -> None:
    options = TurnOptions()
    ends = TurnEnd([*default_policies(), Scores(lambda: math.nan)])
    delay_s = ends.delay_s(Evidence(text="My number is five and"), options)
    assert options.min_delay_s <= delay_s <= options.max_delay_s


# WRONG (since the repair of the fault above): a policy that is certain (plus or minus inf) has no opinion. It used to
# wait for max_delay_s, or min_delay_s: "never before the longest delay" is said that way. Only NaN is no number.
@pytest.mark.parametrize("certain", [1.0, -1.0])
def test_a_policy_that_is_certain_is_believed(certain: float) -> None:
    options = TurnOptions()
    ends = TurnEnd([*default_policies(), Scores(lambda: certain * math.inf)])
    wanted_s = options.min_delay_s if certain > 0 else options.max_delay_s
    assert ends.delay_s(Evidence(text="My number is five"), options) == wanted_s


# Before: the same by a turn model whose answer is NaN: TurnModelSays passes it on (the first look, at 0.2
# s, ends the turn in the middle of "five and").
def test_a_turn_model_that_answers_nan_does_not_cut_the_caller_off() -> None:
    class NotANumber:
        name, window_s = "broken", 8.0

        async def completion(self, audio: Pcm16, scope: Scope) -> float:
            return math.nan

    async def call() -> None:
        c = Conversation(texts={220: "My number is five and"})
        c.agent.stages = replace(c.agent.stages, turn=NotANumber())
        async with c:
            c.say(0.5, 1.0)
            await c.to(6.0)
            assert c.times(UserSaid)[0] - 1.5 > c.session.options.min_delay_s

    run_virtual(call())


# Before: it comes out of session.hear(), in the transport's receiving loop, which takes it for a broken
# call.
@both_kinds
def test_a_policy_that_raises_over_the_answer_is_not_the_transports_fault(kind: Kind) -> None:
    async def call() -> None:
        policies = [Judges(_raises), *default_interruptions()]
        async with Conversation(kind, interruptions=Interruptions(policies)) as c:
            c.session.say(words(60))
            c.say(1.5, 1.0)
            await c.to(10.0)
            assert [ended.reason for ended in c.of(ResponseEnded)][:1] == ["barge_in"]
            assert c.session.is_quiet()

    run_virtual(call(), strict=False)


# Before: what is no Verdict falls through all comparisons of OverAnswer.judge, _waited_enough included: on
# a client that can pause the answer is silenced for ever.
def test_a_policy_that_gives_no_verdict_does_not_silence_the_agent_for_ever() -> None:
    async def call() -> None:
        policies = [Judges(lambda: "interrupt"), *default_interruptions()]  # type: ignore[arg-type, return-value]
        async with Conversation(interruptions=Interruptions(policies)) as c:
            c.session.say(words(30))
            c.say(1.5, 0.3)
            await c.to(20.0)
            assert not c.session.playout.held
            assert c.session.is_quiet()

    run_virtual(call(), strict=False)


# Before: Session._paused asks for the level before it feeds the pause: the meter's exception comes out of
# session.hear(), and the turn taker never learns that the user paused (the turn stays open for
# max_turn_s).
def test_a_load_meter_that_raises_does_not_lose_the_pause() -> None:
    async def call() -> None:
        c = Conversation()
        c.agent.stages = replace(c.agent.stages, guesses=GuessBudget(load=lambda now: _raises()))
        async with c:
            c.say(0.5, 1.0)
            await c.to(6.0)
            assert c.user_texts == ["Hello there."]

    run_virtual(call())


# ---------------------------------------------------------------- what is heard over the answer


# Before: word_list finds one "word" in a sentence of a language that is written without spaces, so
# interrupt_words (2) is never reached, and the words being known, Words says IGNORE: the agent talks on
# over a real question of 1.3 s.
@both_kinds
@pytest.mark.parametrize(
    ("language", "text"), [("zh", "等一下我想问一个问题"), ("ja", "ちょっと質問があります")]
)
def test_a_sentence_without_spaces_interrupts(kind: Kind, language: str, text: str) -> None:
    async def call() -> None:
        async with Conversation(kind, texts={220: text}, language=language) as c:
            c.session.say(words(60))
            c.say(2.0, 1.3)
            await c.to(8.0)
            assert c.of(ResponseEnded)[0].reason == "barge_in"
            assert c.user_texts == [text]

    run_virtual(call())


# Before: a recogniser that fails reads like one that found no words (Heard with ""), which says "noise":
# speech of any length up to wordless_after_s is ignored. One that hangs leaves the words unknown, and 1.2
# s of speech interrupts.
def test_a_recogniser_that_fails_is_no_proof_that_there_were_no_words() -> None:
    async def call() -> None:
        async with Conversation(recogniser=ScriptedRecogniser(fail_at=range(100))) as c:
            c.session.say(words(60))
            c.say(2.0, 2.0)
            await c.to(8.0)
            assert c.of(ResponseEnded)[0].reason == "barge_in"

    run_virtual(call())


# Before: Controls.configure feeds a Tick without `around`: level and echo count as unknown for that look,
# so a sound too faint to matter silences the answer (and on a client that can only flush, cuts it for good
# hold_s later).
@both_kinds
def test_new_options_do_not_make_a_faint_sound_an_interruption(kind: Kind) -> None:
    async def call() -> None:
        detector = ScriptedDetector(speech_rms=150.0)
        options = TurnOptions(echo_guard=False)
        async with Conversation(kind, detector=detector, texts={220: ""}, turns=options) as c:
            room = np.random.default_rng(0).standard_normal(16_000 * 12) * 130
            c.client.say(room.astype(np.int16), at_s=0.0)
            await c.to(3.0)
            c.session.say(words(60))
            at_s = np.arange(32_000) / 16_000
            voice = np.sin(2 * np.pi * 220 * at_s) * (160 + 90 * np.sin(4 * np.pi * at_s))
            c.client.say(voice.astype(np.int16), at_s=4.2)
            await c.to(5.8)
            assert c.session.ear.speaking and not c.session.playout.held
            c.session.configure(replace(options, min_delay_s=0.5))
            assert not c.session.playout.held
            await c.to(9.0)
            assert not c.of(ResponseEnded)

    run_virtual(call())


# ---------------------------------------------------------------- thresholds


# Before: speech_threshold may be 0.05 to 0.95, and speech ends _RELEASE (0.15) below it: at 0.15 or less no
# probability is low enough. Only the noise floor ends the turn, where the room is level (1.3 s later
# here); else it runs max_turn_s.
@pytest.mark.parametrize("threshold", [0.05, 0.15])
def test_a_low_threshold_still_lets_speech_end(threshold: float) -> None:
    async def call() -> None:
        # probabilities of a quiet but restless room: never 0, far under any threshold that is allowed
        rng = np.random.default_rng(3)
        room = rng.standard_normal(16_000 * 20) * np.repeat(rng.choice([3.0, 30.0, 300.0], 200), 1600)
        detector = ScriptedDetector(lambda window, _: 0.98 if np.abs(window).max() > 5000 else 0.01)
        async with Conversation(detector=detector, turns=TurnOptions(speech_threshold=threshold)) as c:
            c.client.say(room.astype(np.int16), at_s=0.0)
            c.say(0.5, 1.0)
            await c.to(6.0)
            assert c.times(SpeechStopped) and c.times(SpeechStopped)[0] < 2.0

    run_virtual(call())


# ---------------------------------------------------------------- handles


# Before: "does nothing when it is over": between the end of the answer and the handle's, the owner is told
# AudioStopped; there interrupt() raises BadRequest (no such answer).
def test_a_handle_may_be_stopped_when_its_audio_has_just_stopped() -> None:
    handles: list[Saying] = []
    raised: list[BadRequest] = []

    def told(event: SessionEvent) -> None:
        if isinstance(event, AudioStopped):
            try:
                handles[0].interrupt()
            except BadRequest as error:
                raised.append(error)

    async def call() -> None:
        async with Conversation(on_event=told) as c:
            handles.append(c.session.say(words(3)))
            await c.to(3.0)
            assert not raised
            assert handles[0].said is not None and handles[0].said.played

    run_virtual(call())


# Before: the answer is made, with a scope under the session's, before it is refused: each refusal stays
# until the call ends.
def test_what_is_refused_leaves_nothing_behind() -> None:
    async def call() -> None:
        async with Conversation() as c:
            for _ in range(17):
                c.session.say(words(60))
            before = len(c.session.scope._children)
            for _ in range(20):
                with pytest.raises(Overloaded):
                    c.session.say("More.")
                with pytest.raises(Overloaded):
                    c.session.respond()
            assert len(c.session.scope._children) == before

    run_virtual(call())


# ---------------------------------------------------------------- counts


# Before: Session._commit returns before Listening.ended_guess when the owner turned `respond` off after the
# guess began; and Listening.take tells the budget of a guess that was spoiled, but not the session's
# counters.
@pytest.mark.parametrize("how", ["respond is turned off", "the model fails"])
def test_every_guess_is_counted_as_kept_or_dropped(how: str) -> None:
    async def call() -> None:
        model = ScriptedModel([[Fail()]] * 9) if how == "the model fails" else None
        async with Conversation(model=model) as c:
            c.say(0.5, 1.0)
            await c.to(1.8)
            if how == "respond is turned off":
                c.session.configure(replace(c.session.options, respond=False))
            await c.to(9.0)
            counters, budget = c.session.counters, c.agent.stages.guesses
            assert counters.guesses == 1 == counters.guesses_kept + counters.guesses_dropped
            assert budget.begun == 1 == budget.kept + budget.dropped

    run_virtual(call())

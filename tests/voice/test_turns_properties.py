"""TurnTaker: what holds in every conversation, whatever happens in which order."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from voice.options import TurnOptions
from voice.turn_events import (
    Audible,
    Cleared,
    CloseEmpty,
    Commit,
    Committed,
    CutInput,
    Decision,
    Finished,
    GoneIdle,
    Guess,
    Heard,
    Hold,
    Interrupt,
    OpenTurn,
    Recognise,
    Release,
    Reopen,
    Respond,
    SpeechBegan,
    SpeechPaused,
    Spoke,
    Stopped,
    Tick,
    TurnInput,
    Typed,
)
from voice.turns import State, TurnTaker


class Caller:
    """Feeds a taker as a session would, with a clock that only goes forward, and checks every decision.

    It keeps its own idea of what is open: the turn that was announced, the guess, the answer, the hold, and whether
    a question waits for the end of the live answer.
    """

    def __init__(self, taker: TurnTaker) -> None:
        self.taker = taker
        self.now = 0.0
        self.voice_on = False
        self.voiced_until = 0.0
        self.asked: dict[tuple[int, int], bool] = {}  # recognitions → answered
        self.announced: int | None = None
        self.committed: set[int] = set()
        self.guess: tuple[int, int, str] | None = None
        self.live = self.held = False
        self.owed = False
        self.later: deque[TurnInput] = deque()  # edges behind a turn that is being closed
        taker.listen(0.0)

    def feed(self, event: TurnInput) -> None:
        if isinstance(event, SpeechBegan | SpeechPaused) and self.taker.closing:
            self.later.append(event)
            return
        self.tell(event)
        while self.later and not self.taker.closing:
            self.tell(self.later.popleft())

    def tell(self, event: TurnInput) -> None:
        if isinstance(event, Spoke):  # the session says things only in silence
            if self.taker.state is not State.LISTENING:
                return
            self.live = True
        if isinstance(event, Finished) and self.taker.response_live:
            self.live = self.held = False
        known, closing = self.taker.state, self.taker.closing
        decisions = self.taker.feed(event)
        if isinstance(event, Cleared) and closing:
            assert decisions == [], "what was committed is cleared"
        for decision in decisions:
            self.check(event, decision)
        if isinstance(event, Heard) and self.asked.get((event.turn, event.revision)) is None:
            assert decisions == [], "words nobody asked for"
            assert self.taker.state is known
        self.invariants()

    def check(self, event: TurnInput, decision: Decision) -> None:
        match decision:
            case OpenTurn(turn, _):
                assert self.announced is None, "two user turns at once"
                assert turn not in self.committed
                self.announced = turn
            case Reopen(turn, revision):
                assert self.announced == turn
                assert (turn, revision) not in self.asked
                self.guess = None
            case Recognise(turn, revision, probe):
                assert (turn, revision) not in self.asked, "the same audio is recognised twice"
                assert probe == (self.announced != turn)
                self.asked[turn, revision] = False
                self.guess = None
            case Guess(turn, revision, text):
                assert self.announced == turn and not self.live
                assert self.taker.options.respond, "a guess at an answer that nobody will give"
                assert text.strip()
                assert any(k[0] == turn and done for k, done in self.asked.items()), "a guess without words"
                self.guess = (turn, revision, text)
            case Commit(turn, revision, text, respond):
                assert self.announced == turn and turn not in self.committed
                assert text.strip()
                if self.live:
                    assert not respond, "two answers at once"
                    self.owed = self.owed or self.taker.options.respond
                else:
                    assert respond or not (self.taker.options.respond or self.owed), (
                        "a question is left unanswered"
                    )
                    assert self.guess in (None, (turn, revision, text)), (
                        "the guess kept is not the one committed"
                    )
                    self.live, self.owed = respond, self.owed and not respond
                self.committed.add(turn)
                self.announced, self.guess = None, None
            case CloseEmpty(turn, announced):
                assert (self.announced == turn) == announced
                assert turn not in self.committed
                self.announced = self.guess = None
            case Respond():
                assert not self.live, "two answers at once"
                assert self.announced is None
                self.live, self.owed = True, False
            case Hold():
                assert self.live and not self.held
                assert self.announced is None and self.taker.options.interrupt
                self.held = True
            case Release():
                assert self.live and self.held
                self.held = False
            case Interrupt():
                assert self.live
                by_voice = isinstance(event, SpeechBegan | SpeechPaused | Heard | Tick)
                assert self.taker.options.interrupt or not by_voice, "speech that must not interrupt did"
                self.live = self.held = False
            case CutInput(turn):
                assert self.announced == turn
            case GoneIdle():
                assert isinstance(event, Tick) and self.taker.state is State.LISTENING

    def invariants(self) -> None:
        taker = self.taker
        assert taker.response_live == self.live
        assert (taker.state is State.HELD) == self.held
        if taker.state in (State.USER_SPEAKING, State.MAYBE_DONE):
            assert self.announced is not None
        elif taker.state in (State.LISTENING, State.HELD):
            assert self.announced is None
        if taker.state is State.LISTENING:
            assert not self.owed, "nobody speaks, and a question is not answered"
        waits_for_words = any(not done for done in self.asked.values())
        manual = taker.options.mode == "manual"
        match taker.state:
            case State.MAYBE_DONE:
                assert taker.wake_at is not None or waits_for_words, "nothing will ever end this turn"
            case State.HELD:
                assert taker.wake_at is not None, "nothing will ever end this silence"
            case State.USER_SPEAKING:
                assert taker.wake_at is not None or not self.voice_on or manual
            case _:
                beside = self.announced is not None  # a turn beside the live answer
                assert not beside or taker.wake_at is not None or waits_for_words or manual

    def act(self, action: str, step_s: float, text: str) -> None:
        self.now += step_s
        now = self.now
        if self.voice_on:
            self.voiced_until = now
        match action:
            case "voice on" if not self.voice_on:
                self.voice_on, self.voiced_until = True, now
                self.feed(SpeechBegan(now, max(0.0, now - 0.06)))
            case "voice off" if self.voice_on:
                self.voice_on = False
                self.feed(SpeechPaused(now, max(0.0, now - 0.2)))
            case "words":
                self.words(text)
            case "old words":
                for turn, revision in list(self.asked)[-3:]:
                    self.feed(Heard(now, turn, revision + 7, text))
                    self.feed(Heard(now, turn + 50, revision, text))
            case "tick":
                self.feed(Tick(now, self.voiced_until))
            case "wake":
                self.wake()
            case "audible" if self.live:
                self.feed(Audible(now))
            case "finished" if self.live:
                self.feed(Finished(now))
            case "typed":
                self.feed(Typed(now))
            case "noted":
                self.feed(Typed(now, answer=False))
            case "committed":
                self.feed(Committed(now))
            case "cleared":
                self.feed(Cleared(now))
            case "stopped":
                self.feed(Stopped(now))
            case "spoke":
                self.feed(Spoke(now))
            case "answers":
                self.feed(Spoke(now, answer=True))
            case "manual" | "automatic":
                self.configure(mode=action)
            case "respond" | "interrupt":
                self.configure(**{action: not getattr(self.taker.options, action)})
            case _:
                pass

    def configure(self, **changes: Any) -> None:
        """As a session does it: a pause that passed unnoticed is made up for, and the time is told."""
        before = self.taker.options
        self.taker.configure(replace(before, **changes))
        automatic = before.mode == "manual" and self.taker.options.mode == "automatic"
        if automatic and self.taker.hearing and not self.voice_on:
            self.feed(SpeechPaused(self.now, self.voiced_until))
        self.feed(Tick(self.now, self.voiced_until))

    def words(self, text: str) -> None:
        """The oldest recognition that is still asked for answers."""
        for key, done in self.asked.items():
            if not done:
                self.asked[key] = True
                self.feed(Heard(self.now, *key, text))
                return

    def wake(self) -> None:
        if self.taker.wake_at is not None:
            self.now = max(self.now, self.taker.wake_at)
            if self.voice_on:
                self.voiced_until = self.now
            self.feed(Tick(self.now, self.voiced_until))

    def settle(self) -> None:
        """Everybody falls silent and every engine answers: the conversation must come to rest."""
        if self.voice_on:
            self.act("voice off", 0.2, "")
        for _ in range(60):
            if self.taker.state is State.LISTENING:
                return
            self.act("words", 0.05, "")
            self.wake()
            if self.taker.state in (State.THINKING, State.SPEAKING):
                self.act("audible", 0.1, "")
                self.act("finished", 0.5, "")


VOICE_ACTIONS = ["voice on", "voice off", "words", "wake", "audible", "finished"]
OWNER_ACTIONS = ["old words", "tick", "typed", "noted", "committed", "cleared", "stopped", "spoke", "answers"]
STEP = st.tuples(
    st.one_of(st.sampled_from(VOICE_ACTIONS), st.sampled_from(VOICE_ACTIONS + OWNER_ACTIONS)),
    st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 1.2, 30.0, 130.0]),
    st.sampled_from(["", "Yes.", "and then", "I want to"]),
)
# lists of a drawn length: without it hypothesis makes most of them shorter than a turn
STEPS = st.integers(0, 60).flatmap(lambda size: st.lists(STEP, min_size=size, max_size=size))
PLAYOUTS = st.sampled_from(["can_pause", "flush_only"])
TURN_OPTIONS = st.builds(
    TurnOptions,
    speculate=st.booleans(),
    hold_s=st.sampled_from([0.0, 0.25]),
    interrupt_after_s=st.sampled_from([0.0, 0.4]),
    idle_s=st.sampled_from([None, 15.0]),
    mode=st.sampled_from(["automatic", "automatic", "manual"]),
    respond=st.sampled_from([True, True, False]),
    interrupt=st.sampled_from([True, True, False]),
)


@settings(max_examples=400, deadline=None)
@given(STEPS, PLAYOUTS, TURN_OPTIONS)
def test_whatever_happens_the_decisions_are_consistent_and_every_state_has_a_way_out(
    steps: list[tuple[str, float, str]], playout: Literal["can_pause", "flush_only"], options: TurnOptions
) -> None:
    caller = Caller(TurnTaker(options, playout))
    for action, step_s, text in steps:
        caller.act(action, step_s, text)
    if options.mode == "automatic":
        caller.settle()
        assert caller.taker.state is State.LISTENING
        assert not caller.held and not caller.owed


SWITCHES = st.lists(st.sampled_from(["manual", "automatic", "respond", "interrupt"]), min_size=1, max_size=6)


@settings(max_examples=400, deadline=None)
@given(STEPS, PLAYOUTS, TURN_OPTIONS, SWITCHES)
def test_the_options_may_be_switched_at_any_time(
    steps: list[tuple[str, float, str]],
    playout: Literal["can_pause", "flush_only"],
    options: TurnOptions,
    changes: list[str],
) -> None:
    caller = Caller(TurnTaker(options, playout))
    switches = itertools.cycle(changes)
    for index, (action, step_s, text) in enumerate(steps):
        if index % 5 == 4:
            caller.act(next(switches), 0.0, "")
        caller.act(action, step_s, text)
    caller.act("automatic", 0.0, "")
    caller.settle()
    assert caller.taker.state is State.LISTENING
    assert not caller.held and not caller.owed


@settings(max_examples=200, deadline=None)
@given(STEPS, PLAYOUTS)
def test_words_of_an_older_revision_change_nothing(
    steps: list[tuple[str, float, str]], playout: Literal["can_pause", "flush_only"]
) -> None:
    caller = Caller(TurnTaker(TurnOptions(), playout))
    for action, step_s, text in steps:
        caller.act(action, step_s, text)
        if caller.asked:
            turn, revision = next(reversed(caller.asked))
            before = (caller.taker.state, caller.taker.wake_at)
            for old in range(revision):
                assert caller.taker.feed(Heard(caller.now, turn, old, "stale words")) == []
            assert caller.taker.state is before[0]

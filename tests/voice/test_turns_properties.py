"""TurnTaker: what holds in every conversation, whatever happens in which order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

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

    It keeps its own idea of what is open: the turn that was announced, the guess, the answer, the hold.
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
        self.says = False
        taker.listen(0.0)

    def feed(self, event: TurnInput) -> None:
        if isinstance(event, Spoke):  # the session says things only in silence
            if self.taker.state is not State.LISTENING:
                return
            self.live = True
        if isinstance(event, Finished) and self.taker.response_live:
            self.live = self.held = False
        known = self.taker.state
        decisions = self.taker.feed(event)
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
                assert text.strip()
                assert any(k[0] == turn and done for k, done in self.asked.items()), "a guess without words"
                self.guess = (turn, revision, text)
            case Commit(turn, revision, text):
                assert self.announced == turn and turn not in self.committed
                assert text.strip()
                assert not self.live, "two answers at once"
                assert self.guess in (None, (turn, revision, text)), "the guess kept is not the one committed"
                self.committed.add(turn)
                self.announced, self.guess, self.live = None, None, True
            case CloseEmpty(turn, announced):
                assert (self.announced == turn) == announced
                assert turn not in self.committed
                self.announced = self.guess = None
            case Respond():
                assert not self.live, "two answers at once"
                assert self.announced is None
                self.live = True
            case Hold():
                assert self.live and not self.held
                self.held = True
            case Release():
                assert self.live and self.held
                self.held = False
            case Interrupt():
                assert self.live
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
        elif taker.state in (State.LISTENING, State.THINKING):
            assert self.announced is None
        waits_for_words = any(not done for done in self.asked.values())
        match taker.state:
            case State.MAYBE_DONE:
                assert taker.wake_at is not None or waits_for_words, "nothing will ever end this turn"
            case State.HELD:
                assert taker.wake_at is not None, "nothing will ever end this silence"
            case State.USER_SPEAKING:
                assert taker.wake_at is not None or not self.voice_on or taker.options.mode == "manual"
            case _:
                pass  # the user, the owner or the answer's end will come

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
            case "manual" | "automatic":
                self.taker.configure(replace(self.taker.options, mode=action))
            case _:
                pass

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
OWNER_ACTIONS = ["old words", "tick", "typed", "noted", "committed", "cleared", "stopped", "spoke"]
STEPS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(VOICE_ACTIONS), st.sampled_from(VOICE_ACTIONS + OWNER_ACTIONS)),
        st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 1.2, 30.0, 130.0]),
        st.sampled_from(["", "Yes.", "and then", "I want to"]),
    ),
    max_size=60,
)
PLAYOUTS = st.sampled_from(["can_pause", "flush_only"])
TURN_OPTIONS = st.builds(
    TurnOptions,
    speculate=st.booleans(),
    hold_s=st.sampled_from([0.0, 0.25]),
    interrupt_after_s=st.sampled_from([0.0, 0.4]),
    idle_s=st.sampled_from([None, 15.0]),
    mode=st.sampled_from(["automatic", "automatic", "manual"]),
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
        assert not caller.held


@settings(max_examples=200, deadline=None)
@given(STEPS, PLAYOUTS, st.lists(st.sampled_from(["manual", "automatic"]), min_size=1, max_size=6))
def test_turn_detection_may_be_switched_at_any_time(
    steps: list[tuple[str, float, str]],
    playout: Literal["can_pause", "flush_only"],
    modes: list[Literal["manual", "automatic"]],
) -> None:
    caller = Caller(TurnTaker(TurnOptions(), playout))
    switches = itertools.cycle(modes)
    for index, (action, step_s, text) in enumerate(steps):
        if index % 5 == 4:
            caller.act(next(switches), 0.0, "")
        caller.act(action, step_s, text)
    caller.act("automatic", 0.0, "")
    caller.settle()
    assert not caller.held


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

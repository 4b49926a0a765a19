"""Plays random conversations with a TurnTaker, and knows what must hold after each of their events.

A :class:`Caller` does what a session does with the decisions, and keeps its own idea of what is open: the turn that was
announced, the guess, the answer, the hold, and whether a question waits for an answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from turn_scripts import SAID, Step

from voice.scope import Reason
from voice.speculation import Level
from voice.turn_events import (
    NOTHING_AROUND,
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
    Judge,
    Judged,
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
    """Feeds a taker as a session would, with a clock that only goes forward, and checks every decision."""

    def __init__(self, taker: TurnTaker) -> None:
        self.taker = taker
        self.now = 0.0
        self.number_of_steps = 0
        self.voice_on = False
        self.voiced_until = 0.0
        self.around = NOTHING_AROUND
        self.pending: list[Recognise | Judge] = []  # what was asked for and has not come
        self.finals: set[tuple[int, int]] = set()  # revisions whose words were asked for
        self.guessed: set[tuple[int, int]] = set()
        self.announced: int | None = None
        self.opened: set[int] = set()
        self.closed: set[int] = set()
        self.guess: tuple[int, int, str] | None = None
        self.live = self.held = False
        self.answers = self.interruptible = True  # so does the live answer
        self.owed = False
        self.later: deque[TurnInput] = deque()  # edges behind a turn that is being closed
        self.seen: set[str] = set()
        taker.listen(0.0)

    # ------------------------------------------------------------ what a session does

    def feed(self, event: TurnInput) -> None:
        if isinstance(event, SpeechBegan | SpeechPaused) and self.taker.closing:
            self.later.append(event)
            return
        self.tell(event)
        while self.later and not self.taker.closing:
            self.tell(self.later.popleft())

    def tell(self, event: TurnInput) -> None:
        taker = self.taker
        if isinstance(event, Spoke):  # the session says things only in silence
            if taker.state is not State.LISTENING:
                return
            self.live, self.answers, self.interruptible = True, event.answer, event.interruptible
        if isinstance(event, Finished) and self.live:
            self.live = self.held = False
        closing = taker.closing
        self.owe(event)
        decisions = taker.feed(event)
        if isinstance(event, Cleared) and closing:
            assert decisions == [], "what was committed is cleared"
        for decision in decisions:
            self.seen.add(type(decision).__name__)
            self.check(event, decision)
        self.invariants(event)

    def owe(self, event: TurnInput) -> None:
        """A question that the live answer will not cover."""
        taker = self.taker
        if isinstance(event, Typed):
            self.owed = self.owed or (event.answer and taker.hearing)
        elif isinstance(event, Committed) and taker.state is State.THINKING:
            self.owed = self.owed or (self.answers and taker.options.respond)
        if self.owed:
            self.seen.add("an answer owed")

    # ------------------------------------------------------------ what must hold

    def check(self, event: TurnInput, decision: Decision) -> None:
        by_voice = isinstance(event, SpeechBegan | SpeechPaused | Heard | Judged | Tick)
        options = self.taker.options
        match decision:
            case OpenTurn(turn, _):
                assert self.announced is None, "two user turns at once"
                assert turn not in self.opened, "a turn is opened twice"
                self.opened.add(turn)
                self.announced = turn
                if self.live:
                    self.seen.add("a turn beside an answer")
            case Reopen(turn, revision):
                assert self.announced == turn
                assert (turn, revision) not in self.finals
                self.guess, self.pending = None, []
            case Recognise():
                self.check_recognise(decision)
            case Judge(turn, revision, silence_s):
                assert self.announced == turn and not self.live
                assert (turn, revision) == self.open_revision
                assert not any(isinstance(one, Judge) for one in self.pending), "asked twice at once"
                assert silence_s in self.taker.certainty.ends.look_again_s
                self.pending.append(decision)
            case Guess(turn, revision, text):
                assert self.announced == turn and not self.live
                assert (turn, revision) == self.open_revision
                assert (turn, revision) not in self.guessed, "two guesses at one revision"
                assert options.respond and options.speculate, "a guess that nobody wants"
                assert text.strip()
                assert any(key[0] == turn for key in self.finals), "a guess without words"
                self.guessed.add((turn, revision))
                self.guess = (turn, revision, text)
            case Commit():
                self.check_commit(decision)
            case CloseEmpty(turn, announced):
                assert (self.announced == turn) == announced
                self.close(turn)
            case Respond():
                assert not self.live, "two answers at once"
                assert self.announced is None
                assert self.owed or (isinstance(event, Typed) and event.answer), "an answer nobody waits for"
                self.live, self.owed, self.answers, self.interruptible = True, False, True, True
            case Hold():
                assert self.live and not self.held and self.announced is None
                assert options.interrupt and self.interruptible
                self.held = True
            case Release():
                assert self.live and self.held
                self.held = False
            case Interrupt(reason):
                assert self.live
                assert not by_voice or (options.interrupt and self.interruptible), (
                    "speech that must not interrupt did"
                )
                if reason is Reason.RESUMED:
                    self.owed = self.owed or (self.answers and options.respond)
                self.live = self.held = False
            case CutInput(turn):
                assert self.announced == turn
                self.voice_on = False  # what goes on belongs to no turn
            case GoneIdle():
                assert isinstance(event, Tick) and self.taker.state is State.LISTENING

    @property
    def open_revision(self) -> tuple[int, int] | None:
        turn = self.taker._open
        return None if turn is None else (turn.turn, turn.revision)

    def check_recognise(self, decision: Recognise) -> None:
        key = (decision.turn, decision.revision)
        assert decision.turn not in self.closed and decision.turn == self.taker.turn
        assert decision.probe == (self.announced != decision.turn)
        assert key not in self.finals, "the same audio is recognised twice"
        if decision.so_far:
            assert self.live and decision.probe
            assert decision not in self.pending, "asked twice at once"
            self.seen.add("words so far")
        else:
            self.finals.add(key)
        self.guess, self.pending = None, [decision]  # a newer request takes the place of older ones

    def check_commit(self, decision: Commit) -> None:
        assert self.announced == decision.turn
        assert decision.text.strip()
        wanted = self.taker.options.respond
        if self.live:
            assert not decision.respond, "two answers at once"
            self.owed = self.owed or wanted
        else:
            assert decision.respond == (wanted or self.owed), (
                "a question is left unanswered, or answered unasked"
            )
            kept = (decision.turn, decision.revision, decision.text)
            assert self.guess in (None, kept), "the guess kept is not the one committed"
            if decision.respond:
                self.live, self.owed, self.answers, self.interruptible = True, False, True, True
        self.close(decision.turn)

    def close(self, turn: int) -> None:
        assert turn not in self.closed, "a turn is closed twice"
        self.closed.add(turn)
        self.announced, self.guess, self.pending = None, None, []

    def invariants(self, event: TurnInput) -> None:
        taker, options = self.taker, self.taker.options
        assert taker.response_live == self.live
        assert (taker.state is State.HELD) == self.held
        assert self.opened - self.closed == ({self.announced} if self.announced else set())
        if taker.state in (State.USER_SPEAKING, State.MAYBE_DONE):
            assert self.announced is not None
        elif taker.state in (State.LISTENING, State.HELD):
            assert self.announced is None
        if taker.state is State.LISTENING:
            assert not self.owed, "nobody speaks, and a question is not answered"
        manual = options.mode == "manual"
        turn = taker._open
        match taker.state:
            case State.MAYBE_DONE:
                assert taker.wake_at is not None or self.pending, "nothing will ever end this turn"
            case State.HELD:
                assert taker.wake_at is not None, "nothing will ever end this silence"
            case State.USER_SPEAKING:
                assert taker.wake_at is not None or manual
            case _:
                beside = self.announced is not None
                assert not beside or taker.wake_at is not None or self.pending or manual
        if turn is not None and turn.announced and turn.end is not None and turn.text is not None:
            latest = turn.end + options.max_delay_s
            assert taker.wake_at is not None and taker.wake_at <= latest, "no plan to end this turn in time"
            assert not isinstance(event, Tick) or event.now < latest, "this turn should be over"

    # ------------------------------------------------------------ what happens

    def act(self, step: Step) -> None:
        self.number_of_steps += 1
        self.now += step.after_s
        self.around = step.around
        if self.voice_on:
            self.voiced_until = self.now
        self.happen(self.possible(step.action), step.text, step.number)

    def possible(self, action: str) -> str:
        """Something else where this can't happen: most random conversations would not get anywhere."""
        kinds = {type(one) for one in self.pending}
        if action == "judged" and Judge not in kinds:
            action = "words"
        if action == "words" and Recognise not in kinds:
            action = "wake"
        if action == "audible" and self.taker.state is not State.THINKING:
            action = "wake"
        if action == "wake" and self.taker.state is State.THINKING:
            action = "audible"
        if action == "wake" and (self.taker.state is State.LISTENING or self.taker.wake_at is None):
            action = "voice" if self.number_of_steps % 5 else action
        if action == "voice":
            action = "voice off" if self.voice_on else "voice on"
        return action

    def happen(self, action: str, text: str = "", number: float = 0.5) -> None:
        now = self.now
        match action:
            case "voice on" if not self.voice_on:
                self.voice_on, self.voiced_until = True, now
                self.feed(SpeechBegan(now, max(0.0, now - 0.06), self.around))
            case "voice off" if self.voice_on:
                self.voice_on = False
                level = Level(min(2, int(number * 6)))
                self.feed(SpeechPaused(now, max(0.0, now - 0.2), self.around, level))
            case "mute":  # no audio comes any more, and so no edge
                self.voice_on = False
            case "words":
                self.answer(Recognise, text, number)
            case "judged":
                self.answer(Judge, text, number)
            case "old news":
                self.old_news(text, number)
            case "tick":
                self.feed(Tick(now, self.voiced_until, self.around))
            case "wake":
                self.wake()
            case "audible" if self.live:
                self.feed(Audible(now))
            case "finished" if self.live and not self.held:
                self.taker.certainty.agent_said = SAID[int(number * len(SAID))]
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
                self.feed(Spoke(now, answer=True, interruptible=number < 0.8))
            case "greets":
                self.feed(Spoke(now, interruptible=False))
            case "manual" | "automatic":
                self.configure(mode=action)
            case "respond" | "interrupt" | "speculate":
                self.configure(**{action: not getattr(self.taker.options, action)})

    def answer(self, kind: type[Recognise] | type[Judge], text: str, number: float) -> None:
        """The first thing of this kind that was asked for comes."""
        for one in self.pending:
            if isinstance(one, kind):
                break
        else:
            return
        self.pending.remove(one)
        if isinstance(one, Recognise):
            self.feed(Heard(self.now, one.turn, one.revision, text, self.around))
        elif number < 0.1:
            self.feed(Judged(self.now, one.turn, one.revision, one.silence_s, None))
        else:
            self.feed(Judged(self.now, one.turn, one.revision, one.silence_s, number))

    def old_news(self, text: str, number: float) -> None:
        """Words and judgements of older revisions, other turns, and ones that nobody asked for change nothing."""
        taker, now = self.taker, self.now
        keys = [(turn, revision) for turn, revision in self.finals if (turn, revision) != self.open_revision]
        if self.open_revision is not None:
            turn, revision = self.open_revision
            keys += [(turn, revision + 1), (turn + 1, revision)] + [(turn, old) for old in range(revision)]
        for turn, revision in keys[-6:]:
            for event in (
                Heard(now, turn, revision, text, self.around),
                Judged(now, turn, revision, 0.2, number),
            ):
                before = None if taker._open is None else replace(taker._open)
                state = taker.state
                assert taker.feed(event) == [], "stale"
                assert (taker.state, taker._open) == (state, before), "stale"
                self.seen.add("stale words")

    def configure(self, **changes: Any) -> None:
        """As a session does it: a pause that passed unnoticed is made up for, and the time is told."""
        before = self.taker.options
        self.taker.configure(replace(before, **changes))
        automatic = before.mode == "manual" and self.taker.options.mode == "automatic"
        if automatic and self.taker.hearing and not self.voice_on:
            self.feed(SpeechPaused(self.now, self.voiced_until, self.around))
        self.feed(Tick(self.now, self.voiced_until, self.around))

    def wake(self) -> None:
        """The next tick comes when it was asked for."""
        if self.taker.wake_at is None:
            return
        self.now = max(self.now, self.taker.wake_at)
        if self.voice_on:
            self.voiced_until = self.now
        for _ in range(3):
            self.feed(Tick(self.now, self.voiced_until, self.around))
            if self.taker.wake_at is None or self.taker.wake_at > self.now:
                return
        raise AssertionError("a busy loop")

    def settle(self, *, quiet: bool, words_come: bool) -> None:
        """Nothing new happens: the conversation must come to rest by itself.

        ``quiet``: everybody falls silent; else a sound that is on stays on. ``words_come``: the recogniser answers
        about sounds over the agent's voice; about turns it always does.
        """
        if self.voice_on and quiet:
            self.now += 0.2
            self.happen("voice off")
        held_since = self.now
        for number in range(600):
            if not self.held:
                held_since = self.now
            assert self.now - held_since <= MOST_HELD_S, "silenced for too long"
            if self.taker.state is State.LISTENING:
                break
            if words_come or self.announced is not None:
                self.happen("words")
            self.wake()
            if self.taker.options.mode == "manual" and self.taker.state is State.USER_SPEAKING:
                self.happen("committed")  # nobody else can end it
            if self.taker.state is State.THINKING:
                self.happen("audible")
            elif number % 20 == 19:  # the answer takes a while
                self.happen("finished")
        assert self.taker.state is State.LISTENING, "it does not come to rest"
        assert not self.held and not self.owed and self.opened == self.closed - self.unheard
        assert not self.pending

    @property
    def unheard(self) -> set[int]:
        """Sounds that were dropped without becoming a turn."""
        return self.closed - self.opened


MOST_HELD_S = 6.0 + 1.2 + 0.1
"""The longest a sound may be undecided, until audio that stopped coming is noticed, and a look."""

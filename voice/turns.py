"""TurnTaker: whose turn it is. A sans-I/O state machine: what happened goes in, what to do comes out.

It reads no clock: every input carries the loop time. The session carries out the decisions in order and calls
:meth:`TurnTaker.feed` with a :class:`Tick` at :attr:`TurnTaker.wake_at`.

A turn is a stretch of user speech up to an answer; each resumption after a pause raises its revision. Results
that come back (:class:`Heard`) name their turn and revision and are ignored when those have passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from voice.endpointing import Endpointing, SilenceEndpointing
from voice.interruption import Interruption, LengthOrWords, Verdict
from voice.options import TurnOptions
from voice.scope import Reason
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


class State(Enum):
    """Where the conversation is."""

    LISTENING = "listening"  # nobody speaks and nothing is owed
    USER_SPEAKING = "user_speaking"
    MAYBE_DONE = "maybe_done"  # the user paused; recognition and the guess run
    THINKING = "thinking"  # the turn is certain; the answer is not yet audible
    SPEAKING = "speaking"  # the ear hears the answer
    HELD = "held"  # the user made a sound over the answer, which is silenced until it is clear what it was


@dataclass(slots=True)
class _Open:
    """The user turn in progress. ``announced`` is false while it is only a sound over the agent's voice."""

    turn: int
    start: float
    revision: int = 0
    end: float | None = None  # set while paused
    text: str | None = None  # of the current revision
    asked: bool = False  # recognition of the current revision was asked for
    announced: bool = True
    forced: bool = False  # certain as soon as its words are known

    def go_on(self) -> None:
        """The user spoke again before it was certain."""
        self.revision += 1
        self.end = self.text = None
        self.asked = False


class TurnTaker:
    """See the module's docstring.

    Args:
        options: Times and thresholds; may be replaced by :meth:`configure` during a call.
        playout: The transport's kind: decides how long a sound over the agent's voice may stay undecided.

    Attributes:
        state: Where the conversation is.
        wake_at: When to feed the next :class:`Tick` (loop time); ``None``: nothing to wait for.
    """

    def __init__(
        self,
        options: TurnOptions,
        playout: Literal["can_pause", "flush_only"] = "can_pause",
        endpointing: Endpointing | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        self.options = options
        self.playout = playout
        self.endpointing = endpointing or SilenceEndpointing()
        self.interruption = interruption or LengthOrWords()
        self.state = State.LISTENING
        self.wake_at: float | None = None
        self._turns = 0
        self._open: _Open | None = None
        self._owes_answer = False  # an answer was cut unheard: the next one covers its question
        self._answering = False  # the live answer is to the user, not something the owner made the agent say
        self._hold_until: float | None = None
        self._idle_at: float | None = None

    @property
    def turn(self) -> int:
        """Number of the newest turn, from 1; 0 before the first."""
        return self._turns

    @property
    def response_live(self) -> bool:
        """Whether an answer is being made or heard."""
        return self.state in (State.THINKING, State.SPEAKING, State.HELD)

    @property
    def hearing(self) -> bool:
        """Whether a user turn is open, or a sound that may become one."""
        return self._open is not None

    @property
    def closing(self) -> bool:
        """A turn was closed from outside and waits for its words only: new edges belong to the next one."""
        return self._open is not None and self._open.forced

    def configure(self, options: TurnOptions) -> None:
        """Use other times and thresholds from now on."""
        self.options = replace(options)

    def feed(self, event: TurnInput) -> list[Decision]:
        """What to do about ``event``, in order."""
        before = self.state
        match event:
            case SpeechBegan():
                decisions = self._speech_began(event) if self._automatic else []
            case SpeechPaused():
                # a sound over the answer that was held before the mode changed still gets its end
                decisions = self._speech_paused(event) if self._automatic or self.response_live else []
            case Heard():
                decisions = self._heard(event)
            case Tick():
                decisions = self._tick(event)
            case Audible():
                decisions = self._audible()
            case Finished():
                decisions = self._finished(event.now)
            case Typed():
                decisions = self._typed(event)
            case Committed():
                decisions = self._committed(event.now)
            case Cleared():
                decisions = self._cleared()
            case Stopped():
                decisions = self._stopped(event.now)
            case Spoke():
                decisions = self._spoke(event)
        if self.state is not State.LISTENING:
            self._idle_at = None
        elif before is not State.LISTENING or isinstance(event, Typed):
            self.listen(event.now)
        self._plan(event.now)
        return decisions

    def listen(self, now: float) -> None:
        """Start waiting for the user; called once when the session starts, by itself after that."""
        self._idle_at = None if self.options.idle_s is None else now + self.options.idle_s
        self._plan(now)

    @property
    def _automatic(self) -> bool:
        return self.options.mode == "automatic"

    @property
    def _guesses(self) -> bool:
        return self.options.speculate and self.options.respond

    @property
    def _beside(self) -> bool:
        """A user turn is open that does not interrupt the live answer: it goes on beside it."""
        return self.response_live and self._open is not None and self._open.announced

    # ------------------------------------------------------------ speech edges

    def _speech_began(self, event: SpeechBegan) -> list[Decision]:
        turn = self._open
        if self.state is State.LISTENING:
            self.state = State.USER_SPEAKING
            return [self._new_turn(event.start)]
        if self.state is State.MAYBE_DONE and turn is not None and not turn.forced:
            self.state = State.USER_SPEAKING
            turn.go_on()
            return [Reopen(turn.turn, turn.revision)]
        if self._beside or (self.response_live and turn is None and not self.options.interrupt):
            return self._speech_beside_answer(event)
        if self.state is State.THINKING:
            self.state = State.USER_SPEAKING
            self._owe_cut_answer()
            return [Interrupt(Reason.RESUMED), self._new_turn(event.start)]
        if self.state in (State.SPEAKING, State.HELD):
            return self._sound_over_answer(event)
        return []

    def _speech_beside_answer(self, event: SpeechBegan) -> list[Decision]:
        turn = self._open
        if turn is None:
            return [self._new_turn(event.start)]
        if turn.end is None or turn.forced:
            return []
        turn.go_on()
        return [Reopen(turn.turn, turn.revision)]

    def _announce_beside(self, turn: _Open) -> list[Decision]:
        """The sound over the answer is a turn, and the answer goes on."""
        turn.announced = True
        released: list[Decision] = [Release()] if self.state is State.HELD else []
        self.state, self._hold_until = State.SPEAKING, None
        return [OpenTurn(turn.turn, turn.revision), *released]

    def _owe_cut_answer(self) -> None:
        """The answer that is cut now was wanted: the next one covers its question too."""
        if self._answering and self.options.respond:
            self._owes_answer = True

    def _sound_over_answer(self, event: SpeechBegan) -> list[Decision]:
        if self._open is None:
            self._turns += 1
            self._open = _Open(self._turns, event.start, announced=False)
        elif self._open.end is not None:  # a second sound before the first was judged: one longer sound
            self._open.go_on()
        held = self.state is State.HELD
        self.state = State.HELD
        self._hold_until = event.now + self.options.hold_s if self.playout == "flush_only" else None
        if self.playout == "flush_only" and self.options.hold_s == 0:
            return self._barge_in(event.now)
        return [] if held else [Hold()]

    def _speech_paused(self, event: SpeechPaused) -> list[Decision]:
        turn = self._open
        if turn is None or turn.end is not None:
            return []
        turn.end = event.end
        if self.state is State.USER_SPEAKING:
            self.state = State.MAYBE_DONE
            return self._ask(turn) if self.options.speculate else []
        if self._beside:
            return self._ask(turn)
        if self.state in (State.SPEAKING, State.HELD):
            voiced_s = event.end - turn.start
            verdict = self.interruption.after(voiced_s, None, self.options)
            decisions: list[Decision] = []
            if verdict is Verdict.INTERRUPT:
                decisions = self._barge_in(event.now)
            return [*decisions, *self._ask(turn)]
        return []

    def _ask(self, turn: _Open) -> list[Decision]:
        turn.asked = True
        return [Recognise(turn.turn, turn.revision, probe=not turn.announced)]

    def _barge_in(self, now: float) -> list[Decision]:
        """The sound over the answer is an interruption: its turn becomes a real one."""
        turn = self._open
        assert turn is not None
        turn.announced = True
        self._hold_until = None
        self.state = State.USER_SPEAKING if turn.end is None else State.MAYBE_DONE
        return [Interrupt(Reason.BARGE_IN), OpenTurn(turn.turn, turn.revision)]

    def _new_turn(self, start: float) -> OpenTurn:
        self._turns += 1
        self._open = _Open(self._turns, start)
        return OpenTurn(self._turns)

    # ------------------------------------------------------------ words

    def _heard(self, event: Heard) -> list[Decision]:
        turn = self._open
        if turn is None or (turn.turn, turn.revision) != (event.turn, event.revision) or turn.end is None:
            return []
        turn.text = event.text.strip()
        if self.state is State.MAYBE_DONE:
            decisions = self._settle(event.now)
            if not decisions and turn.text and self._guesses:
                return [Guess(turn.turn, turn.revision, turn.text)]
            return decisions
        if self._beside:
            return self._settle(event.now)
        if self.state in (State.SPEAKING, State.HELD):
            verdict = self.interruption.after(turn.end - turn.start, turn.text, self.options)
            if verdict is Verdict.INTERRUPT:
                decisions = self._barge_in(event.now)
                settled = self._settle(event.now)
                if not settled and turn.text and self._guesses:
                    settled = [Guess(turn.turn, turn.revision, turn.text)]
                return decisions + settled
            return self._false_alarm()
        return []

    def _false_alarm(self) -> list[Decision]:
        turn, self._open = self._open, None
        held = self.state is State.HELD
        self.state = State.SPEAKING
        self._hold_until = None
        drop: list[Decision] = [CloseEmpty(turn.turn, announced=False)] if turn is not None else []
        return [*drop, Release()] if held else drop

    def _settle(self, now: float) -> list[Decision]:
        """Commit or close a paused turn whose words are known, when its time has come."""
        turn = self._open
        if turn is None or turn.text is None or turn.end is None or now < self._due(turn):
            return []
        self._open = None
        if not turn.text:
            return self._closed_empty(turn)
        if self.response_live:  # it did not interrupt: it is answered when the live answer is over
            self._owes_answer = self._owes_answer or self.options.respond
            return [Commit(turn.turn, turn.revision, turn.text, respond=False)]
        respond = self.options.respond or self._owes_answer
        self._owes_answer = False
        self._answering = respond
        self.state = State.THINKING if respond else State.LISTENING
        return [Commit(turn.turn, turn.revision, turn.text, respond)]

    def _due(self, turn: _Open) -> float:
        assert turn.end is not None
        if turn.forced:
            return turn.end
        if not turn.text:
            return turn.end + self.options.min_delay_s
        delay_s = self.endpointing.delay_s(turn.text, self.options)
        return turn.end + min(max(delay_s, self.options.min_delay_s), self.options.max_delay_s)

    # ------------------------------------------------------------ time

    def _tick(self, event: Tick) -> list[Decision]:
        now, turn = event.now, self._open
        if self.state is State.MAYBE_DONE and turn is not None:
            if not turn.asked and turn.end is not None and now >= turn.end + self.options.min_delay_s:
                return self._ask(turn)
            return self._settle(now)
        if turn is not None and (self.state is State.USER_SPEAKING or (self._beside and turn.end is None)):
            if self._automatic and now >= turn.start + self.options.max_turn_s:
                turn.end, turn.forced = now, True
                self.state = self.state if self.response_live else State.MAYBE_DONE
                return [CutInput(turn.turn), *self._ask(turn)]
        elif self._beside:
            return self._settle(now)
        elif self.state in (State.SPEAKING, State.HELD) and turn is not None:
            if not self.options.interrupt:  # since it began: it can't interrupt any more
                return self._announce_beside(turn)
            return self._judge_sound(now, turn, event.voiced_until)
        elif self.state is State.LISTENING and self._idle_at is not None and now >= self._idle_at:
            self._idle_at = None
            return [GoneIdle()]
        return []

    def _judge_sound(self, now: float, turn: _Open, voiced_until: float | None) -> list[Decision]:
        if turn.end is None:
            voice_end = now if voiced_until is None else voiced_until
            if self.interruption.over(voice_end - turn.start, self.options) is Verdict.INTERRUPT:
                return self._barge_in(now)
            if now - voice_end >= self.options.pause_s + self.options.decide_s:
                return self._false_alarm()  # the audio stopped coming: there will be no pause edge
            if self._hold_until is not None and now >= self._hold_until:
                self._hold_until = None
                if voiced_until is None or now - voiced_until < _VOICE_ON_S:
                    return self._barge_in(now)
                self.state = State.SPEAKING  # too short to hold for; its words may still interrupt
                return [Release()]
            return []
        if self._hold_until is not None and now >= self._hold_until:
            self._hold_until = None
            self.state = State.SPEAKING
            return [Release()]
        if now >= turn.end + self.options.decide_s:
            return self._false_alarm()
        return []

    def _plan(self, now: float) -> None:
        """When to look again."""
        turn, options = self._open, self.options
        wake: float | None = None
        if self.state is State.LISTENING:
            wake = self._idle_at
        elif turn is not None and (self.state is State.USER_SPEAKING or (self._beside and turn.end is None)):
            if self._automatic:
                wake = min(turn.start + options.max_turn_s, now + _LOOK_FOR_GAP_S)
        elif turn is not None and turn.end is not None and (self.state is State.MAYBE_DONE or self._beside):
            if not turn.asked:
                wake = turn.end + options.min_delay_s
            elif turn.text is not None:
                wake = self._due(turn)
        elif self.state in (State.SPEAKING, State.HELD) and turn is not None:
            if turn.end is None:
                wake = max(now + _LOOK_AGAIN_S, turn.start + options.interrupt_after_s)
            else:
                wake = turn.end + options.decide_s
            if self._hold_until is not None:
                wake = min(wake, self._hold_until)
        self.wake_at = wake

    # ------------------------------------------------------------ the answer

    def _audible(self) -> list[Decision]:
        if self.state is State.THINKING:
            self.state = State.SPEAKING
        return []

    def _finished(self, now: float) -> list[Decision]:
        if not self.response_live:
            return []
        turn = self._open
        self.state = State.LISTENING
        self._hold_until = None
        if turn is None:
            return self._answer_owed()
        opened: list[Decision] = [] if turn.announced else [OpenTurn(turn.turn, turn.revision)]
        turn.announced = True  # a sound that outlived the answer is a turn of its own
        if turn.end is None:
            self.state = State.USER_SPEAKING
            return opened
        self.state = State.MAYBE_DONE
        return opened + self._settle(now)

    # ------------------------------------------------------------ the owner

    def _typed(self, event: Typed) -> list[Decision]:
        turn = self._open
        if turn is not None and turn.announced:
            self._owes_answer = self._owes_answer or event.answer
            if self.state is State.MAYBE_DONE and turn.text and self._guesses:
                turn.revision += 1  # the guess does not know what was typed
                drop = Reopen(turn.turn, turn.revision, speech=False)
                return [drop, Guess(turn.turn, turn.revision, turn.text)]
            return []
        if not event.answer:
            return []
        if turn is not None:  # a sound over the answer: it becomes a turn and gets the answer with it
            self._owes_answer = True
            return self._barge_in(event.now)
        cut: list[Decision] = [Interrupt(Reason.CLIENT)] if self.response_live else []
        self.state = State.THINKING
        self._answering = True
        return [*cut, Respond()]

    def _committed(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if self.response_live and self.options.respond:
            if self.state is State.THINKING:
                self._owe_cut_answer()
            decisions += self._cut_answer(now)
        if self._open is None:
            decisions.append(self._new_turn(now))
        turn = self._open
        assert turn is not None
        if not turn.announced:  # a sound that was being judged: it is the turn
            over = self._automatic and self.options.interrupt
            decisions += self._barge_in(now) if over else self._announce_beside(turn)
        turn.forced = True
        if turn.end is None:
            turn.end = now
        if not turn.asked:
            decisions += self._ask(turn)
        if not self.response_live:
            self.state = State.MAYBE_DONE
        return decisions + self._settle(now)

    def _cleared(self) -> list[Decision]:
        turn = self._open
        if turn is None or turn.forced:  # a turn that was closed from outside is no longer in the buffer
            return []
        if not turn.announced:
            return self._false_alarm() if self.state is State.SPEAKING else []
        self._open = None
        return self._closed_empty(turn)

    def _stopped(self, now: float) -> list[Decision]:
        if not self.response_live:
            return []
        decisions = self._cut_answer(now)
        return decisions + (self._answer_owed() if self._open is None else self._settle(now))

    def _cut_answer(self, now: float) -> list[Decision]:
        turn = self._open
        if turn is not None and not turn.announced:
            return self._barge_in(now)
        self.state = State.LISTENING
        if turn is not None:
            self.state = State.USER_SPEAKING if turn.end is None else State.MAYBE_DONE
        return [Interrupt(Reason.CLIENT)]

    def _spoke(self, event: Spoke) -> list[Decision]:
        if self.state is State.LISTENING:
            self.state = State.THINKING
            self._answering = event.answer
        return []

    def _closed_empty(self, turn: _Open) -> list[Decision]:
        closed: list[Decision] = [CloseEmpty(turn.turn, announced=True)]
        if self.response_live:
            return closed
        self.state = State.LISTENING
        return closed + self._answer_owed()

    def _answer_owed(self) -> list[Decision]:
        """Nobody speaks: what was left unanswered gets its answer now."""
        if not self._owes_answer:
            return []
        self._owes_answer = False
        self._answering = True
        self.state = State.THINKING
        return [Respond()]


_VOICE_ON_S = 0.1
"""The voice is still on when its newest speech window is no older than this (three detector windows)."""
_LOOK_AGAIN_S = 0.02
_LOOK_FOR_GAP_S = 0.5
"""While the user speaks it is looked this often whether audio still comes."""

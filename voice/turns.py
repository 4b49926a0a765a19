"""TurnTaker: whose turn it is. A sans-I/O state machine: what happened goes in, what to do comes out.

It reads no clock: every input carries the loop time. The session carries out the decisions in order and calls
:meth:`TurnTaker.feed` with a :class:`Tick` at :attr:`TurnTaker.wake_at`.

A turn is a stretch of user speech up to an answer; each resumption after a pause raises its revision. Results
that come back (:class:`Heard`) name their turn and revision and are ignored when those have passed.
"""

from __future__ import annotations

from dataclasses import replace

from voice.floor import Floor, State
from voice.options import TurnOptions
from voice.over_answer import Step, Weigh
from voice.scope import Reason
from voice.speculation import Level
from voice.turn_events import (
    Around,
    Audible,
    Cleared,
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
from voice.user_speech import UserSpeech

__all__ = ["State", "TurnTaker"]

_LOOK_FOR_GAP_S = 0.5
"""While the user speaks it is looked this often whether audio still comes."""


class TurnTaker(Floor):
    """See the module's docstring; for the arguments, :class:`voice.floor.Floor`.

    Attributes:
        wake_at: When to feed the next :class:`Tick` (loop time); ``None``: nothing to wait for.
    """

    wake_at: float | None = None
    _idle_at: float | None = None

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
            case Judged():
                decisions = self._judged(event)
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

    # ------------------------------------------------------------ speech edges

    def _speech_began(self, event: SpeechBegan) -> list[Decision]:
        turn = self._open
        if self.state is State.LISTENING:
            self.state = State.USER_SPEAKING
            return [self._new_turn(event.start)]
        if self.state is State.MAYBE_DONE and turn is not None and not turn.forced:
            self.state = State.USER_SPEAKING
            self.certainty.resumed(event.start, turn.end)
            turn.go_on()
            return [Reopen(turn.turn, turn.revision)]
        if self._beside or (self.response_live and turn is None and not self._can_interrupt):
            return self._speech_beside_answer(event)
        if self.state is State.THINKING:
            self.state = State.USER_SPEAKING
            self.certainty.resumed(event.start, self.certainty.last_end)  # it was taken for the end, wrongly
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

    def _sound_over_answer(self, event: SpeechBegan) -> list[Decision]:
        if self._open is None:
            self._turns += 1
            self._open = UserSpeech(self._turns, event.start, announced=False)
        elif self._open.end is not None:  # a second sound before the first was judged: one longer sound
            self._open.go_on()
        return self._over_answer(event.now, event.now, self._over.judge, event.around)

    def _speech_paused(self, event: SpeechPaused) -> list[Decision]:
        turn = self._open
        if turn is None or turn.end is not None:
            return []
        turn.began(event.start)
        turn.end = event.end
        turn.level = event.level if self.options.speculate else Level.NONE
        if self.state is State.USER_SPEAKING:
            self.state = State.MAYBE_DONE
            return self._ask(turn) if turn.level >= Level.WORDS else []
        if self._beside:
            return self._ask(turn)
        turn.sound_text = None  # the words of all of the sound over the answer are still to come
        decisions = self._over_answer(event.now, event.end, self._over.judge, event.around)
        return decisions if self._open is None else [*decisions, *self._ask(turn)]

    # ------------------------------------------------------------ words

    def _heard(self, event: Heard) -> list[Decision]:
        turn = self._open
        if turn is None or (turn.turn, turn.revision) != (event.turn, event.revision):
            return []
        text = event.text.strip()
        over = self.response_live and not turn.announced
        if turn.end is None:
            if turn.asked_s is None or not over:
                return []
            if event.failed:
                return []  # its words stay unknown, and are not asked for again: its length decides
            turn.sound_text, turn.sound_s, turn.asked_s = text, turn.asked_s, None
            return self._over_answer(event.now, turn.start + turn.sound_s, self._over.words, event.around)
        if not turn.asked:
            return []
        turn.text = text
        if not over:
            return self._go_on_settling(event.now)
        if not event.failed:
            turn.sound_text, turn.sound_s = text, turn.end - turn.start
        decisions = self._over_answer(event.now, turn.end, self._over.judge, event.around)
        return decisions if self.response_live else [*decisions, *self._go_on_settling(event.now)]

    def _go_on_settling(self, now: float) -> list[Decision]:
        """Words of a paused turn are known: it is certain, or it is worth a guess or a question to the turn model."""
        turn, options = self._open, self.options
        settled = self._settle(now)
        if settled or self.state is not State.MAYBE_DONE or turn is None or turn.text is None:
            return settled
        decisions: list[Decision] = []
        wanted = turn.level is Level.FULL and options.speculate and options.respond
        if wanted and turn.text and not turn.guessed and now >= self.certainty.guess_at(turn, options):
            turn.guessed = True
            decisions.append(Guess(turn.turn, turn.revision, turn.text))
        look = self.certainty.look(turn, now, options)
        if look is not None and look[0] <= now:
            turn.looking = True
            decisions.append(Judge(turn.turn, turn.revision, look[1]))
        return decisions

    def _judged(self, event: Judged) -> list[Decision]:
        turn = self._open
        if turn is None or (turn.turn, turn.revision) != (event.turn, event.revision) or not turn.looking:
            return []
        if event.probability is None:  # it is not asked again at this pause
            return []
        turn.looking = False
        turn.completions = (*turn.completions, (event.silence_s, event.probability))
        return self._go_on_settling(event.now)

    # ------------------------------------------------------------ time

    def _tick(self, event: Tick) -> list[Decision]:
        now, turn = event.now, self._open
        if turn is not None:
            turn.began(event.start)
        if self.state is State.MAYBE_DONE and turn is not None:
            if not turn.asked and turn.end is not None and now >= turn.end + self.options.min_delay_s:
                return self._ask(turn)
            return self._go_on_settling(now)
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
            until = now if event.voiced_until is None else event.voiced_until
            return self._over_answer(now, until, self._over.look, event.around)
        elif self.state is State.LISTENING and self._idle_at is not None and now >= self._idle_at:
            self._idle_at = None
            return [GoneIdle()]
        return []

    def _over_answer(self, now: float, until: float, weigh: Weigh, around: Around) -> list[Decision]:
        """What to do about the sound over the answer, whose newest known speech ended at ``until``."""
        turn = self._open
        assert turn is not None
        decisions: list[Decision] = []
        for step in weigh(now, until, turn, around, self.options):
            match step:
                case Step.HOLD:
                    decisions.append(Hold())
                case Step.RELEASE:
                    decisions.append(Release())
                case Step.ASK:
                    turn.asked_s = turn.voiced_s(until)
                    decisions.append(Recognise(turn.turn, turn.revision, probe=True, so_far=True))
                case Step.INTERRUPT:
                    return decisions + self._barge_in()
                case Step.DROP:
                    return decisions + self._false_alarm()
        self.state = State.HELD if self._over.held else State.SPEAKING
        return decisions

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
                wake = self._next_news(turn, now)
        elif self.state in (State.SPEAKING, State.HELD) and turn is not None:
            wake = self._over.look_at
        self.wake_at = wake

    def _next_news(self, turn: UserSpeech, now: float) -> float:
        """When a paused turn is certain, or before that worth a guess or a question to the turn model."""
        at = [self._due(turn)]
        if self.state is State.MAYBE_DONE and turn.text:
            if not turn.guessed and turn.level is Level.FULL:
                guess_at = self.certainty.guess_at(turn, self.options)
                at += [guess_at] if guess_at > now else []
            look = self.certainty.look(turn, now, self.options)
            at += [look[0]] if look is not None else []
        return min(at)

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
        self._over.clear()
        if turn is None:
            return self._answer_owed()
        opened: list[Decision] = [] if turn.announced else [OpenTurn(turn.turn, turn.revision)]
        turn.over_answer = turn.announced = True  # a sound that outlived the answer is a turn of its own
        if turn.end is None:
            self.state = State.USER_SPEAKING
            return opened
        self.state = State.MAYBE_DONE
        return opened + self._go_on_settling(now)

    # ------------------------------------------------------------ the owner

    def _typed(self, event: Typed) -> list[Decision]:
        turn = self._open
        if turn is not None and turn.announced:
            self._owes_answer = self._owes_answer or event.answer
            if self.state is State.MAYBE_DONE and turn.text and turn.guessed:
                turn.revision += 1  # the guess does not know what was typed
                turn.looking = False
                drop = Reopen(turn.turn, turn.revision, speech=False)
                return [drop, Guess(turn.turn, turn.revision, turn.text)]
            return []
        if not event.answer:
            return []
        if turn is not None:  # a sound over the answer: it becomes a turn and gets the answer with it
            self._owes_answer = True
            return self._barge_in()
        cut: list[Decision] = [Interrupt(Reason.CLIENT)] if self.response_live else []
        self._owes_answer = False  # to what was said beside the answer that is cut: it is in the history
        self._think()
        return [*cut, Respond()]

    def _committed(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        if self.response_live and self.options.respond:
            if self.state is State.THINKING:
                self._owe_cut_answer()
            decisions += self._cut_answer()
        if self._open is None:
            decisions.append(self._new_turn(now))
        turn = self._open
        assert turn is not None
        if not turn.announced:  # a sound that was being judged: it is the turn
            over = self._automatic and self.options.interrupt
            decisions += self._barge_in() if over else self._announce_beside(turn)
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
        decisions = self._cut_answer()
        return decisions + (self._answer_owed() if self._open is None else self._go_on_settling(now))

    def _spoke(self, event: Spoke) -> list[Decision]:
        if self.state is State.LISTENING:
            self._think(answer=event.answer, interruptible=event.interruptible)
        return []

"""Listening: the user's side of a session: which audio belongs to the turn, its words, the guess built on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from voice.answering import Answering
from voice.backchannels import ENGLISH_HINTS
from voice.completion import completion_of
from voice.degradation import Rung
from voice.errors import Overloaded, VoiceError, kind_of
from voice.events import Problem, SpeechStarted, SpeechStopped, UserSaid
from voice.head_start import Words, words_of
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, Pcm16, TurnModel
from voice.options import TurnOptions
from voice.partial_passes import PartialPasses
from voice.recognition import recognise_spoken
from voice.response import Response
from voice.scope import Identity, Priority, Reason, Scope
from voice.turn_events import (
    CloseEmpty,
    Commit,
    CutInput,
    Guess,
    Heard,
    Judge,
    Judged,
    OpenTurn,
    Recognise,
    Reopen,
    TurnInput,
)
from voice.user_turn import UserTurn

if TYPE_CHECKING:
    from voice.session import Session

log = logging.getLogger("voice")

_TAIL = int(0.2 * ASR_RATE_HZ)
"""Silence that a recogniser gets after the last word."""
_REAL_TIME_MARGIN_S = 2.0
_SETTLE_S = 20.0
"""Speech recognised at a pause and longer than this is not recognised again when the turn goes on."""


class Listening:
    """Carries out what the turn taker decides about the user's turn.

    Args:
        session: Where events and counters go; its options, agent and history are read.
        ear: Keeps the audio.
        answering: Makes the guesses.
        scope: The session's; turns live under it.
        feed: Tells the turn taker.
    """

    def __init__(
        self,
        session: Session,
        ear: Ear,
        answering: Answering,
        scope: Scope,
        feed: Callable[[TurnInput], None],
    ) -> None:
        self._session, self._ear, self._answering = session, ear, answering
        self._scope, self._feed = scope, feed
        self._turn: UserTurn | None = None
        self.guesses = session.agent.stages.guesses.session()
        self.item_id: str | None = None  # names the newest turn, in progress or over
        self._heard_until = 0  # audio before this index belongs to earlier turns
        self._start: int | None = None  # where the turn's audio begins; None: nothing was said yet
        self._from = 0  # where the part of it begins whose words are not settled
        self._to = 0  # where the audio for the recogniser ends
        self._began = 0  # where its newest speech begins
        self._end = 0  # where its speech ends
        self._voiced = 0  # samples of its speech before the newest
        self._partials = PartialPasses(session, ear, self)
        scope.on_cancel(lambda _: self._partials.stop())
        self._edge_at = 0.0  # when the detector last noticed that the user began to speak

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------ audio

    def began(self, index: int, now: float) -> None:
        """Speech began at a sample: its audio starts a little before, but never inside an earlier turn."""
        if self._start is None:
            start = index - int(self._session.options.pre_roll_s * ASR_RATE_HZ)
            self._begin_at(max(start, self._heard_until, self._ear.log.start))
        self._edge_at = now
        self._began = index

    def paused(self, index: int) -> None:
        """Speech ended at a sample, for now: what is recognised next is its final text."""
        self._partials.stop()
        self._voiced += max(0, index - self._began)
        self._end = index
        self._to = min(index + _TAIL, self._ear.log.end)

    def hushed(self) -> None:
        """The voice fell silent, and that may become a pause."""
        turn = self._turn
        if turn is not None and turn.announced and self._start is not None:
            self._partials.ahead.hushed(turn)

    def note_pause(self, index: int, now: float) -> None:
        """Remember when the pause was noticed, and tell of it if the turn was announced."""
        turn = self._turn
        if turn is not None:
            turn.speech_end, turn.paused_at = self._ear.time_of(index), now
            if turn.announced:
                self._session.emit(SpeechStopped(turn.item_id, index / ASR_RATE_HZ))

    @property
    def speech_start(self) -> float:
        """Loop time at which the newest speech began, by what is known of the caller's clock now."""
        return self._ear.time_of(self._began)

    def over_noise_db(self) -> float | None:
        """Level of the sound in progress above the room's noise; ``None``: not known."""
        return self._ear.over_noise_db(self._began, self._ear.voiced_until)

    def is_full(self, options: TurnOptions) -> bool:
        """Whether the turn has all the audio it may have, however fast it came.

        Without turn detection all audio since the last turn is the next one's; with it the turn taker's clock ends
        a turn that is spoken in real time before this does.
        """
        manual = options.mode == "manual"
        if self._start is None:
            if not manual:
                return False
            self._keep()
            if self._start is None:
                return False
        most_s = options.max_turn_s + (0.0 if manual else _REAL_TIME_MARGIN_S)
        return self._ear.log.end - self._start >= most_s * ASR_RATE_HZ

    @property
    def pending_s(self) -> float:
        """Seconds of audio that belong to the turn in progress, or, without turn detection, to the next one.

        A turn that was closed and waits for its words only has what it has: the rest is the next one's."""
        start = max(self._to, self._heard_until) if self._session.taker.closing else self._start
        return 0.0 if start is None else (self._ear.log.end - start) / ASR_RATE_HZ

    def end_here(self) -> bool:
        """The turn's audio ends now; returns whether there is any."""
        if self._start is None:
            return False
        self._to = self._ear.log.end
        return True

    @property
    def unsettled_from(self) -> int:
        """Where the turn's audio begins whose words are not settled."""
        return self._from

    @property
    def unsettled_s(self) -> float:
        """Seconds of it, up to now."""
        return (self._ear.log.end - self._from) / ASR_RATE_HZ

    def audio(self, stop: int) -> Pcm16:
        """The turn's audio up to a sample, without what is settled."""
        start = stop if self._start is None else max(self._from, self._ear.log.start)
        return self._ear.log.read(start, max(start, stop))

    def speech_s(self, audio: Pcm16) -> float:
        """How much of the turn's newest audio is speech, in seconds."""
        going_on = max(0, self._ear.voiced_until - self._began) if self._ear.speaking else 0
        return min(self._voiced + going_on, audio.size) / ASR_RATE_HZ

    # ------------------------------------------------------------ the turn

    def cut_input(self, decision: CutInput) -> None:
        """The turn is too long: it ends here, and what goes on being said belongs to none."""
        self._to = self._ear.log.end
        self._ear.cut()
        turn = self._turn_of(decision.turn)
        turn.speech_end = turn.paused_at = self._now()
        self._session.emit(SpeechStopped(turn.item_id, self._ear.stream_s(turn.speech_end)))

    def open(self, decision: OpenTurn) -> None:
        """A turn begins: announce it, and let the model read the conversation so far."""
        turn = self._turn_of(decision.turn)
        turn.revision, turn.announced = decision.revision, True
        self._tell_started(turn)
        options = self._session.options
        if options.speculate and options.respond and self.guesses.reads_ahead(self._now()):
            turn.reading = turn.scope.child("stage", priority=Priority.BACKGROUND)
            self._answering.prepare(turn.reading)
        if turn.speech_end is not None:  # it had ended before it was clear that it was a turn
            self._session.emit(SpeechStopped(turn.item_id, self._ear.stream_s(turn.speech_end)))
        self._follow(turn)

    def _follow(self, turn: UserTurn) -> None:
        """The words of an announced turn's speech are read along while it goes on."""
        if self._ear.speaking and self._start is not None and not self._scope.cancelled:
            self._partials.follow(turn, self._ear.time_of(self._began))

    def _turn_of(self, number: int) -> UserTurn:
        """The turn in progress; made when a sound is first looked at, announced or not."""
        if self._turn is None or self._turn.number != number:
            if self._turn is not None:
                self._turn.scope.close()
            identity = Identity(self._session.session_id, number, 0)
            self._turn = UserTurn(
                number, self._session.chat.new_id(), self._scope.child("turn", identity=identity)
            )
            self.item_id = self._turn.item_id
        return self._turn

    def reopen(self, decision: Reopen) -> None:
        """The guess is void; the turn goes on."""
        turn = self._turn_of(decision.turn)
        self._drop_work(turn, Reason.RESUMED)
        turn.revision = decision.revision
        if decision.speech:
            turn.speech_end = turn.paused_at = None
            self._settle(turn)
            self._tell_started(turn)
            self._follow(turn)

    def _drop_work(self, turn: UserTurn, reason: Reason) -> None:
        """Recognition and guess are void."""
        if turn.drop_work(reason):
            self.ended_guess(kept=False)

    def ended_guess(self, *, kept: bool) -> None:
        """A guess was used or thrown away."""
        if kept:
            self._session.counters.guesses_kept += 1
            self.guesses.kept(self._now())
        else:
            self._session.counters.guesses_dropped += 1
            self.guesses.dropped(self._now())

    def _tell_started(self, turn: UserTurn) -> None:
        at_s = (self._start or 0) / ASR_RATE_HZ
        self._session.emit(SpeechStarted(turn.item_id, at_s, self._ear.stream_s(self._edge_at)))

    def _settle(self, turn: UserTurn) -> None:
        """A long stretch that has been recognised up to a pause is not recognised again."""
        if self._start is not None and turn.text and self._to - self._from > _SETTLE_S * ASR_RATE_HZ:
            self.settle(turn, self._to, turn.text, turn.language)

    def settle(self, turn: UserTurn, until: int, text: str, language: str | None) -> None:
        """The turn's audio up to a sample holds these words, and is not recognised again. The turn model may still
        look at its end."""
        turn.settled, turn.settled_language, self._from = text, language, until
        model = self._session.agent.stages.turn
        looks_at = 0 if model is None else int(model.window_s * ASR_RATE_HZ)
        self._ear.keep_from = max(self._start or 0, until - looks_at)

    def recognise(self, decision: Recognise) -> None:
        """Transcribe the turn's audio up to the pause."""
        turn = self._turn_of(decision.turn)
        self._partials.stop()
        self._drop_work(turn, Reason.SUPERSEDED)
        work = turn.new_work(decision.revision)
        if turn.speech_end is not None and self._now() >= turn.speech_end + self._session.options.min_delay_s:
            work.promote()  # it was put off until now, and the user waits for it
        stop = self._ear.log.end if decision.so_far else self._to
        hints = self._session.hints
        if decision.probe and self._session.language in (None, "en"):
            hints = (*hints, *ENGLISH_HINTS)
        ahead = None if decision.so_far or decision.probe else self._partials.ahead.take(self._from, work)
        work.run(
            self._transcribe(turn, decision.revision, self.audio(stop), hints, work, ahead),
            f"recognise {self._session.session_id}",
        )

    def judge(self, decision: Judge) -> None:
        """Ask the turn model whether the user is done, about the turn with so much silence after it."""
        turn = self._turn_of(decision.turn)
        model = self._session.agent.stages.turn
        if model is None or turn.work is None or turn.work.cancelled:
            return
        agent = self._session.agent
        sparing = agent.stages.service.rung >= Rung.FEWER_PARTIALS
        if sparing and decision.silence_s > agent.turn_end.look_again_s[0]:
            return  # it was asked at the beginning of the pause, and the load is too high to ask again
        stop = min(self._end + int(decision.silence_s * ASR_RATE_HZ), self._ear.log.end)
        start = stop if self._start is None else max(self._start, self._ear.log.start)
        audio = self._ear.log.read(start, max(start, stop))
        turn.work.run(self._judge(model, decision, audio, turn.work), f"judge {self._session.session_id}")

    async def _judge(self, model: TurnModel, decision: Judge, audio: Pcm16, scope: Scope) -> None:
        probability = await completion_of(model, audio, scope)
        if not scope.cancelled:
            self._feed(Judged(self._now(), decision.turn, decision.revision, decision.silence_s, probability))

    async def _transcribe(
        self,
        turn: UserTurn,
        revision: int,
        audio: Pcm16,
        hints: tuple[str, ...],
        scope: Scope,
        ahead: asyncio.Task[Words | VoiceError] | None,
    ) -> None:
        started, speech_s = self._now(), self.speech_s(audio)
        text, failed = "", False
        language: str | None = None
        try:
            settled = turn.settled_language
            words = words_of(ahead) if ahead else self.words(audio, speech_s, scope, hints, settled)
            text, language = await words
        except VoiceError as error:
            failed = True
            if not scope.cancelled:
                message = f"the user's words were lost: {error}"
                self._session.emit(Problem(message, kind_of(error), turn.item_id))
        except asyncio.CancelledError:
            if (
                not scope.cancelled
            ):  # the recogniser cancelled the task that asked it: the turn is still to end
                message = "the user's words were lost: the recogniser cancelled its caller"
                self._session.emit(Problem(message, "EngineFailed", turn.item_id))
                self._feed(
                    Heard(self._now(), turn.number, revision, turn.settled, self._session.around(), True)
                )
            raise
        if scope.cancelled:
            return
        turn.asr_s = self._now() - started
        turn.text, turn.lost = f"{turn.settled} {text}".strip(), failed
        turn.language = language or turn.settled_language
        if text:
            self._partials.heard(turn, turn.text, speech_s)
        around = self._session.around()
        self._feed(Heard(self._now(), turn.number, revision, turn.text, around, failed))

    async def words(
        self,
        audio: Pcm16,
        speech_s: float,
        scope: Scope,
        hints: tuple[str, ...],
        pending: str | None = None,
    ) -> tuple[str, str | None]:
        """The words of a stretch of audio, and the language that the session's changes to with them."""
        session = self._session
        transcript, language = await recognise_spoken(
            session.agent.stages, audio, scope, session.spoken, speech_s, pending=pending, hints=hints
        )
        return transcript.text.strip(), language

    def guess(self, decision: Guess) -> None:
        """Start an answer behind the gate; not where it would be in the language that was spoken before."""
        turn = self._turn_of(decision.turn)
        if turn.language is not None:
            return
        work = (
            turn.work
            if turn.work is not None and not turn.work.cancelled
            else turn.new_work(decision.revision)
        )
        if turn.reading is not None:
            turn.reading.cancel(Reason.SUPERSEDED)
        self._session.counters.guesses += 1
        self.guesses.started(self._now())
        turn.guess = self._answering.new(work, saying=decision.text)
        turn.guess.start()

    def take(self, decision: Commit) -> tuple[UserTurn, Response | None]:
        """The turn is certain: its words enter the history. Returns it with its guess, if that is any good."""
        turn = self._turn_of(decision.turn)
        turn.committed_at = self._now()
        start = self._start or 0
        self._session.chat.add_user(decision.text, item_id=turn.item_id)
        if not turn.lost:
            self._partials.count(turn, decision.text)
        if turn.language is not None:
            self._session.hears_language(turn.language)
        self.forget(self._to)
        audio_s = max(0, self._to - start) / ASR_RATE_HZ
        self._session.emit(UserSaid(turn.item_id, decision.text, audio_s))
        self._turn = None
        guess, turn.guess = turn.guess, None
        if turn.work is not None:
            turn.work.promote()
        if guess is not None and (guess.spoiled or guess.scope.cancelled):
            guess.scope.cancel(Reason.FAILED)
            self.ended_guess(kept=False)
            guess = None
        return turn, guess

    def close_empty(self, decision: CloseEmpty) -> None:
        """There were no words: the turn leaves no trace."""
        turn, self._turn = self._turn, None
        self.forget(self._to)
        if turn is None:
            return
        if not turn.lost:
            self._partials.count(turn, "")
        self._drop_work(turn, Reason.SUPERSEDED)
        turn.scope.cancel(Reason.SUPERSEDED)
        if decision.announced:
            self._session.counters.empty_turns += 1
            self._session.emit(UserSaid(turn.item_id, ""))
            self._apologise(turn)

    def _apologise(self, turn: UserTurn) -> None:
        """Who said something that was lost is told so, and asked to say it again."""
        session = self._session
        apology = session.agent.speech.apology
        if turn.lost and session.options.respond and apology and session.ended is None:
            try:
                session.say(apology)
            except Overloaded:
                log.warning("%s: no room to say that the user's words were lost", session.session_id)

    def skip(self, until: int) -> None:
        """Audio before a sample belongs to no turn but the one in progress."""
        self._heard_until = max(self._heard_until, until)

    def forget(self, until: int) -> None:
        """Audio before a sample belongs to turns that are over."""
        self._heard_until = max(self._heard_until, until)
        self._partials.stop()
        self._partials.ahead.drop()
        self._start = self._ear.keep_from = None
        self._voiced = 0
        # without turn detection, what came while the last turn was closed is the next one's
        if self._session.options.mode == "manual":
            self._keep()

    def _keep(self) -> None:
        """All audio that belongs to no turn yet is the next one's."""
        start = max(self._heard_until, self._ear.log.start)
        if start < self._ear.log.end:
            self._begin_at(start)

    def _begin_at(self, index: int) -> None:
        self._start = self._from = self._ear.keep_from = index

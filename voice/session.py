"""Session: one live conversation. The only place where ears, turns, engines, history and playout are wired together.

Read top to bottom it is the life of a turn: audio comes in (:meth:`Session.hear`), edges go to the
:class:`~voice.turns.TurnTaker`, and its decisions are carried out: recognise, guess, commit, hold, interrupt.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from voice import turn_events as turns
from voice.agent import Agent
from voice.answer_parts import Parts
from voice.audio import AudioFormat
from voice.chat import Chat
from voice.errors import BadRequest, EngineFailed, Overloaded, VoiceError
from voice.events import (
    AudioStarted,
    AudioStopped,
    Idle,
    Problem,
    ResponseEnded,
    SessionEnded,
    SessionEvent,
    SpeechStarted,
    SpeechStopped,
    TurnTimes,
    UserSaid,
)
from voice.executor import Executor, ThreadExecutor
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, ImagePart, Pcm16, Transcript, Transport
from voice.options import TurnOptions
from voice.playout import Playout, Track
from voice.response import Response
from voice.scope import Identity, Priority, Reason, Scope
from voice.sender import send_audio
from voice.turns import State, TurnTaker

log = logging.getLogger("voice")

_TAIL = int(0.2 * ASR_RATE_HZ)
"""Silence that a recogniser gets after the last word."""
_SETTLE_S = 20.0
"""Speech recognised at a pause and longer than this is not recognised again when the turn goes on."""
_MOST_SAYS = 16
_KEPT_RESPONSES = 4
"""Answers whose heard text a client may still correct."""


@dataclass(slots=True)
class _Turn:
    """A user turn on its way: its audio, its words, the guess that was built on them."""

    number: int
    item_id: str
    scope: Scope
    revision: int = 0
    settled: str = ""  # words of stretches that are not recognised again
    text: str = ""  # of the current revision, settled words included
    speech_end: float | None = None
    committed_at: float | None = None
    asr_s: float | None = None
    work: Scope | None = None  # recognition and guess of the current revision
    guess: Response | None = None


@dataclass(slots=True)
class Counters:
    """What happened in a session, in numbers."""

    turns: int = 0
    guesses: int = 0
    guesses_kept: int = 0
    guesses_dropped: int = 0
    barge_ins: int = 0
    false_alarms: int = 0
    empty_turns: int = 0


@dataclass(slots=True)
class _Outbox:
    """Events the owner has not taken yet."""

    events: deque[SessionEvent] = field(default_factory=deque)  # bounded by Limits.events
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Session:
    """One conversation with one caller.

    Use it as an async context manager, feed it with :meth:`hear`, and take audio from :attr:`playout` (or let it
    call the transport's ``send_audio``).

    Args:
        agent: Who the caller talks to.
        transport: Where the agent's audio goes.
        audio_format: What :meth:`hear` is given.
        session_id: Names the session in logs and identities; made up when ``None``.
        on_event: Called with each event, on the event loop; must be quick.
        scope: The process's scope; the session ends with it.
        executor: Runs blocking tools.

    Attributes:
        chat: The history, as it was heard.
        playout: The agent's voice.
        counters: What happened so far.
    """

    def __init__(
        self,
        agent: Agent,
        transport: Transport,
        *,
        audio_format: AudioFormat | None = None,
        session_id: str | None = None,
        on_event: Callable[[SessionEvent], None] | None = None,
        scope: Scope | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.agent, self.transport = agent, transport
        self.session_id = session_id or f"sess_{uuid.uuid4().hex[:16]}"
        self.counters = Counters()
        self.ended: str | None = None
        self.options = agent.turns
        self._format = audio_format or AudioFormat()
        self._on_event = on_event
        self._outbox: _Outbox | None = None
        self._process, self._executor = scope, executor
        self._own_executor: ThreadExecutor | None = None
        self._started = False
        self._heard_until = 0  # audio before this index belongs to earlier turns
        self._audio_from: int | None = None
        self._audio_to = 0
        self._turn: _Turn | None = None
        self._response: Response | None = None
        self._answered: _Turn | None = None  # the turn that the live response answers
        self._past: deque[Response] = deque(maxlen=_KEPT_RESPONSES)
        self._says: deque[Response] = deque(maxlen=_MOST_SAYS)
        self._unshown: set[str] = set()  # calls whose result came after their answer was cut
        self._inbox: deque[turns.TurnInput] = deque()  # filled only while one is being carried out
        self._feeding = False
        self._wake: asyncio.TimerHandle | None = None
        self._responses = 0

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Session:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to listen; says the greeting."""
        if self._started or self.ended:
            raise BadRequest("a session is started once")
        self._started = True
        agent, capabilities = self.agent, self.transport.capabilities
        limits = agent.limits
        context_tokens = getattr(agent.stages.model, "context_tokens", None)
        if context_tokens is not None:  # leave a quarter for the answer; about three characters are a token
            limits = replace(
                limits, history_chars=min(limits.history_chars, max(200, context_tokens * 9 // 4))
            )
        self.scope = Scope("session", parent=self._process, identity=Identity(self.session_id, 0, 0))
        self.scope.on_cancel(lambda reason: self._end(str(reason)))
        self.tool_scope = self.scope.child("tool")
        self.chat = Chat(agent.instructions, limits)
        self.playout = Playout(capabilities, self._audible, self._drained)
        self.ear = Ear(agent.stages.detector, self.options, limits, self._format, self._began, self._paused)
        self.taker = TurnTaker(self.options, capabilities.playout)
        if self._executor is None:
            self._own_executor = self._executor = ThreadExecutor(f"tools-{self.session_id}", threads=4)
        self._parts = Parts(
            agent.stages,
            self.chat,
            agent.tool_table(),
            agent.model_options,
            agent.speech,
            limits,
            self._executor,
            capabilities.sample_rate,
            agent.voice,
            agent.language,
        )
        if capabilities.playout == "flush_only":
            self.scope.run(send_audio(self), f"sender {self.session_id}")
        self.taker.listen(self._now())
        self._rearm()
        if agent.greeting:
            self.say(agent.greeting)

    async def close(self, reason: str = "closed") -> None:
        """Hang up: silence at once, then wait a moment for what still unwinds."""
        self._end(reason)
        if self._started:
            await self.scope.reaper.drain(self.agent.limits.close_s)

    def hang_up(self, reason: str = "closed") -> None:
        """End the session from within (a tool, a callback): returns at once, never waits for itself."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        if not self._started:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._cut(Reason.CLOSED)
        self.scope.cancel(Reason.CLOSED)
        for said in self._says:
            said.scope.cancel(Reason.CLOSED)
        self._says.clear()
        self.ear.close()
        if self._own_executor is not None:
            self._own_executor.close()
        counters = {name: getattr(self.counters, name) for name in Counters.__slots__}
        self._tell(SessionEnded(reason, counters))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------ what comes in

    def hear(self, pcm: bytes | Pcm16) -> None:
        """The caller's audio, as it comes. Plain and quick: called for every frame.

        Raises:
            BadAudio: Not what the declared format says; the session goes on.
        """
        if self.ended is None:
            self.ear.hear(pcm, self._now())
            if self.options.mode == "manual":
                self._hear_manually()

    def _hear_manually(self) -> None:
        """Without turn detection all audio since the last turn belongs to the next one."""
        if self._audio_from is None:
            self._audio_from = self.ear.keep_from = self._heard_until
        elif self.ear.log.end - self._audio_from >= self.options.max_turn_s * ASR_RATE_HZ:
            self.commit()

    def send_text(self, text: str, *, answer: bool = True) -> str:
        """The user wrote something; interrupts the agent if it speaks and ``answer``. Returns the item's id.

        Raises:
            BadRequest: Empty or too long.
        """
        self._check_live()
        most = self.agent.limits.text_input_chars
        if not isinstance(text, str) or not text.strip() or len(text) > most:
            raise BadRequest(f"a typed message has 1 to {most} characters")
        entry = self.chat.add_user(text.strip())
        self._feed(turns.Typed(self._now(), answer))
        return entry.item_id

    def send_image(self, data: bytes, media_type: str, text: str = "", *, answer: bool = False) -> str:
        """The user shows a picture (PNG, JPEG or WebP, encoded). Returns the item's id.

        Raises:
            BadRequest: Another type, or too large.
        """
        self._check_live()
        if media_type not in ("image/png", "image/jpeg", "image/webp"):
            raise BadRequest(f"{media_type} pictures can't be used; send PNG, JPEG or WebP")
        if not data or len(data) > self.agent.limits.image_bytes:
            raise BadRequest(
                f"a picture has 1 to {self.agent.limits.image_bytes} bytes, this one {len(data)}"
            )
        if len(text) > self.agent.limits.text_input_chars:
            raise BadRequest(
                f"text with a picture has at most {self.agent.limits.text_input_chars} characters"
            )
        entry = self.chat.add_user(text, [ImagePart(data, media_type)])
        self._feed(turns.Typed(self._now(), answer))
        return entry.item_id

    def commit(self) -> None:
        """The user is done (push to talk, or a client's commit): answer what was said since the last turn."""
        self._check_live()
        if self._audio_from is None:
            raise BadRequest("nothing was said since the last turn")
        self._audio_to = self.ear.log.end
        self._feed(turns.Committed(self._now()))

    def clear(self) -> None:
        """Forget what the user said since the last turn."""
        self._check_live()
        self._feed(turns.Cleared(self._now()))
        if self.taker.state is not State.HELD:
            self._forget_audio(self.ear.log.end)

    def interrupt(self) -> None:
        """Stop what the agent says, as the owner or the client asks. Does nothing when it is silent."""
        self._check_live()
        self._feed(turns.Stopped(self._now()))

    def truncate(self, item_id: str, heard_s: float) -> None:
        """The client says how much of an answer was heard; this corrects the history. Stops it if it is live.

        Args:
            item_id: The answer's item (or response) id.
            heard_s: Seconds of its audio that were played; clamped to what was made.

        Raises:
            BadRequest: No such answer, or it is too long ago.
        """
        self._check_live()
        live = self._response
        if live is not None and item_id in (live.item_id, live.response_id):
            self.interrupt()
        for response in self._past:
            if item_id in (response.item_id, response.response_id):
                response.conclude(max(0, int(heard_s * self.playout.rate_hz)))
                return
        raise BadRequest(f"there is no answer {item_id} that could be cut")

    def say(self, text: str) -> Response:
        """Have the agent say something: now if nobody speaks, else when the floor is free.

        Returns:
            The answer; await its ``done``.

        Raises:
            BadRequest: Empty text, or the session is over.
            Overloaded: Too much is waiting to be said.
        """
        self._check_live()
        if not text.strip():
            raise BadRequest("there is nothing to say")
        if len(self._says) >= _MOST_SAYS:
            raise Overloaded(f"{_MOST_SAYS} things are waiting to be said already")
        response = self._new_response(self.scope, text=text)
        self._says.append(response)
        if not self._feeding:
            self._after()
        return response

    def configure(self, options: TurnOptions) -> None:
        """Use other turn options from now on."""
        self.options = options
        self.taker.configure(options)
        self.ear.options = options

    def _check_live(self) -> None:
        if not self._started or self.ended is not None:
            raise BadRequest("the session is over" if self.ended else "the session has not started")

    # ------------------------------------------------------------ edges → decisions

    def _began(self, index: int) -> None:
        if self._audio_from is None:
            start = index - int(self.options.pre_roll_s * ASR_RATE_HZ)
            self._audio_from = self.ear.keep_from = max(start, self._heard_until, self.ear.log.start)
        self._feed(turns.SpeechBegan(self._now(), self.ear.time_of(index)))

    def _paused(self, index: int) -> None:
        self._audio_to = min(index + _TAIL, self.ear.log.end)
        self._feed(turns.SpeechPaused(self._now(), self.ear.time_of(index)))
        turn = self._turn
        if turn is not None:
            turn.speech_end = self.ear.time_of(index)
            self.emit(SpeechStopped(turn.item_id, index / ASR_RATE_HZ))

    def _tick(self) -> None:
        self._wake = None
        self._feed(turns.Tick(self._now(), self.ear.time_of(self.ear.voiced_until)))

    def _feed(self, event: turns.TurnInput) -> None:
        """Tell the turn taker and carry out what it decides; what happens meanwhile waits for its turn."""
        self._inbox.append(event)
        if self._feeding or self.ended is not None:
            return
        self._feeding = True
        try:
            while self._inbox and self.ended is None:
                for decision in self.taker.feed(self._inbox.popleft()):
                    self._carry_out(decision)
        finally:
            self._feeding = False
        if self.ended is None:
            self._after()

    def _after(self) -> None:
        """When the floor is free: what waits to be said, then results that came too late for their answer."""
        if self.taker.state is State.LISTENING:
            if self._says:
                self._feed(turns.Spoke(self._now()))
                self._answer(self._says.popleft(), None)
                return
            if self._unshown:
                self._unshown.clear()
                self._feed(turns.Typed(self._now()))
                return
        self._rearm()

    def _rearm(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        at = self.taker.wake_at
        self._wake = None if at is None else asyncio.get_running_loop().call_at(at, self._tick)

    def _carry_out(self, decision: turns.Decision) -> None:
        match decision:
            case turns.OpenTurn():
                self._open_turn(decision)
            case turns.Reopen():
                self._reopen(decision)
            case turns.Recognise():
                self._recognise(decision)
            case turns.Guess():
                self._guess(decision)
            case turns.Commit():
                self._commit(decision)
            case turns.CloseEmpty():
                self._close_empty(decision)
            case turns.Respond():
                self._respond()
            case turns.Hold():
                self.playout.hold()
            case turns.Release():
                self.counters.false_alarms += 1
                self.playout.release()
            case turns.Interrupt():
                self.counters.barge_ins += decision.reason is Reason.BARGE_IN
                self._cut(decision.reason)
            case turns.CutInput():
                self._audio_to = self.ear.log.end
                self.ear.cut()
            case turns.GoneIdle():
                self.emit(Idle(self.options.idle_s or 0.0))

    # ------------------------------------------------------------ the user's turn

    def _open_turn(self, decision: turns.OpenTurn) -> None:
        turn = self._turn_of(decision.turn)
        turn.revision = decision.revision
        self.emit(SpeechStarted(turn.item_id, (self._audio_from or 0) / ASR_RATE_HZ))

    def _turn_of(self, number: int) -> _Turn:
        """The turn in progress; made when a sound is first looked at, announced or not."""
        if self._turn is None or self._turn.number != number:
            identity = Identity(self.session_id, number, 0)
            self._turn = _Turn(number, self.chat.new_id(), self.scope.child("turn", identity=identity))
        return self._turn

    def _reopen(self, decision: turns.Reopen) -> None:
        turn = self._turn_of(decision.turn)
        self._drop_guess(turn, Reason.RESUMED)
        turn.revision = decision.revision
        if decision.speech:
            self._settle(turn)
            self.emit(SpeechStarted(turn.item_id, (self._audio_from or 0) / ASR_RATE_HZ))

    def _settle(self, turn: _Turn) -> None:
        """A long stretch that has been recognised up to a pause is not recognised again."""
        start = self._audio_from
        if start is not None and turn.text and self._audio_to - start > _SETTLE_S * ASR_RATE_HZ:
            turn.settled = turn.text
            self._audio_from = self.ear.keep_from = self._audio_to

    def _drop_guess(self, turn: _Turn, reason: Reason) -> None:
        if turn.work is not None:
            turn.work.cancel(reason)
            turn.work = None
        if turn.guess is not None:
            turn.guess = None
            self.counters.guesses_dropped += 1

    def _recognise(self, decision: turns.Recognise) -> None:
        turn = self._turn_of(decision.turn)
        self._drop_guess(turn, Reason.SUPERSEDED)
        turn.revision = decision.revision
        identity = Identity(self.session_id, decision.turn, decision.revision)
        turn.work = turn.scope.child("speculation", identity=identity, priority=Priority.SPECULATIVE)
        start = self._audio_to if self._audio_from is None else self._audio_from
        audio = self.ear.log.read(max(start, self.ear.log.start), max(start, self._audio_to))
        turn.work.run(
            self._transcribe(turn, decision.revision, audio, turn.work), f"recognise {self.session_id}"
        )

    async def _transcribe(self, turn: _Turn, revision: int, audio: Pcm16, scope: Scope) -> None:
        started = self._now()
        text = ""
        try:
            text = (await self._transcript(audio, scope)).text
        except VoiceError as error:
            if not scope.cancelled:
                self.emit(Problem(f"the user's words were lost: {error}", type(error).__name__))
        if scope.cancelled:
            return
        turn.asr_s = self._now() - started
        turn.text = f"{turn.settled} {text.strip()}".strip()
        self._feed(turns.Heard(self._now(), turn.number, revision, turn.text))

    async def _transcript(self, audio: Pcm16, scope: Scope) -> Transcript:
        """Recognise, once more after a failure that may pass; bounded by a limit that grows with the audio."""
        recogniser = self.agent.stages.recogniser
        limit_s = 15.0 + audio.size / ASR_RATE_HZ
        for last in (False, True):
            try:
                async with asyncio.timeout(limit_s):
                    return await recogniser.transcribe(audio, scope, language=self.agent.language)
            except TimeoutError:
                raise EngineFailed(f"{recogniser.name} gave no answer within {limit_s:.0f} s") from None
            except EngineFailed as error:
                if last or not error.retryable or scope.cancelled:
                    raise
            except VoiceError:
                raise
            except Exception as error:
                log.warning("the recogniser %s failed", recogniser.name, exc_info=error)
                raise EngineFailed(
                    f"{recogniser.name} failed: {type(error).__name__}: {error}"[:300]
                ) from error
        raise EngineFailed(f"{recogniser.name} gave no answer")

    def _guess(self, decision: turns.Guess) -> None:
        turn = self._turn_of(decision.turn)
        if turn.work is None or turn.work.cancelled:
            identity = Identity(self.session_id, decision.turn, decision.revision)
            turn.work = turn.scope.child("speculation", identity=identity, priority=Priority.SPECULATIVE)
        self.counters.guesses += 1
        turn.guess = self._new_response(turn.work, saying=decision.text)
        turn.guess.start()

    def _commit(self, decision: turns.Commit) -> None:
        turn = self._turn_of(decision.turn)
        self.counters.turns += 1
        turn.committed_at = self._now()
        start = self._audio_from or 0
        self.chat.add_user(decision.text, item_id=turn.item_id)
        self._forget_audio(self._audio_to)
        self.emit(UserSaid(turn.item_id, decision.text, max(0, self._audio_to - start) / ASR_RATE_HZ))
        self._turn = None
        guess, turn.guess = turn.guess, None
        if turn.work is not None:
            turn.work.promote()
        if guess is not None and not guess.spoiled and not guess.scope.cancelled:
            self.counters.guesses_kept += 1
            self._answer(guess, turn)
            return
        if guess is not None:
            guess.scope.cancel(Reason.FAILED)
        self._answer(self._new_response(turn.scope), turn)

    def _close_empty(self, decision: turns.CloseEmpty) -> None:
        turn, self._turn = self._turn, None
        self._forget_audio(self._audio_to)
        if turn is None:
            return
        self._drop_guess(turn, Reason.SUPERSEDED)
        turn.scope.cancel(Reason.SUPERSEDED)
        if decision.announced:
            self.counters.empty_turns += 1
            self.emit(UserSaid(turn.item_id, ""))

    def _forget_audio(self, until: int) -> None:
        self._heard_until = max(self._heard_until, until)
        self._audio_from = self.ear.keep_from = None

    # ------------------------------------------------------------ the answer

    def _new_response(self, scope: Scope, *, saying: str | None = None, text: str | None = None) -> Response:
        self._responses += 1
        return Response(
            self._parts,
            self,
            scope.child("response", timeout_s=self.agent.speech.timeout_s),
            response_id=f"resp_{self.session_id[-6:]}_{self._responses:05d}",
            saying=saying,
            text=text,
            context=self,
        )

    def _respond(self) -> None:
        identity = Identity(self.session_id, self.taker.turn, 0)
        self._answer(self._new_response(self.scope.child("turn", identity=identity)), None)

    def _answer(self, response: Response, turn: _Turn | None) -> None:
        """The gate opens: from here on the answer is real."""
        self._response, self._answered = response, turn
        self._unshown.clear()
        begun = response.scope.cancelled or response.made or response.times.model_called is not None
        response.open()
        if not begun:
            response.start()
        response.scope.on_cancel(lambda reason: self._deadline(response, reason))
        self.playout.play(response.track)

    def _deadline(self, response: Response, reason: Reason) -> None:
        """An answer that ran into its hard end is over; what was heard of it stays."""
        if reason is Reason.DEADLINE and self._response is response:
            asyncio.get_running_loop().call_soon(self._stop_late, response)

    def _stop_late(self, response: Response) -> None:
        if self._response is response and self.ended is None:
            self._feed(turns.Stopped(self._now()))

    def _audible(self, track: Track) -> None:
        response = self._response
        if response is None or response.track is not track:
            return
        now = response.times.audible = self._now()
        self._feed(turns.Audible(now))
        self.emit(AudioStarted(response.response_id, self.ear.stream_s(now)))

    def _drained(self, track: Track) -> None:
        """All audio has left; the answer is over when the ear has it."""
        asyncio.get_running_loop().call_soon(self._finish, track, self._now())

    def _finish(self, track: Track, since: float) -> None:
        response = self._response
        if response is None or response.track is not track or self.ended is not None:
            return
        now = self._now()
        left_s = self.playout.ahead_s(now)
        waiting = self.playout.held or (left_s > 0 and now < since + self.agent.limits.playout_s)
        if waiting or not response.made:
            asyncio.get_running_loop().call_later(max(0.02, min(left_s, 0.5)), self._finish, track, since)
            return
        self.playout.drop()
        self._conclude(response, None, "completed")
        self._feed(turns.Finished(self._now()))

    def _cut(self, reason: Reason) -> None:
        """Silence first; then everything that makes the answer is told to stop; then the history is put right."""
        response = self._response
        if response is None:
            return
        dropped = self.playout.drop()
        if dropped is not None and self.playout.capabilities.playout == "flush_only":
            self.transport.clear_audio()
        response.scope.cancel(reason)
        position = 0 if dropped is None else dropped[1]
        self._conclude(response, position, "interrupted" if position > 0 else "cancelled")

    def _conclude(self, response: Response, position: int | None, status: str) -> None:
        turn = self._answered
        self._response = self._answered = None
        heard = response.conclude(position)
        self._past.append(response)
        if response.failed is not None and not heard:
            status = "failed"
        if response.times.audible is not None:
            self.emit(AudioStopped(response.response_id, self.ear.stream_s(self._now())))
        self.emit(
            ResponseEnded(
                response.response_id,
                response.item_id,
                status,
                heard,
                response.generated,
                self._times(response, turn),
                response.usage,
                user_text="" if turn is None else turn.text,
                error=response.failed,
            )
        )
        response.scope.close()
        if turn is not None:
            turn.scope.close()

    def _times(self, response: Response, turn: _Turn | None) -> TurnTimes:
        times, ear = response.times, self.ear
        end = None if turn is None else turn.speech_end
        return TurnTimes(
            speech_end_s=None if end is None else ear.stream_s(end),
            first_audio_s=None if times.audible is None else ear.stream_s(times.audible),
            voice_to_voice_ms=_ms(end, times.audible),
            endpoint_ms=None if turn is None else _ms(end, turn.committed_at),
            asr_ms=None if turn is None or turn.asr_s is None else turn.asr_s * 1000.0,
            llm_first_token_ms=_ms(times.model_called, times.first_token),
            tts_first_audio_ms=_ms(times.synthesis_called, times.first_audio),
            gate_to_audio_ms=_ms(times.opened, times.audible),
            speculated=times.opened is not None and times.started < times.opened - 1e-4,
        )

    def late_result(self, call_id: str) -> None:
        """A tool of a cut answer returned: the next answer is shown it; if nobody speaks, there is one now."""
        if self.ended is None:
            self._unshown.add(call_id)
            if not self._feeding:
                self._after()

    # ------------------------------------------------------------ what goes out

    @property
    def state(self) -> State:
        """Whose turn it is."""
        return self.taker.state

    def is_quiet(self) -> bool:
        """Whether nobody speaks and nothing is owed: the caller has the floor."""
        return self.ended is not None or (
            self.taker.state is State.LISTENING
            and not self._says
            and not self._unshown
            and not self.ear.speaking
        )

    def emit(self, event: SessionEvent) -> None:
        """Tell the owner (callback, then :meth:`events`)."""
        if self.ended is None:
            self._tell(event)

    def _tell(self, event: SessionEvent) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("the event callback of %s failed on %s", self.session_id, type(event).__name__)
        box = self._outbox
        if box is not None:
            box.events.append(event)
            box.news.set()
            if len(box.events) > self.agent.limits.events and self.ended is None:
                log.warning("%s: its owner takes no events; closing it", self.session_id)
                self._end("events_overflow")

    async def events(self) -> AsyncIterator[SessionEvent]:
        """The events from now on, one consumer; ends after ``SessionEnded``.

        Take them: a session whose events pile up beyond ``Limits.events`` is closed.
        """
        if self._outbox is not None:
            raise BadRequest("the session's events are being taken already")
        box = self._outbox = _Outbox()
        try:
            while True:
                while box.events:
                    event = box.events.popleft()
                    yield event
                    if isinstance(event, SessionEnded):
                        return
                if self.ended is not None:
                    return
                box.news.clear()
                await box.news.wait()
        finally:
            self._outbox = None


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000.0

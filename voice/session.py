"""Session: one live conversation. The only place where ears, turns, engines, history and playout are wired together.

Read top to bottom it is the life of a turn: audio comes in (:meth:`Session.hear`), edges go to the
:class:`~voice.turns.TurnTaker`, and its decisions are carried out: recognise, guess, commit, hold, interrupt.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from voice import turn_events as turns
from voice.agent import Agent
from voice.answer_parts import Parts
from voice.answering import Answering
from voice.audio import AudioFormat
from voice.chat import Chat
from voice.controls import Controls
from voice.degradation import Rung
from voice.echo import OwnVoice
from voice.errors import BadRequest
from voice.events import Idle, SessionEnded, SessionEvent
from voice.executor import Executor, ThreadExecutor
from voice.hearing import Ear
from voice.interfaces import Pcm16, Transport
from voice.keypad import Keypad
from voice.language import SpokenLanguage
from voice.listening import Listening
from voice.metrics import Counters
from voice.options import AnswerOptions, TurnOptions
from voice.outbox import Outbox
from voice.playout import Playout
from voice.scope import Identity, Reaper, Reason, Scope
from voice.sender import send_audio
from voice.speculation import Level
from voice.turns import State, TurnTaker

_LATELY_S = 1.2
"""Words of the agent that may be in a sound: of the pre-roll, and of the way from the loudspeaker and back."""


class Session(Controls):
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
        options: Whose turn it is, when not as the agent's ``turns`` say.
        answers: How answers are made, when not as the agent does.
        language: Of the user's voice, when not the agent's; it stays, whatever is heard.

    Attributes:
        chat: The history, as it was heard.
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
        options: TurnOptions | None = None,
        answers: AnswerOptions | None = None,
        language: str | None = None,
    ) -> None:
        self.agent, self.transport = agent, transport
        self.session_id = session_id or f"sess_{uuid.uuid4().hex[:16]}"
        self.counters = Counters()
        self.ended: str | None = None
        self.options = options or agent.turns
        self.spoken = SpokenLanguage(
            language or agent.language, agent.stages.recogniser.capabilities.languages
        )
        self.hints = ()
        self._answers = answers or AnswerOptions()
        self._ending = False
        self._keypad = Keypad()
        self._keys_due: asyncio.TimerHandle | None = None
        self._format = audio_format or AudioFormat()
        self._outbox = Outbox(agent.limits.events, on_event, lambda: self._end("events_overflow"))
        self._process, self._executor = scope, executor
        self._own_executor: ThreadExecutor | None = None
        self._started = False
        self._unshown: set[str] = set()  # calls whose result came after their answer was cut
        self._inbox: deque[turns.TurnInput] = deque()  # filled only while one is being carried out
        self._later: deque[tuple[Callable[[int], None], int]] = deque(maxlen=64)  # edges behind a closed turn
        self._feeding = False
        self._wake: asyncio.TimerHandle | None = None

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
        agent, capabilities = self.agent, self.transport.capabilities
        limits = agent.limits
        window_tokens = getattr(agent.stages.model, "window_tokens", None)
        if window_tokens is not None:  # leave a quarter for the answer; about three characters are a token
            limits = replace(
                limits, history_chars=min(limits.history_chars, max(200, window_tokens * 9 // 4))
            )
        self.chat = Chat(agent.instructions, limits, tag=self.session_id[-6:])
        self.ear = Ear(
            agent.stages.detector, self.options, limits, self._format, self._began, self._paused, self._hushed
        )
        self.taker = TurnTaker(
            self.options,
            capabilities.playout,
            agent.turn_end,
            agent.interruptions,
            judges=agent.stages.turn is not None,
            language=self.language,
        )
        if self._executor is None:
            self._own_executor = self._executor = ThreadExecutor(f"tools-{self.session_id}", threads=4)
        parts = Parts(
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
        name = self.session_id[-6:]
        self._answering = Answering(parts, self, self, self.transport, self.ear, self._feed, name)
        self._speak_language()
        self._use_answers(self._answers)
        self._guard_ear()
        self._started = True  # what may raise is done: from here on there is something to end
        self.scope = Scope(
            "session", parent=self._process, identity=Identity(self.session_id, 0, 0), reaper=Reaper()
        )
        self.scope.on_cancel(lambda reason: self._end(str(reason)))
        self.tool_scope = self.scope.child("tool")
        self._listening = Listening(self, self.ear, self._answering, self.scope, self._feed)
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
        if self.ended is not None or self._ending:
            return
        self._ending = True
        if not self._started:
            self.ended = reason
            return
        self._feeding = True  # what the owner asks for when it is told of the end comes to nothing
        self._answering.close()
        self.ended = reason
        for timer in (self._wake, self._keys_due):
            if timer is not None:
                timer.cancel()
        self.scope.cancel(Reason.CLOSED)
        self.ear.close()
        if self._own_executor is not None:
            self._own_executor.close()
        counters = {name: getattr(self.counters, name) for name in Counters.__slots__}
        self._outbox.put(SessionEnded(reason, counters))

    # ------------------------------------------------------------ what comes in

    def hear(self, pcm: bytes | Pcm16) -> None:
        """The caller's audio, as it comes. Plain and quick: called for every frame.

        Raises:
            BadAudio: Not what the declared format says; the session goes on.
        """
        if not self._started:
            self._check_live()
        if self.ended is None:
            self.ear.hear(pcm, self._now())
            if self._listening.is_full(self.options):
                self.ear.cut()
                self.commit()

    # ------------------------------------------------------------ edges → decisions

    def _began(self, index: int) -> None:
        if self.taker.closing:
            self._later.append((self._began, index))
            return
        now = self._now()
        self._listening.began(index, now)
        self._feed(turns.SpeechBegan(now, self.ear.time_of(index), self.around()))

    def _paused(self, index: int) -> None:
        if self.taker.closing:
            self._later.append((self._paused, index))
            return
        self._listening.paused(index)
        now = self._now()
        level = self._listening.guesses.level(now) if self.options.speculate else Level.NONE
        start, end = self._listening.speech_start, self.ear.time_of(index)
        self._feed(turns.SpeechPaused(now, end, self.around(), level, start))
        self._listening.note_pause(index, now)

    def _hushed(self) -> None:
        if not self.taker.closing:
            self._listening.hushed()

    def _tick(self) -> None:
        self._wake = None
        self.ear.notice_gap(self._now())
        until = self.ear.time_of(self.ear.voiced_until)
        self._feed(turns.Tick(self._now(), until, self.around(), self._listening.speech_start))

    def around(self) -> turns.Around:
        """What is known, beside the sound itself, of a sound over the agent's voice."""
        if self.taker.state not in (State.SPEAKING, State.HELD):
            return turns.NOTHING_AROUND
        guard = self.ear.guard
        echoes = guard is not None and guard.echoes
        return turns.Around(
            over_noise_db=self._listening.over_noise_db(),
            echoes=echoes,
            agent_text=self._answering.lately_said(_LATELY_S) if echoes else "",
            asked=self._answering.asks,
            language=self.language,
            sparing=self.agent.stages.service.rung >= Rung.FEWER_PARTIALS,
        )

    def _guard_ear(self) -> None:
        """Compare what comes in with what goes out, from now on, or no longer."""
        playout = self.playout
        if not self.options.echo_guard:
            self.ear.guard = playout.on_played = playout.on_silenced = None
        elif self.ear.guard is None:
            guard = self.ear.guard = OwnVoice(playout.rate_hz)
            playout.on_played, playout.on_silenced = guard.played, guard.silenced

    def was_heard(self, text: str) -> None:
        """What the agent said last: the user's next words may be the answer to it."""
        self.taker.certainty.agent_said = text

    def _feed(self, event: turns.TurnInput) -> None:
        """Tell the turn taker and carry out what it decides; what happens meanwhile waits for its turn."""
        self._inbox.append(event)
        self._take_inbox()

    def _take_inbox(self) -> None:
        if self._feeding or self.ended is not None:
            return
        self._feeding = True
        try:
            while self._inbox and self.ended is None:
                for decision in self.taker.feed(self._inbox.popleft()):
                    if self.ended is None:  # the owner may hang up in the middle
                        self._carry_out(decision)
        finally:
            self._feeding = False
        if self.ended is None:
            self._after()

    def feed_after(self, work: Callable[[], None], event: turns.TurnInput) -> None:
        """Do ``work`` and tell the turn taker; what the owner, told meanwhile, does about it comes after."""
        at, feeding = len(self._inbox), self._feeding
        self._feeding = True
        try:
            work()
        finally:
            self._feeding = feeding
        self._inbox.insert(at, event)
        self._take_inbox()

    def _after(self) -> None:
        """What had to wait: edges behind a turn that was being closed, things to say, results that came late."""
        while self._later and not self.taker.closing:
            edge, index = self._later.popleft()
            edge(index)
        if self.taker.state is State.LISTENING:
            response = self._answering.next_waiting()
            if response is not None:
                self._feed(turns.Spoke(self._now(), response.asked_for, response.interruptible))
                self._answering.begin(response, None)
                return
            if self._unshown and self.options.respond:
                self._unshown.clear()
                self._feed(turns.Typed(self._now()))
                return
        self._rearm()

    def _rearm(self) -> None:
        self.ear.eager = self.taker.state is State.SPEAKING
        if self._wake is not None:
            self._wake.cancel()
        at = self.taker.wake_at
        self._wake = None if at is None else asyncio.get_running_loop().call_at(at, self._tick)

    def _carry_out(self, decision: turns.Decision) -> None:
        match decision:
            case turns.OpenTurn():
                self._listening.open(decision)
            case turns.Reopen():
                self._listening.reopen(decision)
            case turns.Recognise():
                self._listening.recognise(decision)
            case turns.Judge():
                self._listening.judge(decision)
            case turns.Guess():
                self._listening.guess(decision)
            case turns.Commit():
                self._commit(decision)
            case turns.CloseEmpty():
                self._listening.close_empty(decision)
            case turns.Respond():
                self._respond()
            case turns.Hold():
                self.playout.hold()
            case turns.Release():
                self.counters.false_alarms += 1
                self.playout.release()
            case turns.Interrupt():
                self.counters.barge_ins += decision.reason is Reason.BARGE_IN
                self._answering.cut(decision.reason)
            case turns.CutInput():
                self._listening.cut_input(decision)
            case turns.GoneIdle():
                self.emit(Idle(self.options.idle_s or 0.0))

    # ------------------------------------------------------------ the answer

    def _commit(self, decision: turns.Commit) -> None:
        """The user's words enter the history and the gate opens, or, without a good guess, the answer starts."""
        turn, guess = self._listening.take(decision)
        self.counters.turns += 1
        if self.ended is not None:  # the owner hung up when it was told
            return
        if not decision.respond:
            if guess is not None:
                self._listening.ended_guess(kept=False)
            turn.scope.close()
            return
        response = self._answering.next_waiting(asked_for=True)
        if guess is not None:
            self._listening.ended_guess(kept=response is None)
        if response is not None and guess is not None:
            guess.scope.cancel(Reason.SUPERSEDED)
        self._answering.begin(response or guess or self._answering.new(turn.scope), turn)

    def _respond(self) -> None:
        """Answer the history as it stands."""
        response = self._answering.next_waiting(asked_for=True)
        if response is None:
            identity = Identity(self.session_id, self.taker.turn, 0)
            response = self._answering.new(self.scope.child("turn", identity=identity))
        self._answering.begin(response, None)

    def late_result(self, call_id: str) -> None:
        """A tool of a cut answer returned: the next answer is shown it; if nobody speaks, there is one now."""
        if self.ended is None:
            self._unshown.add(call_id)
            if not self._feeding:
                self._after()

    def saw_results(self, call_ids: set[str]) -> None:
        """An answer was made knowing the results of these calls: they need no answer of their own."""
        self._unshown -= call_ids

    # ------------------------------------------------------------ what goes out

    @property
    def playout(self) -> Playout:
        """The agent's voice."""
        return self._answering.playout

    @property
    def state(self) -> State:
        """Whose turn it is."""
        return self.taker.state

    def is_quiet(self) -> bool:
        """Whether nobody speaks and nothing is owed: the caller has the floor."""
        if self.ended is not None:
            return True
        owed = self._answering.waiting or (bool(self._unshown) and self.options.respond)
        return self.taker.state is State.LISTENING and not owed and not self.ear.speaking

    def emit(self, event: SessionEvent) -> None:
        """Tell the owner (callback, then :meth:`events`)."""
        if self.ended is None:
            self._outbox.put(event)

    def events(self) -> AsyncIterator[SessionEvent]:
        """The events from now on, for one consumer; they end after ``SessionEnded``.

        Take them: a session whose events pile up beyond ``Limits.events`` is closed.
        """
        return self._outbox.take()

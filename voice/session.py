"""Session: one live conversation. The only place where ears, turns, engines, history and playout are wired together.

Read top to bottom it is the life of a turn: audio comes in (:meth:`Session.hear`), edges go to the
:class:`~voice.turns.TurnTaker`, and its decisions are carried out: recognise, guess, commit, hold, interrupt.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from voice import turn_events as turns
from voice.agent import Agent
from voice.answer_parts import Parts
from voice.answering import Answering
from voice.audio import AudioFormat
from voice.chat import Chat, Entry, ToolEntry, UserEntry
from voice.errors import BadAudio, BadRequest
from voice.events import Idle, KeysPressed, SessionEnded, SessionEvent
from voice.executor import Executor, ThreadExecutor
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, ImagePart, Pcm16, Transport
from voice.keypad import Keypad
from voice.listening import Listening
from voice.metrics import Counters
from voice.options import AnswerOptions, TurnOptions
from voice.outbox import Outbox
from voice.playout import Playout
from voice.response import Response
from voice.scope import Identity, Reaper, Reason, Scope
from voice.sender import send_audio
from voice.turns import State, TurnTaker


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
        options: Whose turn it is, when not as the agent's ``turns`` say.
        answers: How answers are made, when not as the agent does.
        language: Of the user's voice, when not the agent's.

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
        self.language = language or agent.language
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
        self.ear = Ear(agent.stages.detector, self.options, limits, self._format, self._began, self._paused)
        self.taker = TurnTaker(self.options, capabilities.playout)
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
        self._use_answers(self._answers)
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

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

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
        if not isinstance(data, bytes) or not isinstance(text, str):
            raise BadRequest("a picture is given as encoded bytes, with text as a string")
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

    def commit(self) -> str | None:
        """The user is done (push to talk, or a client's commit): answer what was said since the last turn.

        Returns:
            The id of the user's item; ``None`` when a turn is being closed already (what was said since then
            belongs to the next one).

        Raises:
            BadRequest: Nothing was said.
        """
        self._check_live()
        if self.taker.closing:
            return None
        if not self._listening.end_here():
            raise BadRequest("nothing was said since the last turn")
        self._feed(turns.Committed(self._now()))
        return self._listening.item_id

    @property
    def stream_s(self) -> float:
        """Seconds of the caller's stream now: the time of the events."""
        return self.ear.stream_s(self._now())

    @property
    def received_s(self) -> float:
        """Seconds of the user's audio that have come."""
        return self.ear.log.end / ASR_RATE_HZ

    @property
    def pending_s(self) -> float:
        """Seconds of the user's audio that belong to the turn in progress, or, in manual mode, to the next one."""
        return self._listening.pending_s

    def clear(self) -> None:
        """Forget what the user said since the last turn."""
        self._check_live()
        self._feed(turns.Cleared(self._now()))
        if self.taker.state is not State.HELD:
            self._listening.forget(self.ear.log.end)

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
        if not isinstance(heard_s, int | float) or heard_s != heard_s:  # not NaN either
            raise BadRequest(f"heard_s must be seconds, not {heard_s!r}")
        self._answering.truncate(item_id, heard_s)

    def respond(
        self,
        options: AnswerOptions | None = None,
        *,
        entries: Sequence[Entry] | None = None,
        recorded: bool = True,
    ) -> Response:
        """Answer the history as it stands: now if nobody speaks, else when the floor is free.

        When the user speaks, it becomes the answer to that turn. An answer that is neither recorded nor spoken is
        written at once, beside the conversation.

        Args:
            options: For this answer; ``None``: the session's.
            entries: What the model is shown instead of the history.
            recorded: The answer enters the history.

        Returns:
            The answer; its ``response_id`` is in the events that follow, and it is given up with :meth:`cancel`.

        Raises:
            BadRequest: The session is over.
            Overloaded: Too many answers are waiting.
        """
        self._check_live()
        response = self._answering.ask(self.scope, options or self._answers, entries, recorded)
        if not self._feeding:
            self._after()
        return response

    def cancel(self, response_id: str) -> None:
        """Stop one answer: the one that is heard, one that waits for the floor, or one beside the conversation.

        Raises:
            BadRequest: There is none of that id.
        """
        self._check_live()
        live = self._answering.live
        if live is not None and live.response_id == response_id:
            self._feed(turns.Stopped(self._now()))
        elif not self._answering.cancel(response_id):
            raise BadRequest(f"there is no answer {response_id} that could be stopped")

    def press(self, key: str) -> None:
        """The user pressed a key of a telephone. The agent falls silent; keys become one message when ``#`` or a
        pause ends them.

        Raises:
            BadRequest: Not one of ``0``–``9``, ``*``, ``#``, ``A``–``D``.
        """
        self._check_live()
        now = self._now()
        keys = self._keypad.press(key, now)
        self._feed(turns.Stopped(now))
        if self.taker.state is State.LISTENING:
            self.taker.listen(now)
            self._rearm()
        self._keyed(keys)

    def _keyed(self, keys: str | None) -> None:
        if self._keys_due is not None:
            self._keys_due.cancel()
        due = self._keypad.due
        loop = asyncio.get_running_loop()
        self._keys_due = (
            None if due is None else loop.call_at(due, lambda: self._keyed(self._keypad.expire(self._now())))
        )
        if keys:
            entry = self.chat.add_user(f"[keys pressed: {keys}]")
            self.emit(KeysPressed(entry.item_id, keys))
            self._feed(turns.Typed(self._now()))

    def say(self, text: str) -> Response:
        """Have the agent say something: now if nobody speaks, else when the floor is free.

        Returns:
            The answer; await its ``done``.

        Raises:
            BadRequest: Empty text, or the session is over.
            Overloaded: Too much is waiting to be said.
        """
        self._check_live()
        if not isinstance(text, str) or not text.strip():
            raise BadRequest("there is nothing to say")
        response = self._answering.say(self.scope, text)
        if not self._feeding:
            self._after()
        return response

    def configure(self, options: TurnOptions) -> None:
        """Use other turn options from now on."""
        self._check_live()
        if not isinstance(options, TurnOptions):
            raise BadRequest(f"the session is configured with TurnOptions, not {type(options).__name__}")
        automatic = self.options.mode == "manual" and options.mode == "automatic"
        other_idle = self.options.idle_s != options.idle_s
        self.options = options
        self.taker.configure(options)
        if other_idle and self.taker.state is State.LISTENING:
            self.taker.listen(self._now())
        self.ear.configure(options)
        if automatic and not self.taker.hearing:
            self._listening.forget(0)  # what was not committed belongs to no turn
        elif automatic and not self.ear.speaking:
            self._paused(self.ear.voiced_until)  # its pause passed unnoticed
        self._feed(turns.Tick(self._now(), self.ear.time_of(self.ear.voiced_until)))  # plan anew

    def configure_answers(self, options: AnswerOptions) -> None:
        """Make the answers to come with other options; one that is being made or heard goes on as it is."""
        self._check_live()
        self._use_answers(options)
        self._feed(turns.Typed(self._now(), answer=False))  # a guess does not know

    def _use_answers(self, options: AnswerOptions) -> None:
        self._answers = options
        self._answering.configure(options)
        own = options.instructions is None
        self.chat.instructions = self.agent.instructions if own else options.instructions or ""

    @property
    def answers(self) -> AnswerOptions:
        """How answers are made now."""
        return self._answers

    def use_format(self, audio_format: AudioFormat) -> None:
        """What :meth:`hear` is given from now on."""
        self._check_live()
        self.ear.use_format(audio_format)

    # ------------------------------------------------------------ the history

    def add(self, entry: Entry, *, after: Entry | None = None, first: bool = False) -> None:
        """Put an entry into the history: at the end, after another, or first. It asks for no answer."""
        self._check_live()
        self.chat.add(entry, after=after, first=first)
        self._feed(turns.Typed(self._now(), answer=False))

    def add_spoken(
        self, entry: UserEntry, audio: Pcm16, *, after: Entry | None = None, first: bool = False
    ) -> None:
        """Put something the user said into the history, handed in whole (16 kHz). Its words follow; answers wait for
        them.

        Raises:
            BadAudio: Longer than the recogniser takes.
        """
        most_s = self.agent.stages.recogniser.capabilities.max_audio_s
        if audio.size > most_s * ASR_RATE_HZ:
            raise BadAudio(f"{audio.size / ASR_RATE_HZ:.0f} s of audio in one piece; at most {most_s:.0f} s")
        entry.recognised = asyncio.Event()
        self.add(entry, after=after, first=first)
        self.scope.run(self._listening.transcribe_entry(entry, audio), f"recognise an item {self.session_id}")

    def remove(self, entry: Entry) -> None:
        """Take an entry out of the history."""
        self._check_live()
        self.chat.remove(entry)
        self._feed(turns.Typed(self._now(), answer=False))

    def tool_result(self, call_id: str, output: str) -> None:
        """What a tool returned that the owner runs (see :class:`~voice.options.AnswerOptions`). Asks for no answer.

        Raises:
            BadRequest: No such call, or it has its result.
        """
        self._check_live()
        for entry in self.chat.entries:
            if isinstance(entry, ToolEntry) and entry.by_client and entry.call.call_id == call_id:
                if entry.output is not None:
                    raise BadRequest(f"the call {call_id} has its result already")
                entry.fill(output)
                self._feed(turns.Typed(self._now(), answer=False))
                return
        raise BadRequest(f"there is no call {call_id} that waits for a result")

    def _check_live(self) -> None:
        if not self._started or self.ended is not None:
            raise BadRequest("the session is over" if self.ended else "the session has not started")

    # ------------------------------------------------------------ edges → decisions

    def _began(self, index: int) -> None:
        if self.taker.closing:
            self._later.append((self._began, index))
            return
        now = self._now()
        self._listening.began(index, now)
        self._feed(turns.SpeechBegan(now, self.ear.time_of(index)))

    def _paused(self, index: int) -> None:
        if self.taker.closing:
            self._later.append((self._paused, index))
            return
        self._listening.paused(index)
        self._feed(turns.SpeechPaused(self._now(), self.ear.time_of(index)))
        self._listening.note_pause(index, self._now())

    def _tick(self) -> None:
        self._wake = None
        self.ear.notice_gap(self._now())
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
                    if self.ended is None:  # the owner may hang up in the middle
                        self._carry_out(decision)
        finally:
            self._feeding = False
        if self.ended is None:
            self._after()

    def _after(self) -> None:
        """What had to wait: edges behind a turn that was being closed, things to say, results that came late."""
        while self._later and not self.taker.closing:
            edge, index = self._later.popleft()
            edge(index)
        if self.taker.state is State.LISTENING:
            response = self._answering.next_waiting()
            if response is not None:
                self._feed(turns.Spoke(self._now(), answer=response.asked_for))
                self._answering.begin(response, None)
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
                self._listening.open(decision)
            case turns.Reopen():
                self._listening.reopen(decision)
            case turns.Recognise():
                self._listening.recognise(decision)
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
            turn.scope.close()
            return
        response = self._answering.next_waiting(asked_for=True)
        if guess is not None:
            self.counters.guesses_kept += response is None
            self.counters.guesses_dropped += response is not None
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
        owed = self._answering.waiting or bool(self._unshown)
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

"""What may a session's owner ask of it? Each request is checked, and becomes an event for the turn taker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from voice import turn_events as turns
from voice.agent import Agent
from voice.answering import Answering
from voice.audio import AudioFormat
from voice.chat import Chat, Entry, ToolEntry, UserEntry
from voice.entry_words import transcribe_entry
from voice.errors import BadAudio, BadRequest
from voice.events import KeysPressed, LanguageChanged, SessionEvent
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, ImagePart, Pcm16
from voice.keypad import Keypad
from voice.language import SpokenLanguage
from voice.listening import Listening
from voice.options import AnswerOptions, TurnOptions
from voice.response import Response
from voice.saying import Saying
from voice.scope import Scope
from voice.turns import State, TurnTaker


class Controls:
    """The requests of :class:`~voice.session.Session`, which makes the parts they use when it starts.

    Attributes:
        agent: Who the caller talks to.
        session_id: Names the session.
        options: Whose turn it is.
        spoken: Which language the user speaks.
        hints: Words that the recogniser may expect.
        chat: The history, as it was heard.
    """

    agent: Agent
    session_id: str
    options: TurnOptions
    spoken: SpokenLanguage
    hints: tuple[str, ...]
    chat: Chat
    ear: Ear
    taker: TurnTaker
    scope: Scope
    ended: str | None
    _started: bool
    _answers: AnswerOptions
    _answering: Answering
    _listening: Listening
    _keypad: Keypad
    _keys_due: asyncio.TimerHandle | None
    _feeding: bool
    _later: deque[tuple[Callable[[int], None], int]]

    def _feed(self, event: turns.TurnInput) -> None:
        raise AssertionError("a session feeds its turn taker")

    def _after(self) -> None:
        raise AssertionError("a session looks what had to wait")

    def _rearm(self) -> None:
        raise AssertionError("a session sets its timer")

    def _tick(self) -> None:
        raise AssertionError("a session looks at the time")

    def _guard_ear(self) -> None:
        raise AssertionError("a session guards its ear")

    def _paused(self, index: int) -> None:
        raise AssertionError("a session hears pauses")

    def emit(self, event: SessionEvent) -> None:
        raise AssertionError("a session tells its owner")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _check_live(self) -> None:
        if not self._started or self.ended is not None:
            raise BadRequest("the session is over" if self.ended else "the session has not started")

    # ------------------------------------------------------------ what the user does, beside speaking

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
        if self.taker.closing:  # the turn that was closed stays: only what came since is forgotten
            self._later.clear()
            self._listening.skip(self.ear.log.end)
            return
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

    def say(self, text: str, *, interruptible: bool = True) -> Saying:
        """Have the agent say something: now if nobody speaks, else when the floor is free.

        Args:
            text: What to say; a call without a model.
            interruptible: The user's voice may cut it; else what the user says meanwhile is a turn of its own, which
                is answered after it. The owner can always stop it.

        Returns:
            A handle: ``said = await session.say(...)`` tells what was heard of it.

        Raises:
            BadRequest: Empty text, or the session is over.
            Overloaded: Too much is waiting to be said.
        """
        self._check_live()
        if not isinstance(text, str) or not text.strip():
            raise BadRequest("there is nothing to say")
        response = self._answering.say(self.scope, text, interruptible=interruptible)
        if not self._feeding:
            self._after()

        def stop() -> None:
            if self.ended is None and self._answering.has(response.response_id):
                self.cancel(response.response_id)

        return Saying(response.response_id, response.item_id, response.ended, stop)

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
        self._guard_ear()
        if automatic and not self.taker.hearing:
            self._listening.forget(0)  # what was not committed belongs to no turn
        elif automatic and not self.ear.speaking:
            self._paused(self.ear.voiced_until)  # its pause passed unnoticed
        self._tick()  # plan anew

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

    @property
    def answer_is_spoken(self) -> bool:
        """Whether the live answer, if there is one, is spoken; else it is text only."""
        live = self._answering.live
        return self._answers.speak if live is None else live.parts.speak

    @property
    def language(self) -> str | None:
        """Of the user's voice; ``None``: the recogniser finds out, and nothing has told yet.

        Set, it is fixed, whatever is heard; set to ``None``, a long utterance that is surely in another changes it.
        """
        return self.spoken.current

    @language.setter
    def language(self, fixed: str | None) -> None:
        before = self.spoken.current
        self.spoken.give(fixed)
        if self._started and self.spoken.current != before:
            self._speak_language()

    def use_language(self, language: str) -> None:
        """Someone asked for a language ("in English, please"): it is heard and spoken from now on.

        Raises:
            BadRequest: Not one that the recogniser hears.
        """
        self._check_live()
        if self.hears_language(language):
            self._feed(turns.Typed(self._now(), answer=False))  # a guess does not know

    def hears_language(self, language: str) -> bool:
        """The user speaks another language from now on; returns whether that is a change."""
        if not self.spoken.request(language):
            return False
        self._speak_language()
        self.emit(LanguageChanged(self.spoken.current or language))
        return True

    def _speak_language(self) -> None:
        """Judge the user's words by the language, and answer in its voice, where the agent has one for it."""
        agent, language = self.agent, self.spoken.current
        self.taker.certainty.language = language
        if not agent.voices:
            return
        if language is not None and language in agent.voices:
            self._answering.speak(language, agent.voices[language])
        else:
            self._answering.speak(agent.language, agent.voice)
        self._answering.configure(self._answers)

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
        words = transcribe_entry(self, self._listening, entry, audio, self.scope)
        self.scope.run(words, f"recognise an item {self.session_id}")

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

"""One client's side of the OpenAI Realtime protocol (GA): its events become calls of the session, the session's
events become the protocol's, in the documented order. It does no I/O and reads no clock.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal

from transports.realtime import events
from transports.realtime.config import SessionConfig
from transports.realtime.conversation import (
    Conversation,
    Placed,
    spoken_user_item,
)
from transports.realtime.errors import RealtimeError
from transports.realtime.events import encode, new_id
from transports.realtime.item_requests import ItemRequests
from transports.realtime.items import wire_item
from transports.realtime.narrator import Narrator
from transports.realtime.response_input import input_entries
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.chat import Entry
from voice.errors import BadRequest, Overloaded, VoiceError
from voice.events import SessionEvent
from voice.executor import Executor
from voice.interfaces import Pcm16, Transport
from voice.options import TurnOptions
from voice.scope import Scope
from voice.session import Session

log = logging.getLogger("voice.realtime")

MAX_MESSAGE_BYTES = 16 * 2**20
_LEAST_COMMIT_S = 0.1
"""A commit of less audio is refused (the vendor's bound)."""
_PIECE_S = 1.0
"""Audio that comes in one large message is heard in pieces of this length, so that other sessions run in between."""


class RealtimeProtocol:
    """See the module's docstring. Make it, have it make the session (:meth:`make_session`, with an ``on_event`` that
    calls :meth:`tell`), call :meth:`opened`, start the session; then hand each message to :meth:`receive`.

    Args:
        config: What is in force at first.
        send: Takes the text of each event for the client; must not wait.
        transport: ``"websocket"``: audio goes out as events, through :meth:`audio`; ``"webrtc"``: the transport plays
            it, and the client is told of it.
        bound: Settings that the client can't change, as the ``session`` object writes them.
        extensions: Also send our own events (``voice.…``).
        max_bytes: Longest message.
    """

    def __init__(
        self,
        config: SessionConfig,
        send: Callable[[str], None],
        *,
        transport: Literal["websocket", "webrtc"] = "websocket",
        bound: Mapping[str, object] | None = None,
        extensions: bool = False,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._bound = bound
        self.config = config if bound is None else config.updated({"type": config.type, **bound}, first=True)
        self._plays = transport == "webrtc"
        self._listeners: list[Callable[[str], None]] = [send]
        self._max_bytes = max_bytes
        self._updated = False
        self.conversation = Conversation()
        self._narrator = Narrator(self, self._send, plays=self._plays, extensions=extensions)
        self._items = ItemRequests(self, plays=self._plays)
        self._session: Session | None = None
        self._agent_tools: Collection[str] = ()
        self._hears_events = True  # else the transport hears the user by itself

    # ------------------------------------------------------------ life

    @property
    def session(self) -> Session:
        """The conversation."""
        if self._session is None:
            raise BadRequest("there is no session yet")
        return self._session

    def make_session(
        self,
        agent: Agent,
        transport: Transport,
        *,
        on_event: Callable[[SessionEvent], None],
        audio_format: AudioFormat | None = None,
        scope: Scope | None = None,
        executor: Executor | None = None,
    ) -> Session:
        """The session that this drives, with the settings in force; it is not started yet.

        ``audio_format``: what the transport will let it hear; ``None``: what the client's events hold.
        """
        config = self.config
        if config.type == "transcription":
            agent = replace(agent, greeting=None)
        self._narrator.use_format(config.output_format)
        self._agent_tools = agent.tool_table()
        self._hears_events = audio_format is None
        if config.type == "transcription" and agent.greeting:
            agent = copy.copy(agent)
            agent.greeting = None
        self._session = Session(
            agent,
            transport,
            audio_format=audio_format or config.input_format,
            session_id=config.session_id,
            on_event=on_event,
            scope=scope,
            executor=executor,
            options=config.turn_options(agent.turns),
            answers=config.answer_options(),
            language=config.language,
        )
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether the client may see how the agent works: no settings are locked."""
        return self._bound is None

    def opened(self) -> None:
        """The client is there: greet it as the protocol does."""
        self.emit("session.created", session=self._wire_session())

    def tell(self, event: SessionEvent) -> None:
        """Take an event of the session."""
        self._narrator.tell(event)

    def audio(self, pcm: Pcm16, response_id: str) -> str | None:
        """The event for a piece of an answer's audio (int16 at 24 kHz); ``None`` when there is nothing to send."""
        return self._narrator.audio(pcm, response_id)

    def add_listener(self, send: Callable[[str], None]) -> None:
        """Another connection of the same client also gets the events."""
        self._listeners.append(send)
        send(
            encode({"type": "session.created", "event_id": new_id("event"), "session": self._wire_session()})
        )

    def remove_listener(self, send: Callable[[str], None]) -> None:
        """That connection is gone."""
        if send in self._listeners:
            self._listeners.remove(send)

    def _send(self, text: str) -> None:
        for listener in list(self._listeners):
            listener(text)

    def emit(self, kind: str, **fields: object) -> None:
        """Send an event."""
        self._send(encode({"type": kind, "event_id": new_id("event"), **fields}))

    def fail(self, error: RealtimeError) -> None:
        """Tell the client of an error."""
        self.emit("error", error=error.wire())

    def _wire_session(self) -> dict[str, object]:
        hidden = self._bound is not None and "instructions" in self._bound
        return self.config.wire(hide_instructions=hidden)

    # ------------------------------------------------------------ the client's events

    async def receive(self, message: str | bytes) -> None:
        """Take one message. What is wrong with it is told to the client; nothing else happens then.

        It yields to the loop in between only where a message holds more than a second of audio.
        """
        event_id: str | None = None
        try:
            event = events.parse_event(message, max_bytes=self._max_bytes)
            event_id = event.event_id
            if isinstance(event, events.AudioAppend):
                await self._append(event)
            else:
                self._carry_out(event)
        except RealtimeError as error:
            error.event_id = error.event_id or event_id
            self.fail(error)
        except Overloaded as error:
            self.fail(RealtimeError(str(error), code="overloaded", type="server_error", event_id=event_id))
        except VoiceError as error:
            if self.session.ended is None:
                self.fail(RealtimeError(str(error), event_id=event_id))

    def _carry_out(self, event: events.ClientEvent) -> None:
        match event:
            case events.SessionUpdate():
                self._update(event.session)
            case events.AudioCommit():
                self._commit()
            case events.AudioClear():
                with self._narrator.forgetting_speech():
                    self.session.clear()
                self.emit("input_audio_buffer.cleared")
            case events.OutputClear():
                self._clear_output()
            case events.ItemCreate():
                self._items.create(event)
            case events.ItemRetrieve():
                self._items.retrieve(event.item_id)
            case events.ItemTruncate():
                self._items.truncate(event.item_id, event.content_index, float(event.audio_end_ms))
            case events.ItemDelete():
                self._items.delete(event.item_id)
            case events.ResponseCreate():
                self._respond(event.response)
            case events.ResponseCancel():
                self._cancel(event.response_id)
            case events.AudioAppend():
                raise AssertionError("appended audio is heard in pieces, before this")

    def _update(self, patch: object) -> None:
        config = self.config.updated(
            patch,
            first=not self._updated,
            audio_made=self._narrator.spoke,
            agent_tools=self._agent_tools,
        )
        if self._bound is not None:
            config = config.updated({"type": config.type, **self._bound})
        options = config.turn_options(self.session.agent.turns)
        before, self.config, self._updated = self.config, config, True
        self.emit("session.updated", session=self._wire_session())  # before what the change brings about
        self._apply(before, options)

    def _apply(self, before: SessionConfig, options: TurnOptions) -> None:
        """Have the session do as the settings say, where they have changed."""
        session, config = self.session, self.config
        if options != session.options:
            session.configure(options)
        if config.answer_options() != before.answer_options():
            session.configure_answers(config.answer_options())
        if config.input_format != before.input_format and not self._plays:
            session.use_format(config.input_format)
        session.language, session.hints = config.language, config.hints
        self._narrator.use_format(config.output_format)

    # ------------------------------------------------------------ audio in

    async def _append(self, event: events.AudioAppend) -> None:
        if not self._hears_events:
            raise RealtimeError("By WebRTC the user's audio comes on its own track.", param="type")
        data = events.decode_audio(event.audio)
        piece = int(_PIECE_S * self.config.input_format.rate_hz) * self.config.input_format.frame_bytes
        self.session.hear(data[:piece])
        for start in range(piece, len(data), piece):
            await asyncio.sleep(0)
            self.session.hear(data[start : start + piece])

    def _commit(self) -> None:
        held_s = self.session.pending_s
        if held_s < _LEAST_COMMIT_S:
            raise RealtimeError(
                f"Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, "
                f"but buffer only has {held_s * 1000:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        item_id = self.session.commit()
        if item_id is None:
            raise RealtimeError(
                "What was committed before is still being recognised. The audio since then is kept: "
                "commit it again in a moment.",
                code="input_audio_buffer_commit_pending",
            )
        if item_id not in self.conversation:  # else its words were known already
            self._narrator.speech_stopped(item_id)
            self.place_spoken(item_id)
            self.conversation.await_words(item_id)

    def place_spoken(self, item_id: str, entry: Entry | None = None) -> None:
        """The user's audio became an item; its words may follow."""
        item = spoken_user_item(item_id)
        placed = Placed(item, entry)
        previous = self.conversation.add(placed)
        self.emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        self.tell_item(placed, previous)

    def tell_item(self, placed: Placed, previous: str | None) -> None:
        """An item is in the conversation."""
        wire = wire_item(placed.item)
        self.emit("conversation.item.added", previous_item_id=previous, item=wire)
        self.emit("conversation.item.done", previous_item_id=previous, item=wire)

    # ------------------------------------------------------------ responses

    def _respond(self, patch: object) -> None:
        request = self.config.response_request(self._without_bound(patch))
        if request.in_conversation and self._narrator.is_answering:
            raise RealtimeError(
                "Conversation already has an active response in progress. "
                "Wait until the response is finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        entries = None if request.input is None else input_entries(request.input, self._referred)
        with self._narrator.asking(request) as asked:
            response = self.session.respond(
                request.options, entries=entries, recorded=request.in_conversation
            )
            asked(response.response_id)

    def _referred(self, item_id: str) -> list[Entry]:
        return self._items.entries_of(self._items.placed(item_id, "invalid_value"))

    def _without_bound(self, patch: object) -> object:
        """What the client asks of one response, without what it can't change."""
        if self._bound is None or not isinstance(patch, dict):
            return patch
        audio = self._bound.get("audio")
        hears_only = isinstance(audio, dict) and "output" not in audio
        kept = {"audio"} if hears_only else set()
        return {key: value for key, value in patch.items() if key not in self._bound or key in kept}

    def _cancel(self, response_id: str | None) -> None:
        target = self._narrator.cancellable(response_id)
        if target is None:
            raise RealtimeError(
                "Cancellation failed: no active response found", code="response_cancel_not_active"
            )
        self.session.cancel(target)
        self._narrator.gave_up(target)

    def _clear_output(self) -> None:
        if not self._narrator.plays:
            raise RealtimeError("output_audio_buffer.clear is for WebRTC.", param="type")
        self.session.interrupt()

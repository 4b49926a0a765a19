"""What is the client told of what happens in the session? The session's events as those of the protocol, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from transports.realtime.conversation import Placed, with_transcript
from transports.realtime.events import new_id
from transports.realtime.items import OutputAudio
from transports.realtime.response import WireResponse
from transports.realtime.response_request import ResponseRequest, read_response_request
from transports.realtime.transcription import UsersWords
from voice import g711
from voice.audio import AudioFormat, Resampler
from voice.chat import SystemEntry
from voice.events import (
    AudioSent,
    AudioStarted,
    Idle,
    KeysPressed,
    Problem,
    ResponseEnded,
    ResponseMade,
    ResponseStarted,
    ResponseText,
    ServiceChanged,
    SessionEvent,
    SpeechStarted,
    SpeechStopped,
    ToolArguments,
    ToolEnded,
    ToolStarted,
    UserPartial,
    UserSaid,
)
from voice.interfaces import Pcm16

if TYPE_CHECKING:
    from transports.realtime.protocol import RealtimeProtocol

log = logging.getLogger("voice.realtime")

PLAYOUT_HZ = 24_000
_SHOWN_OUTPUT_CHARS = 500
_CLIENTS_OWN = frozenset({"BadAudio", "BadRequest", "Overloaded", "DeadlineExceeded"})
"""Problems whose text a client may read. Others quote engines, whose errors may hold paths, addresses and keys."""


class Narrator:
    """Tells one client.

    Args:
        protocol: For what is in force, the items and the session.
        send: Takes an event's text.
        plays: The transport plays the agent's audio itself (WebRTC).
        extensions: Also send our own events.

    Attributes:
        plays: See above.
        spoke: The agent has been audible.
    """

    def __init__(
        self, protocol: RealtimeProtocol, send: Callable[[str], None], *, plays: bool, extensions: bool
    ) -> None:
        self.plays, self.spoke = plays, False
        self._protocol, self._send, self._extensions = protocol, send, extensions
        self._conversation_id = new_id("conv")
        self._responses: dict[str, WireResponse] = {}
        self._requests: dict[str, ResponseRequest] = {}  # of answers that wait for the floor
        self._requesting: ResponseRequest | None = None
        self._announced: set[str] = set()  # user items whose speech was told of and that are not committed
        self._words = UsersWords(protocol.emit)
        self._stopped_ms: int | None = None  # where the user's speech ended; None while they speak
        self._forgetting = False
        self._lost: tuple[str, str] | None = None  # a user's item whose words were lost, and why
        self._cut: ResponseEnded | None = (
            None  # waits for the speech_started that must come before its close-out
        )
        self._format = AudioFormat("pcm16", PLAYOUT_HZ)
        self._resampler: Resampler | None = None
        self._resampler_of = ""

    # ------------------------------------------------------------ what the protocol asks

    @property
    def is_answering(self) -> bool:
        """Whether a response of the conversation is under way, as the client sees it, or is about to be."""
        active = any(not r.done and r.in_conversation for r in self._responses.values())
        return active or any(request.in_conversation for request in self._requests.values())

    @contextmanager
    def asking(self, request: ResponseRequest) -> Iterator[Callable[[str], None]]:
        """The client asks for a response; it may begin before its id is known here."""
        self._requesting = request
        try:
            yield self._asked
        finally:
            self._requesting = None

    def _asked(self, response_id: str) -> None:
        if self._requesting is not None:  # it has not begun: it waits for the floor
            self._requests[response_id] = self._requesting

    def cancellable(self, response_id: str | None) -> str | None:
        """The response that a cancel means."""
        if response_id is None:
            active = [r.response_id for r in self._responses.values() if not r.done and r.in_conversation]
            waiting = [i for i, request in self._requests.items() if request.in_conversation]
            return next(iter([*active, *waiting]), None)
        response = self._responses.get(response_id)
        if response is not None and not response.done:
            return response_id
        return response_id if response_id in self._requests else None

    def gave_up(self, response_id: str) -> None:
        """A response was cancelled; one that had not begun is shown as begun and cancelled."""
        request = self._requests.pop(response_id, None)
        if request is not None:
            response = self._begin(ResponseStarted(response_id, new_id("item")), request)
            del self._responses[response_id]
            response.finish("cancelled", {"type": "cancelled", "reason": "client_cancelled"})

    @contextmanager
    def forgetting_speech(self) -> Iterator[None]:
        """The client clears its audio: a turn that is closed meanwhile leaves no item."""
        self._forgetting = True
        try:
            yield
        finally:
            self._forgetting = False
            self._announced.clear()

    def use_format(self, audio_format: AudioFormat) -> None:
        """How the client wants the agent's audio from now on."""
        if audio_format != self._format:
            self._format, self._resampler = audio_format, None

    def audio(self, pcm: Pcm16, response_id: str) -> str | None:
        """See :meth:`~transports.realtime.protocol.RealtimeProtocol.audio`."""
        response = self._responses.get(response_id)
        if response is None or response.done:
            return None
        self.spoke = True
        ms = pcm.size * 1000.0 / PLAYOUT_HZ
        if self._format.rate_hz != PLAYOUT_HZ:
            if self._resampler is None or self._resampler_of != response_id:
                self._resampler = Resampler(PLAYOUT_HZ, self._format.rate_hz)
                self._resampler_of = response_id
            pcm = self._resampler.process(pcm)
        return response.audio(_coded(pcm, self._format), ms)

    # ------------------------------------------------------------ the session's events

    def tell(self, event: SessionEvent) -> None:
        """Take one."""
        match event:
            case ResponseText():
                if (response := self._live(event.response_id)) is not None:
                    response.add_text(event.text)
            case SpeechStarted():
                self._speech_started(event)
            case SpeechStopped():
                self._stopped_ms = int(event.at_s * 1000)
            case UserPartial():
                self._partial(event)
            case UserSaid():
                self._user_said(event)
            case ResponseStarted():
                request = self._requests.pop(event.response_id, None) or self._requesting
                self._requesting = None
                self._begin(event, request or self._own_request())
            case ToolArguments():
                response = self._live(event.response_id)
                if response is not None and self._is_clients(response, event.name):
                    response.add_arguments(event.call_id, event.name, event.delta)
            case ToolStarted():
                self._tool_started(event)
            case ToolEnded():
                failed = event.error if self._protocol.is_open else event.error and "failed"
                self._tell_tool(
                    "voice.tool_ended", event, error=failed, output=event.output[:_SHOWN_OUTPUT_CHARS]
                )
            case ResponseMade():
                self._made(event)
            case AudioSent():
                if (response := self._live(event.response_id)) is not None:
                    self._finish(response)
            case AudioStarted():
                self._audio_started(event)
            case ResponseEnded():
                self._ended(event)
            case Idle():
                self._idle(event)
            case Problem():
                self._problem(event)
            case ServiceChanged():
                self._tell_extension("voice.service_changed", level=event.level, label=event.label)
            case KeysPressed():
                self._tell_extension("voice.keys_pressed", item_id=event.item_id, keys=event.keys)
            case _:
                pass

    def _live(self, response_id: str) -> WireResponse | None:
        response = self._responses.get(response_id)
        return None if response is None or response.done else response

    def _emit(self, kind: str, **fields: object) -> None:
        self._protocol.emit(kind, **fields)

    def _tell_extension(self, kind: str, **fields: object) -> None:
        if self._extensions:
            self._emit(kind, **fields)

    # ------------------------------------------------------------ the user

    def _speech_started(self, event: SpeechStarted) -> None:
        self._stopped_ms = None
        automatic = self._protocol.config.turn_detection is not None
        if automatic and event.item_id not in self._announced:
            self._announced.add(event.item_id)
            start_ms = int(max(0.0, event.at_s) * 1000)
            self._emit("input_audio_buffer.speech_started", item_id=event.item_id, audio_start_ms=start_ms)
        if self._cut is not None:
            cut, self._cut = self._cut, None
            self._close_out(cut)

    def _partial(self, event: UserPartial) -> None:
        """The words that have become stable are appended; only our own clients are told of those that may change."""
        item_id = event.item_id
        if self._protocol.config.transcription is not None and item_id in self._announced:
            self._words.so_far(item_id, event.stable)
            self._tell_extension("voice.user_partial", item_id=item_id, text=event.text, stable=event.stable)

    def speech_stopped(self, item_id: str) -> None:
        """The user's turn is over: if its begin was told, its end is told too."""
        if item_id in self._announced:
            self._announced.discard(item_id)
            end_ms = self._stopped_ms
            if end_ms is None:
                end_ms = int(self._protocol.session.stream_s * 1000)
            self._emit("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=end_ms)

    def _user_said(self, event: UserSaid) -> None:
        """The turn is certain. Only now it is told that the user stopped: until now they could go on."""
        if self._forgetting:
            return
        conversation = self._protocol.conversation
        self.speech_stopped(event.item_id)
        if not conversation.has_words(event.item_id):  # the client deleted it before they were known
            entry = self._protocol.session.chat.find(event.item_id)
            if entry is not None:
                self._protocol.session.remove(entry)
            return
        if event.item_id not in conversation:
            self._protocol.place_spoken(event.item_id)
        placed = conversation.get(event.item_id)
        if placed is None:
            return
        placed.entry = placed.entry or self._protocol.session.chat.find(event.item_id)
        placed.item = with_transcript(placed.item, event.text)
        self._tell_transcript(event)

    def _tell_transcript(self, event: UserSaid) -> None:
        lost, self._lost = self._lost, None
        if self._protocol.config.transcription is None:
            return
        if lost is not None and lost[0] == event.item_id and not event.text:
            self._words.lost(event.item_id, lost[1])
        else:
            self._words.final(event.item_id, event.text, event.audio_s)

    def _idle(self, event: Idle) -> None:
        detection, session = self._protocol.config.turn_detection, self._protocol.session
        if detection is None or detection.idle_timeout_ms is None:
            return
        item_id = session.chat.new_id()
        end_ms = int(session.stream_s * 1000)
        start_ms = max(0, end_ms - int(event.after_s * 1000))
        self._emit(
            "input_audio_buffer.timeout_triggered",
            item_id=item_id,
            audio_start_ms=start_ms,
            audio_end_ms=end_ms,
        )
        note = SystemEntry(item_id, f"The user has said nothing for {event.after_s:.0f} seconds.")
        session.add(note)
        self._protocol.place_spoken(item_id, note)
        self._tell_transcript(UserSaid(item_id, ""))
        if session.options.respond:
            session.respond()

    # ------------------------------------------------------------ responses

    def _begin(self, event: ResponseStarted, request: ResponseRequest) -> WireResponse:
        response = WireResponse(
            event.response_id,
            event.item_id,
            request,
            self._send,
            self._protocol.conversation if request.in_conversation else None,
            self._conversation_id,
        )
        self._responses[event.response_id] = response
        response.begin()
        return response

    def _own_request(self) -> ResponseRequest:
        """What is in force for an answer that the client did not ask for. One that waited is made as it was wanted."""
        request = read_response_request(self._protocol.config, None)
        spoken = self._protocol.session.answer_is_spoken
        return replace(request, modality="audio" if spoken else "text")

    def _is_clients(self, response: WireResponse, name: str) -> bool:
        theirs = {spec.name for spec in response.request.options.tools}
        return name in theirs and name not in self._protocol.session.agent.tool_table()

    def _tool_started(self, event: ToolStarted) -> None:
        response = self._live(event.response_id)
        if event.by_client and response is not None:
            response.add_call(event.call)
        elif not event.by_client:
            self._tell_tool("voice.tool_started", event, arguments=event.call.arguments)

    def _tell_tool(self, kind: str, event: ToolStarted | ToolEnded, **contents: object) -> None:
        """What the agent's own tool does; with a locked secret the page must not learn what it is told or says."""
        call = event.call
        if not self._protocol.is_open:
            contents = {"error": contents["error"]} if "error" in contents else {}
        self._tell_extension(
            kind, response_id=event.response_id, call_id=call.call_id, name=call.name, **contents
        )

    def _made(self, event: ResponseMade) -> None:
        response = self._live(event.response_id)
        if response is None:
            return
        response.usage, response.model_finish, response.error = event.usage, event.finish, event.error
        # where the client hears by itself, all events have left; otherwise its last audio comes first
        if self.plays or response.request.modality == "text":
            self._finish(response)

    def _finish(self, response: WireResponse) -> None:
        """All of it was sent."""
        if response.error is not None and response.message is None:
            error = {"type": "server_error", "code": "server_error", "message": response.error}
            response.finish("failed", {"type": "failed", "error": error})
        elif response.model_finish == "length":
            response.finish("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})
        elif response.model_finish == "content_filter":
            response.finish("incomplete", {"type": "incomplete", "reason": "content_filter"})
        else:
            response.finish("completed")

    def _audio_started(self, event: AudioStarted) -> None:
        response = self._responses.get(event.response_id)
        self.spoke = True
        if self.plays and response is not None:
            response.audible = True
            self._emit("output_audio_buffer.started", response_id=event.response_id)

    def _ended(self, event: ResponseEnded) -> None:
        if event.reason in ("barge_in", "resumed"):
            self._cut = event  # the speech that cut it is told of next
        else:
            self._close_out(event)

    def _close_out(self, event: ResponseEnded) -> None:
        response = self._responses.pop(event.response_id, None)
        if response is None:
            return
        response.usage = event.usage
        if not response.done:
            self._close_cut(response, event)
        if self.plays and response.audible:
            how = "stopped" if event.reason is None else "cleared"
            self._emit(f"output_audio_buffer.{how}", response_id=event.response_id)
        if self.plays and event.reason is not None and response.message is not None:
            self._tell_truncated(response.message, event)
        times = asdict(event.times)
        self._tell_extension(
            "voice.turn_times", response_id=event.response_id, item_id=event.item_id, times=times
        )

    def _close_cut(self, response: WireResponse, event: ResponseEnded) -> None:
        match event.reason:
            case None if event.status == "failed":
                response.error = event.error or "the answer failed"
                self._finish(response)
            case None:
                self._finish(response)
            case "barge_in" | "resumed":
                response.finish("cancelled", {"type": "cancelled", "reason": "turn_detected"})
            case "client" | "closed":
                response.finish("cancelled", {"type": "cancelled", "reason": "client_cancelled"})
            case _:
                error = {"type": "server_error", "code": "timeout", "message": "the answer took too long"}
                response.finish("failed", {"type": "failed", "error": error})

    def _tell_truncated(self, message: Placed, event: ResponseEnded) -> None:
        """We know what was played, so the cut is ours to tell."""
        spoken = any(isinstance(part, OutputAudio) for part in message.item.content)
        if spoken and self._protocol.conversation.get(message.item.id) is message:
            message.item = with_transcript(message.item, event.heard)
            self._emit(
                "conversation.item.truncated",
                item_id=message.item.id,
                content_index=0,
                audio_end_ms=int(event.heard_s * 1000),
            )

    def _problem(self, event: Problem) -> None:
        told = event.message if event.kind in _CLIENTS_OWN else "something failed in the server"
        if event.item_id is not None:
            self._lost = event.item_id, told
        self._tell_extension("voice.problem", message=told)
        log.info("a problem in a session: %s", event.kind)


def _coded(pcm: Pcm16, audio_format: AudioFormat) -> bytes:
    match audio_format.encoding:
        case "pcmu":
            return g711.encode(pcm, "pcmu")
        case "pcma":
            return g711.encode(pcm, "pcma")
        case _:
            return pcm.astype("<i2", copy=False).tobytes()

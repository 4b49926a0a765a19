"""Answering: the agent's side of a session: which answer is live, how it is cut, how it ends, what waits to be said."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal

from voice.answer_parts import Owner, Parts, prompt_of
from voice.chat import Entry
from voice.degradation import Step
from voice.errors import BadRequest, Overloaded, VoiceError
from voice.events import AudioSent, AudioStarted, AudioStopped, ResponseEnded, ServiceChanged, TurnTimes
from voice.hearing import Ear
from voice.interfaces import Prompt, Transport
from voice.options import AnswerOptions
from voice.playout import Playout, Track, heard_text
from voice.response import Response
from voice.saying import Said
from voice.scope import Reason, Scope
from voice.tools import SessionHandle
from voice.turn_events import Audible, Finished, Stopped, TurnInput
from voice.user_turn import UserTurn

log = logging.getLogger("voice")

_MOST_SAYS = 16
_MOST_ASIDES = 4
_ALL_BUT_OVER_S = 1.0
_WORDS_TO_COME = "…"
_KEPT_RESPONSES = 4
"""Answers whose heard text a client may still correct."""


class Answering:
    """At most one answer is live. What happens to it is told to the turn taker through ``feed``.

    Args:
        parts: What answers are made with.
        owner: Where events go; also the tools' parent scope.
        handle: The session, as tools may use it.
        transport: Told to drop its audio when a pushed answer is cut.
        ear: For the session's clock.
        feed: Tells the turn taker.
        name: Goes into the ids of answers.
    """

    def __init__(
        self,
        parts: Parts,
        owner: Owner,
        handle: SessionHandle,
        transport: Transport,
        ear: Ear,
        feed: Callable[[TurnInput], None],
        name: str,
    ) -> None:
        self.playout = Playout(transport.capabilities, self._audible, self._drained)
        self.live: Response | None = None
        self._plain_parts = self._parts = parts
        self._owner, self._handle = owner, handle
        self._transport, self._ear, self._feed, self._name = transport, ear, feed, name
        self._turn: UserTurn | None = None  # which the live answer is for
        self._past: deque[Response] = deque(maxlen=_KEPT_RESPONSES)
        self._waiting: deque[Response] = deque(maxlen=_MOST_SAYS)
        self._asides: list[Response] = []
        self._made = 0
        self._hard_end: asyncio.TimerHandle | None = None  # of a live answer that had to wait for the floor
        self._leave_service = parts.stages.service.join(self._service_changed)

    # ------------------------------------------------------------ begin

    def configure(self, options: AnswerOptions) -> None:
        """Make the answers to come with other options."""
        self._parts = self._plain_parts.using(options)

    def speak(self, language: str | None, voice: str | None) -> None:
        """Have the answers to come speak another language; :meth:`configure` them after that."""
        self._plain_parts = replace(self._plain_parts, language=language, voice=voice)

    def new(
        self,
        scope: Scope,
        *,
        saying: str | None = None,
        text: str | None = None,
        parts: Parts | None = None,
        asked_for: bool = False,
        waits: bool = False,
        interruptible: bool = True,
    ) -> Response:
        """An answer that is not live yet, under ``scope``. One that may have to wait for the floor has its hard end
        from :meth:`begin` on."""
        self._made += 1
        return Response(
            parts or self._parts,
            self._owner,
            scope.child("response", timeout_s=None if waits else self._parts.speech.timeout_s),
            response_id=f"resp_{self._name}_{self._made:05d}",
            saying=saying,
            text=text,
            context=self._handle,
            asked_for=asked_for,
            interruptible=interruptible,
        )

    def prepare(self, scope: Scope) -> None:
        """The user begins to speak: let the model read the conversation so far, if it can keep it."""
        prepare = getattr(self._parts.stages.model, "prepare", None)
        if prepare is not None:
            prompt = prompt_of(self._parts, saying=_WORDS_TO_COME)
            scope.run(_quietly(prepare, prompt, scope), "read the conversation")

    def begin(self, response: Response, turn: UserTurn | None) -> None:
        """The gate opens: from here on the answer is real, and all there is to hear."""
        self.live, self._turn = response, turn
        response.open()
        if self.live is not response:
            return  # the owner cut it when it was told of it, and another may be live by now
        if not response.started:
            response.start()
        response.scope.on_cancel(lambda reason: self._ran_out(response, reason))
        timeout_s, left_s = self._parts.speech.timeout_s, response.scope.remaining()
        if left_s is None or left_s > timeout_s:
            loop = asyncio.get_running_loop()
            self._hard_end = loop.call_later(timeout_s, response.scope.cancel, Reason.DEADLINE)
        self.playout.play(response.track)

    def say(self, scope: Scope, text: str, *, interruptible: bool = True) -> Response:
        """Say ``text`` when the floor is free.

        Raises:
            Overloaded: Too much is waiting.
        """
        self._check_room()
        self._waiting.append(self.new(scope, text=text, waits=True, interruptible=interruptible))
        return self._waiting[-1]

    def _check_room(self) -> None:
        if len(self._waiting) >= _MOST_SAYS:
            raise Overloaded(f"{_MOST_SAYS} things are waiting to be said already")

    def ask(
        self, scope: Scope, options: AnswerOptions, entries: Sequence[Entry] | None, recorded: bool
    ) -> Response:
        """An answer that the owner wants: when the floor is free; at once when it is text beside the conversation.

        Raises:
            Overloaded: Too much is waiting, or is being written.
        """
        if recorded and entries is None:
            parts = self._plain_parts.using(options)
        else:
            parts = self._plain_parts.using(options, self._plain_parts.chat.aside(entries, recorded=recorded))
        if recorded or options.speak:
            # one beside the conversation answers no turn of the user's
            self._check_room()
            self._waiting.append(self.new(scope, parts=parts, asked_for=recorded, waits=True))
            return self._waiting[-1]
        if len(self._asides) >= _MOST_ASIDES:
            raise Overloaded(f"{_MOST_ASIDES} answers are being written beside the conversation already")
        response = self.new(scope, parts=parts)
        self._asides.append(response)
        response.on_made = self._aside_over
        response.scope.on_cancel(lambda reason: self._aside_over(response, reason))
        response.open()
        response.start()
        return response

    def _aside_over(self, response: Response, reason: Reason | None = None) -> None:
        if response in self._asides:
            self._asides.remove(response)
            heard = response.conclude(None if reason is None else 0)
            status = "completed" if reason is None else "cancelled"
            if response.failed is not None and not heard:
                status = "failed"
            self._tell_ended(response, None, status, heard, None if reason is None else str(reason), 0.0)
            response.scope.close()

    def cancel(self, response_id: str) -> bool:
        """Give up an answer that waits or is written beside the conversation; whether there was one."""
        for response in [*self._waiting, *self._asides]:
            if response.response_id == response_id:
                if response in self._waiting:
                    self._waiting.remove(response)
                response.scope.cancel(Reason.CLIENT)
                return True
        return False

    def has(self, response_id: str) -> bool:
        """Whether an answer is live, waits, or is written beside the conversation."""
        live = [] if self.live is None else [self.live]
        return any(r.response_id == response_id for r in [*live, *self._waiting, *self._asides])

    @property
    def waiting(self) -> bool:
        """Something waits to be said."""
        return bool(self._waiting)

    def next_waiting(self, *, asked_for: bool = False) -> Response | None:
        """The first of what waits to be said; or the first answer that the owner asked for, if there is one."""
        for response in self._waiting:
            if response.asked_for or not asked_for:
                self._waiting.remove(response)
                return response
        return None

    # ------------------------------------------------------------ what a sound over the answer is compared with

    def lately_said(self, seconds: float) -> str:
        """What the ear had of the live answer in the last seconds, as written."""
        response = self.live
        if response is None:
            return ""
        position = self.playout.position(self._now())
        before = position - int(seconds * response.track.rate_hz)
        heard = heard_text(response.track.written_at(position))
        return heard[len(heard_text(response.track.written_at(before))) :]

    @property
    def asks(self) -> bool:
        """Whether the live answer ends in a question and is all but over: what the user says now may answer it."""
        response = self.live
        if response is None or not response.made or not response.generated.rstrip().endswith("?"):
            return False
        return response.track.queued_s + self.playout.ahead_s(self._now()) < _ALL_BUT_OVER_S

    # ------------------------------------------------------------ to the ear

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _audible(self, track: Track) -> None:
        response = self.live
        if response is not None and response.track is track:
            now = response.times.audible = self._now()
            self._feed(Audible(now))
            self._owner.emit(AudioStarted(response.response_id, self._ear.stream_s(now)))

    def _drained(self, track: Track) -> None:
        """All audio has left; the answer is over when the ear has it."""
        asyncio.get_running_loop().call_soon(self._sent, track, self._now())

    def _sent(self, track: Track, since: float) -> None:
        response = self.live
        if response is not None and response.track is track:
            self._owner.emit(AudioSent(response.response_id))
            self._finish(track, since)

    def _finish(self, track: Track, since: float) -> None:
        response = self.live
        if response is None or response.track is not track:
            return
        now = self._now()
        left_s = self.playout.ahead_s(now)
        unheard = left_s > 0 and now < since + self._parts.limits.playout_s
        if self.playout.held or self.playout.sending or unheard or not response.made:
            wait_s = max(0.02, min(left_s, 0.5))
            asyncio.get_running_loop().call_later(wait_s, self._finish, track, since)
            return
        self.playout.drop()
        self._owner.feed_after(lambda: self._conclude(response, None, "completed"), Finished(now))

    def _service_changed(self, step: Step) -> None:
        self._owner.emit(ServiceChanged(int(step.rung), step.rung.label, step.why))

    # ------------------------------------------------------------ end

    def cut(self, reason: Reason) -> None:
        """Silence first; then all that makes the answer is told to stop; then the history is put right."""
        response = self.live
        if response is None:
            return
        dropped = self.playout.drop()
        if dropped is not None and self._transport.capabilities.playout == "flush_only":
            try:
                self._transport.clear_audio()
            except Exception:  # a client that is gone: the sender finds out, the cut goes on
                log.warning("the client could not drop its audio", exc_info=True)
        response.scope.cancel(reason)
        position = 0 if dropped is None else dropped[1]
        self._conclude(response, position, "interrupted" if position > 0 else "cancelled", reason)

    def close(self) -> None:
        """The session ends: nothing more is said."""
        self._leave_service()
        self.cut(Reason.CLOSED)
        for response in [*self._waiting, *self._asides]:
            response.scope.cancel(Reason.CLOSED)
        self._waiting.clear()

    def _ran_out(self, response: Response, reason: Reason) -> None:
        """An answer that ran into its hard end is over; what was heard of it stays."""
        if reason is Reason.DEADLINE:
            asyncio.get_running_loop().call_soon(self._stop, response)

    def _stop(self, response: Response) -> None:
        if self.live is response:
            self._feed(Stopped(self._now()))

    def truncate(self, item_id: str, heard_s: float) -> None:
        """See :meth:`voice.session.Session.truncate`."""
        live = self.live
        if live is not None and item_id in (live.item_id, live.response_id):
            self._feed(Stopped(self._now()))
        for response in self._past:
            if item_id in (response.item_id, response.response_id):
                most_s = response.track.taken / response.track.rate_hz
                response.conclude(int(max(0.0, min(heard_s, most_s)) * response.track.rate_hz))
                return
        raise BadRequest(f"there is no answer {item_id} that could be cut")

    def _conclude(
        self, response: Response, position: int | None, status: str, reason: Reason | None = None
    ) -> None:
        turn, self._turn, self.live = self._turn, None, None
        if self._hard_end is not None:
            self._hard_end.cancel()
        heard = response.conclude(position)
        self._past.append(response)
        self._owner.saw_results(response.shown)
        if heard:
            self._owner.was_heard(heard)
        if response.failed is not None and not heard:
            status = "failed"
        if response.times.audible is not None:
            self._owner.emit(AudioStopped(response.response_id, self._ear.stream_s(self._now())))
        heard_samples = response.track.taken if position is None else position
        why = None if reason is None else str(reason)
        self._tell_ended(response, turn, status, heard, why, heard_samples / response.track.rate_hz)
        response.scope.close()
        if turn is not None:
            turn.scope.close()
        elif response.scope.parent is not None and response.scope.parent.kind == "turn":
            response.scope.parent.close()

    def _tell_ended(
        self,
        response: Response,
        turn: UserTurn | None,
        status: str,
        heard: str,
        reason: str | None,
        heard_s: float,
    ) -> None:
        how: Literal["played", "interrupted", "cancelled", "failed"] = "played"
        if status in ("interrupted", "cancelled", "failed"):
            how = status  # type: ignore[assignment]
        elif response.failed is not None:  # in the middle
            how = "failed"
        response.end(Said(how, heard, heard_s, reason, response.failed))
        self._owner.emit(
            ResponseEnded(
                response.response_id,
                response.item_id,
                status,
                heard,
                response.generated,
                turn_times(response, turn, self._ear),
                response.usage,
                user_text="" if turn is None else turn.text,
                error=response.failed,
                reason=reason,
                finish=response.finish,
                heard_s=heard_s,
            )
        )


async def _quietly(
    prepare: Callable[[Prompt, Scope], Coroutine[Any, Any, None]], prompt: Prompt, scope: Scope
) -> None:
    """A preparation that fails costs time later, nothing else."""
    try:
        await prepare(prompt, scope)
    except VoiceError as error:
        log.debug("the model could not read ahead: %s", error)


def turn_times(response: Response, turn: UserTurn | None, ear: Ear) -> TurnTimes:
    """Where the time of an answer went."""
    times = response.times
    end = None if turn is None else turn.speech_end
    return TurnTimes(
        speech_end_s=None if end is None else ear.stream_s(end),
        first_audio_s=None if times.audible is None else ear.stream_s(times.audible),
        voice_to_voice_ms=_ms(end, times.audible),
        pause_ms=None if turn is None else _ms(end, turn.paused_at),
        ready_ms=_ms(end, times.first_audio),
        endpoint_ms=None if turn is None else _ms(end, turn.committed_at),
        asr_ms=None if turn is None or turn.asr_s is None else turn.asr_s * 1000.0,
        llm_first_token_ms=_ms(times.model_called, times.first_token),
        llm_first_clause_ms=_ms(times.model_called, times.synthesis_called),
        tts_first_audio_ms=_ms(times.synthesis_called, times.first_audio),
        gate_to_audio_ms=_ms(times.opened, times.audible),
        speculated=turn is not None
        and not response.asked_for
        and times.opened is not None
        and times.started < times.opened - 1e-4,
    )


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000.0

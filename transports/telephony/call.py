"""TwilioCall: one telephone call's side of Twilio Media Streams: messages in, session calls out, and the other way.

It opens no socket and runs no task: ``transports.twilio`` connects it to a WebSocket, tests to a scripted peer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from transports.outgoing import Outgoing
from transports.telephony import messages
from transports.telephony.messages import (
    Connected,
    Dtmf,
    Mark,
    Media,
    Message,
    Start,
    Stop,
    StreamError,
    Unknown,
)
from transports.telephony.position import MarkedPosition
from voice import g711
from voice.dtmf import DtmfFilter
from voice.errors import ProtocolError, VoiceError
from voice.events import AudioSent, SessionEvent
from voice.interfaces import Capabilities, Pcm16

RATE_HZ = messages.RATE_HZ
FRAME = 160
"""Samples (and bytes) of 20 ms. Twilio clicks when it is sent anything but whole frames."""

AHEAD_S = 1.0
"""Audio sent before the ear needs it. It carries the voice over a stall of the network or of this process, and at an
interruption there is no more than this to recall."""
START_S = 10.0
"""A stream that does not say who calls within this time is closed. Twilio does so at once."""
_MARK_LATE_S = 10.0
"""A mark missing for so long: the peer plays nothing, or reads nothing."""
_UNWRITTEN_S = 0.4
"""Audio that may wait for the socket before the session waits too."""
_LONGEST_GAP_S = 2.0
"""Lost audio up to this length is replaced by silence; after longer gaps the clock starts anew."""
_MOST_BAD = 50
"""Messages that can't be read before the stream is given up."""
_BURST_FRAMES, _FRAMES_PER_S = 1_000, 100
"""Frames of 20 ms (or other messages) taken at once, and a second: a stall of 20 s made up for, twice real time."""


class _Playout(Protocol):
    def report(self, response_id: str, position: int) -> None: ...


class PhoneSession(Protocol):
    """The part of a :class:`voice.session.Session` that a call needs."""

    @property
    def playout(self) -> _Playout: ...

    def hear(self, pcm: bytes | Pcm16) -> None: ...

    def press(self, key: str) -> None: ...


@dataclass(slots=True)
class CallCounters:
    """What happened in a call.

    Attributes:
        frames: Messages with the caller's audio.
        lost_samples: Audio that did not come and was replaced by silence.
        keys: Keys pressed.
        bad: Messages that could not be read or used.
        ignored: Events and tracks that mean nothing to us.
        clears: Times that queued audio was dropped.
    """

    frames: int = 0
    lost_samples: int = 0
    keys: int = 0
    bad: int = 0
    ignored: int = 0
    clears: int = 0


class TwilioCall:
    """A call whose ``start`` has come. It is the session's transport: ``attach`` the session, give it what the socket
    brings (:meth:`receive`) and write what :attr:`outgoing` holds.

    Args:
        start: Who calls.
        now: Loop time.

    Attributes:
        outgoing: Messages for the socket.
        position: Where the ear is.
        stopped: The caller hung up.
    """

    def __init__(self, start: Start, now: float) -> None:
        self.capabilities = Capabilities("flush_only", RATE_HZ, AHEAD_S, AHEAD_S, reports_position=True)
        self.start = start
        self.outgoing = Outgoing(self._overflow)
        self.position = MarkedPosition(RATE_HZ)
        self.counters = CallCounters()
        self.stopped = False
        self._overflowed = False  # the peer does not read
        self._session: PhoneSession | None = None
        self._filter = DtmfFilter(RATE_HZ)  # keys come as events: the tones are not to be heard as well
        self._rest = np.zeros(0, np.int16)  # of the answer that is sent, less than a frame
        self._credit, self._credit_at = float(_BURST_FRAMES), now
        self._stream_from_ms: int | None = None  # timestamp of the first sample heard
        self._heard_samples = 0  # since then

    def attach(self, session: PhoneSession) -> None:
        """The session that answers."""
        self._session = session

    # ------------------------------------------------------------ what comes in

    def receive(self, text: str | bytes, now: float) -> None:
        """One message from the socket. One that can't be read is counted and skipped.

        Raises:
            StreamError: The stream can't go on: see its text. Close the socket with its code.
        """
        self._spend(1.0, now)
        try:
            self._take(messages.parse(text), now)
        except StreamError:
            raise
        except VoiceError as error:
            self.counters.bad += 1
            if self.counters.bad > _MOST_BAD:
                raise StreamError(f"too many messages that can't be used; the last: {error}") from error

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Media():
                self._hear(message, now)
            case Mark():
                self.position.came_back(message.name, now)
                self._report(now)
            case Dtmf():
                if self._session is not None:
                    self._session.press(message.digit)
                self.counters.keys += 1
            case Stop():
                self.stopped = True
            case Start():
                raise StreamError("a second start on one stream")
            case Connected() | Unknown():
                self.counters.ignored += 1

    def _hear(self, media: Media, now: float) -> None:
        if media.track != "inbound":  # the agent's own voice, if both tracks are streamed
            self.counters.ignored += 1
            return
        if media.stream_sid and media.stream_sid != self.start.stream_sid:
            raise ProtocolError("audio of another stream")
        self._spend(len(media.payload) / FRAME - 1.0, now)
        pcm = g711.decode(media.payload, "pcmu")
        self.counters.frames += 1
        lost = self._lost_before(media.timestamp_ms, pcm.size)
        if lost:
            self._spend(lost / FRAME, now)  # silence is work, too
            self.counters.lost_samples += lost
            pcm = np.concatenate([np.zeros(lost, np.int16), pcm])
        self._report(now)  # before the session hears what may make it fall silent
        heard = self._filter.mute(pcm)
        if heard.size and self._session is not None:
            self._session.hear(heard)

    def _lost_before(self, timestamp_ms: int | None, size: int) -> int:
        """Samples missing before a frame, by its timestamp; whole frames, for timestamps are rounded."""
        if timestamp_ms is None:
            self._stream_from_ms = None
            return 0
        lost = 0
        if self._stream_from_ms is not None:
            expected_ms = self._stream_from_ms + self._heard_samples * 1000 // RATE_HZ
            behind = (timestamp_ms - expected_ms) * RATE_HZ // 1000
            if behind > _LONGEST_GAP_S * RATE_HZ or behind < -_LONGEST_GAP_S * RATE_HZ:
                self._stream_from_ms = None
            elif behind >= FRAME:
                lost = behind - behind % FRAME
        if self._stream_from_ms is None:
            self._stream_from_ms, self._heard_samples = timestamp_ms, 0
        self._heard_samples += lost + size
        return lost

    def _spend(self, frames: float, now: float) -> None:
        self._credit = min(_BURST_FRAMES, self._credit + (now - self._credit_at) * _FRAMES_PER_S)
        self._credit_at = now
        self._credit -= max(0.0, frames)
        if self._credit < 0:
            raise StreamError("more messages or audio than a call can have", 1008, "flooded")

    def check(self, now: float) -> None:
        """To be called every second or so.

        Raises:
            StreamError: The peer has not played what it was sent.
        """
        if self._overflowed or self.position.overdue_s(now) > _MARK_LATE_S:
            raise StreamError("no mark came back: what is sent is not played", 1008, "slow_client")

    def _overflow(self) -> None:
        self._overflowed = True

    # ------------------------------------------------------------ what goes out

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """See :class:`voice.interfaces.Transport`."""
        now = asyncio.get_running_loop().time()
        if response_id != self.position.response_id:
            self._rest = pcm[:0]
        before = self.position.sending(response_id, now)
        if before is not None:
            self.outgoing.put(messages.mark(self.start.stream_sid, before))
        self._report(now)
        whole = np.concatenate([self._rest, pcm]) if self._rest.size else pcm
        size = whole.size - whole.size % FRAME
        self._rest = whole[size:].copy()
        self._send(whole[:size], size, now)
        await self.outgoing.room(_UNWRITTEN_S)

    def on_event(self, event: SessionEvent) -> None:
        """What the session tells: the end of an answer's audio is sent, filled up to a frame, and marked."""
        if isinstance(event, AudioSent) and event.response_id == self.position.response_id:
            now = asyncio.get_running_loop().time()
            rest, self._rest = self._rest, self._rest[:0]
            filled = np.pad(rest, (0, -rest.size % FRAME))
            self._send(filled, rest.size, now, last=True)

    def _send(self, frames: Pcm16, samples: int, now: float, *, last: bool = False) -> None:
        if frames.size:
            payload = g711.encode(frames, "pcmu")
            self.outgoing.put_audio(messages.media(self.start.stream_sid, payload), frames.size / RATE_HZ)
        mark = self.position.sent_more(samples, now, last=last)
        if mark is not None:
            self.outgoing.put(messages.mark(self.start.stream_sid, mark))

    def clear_audio(self) -> None:
        """See :class:`voice.interfaces.Transport`: what waits here and what Twilio holds is dropped."""
        self._rest = self._rest[:0]
        self.position.cleared()
        self.outgoing.drop_audio()
        self.outgoing.put(messages.clear(self.start.stream_sid))
        self.counters.clears += 1

    def _report(self, now: float) -> None:
        if self._session is not None and self.position.response_id is not None:
            self._session.playout.report(self.position.response_id, self.position.position(now))

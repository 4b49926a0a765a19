"""Calls by WebRTC: an offer comes in, an answer goes out, and a conversation runs until one side hangs up.

:class:`Calls` is a server's calls, :class:`Call` one of them, from the answer to the last socket. Audio goes both ways
as Opus; the events of the Realtime protocol go by the data channel ``oai-events``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from aiortc import RTCConfiguration, RTCDataChannel, RTCIceServer, RTCPeerConnection, RTCSessionDescription
from aiortc.exceptions import InvalidStateError, OperationError

from transports.access import Grant
from transports.first_settings import first_settings
from transports.hosting import Host, Slot
from transports.realtime.config import SessionConfig
from transports.realtime.errors import RealtimeError
from transports.realtime.protocol import RealtimeProtocol
from transports.rtc.channel import LABEL, EventChannel
from transports.rtc.description import MESSAGE_BYTES, Offer, finish_answer, read_offer
from transports.rtc.health import Health, player_delay_s
from transports.rtc.opus import SPEAK_HZ
from transports.rtc.receiver import add_audio, check_internals
from transports.rtc.track import AgentTrack
from transports.worker_routing import call_id
from voice.audio import AudioFormat
from voice.errors import BadRequest, EngineFailed
from voice.events import SessionEnded, SessionEvent
from voice.interfaces import ASR_RATE_HZ, Capabilities, Pcm16

log = logging.getLogger("voice.webrtc")

NEGOTIATE_S = 10.0
"""Longest time for an answer. With ICE servers, gathering our addresses may take 5 s of it."""
CONNECT_S = 20.0
"""A peer that has not connected by then will not."""
CHANNEL_S = 3.0
"""How long a connected peer's data channel is waited for before the conversation begins without it."""
TICK_S = 1.0
"""How often a call is looked at."""
FLUSH_S = 0.5
"""How long the last events may take to leave."""
CLOSE_S = 2.0
"""How long aiortc may take to close a connection."""

_FAREWELLS = {
    "expired": "Your session hit the maximum duration.",
    "idle": "Nothing was said or sent.",
}

check_internals()


class Calls:
    """The WebRTC calls of one server.

    Args:
        host: Lets conversations in and ends them.
        worker: The number of this process, if it is one of several: part of the calls' ids.
    """

    def __init__(self, host: Host, worker: int | None = None) -> None:
        self._host, self._worker = host, worker
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def offer(
        self,
        sdp: str,
        grant: Grant,
        *,
        client: str,
        model: str | None = None,
        config: Mapping[str, object] | None = None,
        extensions: bool = False,
    ) -> tuple[str, str]:
        """Take a call.

        Args:
            sdp: The client's offer.
            grant: Who calls.
            client: Who the call counts for.
            model: By which name the client calls the agent.
            config: Session settings that came with the offer.
            extensions: Whether the client wants our own events as well.

        Returns:
            The call's id (``rtc_…``) and the SDP of the answer.

        Raises:
            BadRequest: The offer can't be answered, or the settings can't be used.
            Overloaded: No place is free.
            EngineFailed: No answer could be made.
        """
        offered = read_offer(sdp)
        slot = await self._host.enter(client, "webrtc")
        try:
            settings = first_settings(self._host, slot, grant, model=model, given=config)
            call = Call(call_id(self._worker), self._host, slot, grant, settings, extensions)
        except BaseException:
            slot.release()
            raise
        try:
            answer = await call.answer(offered)
        except BaseException:
            await asyncio.shield(call.close("not_answered"))
            raise
        self._calls[call.id] = call
        call.begin(lambda: self._calls.pop(call.id, None))
        return call.id, answer

    def get(self, call_id: str) -> Call | None:
        """A call that is not over."""
        return self._calls.get(call_id)

    def hang_up(self, call_id: str) -> bool:
        """Begin to end a call. Returns whether there is such a call."""
        call = self._calls.get(call_id)
        if call is not None:
            call.end("hung_up")
        return call is not None

    async def close(self) -> None:
        """End all calls; returns when they are over."""
        await asyncio.gather(*(call.close("closed") for call in list(self._calls.values())))


class Call:
    """One call.

    Attributes:
        id: ``rtc_…``.
        protocol: The client's side of the Realtime protocol; others may listen to it.
        session: The conversation.
        reason: Why the call ended; ``None`` while it goes on.
    """

    def __init__(
        self,
        call_id: str,
        host: Host,
        slot: Slot,
        grant: Grant,
        settings: SessionConfig,
        extensions: bool,
    ) -> None:
        self.id = call_id
        self.reason: str | None = None
        self.capabilities = Capabilities("can_pause", SPEAK_HZ, delay_s=player_delay_s(0.05, 0.0))
        self._host, self._slot = host, slot
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._channel: EventChannel | None = None
        self._event_bytes = 0
        self._opened = asyncio.Event()
        self._connected = asyncio.Event()
        self._started = False
        self._begun = asyncio.Event()
        self.protocol = RealtimeProtocol(
            settings,
            self._send,
            transport="webrtc",
            bound=grant.config if grant.locked else None,
            extensions=extensions,
            max_bytes=MESSAGE_BYTES,
        )
        self.session = self.protocol.make_session(
            host.agent,
            self,
            on_event=self._tell,
            audio_format=AudioFormat("pcm16", ASR_RATE_HZ),
            scope=host.scope,
            executor=host.executor,
        )
        servers = [RTCIceServer(list(s.urls), s.username, s.credential) for s in host.options.ice_servers]
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._peer.on("connectionstatechange", self._state_changed)
        self._peer.on("datachannel", self._channel_opened)
        self._track = AgentTrack()
        self._audio, self._receiver = add_audio(self._peer, self._track, self._hear)

    # ------------------------------------------------------------ life

    async def answer(self, offer: Offer) -> str:
        """The SDP of our answer.

        Raises:
            BadRequest: aiortc can't take the offer.
            EngineFailed: There is no address to offer, or gathering them took too long.
        """
        self._event_bytes = offer.event_bytes
        if not offer.has_events:
            self._opened.set()
        try:
            async with asyncio.timeout(NEGOTIATE_S):
                await self._peer.setRemoteDescription(RTCSessionDescription(offer.sdp, "offer"))
                await self._peer.setLocalDescription(await self._peer.createAnswer())
        except (ValueError, OperationError, InvalidStateError) as error:
            raise BadRequest(f"the offer can't be answered: {error}") from error
        except TimeoutError as error:
            raise EngineFailed(f"no address could be found within {NEGOTIATE_S:g} s") from error
        return finish_answer(self._peer.localDescription.sdp, self._host.options.advertised_ip)

    def begin(self, on_over: Callable[[], object]) -> None:
        """The answer is on its way: wait for the peer and hold the conversation. ``on_over`` is called at its end."""
        self._task = self._loop.create_task(self._run(), name=f"call {self.id}")
        self._task.add_done_callback(lambda _: on_over())

    def end(self, reason: str) -> None:
        """Begin to end the call. The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._ending.set()

    async def begun(self) -> bool:
        """Whether the conversation has begun; waits for it while the peer connects."""
        return self._begun.is_set() or await self._unless_ended(self._begun, CONNECT_S + CHANNEL_S)

    async def over(self) -> None:
        """Returns when the call begins to end."""
        await self._ending.wait()

    async def close(self, reason: str) -> None:
        """End the call; returns when nothing of it is left."""
        self.end(reason)
        if self._task is None:
            await self._dismantle()
        else:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        reader: asyncio.Task[None] | None = None
        try:
            if await self._connect():
                await self._start()
                reader = self._loop.create_task(self._read(), name=f"events {self.id}")
                await self._watch()
        except Exception:
            log.exception("a call failed", extra={"session": self._slot.id})
            self.end("failed")
        finally:
            if reader is not None:
                reader.cancel()
                await asyncio.wait([reader])
            await self._dismantle()

    async def _start(self) -> None:
        """Begin the conversation; the client is greeted before it is told of anything else."""
        if self._channel is not None:
            self.protocol.opened()
        self._started = True
        await self.session.start()
        self._slot.bind(self.session, self._told_to_end)
        self._track.ear = self.session.playout
        self._begun.set()

    async def _connect(self) -> bool:
        """Wait until the peer is connected, and a moment for its data channel."""
        if not await self._unless_ended(self._connected, CONNECT_S):
            self.end("never_connected")
            return False
        if not await self._unless_ended(self._opened, CHANNEL_S):
            log.info("a peer opened no data channel", extra={"session": self._slot.id})
        return not self._ending.is_set()

    async def _unless_ended(self, event: asyncio.Event, within_s: float) -> bool:
        """Wait for ``event``; returns whether it came, and in time."""
        waits = [self._loop.create_task(e.wait()) for e in (event, self._ending)]
        try:
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()

    async def _watch(self) -> None:
        """Look at the peer every second until the call ends."""
        health = Health(self._audio, self._peer.sctp, self._loop.time())
        while not self._ending.is_set():
            if await health.look(self._loop.time()):
                self._slot.touch()
            playout = self.session.playout
            playout.capabilities = replace(playout.capabilities, delay_s=health.delay_s)
            if health.gone:
                self.end("peer_gone")
            elif self._overrun():
                self.end("flood")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    def _overrun(self) -> bool:
        """Whether the peer sent parts of messages far beyond what it was allowed to; aiortc would keep them all."""
        sctp = self._peer.sctp
        return sctp is not None and sctp._advertised_rwnd < -MESSAGE_BYTES

    async def _dismantle(self) -> None:
        """Leave no task, timer or socket."""
        self._track.ear = None
        await self.session.close(self.reason or "closed")
        if self._channel is not None:
            await self._channel.flush(FLUSH_S)
            self._channel.close()
        self._peer.remove_all_listeners()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._peer.close()
        except TimeoutError:
            log.warning("a connection did not close within %g s", CLOSE_S, extra={"session": self._slot.id})
        self._track.stop()
        self._slot.release()

    # ------------------------------------------------------------ the peer

    def _state_changed(self) -> None:
        match self._peer.connectionState:
            case "connected":
                self._connected.set()
            case "failed":
                self.end("connection_failed")
            case "closed":
                self.end("peer_closed")

    def _channel_opened(self, channel: RTCDataChannel) -> None:
        if channel.label != LABEL or self._channel is not None:
            log.info("a data channel was refused", extra={"session": self._slot.id})
            channel.close()
            return
        self._channel = EventChannel(channel, self._event_bytes, self._slot.touch, self.end)
        self._opened.set()
        if self._started:
            self.protocol.opened()

    async def _read(self) -> None:
        """Hand the client's events to the protocol, in order."""
        await self._opened.wait()
        try:
            while self._channel is not None:
                await self.protocol.receive(await self._channel.receive())
        except Exception:
            log.exception("a message could not be carried out", extra={"session": self._slot.id})
            self.end("failed")

    def _hear(self, pcm: Pcm16) -> None:
        if self._track.ear is not None:
            self.session.hear(pcm)

    # ------------------------------------------------------------ the session

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """Unused: the track pulls its audio."""

    def clear_audio(self) -> None:
        """Unused: nothing is ahead of the ear but the peer's own buffer."""

    def _tell(self, event: SessionEvent) -> None:
        self._host.observe(event)
        self.protocol.tell(event)
        if isinstance(event, SessionEnded):
            self.end(event.reason)

    def _send(self, event: str) -> None:
        if self._channel is not None:
            self._channel.send(event)

    def _told_to_end(self, reason: str) -> None:
        """The host wants the call to end."""
        if self.reason is None and reason in _FAREWELLS:
            self.protocol.fail(RealtimeError(_FAREWELLS[reason], code="session_expired"))
        self.end(reason)

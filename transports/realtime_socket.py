"""The Realtime protocol over a WebSocket: the server's side, one :class:`Connection` a conversation."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from transports.access import Grant, Refused
from transports.first_settings import first_settings
from transports.hosting import Host, Slot
from transports.outgoing import Outgoing
from transports.realtime.errors import RealtimeError
from transports.realtime.protocol import RealtimeProtocol
from transports.webrtc import Call, Calls
from transports.worker_routing import resume_token
from voice.errors import Overloaded
from voice.events import SessionEnded, SessionEvent
from voice.interfaces import Capabilities, Pcm16

log = logging.getLogger("voice.websocket")

RATE_HZ = 24_000
AHEAD_S = 1.0
"""A burst of a second, then at most a second ahead of the ear: what is on its way can't be called back."""
_MOST_UNWRITTEN_S = 1.0
"""The session's sender waits while so much audio has not been taken by the socket."""
_IN_ORDER = (1000, 1005)
"""Close codes of a client that is done; 1005: it gave none."""
_BURST_MESSAGES = 16
"""After so many messages in a row other connections get the loop."""
_CLOSE_S = 2.0
_MOST_ATTACHED = 4
"""WebSockets that share one WebRTC call: none of them counts as a conversation."""

_CLOSE_CODES: dict[str, int] = {
    "draining": 1012,
    "slow_client": 1013,
    "events_overflow": 1013,
    "failed": 1011,
    "replaced": 1008,
}
"""By the reason a session ended (RFC 6455 and its registry); all others end normally."""


class Connections:
    """The Realtime WebSocket conversations of one server.

    Args:
        host: Lets conversations in and ends them.
        calls: WebRTC calls, which a WebSocket may attach to.
        worker: The number of this process, if it is one of several: part of the tokens to resume with.
    """

    def __init__(self, host: Host, calls: Calls, worker: int | None = None) -> None:
        self._host, self._calls, self._worker = host, calls, worker
        self._resumable: dict[str, Connection] = {}
        self._lingering: set[asyncio.Task[None]] = set()
        self._attached: Counter[str] = Counter()  # sockets by call

    async def serve(self, websocket: WebSocket, grant: Grant) -> None:
        """Hold a conversation, or join one. The query may have:

        ``model``: a name to be echoed; ``intent=transcription``; ``call_id``: attach to a WebRTC call;
        ``extensions=1``: our own events too; ``resume=1``: tell the client how to come back after its network broke
        (``voice.resumable``); ``resume=TOKEN``: come back.

        Raises:
            Refused, Overloaded, RealtimeError: Before anything was accepted.
        """
        query = websocket.query_params
        if (call_id := query.get("call_id")) is not None:
            await self._attach(websocket, call_id)
            return
        if (token := query.get("resume", "0")) not in ("0", "1"):
            connection = self._resumable.get(token)
            if connection is None:
                raise Refused(404, "session_not_found", "that conversation is over; begin a new one")
            await self._serve(connection, websocket)
            return
        slot = await self._host.enter(grant.client, "websocket")
        try:
            name = resume_token(self._worker)
            connection = Connection(self._host, slot, grant, websocket, name, resumable=token == "1")
        except BaseException:
            slot.release()
            raise
        if token == "1":
            self._resumable[connection.token] = connection
        await self._serve(connection, websocket)

    async def _serve(self, connection: Connection, websocket: WebSocket) -> None:
        """Talk by this socket; afterwards the conversation ends, or waits a while for another one."""
        gone = False
        try:
            gone = await connection.talk(websocket)
        finally:
            if not connection.over and gone and connection.token in self._resumable:
                task = asyncio.get_running_loop().create_task(self._linger(connection))
                self._lingering.add(task)
                task.add_done_callback(self._lingering.discard)
            elif not connection.attached:
                self._resumable.pop(connection.token, None)
                await asyncio.shield(connection.close())

    async def _linger(self, connection: Connection) -> None:
        grace_s = min(self._host.options.resume_s, 0.8 * self._host.agent.limits.send_stall_s)
        if not await connection.wait_for_return(grace_s):
            self._resumable.pop(connection.token, None)
            await connection.close()

    async def _attach(self, websocket: WebSocket, call_id: str) -> None:
        """A second way into a WebRTC call: the same events, both ways."""
        call = self._calls.get(call_id)
        if call is None:
            raise Refused(404, "call_not_found", f"there is no call '{call_id[:64]}'")
        if self._attached[call_id] >= _MOST_ATTACHED:
            raise Overloaded(f"{_MOST_ATTACHED} sockets are attached to the call already, the most allowed")
        self._attached[call_id] += 1
        try:
            await websocket.accept(_subprotocol(websocket))
            await self._share(websocket, call)
        finally:
            self._attached[call_id] -= 1
            if not self._attached[call_id]:
                del self._attached[call_id]

    async def _share(self, websocket: WebSocket, call: Call) -> None:
        """Until the call is over, the socket is gone, or it leaves too many events unread."""
        loop = asyncio.get_running_loop()
        outgoing = Outgoing(lambda: None)  # it closes itself, which ends the writer
        writer = loop.create_task(outgoing.write(websocket.send_text), name="attached writer")
        reader = loop.create_task(_obey(websocket, call), name="attached reader")
        over = loop.create_task(call.over())
        call.protocol.add_listener(outgoing.put)
        try:
            await asyncio.wait({writer, reader, over}, return_when=asyncio.FIRST_COMPLETED)
            slow = writer.done() and not writer.cancelled() and writer.exception() is None
            if over.done() and not writer.done():
                await outgoing.flush(_CLOSE_S)
        finally:
            call.protocol.remove_listener(outgoing.put)
            for task in (writer, reader, over):
                task.cancel()
            await asyncio.wait({writer, reader, over})
        await _close(websocket, _CLOSE_CODES["slow_client"] if slow else 1000, "")

    async def close(self) -> None:
        """End what waits for its client."""
        for task in list(self._lingering):
            task.cancel()
        for connection in list(self._resumable.values()):
            await connection.close()
        self._resumable.clear()


class Connection:
    """One conversation by WebSocket; it may outlive its socket for a while. The session's transport.

    Attributes:
        token: With it the client may come back.
        session: The conversation.
    """

    capabilities = Capabilities("flush_only", RATE_HZ, ahead_s=AHEAD_S, burst_s=AHEAD_S)

    def __init__(
        self,
        host: Host,
        slot: Slot,
        grant: Grant,
        websocket: WebSocket,
        token: str,
        *,
        resumable: bool,
    ) -> None:
        query = websocket.query_params
        given = {"type": "transcription"} if query.get("intent") == "transcription" else None
        config = first_settings(host, slot, grant, model=query.get("model"), given=given)
        self.token = token
        self._host, self._slot, self._resumable = host, slot, resumable
        self._outgoing = Outgoing(self._overflowed)
        self.protocol = RealtimeProtocol(
            config,
            self._outgoing.put,
            bound=grant.config if grant.locked else None,
            extensions=query.get("extensions") == "1",
            max_bytes=host.options.max_message_bytes,
        )
        self.session = self.protocol.make_session(
            host.agent, self, on_event=self._tell, scope=host.scope, executor=host.executor
        )
        self._sockets = 0
        self._claims = 0
        self._talking = asyncio.Lock()
        self._replaced = asyncio.Event()
        self._returned = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False

    @property
    def over(self) -> bool:
        """Whether the session has ended."""
        return self._started and self.session.ended is not None

    @property
    def attached(self) -> bool:
        """Whether a client is there."""
        return self._sockets > 0

    # ------------------------------------------------------------ one socket

    async def talk(self, websocket: WebSocket) -> bool:
        """Hold the conversation by this socket; returns whether it broke, rather than being closed."""
        await websocket.accept(_subprotocol(websocket))
        self._claims = claim = self._claims + 1  # the newest wins
        self._replaced.set()
        self._returned.set()
        self._sockets += 1
        try:
            async with self._talking:
                if claim != self._claims:  # a newer one came while this one waited
                    await _close(websocket, _CLOSE_CODES["replaced"], "replaced")
                    return False
                self._replaced = replaced = asyncio.Event()
                return await self._talk(websocket, replaced)
        finally:
            self._sockets -= 1
            if not self._sockets:
                self._returned.clear()

    async def _talk(self, websocket: WebSocket, replaced: asyncio.Event) -> bool:
        await self._begin()
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._outgoing.write(websocket.send_text), name="websocket writer")
        reader = loop.create_task(self._read(websocket), name="websocket reader")
        ends = {loop.create_task(event.wait()) for event in (self._ended, replaced)}
        try:
            await asyncio.wait({writer, reader, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set() and not writer.done():
                await self._outgoing.flush(_CLOSE_S)
            gone = reader.done() and reader.result() in _IN_ORDER
            return not (self._ended.is_set() or replaced.is_set() or gone)
        finally:
            for task in (writer, reader, *ends):
                task.cancel()
            await asyncio.wait({writer, reader, *ends})
            reason = self.session.ended or ("replaced" if replaced.is_set() else None)
            if reason is not None:
                await _close(websocket, _CLOSE_CODES.get(reason, 1000), reason)

    async def _begin(self) -> None:
        """Greet a client that is new, or that is back."""
        if self._started:
            with self._outgoing.in_front():  # of what happened meanwhile
                self.protocol.opened()
                received_ms = int(self.session.received_s * 1000)
                self.protocol.emit("voice.resumed", audio_received_ms=received_ms)
            return
        self.protocol.opened()
        if self._resumable:
            grace_s = min(self._host.options.resume_s, 0.8 * self._host.agent.limits.send_stall_s)
            self.protocol.emit("voice.resumable", token=self.token, grace_s=grace_s)
        await self.session.start()
        self._started = True
        self._slot.bind(self.session, self._told_to_end)

    async def _read(self, websocket: WebSocket) -> int:
        """Hear the client until it is gone; returns the close code."""
        count = 0
        try:
            async for message in _messages(websocket):
                self._slot.touch()
                await self.protocol.receive(message)
                count += 1
                if count % _BURST_MESSAGES == 0:
                    await asyncio.sleep(0)
        except WebSocketDisconnect as error:
            return error.code
        except Exception:
            log.exception("%s: a message could not be carried out", self.session.session_id)
            self.session.hang_up("failed")
        return 1006

    async def wait_for_return(self, grace_s: float) -> bool:
        """The client's network broke: whether it comes back in time."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self._returned, self._ended)]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.attached and not self.over

    # ------------------------------------------------------------ the session

    def _tell(self, event: SessionEvent) -> None:
        self._host.observe(event)
        self.protocol.tell(event)
        if isinstance(event, SessionEnded):
            self._ended.set()

    def _overflowed(self) -> None:
        log.warning("%s: the client takes no events; closing it", self.session.session_id)
        asyncio.get_running_loop().call_soon(self.session.hang_up, "slow_client")

    def _told_to_end(self, reason: str) -> None:
        if reason in ("expired", "idle"):
            why = (
                "Your session hit the maximum duration."
                if reason == "expired"
                else "Nothing was said or sent."
            )
            self.protocol.fail(RealtimeError(why, code="session_expired"))
        self.session.hang_up(reason)

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        """See :class:`~voice.interfaces.Transport`."""
        text = self.protocol.audio(pcm, response_id)
        if text is not None:
            self._outgoing.put_audio(text, pcm.size / RATE_HZ)
        await self._outgoing.room(_MOST_UNWRITTEN_S)

    def clear_audio(self) -> None:
        """See :class:`~voice.interfaces.Transport`: what the socket has not taken is dropped here."""
        self._outgoing.drop_audio()

    async def close(self) -> None:
        """The client is gone for good."""
        self._outgoing.close()
        try:
            await self.session.close("disconnected")
        finally:
            self._slot.release()


async def _obey(websocket: WebSocket, call: Call) -> None:
    """Hand what an attached client sends to the call's protocol until the client is gone."""
    count = 0
    try:
        async for message in _messages(websocket):
            if not await call.begun():
                return
            await call.protocol.receive(message)
            count += 1
            if count % _BURST_MESSAGES == 0:
                await asyncio.sleep(0)
    except WebSocketDisconnect:
        return
    except Exception:
        log.exception("%s: a message could not be carried out", call.session.session_id)
        call.end("failed")


async def _messages(websocket: WebSocket) -> AsyncIterator[str | bytes]:
    """Text or bytes of each frame, until the client is gone."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1006)
        text = message.get("text")
        yield text if text is not None else message.get("bytes") or b""


def _subprotocol(websocket: WebSocket) -> str | None:
    return "realtime" if "realtime" in websocket.scope.get("subprotocols", ()) else None


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    """Close a socket; a peer that doesn't read is not waited for."""
    if websocket.application_state is not WebSocketState.CONNECTED:
        return
    try:
        async with asyncio.timeout(_CLOSE_S):
            await websocket.close(code, reason)
    except (TimeoutError, RuntimeError, WebSocketDisconnect, OSError) as error:
        log.debug("a socket could not be closed in order: %s", error)

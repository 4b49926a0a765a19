"""Who may hold a conversation, how many, how long, and how do they end? Admission, time limits and drain."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, TypeAlias

from transports.monitoring import KINDS, Metrics, blocked_lines, service_lines, session_counts
from transports.options import ServerOptions
from transports.refusal import RETRY_S
from voice.admission import Door
from voice.agent import Agent
from voice.errors import Overloaded
from voice.events import SessionEvent
from voice.executor import Executor, ThreadExecutor
from voice.running import settled, sweep
from voice.scope import Reason, Scope
from voice.service import Service
from voice.session import Session
from voice.watchdog import Watchdog

log = logging.getLogger("voice.server")

Kind: TypeAlias = Literal["websocket", "webrtc", "twilio"]

TICK_S = 0.25
"""How often time limits are looked at; also how often the event loop's lag is measured."""

DRAIN_TICK_S = 0.05
"""How often a draining host looks for conversations that have become quiet."""

END_S = 5.0
"""How long an adapter may take to end its conversation before the session is hung up under it."""

SWEEP_AFTER, SWEEP_S = 8, 2.0
"""After so many conversations have ended, or half of those that go on, what they left is freed, so much later: by then
their tasks have unwound."""

TOOL_THREADS = 32
"""Blocking tools of all sessions that run at once. Threads are only made when they are needed."""


class Slot:
    """One admitted conversation. A context manager: leaving it frees the place.

    Attributes:
        id: Unguessable name of the conversation, fit for a session id.
        kind: What it came by.
        client: Who it counts for.
        session: The session, once bound.
        ending: Why it was told to end; ``None`` while it goes on.
    """

    def __init__(self, host: Host, client: str, kind: Kind) -> None:
        self.id = f"sess_{secrets.token_hex(16)}"
        self.client, self.kind = client, kind
        self.session: Session | None = None
        self.ending: str | None = None
        self._host = host
        self._now = asyncio.get_running_loop().time
        self.opened_at = self._touched_at = self._now()
        self._ending_at = 0.0
        self._spoke = False  # something came from the client
        self._end: Callable[[str], None] | None = None
        self._released = False

    def bind(self, session: Session, end: Callable[[str], None]) -> None:
        """The conversation has begun. Call it once, after ``session.start()``.

        Args:
            session: The started session.
            end: Called at most once, on the event loop, when the host wants the conversation to end: ``"idle"``,
                ``"expired"`` or ``"draining"``. It must not wait: it tells the client and has the conversation end;
                after ``END_S`` the host hangs up the session itself.
        """
        self.session, self._end = session, end
        log.info("session started", extra={"session": self.id, "kind": self.kind, "client": self.client})
        if self._host.closing:
            self.end("draining")

    def touch(self) -> None:
        """Something came from the client. Cheap: meant to be called for every message or packet."""
        self._touched_at = self._now()
        self._spoke = True

    def is_quiet(self) -> bool:
        """Whether nobody speaks and nothing is owed."""
        return self.session is None or self.session.is_quiet()

    def end(self, reason: str) -> None:
        """Have the conversation end; the second and later calls do nothing, as does one before :meth:`bind`."""
        if self.ending is not None or self._end is None:
            return
        self.ending, self._ending_at = reason, self._now()
        try:
            self._end(reason)
        except Exception:
            log.exception("a conversation could not be told to end", extra={"session": self.id})

    def release(self) -> None:
        """Free the place; done by leaving the context, too. A second call does nothing."""
        if self._released:
            return
        self._released = True
        self._host._release(self)
        lasted_s = self._now() - self.opened_at
        reason = self.ending or (self.session.ended if self.session else None) or "closed"
        self._host.metrics.end(reason, lasted_s, self.session)
        if self.session is not None:
            counts = {name: n for name, n in session_counts(self.session).items() if n}
            extra = {"session": self.id, "kind": self.kind, "reason": reason, "lasted_s": round(lasted_s, 3)}
            log.info("session ended", extra={**extra, **counts})

    def look(self, options: ServerOptions) -> None:
        """End the conversation if its time is up."""
        now = self._now()
        if self.ending is not None:
            if now - self._ending_at >= END_S and self.session is not None and self.session.ended is None:
                log.warning("a conversation did not end by itself", extra={"session": self.id})
                self.session.hang_up(self.ending)
            return
        silent_s = now - self._touched_at
        if now - self.opened_at >= options.session_s:
            self.end("expired")
        elif silent_s >= self._patience_s(options):
            self.end("idle")

    def _patience_s(self, options: ServerOptions) -> float:
        """How long the client may be silent now."""
        if not self._spoke:
            return min(options.first_message_s, options.idle_s)
        return options.idle_s if self.is_quiet() else 2 * options.idle_s

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Host:
    """The conversations of one server. Used on one event loop.

    Args:
        agent: Who callers talk to.
        options: Limits; ``None``: the defaults.
        executor: Runs the sessions' blocking tools; ``None``: threads shared by all.

    Attributes:
        metrics: What happened so far.
        watchdog: Names what blocks the event loop while there are conversations.
        elsewhere: Conversations that clients have with other workers; they count for a client's share.
    """

    def __init__(
        self, agent: Agent, options: ServerOptions | None = None, *, executor: Executor | None = None
    ) -> None:
        self.agent = agent
        self.options = options or ServerOptions()
        self.executor: Executor = executor or ThreadExecutor("voice-tools", threads=TOOL_THREADS)
        self.metrics = Metrics()
        self.watchdog = Watchdog()
        self.elsewhere: Mapping[str, int] = {}
        self.closing = False  # conversations end now, quiet or not
        self._draining = False
        self._scope: Scope | None = None
        self._slots: dict[str, Slot] = {}
        self._by_client: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = 0  # since the last sweep
        self._sweep: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._empty = asyncio.Event()
        self._door: Door | None = None
        if self.options.admission is not None:
            self._door = Door(
                self.options.admission,
                load=lambda: self._service.load(),
                rung=lambda: self._service.rung,
                sessions=lambda: len(self._slots),
                local=self._service.local,
            )

    @property
    def scope(self) -> Scope:
        """The process's scope, above all sessions."""
        if self._scope is None:
            self._scope = Scope("process")
        return self._scope

    @property
    def draining(self) -> bool:
        """Whether new conversations are refused because the server is to stop."""
        return self._draining

    @property
    def sessions(self) -> int:
        """Conversations let in and not over."""
        return len(self._slots)

    @property
    def _service(self) -> Service:
        return self.agent.stages.service

    @property
    def clients(self) -> Counter[str]:
        """Conversations by who they count for."""
        return self._by_client

    async def enter(self, client: str, kind: Kind) -> Slot:
        """Let a conversation in as far as the measured load allows, maybe after a short wait; see :meth:`admit`.

        Raises:
            Overloaded: As :meth:`admit`, or one more conversation would harm those under way.
        """
        self._check_room(client)
        if self._door is not None:
            try:
                await self._door.enter()
            except Overloaded:
                self.metrics.refuse("draining" if self._draining else "overloaded")
                raise
        return self.admit(client, kind)

    def admit(self, client: str, kind: Kind) -> Slot:
        """Let a conversation in at once, whatever the load.

        Args:
            client: Who it counts for: ``Grant.client``, or another name for each call where many callers share
                one key or address, as with a telephone carrier.
            kind: What it came by.

        Raises:
            Overloaded: The server is full or about to stop, or the client has its share; the conversation was
                refused before anything was done for it.
        """
        self._check_room(client)
        slot = Slot(self, client, kind)
        self._slots[slot.id] = slot
        self._by_client[client] += 1
        self._empty.clear()
        self.metrics.opened[kind] += 1
        if self._timer is None:
            self._arm()
            self.watchdog.start()
        return slot

    def _check_room(self, client: str) -> None:
        most, share = self.options.max_sessions, self.options.max_sessions_per_client
        if self._draining:
            self.metrics.refuse("draining")
            raise Overloaded("the server is about to stop; connect again", RETRY_S)
        if len(self._slots) >= most:
            self.metrics.refuse("full")
            raise Overloaded(f"the server is full: it holds {most} conversations at once", RETRY_S)
        if self._by_client[client] + self.elsewhere.get(client, 0) >= share:
            self.metrics.refuse("client_full")
            raise Overloaded(f"this client already has {share} conversations, the most allowed", RETRY_S)

    def observe(self, event: SessionEvent) -> None:
        """Count what a session tells its owner: to be called with each event."""
        self.metrics.observe(event)

    def render_metrics(self, state: str) -> str:
        """The text for ``/metrics``; ``state`` as of the server."""
        live = Counter(dict.fromkeys(KINDS, 0))
        live.update(slot.kind for slot in self._slots.values())
        sessions = [slot.session for slot in self._slots.values() if slot.session is not None]
        shown = self.metrics.render(live, sessions, state)
        return shown + blocked_lines(self.watchdog) + service_lines(self._service, self._door)

    async def drain(self) -> None:
        """Refuse new conversations, let those under way finish their sentences, then end them.

        Each is told to end (``"draining"``) when it is quiet, at the latest after ``drain_s``. Returns when all are
        over, at the latest ``END_S`` and a moment later. May be called more than once.
        """
        self._draining = True
        self._close_door()
        now = asyncio.get_running_loop().time
        last_at = now() + self.options.drain_s
        while self._slots and now() < last_at:
            for slot in list(self._slots.values()):
                if slot.session is not None and slot.is_quiet():
                    slot.end("draining")
            await asyncio.sleep(min(DRAIN_TICK_S, max(0.0, last_at - now())))
        await self.close()

    async def close(self) -> None:
        """End all conversations at once; waits until they are over, at most ``END_S`` and a moment."""
        self._draining = self.closing = True
        self._close_door()
        for slot in list(self._slots.values()):
            slot.end("draining")
        if self._slots:
            try:
                async with asyncio.timeout(END_S + 2 * TICK_S):
                    await self._empty.wait()
            except TimeoutError:
                log.warning("conversations were left behind", extra={"sessions": len(self._slots)})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watchdog.stop()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._scope is not None:
            self._scope.cancel(Reason.CLOSED)
        self.executor.close()

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close(lambda: Overloaded("the server is about to stop; connect again", RETRY_S))

    # ------------------------------------------------------------ one timer for all

    def _release(self, slot: Slot) -> None:
        del self._slots[slot.id]
        self._by_client[slot.client] -= 1
        if self._by_client[slot.client] <= 0:
            del self._by_client[slot.client]
        self._ended += 1
        enough = self._ended >= max(SWEEP_AFTER, len(self._slots) // 2)
        if enough and self._sweep is None and settled():
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._swept)
        if not self._slots:
            self._empty.set()
            self.watchdog.stop()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _swept(self) -> None:
        self._ended, self._sweep = 0, None
        sweep()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + TICK_S
        self._timer = loop.call_at(self._due_at, self._tick)

    def _tick(self) -> None:
        self.metrics.lag.add(max(0.0, asyncio.get_running_loop().time() - self._due_at))
        self._arm()  # first: what follows may free the last place, which stops the timer
        for slot in list(self._slots.values()):
            slot.look(self.options)

"""What does a worker do for the others? It takes the connections that it is handed, hands on what is about another's
conversation, says how much it has to do, and goes when it is told to or when its parent is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from transports.hosting import END_S
from transports.refusal import Refused
from transports.shared_secrets import too_many, used_already
from transports.worker_channel import Channel, ChannelFull, Message, receive, send
from transports.worker_metrics import merged
from transports.worker_routing import ANYONE, named_worker
from voice.errors import VoiceError

if TYPE_CHECKING:
    from transports.server import Server

log = logging.getLogger("voice.workers")

REPORT_S = 0.1
"""How often a worker says how much it has to do, if that has changed."""

HEARTBEAT_S = 0.5
"""How often it says so anyway."""

REFUSING_S = 1.0
"""For so long after it refused a conversation a worker gets connections only if all others refuse some, too."""

MOST_CLIENTS = 1000
"""Clients whose conversations are told to the others: those that have most."""

ASK_S = 1.0
"""How long an answer from the parent or another worker is waited for."""

EXIT_S = 5.0
"""How long a worker without a parent may take to end, beyond the time its conversations have."""

_SETUP_S = 30.0


class Door(Protocol):
    """The worker's HTTP server, as far as connections go."""

    adopted: int

    @property
    def connections(self) -> int: ...
    def adopt(self, connection: socket.socket, came: bytes, *, final: bool) -> None: ...
    def give_away(self) -> None: ...


class Seat:
    """A worker's place among the others.

    Attributes:
        number: Its own; never used again by another worker of the same parent.
        workers: How many there are.
        secret_key: Seals client secrets.
        retiring: It takes nothing new any more; others do.
    """

    def __init__(self, end: socket.socket, setup: Message) -> None:
        self._end = end
        self.number: int = setup.head["number"]
        self.workers: int = setup.head["workers"]
        self.secret_key = setup.data.decode()
        self.retiring = False
        self._channel: Channel | None = None
        self._serving_s: float | None = None
        self._handed = 0
        self._refused, self._refused_at = 0, -REFUSING_S
        self._told: dict[str, object] = {}
        self._told_at = 0.0
        self._numbers = itertools.count(1)
        self._asked: dict[int, Callable[[Message], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._watch, name="voice parent watch", daemon=True).start()

    @classmethod
    def take(cls, handle: int) -> Seat:
        """Join the parent that started this process; ``handle`` is our end of its channel. Waits for it.

        From then on signals that a terminal sends to all processes are left to the parent.

        Raises:
            VoiceError: The parent is gone or silent.
        """
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # not SIG_IGN: tools' own processes would inherit that
        end = socket.socket(fileno=handle)
        os.set_inheritable(handle, False)
        end.settimeout(_SETUP_S)
        try:
            setup = receive(end)
        except OSError as error:
            raise VoiceError(f"a worker was not told what to do: {error}") from error
        if setup is None:
            raise VoiceError("a worker's parent is gone")
        end.setblocking(True)
        return cls(end, setup)

    def mark_log_lines(self) -> None:
        """Have each line of the log say which worker it is from; after the log was set up."""

        def mark(record: logging.LogRecord) -> bool:
            record.worker = self.number
            return True

        for handler in logging.getLogger().handlers:
            handler.addFilter(mark)

    # ------------------------------------------------------------ what the parent is told

    def tell(self, state: str, **more: object) -> None:
        """Say how far this worker is: ``"loaded"``, ``"up"``, ``"ready"``, ``"leaving"`` or ``"failed"``."""
        with suppress(OSError):
            send(self._end, Message({"do": "state", "state": state, **more}))

    def _report(self, app: Server, door: Door) -> None:
        """Say how much there is to do, if there is news."""
        assert self._channel is not None
        clients = app.host.clients.most_common(MOST_CLIENTS)
        now = asyncio.get_running_loop().time()
        news: dict[str, object] = {
            "load": door.connections + app.calls,
            "received": door.adopted,
            "refusing": self._refusing(app, now),
            "clients": dict(clients),
        }
        if news == self._told and now < self._told_at + HEARTBEAT_S:
            return
        with suppress(ChannelFull):
            self._channel.send({"do": "load", **news})
            self._told, self._told_at = news, now

    def _refusing(self, app: Server, now: float) -> bool:
        """Whether conversations were refused of late for want of room, of whatever kind."""
        refused = app.host.metrics.refused
        count = refused["full"] + refused["overloaded"]
        if count != self._refused:
            self._refused, self._refused_at = count, now
        return now < self._refused_at + REFUSING_S

    # ------------------------------------------------------------ serving

    async def serve(self, app: Server, door: Door, stop: Callable[[], None]) -> None:
        """Take connections until cancelled.

        Args:
            app: What answers.
            door: Takes connections and gives them away.
            stop: Has the server stop: the first call drains, the second ends everything.
        """
        self._app, self._door, self._stop = app, door, stop
        self._serving_s = app.options.drain_s + END_S + EXIT_S
        self._channel = Channel(self._end.dup(), self._take, self._parent_gone)
        self.tell("up")
        try:
            while True:
                self._report(app, door)
                await asyncio.sleep(REPORT_S)
        finally:
            for task in self._tasks:
                task.cancel()
            self._channel.close()

    def elsewhere(self, line: bytes) -> int | None:
        """Which worker should get a request that begins with ``line``; ``ANYONE``, or ``None``: this one."""
        number = named_worker(line)
        if number is not None:
            return None if number == self.number else number
        return ANYONE if self.retiring else None

    def pass_on(self, connection: socket.socket, came: bytes, to: int) -> None:
        """Have another worker serve a connection of which ``came`` was read already.

        Raises:
            ChannelFull: That can't be done now; ``connection`` is still open.
        """
        if self._channel is None:
            raise ChannelFull("this worker is about to end")
        self._channel.send({"do": "pass", "to": to}, came, connection)

    def _take(self, message: Message) -> None:
        head = message.head
        match head["do"]:
            case "serve":
                self._handed += 1
                if message.passed is None:  # no handle is left here for it: its client sees it closed
                    self._door.adopted += 1
                    log.error("a connection was lost: this worker has no file handle left")
                else:
                    self._door.adopt(message.passed, message.data, final=head["final"])
            case "retire":
                self._in_background(self._retire())
            case "stop":
                self._stop()
            case "others":
                self._app.host.elsewhere = head["clients"]
            case "metrics":
                text = self._app.host.render_metrics(self._app.state)
                self._answer({"to": head["from"], "ask": head["ask"], "of": self.number}, text.encode())
            case "answer":
                if (asked := self._asked.get(head["ask"])) is not None:
                    asked(message)

    def _answer(self, head: dict[str, Any], data: bytes) -> None:
        assert self._channel is not None
        with suppress(ChannelFull):  # who asked gives up by itself
            self._channel.send({"do": "answer", **head}, data)

    def _in_background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------ the end

    async def _retire(self) -> None:
        """Let the conversations come to their own end, and give everything else away; then stop."""
        if self.retiring:
            return
        self.retiring = True
        now = asyncio.get_running_loop().time
        last_at = now() + self._app.options.session_s + EXIT_S
        while True:
            self._door.give_away()
            arriving = self._door.adopted < self._handed
            if now() >= last_at or not (arriving or self._door.connections or self._app.host.sessions):
                break
            await asyncio.sleep(REPORT_S)
        self._stop()

    def leave(self) -> None:
        """This worker was told to end by somebody else: the parent sends no more connections, and replaces it."""
        self.tell("leaving")

    def _parent_gone(self) -> None:
        log.warning("the parent process is gone; this worker ends")
        self._stop()

    def _watch(self) -> None:
        """End the process when the parent is gone, whatever the event loop does; in a thread of its own."""
        poll = select.poll()
        poll.register(self._end, 0)  # hang-ups are always told
        poll.poll()
        threading.Event().wait(self._serving_s or 0.0)
        os._exit(1)

    # ------------------------------------------------------------ asking

    async def all_metrics(self, own: str) -> str:
        """The metrics of all workers, each sample labelled with its worker's number; those that don't answer are left
        out.
        """
        texts, parents = {self.number: own}, [""]
        expected: set[int] | None = None
        complete = asyncio.Event()

        def answered(message: Message) -> None:
            nonlocal expected
            if "asked" in message.head:
                expected, parents[0] = set(message.head["asked"]), message.data.decode()
            else:
                texts[message.head["of"]] = message.data.decode()
            if expected is not None and expected <= texts.keys():
                complete.set()

        await self._ask({"do": "metrics"}, b"", answered, complete)
        return parents[0] + merged(texts)

    async def keep(self, id: str, packed: bytes, expires_at: float, maker: str, share: int) -> None:
        """See :class:`~transports.shared_secrets.Desk`: the parent keeps it."""
        head = {"do": "keep", "id": id, "expires_at": expires_at, "maker": maker, "share": share}
        await self._ask_parent(head, packed)

    async def claim(self, id: str, expires_at: float) -> bytes | None:
        """See :class:`~transports.shared_secrets.Desk`."""
        found = await self._ask_parent({"do": "claim", "id": id, "expires_at": expires_at})
        return found.data if found.head["kept"] else None

    def release(self, id: str) -> None:
        """See :class:`~transports.shared_secrets.Desk`."""
        if self._channel is not None:
            with suppress(ChannelFull):
                self._channel.send({"do": "release", "id": id})

    async def _ask_parent(self, head: dict[str, Any], data: bytes = b"") -> Message:
        """Its answer about a client secret.

        Raises:
            Refused: 401 or 503, as the parent says; 503 if it says nothing.
        """
        answers: list[Message] = []
        complete = asyncio.Event()

        def answered(message: Message) -> None:
            answers.append(message)
            complete.set()

        await self._ask(head, data, answered, complete)
        match answers[0].head["refused"] if answers else "silent":
            case None:
                return answers[0]
            case "used":
                raise used_already()
            case "full":
                raise too_many()
        raise Refused(503, "unavailable", "the secret can't be checked now", headers={"Retry-After": "1"})

    async def _ask(
        self,
        head: dict[str, Any],
        data: bytes,
        answered: Callable[[Message], None],
        complete: asyncio.Event,
    ) -> None:
        """Ask, and wait until ``answered`` has set ``complete``, or ``ASK_S``."""
        if self._channel is None:
            return
        number = next(self._numbers)
        self._asked[number] = answered
        try:
            self._channel.send({"ask": number, **head}, data)
            async with asyncio.timeout(ASK_S):
                await complete.wait()
        except (TimeoutError, ChannelFull) as error:
            log.warning("not everyone answered", extra={"what": head["do"], "why": type(error).__name__})
        finally:
            del self._asked[number]

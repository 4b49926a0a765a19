"""Which worker gets the next connection of the port? The one that has least to do, or the one it is meant for.

The parent accepts connections and reads nothing of them, so nobody can hold it up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transports.worker_channel import Channel, ChannelFull
from transports.worker_routing import ANYONE
from voice.errors import VoiceError

log = logging.getLogger("voice.workers")

SILENT_S = 2.0
"""A worker that has not reported for so long gets connections only if no other can."""

ACCEPTED_AT_ONCE = 64
BACKLOG = 2048
"""Connections that the system holds until they are accepted."""

PAUSE_S = 0.1
"""After the system ran out of handles nothing is accepted for so long."""

IN_SERVICE = ("up", "ready")
_TAKES = (
    "ready",
    "up",
    "stopping",
    "retiring",
)  # who is asked first; the last two answer that they take nothing new


class WorkerFailed(VoiceError):
    """A worker could not start."""


@dataclass(eq=False)
class Worker:
    """What the parent knows of one worker.

    Attributes:
        state: ``"starting"``, ``"loaded"`` (its engines are made), ``"up"`` (it answers), ``"ready"``, ``"retiring"``
            (its conversations come to their end), ``"stopping"`` or ``"gone"``.
        about: What its agent is made of, for people.
        load: Connections and calls that it has, as it said last.
        sent: Connections that it was handed.
        received: Those it knew of when it said so.
        refusing: It has refused conversations of late.
        clients: Its conversations by who they count for.
        told: What it knows of the others' clients.
        heard_at: When it said something last, in loop time; 0: never.
        began_at: When it was started.
        ready_at: When it was ready; ``None``: it is not yet.
        failure: Why it could not start.
        news: Set with each new state.
        silent: Set when it can't say anything any more.
        over: Set when nothing is left of it.
    """

    number: int
    process: asyncio.subprocess.Process
    channel: Channel = field(init=False)
    state: str = "starting"
    about: str = ""
    load: int = 0
    sent: int = 0
    received: int = 0
    refusing: bool = False
    clients: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    heard_at: float = 0.0
    began_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    ready_at: float | None = None
    failure: VoiceError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def work(self) -> int:
        """What it has to do, with what is on its way to it."""
        return self.load + self.sent - self.received

    async def until(self, *states: str) -> None:
        """Wait until it is as far as that.

        Raises:
            VoiceError: It ended instead.
        """
        while self.state not in states:
            if self.state == "gone":
                raise self.failure or WorkerFailed(f"worker {self.number} ended while it started")
            self.news.clear()
            await self.news.wait()

    def tell(self, head: Mapping[str, Any], data: bytes = b"") -> bool:
        """Send it a message; returns whether that could be done."""
        try:
            self.channel.send(head, data)
        except ChannelFull as error:
            log.warning("a worker could not be told: %s", error, extra={"number": self.number})
            return False
        return True


class Port:
    """Where connections come in. Used on one event loop.

    Args:
        sockets: Bound; closed by :meth:`close`.
        workers: By number; changed by their owner.
    """

    def __init__(self, sockets: Sequence[socket.socket], workers: Mapping[int, Worker]) -> None:
        self._sockets, self._workers = sockets, workers
        self._open = False

    def open(self, wanted: bool = True) -> None:
        """Take connections, or leave them in the system's queue until somebody can."""
        if wanted == self._open:
            return
        self._open = wanted
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            if wanted:
                each.setblocking(False)
                each.listen(BACKLOG)
                loop.add_reader(each, self._accept, each)
            else:
                loop.remove_reader(each)

    def close(self) -> None:
        """Refuse connections from now on."""
        self.open(False)
        for each in self._sockets:
            each.close()

    def place(self, connection: socket.socket, came: bytes, *, final: bool, to: int = ANYONE) -> None:
        """Hand a connection to a worker.

        Args:
            came: What was read of it.
            final: That worker answers, whatever the request is about.
            to: The worker's number; if there is none of that number, it is the one with least to do.
        """
        named = self._workers.get(to)
        for worker in [named] if named is not None and named.state in _TAKES else self._by_work():
            try:
                worker.channel.send({"do": "serve", "final": final}, came, connection)
            except ChannelFull:
                continue
            worker.sent += 1
            return
        log.warning("a connection was dropped: no worker could take it")
        connection.close()

    def _by_work(self) -> list[Worker]:
        now = asyncio.get_running_loop().time()

        def rank(worker: Worker) -> tuple[int, bool, bool, int, int]:
            place, silent = _TAKES.index(worker.state), now > worker.heard_at + SILENT_S
            return place, silent, worker.refusing, worker.work, worker.sent

        return sorted((w for w in self._workers.values() if w.state in _TAKES), key=rank)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("no connection can be accepted: %s", error.strerror)
                self.open(False)
                asyncio.get_running_loop().call_later(PAUSE_S, self._again)
                return
            self.place(connection, b"", final=False)

    def _again(self) -> None:
        if all(each.fileno() >= 0 for each in self._sockets):
            self.open(True)

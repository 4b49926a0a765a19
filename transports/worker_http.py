"""How does a worker serve the connections that it is handed? As ever, but a request about another worker's conversation
goes on to that worker, connection and all.

That is decided by the first line of each request, before anything of it is parsed or answered. Requests that come
before the answer to the last one (HTTP pipelining, which no client of ours does) are answered here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial

import h11
import uvicorn
from uvicorn.server import ServerState

from transports import serving
from transports.server import Server
from transports.serving import GuardedHttp, serve_until
from transports.worker_channel import ChannelFull
from transports.worker_process import Seat
from transports.worker_routing import ANYONE, request_line

log = logging.getLogger("voice.workers")

PASS_ON_S = 0.01
"""A connection whose last answer is still on its way is handed on as soon as that has left; looked at this often."""


async def serve_as_worker(app: Server, seat: Seat) -> bool:
    """Serve what the parent hands over until it says stop, or somebody sends SIGTERM; then drain. The second time
    everything ends at once.

    Returns:
        Whether all conversations ended by themselves or by the drain.

    Raises:
        VoiceError: The engines can't be loaded.
    """
    first, second = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (second if first.is_set() else first).set()

    def told_by_somebody_else() -> None:
        seat.leave()
        stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told_by_somebody_else)
    try:
        beside = partial(_seated, seat, app, stop)
        return await serve_until(first, second, app, [], on_ready=partial(seat.tell, "ready"), beside=beside)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextlib.asynccontextmanager
async def _seated(
    seat: Seat, app: Server, stop: Callable[[], None], server: uvicorn.Server
) -> AsyncIterator[None]:
    """Take part inside the context."""
    task = asyncio.create_task(seat.serve(app, _Door(server, seat), stop), name="worker's seat")
    task.add_done_callback(lambda task: None if task.cancelled() else stop())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


class _Door:
    """Takes connections from other processes and gives them away."""

    def __init__(self, server: uvicorn.Server, seat: Seat) -> None:
        self._server, self._seat = server, seat
        self._arriving: set[asyncio.Task[None]] = set()
        self.adopted = 0

    @property
    def connections(self) -> int:
        """Connections that are here, whatever they are for."""
        return len(self._server.server_state.connections)

    def adopt(self, connection: socket.socket, came: bytes, *, final: bool) -> None:
        """Serve a connection.

        Args:
            came: What was read of it.
            final: Whatever its first request is about, it is answered here.
        """
        task = asyncio.get_running_loop().create_task(self._adopt(connection, came, final))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _adopt(self, connection: socket.socket, came: bytes, final: bool) -> None:
        def made() -> WorkerHttp:
            self.adopted += 1  # its protocol counts itself in the same moment, or never
            return WorkerHttp(self._server.config, self._server.server_state, self._seat, came, final)

        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(made, connection)
        except OSError as error:  # it is gone already
            log.debug("a connection could not be taken over: %s", error)
            connection.close()

    def give_away(self) -> None:
        """Have others serve all connections on which no request is under way."""
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, WorkerHttp):
                connection.give_away()


class WorkerHttp(GuardedHttp):
    """An HTTP connection that can go on to another process.

    Args:
        config, server_state: uvicorn's.
        seat: Knows who should answer.
        came: What another process read of this connection.
        final: The next request is answered here, whatever it is about.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, seat: Seat, came: bytes, final: bool
    ) -> None:
        super().__init__(config, server_state, {})
        self._seat, self._came, self._final = seat, came, final
        self._line = b""  # the beginning of a request whose first line is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._came:  # before anything that comes from the network, which is not read yet
            self.loop.call_soon(self.data_received, self._came)

    def data_received(self, data: bytes) -> None:
        if not self._at_head():
            super().data_received(data)
            return
        data, self._line = self._line + data, b""
        line = request_line(data)
        if line is None:
            self._line = data
            self._unset_keepalive_if_required()
            if not self._in_head:
                self._in_head = True
                self._within(serving.HEAD_S)
            return
        to = None if self._final else self._seat.elsewhere(line)
        self._final = False
        if to is None:
            super().data_received(data)
        else:
            self._pass_on(data, to)

    def give_away(self) -> None:
        """Have another worker serve this connection, if no request is under way."""
        if self._at_head() and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            with contextlib.suppress(ChannelFull):  # tried again later
                self._let_pass(self._line, ANYONE)

    def _at_head(self) -> bool:
        """Whether the next byte begins a request."""
        unread, _ = self.conn.trailing_data
        return self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE and not unread

    def _pass_on(self, data: bytes, to: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        if self.transport.get_write_buffer_size():
            self.transport.pause_reading()
            self.loop.call_later(PASS_ON_S, self._pass_on, data, to)
            return
        try:
            self._let_pass(data, to)
        except ChannelFull as error:
            log.warning("a connection could not be handed on: %s", error)
            super().data_received(data)

    def _let_pass(self, data: bytes, to: int) -> None:
        """Hand the connection on.

        Raises:
            ChannelFull: It is still here.
        """
        connection: socket.socket = self.transport.get_extra_info("socket").dup()
        try:
            self._seat.pass_on(connection, data, to)
        except ChannelFull:
            connection.close()
            raise
        self.transport.abort()  # closes our handle only: the connection lives on in the other process

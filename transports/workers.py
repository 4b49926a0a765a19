"""How do several processes serve one port? A parent starts workers, replaces those that die, and has them come and go.

The parent hands each connection to the worker that has least to do (:mod:`transports.worker_port`). A worker that gets
a request about another worker's conversation (the ids that clients are given name it) hands the connection on through
the parent. A conversation lives and dies with its worker. At SIGHUP each worker is replaced: the old one takes nothing
new once the new one is ready, and stays until its conversations have come to their own end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from transports.worker_channel import Channel, Message, pair
from transports.worker_notices import Notices
from transports.worker_port import IN_SERVICE, Port, Worker, WorkerFailed
from voice.errors import BadRequest, VoiceError

__all__ = ["WorkerFailed", "serve_with_workers", "worker_command"]

log = logging.getLogger("voice.workers")

START_S = 3600.0
"""Longest start of a worker: its models may have to be downloaded."""

BACK_OFF_S, BACK_OFF_MOST_S = 0.5, 30.0
"""Before a worker that died is replaced; twice as long after each replacement that failed or died young."""

YOUNG_S = 30.0
"""A worker that dies sooner after it was ready did not work."""

MOST_FAILURES = 5
"""Replacements in a row that fail, with no worker left, until the server gives up."""

STUCK_S = 60.0
"""A worker that has not reported for so long is ended and replaced."""

END_S = 2.0
"""How long workers may take to end after a second signal."""

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from voice.cli import main
sys.exit(main())
"""
_TICK_S = 1.0
_LAST_WORDS_S = 1.0


def worker_command(arguments: Sequence[str]) -> list[str]:
    """What starts ``voice`` with ``arguments`` and modules from where this process has them.

    In a fresh interpreter: the threads of native libraries don't survive a fork.
    """
    return [sys.executable, "-P", "-c", _START, json.dumps(sys.path), *arguments]


async def serve_with_workers(
    command: Sequence[str],
    environment: Mapping[str, str],
    sockets: Sequence[socket.socket],
    count: int,
    secret_key: str,
    *,
    on_ready: Callable[[str], None],
) -> bool:
    """Serve until SIGTERM or SIGINT; then drain. A second signal ends everything at once. SIGHUP replaces the workers.

    Args:
        command: Starts a worker, such as :func:`worker_command`; the handle of its channel is appended.
        environment: Of the workers.
        sockets: From :func:`transports.serving.listen`; closed at the end.
        count: How many workers there are.
        secret_key: Seals the client secrets.
        on_ready: Called when all workers are ready, with what the agent is made of.

    Returns:
        Whether all conversations ended by themselves or by the drain; ``False`` after a second signal.

    Raises:
        VoiceError: The workers can't start, at first or any more; ``BadRequest`` if what they were told is wrong.
    """
    first, second = asyncio.Event(), asyncio.Event()
    crew = Crew(command, environment, sockets, count, secret_key)
    drained = False

    async def drain() -> None:
        nonlocal drained
        drained = await crew.drain()

    with _on_signals(lambda: (second if first.is_set() else first).set(), crew.restart):
        try:
            await _unless(first, crew.start(on_ready))
            await _unless(first, crew.failure())
            await _unless(second, drain())
        finally:
            await crew.end()
    return drained


class Crew:
    """The workers of one port. Used on one event loop; see :func:`serve_with_workers`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        sockets: Sequence[socket.socket],
        count: int,
        secret_key: str,
    ) -> None:
        self._command, self._environment = command, environment
        self._count, self._secret_key = count, secret_key
        self._numbers = itertools.count(1)
        self._workers: dict[int, Worker] = {}
        self._port = Port(sockets, self._workers)
        self._notices = Notices(self._workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarting: asyncio.Task[None] | None = None
        self._restart_again = False
        self._stopping = False
        self._failures = 0  # in a row
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------ life

    async def start(self, on_ready: Callable[[str], None]) -> None:
        """Start all workers, the first one alone: what it downloads the others find.

        Raises:
            VoiceError: One can't start.
        """
        self._background(self._look_after())
        first = await self._hire()
        await first.until("loaded", *IN_SERVICE)
        for worker in [first, *[await self._hire() for _ in range(self._count - 1)]]:
            await worker.until("ready")
        on_ready(first.about)

    async def failure(self) -> None:
        """Wait until no worker can be had any more, and raise why."""
        await asyncio.shield(self._failed)

    async def drain(self) -> bool:
        """Have all workers finish their sentences and end; returns whether all did so in order."""
        self._stop()
        left = list(self._workers.values())
        for worker in left:
            self._dismiss(worker)
        for worker in left:
            await worker.over.wait()
        return all(worker.process.returncode == 0 for worker in left if worker.ready_at is not None)

    async def end(self) -> None:
        """End what is left, at once."""
        self._stop()
        self._port.close()
        left = list(self._workers.values())
        for worker in left:
            if worker.state != "stopping":
                self._dismiss(worker)
            worker.tell({"do": "stop"})  # the second one
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for worker in left:
                    await worker.over.wait()
        for worker in left:
            if worker.process.returncode is None:
                worker.process.kill()
        for worker in left:
            await worker.over.wait()
        for task in self._tasks:
            task.cancel()
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # seen

    def _stop(self) -> None:
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()

    def _dismiss(self, worker: Worker) -> None:
        """Have a worker finish its sentences and end."""
        listens = worker.state not in ("starting", "loaded")
        worker.state = "stopping"
        if listens:
            worker.tell({"do": "stop"})
        else:
            worker.process.terminate()

    # ------------------------------------------------------------ one after another

    def restart(self) -> None:
        """Replace the workers one after another; a second call meanwhile has it done once more."""
        if self._stopping:
            return
        self._restart_again = True
        if self._restarting is None or self._restarting.done():
            self._restarting = self._background(self._restart())

    async def _restart(self) -> None:
        while self._restart_again:
            self._restart_again = False
            for old in [w for w in self._workers.values() if w.state in IN_SERVICE]:
                log.info("a worker is replaced", extra={"number": old.number})
                try:
                    await (await self._hire()).until("ready")
                except VoiceError as error:
                    log.error("a new worker could not start, so the old ones stay: %s", error)
                    return
                if old.state in IN_SERVICE:
                    self._retire(old)
        log.info("all workers were replaced")

    def _retire(self, worker: Worker) -> None:
        worker.state = "retiring"
        worker.tell({"do": "retire"})
        leaving = [w for w in self._workers.values() if w.state == "retiring"]
        for oldest in leaving[: max(0, len(leaving) - 2 * self._count)]:
            log.warning(
                "too many workers wait for their conversations to end", extra={"number": oldest.number}
            )
            self._dismiss(oldest)

    # ------------------------------------------------------------ workers come and go

    async def _hire(self) -> Worker:
        """A new worker, which begins to start."""
        ours, its = pair()
        number = next(self._numbers)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(self._environment),
                pass_fds=[its.fileno()],
            )
        except OSError as error:
            ours.close()
            raise WorkerFailed(f"a worker could not be started: {error.strerror or error}") from error
        finally:
            its.close()
        worker = Worker(number, process)
        worker.channel = Channel(ours, lambda message: self._hear(worker, message), worker.silent.set)
        self._workers[number] = worker
        setup = {"do": "setup", "number": number, "workers": self._count}
        worker.tell(setup, self._secret_key.encode())
        self._background(self._attend(worker))
        if self._stopping:
            self._dismiss(worker)
        return worker

    async def _attend(self, worker: Worker) -> None:
        """Until a worker is over; then it may have to be replaced."""
        status = await worker.process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await worker.silent.wait()
        state, worker.state = worker.state, "gone"
        worker.channel.close()
        del self._workers[worker.number]
        self._notices.share_clients()
        worker.news.set()
        worker.over.set()
        if not self._in_service():
            self._port.open(False)
        extra = {"number": worker.number, "status": status}
        if self._stopping or state in ("retiring", "stopping"):
            log.info("a worker is done", extra=extra)
        elif worker.ready_at is not None:  # else whoever waits for it is told
            log.error("a worker died; its conversations are lost, and it is replaced", extra=extra)
            self._notices.lost += 1
            young = asyncio.get_running_loop().time() - worker.ready_at < YOUNG_S
            self._failures = self._failures + 1 if young else 0
            self._background(self._replace())

    async def _replace(self) -> None:
        """Have a new worker for one that left."""
        while not self._stopping:
            await asyncio.sleep(min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** min(max(0, self._failures - 1), 10)))
            try:
                await (await self._hire()).until("ready")
                return
            except VoiceError as error:
                if self._stopping:
                    return
                log.error("a worker could not be replaced: %s", error)
                self._failures += 1
                if self._failures >= MOST_FAILURES and not self._in_service():
                    self._fail(error)
                    return

    async def _look_after(self) -> None:
        """End workers that are stuck."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = asyncio.get_running_loop().time()
            for worker in list(self._workers.values()):
                stuck = worker.ready_at is not None and now > worker.heard_at + STUCK_S
                if stuck or (worker.ready_at is None and now > worker.began_at + START_S):
                    log.error("a worker does not react and is ended", extra={"number": worker.number})
                    worker.process.kill()

    def _in_service(self) -> bool:
        return any(worker.state in IN_SERVICE for worker in self._workers.values())

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # ------------------------------------------------------------ what workers say

    def _hear(self, worker: Worker, message: Message) -> None:
        head = message.head
        worker.heard_at = asyncio.get_running_loop().time()
        match head["do"]:
            case "state":
                self._progress(worker, head)
            case "pass":
                if message.passed is None:
                    log.error("a connection was lost: the parent has no file handle left")
                else:
                    self._port.place(message.passed, message.data, final=True, to=head["to"])
            case _:
                self._notices.hear(worker, message)

    def _progress(self, worker: Worker, head: Mapping[str, Any]) -> None:
        if head["state"] == "failed":
            worker.failure = (BadRequest if head["bad_request"] else WorkerFailed)(head["error"])
        elif head["state"] == "leaving":
            if worker.state in IN_SERVICE and not self._stopping:
                log.info("a worker was told to end, and is replaced", extra={"number": worker.number})
                worker.state = "stopping"
                self._background(self._replace())
        elif worker.state not in ("retiring", "stopping", "gone"):
            worker.state = head["state"]
            worker.about = head.get("about", worker.about)
            if worker.state == "ready":
                worker.ready_at = worker.heard_at
                self._notices.share_clients()
            if worker.state in IN_SERVICE:
                self._port.open()
        worker.news.set()


# ---------------------------------------------------------------- waiting and signals


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Wait until ``work`` is done or ``event`` is set; then ``work`` is cancelled. Its errors are raised."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(event.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None], restart: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` for each SIGTERM and SIGINT, and when our terminal is closed; ``restart`` for each other SIGHUP."""
    loop = asyncio.get_running_loop()
    had_terminal = _has_terminal()

    def hung_up() -> None:
        (stop if had_terminal and not _has_terminal() else restart)()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: hung_up}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

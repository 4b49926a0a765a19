"""How workers come and go, and who gets what: a real parent, and workers of a few lines that only talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from transports import workers
from transports.serving import listen
from transports.worker_metrics import merged
from transports.worker_routing import call_id, named_worker, request_line, resume_token
from transports.workers import serve_with_workers
from voice.compute import CpuBudget
from voice.errors import BadRequest, VoiceError

WORKER = """
import json, os, socket, sys
end = socket.socket(fileno=int(sys.argv[-1]))
number = json.loads(end.recv(1 << 18).partition(b"\\n")[0])["number"]
def say(**head):
    end.send(json.dumps(head).encode() + b"\\n")
if os.path.exists("broken"):
    say(do="state", state="failed", error="the model file is broken", bad_request=False)
    sys.exit(1)
if os.path.exists("dying"):
    sys.exit(3)
for state in ("loaded", "up", "ready"):
    say(do="state", state=state, about="an agent")
received, held = 0, []
while True:
    message, handles, _, _ = socket.recv_fds(end, 1 << 18, 1)
    if not message:
        sys.exit(1)
    head = json.loads(message.partition(b"\\n")[0])
    if head["do"] == "stop":
        sys.exit(0)
    if head["do"] == "serve":
        connection = socket.socket(fileno=handles[0])
        connection.setblocking(True)
        connection.send(f"{number} {os.getpid()}\\n".encode())
        received += 1
        held.append(connection)
        say(do="load", load=len(held), received=received, refusing=False, clients={"someone": len(held)})
    if head["do"] == "retire":
        held.clear()
"""


class Place:
    """A running parent."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[int, int]:
        """The number and the process of the worker that gets a new connection, which stays open."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.open.append(writer)
        number, process = (await reader.readline()).split()
        return int(number), int(process)


@contextlib.asynccontextmanager
async def crew(folder: Path, count: int = 2) -> AsyncIterator[tuple[Place, asyncio.Task[bool]]]:
    """A parent of ``count`` workers, and what becomes of it."""
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); exec(open('worker.py').read())"]
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    ready = asyncio.Event()
    work = serve_with_workers(command, os.environ, sockets, count, "k" * 32, on_ready=lambda _: ready.set())
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    place = Place(port)
    try:
        yield place, task
    finally:
        for writer in place.open:
            writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BACK_OFF_S", 0.02)
    monkeypatch.setattr(workers, "_TICK_S", 0.05)


def test_the_worker_that_has_least_to_do_gets_the_next_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with crew(tmp_path, 3) as (at, _):
            got = Counter([(await at.connect())[0] for _ in range(9)])
            assert got == {1: 3, 2: 3, 3: 3}
            many = await asyncio.gather(*(at.connect() for _ in range(30)))
            assert Counter(number for number, _ in many) == {1: 10, 2: 10, 3: 10}, "and at once, too"

    run(work)


def test_a_dead_worker_is_replaced_and_the_rest_serve_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        async with crew(tmp_path) as (at, task):
            killed, process = await at.connect()
            os.kill(process, signal.SIGKILL)
            numbers: set[int] = set()
            while len(numbers - {killed}) < 2:
                with contextlib.suppress(ValueError, OSError):  # handed to the dead one in the very moment
                    numbers.add((await at.connect())[0])
            assert 3 in numbers
            assert not task.done()

    run(work)


def test_workers_that_die_and_can_not_be_replaced_end_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with crew(tmp_path) as (at, task):
            (tmp_path / "broken").touch()
            for process in {(await at.connect())[1] for _ in range(2)}:
                os.kill(process, signal.SIGKILL)
            with pytest.raises(VoiceError, match="the model file is broken"):
                await task

    run(work)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("broken", "the model file is broken"), ("dying", "worker 1 ended while it started")],
)
def test_a_first_worker_that_can_not_start_ends_the_server(tmp_path: Path, fault: str, sentence: str) -> None:
    async def work() -> None:
        (tmp_path / fault).touch()
        async with crew(tmp_path) as (_, task):
            with pytest.raises(VoiceError, match=sentence):
                await task

    run(work)


def test_old_workers_stay_when_new_ones_can_not_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with crew(tmp_path) as (at, task):
            (tmp_path / "broken").touch()
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.5)
            assert {(await at.connect())[0] for _ in range(2)} == {1, 2}
            (tmp_path / "broken").unlink()
            os.kill(os.getpid(), signal.SIGHUP)
            while {(await at.connect())[0] for _ in range(2)} != {4, 5}:
                pass
            assert not task.done()
            os.kill(os.getpid(), signal.SIGTERM)
            assert await task

    run(work)


def test_a_worker_that_does_not_react_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.3)  # these workers speak only when something happens

    async def work() -> None:
        async with crew(tmp_path) as (at, task):
            await asyncio.sleep(0.6)
            numbers: set[int] = set()
            while not numbers & {3, 4, 5, 6}:
                with contextlib.suppress(ValueError, OSError):
                    numbers.add((await at.connect())[0])
            assert not task.done()

    run(work)


# ---------------------------------------------------------------- names and figures


@pytest.mark.parametrize(
    ("line", "worker"),
    [
        (f"POST /v1/realtime/calls/{call_id(7)}/hangup HTTP/1.1", 7),
        (f"GET /v1/realtime?call_id={call_id(12)} HTTP/1.1", 12),
        (f"GET /openai/v1/realtime?model=voice&resume={resume_token(3)} HTTP/1.1", 3),
        (f"GET http://proxy.example/v1/realtime?call_id={call_id(2)} HTTP/1.1", 2),
        (f"POST /v1/realtime/calls/{call_id(None)}/hangup HTTP/1.1", None),
        (f"GET /v1/realtime?resume={resume_token(None)} HTTP/1.1", None),
        ("GET /v1/realtime?resume=1 HTTP/1.1", None),
        ("GET /v1/realtime?model=rtc_9_x HTTP/1.1", 9),
        ("POST /v1/realtime/calls HTTP/1.1", None),
        ("GET /v1/realtime?call_id=rtc_99999999999999999999_0 HTTP/1.1", None),
    ],
)
def test_a_requests_first_line_names_its_worker(line: str, worker: int | None) -> None:
    assert named_worker(line.encode()) == worker


def test_a_first_line_is_known_when_it_is_there_in_full_or_too_long() -> None:
    assert request_line(b"GET / HT") is None
    assert request_line(b"\r\nGET / HTTP/1.1\r\nHost") == b"GET / HTTP/1.1\r"
    assert request_line(b"x" * 8192) is None
    assert request_line(b"x" * 8193) is not None
    assert request_line(b"\r\n" * 5000) is not None  # no request begins so


def test_metrics_of_workers_are_told_apart_and_kept_together() -> None:
    one = '# HELP a_total What.\n# TYPE a_total counter\na_total 1\n# HELP b S.\n# TYPE b gauge\nb{k="x"} 2\n'
    two = one.replace(" 1\n", " 3\n")
    assert merged({1: one, 2: two}).splitlines() == [
        "# HELP a_total What.",
        "# TYPE a_total counter",
        'a_total{worker="1"} 1',
        'a_total{worker="2"} 3',
        "# HELP b S.",
        "# TYPE b gauge",
        'b{worker="1",k="x"} 2',
        'b{worker="2",k="x"} 2',
    ]


def test_workers_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.compute._affinity", lambda: 12)
    monkeypatch.setattr("voice.compute._cgroup_quota", lambda: None)
    monkeypatch.delenv("VOICE_CPU_SHARE", raising=False)
    budget = CpuBudget.detect(4)
    assert (budget.cores, budget.asr_threads) == (3, 3)
    monkeypatch.setenv("VOICE_CPU_SHARE", budget.environment(4)["VOICE_CPU_SHARE"])
    assert CpuBudget.detect() == budget
    assert CpuBudget.detect(100).cores == 1
    monkeypatch.setenv("VOICE_CPU_SHARE", "half")
    with pytest.raises(BadRequest, match="VOICE_CPU_SHARE"):
        CpuBudget.detect()

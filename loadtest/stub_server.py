"""A server with real voice detection and stub engines, in a process of its own that tells each second what it uses:
what is left is the cost of the framework and of its detector.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtest.framework import turn_options
from loadtest.process import cpu_s, end, stat_fields
from loadtest.stubs import ServiceTimes, stub_stages
from stages.vad.silero import SileroVad
from transports.options import ServerOptions
from transports.server import Server, app
from transports.serving import listen, serve
from voice.admission import AdmissionOptions
from voice.agent import Agent
from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.interfaces import VoiceDetector
from voice.running import settle
from voice.testing import ScriptedDetector

SAMPLE_S = 1.0
_LAG_TICK_S = 0.02
_START_S = 60.0
_STOP_S = 30.0
_SILENT_S = 30.0
_SESSION_S = 7 * 86_400.0
EVENT_LOOP = "event loop"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What a server's process uses at one moment.

    Attributes:
        cpu_s: Of all its threads since its start.
        rss_mb: Resident memory, MiB.
        threads, handles, tasks: Threads, open file descriptors, asyncio tasks; ``None``: not known from outside.
        sessions: Conversations under way; ``None``: not known.
        loop_lag_ms: The latest that its loop's timer fired since the last sample; ``None``: not known.
        thread_cpu_s: CPU seconds by kind of thread.
        detector_age_ms: How long the oldest window has waited for the detector.
        detector_batch: Windows a call.
    """

    cpu_s: float
    rss_mb: float
    threads: int | None = None
    handles: int | None = None
    tasks: int | None = None
    sessions: int | None = None
    loop_lag_ms: float | None = None
    thread_cpu_s: dict[str, float] = field(default_factory=dict)
    detector_age_ms: float | None = None
    detector_batch: float | None = None


@dataclass(frozen=True, slots=True)
class StubOptions:
    """How the server is made.

    Attributes:
        max_sessions: It refuses more.
        admission: It also refuses what would harm the conversations that it has.
        speculate: Answers begin at the pause, before the turn is certain.
        detector: ``"silero"``; ``"loud"``: what is loud is speech, without a model.
    """

    max_sessions: int = 100_000
    admission: bool = True
    speculate: bool = False
    detector: str = "silero"

    @property
    def ideal_s(self) -> float:
        """From the end of speech to the first sound when nothing but the stubs and the silence take time."""
        turns, times = turn_options(speculate=self.speculate), ServiceTimes()
        work_s = times.recognition_s + times.first_token_s + times.first_sentence_s + times.first_audio_s
        return (
            max(turns.min_delay_s, turns.pause_s + work_s) if self.speculate else turns.min_delay_s + work_s
        )


def process_sample(pid: int) -> ServerSample:
    """What can be known of any process of this machine from outside.

    Raises:
        BadRequest: No such process, or this system has no /proc.
    """
    try:
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError as error:
        raise BadRequest(f"the process {pid} can't be watched: {error}") from error
    return ServerSample(cpu_s(fields), pages * _PAGE_BYTES / 2**20, threads=int(fields[17]))


# ---------------------------------------------------------------- in the server's process


class _Witness:
    """Tells on standard output what this process uses."""

    def __init__(self, server: Server, detector: VoiceDetector) -> None:
        self._server, self._detector = server, detector
        self._worst_s = 0.0

    async def tell(self) -> None:
        """Each second, until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = tell_s = loop.time()
        while True:
            due_s = max(due_s + _LAG_TICK_S, loop.time())
            await asyncio.sleep(due_s - loop.time())
            self._worst_s = max(self._worst_s, loop.time() - due_s)
            if loop.time() >= tell_s:
                tell_s += SAMPLE_S
                print(json.dumps(asdict(self._sample())), flush=True)

    def _sample(self) -> ServerSample:
        seen, worst_s = process_sample(os.getpid()), self._worst_s
        self._worst_s = 0.0
        stats = self._detector.stats if isinstance(self._detector, SileroVad) else None
        return ServerSample(
            seen.cpu_s,
            seen.rss_mb,
            seen.threads,
            len(os.listdir("/proc/self/fd")),
            len(asyncio.all_tasks()),
            self._server.host.sessions,
            round(worst_s * 1000, 2),
            _thread_cpu_s(),
            None if stats is None else round(stats.oldest_age_s * 1000, 2),
            None if stats is None else round(stats.mean_batch, 2),
        )


def _thread_cpu_s() -> dict[str, float]:
    """CPU seconds by thread name; those of native libraries together."""
    names = {t.native_id: t.name for t in threading.enumerate()}
    names[threading.main_thread().native_id] = EVENT_LOOP
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            fields = stat_fields(task / "stat")
        except OSError:  # it has ended
            continue
        name = names.get(int(task.name), "native").split("_")[0]
        found[name] = round(found.get(name, 0.0) + cpu_s(fields), 2)
    return found


async def main(options: StubOptions) -> None:
    """Serve on a free port, tell it and what is used, and stop when told to or when the parent is gone."""
    sockets = listen("127.0.0.1", 0)
    most = ServerOptions(
        max_sessions=options.max_sessions,
        max_sessions_per_client=options.max_sessions,
        session_s=_SESSION_S,
        admission=AdmissionOptions() if options.admission else None,
    )
    detector: VoiceDetector = SileroVad() if options.detector == "silero" else ScriptedDetector()
    agent = Agent("Be brief.", stub_stages(detector), turns=turn_options(speculate=options.speculate))
    server = app(agent, options=most)
    loop = asyncio.get_running_loop()
    witness = _Witness(server, detector)
    telling: list[asyncio.Task[None]] = []

    def ready() -> None:
        settle()
        port = sockets[0].getsockname()[1]
        print(json.dumps({"port": port, "ideal_s": options.ideal_s}), flush=True)
        telling.append(loop.create_task(witness.tell()))

    serving = loop.create_task(serve(server, sockets, on_ready=ready))
    loop.add_reader(sys.stdin.fileno(), _parent_gone, loop, serving)
    try:
        await serving
    except asyncio.CancelledError:
        pass
    finally:
        for task in telling:
            task.cancel()


def _parent_gone(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[bool]) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        serving.cancel()


# ---------------------------------------------------------------- in the load tester's process


class StubServer:
    """A running server.

    Attributes:
        url: Its address.
        pid: Of its process.
        ideal_s: See :class:`StubOptions`.
        latest: What it told last; ``None``: nothing yet.
    """

    def __init__(self, url: str, pid: int, ideal_s: float) -> None:
        self.url, self.pid, self.ideal_s = url, pid, ideal_s
        self.latest: ServerSample | None = None
        self._told = asyncio.Event()

    async def next_sample(self) -> ServerSample:
        """What it tells next.

        Raises:
            EngineFailed: It tells nothing any more.
        """
        self._told.clear()
        try:
            async with asyncio.timeout(_SILENT_S):
                await self._told.wait()
        except TimeoutError as error:
            raise EngineFailed("the server with stub engines tells nothing any more") from error
        assert self.latest is not None
        return self.latest

    async def _listen(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            self.latest = ServerSample(**json.loads(line))
            self._told.set()


@asynccontextmanager
async def running(options: StubOptions) -> AsyncIterator[StubServer]:
    """A server in a child process, for as long as the context lasts.

    Raises:
        EngineFailed: It did not start.
    """
    arguments = [
        f"--max-sessions={options.max_sessions}",
        f"--detector={options.detector}",
        *(["--speculate"] if options.speculate else []),
        *([] if options.admission else ["--no-admission"]),
    ]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.stub_server", *arguments, stdin=pipe, stdout=pipe
    )
    listening: asyncio.Task[None] | None = None
    try:
        assert child.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                first = json.loads(await child.stdout.readline())
        except (TimeoutError, ValueError) as error:
            raise EngineFailed("the server with stub engines did not start") from error
        server = StubServer(f"ws://127.0.0.1:{first['port']}", child.pid, first["ideal_s"])
        listening = asyncio.get_running_loop().create_task(server._listen(child.stdout))
        yield server
    finally:
        await end(child, _STOP_S)
        if listening is not None:
            listening.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-sessions", type=int, required=True)
    parser.add_argument("--detector", choices=("silero", "loud"), default="silero")
    parser.add_argument("--speculate", action="store_true")
    parser.add_argument("--no-admission", action="store_true")
    given = parser.parse_args()
    try:
        asyncio.run(
            main(StubOptions(given.max_sessions, not given.no_admission, given.speculate, given.detector))
        )
    except VoiceError as error:
        sys.exit(f"stub server: {error}")

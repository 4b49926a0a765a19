"""A server in a process of its own that says what it does: one line of JSON for each thing, with the loop time.

Loop time is the machine's monotonic clock, so the times of two processes compare.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiortc import MediaStreamTrack, RTCPeerConnection, RTCRtpTransceiver

from loadtest.process import end
from loadtest.rtc.markers import Markers
from transports import webrtc
from transports.monitoring import Metrics
from transports.options import ServerOptions
from transports.rtc.receiver import CallerReceiver, add_audio
from transports.server import app
from transports.serving import listen, serve
from voice.agent import Agent
from voice.errors import BadRequest, EngineFailed
from voice.events import AudioStarted, ResponseEnded, SessionEvent
from voice.interfaces import Pcm16, Prompt, Stages
from voice.testing import ScriptedDetector, ScriptedModel, ScriptedRecogniser, ToneSynthesiser

SENTENCES = (
    "The train to the coast leaves at a quarter past nine in the morning.",
    "Please remember to bring a warm coat and a pair of dry shoes.",
    "My grandmother keeps three chickens and an old dog in her garden.",
    "We will have dinner together after the meeting on Thursday evening.",
    "The museum is closed today, but the library is open until six.",
    "He found the missing key under a pile of newspapers in the kitchen.",
    "It has been raining for two days and the river is very high.",
    "She would like to change her flight to the first week of March.",
    "There is a small bakery on the corner that sells wonderful bread.",
    "The doctor said that I should drink more water and walk every day.",
)
"""What the agent with a voice says, in turn."""
LONG = "long"
"""What the agent of tones is asked for a long answer; anything else gets a word."""
LONG_WORDS = 40
WORD = "Yes."

_START_S = 120.0
_STOP_S = 15.0
_ANSWER_S = 10.0
_KEPT = 10_000
_LINE_BYTES = 2**20


def agent_of_tones() -> Agent:
    """Every stage is scripted and costs next to nothing; the voice is tones."""

    def reply(prompt: Prompt) -> str:
        if prompt.messages[-1].text == LONG:
            return " ".join(f"word{n}" + "." * (n % 5 == 0) for n in range(1, LONG_WORDS + 1))
        return WORD

    recogniser = ScriptedRecogniser(lambda _: "Hello.")
    voice = ToneSynthesiser(session_number=lambda _: 0)  # the lowest tones: Opus keeps those best
    stages = Stages(ScriptedDetector(), recogniser, ScriptedModel(reply), voice)
    return Agent("Be brief.", stages)


def agent_with_voice() -> Agent:
    """The real ear and voice of this machine; the words are :data:`SENTENCES`, one a turn."""
    from stages import presets

    def reply(prompt: Prompt) -> str:
        turns = sum(message.role == "user" for message in prompt.messages)
        return SENTENCES[(turns - 1) % len(SENTENCES)]

    stages = presets.local()
    return Agent("Be brief.", replace(stages, model=ScriptedModel(reply), fallback_model=None))


class _Told(Metrics):
    """The server's metrics, which are told of every event."""

    def observe(self, event: SessionEvent) -> None:
        super().observe(event)
        match event:
            case AudioStarted():
                _say("started", id=event.response_id)
            case ResponseEnded():
                _say("ended", id=event.response_id, heard_s=event.heard_s, reason=event.reason)


def _say(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "at": asyncio.get_running_loop().time(), **fields}), flush=True)


def _add_audio(
    peer: RTCPeerConnection, track: MediaStreamTrack, on_audio: Callable[[Pcm16], None]
) -> tuple[RTCRtpTransceiver, CallerReceiver]:
    """As the transport's, but says when a marker comes out of the receiver."""
    markers = Markers()
    now = asyncio.get_running_loop().time

    def heard(pcm: Pcm16) -> None:
        came = markers.feed(pcm, now())
        if came is not None:
            _say("marker", came=came)
        on_audio(pcm)

    return add_audio(peer, track, heard)


def _held() -> dict[str, int]:
    """What a leak would add to. ``objects`` are calls, connections and receivers that are still there."""
    gc.collect()
    kinds = (webrtc.Call, CallerReceiver, RTCPeerConnection)
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "objects": sum(isinstance(thing, kinds) for thing in gc.get_objects()),
    }


async def _take_orders() -> None:
    """Any line on standard input asks what is held. At its end whoever started us is gone: stop."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while await reader.readline():
        _say("held", **_held())
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    """Serve on a free port and say it; stop when told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--voice", action="store_true", help="the real ear and voice")
    voice = parser.parse_args().voice
    webrtc.add_audio = _add_audio  # type: ignore[attr-defined]  # the one place through which a caller's audio comes
    made = agent_with_voice() if voice else agent_of_tones()
    options = ServerOptions(max_sessions=1000, max_sessions_per_client=1000, session_s=7200.0)
    warm_up = None
    if voice:
        from stages import presets

        warm_up = presets.warm_up
    server = app(made, options=options, warm_up=warm_up)
    server.host.metrics = _Told()
    sockets = listen("127.0.0.1", 0)
    orders = asyncio.create_task(_take_orders())
    try:
        port = sockets[0].getsockname()[1]
        await serve(server, sockets, on_ready=lambda: _say("ready", port=port))
    finally:
        orders.cancel()


# ---------------------------------------------------------------- the other side


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer was over: when, after how many seconds of its audio as the server believes, and why."""

    response_id: str
    at: float
    heard_s: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds.

    Attributes:
        objects: Calls, connections and receivers that are not freed.
        sockets: Open file descriptors.
        memory_kb: Resident.
    """

    tasks: int
    threads: int
    objects: int
    sockets: int
    memory_kb: int


@dataclass
class Watched:
    """The server as seen from the caller's process. Times are loop times.

    Attributes:
        url: Where to call.
        pid: Its process.
        markers: When the caller's markers came out of the server's receiver.
        started: When answers became audible, by response.
        ended: Answers that are over.
    """

    url: str
    pid: int
    _orders: asyncio.StreamWriter
    markers: list[float] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    _answer: asyncio.Future[dict[str, Any]] | None = None

    async def held(self) -> Held:
        """What the server holds now."""
        self._answer = asyncio.get_running_loop().create_future()
        self._orders.write(b"held\n")
        async with asyncio.timeout(_ANSWER_S):
            said = await self._answer
        process = Path(f"/proc/{self.pid}")
        status = process.joinpath("status").read_text()
        memory = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        sockets = len(os.listdir(process / "fd"))
        return Held(said["tasks"], said["threads"], said["objects"], sockets, int(memory))

    def _take(self, line: dict[str, Any]) -> None:
        match line["what"]:
            case "marker":
                self.markers.append(line["came"])
            case "started":
                self.started[line["id"]] = line["at"]
            case "ended":
                self.ended[line["id"]] = Ended(line["id"], line["at"], line["heard_s"], line["reason"])
            case "held" if self._answer is not None and not self._answer.done():
                self._answer.set_result(line)


@asynccontextmanager
async def watched_server(*, voice: bool = False) -> AsyncIterator[Watched]:
    """A running server. ``voice``: with the real recogniser and synthesiser.

    Raises:
        EngineFailed: It did not start.
        BadRequest: This system has no /proc.
    """
    if not os.path.exists("/proc/self/fd"):  # noqa: ASYNC240  the kernel answers at once
        raise BadRequest("what a process holds is read from /proc, which this system does not have")
    arguments = ["-m", "loadtest.rtc.server", *(["--voice"] if voice else [])]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    assert child.stdin is not None and child.stdout is not None
    reader: asyncio.Task[None] | None = None
    ours = asyncio.current_task()
    assert ours is not None
    gone = False

    def ended(_: object) -> None:
        nonlocal gone
        gone = True
        ours.cancel()

    try:
        async with asyncio.timeout(_START_S):
            first = await child.stdout.readline()
        if not first:
            raise EngineFailed("the server did not start")
        watched = Watched(f"http://127.0.0.1:{json.loads(first)['port']}", child.pid, child.stdin)
        reader = asyncio.create_task(_follow(child.stdout, watched))
        reader.add_done_callback(ended)
        yield watched
    except asyncio.CancelledError:
        if not gone or ours.uncancel():
            raise
        raise EngineFailed("the server ended before the check did") from None
    finally:
        if reader is not None:
            reader.remove_done_callback(ended)
            reader.cancel()
        await end(child, _STOP_S)


async def _follow(lines: asyncio.StreamReader, watched: Watched) -> None:
    while line := await lines.readline():
        watched._take(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())

"""The server as a program: its port, its signals, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import TEN_WORDS, Place, close_code, event, place, run
from talk import make_agent
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from transports.options import ServerOptions
from transports.server import app
from transports.serving import MESSAGE_BYTES, MOST_WAITING_BYTES, GuardedWebSocket, listen, serve
from voice.agent import Agent
from voice.cli import main
from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.interfaces import Stages

# ---------------------------------------------------------------- a WebSocket's messages


class _Line:
    """Stands in for a connection whose peer sends without end."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@pytest.mark.parametrize("message", [b"", b"x" * 1000, b"x" * 1_000_000])
def test_a_peer_is_not_read_while_much_of_it_waits_even_if_its_messages_are_empty(message: bytes) -> None:
    async def work() -> None:
        websocket = GuardedWebSocket.__new__(GuardedWebSocket)
        websocket.transport = line = _Line()  # type: ignore[assignment]
        websocket.queue, websocket.read_paused, websocket.close_sent = asyncio.Queue(), False, False
        websocket.curr_msg_data_type, websocket._waiting_bytes = "text", 0
        sent = 0
        while line.reading:
            websocket.frames = [message]
            websocket.send_receive_event_to_app()
            sent += 1
        assert (sent - 1) * (len(message) + MESSAGE_BYTES) <= MOST_WAITING_BYTES
        for _ in range(sent):
            assert not line.reading
            await websocket.receive()
        assert line.reading

    asyncio.run(work())


# ---------------------------------------------------------------- the end


async def served(
    work: Callable[[Place], Awaitable[None]], agent: Agent | None = None, **options: Any
) -> bool:
    """Serve as ``voice serve`` does, signals included, and do ``work`` when it is ready."""
    made = app(agent or make_agent(), options=ServerOptions(**options))
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    ready = asyncio.Event()
    serving_ = asyncio.ensure_future(serve(made, sockets, on_ready=ready.set))
    await ready.wait()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        await work(Place(made, port, http))
    return await serving_


def test_at_a_signal_to_stop_sentences_are_finished_and_nobody_new_comes_in() -> None:
    async def talk(at: Place) -> None:
        async with at.ws() as websocket:
            audio_s = 0.0
            while (await event(websocket))["type"] != "response.output_audio.delta":
                pass
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)
            ready = await at.http.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
            assert (await at.http.get("/healthz")).status_code == 200
            assert (await at.refused())[0] == 503
            begun = asyncio.get_running_loop().time()
            with contextlib.suppress(ConnectionClosed):
                while True:
                    told = await event(websocket)
                    if told["type"] == "response.output_audio.delta":
                        audio_s += len(told["delta"]) * 3 / 4 / 48_000
            assert websocket.close_code == CloseCode.SERVICE_RESTART
            assert audio_s > 0.9, "the rest of two seconds came"
            assert asyncio.get_running_loop().time() - begun < 10

    async def work() -> None:
        assert await served(talk, make_agent(greeting=TEN_WORDS))

    run(work)


def test_a_second_signal_ends_everything_at_once() -> None:
    async def talk(at: Place) -> None:
        websocket = await at.ws()
        await event(websocket)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.3)
        assert websocket.close_code is None
        os.kill(os.getpid(), signal.SIGINT)
        assert await close_code(websocket) in (CloseCode.SERVICE_RESTART, CloseCode.ABNORMAL_CLOSURE)

    async def work() -> None:
        assert not await served(talk, make_agent(greeting=" ".join([TEN_WORDS] * 20)))

    run(work)


def test_a_signal_while_the_engines_load_stops_the_server() -> None:
    async def work() -> None:
        async def warm_up(_: Stages) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

        ready: list[bool] = []
        made = app(make_agent(), warm_up=warm_up)
        assert await serve(made, listen("127.0.0.1", 0), on_ready=lambda: ready.append(True))
        assert not ready

    run(work)


def test_engines_that_fail_to_load_end_the_program() -> None:
    async def work() -> None:
        async def warm_up(_: Stages) -> None:
            raise EngineFailed("the model file is broken")

        with pytest.raises(EngineFailed, match="broken"):
            await serve(app(make_agent(), warm_up=warm_up), listen("127.0.0.1", 0))

    run(work)


def test_a_server_leaves_nothing_behind() -> None:
    async def work() -> None:
        before = len(asyncio.all_tasks())
        async with place(make_agent(greeting=TEN_WORDS)) as at:
            sockets = [await at.ws() for _ in range(5)]
            for websocket in sockets:
                await event(websocket)
            sockets[0].transport.abort()
            sockets[1].transport.close()
        for websocket in sockets:
            await close_code(websocket)
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == before

    run(work)


# ---------------------------------------------------------------- where to listen


def test_a_port_that_is_taken_is_told_in_words() -> None:
    (taken,) = listen("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(VoiceError, match=f"port {port} of 127.0.0.1: it is in use"):
        listen("127.0.0.1", port)
    taken.close()


@pytest.mark.parametrize(
    ("host", "port"), [("no such host.example", 0), ("127.0.0.1", 70_000), ("192.0.2.1", 0)]
)
def test_addresses_that_are_none_of_ours_are_refused(host: str, port: int) -> None:
    with pytest.raises(BadRequest):
        listen(host, port)


AGENT_FILE = """
import sys
sys.path.insert(0, {tests!r})
from talk import make_agent
agent = make_agent(greeting="Hello.")
"""


def test_voice_serve_tells_its_address_and_stops_at_a_signal(tmp_path: Path) -> None:
    file = tmp_path / "my_agent.py"
    file.write_text(AGENT_FILE.format(tests=str(Path(__file__).parent.parent)))
    command = [
        sys.executable,
        "-m",
        "voice.cli",
        "serve",
        "--agent",
        f"{file}:agent",
        "--port",
        "0",
        "--log-json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert httpx.get(f"{address}readyz").json() == {"status": "ready"}
        assert httpx.get(address).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert "scripted-recogniser" in err
    assert "processor:" in err
    assert "no token is needed" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--origin", "app.example.org"], "must look like https://app.example.org"),
        (["--token", "two words"], "without blanks"),
        (["--ice", "example.org"], "must begin with stun:"),
        (["--max-sessions", "0"], "max_sessions must be a whole number of at least 1"),
        (["--idle", "nan"], "idle_s must be seconds"),
        (["--port", "70000"], "a port is 0 to 65535"),
        (["--host", "no such host.example"], "is not known"),
        (["--public-url", "example.org"], "must look like https://voice.example.org"),
        (["--agent", "missing.py:agent"], "does not exist"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("loading")]
    assert (out, len(lines)) == ("", 1)
    assert sentence in lines[0]


def test_a_port_in_use_is_told_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    (taken,) = listen("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    assert main(["serve", "--port", str(port)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", f"voice: can't listen on port {port} of 127.0.0.1: it is in use")
    taken.close()

"""Several workers behind one port: real processes, with engines that cost nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from aiortc import RTCPeerConnection
from served import close_code, event
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from transports.worker_channel import Message, pair, receive, send
from transports.workers import worker_command

ROOT = Path(__file__).resolve().parent.parent.parent
AGENT = """
from dataclasses import replace
from loadtest.silent_server import silent_agent
from voice.testing import ScriptedModel
agent = silent_agent()
agent.stages = replace(agent.stages, model=ScriptedModel(lambda _: "Yes."))
"""


@dataclass
class Crew:
    """A running ``voice serve`` with two workers."""

    process: subprocess.Popen[str]
    address: str

    def ws(self, query: str = "", **options: Any) -> connect:
        url = f"ws{self.address.removeprefix('http')}v1/realtime?model=voice{query}"
        return connect(url, compression=None, proxy=None, **options)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.address, timeout=10) as http:
            return await http.get(path)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.05)

    async def ready(self) -> bool:
        """Whether two workers are ready, and no other is left."""
        found = re.findall(
            r'^voice_workers{state="(\w+)"} (\d+)', (await self.get("metrics")).text, re.MULTILINE
        )
        return dict(found) == {"ready": "2", "retiring": "0", "starting": "0"}


def start(folder: Path, *options: str, agent: str = AGENT) -> subprocess.Popen[str]:
    file = folder / "quiet_agent.py"
    file.write_text(agent)
    command = [sys.executable, "-m", "voice.cli", "serve", "--agent", f"{file}:agent", "--port", "0"]
    return subprocess.Popen(
        [*command, "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Crew]:
    process = start(folder, *options)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = process.stdout.readline().strip()
        assert address, process.stderr.read()
        yield Crew(process, address)
    finally:
        for each in psutil.Process(process.pid).children() if process.poll() is None else []:
            each.kill()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with running(tmp_path_factory.mktemp("workers"), "--max-sessions-per-client", "12") as made:
        yield made


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


async def begun(crew: Crew, **options: Any) -> tuple[ClientConnection, str]:
    """A conversation that can be resumed, and the token for that: it begins with the worker's number."""
    while True:
        try:
            websocket = await crew.ws("&resume=1&extensions=1", **options)
            break
        except InvalidStatus as error:
            if b"server_overloaded" not in error.response.body:
                raise  # but a worker that starts on a small machine may leave no room for a newcomer
            await asyncio.sleep(0.1)
    while (told := await event(websocket))["type"] != "voice.resumable":
        pass
    return websocket, told["token"]


def number_of(token: str) -> int:
    return int(token.partition(".")[0])


async def turn(websocket: ClientConnection) -> None:
    """Say something and be answered."""
    content = [{"type": "input_text", "text": "Hello."}]
    item = {"type": "message", "role": "user", "content": content}
    await websocket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await websocket.send(json.dumps({"type": "response.create"}))
    while (told := await event(websocket))["type"] != "response.done":
        pass
    assert told["response"]["status"] == "completed"


async def call(crew: Crew) -> str:
    """The id of a new call by WebRTC, whose peer never connects."""
    peer = RTCPeerConnection()
    peer.addTransceiver("audio")
    await peer.setLocalDescription(await peer.createOffer())
    headers = {"Content-Type": "application/sdp"}
    async with httpx.AsyncClient(base_url=crew.address) as http:
        answer = await http.post("v1/realtime/calls", content=peer.localDescription.sdp, headers=headers)
    await peer.close()
    assert answer.status_code == 201, answer.text
    return str(answer.headers["Location"]).rpartition("/")[2]


def test_both_workers_take_conversations_and_each_gets_its_share(crew: Crew) -> None:
    async def work() -> None:
        talks = [await begun(crew) for _ in range(8)]
        numbers = [number_of(token) for _, token in talks]
        assert numbers.count(1) == numbers.count(2) == 4
        for websocket, _ in talks:
            await websocket.close()

    run(work())


def test_a_clients_share_counts_its_conversations_with_all_workers(crew: Crew) -> None:
    async def work() -> None:
        talks = [(await begun(crew))[0] for _ in range(12)]
        with pytest.raises(InvalidStatus) as caught:
            while True:  # each worker knows of the other's a moment later
                await (await crew.ws()).close()
                await asyncio.sleep(0.05)
        assert b"this client already has 12 conversations" in caught.value.response.body
        for websocket in talks:
            await websocket.close()

    run(work())


def test_what_is_about_a_call_reaches_its_worker_from_any_connection(crew: Crew) -> None:
    async def work() -> None:
        ids = [await call(crew) for _ in range(2)]
        assert {id.split("_")[1] for id in ids} == {"1", "2"}
        for attempt in range(20):
            async with crew.ws(f"&call_id={ids[attempt % 2]}"):
                pass
        async with httpx.AsyncClient(base_url=crew.address) as http:  # one connection for all that follows
            for id in ids:
                assert (await http.get("healthz")).status_code == 200
                assert (await http.post(f"v1/realtime/calls/{id}/hangup")).status_code == 200
            for id in (*ids, "rtc_99_" + "0" * 32, "rtc_" + "0" * 32):
                answer = await http.post(f"v1/realtime/calls/{id}/hangup")
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "call_not_found")

    run(work())


def test_a_client_whose_network_broke_finds_its_conversation_again(crew: Crew) -> None:
    async def work() -> None:
        talks = [await begun(crew) for _ in range(4)]
        for websocket, token in talks:
            websocket.transport.abort()
            async with crew.ws(f"&extensions=1&resume={token}") as again:
                while (await event(again))["type"] != "voice.resumed":
                    pass

    run(work())


@pytest.mark.parametrize("extra", [0, 20_000], ids=["short settings", "long settings"])
def test_a_secret_of_one_worker_opens_one_conversation_with_any(crew: Crew, extra: int) -> None:
    async def work() -> None:
        instructions = "Sell bicycles." + os.urandom(extra).hex()
        session = {"session": {"type": "realtime", "instructions": instructions}}
        values, talks = [], []
        for _ in range(4):
            async with httpx.AsyncClient(base_url=crew.address) as http:
                made = await http.post("v1/realtime/client_secrets", json=session)
            values.append(made.json()["value"])
            assert len(values[-1]) < 8000
        for value in values:
            websocket = await crew.ws("&resume=1&extensions=1", additional_headers=bearer(value))
            told = await event(websocket)
            assert told["session"]["instructions"] == instructions
            talks.append((websocket, (await event(websocket))["token"]))
        assert {number_of(token) for _, token in talks} == {1, 2}, "of the same four secrets' maker or not"
        for value in values * 2:
            with pytest.raises(InvalidStatus) as caught:
                await crew.ws(additional_headers=bearer(value))
            assert (caught.value.response.status_code, b"used already" in caught.value.response.body) == (
                401,
                True,
            )
        for websocket, _ in talks:
            await websocket.close()

    run(work())


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


def test_who_sends_its_request_byte_by_byte_holds_nobody_up(crew: Crew) -> None:
    async def work() -> None:
        id = await call(crew)
        place = httpx.URL(crew.address)
        slow = [await asyncio.open_connection(place.host, place.port) for _ in range(4)]
        request = (
            f"POST /v1/realtime/calls/{id}/hangup HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
        )
        for byte in request[:-1]:
            for _, writer in slow:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
        for _ in range(4):
            assert (await crew.get("healthz")).status_code == 200
        for _, writer in slow:
            writer.write(request[-1:])
        statuses = [(await reader.readline()).split()[1] for reader, _ in slow]
        assert b"200" in statuses
        assert set(statuses) <= {b"200", b"404"}, "404: it was hung up already"
        for _, writer in slow:
            writer.close()

    run(work())


def test_a_scrape_shows_each_worker_and_does_not_wait_for_one_that_hangs(crew: Crew) -> None:
    async def work() -> None:
        text = (await crew.get("metrics")).text
        assert 'voice_ready{worker="1"} 1' in text
        assert 'voice_ready{worker="2"} 1' in text
        assert text.count("# TYPE voice_ready gauge") == 1
        stuck = crew.workers()[0]
        stuck.suspend()
        try:
            await asyncio.sleep(0.5)  # connections may still be given to it for a while
            for _ in range(3):
                with contextlib.suppress(httpx.ReadTimeout):
                    async with httpx.AsyncClient(base_url=crew.address, timeout=1.5) as http:
                        text = (await http.get("metrics")).text
                    break
            assert text.count("voice_ready{worker=") == 1
        finally:
            stuck.resume()
        await crew.until(crew.ready)

    run(work())


def test_a_worker_that_is_killed_is_replaced_and_the_others_conversation_goes_on(crew: Crew) -> None:
    async def work() -> None:
        talks = [await begun(crew) for _ in range(2)]
        assert {number_of(token) for _, token in talks} == {1, 2}
        crew.workers()[0].kill()
        await asyncio.wait(
            [asyncio.ensure_future(w.wait_closed()) for w, _ in talks], return_when="FIRST_COMPLETED"
        )
        (left,) = [w for w, _ in talks if w.close_code is None]
        await turn(left)
        await crew.until(crew.ready)
        await turn(left)
        await left.close()
        assert "voice_workers_lost_total 1" in (await crew.get("metrics")).text

    run(work())


def test_workers_are_replaced_at_sighup_and_nobody_is_dropped(crew: Crew) -> None:
    async def work() -> None:
        talks = [await begun(crew) for _ in range(4)]
        before = {number_of(token) for _, token in talks}
        id = await call(crew)
        crew.process.send_signal(signal.SIGHUP)
        numbers: set[int] = set()
        place = httpx.URL(crew.address)
        _, silent = await asyncio.open_connection(place.host, place.port)
        async with httpx.AsyncClient(base_url=crew.address) as kept:
            while len(numbers - before) < 2:
                websocket, token = await begun(crew)
                await websocket.close()
                numbers.add(number_of(token))
                await asyncio.sleep(0.1)
                assert (await kept.get("readyz")).status_code == 200
            await asyncio.gather(*(turn(websocket) for websocket, _ in talks))
            async with crew.ws(f"&call_id={id}"):
                pass
            assert (await kept.post(f"v1/realtime/calls/{id}/hangup")).status_code == 200
        for websocket, _ in talks:
            await websocket.close()
        await crew.until(crew.ready)
        assert len(crew.workers()) == 2
        silent.close()

    run(work())


def test_without_their_parent_workers_end_their_conversations_and_themselves(crew: Crew) -> None:
    async def work() -> None:
        talks = [await begun(crew) for _ in range(2)]
        workers = crew.workers()
        crew.process.kill()
        assert [await close_code(websocket) for websocket, _ in talks] == [1012] * 2
        gone, alive = await asyncio.to_thread(psutil.wait_procs, workers, 10)
        assert (len(gone), alive) == (2, [])

    run(work())


def test_a_worker_that_is_told_to_stop_lets_a_sentence_be_finished(tmp_path: Path) -> None:
    """What the parent does at SIGTERM, with this process as the parent."""
    (tmp_path / "quiet_agent.py").write_text(AGENT)
    ours, its = pair()
    arguments = ["serve", "--agent", f"{tmp_path}/quiet_agent.py:agent", "--as-worker", str(its.fileno())]
    process = subprocess.Popen(worker_command(arguments), cwd=ROOT, pass_fds=[its.fileno()])
    its.close()
    send(ours, Message({"do": "setup", "number": 7, "workers": 1}, b"k" * 32))
    while (told := receive(ours)) is not None and told.head.get("state") != "ready":
        pass

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            connection, _ = listening.accept()
        send(ours, Message({"do": "serve", "final": False}, b"", connection))
        async with connect("ws://127.0.0.1/v1/realtime", sock=client, proxy=None) as websocket:
            talking = asyncio.ensure_future(turn(websocket))
            await asyncio.sleep(0.05)
            send(ours, Message({"do": "stop"}))
            await talking
            assert await close_code(websocket) == 1012

    run(work())
    assert process.wait(10) == 0
    ours.close()


def test_workers_that_can_not_start_end_the_program(tmp_path: Path) -> None:
    process = start(tmp_path, agent="agent = 1")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert err.count("voice: ") == 1
    assert "expected an Agent" in err
    assert "Traceback" not in err

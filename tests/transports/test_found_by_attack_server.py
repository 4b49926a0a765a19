"""What attacks on a running server found: each is a hostile or clumsy client, and what the others are owed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import struct
from typing import Any

import httpx
import pytest
from rtc_peer import Peer
from served import BEARER, TOKEN, Place, close_code, empty, event, place, run
from talk import make_agent
from twilio_peer import TwilioPeer
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from transports import realtime_socket, serving
from transports.realtime.errors import RealtimeError
from transports.realtime.events import parse_event
from transports.rtc.description import MOST_OFFER_LINES, read_offer
from voice.errors import BadRequest
from voice.testing import ScriptedModel, ScriptedRecogniser, speak

MIB = 2**20


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """A client's frame, masked with zeros."""
    size = len(data)
    head = bytes([(0x80 if last else 0) | opcode])
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return head + length + bytes(4) + data


async def upgraded(at: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A conversation whose client writes frames by itself."""
    head = (
        f"GET /v1/realtime?model=voice HTTP/1.1\r\nHost: 127.0.0.1:{at.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    reader, writer = await at.raw(head.encode())
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def flood(writer: asyncio.StreamWriter, block: bytes) -> None:
    """Write until the server has enough."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(block)
            await writer.drain()


async def until(websocket: ClientConnection, kind: str) -> dict[str, Any]:
    while (found := await event(websocket))["type"] != kind:
        assert found["type"] != "error", found
    return dict(found)


async def send(websocket: ClientConnection, kind: str, **fields: object) -> None:
    await websocket.send(json.dumps({"type": kind, **fields}))


# ---------------------------------------------------------------- the socket


def test_one_that_pings_and_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_UNTAKEN_BYTES", MIB)

    async def work() -> None:
        async with place() as at:
            _, writer = await upgraded(at)
            await flood(writer, frame(9, b"x" * 125) * 500)
            await empty(at.server)

    run(work)


def test_a_message_of_fragments_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_FRAGMENTS", 1000)

    async def work() -> None:
        async with place() as at:
            _, writer = await upgraded(at)
            writer.write(frame(1, b"{", last=False))
            await flood(writer, frame(0, last=False) * 500)
            await empty(at.server)

    run(work)


def test_a_long_message_still_comes_in_one_piece() -> None:
    async def work() -> None:
        async with place() as at, at.ws() as websocket:
            await event(websocket)
            await websocket.send('{"type": "no_such", "x": "' + "é" * MIB + '"}')
            assert (await event(websocket))["error"]["param"] == "type"

    run(work)


def test_of_many_that_come_back_at_once_the_newest_has_the_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with place() as at:
            first = await at.ws("/v1/realtime?resume=1")
            token = (await until(first, "voice.resumable"))["token"]
            claims = await asyncio.gather(*(at.ws(f"/v1/realtime?resume={token}") for _ in range(5)))
            closing = [asyncio.create_task(close_code(one)) for one in (first, *claims)]
            done, still = await asyncio.wait(closing, timeout=1.0)
            assert len(still) == 1
            assert {task.result() for task in done} == {1008}
            for one in claims:
                await one.close()
            await asyncio.wait(still)
            await empty(at.server)

    run(work)


# ---------------------------------------------------------------- events


@pytest.mark.parametrize("one", ["[],", "{},", "1,", "[1],"])
def test_an_event_of_too_many_values_is_refused_before_it_is_built(one: str) -> None:
    with pytest.raises(RealtimeError, match="values"):
        parse_event(f'{{"type": "session.update", "session": [{one * 200_000}1]}}', max_bytes=16 * MIB)


def test_a_long_text_is_not_taken_for_many_values() -> None:
    text = "one, two, three [four] " * 4_000
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    parse_event(json.dumps({"type": "conversation.item.create", "item": item}), max_bytes=16 * MIB)


@pytest.mark.parametrize(("kind", "rate_hz"), [("audio/pcm", 24_000), ("audio/pcmu", 8_000)])
def test_audio_handed_in_as_an_item_is_heard_at_its_own_speed(kind: str, rate_hz: int) -> None:
    async def work() -> None:
        lengths: list[float] = []

        def hear(pcm: Any) -> str:
            lengths.append(pcm.size / 16_000)
            return "Hello."

        recogniser = ScriptedRecogniser(hear)
        async with place(make_agent(recogniser=recogniser)) as at, at.ws() as websocket:
            audio: dict[str, object] = {"format": {"type": kind}}
            await send(websocket, "session.update", session={"type": "realtime", "audio": {"input": audio}})
            await until(websocket, "session.updated")
            pcm = speak(2.0, 200, rate=rate_hz)
            data = pcm.tobytes() if kind == "audio/pcm" else bytes(pcm.size)
            part = {"type": "input_audio", "audio": base64.b64encode(data).decode()}
            item = {"type": "message", "role": "user", "content": [part]}
            await send(websocket, "conversation.item.create", item=item)
            await until(websocket, "conversation.item.input_audio_transcription.completed")
            assert lengths == [pytest.approx(2.0, abs=0.05)]

    run(work)


def test_a_client_that_guesses_the_ids_to_come_still_gets_its_answers() -> None:
    async def work() -> None:
        async with place(make_agent(["Okay."])) as at, at.ws() as websocket:
            part = {"type": "input_text", "text": "Hello."}
            tag = (await event(websocket))["session"]["id"][-6:]
            for number in range(1, 20):
                item = {
                    "id": f"item_{tag}_{number:06d}",
                    "type": "message",
                    "role": "user",
                    "content": [part],
                }
                await send(websocket, "conversation.item.create", item=item)
            await send(websocket, "response.create")
            assert (await until(websocket, "response.done"))["response"]["status"] == "completed"

    run(work)


def test_one_response_can_not_have_other_settings_than_a_locked_secret() -> None:
    model = ScriptedModel(["Okay."])
    bound = {
        "instructions": "the owner's",
        "tools": [{"type": "function", "name": "owners"}],
        "max_output_tokens": 50,
        "output_modalities": ["text"],
    }

    async def work() -> None:
        async with place(make_agent(model), tokens=(TOKEN,)) as at:
            body = {"session": bound, "locked": True}
            made = await at.http.post("/v1/realtime/client_secrets", json=body, headers=BEARER)
            key = {"Authorization": f"Bearer {made.json()['value']}"}
            async with at.ws(additional_headers=key) as websocket:
                for conversation in ("auto", "none"):
                    response = {
                        "conversation": conversation,
                        "instructions": "the page's",
                        "tools": [{"type": "function", "name": "pages"}],
                        "max_output_tokens": 4000,
                        "metadata": {"its": "own"},
                    }
                    await send(websocket, "response.create", response=response)
                    done = (await until(websocket, "response.done"))["response"]
                    assert done["max_output_tokens"] == 50
                    assert done["metadata"] == {"its": "own"}

    run(work)
    assert len(model.prompts) == 2
    for prompt in model.prompts:
        assert "the page's" not in repr(prompt.messages)
        assert "the owner's" in repr(prompt.messages)
        assert [tool.name for tool in prompt.tools] == ["owners"]


def test_what_an_engine_says_of_itself_when_it_fails_is_not_for_clients() -> None:
    def fail(_: object) -> str:
        raise RuntimeError("http://inner.example/?key=sk-123")

    async def work() -> None:
        agent = make_agent(recogniser=ScriptedRecogniser(fail))
        async with place(agent) as at, at.ws("/v1/realtime?extensions=1") as websocket:
            await event(websocket)
            part = {"type": "input_audio", "audio": base64.b64encode(bytes(48_000)).decode()}
            item = {"type": "message", "role": "user", "content": [part]}
            await send(websocket, "conversation.item.create", item=item)
            told = []
            with contextlib.suppress(TimeoutError):
                while True:
                    told.append(await asyncio.wait_for(websocket.recv(), 1.0))
            kinds = [json.loads(text)["type"] for text in told]
            assert "conversation.item.input_audio_transcription.failed" in kinds
            assert "voice.problem" in kinds
            assert "sk-123" not in repr(told)

    run(work)


# ---------------------------------------------------------------- HTTP


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with place() as at:
            for kind in ("application/sdp", "multipart/form-data; boundary=x"):
                head = f"POST /v1/realtime/calls HTTP/1.1\r\nHost: 127.0.0.1:{at.port}\r\nContent-Type: {kind}\r\n"
                _, writer = await at.raw(f"{head}Content-Length: 1000\r\n\r\n--x".encode())
                await asyncio.sleep(0.05)
                writer.close()
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        run(work)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


# ---------------------------------------------------------------- WebRTC


async def offered(at: Place, peer: Peer) -> tuple[str, httpx.Response]:
    """A call that has its answer and does not connect yet."""
    headers = {"content-type": "application/sdp"}
    answer = await at.http.post("/v1/realtime/calls", content=await peer.offer(), headers=headers)
    assert answer.status_code == 201
    return answer.headers["location"].rpartition("/")[2], answer


def test_a_socket_attached_to_a_call_ends_with_it() -> None:
    async def work() -> None:
        async with place() as at, Peer() as peer:
            call_id, _ = await offered(at, peer)
            async with at.ws(f"/v1/realtime?call_id={call_id}") as websocket:
                await event(websocket)
                assert (await at.http.post(f"/v1/realtime/calls/{call_id}/hangup")).status_code == 200
                assert await close_code(websocket) == 1000
            await empty(at.server)

    run(work)


def test_what_an_attached_socket_asks_before_the_call_connects_waits_for_it() -> None:
    async def work() -> None:
        async with place() as at, Peer() as peer:
            call_id, _ = await offered(at, peer)
            async with at.ws(f"/v1/realtime?call_id={call_id}") as websocket:
                await event(websocket)
                session = {"type": "realtime", "instructions": "early"}
                await send(websocket, "session.update", session=session)
                await send(
                    websocket, "input_audio_buffer.commit"
                )  # once ended the call with an AttributeError
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(websocket.recv(), 0.3)
                call = at.server._realtime_http.calls.get(call_id)
                assert call is not None
                await call._start()
                assert (await until(websocket, "session.updated"))["session"]["instructions"] == "early"
                assert (await event(websocket))["error"]["code"] == "input_audio_buffer_commit_empty"

    run(work)


def test_few_sockets_may_attach_to_one_call() -> None:
    async def work() -> None:
        async with place() as at, Peer() as peer, contextlib.AsyncExitStack() as sockets:
            call_id, _ = await offered(at, peer)
            path = f"/v1/realtime?call_id={call_id}"
            for _ in range(realtime_socket._MOST_ATTACHED):
                last = await sockets.enter_async_context(at.ws(path))
            with pytest.raises(InvalidStatus) as caught:
                await at.ws(path)
            assert caught.value.response.status_code == 503
            await last.close()
            await asyncio.sleep(0.1)
            await sockets.enter_async_context(at.ws(path))
            await at.http.post(f"/v1/realtime/calls/{call_id}/hangup")

    run(work)


@pytest.mark.parametrize(
    "where",
    [
        "host.example.org 9",
        "192.0.2.1 99999999",
        "192.0.2.1 0",
        "224.0.0.1 9",
        "255.255.255.255 9",
        "0.0.0.0 9",
    ],
)
def test_candidates_that_are_no_address_of_one_machine_are_left_out(where: str) -> None:
    async def work() -> None:
        async with Peer() as peer:
            sdp = await peer.offer()
            line = f"a=candidate:1 1 udp 1 {where} typ host"
            read = read_offer(sdp.replace("a=mid:0", f"a=mid:0\r\n{line}", 1))
            assert line not in read.sdp
            good = "a=candidate:1 1 udp 1 192.0.2.1 9 typ host"
            assert good in read_offer(sdp.replace("a=mid:0", f"a=mid:0\r\n{good}", 1)).sdp

    run(work)


def test_an_offer_of_thousands_of_lines_is_refused() -> None:
    with pytest.raises(BadRequest, match="lines"):
        read_offer("v=0\r\n" + "a=x\r\n" * MOST_OFFER_LINES)


# ---------------------------------------------------------------- telephone


def test_timestamps_that_leap_do_not_make_hours_of_silence() -> None:
    async def work() -> None:
        async with place() as at, at.ws("/twilio") as socket:
            peer = TwilioPeer()
            for text in peer.opening():
                await socket.send(text)
            with contextlib.suppress(ConnectionClosed):
                for index in range(100):
                    body = {"track": "inbound", "timestamp": str(index * 2000), "payload": "/w=="}
                    await socket.send(json.dumps({"event": "media", "media": body}))
            assert await close_code(socket) == 1008

    run(work)


def test_unsigned_calls_count_for_their_address_whatever_they_say_who_they_are() -> None:
    async def work() -> None:
        async with place(max_sessions_per_client=2) as at, contextlib.AsyncExitStack() as sockets:
            codes = []
            for index in range(3):
                socket = await sockets.enter_async_context(at.ws("/twilio"))
                start = json.loads(TwilioPeer().opening()[-1])
                start["start"]["callSid"] = f"CA{index}"
                await socket.send(json.dumps(start))
                await asyncio.sleep(0.1)
                codes.append(at.server.host.sessions)
            assert codes == [1, 2, 2]
            assert await close_code(socket) == 1013

    run(work)


def test_what_a_stream_says_of_itself_can_not_forge_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with place() as at, at.ws("/twilio") as socket:
            start = json.loads(TwilioPeer().opening()[-1])
            start["start"]["mediaFormat"]["encoding"] = "x\n12:00:00 INFO all is well\x1b[31m"
            await socket.send(json.dumps(start))
            assert await close_code(socket) == 1003

    with caplog.at_level(logging.WARNING):
        run(work)
    assert "\n12" not in caplog.text
    assert "\x1b" not in caplog.text

"""What the server answers at its port: health, keys, secrets, offers, other origins, embedding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiortc import RTCPeerConnection
from served import BEARER, TOKEN, Place, empty, event, place, run
from talk import make_agent

from transports import realtime_http, server
from transports.options import IceServer
from transports.server import app
from transports.serving import listen, running
from voice.errors import EngineFailed
from voice.interfaces import Stages

# ---------------------------------------------------------------- health


def test_health_readiness_and_metrics_answer_without_a_key() -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            assert (await at.http.get("/healthz")).json() == {"status": "ok"}
            assert (await at.http.get("/readyz")).json() == {"status": "ready"}
            metrics = await at.http.get("/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'voice_sessions{kind="websocket"} 0' in metrics.text

    run(work)


def test_clients_wait_while_the_engines_load_and_readiness_tells() -> None:
    async def work() -> None:
        loaded = asyncio.Event()

        async def warm_up(_: Stages) -> None:
            await loaded.wait()

        made = app(make_agent(), warm_up=warm_up)
        sockets = listen("127.0.0.1", 0)
        port = sockets[0].getsockname()[1]
        async with running(made, sockets), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            at = Place(made, port, http)
            assert (await http.get("/healthz")).status_code == 200
            unready = await http.get("/readyz")
            assert (unready.status_code, unready.json()) == (503, {"status": "loading"})

            async def call() -> str:
                async with at.ws() as websocket:
                    return str((await event(websocket))["type"])

            calling = asyncio.ensure_future(call())
            await asyncio.sleep(0.2)
            assert not calling.done()
            loaded.set()
            assert await calling == "session.created"
            assert (await http.get("/readyz")).status_code == 200

    run(work)


def test_engines_that_can_not_be_loaded_are_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RELOAD_S", 0.3)
    tries: list[float] = []

    async def warm_up(_: Stages) -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            raise EngineFailed("the model file is broken")
        if len(tries) == 2:
            raise ZeroDivisionError

    async def work() -> None:
        made = app(make_agent(), warm_up=warm_up)
        sockets = listen("127.0.0.1", 0)
        port = sockets[0].getsockname()[1]
        async with running(made, sockets), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            with pytest.raises(EngineFailed, match="broken"):
                await made.startup()
            at = Place(made, port, http)
            for _ in range(3):
                assert (await http.get("/readyz")).json() == {"status": "failed"}
                assert (await at.refused())[0] == 503
            assert len(tries) == 1, "failures are not repeated with every request"
            await asyncio.sleep(0.35)
            assert (await at.refused())[0] == 503
            await asyncio.sleep(0.35)
            async with at.ws() as websocket:
                assert (await event(websocket))["type"] == "session.created"
            assert len(tries) == 3

    run(work)


# ---------------------------------------------------------------- who may come in


def test_the_key_may_come_as_a_subprotocol_and_is_not_sent_back() -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            offered: Any = ["realtime", f"openai-insecure-api-key.{TOKEN}"]
            async with at.ws(subprotocols=offered) as websocket:
                assert websocket.subprotocol == "realtime"
                assert (await event(websocket))["type"] == "session.created"
            async with at.ws(
                "/openai/v1/realtime?model=x", additional_headers={"api-key": TOKEN}
            ) as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)


def test_who_may_not_come_in_is_told_why_before_the_socket_opens(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            status, error = await at.refused()
            assert (status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
            assert (await at.refused(additional_headers={"Authorization": "Bearer wrong"}))[0] == 401
            beta = {**BEARER, "OpenAI-Beta": "realtime=v1"}
            status, error = await at.refused(additional_headers=beta)
            assert (status, error["code"]) == (400, "beta_api_shape_disabled")
            status, error = await at.refused(additional_headers=BEARER, origin="https://evil.example")
            assert (status, error["code"]) == (403, "origin_not_allowed")
            assert (await at.refused("/v1/nothing", additional_headers=BEARER))[0] == 404
            assert at.server.host.sessions == 0
            text = (await at.http.get("/metrics")).text
            assert 'voice_refused_total{reason="unauthorised"} 2' in text
            assert 'voice_refused_total{reason="forbidden"} 1' in text

    run(work)
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")], (
        "it is no event for the log"
    )


def test_our_own_page_may_call() -> None:
    async def work() -> None:
        async with place() as at, at.ws(origin=f"http://127.0.0.1:{at.port}") as websocket:
            assert (await event(websocket))["type"] == "session.created"

    run(work)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/realtime/sessions"])
def test_http_of_the_beta_is_refused_by_its_code(path: str) -> None:
    async def work() -> None:
        async with place() as at:
            answer = await at.http.post(path, content="v=0")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "beta_api_shape_disabled")

    run(work)


# ---------------------------------------------------------------- client secrets


def test_a_secret_opens_one_conversation_with_its_settings() -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            body = {
                "expires_after": {"anchor": "created_at", "seconds": 60},
                "session": {"type": "realtime", "instructions": "Sell bicycles."},
            }
            made = await at.http.post("/v1/realtime/client_secrets", json=body, headers=BEARER)
            assert made.status_code == 200
            assert made.headers["cache-control"] == "no-store"
            answer = made.json()
            assert answer["session"]["instructions"] == "Sell bicycles."
            assert answer["session"]["type"] == "realtime"
            headers = {"Authorization": f"Bearer {answer['value']}"}
            async with at.ws(additional_headers=headers) as websocket:
                created = await event(websocket)
                assert created["session"]["instructions"] == "Sell bicycles."
                status, error = await at.refused(additional_headers=headers)
                assert status == 401
                assert "used already" in error["message"]
            assert (await at.refused(additional_headers=headers))[0] == 401
            again = await at.http.post("/v1/realtime/client_secrets", json={}, headers=headers)
            assert again.status_code == 401, "a secret makes no secrets"

    run(work)


def test_text_that_is_no_unicode_does_no_harm() -> None:
    async def work() -> None:
        async with place() as at:
            for field in ("instructions", "model"):
                body = (
                    b'{"session": {"%b": "a\\ud800"}, "expires_after": {"anchor": "\\ud800"}}'
                    % field.encode()
                )
                answer = await at.http.post("/v1/realtime/client_secrets", content=body)
                assert answer.status_code == 400
                body = b'{"session": {"%b": "a\\ud800"}}' % field.encode()
                answer = await at.http.post("/v1/realtime/client_secrets", content=body)
                assert answer.status_code in (200, 400)

    run(work)


def test_a_secret_is_not_lost_to_a_full_server() -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,), max_sessions=1) as at:
            made = await at.http.post("/v1/realtime/client_secrets", headers=BEARER)
            headers = {"Authorization": f"Bearer {made.json()['value']}"}
            async with at.ws(additional_headers=BEARER) as websocket:
                await event(websocket)
                assert (await at.refused(additional_headers=headers))[0] == 503
            await empty(at.server)
            async with at.ws(additional_headers=headers) as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b"\xff\xfe", "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b'{"session": "x"}', "invalid_type", "session"),
        (b'{"session": {"instructions": 7}}', "invalid_type", "session.instructions"),
        (b'{"expires_after": 60}', "invalid_type", "expires_after"),
        (b'{"expires_after": {"seconds": "60"}}', "invalid_type", "expires_after.seconds"),
        (b'{"expires_after": {"seconds": true}}', "invalid_type", "expires_after.seconds"),
        (b'{"expires_after": {"seconds": NaN}}', "invalid_value", "expires_after.seconds"),
        (b'{"expires_after": {"seconds": 9}}', "invalid_value", "expires_after.seconds"),
        (b'{"expires_after": {"anchor": "now"}}', "invalid_value", "expires_after.anchor"),
    ],
)
def test_wrong_requests_for_a_secret_are_refused_by_name(body: bytes, code: str, param: str | None) -> None:
    async def work() -> None:
        async with place() as at:
            answer = await at.http.post("/v1/realtime/client_secrets", content=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, code, param)

    run(work)


# ---------------------------------------------------------------- bodies


async def pieces(size: int, wait_s: float = 0.0) -> AsyncIterator[bytes]:
    for _ in range(size // 65_536 + 1):
        yield b" " * 65_536
        await asyncio.sleep(wait_s)


@pytest.mark.parametrize("path", ["/v1/realtime/calls", "/v1/realtime/client_secrets", "/twilio/voice"])
def test_a_body_that_is_too_large_is_not_read_to_its_end(path: str) -> None:
    async def work() -> None:
        async with place() as at:
            headers = {"Content-Type": "application/sdp"}
            for body in (b" " * (2**20 + 1), pieces(2**21)):
                answer = await at.http.post(path, content=body, headers=headers)
                assert answer.status_code == 413

    run(work)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_http, "BODY_S", 0.3)

    async def work() -> None:
        async with place() as at:
            head = b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
            reader, writer = await at.raw(head)
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            writer.close()

    run(work)


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"content": b"v=0", "headers": {"Content-Type": "text/plain"}}, 415, "unsupported_content_type"),
        ({"content": b"", "headers": {"Content-Type": "application/sdp"}}, 400, None),
        ({"content": b"\xff\xff", "headers": {"Content-Type": "application/sdp"}}, 400, "invalid_value"),
        ({"content": b"no sdp", "headers": {"Content-Type": "application/sdp"}}, 400, None),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, None),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, None),
        ({"files": {"session": (None, "{}")}}, 400, "missing_required_parameter"),
        ({"files": {"sdp": (None, "no sdp"), "session": (None, "{")}}, 400, "invalid_json"),
        ({"files": {"sdp": (None, "no sdp"), "session": (None, "[]")}}, 400, "invalid_type"),
        ({"files": {"sdp": ("a.sdp", b"\xff\xfe")}}, 400, "invalid_value"),
        ({"files": [(f"f{n}", (None, "x")) for n in range(50)]}, 400, None),
        ({"files": [(f"f{n}", ("x.txt", "x")) for n in range(50)]}, 400, None),
    ],
)
def test_offers_that_are_none_are_refused(request_: dict[str, Any], status: int, code: str | None) -> None:
    async def work() -> None:
        async with place() as at:
            answer = await at.http.post("/v1/realtime/calls", **request_)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]
            if code is not None:
                assert answer.json()["error"]["code"] == code
            assert at.server.host.sessions == 0

    run(work)


async def an_offer() -> tuple[RTCPeerConnection, str]:
    peer = RTCPeerConnection()
    peer.addTransceiver("audio")
    peer.createDataChannel("oai-events")
    await peer.setLocalDescription(await peer.createOffer())
    return peer, peer.localDescription.sdp


@pytest.mark.parametrize("form", ["alone", "with settings", "with wrong settings"])
def test_an_offer_becomes_a_call_that_can_be_hung_up(form: str) -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            peer, sdp = await an_offer()
            session = {
                "type": "realtime",
                "instructions": 7 if form == "with wrong settings" else "Be brief.",
            }
            parts = {
                "sdp": (None, sdp, "application/sdp"),
                "session": (None, json.dumps(session), "application/json"),
            }
            if form == "alone":
                headers = {**BEARER, "Content-Type": "application/sdp"}
                answer = await at.http.post("/v1/realtime/calls", content=sdp, headers=headers)
            else:
                answer = await at.http.post("/v1/realtime/calls", files=parts, headers=BEARER)
            if form == "with wrong settings":
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session.instructions")
            else:
                assert answer.status_code == 201
                assert answer.headers["content-type"].startswith("application/sdp")
                assert answer.text.startswith("v=0")
                location = answer.headers["location"]
                assert location.startswith("/v1/realtime/calls/rtc_")
                assert at.server.host.sessions == 1
                assert (await at.http.post(f"{location}/hangup")).status_code == 401
                assert (await at.http.post(f"{location}/hangup", headers=BEARER)).status_code == 200
                await empty(at.server)
                assert (await at.http.post(f"{location}/hangup", headers=BEARER)).status_code == 404
            await peer.close()
            assert at.server.host.sessions == 0

    run(work)


def test_a_hangup_of_no_call_says_so() -> None:
    async def work() -> None:
        async with place(tokens=(TOKEN,)) as at:
            path = "/v1/realtime/calls/rtc_nothing/hangup"
            assert (await at.http.post(path)).status_code == 401
            assert (await at.http.post(path, headers=BEARER)).status_code == 404
            assert (await at.http.get(path)).status_code == 405

    run(work)


# ---------------------------------------------------------------- other origins


def test_pages_of_allowed_origins_may_read_the_answer_and_others_may_not() -> None:
    async def work() -> None:
        async with place(allowed_origins=("https://app.example.org",)) as at:
            for path in ("/v1/realtime/calls", "/v1/realtime/client_secrets"):
                asked = {
                    "Origin": "https://app.example.org",
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
                }
                preflight = await at.http.options(path, headers=asked)
                assert preflight.status_code == 200
                assert preflight.headers["access-control-allow-origin"] == "https://app.example.org"
                assert "authorization" in preflight.headers["access-control-allow-headers"]
                evil = await at.http.options(path, headers={**asked, "Origin": "https://evil.example"})
                assert "access-control-allow-origin" not in evil.headers
                answer = await at.http.post(path, headers={"Origin": "https://app.example.org"})
                assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
                assert answer.headers["access-control-expose-headers"] == "Location"
                evil = await at.http.post(path, headers={"Origin": "https://evil.example"})
                assert evil.status_code == 403
                assert "access-control-allow-origin" not in evil.headers

    run(work)


def test_the_page_is_told_the_ice_servers_and_strangers_are_not() -> None:
    async def main() -> None:
        turn = IceServer(("turn:turn.example.org",), "me", "secret")
        async with place(tokens=(TOKEN,), ice_servers=(turn,)) as it:
            assert (await it.http.get("/v1/realtime/ice_servers")).status_code == 401
            told = (await it.http.get("/v1/realtime/ice_servers", headers=BEARER)).json()
            server = {"urls": ["turn:turn.example.org"], "username": "me", "credential": "secret"}
            assert told == {"ice_servers": [server]}

    run(main)

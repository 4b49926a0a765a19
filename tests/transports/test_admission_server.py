"""A server at its limit: who is refused by which protocol, who waits, and that those inside go on."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from rtc_peer import Peer
from served import BEARER, TOKEN, Place, event, place, run
from talk import make_agent
from twilio_peer import TwilioPeer
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from transports.hosting import Host
from transports.options import ServerOptions
from voice.admission import AdmissionOptions
from voice.agent import Agent
from voice.degradation import Rung
from voice.errors import EngineFailed, Overloaded
from voice.load import StageLoad
from voice.scope import Scope
from voice.service import Service
from voice.testing import run_virtual

FEW = AdmissionOptions(session_cost=0.3, blind_s=0.0, ramp_s=3.0)
"""Three at once, and two that wait."""


class Busy:
    """A stage whose load the test sets."""

    def __init__(self, agent: Agent, value: float = 0.0) -> None:
        self.value = value
        self.service = Service()
        self.service.watch("queue", lambda now: StageLoad("queue", wait_s=0.25 * self.value))
        agent.stages = replace(agent.stages, service=self.service)


# ---------------------------------------------------------------- the host, in virtual time


def test_a_busy_host_refuses_at_once_and_counts_it(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        agent = make_agent()
        busy, host = Busy(agent), Host(agent)
        with await host.enter("a", "websocket"):
            busy.value = 1.2
            await asyncio.sleep(1)
            began = asyncio.get_running_loop().time()
            for _ in range(50):
                with pytest.raises(Overloaded, match="busy") as refused:
                    await host.enter("b", "webrtc")
                assert "queue" not in str(refused.value)
            assert asyncio.get_running_loop().time() == began
            assert +host.metrics.refused == Counter(overloaded=50)
            busy.value = 0.2
            await asyncio.sleep(1)
            with await host.enter("b", "webrtc"):
                assert host.sessions == 2

    run_virtual(work())
    told = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert told == ["a conversation was refused: queue is at 120% of its target"]


def test_the_hard_limits_come_before_the_load() -> None:
    async def work() -> None:
        host = Host(make_agent(), ServerOptions(max_sessions=2, max_sessions_per_client=1))
        with await host.enter("a", "websocket"):
            with pytest.raises(Overloaded, match="this client"):
                await host.enter("a", "websocket")
            with await host.enter("b", "websocket"), pytest.raises(Overloaded, match="full"):
                await host.enter("c", "websocket")
        assert +host.metrics.refused == Counter(client_full=1, full=1)

    run_virtual(work())


def test_a_host_that_looks_at_numbers_only_lets_in_whatever_the_load() -> None:
    async def work() -> None:
        agent = make_agent()
        Busy(agent, 5.0)
        host = Host(agent, ServerOptions(admission=None))
        with await host.enter("a", "websocket"):
            assert host.sessions == 1

    run_virtual(work())


def test_who_waits_gets_in_when_there_is_room_and_not_into_a_host_that_drains() -> None:
    async def work() -> None:
        host = Host(make_agent(), ServerOptions(admission=FEW))
        slots = [await host.enter(f"c{n}", "websocket") for n in range(3)]
        first, second = (asyncio.ensure_future(host.enter(f"w{n}", "twilio")) for n in range(2))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await host.enter("late", "twilio")
        slots.append(await first)
        assert 0.5 < asyncio.get_running_loop().time() < 1.5
        assert "voice_waiting_callers 1" in host.render_metrics("ready")
        draining = asyncio.ensure_future(host.drain())
        with pytest.raises(Overloaded, match="about to stop"):
            await second
        assert +host.metrics.refused == Counter(overloaded=1, draining=1)
        for slot in slots:
            slot.release()
        await draining

    run_virtual(work())


def test_a_place_that_was_waited_for_is_still_subject_to_the_hard_limits() -> None:
    async def work() -> None:
        host = Host(make_agent(), ServerOptions(admission=FEW, max_sessions=4))
        slots = [await host.enter(f"c{n}", "websocket") for n in range(3)]
        waits = [asyncio.ensure_future(host.enter(f"w{n}", "twilio")) for n in range(2)]
        done, _ = await asyncio.wait(waits)
        assert sum(one.exception() is None for one in done) == 1
        assert host.sessions == 4
        for slot in [*slots, *(one.result() for one in done if one.exception() is None)]:
            slot.release()

    run_virtual(work())


def test_the_metrics_show_stages_level_engines_retries_and_the_door() -> None:
    async def work() -> None:
        agent = make_agent()
        busy, host = Busy(agent, 1.6), Host(agent)
        model = busy.service.engine("model", agent.stages.model)
        with Scope("process") as scope:
            model.begin(scope, 0.0).ended(EngineFailed("gone"), 0.1)
        busy.service.engine("synthesiser", type("Odd", (), {"name": 'a "b" \\ c\nd'})())
        busy.service.retries["model"].spend(0.0)
        busy.service.ladder.rung = Rung.NO_GUESSES
        busy.service.steps["no guesses"] += 3
        text = host.render_metrics("ready")
        for line in (
            "voice_service_level 2",
            'voice_service_changes_total{level="2"} 3',
            'voice_stage_load{stage="queue"} 1.6',
            'voice_stage_load{stage="event loop"} 0',
            'voice_engine_broken{stage="model scripted-model"} 1',
            'voice_engine_trips_total{stage="model scripted-model"} 1',
            'voice_engine_broken{stage="synthesiser a \\"b\\" \\\\ c d"} 0',
            'voice_retries_total{stage="model"} 1',
            'voice_retries_denied_total{stage="model"} 0',
            "voice_waiting_callers 0",
            "voice_callers_waited_total 0",
            'voice_refused_total{reason="overloaded"} 0',
        ):
            assert line in text.splitlines()
        assert all(re.fullmatch(r"#.*|\w+({.*})? -?[\d.e+-]+", line) for line in text.splitlines())

    run_virtual(work())


# ---------------------------------------------------------------- real sockets


async def close_of(at: Place, first: list[str]) -> tuple[int, str]:
    """How the telephone's socket is closed."""
    async with at.ws("/twilio") as phone:
        for message in first:
            await phone.send(message)
        with pytest.raises(ConnectionClosed):
            await phone.recv()
        return phone.close_code or 0, phone.close_reason or ""


def test_every_protocol_refuses_in_its_own_way_while_those_inside_go_on() -> None:
    async def work() -> None:
        agent = make_agent()
        busy = Busy(agent)
        async with place(agent) as at, at.ws() as inside, Peer() as peer:
            assert (await event(inside))["type"] == "session.created"
            busy.value = 1.5
            await asyncio.sleep(0.6)
            with pytest.raises(InvalidStatus) as caught:
                await at.ws()
            response = caught.value.response
            assert response.status_code == 503
            assert 5 <= int(response.headers["Retry-After"]) <= 10
            error = json.loads(response.body or b"")["error"]
            assert (error["code"], error["type"]) == ("server_overloaded", "server_error")

            sdp = {"content-type": "application/sdp"}
            answer = await at.http.post("/v1/realtime/calls", content=await peer.offer(), headers=sdp)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "server_overloaded"
            assert int(answer.headers["Retry-After"]) >= 5

            code, reason = await close_of(at, TwilioPeer().opening())
            assert (code, reason[:18]) == (1013, "the server is busy")

            assert 'voice_refused_total{reason="overloaded"} 3' in (await at.http.get("/metrics")).text
            await inside.send(json.dumps({"type": "response.create"}))
            kinds = []
            while not kinds or kinds[-1] != "response.done":
                kinds.append((await event(inside))["type"])
            assert "response.output_audio.delta" in kinds

    run(work)


def test_a_client_secret_that_was_refused_can_be_used_again() -> None:
    async def work() -> None:
        agent = make_agent()
        busy = Busy(agent, 1.5)
        async with place(agent, tokens=(TOKEN,)) as at:
            made = await at.http.post("/v1/realtime/client_secrets", json={}, headers=BEARER)
            headers = {"Authorization": f"Bearer {made.json()['value']}"}
            assert (await at.refused(additional_headers=headers))[0] == 503
            busy.value = 0.0
            await asyncio.sleep(0.3)
            async with at.ws(additional_headers=headers) as websocket:
                assert (await event(websocket))["type"] == "session.created"

    run(work)


def test_of_a_crowd_at_the_door_some_get_in_some_wait_and_the_rest_are_refused_at_once() -> None:
    async def work() -> None:
        async with place(admission=FEW) as at:

            async def come() -> ClientConnection | None:
                try:
                    return await at.ws()
                except InvalidStatus as refused:
                    assert refused.response.status_code == 503
                    return None

            sockets = [s for s in await asyncio.gather(*(come() for _ in range(15))) if s is not None]
            assert 4 <= len(sockets) <= 6
            assert at.server.host.sessions == len(sockets)
            text = (await at.http.get("/metrics")).text
            assert f'voice_refused_total{{reason="overloaded"}} {15 - len(sockets)}' in text
            assert f"voice_callers_waited_total {len(sockets) - 3}" in text
            for websocket in sockets:
                await websocket.close()

    run(work)

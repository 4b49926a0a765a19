"""Conversations of a server: who gets a place, how long it is kept, and how it ends. In virtual time."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from talk import ONE_TO_FORTY, make_agent

from transports.hosting import END_S, TICK_S, Host, Slot
from transports.options import ServerOptions
from voice.agent import Agent
from voice.chat import AgentEntry
from voice.errors import BadRequest, Overloaded
from voice.session import Session
from voice.testing import PullClient, run_virtual, speak


def host(agent: Agent | None = None, **options: Any) -> Host:
    return Host(agent or make_agent(), ServerOptions(**options))


@dataclass
class Held:
    """A conversation as its adapter sees it: what it was told, and when that was first."""

    slot: Slot
    session: Session
    told: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_words(self) -> str:
        """The end of the history."""
        entry = self.session.chat.entries[-1]
        assert isinstance(entry, AgentEntry)
        return entry.heard


@asynccontextmanager
async def conversation(
    place: Host, *, obeys: bool = True, said_at_s: float | None = None
) -> AsyncIterator[Held]:
    """Hold a conversation; an adapter that does not obey lets it go on when it is told to end."""
    caller = PullClient()
    with place.admit("address 192.0.2.7", "websocket") as slot:
        session = Session(place.agent, caller, session_id=slot.id, on_event=place.observe, scope=place.scope)
        held = Held(slot, session)

        def end(reason: str) -> None:
            held.told.append(reason)
            held.over.set()
            if obeys:
                session.hang_up(reason)

        async with session:
            caller.attach(session)
            slot.bind(session, end)
            if said_at_s is not None:
                caller.say(speak(1.0), said_at_s)
            playing = asyncio.ensure_future(caller.run())
            yield held
            caller.stop()
            await playing


# ---------------------------------------------------------------- admission


def test_places_are_limited_and_freed() -> None:
    async def run() -> None:
        place = host(max_sessions=2)
        with place.admit("a", "websocket"), place.admit("b", "webrtc"):
            with pytest.raises(Overloaded, match="full") as refused:
                place.admit("c", "websocket")
            assert refused.value.retry_after_s
        assert place.sessions == 0
        place.admit("c", "websocket").release()
        assert +place.metrics.refused == Counter(full=1)

    run_virtual(run())


def test_one_client_gets_its_share_only() -> None:
    async def run() -> None:
        place = host(max_sessions_per_client=2)
        first = place.admit("a", "websocket")
        with place.admit("a", "webrtc"):
            with pytest.raises(Overloaded, match="this client"):
                place.admit("a", "websocket")
            with place.admit("b", "websocket"):
                assert place.sessions == 3
        place.admit("a", "websocket").release()
        first.release()
        first.release()
        assert place.sessions == 0

    run_virtual(run())


def test_a_place_is_freed_when_its_adapter_fails() -> None:
    async def run() -> None:
        place = host()
        with pytest.raises(RuntimeError), place.admit("a", "websocket"):
            raise RuntimeError
        assert place.sessions == 0

    run_virtual(run())


def test_ids_can_not_be_guessed() -> None:
    async def run() -> None:
        place = host(max_sessions=1000, max_sessions_per_client=1000)
        ids = {place.admit("a", "websocket").id for _ in range(1000)}
        assert len(ids) == 1000
        assert all(len(each) == len("sess_") + 32 for each in ids)
        await place.close()

    run_virtual(run())


def test_thousands_of_conversations_leave_nothing_behind() -> None:
    async def run() -> None:
        place = host()
        for n in range(3000):
            with place.admit(f"address {n}", "websocket"):
                pass
        gc.collect()
        assert not place._slots
        assert not place._by_client
        assert place._timer is None

    run_virtual(run())


# ---------------------------------------------------------------- time limits


@pytest.mark.parametrize("kind", ["says nothing at all", "falls silent"])
def test_a_client_that_sends_nothing_is_ended_as_idle(kind: str) -> None:
    async def run() -> None:
        place = host(idle_s=30.0, first_message_s=10.0)
        loop = asyncio.get_running_loop()
        async with conversation(place) as held:
            begun = loop.time()
            if kind == "falls silent":
                await asyncio.sleep(5)
                held.slot.touch()
            await held.over.wait()
            assert held.told == ["idle"]
            limit = 10.0 if kind == "says nothing at all" else 35.0
            assert loop.time() - begun == pytest.approx(limit, abs=TICK_S + 0.1)
            assert held.session.ended == "idle"
        assert +place.metrics.ended == Counter(idle=1)

    run_virtual(run())


def test_a_client_that_goes_on_sending_is_not_idle() -> None:
    async def run() -> None:
        place = host(idle_s=3.0)
        async with conversation(place) as held:
            for _ in range(60):
                held.slot.touch()
                await asyncio.sleep(1.0)
            assert held.told == []

    run_virtual(run())


def test_a_client_that_only_listens_is_not_idle_while_the_agent_speaks() -> None:
    """Push to talk sends nothing during a long answer; but a speaking agent is no way to stay for ever."""

    async def run() -> None:
        place = host(make_agent(greeting=ONE_TO_FORTY), idle_s=5.0)
        loop = asyncio.get_running_loop()
        async with conversation(place) as held:
            begun = loop.time()
            held.slot.touch()
            await asyncio.sleep(7.0)
            assert held.told == []
            await held.over.wait()
            assert 8.0 < loop.time() - begun < 8.0 + 2.0, "forty words take eight seconds"
        place = host(make_agent(greeting=" ".join([ONE_TO_FORTY] * 3)), idle_s=5.0)
        async with conversation(place) as held:
            begun = loop.time()
            held.slot.touch()
            await held.over.wait()
            assert loop.time() - begun == pytest.approx(10.0, abs=TICK_S + 0.1)

    run_virtual(run())


def test_the_longest_conversation_is_ended_as_expired_whatever_comes() -> None:
    async def run() -> None:
        place = host(session_s=60.0)
        loop = asyncio.get_running_loop()
        async with conversation(place) as held:
            while not held.told:
                held.slot.touch()
                await asyncio.sleep(0.1)
            assert held.told == ["expired"]
            assert loop.time() == pytest.approx(60.0, abs=TICK_S + 0.2)

    run_virtual(run())


def test_an_adapter_that_does_not_end_its_conversation_has_it_hung_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        place = host(session_s=10.0)
        async with conversation(place, obeys=False) as held:
            held.slot.touch()
            await asyncio.sleep(10.0 + 2 * TICK_S)
            assert held.told == ["expired"]
            assert held.session.ended is None
            await asyncio.sleep(END_S + TICK_S)
            assert held.session.ended == "expired"
            await asyncio.sleep(60)
            assert held.told == ["expired"], "it is told once"

    run_virtual(run())
    assert "did not end by itself" in caplog.text


def test_an_adapter_that_raises_when_told_to_end_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        place = host(session_s=10.0)
        async with conversation(place) as held:
            with place.admit("b", "websocket") as bad:
                async with Session(place.agent, PullClient(), scope=place.scope) as session:

                    def raises(reason: str) -> None:
                        raise RuntimeError(reason)

                    bad.bind(session, raises)
                    await asyncio.sleep(11)
                    assert held.told == ["expired"]

    run_virtual(run())
    assert "could not be told to end" in caplog.text


def test_one_timer_serves_all_and_stops_with_the_last() -> None:
    async def run() -> None:
        place = host(max_sessions=500, max_sessions_per_client=500)
        tasks = len(asyncio.all_tasks())
        slots = [place.admit("a", "websocket") for _ in range(500)]
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == tasks
        for slot in slots:
            slot.release()
        assert place._timer is None

    run_virtual(run())


# ---------------------------------------------------------------- drain


def test_drain_ends_quiet_conversations_at_once_and_lets_others_finish() -> None:
    async def run() -> None:
        place = host(make_agent(greeting=ONE_TO_FORTY), drain_s=20.0)
        quiet = host(make_agent(), drain_s=20.0)
        loop = asyncio.get_running_loop()

        async def hold(at: Host) -> tuple[float, Held]:
            async with conversation(at) as held:
                await held.over.wait()
                return loop.time(), held

        speaking, silent = asyncio.ensure_future(hold(place)), asyncio.ensure_future(hold(quiet))
        await asyncio.sleep(2.0)
        draining = [asyncio.ensure_future(place.drain()), asyncio.ensure_future(quiet.drain())]
        await asyncio.sleep(0.2)
        assert place.draining
        assert silent.done()
        assert not speaking.done()
        with pytest.raises(Overloaded, match="stop"):
            place.admit("b", "websocket")
        await asyncio.gather(*draining)
        ended_s, held = await speaking
        assert held.told == ["draining"]
        assert 8.0 <= ended_s < 9.0
        assert held.last_words.split()[-1].startswith("word40"), "the sentence was finished"
        assert place.sessions == quiet.sessions == 0

    run_virtual(run())


def test_drain_waits_for_the_answer_to_a_question_that_is_being_asked() -> None:
    async def run() -> None:
        place = host(make_agent(["The answer is three words."], said=["What is it?"]), drain_s=20.0)

        async def hold() -> str:
            async with conversation(place, said_at_s=1.0) as held:
                await held.over.wait()
                return held.last_words

        holding = asyncio.ensure_future(hold())
        await asyncio.sleep(1.5)
        await place.drain()
        assert "The answer is three words." in await holding

    run_virtual(run())


def test_drain_cuts_what_takes_too_long() -> None:
    async def run() -> None:
        place = host(make_agent(greeting=ONE_TO_FORTY), drain_s=3.0)
        loop = asyncio.get_running_loop()

        async def hold() -> None:
            async with conversation(place) as held:
                await held.over.wait()

        holding = asyncio.ensure_future(hold())
        await asyncio.sleep(1.0)
        await place.drain()
        await holding
        assert loop.time() == pytest.approx(4.0, abs=0.2)

    run_virtual(run())


def test_drain_does_not_wait_for_ever_for_an_adapter(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        place = host(drain_s=1.0)
        loop = asyncio.get_running_loop()
        async with conversation(place, obeys=False) as held:
            await place.drain()
            assert loop.time() < 1.0 + END_S + 1.0
            assert held.session.ended == "draining"

    run_virtual(run())
    assert "left behind" in caplog.text


def test_a_conversation_that_begins_while_the_host_closes_is_ended_at_once() -> None:
    async def run() -> None:
        place = host(drain_s=0.0)
        slot = place.admit("a", "websocket")
        async with Session(place.agent, PullClient(), scope=place.scope) as session:
            closing = asyncio.ensure_future(place.close())
            await asyncio.sleep(0.1)
            told: list[str] = []
            slot.bind(session, told.append)
            assert told == ["draining"]
            slot.release()
            await closing

    run_virtual(run())


# ---------------------------------------------------------------- logs, options


def test_the_log_says_when_a_session_began_and_ended_and_nothing_that_was_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> str:
        place = host(make_agent(["Your code is swordfish."], said=["My name is Rumpelstiltskin."]))
        async with conversation(place, said_at_s=0.5) as held:
            await asyncio.sleep(6)
            return held.slot.id

    session_id = run_virtual(run())
    begun, ended = (r for r in caplog.records if getattr(r, "session", None) == session_id)
    assert begun.getMessage() == "session started"
    assert ended.getMessage() == "session ended"
    assert vars(ended)["turns"] == 1
    assert vars(ended)["lasted_s"] == pytest.approx(6.0, abs=0.1)
    everything = " ".join(str(vars(record)) for record in caplog.records)
    assert "swordfish" not in everything
    assert "Rumpelstiltskin" not in everything


@pytest.mark.parametrize(
    "options",
    [
        {"max_sessions": 0},
        {"max_sessions": True},
        {"max_sessions": 1.5},
        {"idle_s": 0},
        {"idle_s": float("nan")},
        {"session_s": float("inf")},
        {"drain_s": -1},
        {"secret_s": 5},
        {"tokens": "secret"},
        {"tokens": ["secret"]},
        {"public_url": "voice.example.org"},
        {"advertised_ip": "my-host"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        ServerOptions(**options)

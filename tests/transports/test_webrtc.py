"""Calls by WebRTC, with real sockets: a conversation over a good and a bad network, bad clients, and what is left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Any

import numpy as np
import psutil
import pytest
from rtc_peer import GRANT, Peer
from talk import make_agent

from loadtest.lossy_relay import BAD, PERFECT, Network
from transports import webrtc
from transports.hosting import Host
from transports.options import ServerOptions
from transports.realtime.errors import RealtimeError
from transports.rtc import health, receiver
from transports.webrtc import Calls
from voice.agent import Agent
from voice.errors import EngineFailed, Overloaded
from voice.options import TurnOptions
from voice.testing import ScriptedRecogniser, ToneSynthesiser, silence, speak, words_heard

RATE_HZ = 24_000
WORDS = {150: "one", 200: "two", 250: "three", 300: "four"}
ANSWER = "One two three four five."


def agent(answers: int = 5, answer: str = ANSWER, **options: Any) -> Agent:
    """It hears words by their pitch and answers in tones of turn 1 of session 0."""
    return make_agent(
        [answer] * answers,
        recogniser=ScriptedRecogniser(WORDS),
        synthesiser=ToneSynthesiser(session_number=lambda _: 0),
        **options,
    )


@asynccontextmanager
async def serving(
    who: Agent | None = None, options: ServerOptions | None = None
) -> AsyncIterator[tuple[Host, Calls]]:
    host = Host(who or agent(), options)
    calls = Calls(host)
    try:
        yield host, calls
    finally:
        await calls.close()
        await host.close()


def run(main: Coroutine[Any, Any, None], within_s: float = 60.0) -> None:
    """Run with real time; the limit is only there to end what hangs."""

    async def limited() -> None:
        async with asyncio.timeout(within_s):
            await main

    asyncio.run(limited())


async def ask(peer: Peer) -> None:
    """Say four words of 0.3 s."""
    peer.mouth.say(silence(0.2, RATE_HZ))
    for hz in WORDS:
        peer.mouth.say(speak(0.3, hz, RATE_HZ))
        peer.mouth.say(silence(0.06, RATE_HZ))


async def an_offer() -> str:
    """The offer of a client that then goes away."""
    async with Peer() as peer:
        return await peer.offer()


def words_of(said: dict[str, Any]) -> list[str]:
    """The words of a transcript. Where a busy machine made the client skip a frame, a word is in two pieces."""
    return [word for word, _ in groupby(said["transcript"].split())]


async def over(calls: Calls, call_id: str, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while calls.get(call_id) is not None:  # noqa: ASYNC110  what is polled is not ours to instrument
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- a conversation


def test_a_conversation_goes_both_ways() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            await peer.call(calls)
            assert (await peer.event("session.created"))["session"]["type"] == "realtime"
            await ask(peer)
            said = await peer.event("conversation.item.input_audio_transcription.completed")
            assert words_of(said) == ["one", "two", "three", "four"]
            await peer.event("output_audio_buffer.stopped")
            assert peer.kinds.index("output_audio_buffer.started") < peer.kinds.index(
                "output_audio_buffer.stopped"
            )
            assert "response.output_audio.delta" not in peer.kinds, "sound goes by RTP"
            assert [run.words for run in words_heard(peer.audio, 16_000)] == [5]

    run(main())


@pytest.mark.parametrize("seed", [11, 12])
def test_a_conversation_survives_loss_jitter_and_reordering(seed: int) -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer(BAD, seed=seed) as peer:
            await peer.call(calls)
            await peer.event("session.created")
            peer.spoil()
            await ask(peer)
            said = await peer.event("conversation.item.input_audio_transcription.completed", 30)
            assert words_of(said) == ["one", "two", "three", "four"]
            await peer.event("output_audio_buffer.stopped", 30)
            assert peer.relay is not None and peer.relay.lost > 0
            took_s = peer.heard[-1][0] - peer.heard[0][0]
            assert len(peer.audio) / 16_000 == pytest.approx(took_s, rel=0.03)
            voiced = np.abs(peer.audio.astype(np.int32)).reshape(-1, 160).max(axis=1) > 2000
            assert np.count_nonzero(voiced) * 0.01 == pytest.approx(1.0, abs=0.2), "five words of 200 ms"
            peer.relay.network = PERFECT

    run(main())


def test_speech_over_the_agent_silences_it_and_the_client_is_told() -> None:
    async def main() -> None:
        impatient = agent(answer="Six seven eight nine ten. " * 6, turns=TurnOptions(interrupt_words=1))
        async with serving(impatient) as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            await ask(peer)
            await peer.event("output_audio_buffer.started")
            peer.mouth.say(silence(0.5, RATE_HZ))
            peer.mouth.say(speak(1.5, 200.0, RATE_HZ))
            await peer.event("output_audio_buffer.cleared")
            truncated = await peer.event("conversation.item.truncated")
            assert 0 < truncated["audio_end_ms"] < 8000

    run(main())


def test_a_client_clears_what_it_hears() -> None:
    async def main() -> None:
        async with serving(agent(answer=f"{ANSWER} " * 6)) as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            await ask(peer)
            await peer.event("output_audio_buffer.started")
            peer.send({"type": "output_audio_buffer.clear"})
            await peer.event("output_audio_buffer.cleared")
            peer.heard.clear()
            await asyncio.sleep(0.4)
            assert np.abs(peer.audio[3200:]).max() < 200, "silence from then on"

    run(main())


def test_the_agent_greets_when_the_client_is_there() -> None:
    async def main() -> None:
        async with serving(agent(greeting="Good morning to you.")) as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("output_audio_buffer.stopped")
            assert peer.kinds[0] == "session.created"
            assert [run.words for run in words_heard(peer.audio, 16_000)] == [4]

    run(main())


def test_a_client_without_a_data_channel_is_heard_and_answered() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer(channel=None) as peer:
            await peer.call(calls)
            call = calls.get(peer.call_id)
            assert call is not None
            await peer.until(lambda: call._track.ear is not None)
            await ask(peer)
            await peer.until(lambda: sum(r.words for r in words_heard(peer.audio, 16_000)) == 5)

    run(main())


def test_settings_that_come_with_the_offer_are_in_force() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            await peer.call(calls, model="a-model", config={"instructions": "Be kind."})
            created = await peer.event("session.created")
            assert created["session"]["model"] == "a-model"
            assert created["session"]["instructions"] == "Be kind."
            with pytest.raises(RealtimeError):
                await calls.offer(await an_offer(), GRANT, client="tester", config={"voice": 7})

    run(main())


# ---------------------------------------------------------------- how a call ends


def test_a_client_that_hangs_up_leaves_nothing_at_once() -> None:
    async def main() -> None:
        async with serving() as (host, calls):
            async with Peer() as peer:
                await peer.call(calls)
                await peer.event("session.created")
            await over(calls, peer.call_id)
            assert host.sessions == 0

    run(main())


def test_the_server_hangs_up_and_the_client_sees_it() -> None:
    async def main() -> None:
        async with serving() as (host, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            assert calls.hang_up(peer.call_id)
            await peer.until(lambda: peer.connection.connectionState == "closed")
            await over(calls, peer.call_id)
            assert not calls.hang_up(peer.call_id)
            assert not calls.hang_up("rtc_nothing")
            assert host.sessions == 0

    run(main())


def test_a_peer_that_never_connects_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc, "CONNECT_S", 0.3)

    async def main() -> None:
        async with serving() as (host, calls), Peer() as peer:
            await peer.call(calls, connect=False)
            call = calls.get(peer.call_id)
            assert call is not None
            await over(calls, peer.call_id)
            assert call.reason == "never_connected"
            assert host.sessions == 0

    run(main())


def test_a_peer_that_falls_silent_is_asked_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc, "TICK_S", 0.1)
    monkeypatch.setattr(health, "PROBE_AFTER_S", 0.5)
    monkeypatch.setattr(health, "GONE_AFTER_S", 1.5)

    async def main() -> None:
        async with serving() as (_, calls), Peer(Network(loss=1.0)) as peer:
            await peer.call(calls)
            await peer.event("session.created")
            call = calls.get(peer.call_id)
            assert call is not None
            await asyncio.sleep(2.0)
            assert call.reason is None, "a quiet peer is alive"
            peer.spoil()
            await over(calls, peer.call_id)
            assert call.reason == "peer_gone"

    run(main())


def test_a_call_whose_time_is_up_is_told_so() -> None:
    async def main() -> None:
        async with serving(options=ServerOptions(session_s=1.0)) as (host, calls), Peer() as peer:
            await peer.call(calls)
            error = await peer.event("error")
            assert error["error"]["code"] == "session_expired"
            await over(calls, peer.call_id)
            await peer.until(lambda: peer.connection.connectionState == "closed")
            assert host.sessions == 0

    run(main())


def test_a_draining_server_ends_quiet_calls_and_takes_no_more() -> None:
    async def main() -> None:
        async with serving() as (host, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            await host.drain()
            assert calls.get(peer.call_id) is None
            with pytest.raises(Overloaded):
                await calls.offer(await an_offer(), GRANT, client="tester")

    run(main())


def test_a_session_that_ends_by_itself_ends_the_call() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            call = calls.get(peer.call_id)
            assert call is not None
            call.session.hang_up("done")
            await over(calls, peer.call_id)
            assert call.reason == "done"

    run(main())


def test_twenty_calls_leave_no_task_thread_or_socket() -> None:
    def held() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), threading.active_count(), psutil.Process().num_fds()

    def more(before: tuple[int, int, int]) -> list[bool]:
        """Threads of tests before this one may have ended meanwhile: fewer is fine."""
        return [now > was for now, was in zip(held(), before, strict=True)]

    def kept() -> list[object]:
        gc.collect()
        return [o for o in gc.get_objects() if isinstance(o, webrtc.Call | receiver.CallerReceiver)]

    async def one(calls: Calls, how: int) -> None:
        async with Peer() as peer:
            await peer.call(calls, connect=how != 3)
            if how in (0, 1):
                await peer.event("session.created")
            if how == 1:
                calls.hang_up(peer.call_id)
        calls.hang_up(peer.call_id)
        await over(calls, peer.call_id)

    async def main() -> None:
        async with serving() as (host, calls):
            await one(calls, 0)  # what is made once is made
            await asyncio.sleep(0.2)
            gc.collect()
            before = held()
            for n in range(20):
                await one(calls, n % 4)
            with suppress(TimeoutError):
                async with asyncio.timeout(15):  # the operating system sends no events
                    while any(more(before)) or kept():  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
            assert host.sessions == 0
            assert not any(more(before)), (before, held())
            assert not kept(), "nothing holds an ended call"

    run(main(), 90)


# ---------------------------------------------------------------- bad clients


def test_other_data_channels_are_refused_and_the_call_goes_on() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            second = peer.connection.createDataChannel("oai-events")
            other = peer.connection.createDataChannel("files")
            await peer.call(calls)
            await peer.event("session.created")
            await peer.until(lambda: other.readyState == second.readyState == "closed")
            peer.send({"type": "input_audio_buffer.clear"})
            await peer.event("input_audio_buffer.cleared")

    run(main())


@pytest.mark.parametrize("message", ["", "nonsense", b"\x00\xff", "[" * 5000, '{"type": 3}', "x" * 200_000])
def test_bad_messages_are_answered_with_an_error(message: str | bytes) -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            peer.send(message)
            await peer.event("error")
            peer.send({"type": "input_audio_buffer.clear"})
            await peer.event("input_audio_buffer.cleared")

    run(main())


def test_a_flood_of_messages_ends_the_call_and_no_other() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as bad, Peer() as good:
            await good.call(calls)
            await good.event("session.created")
            await bad.call(calls)
            await bad.event("session.created")
            call = calls.get(bad.call_id)
            assert call is not None

            async def stuck(_: str | bytes) -> None:
                await asyncio.sleep(60)

            call.protocol.receive = stuck  # type: ignore[method-assign]
            for _ in range(600):
                bad.send({"type": "input_audio_buffer.clear"})
            await over(calls, bad.call_id)
            assert call.reason == "flood"
            good.send({"type": "input_audio_buffer.clear"})
            await good.event("input_audio_buffer.cleared")

    run(main())


def test_a_fault_of_ours_ends_only_the_call_it_hit() -> None:
    async def main() -> None:
        async with serving() as (host, calls), Peer() as hit, Peer() as other:
            for peer in (hit, other):
                await peer.call(calls)
                await peer.event("session.created")
            call = calls.get(hit.call_id)
            assert call is not None

            async def broken(_: str | bytes) -> None:
                raise RuntimeError("made to fail")

            call.protocol.receive = broken  # type: ignore[method-assign]
            for _ in range(2):  # the first one was waited for with the old method in hand
                hit.send({"type": "input_audio_buffer.clear"})
            await over(calls, hit.call_id)
            assert call.reason == "failed"
            assert host.sessions == 1
            other.send({"type": "input_audio_buffer.clear"})
            await other.event("input_audio_buffer.cleared")

    run(main())


def test_garbage_sent_to_the_audio_port_does_no_harm() -> None:
    async def main() -> None:
        async with serving() as (_, calls), Peer() as peer:
            await peer.call(calls)
            await peer.event("session.created")
            pair = peer.connection.sctp.transport.transport  # type: ignore[union-attr]
            rng = np.random.default_rng(5)
            for first in (0, 20, 22, 63, 128, 200, 255):
                for size in (1, 13, 100, 1400):
                    await pair._send(bytes([first]) + rng.bytes(size))
            await ask(peer)
            said = await peer.event("conversation.item.input_audio_transcription.completed")
            assert words_of(said) == ["one", "two", "three", "four"]

    run(main())


def test_a_place_that_is_taken_by_a_failed_offer_is_free_again() -> None:
    async def main() -> None:
        async with serving(options=ServerOptions(max_sessions=1)) as (host, calls):
            good = await an_offer()
            with pytest.raises(RealtimeError):
                await calls.offer(good, GRANT, client="tester", config={"instructions": 3})
            assert host.sessions == 0
            async with Peer() as peer:
                await peer.call(calls)
                with pytest.raises(Overloaded):
                    await calls.offer(good, GRANT, client="tester")

    run(main())


def test_another_aiortc_than_expected_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.check_internals()
    monkeypatch.delattr("aiortc.RTCDtlsTransport._send_rtp")
    with pytest.raises(EngineFailed, match=r"aiortc .* can't be used: _send_rtp moved"):
        receiver.check_internals()

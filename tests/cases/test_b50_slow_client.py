"""B50: a peer stops reading (or sends far too much) and the server keeps audio for it without limit.

The kind of fault: an edge without a bound. It is made impossible in ``voice/playout.py`` (a track holds
``Limits.playout_s`` of audio, then the synthesiser waits), ``voice/sender.py`` (at most ``ahead_s`` before the
ear; a send that takes ``Limits.send_stall_s`` ends the session with a reason) and ``voice/hearing.py`` (a ring of
fixed size; what the detector can't keep up with is skipped and counted).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from talk import Talk, make_agent, talk

from voice.agent import Agent
from voice.events import ResponseText, SessionEnded, SessionEvent
from voice.interfaces import ASR_RATE_HZ
from voice.options import Limits
from voice.testing import (
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    speak,
)

SENTENCE = "word word word word word. "
MINUTE = SENTENCE * 60  # 60 s of audio
HELD_S = Limits().playout_s + 0.1
HEARD_S = 2.0 + 0.8
"""Beyond the backlog: a second of pre-roll, a second that is dropped in one, and the piece that came last."""
AHEAD_S = 0.4 + 0.12
"""The sender's lead, and the piece that was under way at a stall: the sender can't know when it arrived."""


def long_winded() -> Agent:
    model = ScriptedModel([MINUTE], token_s=0.0)
    return make_agent(
        model, recogniser=ScriptedRecogniser(lambda audio: "Tell me."), synthesiser=ToneSynthesiser(rtf=0.05)
    )


async def watched(it: Talk, seconds: float, look: Callable[[], None]) -> None:
    run = asyncio.create_task(it.client.run(seconds))
    while not run.done():
        look()
        await asyncio.sleep(0.05)
    await run


async def reply_to(client: PushClient, seconds: float, act: Callable[[PushClient, float], None]) -> Talk:
    """A minute's reply from 1.5 s on; ``act`` is called every 50 ms. Nothing more than the bounds is ever held."""
    async with talk(long_winded(), client) as it:
        client.say(speak(0.5), at_s=0.5)

        def look() -> None:
            act(client, client.now_s)
            track = it.session.playout.track
            if track is not None:
                assert track.queued_s <= HELD_S
            assert client.ahead_s <= AHEAD_S + 1e-6

        await watched(it, seconds, look)
    return it


def stops_reading(from_s: float, until_s: float) -> Callable[[PushClient, float], None]:
    def act(client: PushClient, now_s: float) -> None:
        client.stop_reading() if from_s <= now_s < until_s else client.resume_reading()

    return act


def test_a_client_that_stops_reading_for_long_is_closed_with_a_reason_after_ten_seconds() -> None:
    async def main() -> None:
        it = await reply_to(PushClient(record_s=70.0), 40.0, stops_reading(10.0, 40.0))
        assert it.session.ended == "slow_client"
        ended_s = it.times_of(SessionEnded)
        assert ended_s == [pytest.approx(10.0 + Limits().send_stall_s, abs=0.5)]

    run_virtual(main())


def test_a_short_stall_does_not_end_the_call_and_no_word_is_lost() -> None:
    async def main() -> None:
        it = await reply_to(PushClient(record_s=90.0), 80.0, stops_reading(10.0, 15.0))
        assert it.session.ended == "closed"
        assert it.words == [(1, 300)]
        assert it.ended.status == "completed"

    run_virtual(main())


def test_a_client_that_reads_at_half_speed_is_waited_for() -> None:
    async def main() -> None:
        it = await reply_to(PushClient(record_s=150.0, read_speed=0.5), 60.0, lambda client, now_s: None)
        assert it.session.ended == "closed"
        words = sum(count for _, count in it.words)
        assert words == pytest.approx(0.5 * 58.0 / 0.2, rel=0.05)

    run_virtual(main())


def test_other_sessions_notice_nothing_of_a_slow_client() -> None:
    async def other(with_slow_client: bool) -> Talk:
        agent = long_winded()
        slow = PushClient(record_s=1.0)
        async with talk(agent, PushClient(record_s=30.0), session_id="s1") as it:
            it.client.say(speak(0.5), at_s=0.5)
            it.client.say(speak(0.8), at_s=12.0)
            if with_slow_client:
                async with talk(agent, slow, session_id="s0") as bad:
                    slow.say(speak(0.5), at_s=0.3)

                    async def stop() -> None:
                        await asyncio.sleep(4.0)
                        slow.stop_reading()

                    await asyncio.gather(it.client.run(20.0), slow.run(20.0), stop())
                    assert bad.session.ended == "slow_client"
            else:
                await it.client.run(20.0)
            assert it.session.counters.barge_ins == 1
        return it

    alone, beside = run_virtual(other(False)), run_virtual(other(True))
    assert beside.sounds == alone.sounds
    assert [type(event) for _, event in beside.events] == [type(event) for _, event in alone.events]
    late_s = max(abs(b - a) for (a, _), (b, _) in zip(alone.events, beside.events, strict=True))
    assert late_s < 0.01, "a sample's length more or less moves a piece of audio to the sender's next look"


def test_a_deaf_a_slow_and_a_flooding_client_at_once_change_nothing_for_four_others() -> None:
    """All three kinds of bad client on one process with four good ones, each in a minute's reply."""
    seconds = 16.0

    async def good(agent: Agent, number: int) -> Talk:
        async with talk(agent, PushClient(frame_s=0.1, record_s=seconds), session_id=f"s{number}") as it:
            it.client.say(speak(0.5), at_s=0.5 + number / 10)
            it.client.say(speak(0.8), at_s=9.0 + number / 10)
            await it.client.run(seconds)
            return it

    async def bad(agent: Agent, kind: str) -> None:
        client = PushClient(frame_s=0.1, record_s=1.0, read_speed=0.5 if kind == "slow" else None)
        async with talk(agent, client, session_id=f"{kind} s9") as it:
            client.say(speak(0.5), at_s=0.3)
            run = asyncio.create_task(client.run(seconds))
            await asyncio.sleep(4.0)
            if kind == "deaf":
                client.stop_reading()
            noise = speak(0.8, hz=220.0) // 100
            while not run.done():
                if kind == "floods" and client.now_s < 7.0:
                    it.session.hear(noise)  # at twenty times real time
                check_held(it)
                await asyncio.sleep(0.04)
            await run
            assert it.session.ended == ("slow_client" if kind == "deaf" else None)

    async def main(kinds: Sequence[str]) -> list[Talk]:
        agent = long_winded()
        them = [asyncio.create_task(bad(agent, kind)) for kind in kinds]
        others = await asyncio.gather(*(good(agent, number) for number in range(4)))
        await asyncio.gather(*them)
        return list(others)

    alone, beside = run_virtual(main([])), run_virtual(main(["deaf", "slow", "floods"]))
    for one, other in zip(alone, beside, strict=True):
        assert one.session.counters.barge_ins == 1
        assert other.words == one.words
        assert other.sounds == one.sounds
        assert told(other) == told(one)


def told(it: Talk) -> list[type[SessionEvent]]:
    """The kinds of events, text left out: how much is written of what nobody will hear is no matter."""
    return [type(event) for _, event in it.events if not isinstance(event, ResponseText)]


def check_held(it: Talk) -> None:
    """What is held of a client's audio and for its ear stays within its bounds."""
    ear, track = it.session.ear, it.session.playout.track
    assert (ear.log.end - ear.log.start) / ASR_RATE_HZ <= it.session.agent.limits.hear_backlog_s + HEARD_S
    assert track is None or track.queued_s <= HELD_S


@pytest.mark.parametrize("detector_s", [0.0, 0.032])
def test_a_microphone_at_twenty_times_real_time_is_held_within_bounds_and_counted(detector_s: float) -> None:
    async def main() -> None:
        detector = ScriptedDetector(delay_s=detector_s)
        agent = make_agent(detector=detector, limits=Limits(hear_backlog_s=2.0))
        frame = speak(0.02, hz=220.0) // 100  # room noise
        async with talk(agent, PushClient(record_s=1.0)) as it:
            for _ in range(20 * 50 * 20):  # 20 s of real time, 400 s of audio
                it.session.hear(frame)
                await asyncio.sleep(0.001)
                check_held(it)
            assert it.session.ended is None
            assert (it.session.ear.dropped_samples > 0) == (detector_s > 0)

    run_virtual(main())

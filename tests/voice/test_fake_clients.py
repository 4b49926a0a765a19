"""The fake transports: microphone and ear on one timeline, sample by sample; and clients that misbehave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from voice.errors import BadRequest
from voice.interfaces import (
    Pcm16,
)
from voice.testing import (
    PullClient,
    PushClient,
    first_audible_s,
    run_virtual,
    silence,
    speak,
    tone_for,
    words_heard,
)
from voice.testing.audio import tone

RATE = 24_000


def now() -> float:
    return asyncio.get_running_loop().time()


def words(session: int, turn: int, count: int, rate: int = RATE) -> Pcm16:
    return np.tile(tone(tone_for(session, turn), round(0.2 * rate), rate), count)


class Line:
    """What a transport sees of a session: it keeps what the microphone sent and plays what it was given."""

    def __init__(self, pcm: Pcm16 | None = None) -> None:
        self.playout = self
        self.frames: list[tuple[float, Pcm16]] = []
        self.reads: list[float] = []
        self.reports: list[tuple[float, int]] = []
        self.to_play = silence(0) if pcm is None else pcm

    def hear(self, pcm: Pcm16) -> None:
        self.frames.append((now(), pcm))

    def read(self, wanted: int) -> Pcm16:
        self.reads.append(now())
        piece, self.to_play = self.to_play[:wanted], self.to_play[wanted:]
        return piece

    def report(self, response_id: str, position: int) -> None:
        self.reports.append((now(), position))


def test_a_pulling_client_speaks_and_listens_in_frames_on_an_absolute_grid() -> None:
    async def main() -> None:
        client, line = PullClient(), Line(words(0, 0, 2))
        client.attach(line)
        assert client.say(speak(0.3), at_s=0.1) == 0.1
        await client.run(120.0)
        assert len(line.frames) == 6_000
        late = [abs(at - (k + 1) * 0.02) for k, (at, _) in enumerate(line.frames)]
        assert max(late) < 1e-9, "frames don't drift"
        assert all(len(frame) == 320 for _, frame in line.frames)
        assert np.array_equal(client.mic, np.concatenate([frame for _, frame in line.frames]))
        assert np.array_equal(client.mic[1600:6400], speak(0.3))
        assert not client.mic[:1600].any()
        assert not client.mic[6400:].any()
        assert line.reads[:3] == [0.0, pytest.approx(0.02), pytest.approx(0.04)]
        assert np.array_equal(client.heard[:9600], words(0, 0, 2))
        assert not client.heard[9600:].any()

    run_virtual(main())


def test_ear_and_microphone_share_one_timeline() -> None:
    async def main() -> None:
        client, line = PullClient(), Line()
        client.attach(line)
        talk = asyncio.create_task(client.run())
        await asyncio.sleep(1.0)
        line.to_play = words(0, 0, 1)
        client.say(speak(0.2))
        await asyncio.sleep(1.0)
        client.stop()
        await talk
        assert first_audible_s(client.mic, 16_000) == pytest.approx(1.0, abs=0.021)
        assert first_audible_s(client.heard, RATE) == pytest.approx(1.0, abs=0.021)

    run_virtual(main())


def test_what_is_said_queues_mixes_and_is_refused_in_the_past() -> None:
    async def main() -> None:
        client = PullClient()
        client.attach(Line())
        assert [client.say(speak(0.5)), client.say(speak(0.5))] == [0.0, 0.5]
        client.say(speak(0.1, 300), at_s=0.2)
        await client.run(2.0)
        assert np.array_equal(client.mic[3200:4800], speak(0.5)[3200:4800] + speak(0.1, 300))
        assert client.say(silence(0.1)) == 2.0
        with pytest.raises(BadRequest, match="past"):
            client.say(silence(0.1), at_s=1.0)

    run_virtual(main())


def test_the_recordings_can_be_read_after_the_run() -> None:
    def recorded(client: PullClient | PushClient) -> PullClient | PushClient:
        client.attach(Line())
        run_virtual(client.run(1.0))
        return client

    assert len(recorded(PullClient()).heard) == RATE + 480  # the frame that plays counts
    assert len(recorded(PushClient()).heard) == RATE


def test_a_recording_is_bounded() -> None:
    async def main() -> None:
        client = PullClient(record_s=1.0)
        client.attach(Line(words(0, 0, 10)))
        client.say(speak(2.0))
        await client.run(3.0)
        assert len(client.mic) == 16_000
        assert words_heard(client.heard) == [(0, 0, 5)]

    run_virtual(main())


@pytest.mark.parametrize("frame_s", [0.0, 0.00001, 0.0333])
def test_a_frame_must_be_a_whole_number_of_samples(frame_s: float) -> None:
    with pytest.raises(BadRequest, match="whole number"):
        PullClient(frame_s=frame_s)


def pushed(body: Callable[[PushClient, Line], Any], **options: Any) -> PushClient:
    """Run ``body`` beside a running client."""

    async def main() -> PushClient:
        client, line = PushClient(**options), Line()
        client.attach(line)
        talk = asyncio.create_task(client.run())
        await body(client, line)
        client.stop()
        await talk
        return client

    return run_virtual(main())


def test_a_pushed_answer_plays_at_real_time_from_its_arrival_to_the_sample() -> None:
    async def body(client: PushClient, line: Line) -> None:
        await asyncio.sleep(0.5)
        await client.send_audio(words(0, 0, 5), "r1")
        assert client.ahead_s == 1.0
        await asyncio.sleep(0.25)
        assert client.ahead_s == 0.75
        assert len(client.heard) == round(0.75 * RATE)
        assert np.array_equal(client.heard[12_000:], words(0, 0, 2)[: round(0.25 * RATE)])
        assert client.position_samples == round(0.25 * RATE)
        await client.send_audio(words(0, 0, 1), "r1")  # while it plays: right behind
        await asyncio.sleep(2.0)
        await client.send_audio(words(0, 1, 1), "r2")  # after it ran dry: at once
        await asyncio.sleep(1.0)

    client = pushed(body)
    wanted = np.concatenate([silence(0.5, RATE), words(0, 0, 6), silence(1.05, RATE), words(0, 1, 1)])
    assert np.array_equal(client.heard[: len(wanted)], wanted)
    assert [(s.response_id, s.samples, s.ahead_s) for s in client.sent] == [
        ("r1", 24_000, 1.0),
        ("r1", 4_800, 0.95),
        ("r2", 4_800, 0.2),
    ]
    assert client.position_samples == client.heard_samples == client.taken == 33_600


def test_clearing_silences_the_ear_at_once_and_what_follows_plays_at_once() -> None:
    async def body(client: PushClient, line: Line) -> None:
        await client.send_audio(words(0, 0, 10), "r1")
        await asyncio.sleep(0.5)
        client.clear_audio()
        assert client.ahead_s == 0
        assert client.heard_samples == 12_000
        assert client.position_samples == client.taken == 48_000, "what was dropped counts as passed"
        await asyncio.sleep(0.1)
        await client.send_audio(words(0, 1, 1), "r2")
        await asyncio.sleep(0.5)

    client = pushed(body)
    wanted = np.concatenate([words(0, 0, 10)[:12_000], silence(0.1, RATE), words(0, 1, 1)])
    assert np.array_equal(client.heard[: len(wanted)], wanted)
    assert list(client.cleared_s) == [0.5]
    assert client.heard_samples == 12_000 + 4_800
    assert client.position_samples == 48_000 + 4_800


def test_positions_are_reported_every_tick_and_stand_still_while_nothing_plays() -> None:
    async def body(client: PushClient, line: Line) -> None:
        await asyncio.sleep(0.1)
        await client.send_audio(words(0, 0, 1), "r1")
        await asyncio.sleep(0.51)
        positions = [position for _, position in line.reports]
        assert len(positions) == 26
        assert positions[:2] == [0, 480]
        assert all(b - a in (0, 480) for a, b in itertools.pairwise(positions))
        assert positions[-1] == 4800

    assert pushed(body, reports_position=True).capabilities.reports_position
    assert not PushClient().capabilities.reports_position


def test_a_client_that_stops_reading_holds_the_sender_back() -> None:
    async def body(client: PushClient, line: Line) -> None:
        client.stop_reading()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send_audio(words(0, 0, 1), "r1"), 10)
        asyncio.get_running_loop().call_later(2.0, client.resume_reading)
        await client.send_audio(words(0, 0, 1), "r1")
        assert now() == pytest.approx(12.0)
        assert client.taken == 4800
        assert len(line.frames) >= 599, "the microphone goes on"

    pushed(body)


def test_a_slow_client_takes_audio_at_its_own_speed() -> None:
    async def body(client: PushClient, line: Line) -> None:
        for _ in range(10):
            await client.send_audio(words(0, 0, 1), "r1")
        assert now() == pytest.approx(2.0 / 0.5)

    assert words_heard(pushed(body, read_speed=0.5).heard)[0][:2] == (0, 0)


def test_a_reset_fails_senders_and_ends_the_run() -> None:
    async def main() -> None:
        client = PushClient()
        client.attach(Line())
        talk = asyncio.create_task(client.run())
        client.stop_reading()
        blocked = asyncio.create_task(client.send_audio(words(0, 0, 1), "r1"))
        await asyncio.sleep(1.0)
        client.reset()
        for send in (blocked, client.send_audio(words(0, 0, 1), "r1")):
            with pytest.raises(ConnectionError):
                await send
        await talk
        assert now() < 1.03

    run_virtual(main())


def test_clients_say_what_is_wrong_with_their_use() -> None:
    async def main() -> None:
        with pytest.raises(BadRequest, match="attach"):
            await PullClient().run()
        with pytest.raises(BadRequest, match="pulls"):
            await PullClient().send_audio(silence(0.1), "r1")

    run_virtual(main())

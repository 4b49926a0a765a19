"""A telephone call's protocol, in virtual time: the sans-I/O call, a scripted carrier and a real session."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talk import ONE_TO_FORTY, make_agent
from twilio_peer import CALL, FRAME, RATE_HZ, STREAM, TwilioPeer, phone

from transports.telephony import messages
from transports.telephony.call import AHEAD_S, TwilioCall
from transports.telephony.messages import Media, Start, StreamError
from transports.telephony.position import MarkedPosition
from voice.chat import AgentEntry
from voice.errors import ProtocolError
from voice.events import AudioStarted, ResponseEnded, SessionEnded, SpeechStarted, UserSaid
from voice.interfaces import Pcm16
from voice.options import Limits
from voice.testing import ToneSynthesiser, run_virtual, silence, speak, tone_runs, words_heard


def caller(*said: tuple[float, float], **peer: Any) -> TwilioPeer:
    """A peer whose caller speaks for so many seconds from each time on."""
    it = TwilioPeer(**peer)
    for at_s, seconds in said:
        it.say(speak(seconds, rate=RATE_HZ), at_s)
    return it


def words(peer: TwilioPeer) -> list[tuple[int, int]]:
    return [(run.turn, run.words) for run in words_heard(peer.heard, RATE_HZ)]


def envelope(event: str, **body: Any) -> str:
    return json.dumps({"event": event, "streamSid": STREAM, event: body})


# ---------------------------------------------------------------- a conversation


def test_a_caller_asks_and_is_answered() -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6), (4.5, 0.6))
        async with phone(make_agent(["One two three four five.", "Six seven."]), peer) as it:
            await it.to(8.0)
            assert [event.text for event in it.of(UserSaid)] == ["Hello there.", "And one more?"]
            assert [event.status for event in it.of(ResponseEnded)] == ["completed", "completed"]
        assert words(peer) == [(1, 5), (2, 2)]
        assert not peer.cleared_s
        assert it.call.counters.bad == it.call.counters.ignored == it.call.position.stale == 0

    run_virtual(main())


@pytest.mark.parametrize("latency_s", [0.0, 0.03, 0.15])
def test_an_interruption_empties_what_was_queued_and_the_history_holds_what_was_heard(
    latency_s: float,
) -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6), (4.0, 1.0))
        async with phone(make_agent([ONE_TO_FORTY, "Okay then."]), peer, latency_s=latency_s) as it:
            await it.to(9.0)
            decided_s = it.times(SpeechStarted)[1]
            entry = next(e for e in it.session.chat.entries if isinstance(e, AgentEntry))
        assert peer.cleared_s == [pytest.approx(decided_s + latency_s, abs=0.01)]
        assert peer.dropped_s > 0.3
        (_, heard), second = words(peer)
        assert abs(len(entry.heard.split()) - heard) <= (
            2 if latency_s > 0.1 else 1
        )  # the clear is under way
        assert entry.interrupted and second == (2, 2)
        run = next(run for run in tone_runs(peer.heard, RATE_HZ) if run.hz == 425)
        assert run.end_s == pytest.approx(peer.cleared_s[0], abs=0.01)
        assert it.call.position.stale > 0  # marks of cleared audio came back and were no news
        assert [event.status for event in it.of(ResponseEnded)] == ["interrupted", "completed"]
        assert it.of(ResponseEnded)[1].heard == "Okay then."

    run_virtual(main())


@pytest.mark.parametrize("latency_s", [0.01, 0.06, 0.12])
def test_the_heard_position_follows_the_carriers_clock_and_never_runs_ahead_of_it(latency_s: float) -> None:
    async def main() -> tuple[float, float]:
        peer = caller((0.5, 0.6))
        early, late = 0.0, 0.0
        async with phone(make_agent([ONE_TO_FORTY]), peer, latency_s=latency_s) as it:
            while peer.now_s < 9.0:
                await it.to(peer.now_s + 0.02)
                track = it.session.playout.track
                if track is not None and peer.sizes:
                    actual = (track.taken / RATE_HZ) - peer.waiting_s
                    position = it.session.playout.position(asyncio.get_running_loop().time()) / RATE_HZ
                    under_way = latency_s + 0.04  # sent, but not in the peer's buffer yet
                    early = max(early, position - actual)
                    late = max(late, actual - position - under_way)
        return early, late

    early, late = run_virtual(main())
    assert early <= 0.025
    assert late <= latency_s + 0.12  # the way back, a frame, the grid, and a piece that is under way


def test_audio_is_sent_at_most_the_lead_before_the_ear_and_the_ear_never_runs_dry() -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6))
        async with phone(make_agent([ONE_TO_FORTY], synthesiser=ToneSynthesiser(rtf=0.02)), peer) as it:
            most = 0.0
            while peer.now_s < 11.0:
                await it.to(peer.now_s + 0.02)
                most = max(most, peer.waiting_s)
        assert 0.8 <= most <= AHEAD_S + 0.1
        (run,) = tone_runs(peer.heard, RATE_HZ)
        assert run.end_s - run.start_s == pytest.approx(8.0, abs=0.01)

    run_virtual(main())


def test_odd_pieces_of_a_voice_go_out_as_whole_frames_without_a_gap() -> None:
    async def heard(chunk_bytes: list[int] | None) -> Pcm16:
        peer = caller((0.5, 0.6))
        voice = ToneSynthesiser(chunk_bytes=chunk_bytes, rtf=0.1)
        async with phone(make_agent(["one two three four five six seven."], synthesiser=voice), peer) as it:
            await it.to(6.0)
            assert it.of(ResponseEnded)[0].status == "completed"
        assert peer.sizes and not any(size % FRAME for size in peer.sizes)
        sound = np.flatnonzero(peer.heard)
        return peer.heard[sound[0] : sound[-1] + 1]

    whole = run_virtual(heard(None))
    assert whole.size == pytest.approx(1.4 * RATE_HZ, abs=FRAME)
    np.testing.assert_array_equal(run_virtual(heard([1, 3, 4063, 1697, 2, 0])), whole)


def test_a_last_piece_that_fills_no_frame_is_heard_and_the_answer_ends_with_it() -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6))
        voice = ToneSynthesiser(
            lead_s=0.0, sample_rate=22_050
        )  # 0.2 s at 22.05 kHz: no whole frames at 8 kHz
        async with phone(make_agent(["Yes."], synthesiser=voice), peer) as it:
            await it.to(4.0)
            (ended,) = it.of(ResponseEnded)
            assert (ended.status, ended.heard) == ("completed", "Yes.")
            took_s = it.times(ResponseEnded)[0] - it.times(AudioStarted)[0]
            assert took_s < 0.2 + 0.15
        assert not any(size % FRAME for size in peer.sizes)

    run_virtual(main())


# ---------------------------------------------------------------- what can go wrong on the way in


def test_lost_frames_become_silence_of_the_same_length() -> None:
    async def main() -> int:
        peer = caller((0.5, 0.6), lose=(10, 40, 41, 42, 60))
        async with phone(make_agent(["Yes."]), peer) as it:
            await it.to(4.0)
            assert len(it.of(UserSaid)) == 1
            return int(it.call.counters.lost_samples)

    assert run_virtual(main()) == 5 * FRAME


class Ear:
    """Stands for a session: keeps what it hears and which keys it is given."""

    def __init__(self) -> None:
        self.pcm: list[Pcm16] = []
        self.keys: list[str] = []
        self.reports: list[tuple[str, int]] = []
        self.playout = self

    def hear(self, pcm: Any) -> None:
        self.pcm.append(pcm)

    def press(self, key: str) -> None:
        self.keys.append(key)

    def report(self, response_id: str, position: int) -> None:
        self.reports.append((response_id, position))

    @property
    def samples(self) -> int:
        return sum(pcm.size for pcm in self.pcm)


def a_call() -> tuple[TwilioCall, Ear]:
    call, ear = TwilioCall(Start(STREAM, CALL), 0.0), Ear()
    call.attach(ear)
    return call, ear


def frame(timestamp: object = None, size: int = FRAME, **media: Any) -> str:
    body: dict[str, Any] = {"track": "inbound", "payload": base64.b64encode(b"\xff" * size).decode(), **media}
    if timestamp is not None:
        body["timestamp"] = timestamp
    return envelope("media", **body)


@pytest.mark.parametrize(
    ("timestamps", "samples"),
    [
        (["0", "20", "40"], 3 * FRAME),
        (["0", "20", "80"], 5 * FRAME),
        (["7", "31", "44", "69"], 4 * FRAME),  # rounded and uneven, but nothing lost
        (["0", "20", "1900"], 96 * FRAME),
        (["0", "20", "9000"], 3 * FRAME),  # too long to be filled: the clock starts anew
        (["9000", "0", "20"], 3 * FRAME),
        (["0", "0", "0"], 3 * FRAME),
        ([None, "20", None, "80"], 4 * FRAME),
        (["x", "-5", 40, "²"], 4 * FRAME),
    ],
)
def test_gaps_are_filled_by_the_timestamps_within_a_bound(timestamps: list[object], samples: int) -> None:
    call, ear = a_call()
    for i, timestamp in enumerate(timestamps):
        call.receive(frame(timestamp), i * 0.02)
    assert ear.samples == samples


def test_messages_that_mean_nothing_are_counted_and_skipped() -> None:
    call, ear = a_call()
    for text in (
        envelope("media", track="outbound", payload=""),
        json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}),
        json.dumps({"event": "an event of the future", "x": [1]}),
    ):
        call.receive(text, 0.0)
    assert (call.counters.ignored, call.counters.bad) == (3, 0)
    bad: list[str | bytes] = [
        "not json",
        b'{"event":"stop"}',
        "[]",
        "{}",
        json.dumps({"event": 5}),
        json.dumps({"event": "media"}),
        frame(payload="*not base64*"),
        frame(payload=17),
        frame(size=8_001),
        frame(track=None),
        envelope("dtmf", digit=5),
        envelope("mark"),
        json.dumps({"event": "media", "streamSid": "MZother", "media": {"payload": "////"}}),
        '{"event":"media","media":' + "[" * 5_000 + "]" * 5_000 + "}",
    ]
    for message in bad:
        call.receive(message, 0.0)
    assert call.counters.bad == len(bad)
    assert not ear.pcm and not call.stopped
    call.receive(frame("0"), 0.0)
    assert ear.samples == FRAME


def test_a_stream_of_nothing_but_nonsense_is_given_up() -> None:
    call, _ = a_call()
    with pytest.raises(StreamError, match="can't be used") as error:
        for _ in range(60):
            call.receive("nonsense", 0.0)
    assert error.value.code == 1002


def test_a_flood_is_refused_and_a_stall_that_is_made_up_for_is_not() -> None:
    call, _ = a_call()
    for _ in range(600):  # 12 s at once, then real time
        call.receive(frame(), 12.0)
    for i in range(3_000):
        call.receive(frame(), 12.0 + i * 0.02)
    with pytest.raises(StreamError) as error:
        for i in range(3_000):
            call.receive(frame(), 72.0 + i * 0.001)
    assert (error.value.code, error.value.reason) == (1008, "flooded")
    call, _ = a_call()
    with pytest.raises(StreamError, match="more messages or audio"):
        for _ in range(30):
            call.receive(frame(size=8_000), 0.0)  # 30 s of audio in 30 messages


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (frame(payload="/" * 70_000), 1009),
        (b"\0" * 70_000, 1009),
        (TwilioPeer().opening()[1], 1002),  # a second start
    ],
)
def test_what_ends_a_stream_says_so_with_a_close_code(text: str | bytes, code: int) -> None:
    call, _ = a_call()
    with pytest.raises(StreamError) as error:
        call.receive(text, 0.0)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"mediaFormat": {"encoding": "audio/l16", "sampleRate": 8000, "channels": 1}}, 1003, "audio/l16"),
        (
            {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 16000, "channels": 1}},
            1003,
            "16000 Hz",
        ),
        (
            {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 2}},
            1003,
            "2 channels",
        ),
        ({"tracks": ["outbound"]}, 1003, "inbound"),
        ({"callSid": "CA\nforged log line"}, 1002, "callSid"),
        ({"accountSid": "x" * 65}, 1002, "accountSid"),
        ({"customParameters": {"a": "x" * 1_000}}, 1002, "parameters"),
        ({"customParameters": {str(i): "" for i in range(65)}}, 1002, "parameters"),
    ],
)
def test_a_start_that_can_not_be_served_is_refused_in_words(change: Any, code: int, says: str) -> None:
    start = json.loads(TwilioPeer().opening()[1])
    start["start"].update(change)
    with pytest.raises(StreamError, match=says) as error:
        messages.parse(json.dumps(start))
    assert error.value.code == code


def test_a_start_tells_who_calls() -> None:
    start = messages.parse(TwilioPeer({"From": "+15551234", "plan": "gold"}).opening()[1])
    assert start == Start(STREAM, CALL, "AC123", {"From": "+15551234", "plan": "gold"})


def test_both_tracks_may_be_streamed_and_only_the_callers_is_heard() -> None:
    start = json.loads(TwilioPeer().opening()[1])
    start["start"]["tracks"] = ["inbound", "outbound"]
    assert isinstance(messages.parse(json.dumps(start)), Start)
    call, ear = a_call()
    call.receive(frame("0", track="outbound"), 0.0)
    call.receive(frame("0", track="inbound"), 0.0)
    assert ear.samples == FRAME


def test_keys_go_to_the_session_and_the_tone_that_comes_with_them_does_not() -> None:
    from twilio_peer import key_tone

    from voice import g711

    call, ear = a_call()
    pcm = np.concatenate([silence(0.1, RATE_HZ), key_tone("5", 0.2), silence(0.1, RATE_HZ)])
    for start in range(0, pcm.size, FRAME):
        payload = base64.b64encode(g711.encode(pcm[start : start + FRAME], "pcmu")).decode()
        call.receive(envelope("media", track="inbound", payload=payload), start / RATE_HZ)
    call.receive(envelope("dtmf", track="inbound_track", digit="5"), 0.4)
    assert ear.keys == ["5"]
    assert ear.samples == pcm.size
    assert np.abs(np.concatenate(ear.pcm)).max() < 50


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
events = st.sampled_from(["connected", "start", "media", "dtmf", "mark", "stop", "other"])


@settings(max_examples=100, deadline=None)
@given(event=events, body=json_values, beside=st.dictionaries(st.text(max_size=12), json_values, max_size=3))
def test_whatever_comes_is_read_or_refused_and_nothing_else(event: str, body: Any, beside: Any) -> None:
    text = json.dumps({**beside, "event": event, event: body})
    try:
        messages.parse(text)
    except ProtocolError:
        pass
    call, _ = a_call()
    try:
        call.receive(text, 0.0)
    except StreamError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(data: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        messages.parse(data)
    text = frame("20")
    cut = random.Random(len(data)).randrange(len(text))
    with pytest.raises(ProtocolError):
        messages.parse(text[:cut])


def test_lone_surrogates_in_a_text_are_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.parse('{"event":"\ud800"}')


# ---------------------------------------------------------------- what goes out


def test_what_is_sent_reads_as_json_whatever_the_names() -> None:
    for text in (
        messages.mark(STREAM, 'a"\\\n'),
        messages.clear(STREAM),
        messages.media(STREAM, b"\xff" * FRAME),
    ):
        assert json.loads(text)["streamSid"] == STREAM
    assert json.loads(messages.mark(STREAM, 'a"\\\n'))["mark"]["name"] == 'a"\\\n'
    media = messages.parse(messages.media(STREAM, b"\xff" * FRAME))
    assert media == Media(STREAM, "inbound", b"\xff" * FRAME)


def test_clear_goes_before_audio_that_waits_and_takes_it_away() -> None:
    async def main() -> list[str]:
        call, _ = a_call()
        for _ in range(10):
            await call.send_audio(speak(0.04, rate=RATE_HZ), "first")
        call.clear_audio()
        await call.send_audio(speak(0.04, rate=RATE_HZ), "second")
        written: list[str] = []

        async def send(text: str) -> None:
            written.append(json.loads(text)["event"])

        writing = asyncio.create_task(call.outgoing.write(send))
        await asyncio.sleep(0.1)
        call.outgoing.close()
        await writing
        return [event for event in written if event != "mark"]

    assert run_virtual(main()) == ["clear", "media"]


def test_a_peer_that_stops_reading_is_given_up_and_little_waits_for_it() -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6))
        agent = make_agent([ONE_TO_FORTY * 3])
        async with phone(agent, peer) as it:
            await it.to(3.0)
            it.writing.cancel()
            await it.to(3.5)
            for _ in range(1_200):
                await it.to(peer.now_s + 0.02)
                assert it.call.outgoing.audio_s <= AHEAD_S
                if it.session.ended:
                    break
                try:
                    it.call.check(asyncio.get_running_loop().time())
                except StreamError as error:
                    assert error.reason == "slow_client"
                    break
            else:
                pytest.fail("the call went on")
            assert peer.now_s <= 3.5 + Limits().send_stall_s + 3.0

    run_virtual(main())


def test_a_peer_that_plays_nothing_is_noticed() -> None:
    async def main() -> None:
        peer = caller((0.5, 0.6), plays=False)
        async with phone(make_agent([ONE_TO_FORTY]), peer) as it:
            now = asyncio.get_running_loop().time
            await it.to(9.0)
            it.call.check(now())
            assert sum(peer.sizes) <= (AHEAD_S + 0.05) * RATE_HZ  # nothing was heard, so nothing more is sent
            await it.to(13.0)
            with pytest.raises(StreamError, match="no mark"):
                it.call.check(now())

    run_virtual(main())


def test_a_call_whose_session_is_over_takes_what_still_comes() -> None:
    async def main() -> None:
        peer = caller()
        async with phone(make_agent(), peer) as it:
            await it.to(0.5)
            it.session.hang_up()
            await it.to(1.0)
            it.call.receive(envelope("dtmf", track="inbound_track", digit="5"), 1.0)
            it.call.receive(peer.stop(), 1.0)
            assert it.call.stopped
            assert [event.reason for event in it.of(SessionEnded)] == ["closed"]

    run_virtual(main())


# ---------------------------------------------------------------- the position by itself


def test_between_marks_the_ear_goes_with_the_clock_and_never_past_the_next_mark() -> None:
    at = MarkedPosition(RATE_HZ)
    first = at.sending("r", 0.0)
    marks = [at.sent_more(320, 0.0) for _ in range(6)]
    assert first is not None and [mark is not None for mark in marks] == [False, False, True] * 2
    assert at.position(5.0) == 0  # the first mark is not back: nothing was heard yet
    at.came_back(first, 0.1)
    assert at.position(0.15) == 400
    assert at.position(9.0) == 960
    at.came_back(marks[2] or "", 0.24)
    assert at.position(0.24) == 960 and at.position(0.29) == 1_360
    at.came_back(marks[5] or "", 0.36)
    assert at.position(9.0) == at.sent == 1_920


def test_a_mark_that_went_missing_is_made_up_for_by_the_next() -> None:
    at = MarkedPosition(RATE_HZ)
    at.sending("r", 0.0)
    for _ in range(6):
        mark = at.sent_more(320, 0.0)
    assert mark is not None
    at.came_back(mark, 0.5)
    assert at.position(0.5) == 1_920 and at.overdue_s(99.0) == 0.0


def test_marks_of_cleared_audio_and_marks_nobody_asked_for_say_nothing() -> None:
    at = MarkedPosition(RATE_HZ)
    old = at.sending("r", 0.0)
    cleared = at.sent_more(1_600, 0.0)
    at.came_back(old or "", 0.05)
    at.cleared()
    assert at.response_id is None
    new = at.sending("s", 0.3)
    at.sent_more(1_600, 0.3)
    for name in (cleared, "s/99999/1", "", old):
        at.came_back(name or "", 0.4)
    assert at.position(0.5) == 0 and at.stale == 4
    at.came_back(new or "", 0.5)
    assert at.position(0.55) == 400


def test_after_a_gap_the_clock_starts_with_the_audio_not_before() -> None:
    at = MarkedPosition(RATE_HZ)
    at.came_back(at.sending("r", 0.0) or "", 0.05)
    end = at.sent_more(800, 0.0, last=True)
    at.came_back(end or "", 0.2)
    again = at.sending("r", 3.0)  # the synthesiser was slow
    assert again is not None
    at.sent_more(1_600, 3.0)
    assert at.position(3.05) == 800
    at.came_back(again, 3.05)
    assert at.position(3.10) == 1_200

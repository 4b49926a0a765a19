"""What a caller does and hears: against a scripted server in virtual time, and its ear alone."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadtest.caller import Caller
from loadtest.light_socket import OnText, endpoint
from loadtest.listening import RATE_HZ, Ear
from loadtest.network import Link, Sips
from loadtest.pacer import Pacer
from loadtest.scenario import HangUp, Interject, Network, Scenario, SlowReader, Spread
from loadtest.setting import Setting
from loadtest.stubs import ident_of, voice_heard, voice_of
from loadtest.tally import Tally, percentile
from loadtest.utterances import lines_of
from voice.errors import BadRequest, Overloaded
from voice.interfaces import Pcm16
from voice.testing import run_virtual, silence, speak

SESSION = "load-7"
TONE = voice_of(SESSION)
LINES = lines_of([speak(1.0, rate=RATE_HZ)], [speak(0.3, rate=RATE_HZ)], 20)


def sound(seconds: float, answer: int = 1, sentence: int = 0, voice: int = TONE) -> Pcm16:
    """A piece of the stub voice, as ``loadtest.stubs`` describes it."""
    loud, half = 2000 + (answer * 10 + sentence) * 10, 20 + voice
    wave = np.where((np.arange(round(seconds * RATE_HZ)) // half) % 2 == 0, loud, -loud)
    return wave.astype(np.int16)


def test_the_sound_is_that_of_the_stubs() -> None:
    assert voice_heard(sound(0.04, 7, 3)) == TONE and ident_of(sound(0.04, 7, 3)) == (7, 3)


# ---------------------------------------------------------------- the ear


def test_the_first_audible_sample_is_received_at_once_and_played_when_the_buffer_is_full() -> None:
    ear = Ear()
    assert ear.audio(10.0, "r", np.concatenate([silence(0.02, RATE_HZ), sound(0.02)])) is not None
    answer = ear.answer
    assert answer is not None and answer.received_s == 10.0 and answer.played_s is None
    assert ear.audio(10.05, "r", sound(0.04)) is None
    assert answer.played_s == pytest.approx(10.05 + 0.02)  # the silence is played first
    assert ear.ends_s() == pytest.approx(10.05 + 0.08)


def test_silence_is_no_answer_yet() -> None:
    ear = Ear()
    assert ear.audio(1.0, "r", silence(0.5, RATE_HZ)) is None
    assert ear.audio(1.2, "r", sound(0.04)) is not None
    assert ear.answer is not None and ear.answer.played_s == pytest.approx(1.5)


def test_an_answer_shorter_than_the_buffer_is_played_when_it_is_complete() -> None:
    ear = Ear()
    ear.audio(1.0, "r", sound(0.04))
    ear.made(1.3, "r")
    assert ear.answer is not None and ear.answer.played_s == pytest.approx(1.3)
    assert not ear.over(1.33) and ear.over(1.35)


def test_audio_that_comes_too_late_is_a_gap_as_long_as_the_silence() -> None:
    ear = Ear(TONE)
    ear.audio(1.0, "r", sound(0.1))  # until 1.1
    ear.audio(1.25, "r", sound(0.04))  # too little to go on
    assert not ear.gaps
    ear.audio(1.30, "r", sound(0.04))
    (gap,) = ear.gaps
    assert gap.seconds == pytest.approx(0.2) and gap.inside_sentence
    ear.audio(1.5, "r", sound(0.1, sentence=1))
    assert [one.inside_sentence for one in ear.gaps] == [True, False]


def test_audio_in_time_and_between_answers_leaves_no_gap() -> None:
    ear = Ear(TONE)
    for number in range(10):
        ear.audio(1.0 + 0.04 * number, "r", sound(0.04))
    ear.made(1.4, "r")
    ear.audio(9.0, "s", sound(0.1, answer=2))
    assert not ear.gaps


def test_a_cut_ends_the_sound_and_what_comes_later_is_stale() -> None:
    ear = Ear(TONE)
    ear.audio(1.0, "r", sound(1.0))
    assert ear.cut(1.4) == pytest.approx(1.4)
    assert not ear.playing(1.41)
    ear.audio(1.42, "r", sound(0.04))
    ear.audio(1.46, "s", sound(0.04))  # the old answer under a new name
    assert ear.stale_s == pytest.approx(0.08)
    assert ear.audio(2.0, "t", sound(0.04, answer=2)) is not None
    assert ear.stale_s == pytest.approx(0.08)


def test_a_cut_answers_number_belongs_to_a_new_answer_when_it_has_come_round() -> None:
    ear = Ear(TONE)
    ear.audio(1.0, "r0", sound(0.5, answer=0))
    ear.cut(1.2)
    for number in range(1, 26):
        ear.audio(number * 2.0, f"r{number}", sound(0.5, answer=number))
    begun = ear.audio(60.0, "r26", sound(0.5, answer=0))
    assert begun is not None and begun.number == 0
    assert ear.stale_s == 0


def test_a_cut_of_nothing_is_none() -> None:
    ear = Ear()
    assert ear.cut(1.0) is None
    ear.audio(2.0, "r", sound(0.1))
    ear.made(2.0, "r")
    assert ear.cut(3.0) is None  # it was over


def test_another_callers_voice_is_noticed() -> None:
    ear = Ear(TONE)
    ear.audio(1.0, "r", sound(0.04))
    assert ear.wrong_voice == 0
    ear.audio(1.04, "r", sound(0.04, voice=TONE + 1))
    assert ear.wrong_voice == 1


# ---------------------------------------------------------------- a scripted server


class Server:
    """Answers each utterance of a caller after a set time, in virtual time.

    Args:
        answer_s: From the end of speech to the answer; ``None``: never.
        answer_length_s: How long the answer is.
        hears: Tells of the user's speech at its first sound.
        stale: Sends a piece of the old answer after that.
        refuse: Takes no calls.
        close_after_s: Ends each call so long after it began.
    """

    def __init__(
        self,
        *,
        answer_s: float | None = 0.5,
        answer_length_s: float = 2.0,
        hears: bool = True,
        stale: bool = False,
        refuse: bool = False,
        close_after_s: float | None = None,
    ) -> None:
        self.answer_s, self.answer_length_s, self.hears, self.stale = answer_s, answer_length_s, hears, stale
        self.refuse, self.close_after_s = refuse, close_after_s
        self.calls: list[Call] = []

    async def dial(self, url: str, token: str | None, on_text: OnText) -> Call:
        await asyncio.sleep(0.01)
        if self.refuse:
            raise Overloaded("full", 5.0)
        call = Call(self, on_text)
        self.calls.append(call)
        return call


class Call:
    """One caller's connection, and the server behind it."""

    def __init__(self, server: Server, on_text: OnText) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str | None] = self._loop.create_future()
        self.link: tuple[Link, Link] | None = None
        self.sips: Sips | None = None
        self.sent_at: list[float] = []
        self._server, self._on_text = server, on_text
        self._spoke_at: float | None = None
        self._answers = 0
        self._response = ""
        self._audio: list[asyncio.TimerHandle] = []
        self._loop.call_soon(self.tell, "session.created", {"session": {"id": SESSION}})
        if server.close_after_s is not None:
            self._loop.call_later(server.close_after_s, self.end, "closed with 1011")

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        if not self.closed.done():
            self._on_text(json.dumps({"type": kind, **fields}).encode(), self._loop.time())

    def send(self, frame: bytes) -> None:
        now = self._loop.time()
        self.sent_at.append(now)
        speaks = frame in SPEECH
        if speaks and self._spoke_at is None:
            self._begins()
        if speaks:
            self._spoke_at = now
        elif self._spoke_at is not None:
            self._spoke_at = None
            self._answer(now)

    def _begins(self) -> None:
        if not self._server.hears:
            return
        self.tell("input_audio_buffer.speech_started", {"item_id": "i", "audio_start_ms": 0})
        for piece in self._audio:
            piece.cancel()
        if self._response and self._server.stale:
            self._piece(self._response, 1)

    def _answer(self, now: float) -> None:
        if self._server.answer_s is None:
            return
        self._answers += 1
        self._response = name = f"resp-{self._answers}"
        self._loop.call_soon(self.tell, "response.created", {"response": {"id": name}})
        count = round(self._server.answer_length_s / 0.04)
        for number in range(count):
            at = now - 0.02 + self._server.answer_s + 0.04 * number
            self._audio.append(self._loop.call_at(at, self._piece, name, self._answers))
        ends = now + self._server.answer_s + self._server.answer_length_s
        done = {"response": {"id": name, "status": "completed"}}
        self._audio.append(self._loop.call_at(ends, self.tell, "response.done", done))

    def _piece(self, name: str, answer: int) -> None:
        audio = b64encode(sound(0.04, answer=answer).tobytes()).decode()
        self.tell("response.output_audio.delta", {"response_id": name, "item_id": "x", "delta": audio})

    def hang_up(self, *, rudely: bool = False) -> None:
        self.end("the connection broke" if rudely else None)

    def end(self, reason: str | None) -> None:
        for piece in self._audio:
            piece.cancel()
        if not self.closed.done():
            self.closed.set_result(reason)


SPEECH = frozenset(LINES.utterances[0].frames + LINES.nods[0].frames)
PLAIN = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(0.0), ramp_s=0.0)


def hold(server: Server, scenario: Scenario = PLAIN, seconds: float = 12.0) -> Tally:
    """What one caller hears in that time."""

    async def main() -> Tally:
        tally = Tally(asyncio.get_running_loop().time())
        pacer = Pacer(0.02)
        caller = Caller(0, Setting("ws://x", None, scenario, LINES, True, pacer, server.dial), tally, seed=5)
        pacer.start()
        running = asyncio.create_task(caller.run())
        await asyncio.sleep(seconds)
        caller.leave()
        await running
        pacer.stop()
        return tally

    return run_virtual(main())


def test_answers_are_timed_from_the_last_sample_of_speech() -> None:
    tally = hold(Server(answer_s=0.5))
    assert len(tally.turns) == 3  # 0.5 s of thought, 1 s of speech, 0.5 s of waiting, 2 s of answer
    assert [turn.received_s for turn in tally.turns] == pytest.approx([0.5] * 3, abs=1e-3)
    assert [turn.played_s for turn in tally.turns] == pytest.approx([0.54] * 3, abs=1e-3)
    assert not tally.gaps and not tally.errors
    assert tally.counts == {"calls": 1}


def test_frames_leave_every_20_ms_while_nobody_speaks_too() -> None:
    server = Server()
    hold(server, seconds=4.0)
    sent = server.calls[0].sent_at
    assert len(sent) == pytest.approx(199, abs=2)
    assert np.diff(sent) == pytest.approx(0.02, abs=1e-6)


def test_a_turn_without_an_answer_is_unanswered_and_the_caller_goes_on() -> None:
    tally = hold(Server(answer_s=None), seconds=30.0)
    assert not tally.turns
    assert tally.counts["unanswered"] == 2


def test_an_answer_to_an_earlier_turn_is_none_to_this_one() -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(0.0), answer_s=1.0)
    tally = hold(Server(answer_s=3.0, hears=False), scenario, seconds=8.0)
    assert not tally.turns
    assert tally.counts["late_answers"] == 1 and tally.counts["unanswered"] >= 1


def test_a_barge_in_is_timed_from_its_first_sample_to_the_silence() -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(1.0, 1.0, 1.0), ramp_s=0.0)
    tally = hold(Server(), scenario)
    assert len(tally.barge_ins) >= 3
    assert [one.seconds for one in tally.barge_ins] == pytest.approx([0.02] * len(tally.barge_ins), abs=1e-3)
    assert tally.turns[1].after_barge_in and not tally.turns[0].after_barge_in
    assert not tally.counts["stale"] and not tally.counts["missed_barge_ins"]


def test_old_audio_after_a_barge_in_is_stale() -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(1.0, 1.0, 1.0), ramp_s=0.0)
    tally = hold(Server(stale=True), scenario)
    assert tally.counts["stale"] and tally.stale_s >= 0.04


def test_a_server_that_does_not_fall_silent_has_missed_the_barge_in() -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(1.0, 0.2, 0.2), ramp_s=0.0)
    tally = hold(Server(hears=False, answer_length_s=6.0), scenario, seconds=5.0)
    assert not tally.barge_ins
    assert tally.counts["missed_barge_ins"] == 1


def test_a_nod_that_silences_the_agent_is_counted() -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(0), backchannel=Interject(1.0, 0.5, 0.5))
    tally = hold(Server(), scenario, seconds=5.0)
    assert tally.counts["nods"] == 1 and tally.counts["cut_by_nod"] == 1


@pytest.mark.parametrize("when", ["speaking", "waiting", "listening"])
def test_callers_hang_up_and_call_again(when: Any) -> None:
    scenario = Scenario(think=Spread(0.5, 0.5), barge_in=Interject(0.0), hang_up=HangUp(1.0, when, 1.0))
    server = Server()
    tally = hold(server, scenario)
    assert tally.counts["hang_ups"] >= 3
    assert tally.counts["calls"] == len(server.calls) >= tally.counts["hang_ups"]
    assert not tally.counts["lost"] and not tally.errors


def test_a_call_that_the_server_ends_is_lost_and_made_again() -> None:
    tally = hold(Server(close_after_s=3.0))
    assert tally.counts["lost"] == 2 and tally.counts["calls"] == 3
    assert tally.errors == {"the server ended the call: closed with 1011": 2}


def test_a_refusal_is_timed_and_no_error() -> None:
    tally = hold(Server(refuse=True))
    assert [one.seconds for one in tally.refusals] == pytest.approx([0.01] * len(tally.refusals))
    assert tally.refusals and not tally.errors and not tally.counts["failed_calls"]


def test_what_slow_readers_hear_is_not_noted_and_the_network_is_between() -> None:
    server = Server()
    tally = hold(server, Scenario(slow_reader=SlowReader(1.0, 5000), network=Network(delay_ms=50)))
    assert not tally.turns and not tally.gaps
    assert server.calls[0].sips is not None and server.calls[0].link is not None


@pytest.mark.parametrize(
    "event",
    [
        '{"type": "session.created", "session": null}',
        "[" * 100_000,
        '{"type": "response.audio.delta", "response_id": "r", "delta": "A"}',
        '{"type": "error", "error": "no"}',
    ],
)
def test_an_event_that_makes_no_sense_is_an_error_and_the_caller_goes_on(event: str) -> None:
    server = Server()

    async def dial(url: str, token: str | None, on_text: OnText) -> Call:
        call = await Server.dial(server, url, token, on_text)
        on_text(event.encode(), 0.0)
        return call

    server.dial = dial  # type: ignore[method-assign]
    tally = hold(server, seconds=5.0)
    assert tally.turns and any("that the protocol does not have" in error for error in tally.errors)


# ---------------------------------------------------------------- small parts


def test_the_pacer_keeps_its_grid_and_spreads_callers_over_a_frame() -> None:
    async def main() -> list[tuple[int, float, float]]:
        loop, seen = asyncio.get_running_loop(), []
        pacer = Pacer(0.02)

        def tick(number: int) -> Callable[[float], None]:
            return lambda due: seen.append((number, due, loop.time()))

        for number in range(4):
            pacer.add(tick(number), number)
        pacer.start()
        await asyncio.sleep(1.0)
        pacer.stop()
        return seen

    seen = run_virtual(main())
    for number in range(4):
        due = [at for who, at, _ in seen if who == number]
        assert len(due) == 50 - (number > 0) or len(due) == 50
        assert np.diff(due) == pytest.approx(0.02)
    assert len({round(at % 0.02, 4) for _, at, _ in seen}) == 4
    assert all(at >= due - 1e-9 for _, due, at in seen)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/realtime?model=voice"),
        ("wss://a.example.org/openai/v1/realtime?model=m", "wss://a.example.org/openai/v1/realtime?model=m"),
        ("ws://h/base/", "ws://h/base/v1/realtime?model=voice"),
    ],
)
def test_a_server_is_reached_by_its_address_or_its_endpoint(url: str, address: str) -> None:
    assert endpoint(url) == address


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://h/x", "ws://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="is not the address of a server"):
        endpoint(url)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (
        percentile(values, 0.5) == 50.0
        and percentile(values, 0.95) == 95.0
        and percentile(values, 1.0) == 100.0
    )
    assert percentile([], 0.5) is None and percentile([3.0], 0.99) == 3.0


def test_errors_are_counted_by_kind_and_their_number_is_bounded() -> None:
    tally = Tally(0.0)
    for number in range(500):
        tally.error(f"kind {number}")
    tally.error("kind 3")
    assert tally.errors["kind 3"] == 2 and tally.errors["other errors"] == 400 and len(tally.errors) == 101

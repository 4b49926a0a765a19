"""What does one caller do? Speaks, waits, listens, interrupts, nods and hangs up as the scenario has it, and notes
what it hears.

It is light, so that hundreds fit into a process: no task but that of the call, no timer of its own, and audio that was
encoded before. It uses what every server of the Realtime protocol has.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from loadtest.light_socket import RETRY_S, masked
from loadtest.listening import Answer, Ear
from loadtest.network import Link, Sips
from loadtest.scenario import Moment
from loadtest.setting import Connection, Setting
from loadtest.stubs import voice_of
from loadtest.tally import At, GapHeard, Tally, TurnHeard
from loadtest.utterances import Utterance
from voice.errors import Overloaded, VoiceError

CREATED_S = 10.0
"""Longest wait for ``session.created``."""
FAILED_S = 2.0
"""Until the next call after one that failed."""
_MOST_BEGUN = 16
_HEAD_BYTES = 512
_DELTA, _BETA_DELTA = b'"response.output_audio.delta"', b'"response.audio.delta"'
_RESPONSE_ID = re.compile(rb'"response_id"\s*:\s*"([^"]*)"')
_AUDIO = re.compile(rb'"delta"\s*:\s*"([^"]*)"')
_BUSY = "closed with 1013"


class Doing(Enum):
    """What a caller does now."""

    THINKING = "thinking"
    SPEAKING = "speaking"
    WAITING = "waiting"
    LISTENING = "listening"


@dataclass(slots=True)
class _Turn:
    """What was drawn for a turn, and what came of it."""

    hang_up: Moment | None
    barge_in_s: float | None  # after the answer's first sound
    nod_s: float | None
    old: Answer | None = None  # what this turn speaks over
    began_s: float = 0.0
    ended_s: float = 0.0
    answer: Answer | None = None  # heard, and not yet noted
    silenced: bool = False


class Caller:
    """One of many.

    Args:
        number: 0, 1, …: its phase on the grid, and part of its seed.
        setting: What all share.
        tally: Takes what it hears. May be replaced while it runs.
        seed: Of all that is drawn.

    Attributes:
        connected: It is in a conversation.
        slow: It reads slowly; what it hears is not noted.
    """

    def __init__(self, number: int, setting: Setting, tally: Tally, seed: int) -> None:
        self.number, self.setting, self.tally = number, setting, tally
        self.connected = False
        self._rng = random.Random(f"{seed}-{number}")
        self.slow = self._rng.random() < setting.scenario.slow_reader.share
        self._leaving = asyncio.Event()
        self._socket: Connection | None = None
        self._created: asyncio.Future[None] | None = None
        self._hung_up = False
        self._busy = False  # the server said so before it closed
        self._ear = Ear()
        self._begun: dict[str, float] = {}  # when the last responses were begun
        self._doing = Doing.THINKING
        self._until_s = 0.0
        self._saying: Utterance | None = None
        self._at = 0
        self._quiet = number
        self._turn = self._draw()

    # ------------------------------------------------------------ calls

    async def run(self) -> None:
        """Call, and call again, until told to leave."""
        while not self._leaving.is_set():
            pause_s = await self._call()
            try:
                async with asyncio.timeout(pause_s):
                    await self._leaving.wait()
            except TimeoutError:
                pass

    def leave(self) -> None:
        """Hang up in order and don't call again."""
        self._leaving.set()
        self._hung_up = True
        if self._socket is not None:
            self._socket.hang_up()

    async def _call(self) -> float:
        """One conversation; returns how long to wait before the next."""
        loop, scenario, tally = asyncio.get_running_loop(), self.setting.scenario, self.tally
        tally.counts["calls"] += 1
        began_s = loop.time()
        self._hung_up = self._leaving.is_set()
        self._busy = False
        self._created = created = loop.create_future()
        try:
            async with asyncio.timeout(CREATED_S):
                self._socket = socket = await self.setting.dial(
                    self.setting.url, self.setting.token, self._on_text
                )
                self._arrange(socket)
                await asyncio.wait({created, socket.closed}, return_when=asyncio.FIRST_COMPLETED)
        except Overloaded:
            tally.refusals.append(self._took(began_s))
            return RETRY_S * self._rng.uniform(0.5, 1.5)
        except (VoiceError, TimeoutError) as error:
            if self._socket is not None:
                self._socket.hang_up(rudely=True)
            tally.counts["failed_calls"] += 1
            tally.error(f"call: {error or 'no session.created came'}")
            return FAILED_S
        try:
            if not created.done():
                return self._turned_away(socket.closed.result(), began_s)
            tally.connects.append(self._took(began_s))
            await self._converse(socket)
        finally:
            self._socket = None
            socket.hang_up(rudely=True)
        return scenario.hang_up.again_after_s if self._hung_up else FAILED_S

    def _arrange(self, socket: Connection) -> None:
        """What lies between this caller and the server."""
        scenario = self.setting.scenario
        if self.slow:
            socket.sips = Sips(scenario.slow_reader.bytes_per_s)
        if not scenario.network.perfect:
            socket.link = Link(scenario.network, self._rng), Link(scenario.network, self._rng)

    def _turned_away(self, reason: str | None, began_s: float) -> float:
        if self._busy or (reason or "").startswith(_BUSY):
            self.tally.refusals.append(self._took(began_s))
            return RETRY_S * self._rng.uniform(0.5, 1.5)
        self.tally.counts["failed_calls"] += 1
        self.tally.error(f"call: {reason or 'closed before session.created'}")
        return FAILED_S

    async def _converse(self, socket: Connection) -> None:
        pacer = self.setting.pacer
        if self.setting.scenario.session:
            session = {"type": "realtime", **self.setting.scenario.session}
            socket.send(masked(json.dumps({"type": "session.update", "session": session})))
        self._think(asyncio.get_running_loop().time())
        self.connected = True
        pacer.add(self._tick, self.number)
        try:
            reason = await socket.closed
        finally:
            self.connected = False
            pacer.remove(self._tick)
            self._note_ear()
        if not self._hung_up:
            self.tally.counts["slow_lost" if self.slow else "lost"] += 1
            self.tally.error(f"the server ended the call: {reason or 'in order'}")

    def _took(self, began_s: float) -> At:
        now_s = asyncio.get_running_loop().time()
        return At(began_s - self.tally.began_s, now_s - began_s)

    # ------------------------------------------------------------ what it says

    def _tick(self, due_s: float) -> None:
        """The frame that is complete at ``due_s`` is sent."""
        self._decide(due_s - self.setting.pacer.frame_s)
        socket, lines = self._socket, self.setting.lines
        if socket is None or self._hung_up:
            return
        if self._saying is None:
            self._quiet += 1
            socket.send(lines.quiet[self._quiet % len(lines.quiet)])
            return
        socket.send(self._saying.frames[self._at])
        self._at += 1
        if self._at == len(self._saying.frames):
            self._saying = None
            if self._doing is Doing.SPEAKING:
                self._said(due_s)

    def _decide(self, now_s: float) -> None:
        """What to do in the frame that begins."""
        ear, turn = self._ear, self._turn
        match self._doing:
            case Doing.THINKING:
                if ear.playing(now_s):
                    self._listen()
                elif now_s >= self._until_s:
                    self._speak(now_s, None)
            case Doing.SPEAKING:
                if turn.hang_up == "speaking" and now_s - turn.began_s > 0.5:
                    self._drop()
            case Doing.WAITING:
                if turn.hang_up == "waiting" and now_s - turn.ended_s > 0.3:
                    self._drop()
                elif now_s >= self._until_s:
                    self._count("unanswered")
                    self._think(now_s)
            case Doing.LISTENING:
                self._follow(now_s)

    def _follow(self, now_s: float) -> None:
        """Listen to an answer, to its end or until something is to be said."""
        ear, turn, listen_s = self._ear, self._turn, self.setting.scenario.listen_s
        answer = ear.answer
        if ear.over(now_s) or answer is None:
            self._think(max(now_s, ear.ends_s()))
            return
        heard_s = 0.0 if answer.played_s is None else now_s - answer.played_s
        if turn.hang_up == "listening" and heard_s > 0.5:
            self._drop()
        elif any(after_s is not None and heard_s >= after_s for after_s in (turn.barge_in_s, listen_s)):
            self._speak(now_s, answer)
        elif turn.nod_s is not None and heard_s >= turn.nod_s and self._saying is None:
            turn.nod_s = None
            self._count("nods")
            self._saying, self._at = self._rng.choice(self.setting.lines.nods), 0

    def _speak(self, now_s: float, over: Answer | None) -> None:
        self._note_ear()
        self._turn = self._draw()
        self._turn.old, self._turn.began_s = over, now_s
        self._saying, self._at = self._rng.choice(self.setting.lines.utterances), 0
        self._doing = Doing.SPEAKING

    def _said(self, due_s: float) -> None:
        """The last sample of speech was sent."""
        turn, answer = self._turn, self._ear.answer
        turn.ended_s = due_s
        self._until_s = due_s + self.setting.scenario.answer_s
        if turn.old is not None and turn.old is answer and not turn.silenced and self._ear.playing(due_s):
            self._count("missed_barge_ins")  # it still speaks when the caller has spoken
        early = answer is not None and answer is not turn.old and not self._ear.over(due_s)
        self._doing = Doing.LISTENING if early else Doing.WAITING

    def _think(self, now_s: float) -> None:
        self._note_ear()
        self._turn = self._draw()
        self._doing = Doing.THINKING
        self._until_s = now_s + self.setting.scenario.think.draw(self._rng)

    def _listen(self) -> None:
        """To something that was not asked for: a greeting, a reminder."""
        self._count("unasked")
        self._doing = Doing.LISTENING

    def _drop(self) -> None:
        self._count("hang_ups")
        self._hung_up = True
        if self._socket is not None:
            self._socket.hang_up(rudely=True)

    def _draw(self) -> _Turn:
        scenario, rng = self.setting.scenario, self._rng
        return _Turn(scenario.hang_up.draw(rng), scenario.barge_in.draw(rng), scenario.backchannel.draw(rng))

    # ------------------------------------------------------------ what it hears

    def _on_text(self, data: bytes, at_s: float) -> None:
        """An event. Audio, nearly all of them, is not parsed as JSON."""
        head = data[:_HEAD_BYTES]
        try:
            if _DELTA in head or _BETA_DELTA in head:
                response, audio = _RESPONSE_ID.search(data), _AUDIO.search(data)
                if response is not None and audio is not None:
                    self._hear(at_s, response[1].decode(), audio[1])
                    return
            event = json.loads(data)
            self._on_event(event["type"], event, at_s)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.tally.error(f"an event that the protocol does not have: {type(error).__name__} {error}")

    def _on_event(self, kind: str, event: Mapping[str, Any], at_s: float) -> None:
        match kind:
            case "session.created":
                session_id = str(event["session"].get("id", ""))
                self._ear = Ear(voice_of(session_id) if self.setting.stub_tones else None)
                if self._created is not None and not self._created.done():
                    self._created.set_result(None)
            case "input_audio_buffer.speech_started":
                self._silenced(at_s)
            case "response.created":
                self._begun[str(event["response"].get("id", ""))] = at_s
                if len(self._begun) > _MOST_BEGUN:
                    del self._begun[next(iter(self._begun))]
            case "response.output_audio.delta" | "response.audio.delta":
                self._hear(at_s, event["response_id"], event["delta"])
            case "response.output_audio.done" | "response.audio.done":
                self._ear.made(at_s, event["response_id"])
                self._note_turn()
            case "response.done":
                self._done(at_s, event["response"])
            case "error":
                error = event["error"]
                code = error.get("code") or error.get("type") or ""
                self._busy = self._busy or (self._created is not None and not self._created.done())
                if not self._busy:
                    self._count("server_errors")
                    self.tally.error(f"error {code}: {error.get('message', '')}")
            case _:
                pass

    def _hear(self, at_s: float, response_id: str, audio: bytes | str) -> None:
        pcm = np.frombuffer(b64decode(audio), "<i2")
        begun = self._ear.audio(at_s, response_id, pcm)
        if begun is not None:
            if self._doing is Doing.WAITING:
                self._doing = Doing.LISTENING
                if self._begun.get(response_id, self._turn.ended_s) < self._turn.ended_s:
                    self._count("late_answers")  # to something said before
                else:
                    self._turn.answer = begun
            elif self._doing is Doing.SPEAKING and begun is not self._turn.old:
                self._count("cut_offs")
        self._note_turn()
        if self._ear.gaps:
            self._note_gaps(at_s)

    def _silenced(self, at_s: float) -> None:
        """The server says that the caller speaks: a client drops what it has not played."""
        silent_s = self._ear.cut(at_s)
        turn = self._turn
        if silent_s is None:
            return
        if self._doing is Doing.SPEAKING or (self._doing is Doing.WAITING and turn.old is not None):
            if turn.old is self._ear.answer and not turn.silenced:
                turn.silenced = True
                if silent_s >= turn.began_s and not self.slow:
                    self.tally.barge_ins.append(At(at_s - self.tally.began_s, silent_s - turn.began_s))
        elif self._doing is Doing.LISTENING:
            self._count("cut_by_nod")

    def _done(self, at_s: float, response: Mapping[str, Any]) -> None:
        self._ear.made(at_s, str(response.get("id", "")))
        self._note_turn()
        if response.get("status") in ("failed", "incomplete"):
            details = response.get("status_details") or {}
            error = details.get("error") or {}
            self._count("failed_answers")
            self.tally.error(
                f"answer {response['status']}: {error.get('message') or details.get('reason', '')}"
            )

    # ------------------------------------------------------------ notes

    def _note_turn(self) -> None:
        """An answer whose first sound is played is noted."""
        turn = self._turn
        answer = turn.answer
        if answer is None or answer.played_s is None or answer.received_s is None:
            return
        turn.answer = None
        if not self.slow:
            at_s = turn.ended_s - self.tally.began_s
            received_s, played_s = answer.received_s - turn.ended_s, answer.played_s - turn.ended_s
            self.tally.turns.append(TurnHeard(at_s, received_s, played_s, turn.old is not None))

    def _note_gaps(self, at_s: float) -> None:
        gaps, self._ear.gaps = self._ear.gaps, []
        if self.slow:
            return
        if self._doing is Doing.SPEAKING or self._saying is not None:
            self._count("pauses_for_the_caller")  # the server held its voice while it listened
            return
        for gap in gaps:
            self.tally.gaps.append(GapHeard(at_s - self.tally.began_s, gap.seconds, gap.inside_sentence))

    def _note_ear(self) -> None:
        """What must never be heard."""
        ear = self._ear
        if ear.wrong_voice:
            self._count("wrong_voice", ear.wrong_voice)
            ear.wrong_voice = 0
        if ear.stale_s:
            self._count("stale")
            self.tally.stale_s += ear.stale_s
            ear.stale_s = 0.0

    def _count(self, what: str, number: int = 1) -> None:
        self.tally.counts[what] += number

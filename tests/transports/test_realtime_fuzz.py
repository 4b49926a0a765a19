"""The Realtime protocol over a real session, with everything at random: whatever happens, what the client receives
is a lawful conversation, nothing is raised or logged as an error, and afterwards a normal turn can be held.

``VOICE_FUZZ_S=600`` runs fresh seeds for so many seconds; ``VOICE_FUZZ_SEED=7`` runs one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import logging
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from clients.order import Order
from fuzz_engines import CALM_REPLY, Engines
from fuzz_messages import Event, Messages
from realtime_talk import RATE_HZ, Client, call

from voice import g711
from voice.chat import UserEntry
from voice.errors import BadRequest, EngineFailed, Overloaded
from voice.testing import check_prompt, run_virtual, speak

SEEDS = 70
ACTIONS = 30
FUZZ_S = float(os.environ.get("VOICE_FUZZ_S", "0"))
ONE_SEED = os.environ.get("VOICE_FUZZ_SEED")
ACKNOWLEDGED = {
    "session.update": "session.updated",
    "input_audio_buffer.commit": "input_audio_buffer.committed",
    "input_audio_buffer.clear": "input_audio_buffer.cleared",
    "conversation.item.create": "conversation.item.added",
    "conversation.item.retrieve": "conversation.item.retrieved",
    "conversation.item.truncate": "conversation.item.truncated",
    "conversation.item.delete": "conversation.item.deleted",
    "response.cancel": "response.done",
}
"""What a client gets at once for an event, unless it gets an error."""
SECRET = "the secret instructions"
_QUIET_S = 400.0


@functools.cache
def sound(kind: str, voice: bool, seconds: float) -> str:
    """Voice or silence in one of the protocol's formats, as base64."""
    rate_hz = RATE_HZ if kind == "audio/pcm" else 8000
    pcm = speak(seconds, rate=rate_hz) if voice else np.zeros(int(seconds * rate_hz), np.int16)
    law = kind.removeprefix("audio/")
    data = pcm.astype("<i2").tobytes() if law == "pcm" else g711.encode(pcm, law)  # type: ignore[arg-type]
    return base64.b64encode(data).decode()


class Everything:
    """Any error code may be provoked."""

    def __contains__(self, code: object) -> bool:
        return True


class Lawful(Order):
    """The order of events, where a client may also clear its audio, delete items and hang up."""

    def __init__(self, client: Client, placed: set[str]) -> None:
        wire = "webrtc" if client.capabilities.playout == "can_pause" else "websocket"
        super().__init__(wire, Everything(), placed)  # type: ignore[arg-type]
        self._client = client
        self._deleted: set[str] = set()
        self._all_words = True
        self._started_at = -1.0

    def take(self, number: int, event: Event) -> None:
        if event["type"] == "conversation.item.added" and str(event["item"]["id"]).startswith("mine"):
            self._forget(event["item"]["id"])
        known = len(self.faults)
        super().take(number, event)
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "message":
            # while a model writes a call, the agent may say that it takes a moment, or that something went wrong
            self.faults[known:] = [f for f in self.faults[known:] if not f.endswith("is still open")]
        kind, now = event["type"], self._client.times[number]
        item_id = event.get("item_id") or event.get("item", {}).get("id")
        if item_id in self._deleted and kind.startswith(("conversation.", "input_audio_buffer.")):
            self._fault(f"{item_id} was deleted")
        if kind == "conversation.item.deleted":
            self._deleted.add(event["item_id"])
        elif kind == "input_audio_buffer.cleared":
            for one in [one for one, stage in self._stage.items() if stage == "speech_started"]:
                del self._stage[one]
            self._speaking = None
        elif kind == "session.updated":
            self._all_words = self._all_words and self._wants_words
        elif kind == "input_audio_buffer.speech_started":
            self._started_at = now
        elif kind == "response.done" and self._input_setting("turn_detection"):
            details = event["response"]["status_details"] or {}
            if details.get("reason") == "turn_detected" and self._started_at != now:
                self._fault("an interruption begins with speech_started")

    def _forget(self, item_id: str) -> None:
        """The client may use an id again whose item it has deleted."""
        if item_id in self._deleted:
            self._deleted.discard(item_id)
            self._done.discard(item_id)
            del self._known[item_id]

    @property
    def _interrupts(self) -> bool:
        return super()._interrupts and (self._session or {}).get("type") == "realtime"

    def finish(self) -> None:
        if self._client.session.ended is not None:
            self._stage.clear()
        self._transcribed |= self._stage.keys() if not self._all_words else self._deleted
        super().finish()


class Troubles(logging.Handler):
    """Everything that is logged as an error, or with an exception nobody scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            error = record.exc_info[1] if record.exc_info else None
            if "as it should be" in str(error) or isinstance(error, asyncio.CancelledError):
                return
            self.seen.append(logging.Formatter().format(record))


@contextlib.contextmanager
def troubles() -> Iterator[list[str]]:
    handler = Troubles()
    loggers = [logging.getLogger(name) for name in ("voice", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.seen
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class Case:
    """One conversation.

    Attributes:
        faults: What was wrong in it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engines = Engines(self.rng)
        self.faults: list[str] = []
        self.done: list[str] = []  # what the client did, for a failure's report
        self._voice_until = 0.0
        self._muted = False
        self._frame_s = 0.1  # of silence; there is much of it
        self._checked = 0

    async def run(self) -> None:
        rng = self.rng
        agent = self.engines.agent()
        kind = "webrtc" if rng.random() < 0.35 else "websocket"
        bound = {"instructions": SECRET} if rng.random() < 0.2 else None
        async with call(agent, kind, extensions=rng.random() < 0.5, bound=bound) as client:
            self.client, self.messages = client, Messages(rng, client)
            self.lawful = Lawful(client, self.messages.placed)
            microphone = asyncio.create_task(self._microphone())
            try:
                for _ in range(rng.randrange(1, ACTIONS)):
                    await self._act()
                    self._check()
                await self._come_to_rest()
            finally:
                microphone.cancel()
            self._check()
            self.lawful.finish()
        self._check()
        if SECRET in json.dumps(self.client.events):
            self._fault("the client was told what it must not know")
        self.faults += self.lawful.faults + self.engines.faults

    # ------------------------------------------------------------ what happens

    async def _microphone(self) -> None:
        loop = asyncio.get_running_loop()
        while self.client.session.ended is None:
            voice = self._voice_until > loop.time()
            seconds = 0.04 if voice else self._frame_s
            if not self._muted:
                audio = sound(self.client.protocol.config.input_type, voice, seconds)
                await self._send({"type": "input_audio_buffer.append", "audio": audio})
            await asyncio.sleep(seconds)

    async def _act(self) -> None:
        rng, now = self.rng, asyncio.get_running_loop().time()
        self._muted = rng.random() < 0.05
        what = rng.random()
        if what < 0.3:
            self._voice_until = now + rng.choice([0.05, 0.2, 0.5, 1.0, 3.0])
            self.done.append(f"{now:.2f} speaks until {self._voice_until:.2f}")
        elif what < 0.7:
            await self._send(self.messages.event(), number=len(self.done))
        elif what < 0.85:
            wrong, before = self.messages.wrong(), len(self.client.events)
            await self._send(wrong, number=len(self.done))
            came = self.client.events[before:]
            added = [e["item"]["id"] for e in came if e["type"] == "conversation.item.added"]
            if (
                wrong.get("type") == "conversation.item.create"
            ):  # it may have lost its id, or got another place
                self.messages.placed.update(added[:1])
        elif what < 0.9:
            await self._send_raw(self.messages.raw())
        elif what < 0.95 and self.client.session.ended is None:
            self._owner_acts()
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 3.0, 9.0]))

    def _owner_acts(self) -> None:
        session = self.client.session
        name, act = self.rng.choice(
            [
                ("hangs up", session.hang_up),
                ("interrupts", session.interrupt),
                ("says something", lambda: session.say("By the way, it rains.")),
                ("writes", lambda: session.send_text("Is it raining?")),
                ("presses a key", lambda: session.press("1")),
            ]
        )
        self.done.append(f"{asyncio.get_running_loop().time():.2f} the owner {name}")
        with contextlib.suppress(BadRequest, Overloaded):
            act()

    async def _send(self, event: Event, *, number: int | None = None) -> None:
        """Send an event and see that it is answered: once, and with its ``event_id`` when it is wrong."""
        kind = event.get("type")
        if number is not None and "event_id" not in event:
            event["event_id"] = f"e{number}"
            self.done.append(f"{asyncio.get_running_loop().time():.2f} {json.dumps(event)[:300]}")
        before = len(self.client.events)
        ended = self.client.session.ended
        await self.client.protocol.receive(json.dumps(event))
        if ended is not None or self.client.session.ended is not None or number is None:
            return
        came = self.client.events[before:]
        errors = [e["error"] for e in came if e["type"] == "error"]
        event_id = event.get("event_id") if "\\ud" not in json.dumps(event) else None  # else it is no JSON
        if len(errors) > 1 or (errors and errors[0]["event_id"] != event_id and isinstance(event_id, str)):
            self._fault(f"{json.dumps(event)[:200]} was answered with {errors}")
        if errors and errors[0]["type"] != "invalid_request_error" and errors[0]["code"] != "overloaded":
            self._fault(f"{json.dumps(event)[:200]} was answered with {errors}")
        if isinstance(kind, str) and kind in ACKNOWLEDGED:
            answers = [e for e in came if e["type"] == ACKNOWLEDGED[kind]]
            if (not answers) == (not errors) and (not errors or kind not in TWICE):
                self._fault(f"{json.dumps(event)[:200]} was answered with {[e['type'] for e in came]}")

    async def _send_raw(self, message: str | bytes) -> None:
        self.done.append(f"{asyncio.get_running_loop().time():.2f} {message[:80]!r}")
        before = len(self.client.of("error"))
        await self.client.protocol.receive(message)
        if len(self.client.of("error")) != before + 1:
            self._fault(f"{message[:80]!r} is no event, and was not answered with an error")

    # ------------------------------------------------------------ what must hold

    def _fault(self, sentence: str) -> None:
        self.faults.append(f"{asyncio.get_running_loop().time():.2f}: {sentence}")

    def _check(self) -> None:
        for number in range(self._checked, len(self.client.events)):
            self.lawful.take(number, self.client.events[number])
        self._checked = len(self.client.events)
        session, narrator = self.client.session, self.client.protocol._narrator
        with contextlib.suppress(EngineFailed):
            prompt = session.chat.prompt()
            if prompt.messages:
                try:
                    check_prompt(prompt)
                except EngineFailed as error:
                    self._fault(str(error))
        if len(narrator._responses) > 8 or len(narrator._requests) > 16 or len(narrator._announced) > 2:
            self._fault("the narrator keeps what is over")

    async def _come_to_rest(self) -> None:
        """Everybody falls silent and every engine works: then a normal turn is held."""
        client, loop = self.client, asyncio.get_running_loop()
        self.engines.calm_down()
        self._muted, self._frame_s = False, 0.2
        await self._send({"type": "session.update", "session": {"type": "realtime", **PLAIN}})
        if client.session.ended is not None:
            return
        end = loop.time() + _QUIET_S
        while client.session.ended is None and (not client.session.is_quiet() or self._something_is_due()):
            if loop.time() > end:
                self._fault(f"it never came to rest: {client.session.state}, {asyncio.all_tasks()}")
                return
            await asyncio.sleep(0.5)
        if client.session.ended is not None:
            return
        self._check()
        self._at_rest()
        before = len(client.events)
        self._frame_s = 0.04
        transcription = client.protocol.config.type == "transcription"
        self._voice_until = loop.time() + 1.0
        self.done.append(f"{loop.time():.2f} the normal turn")
        await asyncio.sleep(8.0)
        kinds = [event["type"] for event in client.events[before:]]
        wanted = "conversation.item.input_audio_transcription.completed" if transcription else "response.done"
        if kinds.count(wanted) != 1:
            self._fault(f"the normal turn did not work: {kinds}")
        elif not transcription:
            (done,) = [e["response"] for e in client.events[before:] if e["type"] == "response.done"]
            said = [item["content"][0]["transcript"] for item in done["output"] if item["type"] == "message"]
            if done["status"] != "completed" or said != [CALM_REPLY]:
                self._fault(f"the normal turn was answered with {done}")

    def _something_is_due(self) -> bool:
        """Keys that wait for more, words for which the next answer would wait, tools that a cut answer left running
        and that get an answer of their own, answers beside the conversation."""
        session = self.client.session
        entries = [entry for entry in session.chat.entries if isinstance(entry, UserEntry)]
        wordless = any(e.recognised is not None and not e.recognised.is_set() for e in entries)
        running = session.tool_scope._children or session._answering._asides
        return wordless or session._keypad.due is not None or bool(running)

    def _at_rest(self) -> None:
        """Nothing of what is over is left."""
        session, narrator = self.client.session, self.client.protocol._narrator
        answering = session._answering
        left = {
            "requests": len(narrator._requests),
            "responses": len([r for r in narrator._responses.values() if not r.done]),
            "announced": len(narrator._announced),
            "cut": narrator._cut,
            "asides": len(answering._asides),
            "waiting": len(answering._waiting),
        }
        if any(left.values()):
            self._fault(f"at rest there is {left}")
        scopes = [
            repr(scope) for scope in session.scope._children.values() if scope is not session.tool_scope
        ]
        if len(scopes) > 1:
            self._fault(f"at rest there are scopes: {scopes}")


TWICE = ("response.cancel", "conversation.item.truncate")
"""Another response may end, or another item be cut, at the same moment."""
PLAIN: dict[str, Any] = {
    "output_modalities": ["audio"],
    "tools": [],
    "tool_choice": "auto",
    "max_output_tokens": "inf",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "turn_detection": {
                "type": "server_vad",
                "create_response": True,
                "interrupt_response": True,
                "idle_timeout_ms": None,
                "silence_duration_ms": None,
                "prefix_padding_ms": None,
            },
            "transcription": {"language": "en"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}},
    },
}


def faults_of(seed: int) -> list[str]:
    """What is wrong with the conversation of a seed."""
    case = Case(seed)
    with troubles() as seen:
        try:
            run_virtual(case.run(), seed=seed, limit_s=3600.0)
        except Exception as error:
            seen.append(f"raised {type(error).__name__}: {error}")
            if ONE_SEED:
                raise
    faults = [*case.faults, *seen]
    return [f"seed {seed}", *faults, *case.done] if faults else []


@pytest.mark.timeout(300 + 2 * FUZZ_S)
def test_whatever_a_client_does_it_receives_a_lawful_conversation() -> None:
    first = random.SystemRandom().randrange(2**31) if FUZZ_S else 0
    seeds = [int(ONE_SEED)] if ONE_SEED else range(first, first + (10**9 if FUZZ_S else SEEDS))
    began, count = time.monotonic(), 0
    for seed in seeds:
        found = faults_of(seed)
        assert not found, "\n".join([f"after {count} lawful conversations", *found])
        count += 1
        if FUZZ_S and time.monotonic() - began > FUZZ_S:
            break
    print(f"{count} conversations, from seed {seeds[0]}")

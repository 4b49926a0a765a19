"""B51: a long session keeps every token, segment and picture it ever saw until the process dies.

The kind of fault: a container that only grows. It is made impossible by bounds where things are kept:
``voice/chat.py`` (characters, entries and pictures of ``Limits``), ``voice/hearing.py`` (a ring),
``voice/playout.py`` (``Limits.playout_s``; one track at a time), ``voice/answering.py`` (a few past answers), and by
``voice/scope.py``: what is done leaves the tree.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from talk import Talk, make_agent, talk

from voice.chat import UserEntry
from voice.events import ResponseEnded
from voice.interfaces import ASR_RATE_HZ, ImagePart
from voice.options import Limits, TurnOptions
from voice.scope import Scope
from voice.session import Session
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    speak,
)

LONG = "VOICE_LONG_MEMORY" in os.environ
"""2000 turns and 500 sessions. The short form sees as small a leak: its bounds are narrower by more than its runs."""
TURNS, WARM_UP_TURNS, PICTURE_EVERY = (2000, 300, 10) if LONG else (400, 180, 4)
SESSIONS, WARM_UP_SESSIONS = (500, 50) if LONG else (130, 40)
PICTURE_BYTES = 100_000
GROWTH_BYTES = 5_000_000 if LONG else 1_000_000
GROWTH_OBJECTS = 500
BRISK = TurnOptions(pause_s=0.06, min_delay_s=0.06, max_delay_s=0.06, echo_guard=False)
"""Short pauses: the turns, not the silence between them, are what is tested."""


def memory() -> int:
    """What the process holds, without what its allocator has free: that comes and goes by megabytes."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def files() -> int:
    process = psutil.Process()
    return int(process.num_fds()) if hasattr(process, "num_fds") else 0


def scopes() -> int:
    gc.collect()
    return sum(isinstance(o, Scope) for o in gc.get_objects())


class Forgetful(ScriptedModel):
    """Notes the size of the largest prompt instead of keeping prompts."""

    longest_chars = most_pictures = 0

    def generate(self, prompt: Any, scope: Scope) -> Any:
        pictures = sum(isinstance(p, ImagePart) for m in prompt.messages for p in m.content)
        self.most_pictures = max(self.most_pictures, pictures)
        self.longest_chars = max(self.longest_chars, sum(len(m.text) for m in prompt.messages))
        self.prompts.clear()
        return super().generate(prompt, scope)


async def turn(it: Talk, number: int) -> None:
    """One spoken turn (now and then a typed one with a picture), answered to its end."""
    if number % PICTURE_EVERY == 0:
        picture = number.to_bytes(4, "big") * (PICTURE_BYTES // 4)
        it.session.send_image(picture, "image/png", f"What is picture {number}?", answer=True)
        await it.client.run(0.64)
    else:
        it.client.say(speak(0.2))
        await it.client.run(0.96)


def check_bounds(it: Talk) -> None:
    session, limits = it.session, Limits()
    entries = session.chat.entries
    assert len(entries) <= limits.history_entries
    assert sum(len(e.images) for e in entries if isinstance(e, UserEntry)) <= limits.images
    assert session.ear.log.end - session.ear.log.start <= 3 * ASR_RATE_HZ
    track = session.playout.track
    assert track is None or track.queued_s <= limits.playout_s + 0.1
    assert session.scope.reaper.pending == 0
    assert len(asyncio.all_tasks()) <= 6


def alone(function: str) -> None:
    """Run a check of this file in a process of its own: what other tests left would move its memory."""
    folder = Path(__file__).resolve().parent
    paths = [str(folder.parent.parent), str(folder.parent), str(folder)]
    code = f"import sys; sys.path[:0] = {paths!r}; import test_b51_memory as it; it.{function}()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)


def test_many_turns_in_one_session_need_no_more_memory_than_the_first_ones() -> None:
    alone("many_turns")


def many_turns() -> None:
    grown: list[int] = []
    left: list[int] = []
    kept: list[int] = []

    async def main() -> None:
        model = Forgetful(["Fine."], first_token_s=0.01, token_s=0.0)
        recogniser = ScriptedRecogniser(
            lambda audio: "How are you today, my friend, and what will the weather be like?", delay_s=0.01
        )
        agent = make_agent(model, recogniser=recogniser, synthesiser=ToneSynthesiser(rtf=0.01), turns=BRISK)
        answered = 0
        async with talk(agent, PullClient(frame_s=0.04, record_s=1.0)) as it:
            at_start = len(asyncio.all_tasks())
            for number in range(1, TURNS + 1):
                await turn(it, number)
                answered += len(it.of(ResponseEnded))
                it.events.clear()
                recogniser.heard.clear()
                if number == WARM_UP_TURNS:
                    grown.append(memory())
                    left.append(scopes())
                    kept.append(objects())
                if number % 100 == 0:
                    check_bounds(it)
            await it.client.run(2.0)
            assert len(asyncio.all_tasks()) == at_start
            grown.append(memory())
            left.append(scopes())
            kept.append(objects())
        answered += len(it.of(ResponseEnded))
        assert answered == TURNS
        assert model.most_pictures <= Limits().images
        assert model.longest_chars <= Limits().history_chars + 500

    run_virtual(main(), limit_s=2.0 * TURNS)
    assert grown[1] - grown[0] <= GROWTH_BYTES
    assert kept[1] - kept[0] <= GROWTH_OBJECTS
    assert left[1] == left[0]


def test_many_sessions_in_turn_leave_nothing() -> None:
    alone("many_sessions")


def many_sessions() -> None:
    counts: list[tuple[int, int, int, int]] = []

    def census() -> None:
        gc.collect()
        sessions = sum(isinstance(o, Session) for o in gc.get_objects())
        counts.append((len(asyncio.all_tasks()), files(), scopes(), sessions))

    grown: list[int] = []

    async def main() -> None:
        process = Scope("process")
        model = Forgetful(["Fine."], first_token_s=0.01, token_s=0.0)
        agent = make_agent(model, synthesiser=ToneSynthesiser(rtf=0.01), greeting="Hello.")
        for number in range(1, SESSIONS + 1):
            client = (PullClient if number % 2 else PushClient)(frame_s=0.04, record_s=1.0)
            async with talk(agent, client, session_id=f"s{number}", scope=process) as it:
                client.say(speak(0.3), at_s=0.4)
                await client.run(1.0 if number % 3 else 2.0)  # some hang up in the middle of the answer
            agent.stages.recogniser.heard.clear()  # type: ignore[attr-defined]
            del it, client
            if number in (WARM_UP_SESSIONS, SESSIONS):
                grown.append(memory())
                census()

    run_virtual(main(), limit_s=3.0 * SESSIONS)
    assert grown[1] - grown[0] <= GROWTH_BYTES
    assert counts[1] == counts[0]

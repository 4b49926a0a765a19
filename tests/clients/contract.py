"""What does every client script do alike? Takes the same arguments, runs its scenarios, reports each in a line of JSON.

The scripts in Python share this file (the standard library only: each runs in its client's own environment); those in
JavaScript keep to the same contract:

``SCRIPT --url WS_URL --sounds DIR --out DIR [--only SCENARIO ...]``
    ``DIR/NAME.wav`` are the caller's sentences. For each scenario a line ``{"scenario", "error"}`` goes to stdout
    (``error`` is null or a sentence), and what the client received goes to ``OUT/SCENARIO.jsonl``, an event a line.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import traceback
import wave
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCENARIOS = ("spoken", "tool", "tool_aloud", "barge_in", "push_to_talk", "text")
"""What each client does, in this order, each on a connection of its own."""

RATE_HZ = 24_000
FRAME_MS = 20
FRAME_BYTES = RATE_HZ * 2 * FRAME_MS // 1000
SCENARIO_S = 40.0
"""Longest time of a scenario; each takes a few seconds."""
WAIT_S = 12.0
"""Longest wait for one thing that has to come."""

TOOL_NAME = "get_weather"
TOOL_RESULT = "sunny"
TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
TEXT_QUESTION = "What is two and two?"
HELLO_ANSWER = "Hello, nice to hear you."
STOP_ANSWER = "All right, I stop."
PUSHED_ANSWER = "You pushed the button."
TEXT_ANSWER = "Two and two is four."
TOOL_ANSWER = "The weather is sunny."
ALOUD_ANSWER = "Let me see."
"""Said in the same response as the call."""


class Failed(Exception):
    """A scenario did not go as it should; says what was wanted and what came."""


@dataclass
class Stage:
    """What one scenario is given, and where it puts what it received.

    Attributes:
        url: ``ws://HOST:PORT/v1/realtime``, without a query.
        sounds: Folder of the caller's sentences.
        events: Every server event in order of arrival, as plain JSON; audio may be shortened.
    """

    url: str
    sounds: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    def sound(self, name: str) -> bytes:
        """A sentence of the caller: 24 kHz, 16 bit, mono."""
        with wave.open(str(self.sounds / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (RATE_HZ, 2, 1)
            pcm: bytes = file.readframes(file.getnframes())
            return pcm

    def took(self, event: dict[str, Any]) -> None:
        """Note an event that arrived."""
        self.events.append(event)
        self._came.set()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a type so far."""
        return [event for event in self.events if event["type"] == kind]

    async def until(self, what: str, ready: Callable[[], Any], within_s: float = WAIT_S) -> Any:
        """Wait until ``ready()`` is true; it is asked again at each event and every 50 ms.

        Raises:
            Failed: Not within the time; names the last events.
        """
        end = asyncio.get_running_loop().time() + within_s
        while not (found := ready()):
            if asyncio.get_running_loop().time() > end:
                recent = ", ".join(event["type"] for event in self.events[-6:]) or "nothing"
                raise Failed(f"no {what} within {within_s:g} s; the last events were {recent}")
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), 0.05)
        return found

    async def until_events(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the ``count``-th event of a type, and return it."""
        found: dict[str, Any] = (
            await self.until(f"{kind} number {count}", lambda: self.of(kind)[count - 1 :])
        )[0]
        return found

    def replies(self) -> list[str]:
        """What the agent said or wrote so far, a text for each answer that is complete."""
        whole = ("response.output_audio_transcript.done", "response.output_text.done")
        return [e.get("transcript", e.get("text", "")).strip() for e in self.events if e["type"] in whole]

    def sound_s(self, item_id: str) -> float:
        """How much of an item's sound was received, seconds."""
        deltas = [e["delta"] for e in self.of("response.output_audio.delta") if e["item_id"] == item_id]
        return sum(len(base64.b64decode(delta)) for delta in deltas) / (2 * RATE_HZ)


class Microphone:
    """Sends audio in real time, silence where nobody speaks: what a client's microphone does.

    Args:
        send: Takes 20 ms of 24 kHz, 16 bit mono.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None] | None]) -> None:
        self._send = send
        self._waiting = bytearray()
        self._task: asyncio.Task[None] | None = None

    def say(self, pcm: bytes) -> None:
        """Speak, after what is being said now."""
        self._waiting += pcm

    @property
    def speaking(self) -> bool:
        """Whether there is more to say."""
        return bool(self._waiting)

    async def __aenter__(self) -> Microphone:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            frame = bytes(self._waiting[:FRAME_BYTES])
            del self._waiting[:FRAME_BYTES]
            if (sent := self._send(frame.ljust(FRAME_BYTES, b"\0"))) is not None:
                await sent
            due += FRAME_MS / 1000
            await asyncio.sleep(due - loop.time())


def frames(pcm: bytes, size: int = FRAME_BYTES) -> Iterator[bytes]:
    """Cut audio in pieces of ``size`` bytes."""
    for start in range(0, len(pcm), size):
        yield pcm[start : start + size]


def check(ok: object, message: str) -> None:
    """Raise :class:`Failed` unless ``ok``."""
    if not ok:
        raise Failed(message)


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]


def main(given: Mapping[str, Scenario] | Iterable[Scenario], argv: Sequence[str] | None = None) -> int:
    """Run the scenarios of a script, by name or each named as its function; returns the exit status."""
    scenarios = dict(given) if isinstance(given, Mapping) else {one.__name__: one for one in given}
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--sounds", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=list(scenarios))
    args = parser.parse_args(argv)
    failed = 0
    for name in args.only:
        stage = Stage(args.url, args.sounds)
        error = asyncio.run(_run(scenarios[name], stage))
        with open(args.out / f"{name}.jsonl", "w") as file:
            file.writelines(json.dumps(event) + "\n" for event in stage.events)
        print(json.dumps({"scenario": name, "error": error}), flush=True)
        failed += error is not None
    return min(failed, 1)


async def _run(scenario: Scenario, stage: Stage) -> str | None:
    try:
        async with asyncio.timeout(SCENARIO_S):
            await scenario(stage)
    except Failed as error:
        return str(error)
    except TimeoutError:
        return f"not over after {SCENARIO_S:g} s; the last event was {stage.events[-1:] or 'none'}"
    except Exception as error:  # noqa: BLE001 - a client's failure is a line of the report
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None

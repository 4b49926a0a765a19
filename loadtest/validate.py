"""How far is the simulation off? The same session code and callers, measured on this machine in real time with engines
that really have few places, against the simulation from a profile that was recorded from those engines.

Both draw the same callers and answers from a seed: what differs is the simulation's error, not chance.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.drawn_stages import NOD, answer_length, sentence
from loadtest.own_thread import in_own_thread
from loadtest.profile import blank
from loadtest.profile_recording import record
from loadtest.simulate import Load, Outcome, begin, simulate
from loadtest.simulated_callers import Habits, Heard, SimulatedCaller
from voice.agent import Agent
from voice.audio import AudioFormat
from voice.compute import ComputeGate
from voice.executor import ThreadExecutor
from voice.interfaces import (
    ASR_RATE_HZ,
    Finished,
    ModelEvent,
    Pcm16,
    Prompt,
    RecogniserCapabilities,
    Speech,
    Stages,
    TextDelta,
    Transcript,
)
from voice.options import Limits, TurnOptions
from voice.scope import Scope
from voice.testing import ScriptedDetector, speak

HABITS = Habits(
    speech_s=(0.6, 1.4), think_s=(0.2, 0.8), hesitates=0.0, barges_in=0.1, into_s=(0.5, 1.5), nods=0.0
)
"""Short turns: many of them in little time."""
ANSWER_WORDS = (5, 8)
WARM_UP_S = 8.0
TURNS = 160
"""Measured at each number of sessions: eight of them are above the p95."""
LADDER = (0.6, 0.9, 1.2)
"""Measured at these shares of the simulated knee of the engine that is full first."""
GOAL = 0.15
_RATE_HZ = 4_000
_WORD_S = 0.3
_FRAME_S = 0.02
_FRAME = int(_FRAME_S * ASR_RATE_HZ)
_PAST_BASE_S = 0.5
"""The knee: p95 of voice to voice is so much above that of a few callers."""


UNUSED = blank()
"""Real callers draw no delays of a detector: the session's own ear has them."""


@dataclass(frozen=True, slots=True)
class Times:
    """Engines that sleep in threads of their own, one for each place.

    Attributes:
        recognition_s, per_audio_s: Of a call, and for each second of audio.
        first_token_s, token_s: Of the model, which has room for all.
        first_audio_s, audio_second_s: Of the voice.
        recognisers, voices: Places.
    """

    name: str
    recognition_s: float
    per_audio_s: float
    recognisers: int
    first_audio_s: float
    audio_second_s: float
    voices: int
    first_token_s: float = 0.1
    token_s: float = 0.02


SLOW_RECOGNISER = Times("a slow recogniser", 0.08, 0.04, 1, 0.05, 0.1, 64)
SLOW_VOICE = Times("a slow voice", 0.05, 0.0, 64, 0.08, 0.1, 2)


class SleepingEngine:
    """So many threads that sleep, behind the process's own kind of gate."""

    def __init__(self, name: str, places: int) -> None:
        self.gate = ComputeGate(places)
        self.threads = ThreadExecutor(name, places)

    async def sleep(self, seconds: float) -> None:
        """Work for so long, off the loop; a place must be held."""
        await self.threads.run(time.sleep, seconds)


class SleepingRecogniser:
    """A :class:`~voice.interfaces.Recogniser`."""

    name = "sleeping-recogniser"
    capabilities = RecogniserCapabilities(max_audio_s=600.0)

    def __init__(self, times: Times) -> None:
        self._times, self.engine = times, SleepingEngine("recogniser", times.recognisers)

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """See :class:`~voice.interfaces.Recogniser`."""
        audio_s = audio.size / ASR_RATE_HZ
        async with self.engine.gate.slot(lambda: scope.priority):
            await self.engine.sleep(self._times.recognition_s + self._times.per_audio_s * audio_s)
        return Transcript(sentence(max(2, round(audio_s * 2.5))))


class SleepingModel:
    """A :class:`~voice.interfaces.LanguageModel`; a few words an answer."""

    name = "sleeping-model"

    def __init__(self, times: Times) -> None:
        self._times = times

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        """See :class:`~voice.interfaces.LanguageModel`."""
        wait_s = self._times.first_token_s
        for word in sentence(answer_length(scope.identity, ANSWER_WORDS)).split(" "):
            await asyncio.sleep(wait_s)
            yield TextDelta(word + " ")
            wait_s = self._times.token_s
        yield Finished("stop")


class SleepingVoice:
    """A :class:`~voice.interfaces.Synthesiser`; pieces of 0.2 s."""

    name = "sleeping-voice"
    sample_rate = _RATE_HZ
    max_chars = 400

    def __init__(self, times: Times) -> None:
        self._times, self.engine = times, SleepingEngine("voice", times.voices)

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """See :class:`~voice.interfaces.Synthesiser`."""
        left = round((text.count(" ") + 1) * _WORD_S * _RATE_HZ)
        wait_s, piece = self._times.first_audio_s, round(0.2 * _RATE_HZ)
        async with self.engine.gate.slot(lambda: scope.priority):
            while left > 0:
                await self.engine.sleep(wait_s)
                yield Speech(np.full(min(piece, left), 8000, np.int16))
                left -= piece
                wait_s = min(piece, max(0, left)) / _RATE_HZ * self._times.audio_second_s


def sleeping_stages(times: Times) -> Stages:
    """Engines that really have so few places."""
    return Stages(ScriptedDetector(), SleepingRecogniser(times), SleepingModel(times), SleepingVoice(times))


# ---------------------------------------------------------------- measured


class Microphone:
    """Stands in for a drawn ear: what its caller says goes into the session's own ear, a frame at a time."""

    def __init__(self) -> None:
        self._voice = speak(1.0)
        self._silence = np.zeros(_FRAME, np.int16)
        self.on = False

    def hear_began(self, at: float, level: int = 0) -> None:
        """Speak from now on."""
        self.on = level != NOD

    def hear_paused(self, at: float) -> None:
        """Be silent from now on."""
        self.on = False

    def frame(self, number: int) -> Pcm16:
        """The next frame."""
        start = number % 50 * _FRAME
        return self._voice[start : start + _FRAME] if self.on else self._silence


class RealCaller(SimulatedCaller):
    """The same caller with a voice: frames go through the session's own ear."""

    async def call(self, scope: Scope) -> None:
        """Begin."""
        self.microphone = Microphone()
        self.session._process = scope
        self.session._format = AudioFormat()
        await self.session.start()
        self._ear = self.microphone  # type: ignore[assignment]
        self.line.attach(self.session.playout)
        self._plan(self._chance.uniform(*self._habits.think_s), self._speak)

    def _say(self, start: float, length_s: float, level: int) -> None:
        self._loop.call_at(start, self.microphone.hear_began, start, level)
        self._loop.call_at(start + length_s, self.microphone.hear_paused, start + length_s)

    def hear(self, number: int) -> None:
        """The microphone's next frame."""
        if self._ear is not None and self.session.ended is None:
            self.session.hear(self.microphone.frame(number))
            self.line.catch_up()


async def measure(times: Times, sessions: int, seconds: float, seed: int) -> list[float]:
    """Voice to voice of the turns of so many callers in real time, in seconds."""
    loop = asyncio.get_running_loop()
    turns = TurnOptions(idle_s=None, echo_guard=False)
    agent = Agent("Answer briefly.", sleeping_stages(times), turns=turns, limits=Limits(playout_s=3600.0))
    heard = Heard()
    with Scope("process") as scope:
        callers = [
            RealCaller(agent, name, UNUSED, HABITS, heard, random.Random(f"{seed} {name}"), lambda _: 0.0)
            for name in (f"caller-{n}" for n in range(sessions))
        ]
        chance = random.Random(f"{seed} callers")
        for caller in callers:  # not in step, as in the simulation
            loop.call_later(chance.uniform(0.0, WARM_UP_S / 2), begin, scope, caller)
        start, number = loop.time(), 0
        while loop.time() < start + WARM_UP_S + seconds:
            for caller in callers:
                caller.hear(number)
            number += 1
            await asyncio.sleep(max(0.0, start + number * _FRAME_S - loop.time()))
        await asyncio.gather(*(caller.hang_up() for caller in callers))
    return [s for at, s in heard.turns if at >= start + WARM_UP_S]


# ---------------------------------------------------------------- compared


@dataclass(frozen=True, slots=True)
class Point:
    """p95 of voice to voice at a number of sessions, measured and simulated, in seconds."""

    sessions: int
    turns: int
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Of the simulation, relative."""
        return self.simulated_s / self.measured_s - 1.0


def knee_of(points: Sequence[tuple[float, float]], limit_s: float) -> float | None:
    """Where the line through (sessions, p95) crosses the limit; ``None``: nowhere."""
    for (low, below), (high, above) in itertools.pairwise(points):
        if below <= limit_s < above:
            return low + (high - low) * (limit_s - below) / (above - below)
    return None


async def compare(times: Times, turns: int, seed: int, tell: Callable[[str], None]) -> bool:
    """One profile: record, simulate, find the knee, measure around it; prints, returns whether the errors are small."""
    tell(f"{times.name}: recording a profile")
    profile = await record(sleeping_stages(times), times.name, repeats=2, most_at_once=16)

    def simulated(sessions: int, seconds: float) -> Outcome:
        load = Load(
            sessions,
            seconds=seconds,
            seed=seed,
            warm_up_s=WARM_UP_S,
            habits=HABITS,
            answer_words=ANSWER_WORDS,
        )
        return simulate(profile, load)

    few = await in_own_thread(simulated, 4, 30.0)
    places = {name: engine.places for name, engine in profile.engines.items()}
    limit_s = few.percentile_s(95) + _PAST_BASE_S
    ideal = min(few.knee(places, 4).values())
    ladder = [max(2, round(ideal * share)) for share in LADDER]
    points: list[Point] = []
    for sessions in ladder:
        seconds = turns * few.cycle_s / min(sessions, ideal)
        there = await in_own_thread(simulated, sessions, seconds)
        measured = await measure(times, sessions, seconds, seed)
        p95_s = float(np.percentile(measured, 95))
        points.append(Point(sessions, len(measured), p95_s, there.percentile_s(95)))
        tell(
            f"  {sessions:3d} sessions, {len(measured)} turns: p95 measured {p95_s * 1000:.0f} ms, "
            f"simulated {there.percentile_s(95) * 1000:.0f} ms ({points[-1].error:+.0%})"
        )
    knees = [
        knee_of([(p.sessions, getattr(p, kind)) for p in points], limit_s)
        for kind in ("measured_s", "simulated_s")
    ]
    if knees[0] is None or knees[1] is None:
        tell(f"  no knee at a p95 of {limit_s * 1000:.0f} ms within {ladder[0]} to {ladder[-1]} sessions")
        return False
    error = knees[1] / knees[0] - 1.0
    below = [abs(p.error) for p in points if p.sessions <= min(knees[0], knees[1])]
    worst = max(below, default=0.0)
    tell(
        f"  knee (p95 of {limit_s * 1000:.0f} ms): measured {knees[0]:.1f}, simulated {knees[1]:.1f} sessions "
        f"({error:+.0%}); p95 below it off by at most {worst:.0%}"
    )
    return abs(error) <= GOAL and worst <= GOAL


async def run(turns: int = TURNS, seed: int = 1) -> bool:
    """Both profiles; prints, returns whether knee and p95 are within :data:`GOAL`."""
    good = [await compare(times, turns, seed, print) for times in (SLOW_RECOGNISER, SLOW_VOICE)]
    print(f"simulation and measurement {'agree within' if all(good) else 'differ by more than'} {GOAL:.0%}")
    return all(good)

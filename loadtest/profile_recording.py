"""Records a profile: what calls of the given stages take alone and beside each other, and what a session costs the
processor. In real time, in under a minute for stages that answer within a second.

A stage's places follow from bursts: of calls begun at once, those that end with the first ran together, and the others
waited. How much longer the first took than alone is the slowdown.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.profile import STAGES, Engine, Profile, Service, Spread, blank
from loadtest.simulated_callers import Habits, Heard, SimulatedCaller
from loadtest.stubs import RATE_HZ, stub_stages
from voice.agent import Agent
from voice.audio import AudioFormat, PcmAssembler, resample
from voice.errors import EngineFailed
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, Message, ModelOptions, Pcm16, Prompt, Stages, TextDelta, TextPart
from voice.options import Limits, TurnOptions
from voice.scope import Scope
from voice.session import Session
from voice.speaking import spoken_text
from voice.testing import PullClient, ScriptedDetector

MOST_AT_ONCE = 32
_TOGETHER = 1.4
"""Calls that end within this multiple of the first one's time ran beside it."""
_SHARED = 0.6
"""Two stages share an engine when both at once take this share of the shorter one's time longer than the longer one."""
_TEXTS = (
    "Yes, of course.",
    "The weather in the north is mild and dry today.",
    "I would really like to hear more about the weather in the north, and about the wind from the sea as well.",
)
_TOKENS = 12
_FRAME_S = 0.02
_FRAME = int(_FRAME_S * ASR_RATE_HZ)


@dataclass(slots=True)
class Calls:
    """What was measured of one stage.

    Attributes:
        first: (units, seconds to the answer or to its first piece).
        rate: Seconds for each further token, or for each further second of audio.
        whole_s: Of a middle-sized call, alone.
        places, slowdown: See :class:`loadtest.profile.Engine`.
    """

    first: list[tuple[float, float]] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    whole_s: float = 0.0
    places: int = 1
    slowdown: float = 0.0


async def record(stages: Stages, name: str, *, repeats: int = 4, most_at_once: int = MOST_AT_ONCE) -> Profile:
    """Measure and put together; nothing else should run on the machine.

    Args:
        stages: Warmed up.
        name: Of the profile.
        repeats: Calls of each size.
        most_at_once: Calls of the largest burst.

    Raises:
        VoiceError: As the stages say.
    """
    profile = await service_times(stages, name, repeats=repeats, most_at_once=most_at_once)
    start, pause = edge_delays()
    return replace(
        profile,
        start_delay_s=start,
        pause_delay_s=pause,
        frame_cpu_s=await frame_cpu_s(stages),
        turn_cpu_s=await turn_cpu_s(),
    )


async def service_times(
    stages: Stages, name: str, *, repeats: int = 4, most_at_once: int = MOST_AT_ONCE
) -> Profile:
    """The part of :func:`record` that is about the engines, by the loop's clock; the rest has the defaults."""
    with Scope("process") as scope:
        probes = await _probes(stages, scope)
        measured = {stage: await _measure(probes[stage], repeats, most_at_once) for stage in STAGES}
        engine_of = await _shared(probes, measured)
        words_per_s = await _pace(stages, scope)
    users = {name: [measured[s] for s in STAGES if engine_of[s] == name] for name in engine_of.values()}
    model, voice = measured["model"], measured["synthesiser"]
    return Profile(
        name,
        {e: Engine(min(u.places for u in of), max(u.slowdown for u in of)) for e, of in users.items()},
        engine_of,
        recognition=Service.fit(measured["recogniser"].first),
        first_token=Service.fit(model.first),
        token=Service.fit([(0.0, one) for one in model.rate or [0.0]]),
        first_audio=Service.fit(voice.first),
        audio_second=Service.fit([(0.0, one) for one in voice.rate or [0.0]]),
        words_per_s=words_per_s,
    )


# ---------------------------------------------------------------- calls

Probe = Callable[[int, Calls | None], Awaitable[None]]
"""A call of the size with that number; its times go into the record, if there is one."""


async def _probes(stages: Stages, scope: Scope) -> dict[str, Probe]:
    said, texts, now = await _speech(stages), await _texts(stages, scope), asyncio.get_running_loop().time

    async def recognise(size: int, calls: Calls | None) -> None:
        audio = said[: int((1.0, 2.0, 4.0)[size] * ASR_RATE_HZ)]
        began = now()
        await stages.recogniser.transcribe(audio, scope.child("stage"))
        if calls is not None:
            calls.first.append((audio.size / ASR_RATE_HZ, now() - began))

    async def generate(size: int, calls: Calls | None) -> None:
        text = " ".join(_TEXTS[2] for _ in range((1, 4, 12)[size]))
        messages = (Message("user", (TextPart(text),)),)
        prompt = Prompt(messages, options=ModelOptions(max_tokens=_TOKENS))
        began, first, last, tokens = now(), None, 0.0, 0
        async with aclosing(stages.model.generate(prompt, scope.child("stage"))) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextDelta):
                    last, tokens = now(), tokens + 1
                    first = first or last
        if calls is not None and first is not None:
            calls.first.append((float(len(text)), first - began))
            calls.rate += [(last - first) / (tokens - 1)] if tokens > 1 else []

    async def speak(size: int, calls: Calls | None) -> None:
        assembler, first, made, first_made = PcmAssembler(), None, 0, 0
        began = now()
        speech = stages.synthesiser.synthesise(texts[size], scope.child("stage"))
        async with aclosing(speech) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                made += assembler.push(piece.pcm).size
                if first is None and made:
                    first, first_made = now(), made
        if calls is not None and first is not None:
            rest_s = (made - first_made) / stages.synthesiser.sample_rate
            calls.first.append((float(len(texts[size])), first - began))
            calls.rate += [(now() - first) / rest_s] if rest_s > 0.1 else []

    return {"recogniser": recognise, "model": generate, "synthesiser": speak}


async def _speech(stages: Stages) -> Pcm16:
    """Four seconds of what the stages' own voice says; of noise, when it says nothing to these words."""
    pcm = await spoken_text(stages.synthesiser, " ".join(_TEXTS))
    said = resample(pcm, stages.synthesiser.sample_rate, ASR_RATE_HZ)
    wanted = 4 * ASR_RATE_HZ
    if not said.size:
        return np.random.default_rng(0).normal(0, 2000, wanted).astype(np.int16)
    return np.resize(said, wanted)


async def _measure(probe: Probe, repeats: int, most_at_once: int) -> Calls:
    calls = Calls()
    for size in range(3):
        for _ in range(repeats):
            await probe(size, calls)
    calls.whole_s = await _burst_s(probe, 1)
    at_once = 2
    while at_once <= most_at_once:
        ends = await _ends_s(probe, at_once)
        together = sum(end <= ends[0] * _TOGETHER for end in ends)
        calls.places = together
        first_s = statistics.fmean(ends[:together])
        calls.slowdown = max(0.0, first_s / calls.whole_s - 1.0) / (together - 1) if together > 1 else 0.0
        if together < at_once:
            break
        at_once *= 2
    calls.slowdown = 0.0 if calls.slowdown < 0.01 else min(2.0, calls.slowdown)
    return calls


async def _burst_s(probe: Probe, at_once: int) -> float:
    """Seconds until the last of so many ends, the median of three."""
    return statistics.median([(await _ends_s(probe, at_once))[-1] for _ in range(3)])


async def _ends_s(probe: Probe, at_once: int) -> list[float]:
    now = asyncio.get_running_loop().time
    began = now()

    async def one() -> float:
        await probe(1, None)
        return now() - began

    return sorted(await asyncio.gather(*(one() for _ in range(at_once))))


async def _shared(probes: dict[str, Probe], measured: dict[str, Calls]) -> dict[str, str]:
    """Which stages use the same engine: both at once take as long as one after the other."""
    engine_of, now = {stage: stage for stage in STAGES}, asyncio.get_running_loop().time
    for one, other in itertools.combinations(STAGES, 2):
        if max(measured[one].places, measured[other].places) > 2:
            continue  # what takes many at once has room for another's
        began = now()
        await asyncio.gather(probes[one](1, None), probes[other](1, None))
        alone_s = sorted((measured[one].whole_s, measured[other].whole_s))
        if now() - began >= alone_s[1] + _SHARED * alone_s[0]:
            engine_of[other] = engine_of[one]
    return engine_of


async def _texts(stages: Stages, scope: Scope) -> Sequence[str]:
    """Three texts of different lengths that the voice speaks; a stub speaks only what its model says."""
    if (await spoken_text(stages.synthesiser, _TEXTS[0])).size:
        return _TEXTS
    prompt, words = Prompt((Message("user", (TextPart(_TEXTS[2]),)),)), ""
    async with aclosing(stages.model.generate(prompt, scope.child("stage"))) as events:  # type: ignore[type-var]
        async for event in events:
            words += event.text if isinstance(event, TextDelta) else ""
    return [" ".join(words.split()[:count]) for count in (3, 10, 20)]


async def _pace(stages: Stages, scope: Scope) -> float:
    """Words a second of the voice."""
    text = (await _texts(stages, scope))[2]
    pcm = await spoken_text(stages.synthesiser, text)
    seconds = pcm.size / stages.synthesiser.sample_rate
    return len(text.split()) / seconds if seconds > 1.0 else 3.3


# ---------------------------------------------------------------- the frame path


def edge_delays() -> tuple[Spread, Spread]:
    """From the first and last sample of speech to their edges, as a detector by level would notice them: what the
    windows, the frames and the session's own times make of it, at all alignments."""
    delays: tuple[list[float], list[float]] = [], []
    chance = random.Random(0)
    for _ in range(40):
        fed = 0
        ear = Ear(
            ScriptedDetector(),
            TurnOptions(),
            Limits(),
            AudioFormat(),
            lambda index: delays[0].append((fed - start) / ASR_RATE_HZ),  # noqa: B023
            lambda index: delays[1].append((fed - end) / ASR_RATE_HZ),  # noqa: B023
        )
        start = chance.randrange(8000, 9000)
        end = start + chance.randrange(16000, 17000)
        pcm = np.zeros(48_000, np.int16)
        pcm[start:end] = 8000 * np.sin(np.arange(end - start) * 0.09)
        for at in range(0, pcm.size, _FRAME):
            fed = at + _FRAME
            ear.hear(pcm[at : at + _FRAME], fed / ASR_RATE_HZ)
        ear.close()
    if not delays[0] or not delays[1]:
        raise EngineFailed("the edges of loud speech were not noticed")
    return Spread.of(delays[0]), Spread.of(delays[1])


async def frame_cpu_s(stages: Stages, sessions: int = 8, seconds: float = 4.0) -> float:
    """Processor time of a session for each second, with the stages' detector: audio comes and is asked for every 20 ms,
    half of it speech, and no turn ends."""
    loop = asyncio.get_running_loop()
    agent = Agent("", stages, turns=TurnOptions(mode="manual", idle_s=None))
    said = await _speech(stages)
    frames = [said[at : at + _FRAME] for at in range(0, said.size // 2, _FRAME)]
    frames += [np.zeros(_FRAME, np.int16)] * len(frames)
    lines = [Session(agent, PullClient()) for _ in range(sessions)]
    for session in lines:
        await session.start()
    began, start = time.process_time(), loop.time()
    for number in range(int(seconds / _FRAME_S)):
        frame = frames[number % len(frames)]
        for session in lines:
            session.hear(frame)
            session.playout.read(480)
        await asyncio.sleep(max(0.0, start + (number + 1) * _FRAME_S - loop.time()))
    used_s = time.process_time() - began
    await asyncio.gather(*(session.close() for session in lines))
    return used_s / sessions / seconds


async def turn_cpu_s(sessions: int = 8, seconds: float = 12.0) -> float:
    """Processor time of a turn on the loop: callers without audio, engines without work."""
    stages = stub_stages(ScriptedDetector())
    agent = Agent("", stages, turns=TurnOptions(idle_s=None, echo_guard=False))
    habits = Habits(speech_s=(0.5, 1.0), think_s=(0.1, 0.5), barges_in=1.0, into_s=(0.5, 1.5), nods=0.0)
    heard, profile = Heard(), blank()
    with Scope("process") as scope:
        callers = [
            SimulatedCaller(agent, f"c-{n}", profile, habits, heard, random.Random(n), lambda _: 0.0, RATE_HZ)
            for n in range(sessions)
        ]
        for caller in callers:
            await caller.call(scope)
        await asyncio.sleep(2.0)
        before, turns = time.process_time(), len(heard.turns)
        await asyncio.sleep(seconds)
        used_s, turns = time.process_time() - before, len(heard.turns) - turns
        await asyncio.gather(*(caller.hang_up() for caller in callers))
    return used_s / max(1, turns)

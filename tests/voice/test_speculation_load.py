"""With any number of callers on one compute gate, guessing makes no one wait longer: whole sessions in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from voice.agent import Agent
from voice.compute import ComputeGate
from voice.events import ResponseEnded, SessionEvent
from voice.interfaces import ModelEvent, Pcm16, Prompt, Speech, Stages, Transcript
from voice.options import TurnOptions
from voice.scope import Scope
from voice.session import Session
from voice.speculation import GuessBudget, Level
from voice.testing import (
    PullClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    run_virtual,
    speak,
)

TURNS = 3


@dataclass
class Processor:
    """One slot for native calls that, like real ones, run to their end once begun. ``slow`` stretches all of them."""

    slow: float
    chance: random.Random
    gate: ComputeGate = field(default_factory=ComputeGate)

    async def call(self, scope: Scope, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        async def native() -> None:
            async with self.gate.slot(scope):
                begun.set()
                await asyncio.sleep(seconds * self.slow * self.chance.uniform(0.7, 1.5))

        task = loop.create_task(native())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not begun.is_set():
                task.cancel()
            raise


class Recogniser(ScriptedRecogniser):
    processor: Processor

    async def transcribe(self, audio: Pcm16, scope: Scope, **options: Any) -> Transcript:
        await self.processor.call(scope, 0.2)
        return await super().transcribe(audio, scope, **options)


class Model(ScriptedModel):
    processor: Processor

    async def generate(self, prompt: Prompt, scope: Scope) -> AsyncIterator[ModelEvent]:
        await self.processor.call(scope, 0.06)
        async for event in super().generate(prompt, scope):
            yield event

    async def prepare(self, prompt: Prompt, scope: Scope) -> None:
        await self.processor.call(scope, 0.06)


class Synthesiser(ToneSynthesiser):
    processor: Processor

    async def synthesise(self, text: str, scope: Scope, **options: Any) -> AsyncIterator[Speech]:
        await self.processor.call(scope, 0.1)
        async for speech in super().synthesise(text, scope, **options):
            yield speech


@dataclass
class Outcome:
    """What the callers met: voice to voice of each turn, and how often each level was used."""

    waits_ms: list[float]
    levels: dict[Level, int]
    kept: int


async def caller(number: int, stages: Stages, speculate: bool, seed: int, waits_ms: list[float]) -> int:
    """Asks :data:`TURNS` times, hesitating in every third; returns how many guesses were kept."""

    def note(event: SessionEvent) -> None:
        if isinstance(event, ResponseEnded) and event.times.voice_to_voice_ms is not None:
            waits_ms.append(event.times.voice_to_voice_ms)

    chance, client = random.Random(f"{seed} {number}"), PullClient()
    agent = Agent("Be kind.", stages, turns=TurnOptions(idle_s=None, speculate=speculate))
    async with Session(agent, client, session_id=f"s{number}", on_event=note) as session:
        client.attach(session)
        await client.run(chance.uniform(0.0, 4.0))
        for turn in range(TURNS):
            at_s = client.now_s + 0.1
            for speech_s in (0.9, 0.9) if turn % 3 == 1 else (chance.uniform(1.2, 2.4),):
                client.say(speak(speech_s), at_s=round(at_s, 3))
                end_s, at_s = at_s + speech_s, at_s + speech_s + 0.3
            await client.run(end_s - client.now_s + 0.8)
            while not session.is_quiet():
                await client.run(0.2)
            await client.run(1.0)
        return session.counters.guesses_kept


def hold(callers: int, slow: float, speculate: bool, seed: int) -> Outcome:
    processor = Processor(slow, random.Random(seed))
    recogniser = Recogniser(lambda pcm: f"Have you got {len(pcm)} of them?", delay_s=0.0)
    answer = ("One two three four. Five six seven eight. Nine ten.",)
    model = Model(answer, first_token_s=0.0, token_s=0.02 * slow)
    synthesiser = Synthesiser(rtf=0.0)
    recogniser.processor = model.processor = synthesiser.processor = processor
    budget = GuessBudget(load=processor.gate.load)
    stages = Stages(ScriptedDetector(), recogniser, model, synthesiser)
    stages = replace(stages, guesses=budget)
    waits_ms: list[float] = []

    async def main() -> int:
        calls = (caller(n, stages, speculate, seed, waits_ms) for n in range(callers))
        return sum(await asyncio.gather(*calls))

    kept = run_virtual(main(), seed=seed)
    return Outcome(waits_ms, budget.asked, kept)


@pytest.mark.parametrize(
    ("callers", "slow", "median_most", "p95_most"),
    [
        (2, 1.0, 0.9, 1.0),  # times of two free cores; at most these shares of the waits without guesses
        (4, 1.0, 0.9, 1.0),
        (8, 1.0, 1.0, 1.0),  # three quarters of the time are used
        (6, 2.0, 1.03, 1.03),  # more is asked for than there is: what is left is the chance of the order
    ],
)
def test_guessing_makes_no_one_wait_longer(
    callers: int, slow: float, median_most: float, p95_most: float
) -> None:
    seed = 1
    off, on = (hold(callers, slow, speculate, seed) for speculate in (False, True))
    print(f"seed {seed}, {callers} callers: {on.levels}, {on.kept} guesses kept")
    assert len(off.waits_ms) == len(on.waits_ms) == callers * TURNS
    for percent, most in ((50, median_most), (95, p95_most)):
        waits_ms = [float(np.percentile(outcome.waits_ms, percent)) for outcome in (off, on)]
        print(f"{percent} %: {waits_ms[0]:.0f} ms off, {waits_ms[1]:.0f} ms on")
        assert waits_ms[1] <= most * waits_ms[0], (percent, waits_ms)
    if slow == 1.0 and callers <= 4:
        assert on.kept >= 0.6 * callers * TURNS and on.levels[Level.FULL] == sum(on.levels.values())
    if slow > 1.0:
        assert on.levels[Level.FULL] < sum(on.levels.values()) / 2

"""A call as the load tests make it: real engines, a caller made of files, a recording, the answers and their times."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import soundfile

from loadtest.channels import Channels
from transports.file import FileCaller, FileTurn
from voice.agent import DEFAULT_INSTRUCTIONS, Agent
from voice.chat import AgentEntry
from voice.events import Problem, ResponseEnded, SessionEvent, SpeechStarted, UserSaid
from voice.interfaces import ModelOptions, Pcm16, Stages
from voice.metrics import Counters
from voice.options import TurnOptions
from voice.session import Session
from voice.speaking import spoken_text


@dataclass
class CallRecord:
    """What came of a call."""

    channels: Channels
    turns: list[FileTurn]
    answers: list[ResponseEnded] = field(default_factory=list)
    said: list[UserSaid] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    history: list[AgentEntry] = field(default_factory=list)
    edges_s: list[float] = field(default_factory=list)  # when the detector noticed speech
    counters: Counters = field(default_factory=Counters)


async def hold_call(
    stages: Stages,
    files: Sequence[Path],
    recording: Path,
    *,
    options: TurnOptions | None = None,
    max_tokens: int | None = None,
) -> CallRecord:
    """Play ``files`` to an agent in real time and record both sides."""
    agent = Agent(DEFAULT_INSTRUCTIONS, stages, turns=options or TurnOptions(idle_s=None))
    if max_tokens is not None:
        agent = replace(agent, model_options=ModelOptions(max_tokens=max_tokens))
    caller = FileCaller(files, record_to=recording)
    await caller.prepare()
    answers: list[ResponseEnded] = []
    said: list[UserSaid] = []
    problems: list[str] = []
    edges: list[float] = []

    def note(event: SessionEvent) -> None:
        match event:
            case ResponseEnded():
                answers.append(event)
            case UserSaid():
                said.append(event)
            case Problem():
                problems.append(event.message)
            case SpeechStarted():
                edges.append(event.edge_s)
            case _:
                pass

    async with Session(agent, caller, on_event=note) as session:
        turns = await caller.run(session)
        history = [e for e in session.chat.entries if isinstance(e, AgentEntry)]
    channels = Channels.load(recording)
    return CallRecord(channels, turns, answers, said, problems, history, edges, session.counters)


async def hold_calls(
    stages: Stages,
    callers: Sequence[Sequence[Path]],
    starts_s: Sequence[float],
    folder: Path,
    *,
    options: TurnOptions | None = None,
    max_tokens: int | None = None,
) -> list[CallRecord]:
    """Several calls at once over the same engines: caller *n* plays the files of ``callers[n]`` from
    ``starts_s[n]`` seconds on."""

    async def one(number: int, files: Sequence[Path], start_s: float) -> CallRecord:
        await asyncio.sleep(start_s)
        recording = folder / f"call{number}.wav"
        return await hold_call(stages, files, recording, options=options, max_tokens=max_tokens)

    calls = (one(n, files, s) for n, (files, s) in enumerate(zip(callers, starts_s, strict=True)))
    return list(await asyncio.gather(*calls))


async def speech(stages: Stages, text: str) -> Pcm16:
    """``text`` in the default voice, at the synthesiser's rate."""
    return await spoken_text(stages.synthesiser, text)


async def speech_file(stages: Stages, text: str, path: Path) -> Path:
    """The same, in a file."""
    soundfile.write(path, await speech(stages, text), stages.synthesiser.sample_rate)
    return path


def machine_load() -> str:
    """The machine's load, to be printed beside figures: one-minute average and cores."""
    return f"load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"

"""How soon does the agent fall silent when it is interrupted, and does the history end where the ear did?"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from loadtest.calls import CallRecord, hold_call, machine_load, speech
from loadtest.wer import normalise
from stages import presets
from voice.audio import resample
from voice.events import ResponseEnded
from voice.interfaces import ASR_RATE_HZ, Stages
from voice.scope import Scope

QUESTION = "Please tell me a long story about a boat and the sea."
INTERRUPTION = "Wait, please stop for a moment."


async def _caller(stages: Stages, path: Path, wait_s: float) -> Path:
    """A question, a wait that lets the answer begin, and an interruption."""
    rate_hz = stages.synthesiser.sample_rate
    silence = np.zeros(int(wait_s * rate_hz), np.int16)
    parts = [await speech(stages, QUESTION), silence, await speech(stages, INTERRUPTION)]
    soundfile.write(path, np.concatenate(parts), rate_hz)
    return path


async def run(turns: int, runs: int) -> bool:
    """``runs`` runs of ``turns`` interruptions."""
    stages = presets.local()
    await presets.warm_up(stages)
    seed = random.randrange(1_000_000)
    draw = random.Random(seed)
    print(f"seed {seed}")
    good = 0
    with tempfile.TemporaryDirectory(prefix="voice-") as folder:
        place = Path(folder)
        for number in range(runs):
            waits = [draw.uniform(1.8, 3.2) for _ in range(turns)]
            files = [await _caller(stages, place / f"c{n}.wav", wait) for n, wait in enumerate(waits)]
            print(f"run {number + 1} of {runs}, {turns} interruptions")
            call = await hold_call(stages, files, place / "call.wav", max_tokens=80)
            good += await _judge(stages, call)
    print(f"{good} of {runs} runs within all bounds")
    return good * 2 > runs


async def _judge(stages: Stages, call: CallRecord) -> bool:
    delays: list[float] = []
    words_off: list[int] = []
    cut = [a for a in call.answers if a.status == "interrupted" and a.times.first_audio_s is not None]
    for answer in cut:
        start = answer.times.first_audio_s or 0.0
        edge = min((e for e in call.edges_s if e > start), default=None)
        if edge is None:
            continue
        following = [t for a in call.answers if (t := a.times.first_audio_s) is not None and t > start + 0.01]
        last = call.channels.last_agent_s(start, min(following, default=float("inf")))
        if last is None:
            continue
        delays.append(max(0.0, last - edge) * 1000)
        words_off.append(await _words_off(stages, call, answer, start, last))
    if not delays:
        print("  no answer was interrupted")
        return False
    within = sum(d <= 60 for d in delays)
    close = sum(abs(w) <= 1 for w in words_off)
    print(
        f"  edge to silence {statistics.median(delays):.0f} ms (median), {max(delays):.0f} ms (worst); "
        f"within 60 ms {within} of {len(delays)}; history within a word of the ear {close} of {len(words_off)} "
        f"({machine_load()})"
    )
    return within == len(delays) and close == len(words_off)


async def _words_off(
    stages: Stages, call: CallRecord, answer: ResponseEnded, start: float, end: float
) -> int:
    """Words in the history more (or less) than the agent's channel holds, as the recogniser hears it."""
    pcm = resample(call.channels.agent_between(start - 0.1, end + 0.1), call.channels.rate_hz, ASR_RATE_HZ)
    quiet = np.zeros(ASR_RATE_HZ // 3, np.int16)
    with Scope("process") as scope:
        text = (await stages.recogniser.transcribe(np.concatenate([pcm, quiet]), scope)).text
    off = len(normalise(answer.heard)) - len(normalise(text))
    if abs(off) > 1:
        print(f"  history {answer.heard!r}, heard {text!r}")
    return off

"""Are long recordings transcribed faster than by faster-whisper's batched pipeline, as well, and in little memory?

Recordings of known text are joined with pauses to one of any length. Ours and theirs take turns at it, each in a
process of its own with the same model, batch and cores, loading included. Ours decodes greedily and looks again where
it doubts, theirs with a beam of 1 and of 5 (its default). Then ours is killed in the middle and goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from loadtest.calls import machine_load
from loadtest.process import end
from voice import models
from voice.audio import read_file, resample
from voice.compute import CpuBudget
from voice.errors import EngineFailed
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.word_errors import Errors, compare

MODEL = "whisper-tiny.en"
PAUSE_S = (0.5, 2.0)
MOST_MB = 1000.0
MORE_WORDS = 0.002
"""Word errors are no worse if they are at most so many more, as a share of all words: chance alone moves them so."""
_POLL_S, _LEAVE_S = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One process's work on the recording."""

    name: str
    text: str
    wall_s: float
    cpu_s: float
    most_mb: float


def joined(
    clips: Sequence[tuple[Path, str]], minutes: float, seed: int, folder: Path
) -> tuple[Path, str, float]:
    """A recording of about ``minutes``: all clips in an order drawn anew each time, with pauses; its text, and its
    length in seconds. It is kept as ``joined-MINUTES-SEED.flac`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    path = folder / f"joined-{minutes:g}-{seed}.flac"
    read: dict[Path, Pcm16] = {}
    texts: list[str] = []
    samples = 0
    with soundfile.SoundFile(path, "w", ASR_RATE_HZ, 1, "PCM_16") as out:
        while samples < minutes * 60 * ASR_RATE_HZ:
            for number in rng.permutation(len(clips)):
                clip, text = clips[number]
                if clip not in read:
                    pcm, rate_hz = read_file(clip)
                    read[clip] = resample(pcm, rate_hz, ASR_RATE_HZ)
                pause = np.zeros(round(rng.uniform(*PAUSE_S) * ASR_RATE_HZ), np.int16)
                out.write(read[clip])
                out.write(pause)
                samples += len(read[clip]) + len(pause)
                texts.append(text)
                if samples >= minutes * 60 * ASR_RATE_HZ:
                    break
    return path, " ".join(texts), samples / ASR_RATE_HZ


async def run(
    clips: Sequence[tuple[Path, str]],
    minutes: float,
    seed: int,
    folder: Path,
    beams: Sequence[int],
    runs: int,
) -> bool:
    """The comparison; whether ours is faster, no worse and small, and goes on after it was killed.

    Args:
        clips: Recordings with what is said in them.
        minutes: Length of the joined recording.
        seed: Of its order and pauses.
        folder: Where it and the journal are kept.
        beams: Of faster-whisper.
        runs: How often each runs; the fastest counts.
    """
    recording, text, length_s = await asyncio.to_thread(joined, clips, minutes, seed, folder)
    cores, model = CpuBudget.detect().cores, models.path(MODEL)
    print(
        f"{length_s / 60:.1f} minutes, {len(text.split())} words, seed {seed}, {MODEL}, {cores} cores",
        end=" ",
    )
    print(f"({machine_load()})")
    print(f"{'':34}{'wall s':>8}{'× real time':>13}{'CPU s':>8}{'MB':>7}{'word errors':>14}")
    commands = {"voice transcribe": _ours(recording, "--no-resume")}
    for beam in beams:
        peer = [
            sys.executable,
            "-m",
            "loadtest.batched_whisper",
            str(recording),
            str(model),
            str(beam),
            str(cores),
        ]
        commands[f"faster-whisper batched, beam {beam}"] = peer
    best: list[tuple[Outcome, Errors]] = []
    for name, command in commands.items():
        tries = [await _measure(name, command, folder) for _ in range(runs)]
        fastest = min(tries, key=lambda outcome: outcome.wall_s)
        best.append((fastest, _show(fastest, text, length_s)))
    passed = _judge(best)
    return await _killed_and_resumed(recording, folder, best[0][0], length_s) and passed


def _ours(recording: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "voice.cli",
        "transcribe",
        str(recording),
        "--json",
        "--asr",
        MODEL,
        *options,
    ]


async def _measure(name: str, command: Sequence[str], folder: Path) -> Outcome:
    """Run a process to its end.

    Raises:
        EngineFailed: It failed.
    """
    loop, before_s = asyncio.get_running_loop(), _children_cpu_s()
    began_s, most_mb = loop.time(), 0.0
    output, errors = folder / "output.txt", folder / "errors.txt"
    async with _child(command, folder, output, errors) as child:
        while child.returncode is None:
            most_mb = max(most_mb, _most_mb(child.pid))
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(child.wait()), _POLL_S)
        wall_s = loop.time() - began_s
    if child.returncode:
        said = await asyncio.to_thread(errors.read_text)
        raise EngineFailed(f"{name} failed: {said.strip()[-500:]}", retryable=False)
    text = await asyncio.to_thread(_text, output)
    return Outcome(name, text, wall_s, _children_cpu_s() - before_s, most_mb)


@asynccontextmanager
async def _child(
    command: Sequence[str], folder: Path, output: Path, errors: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is ended when its body is left."""
    with output.open("w") as out, errors.open("w") as err:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdout=out,
            stderr=err,
            env={**os.environ, "VOICE_JOURNALS_DIR": str(folder / "journals")},
        )
        try:
            yield child
        finally:
            await end(child, _LEAVE_S)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _most_mb(pid: int) -> float:
    """The most memory a process has had; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _text(output: Path) -> str:
    written = output.read_text(encoding="utf-8")
    return str(json.loads(written)["text"]) if written.startswith("{") else " ".join(written.split())


def _show(outcome: Outcome, text: str, length_s: float) -> Errors:
    errors = compare(text, outcome.text)
    print(
        f"{outcome.name:34}{outcome.wall_s:8.1f}{length_s / outcome.wall_s:13.1f}{outcome.cpu_s:8.1f}"
        f"{outcome.most_mb:7.0f}{f'{errors.total} ({errors.rate:.2%})':>14}",
        flush=True,
    )
    return errors


def _judge(outcomes: Sequence[tuple[Outcome, Errors]]) -> bool:
    """Print how ours compares with each other one; whether it is better than all."""
    (ours, errors), *others = outcomes
    passed = ours.most_mb < MOST_MB
    for other, others_errors in others:
        more = errors.total - others_errors.total
        passed &= ours.wall_s < other.wall_s and more <= MORE_WORDS * errors.words
        print(
            f"against {other.name}: {other.wall_s / ours.wall_s:.2f} × as fast, "
            f"{other.cpu_s / ours.cpu_s:.2f} × by processor time, {more:+} words wrong"
        )
    return passed


async def _killed_and_resumed(recording: Path, folder: Path, whole: Outcome, length_s: float) -> bool:
    """Kill ours when half is written down; then go on. Whether the text is the same and the second half was enough."""
    await asyncio.to_thread(_forget, folder)
    reached_s = 0.0
    async with _child(_ours(recording), folder, folder / "output.txt", folder / "errors.txt") as child:
        while child.returncode is None and reached_s < length_s / 2:
            await asyncio.sleep(_POLL_S)
            _, reached_s = await asyncio.to_thread(_written, folder)
        if child.returncode is None:
            child.kill()
    written, _ = await asyncio.to_thread(_written, folder)
    rest = await _measure("after kill -9", _ours(recording), folder)
    same = compare(whole.text, rest.text).total
    print(
        f"killed after {written} pieces: the rest took {rest.wall_s:.1f} of {whole.wall_s:.1f} s, "
        f"{rest.cpu_s:.1f} of {whole.cpu_s:.1f} CPU s; {same} words differ from the run in one"
    )
    return same <= MORE_WORDS * len(whole.text.split()) and rest.cpu_s < 0.8 * whole.cpu_s


def _forget(folder: Path) -> None:
    for old in (folder / "journals").glob("*.jsonl"):
        old.unlink()


def _written(folder: Path) -> tuple[int, float]:
    """How many pieces are in the journal, and where the last of them ends, in seconds of the recording."""
    pieces: list[list[int]] = []
    for path in (folder / "journals").glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line break is still being written
        pieces += [json.loads(line)["piece"] for line in lines]
    return len(pieces), max((end for _, end, _ in pieces), default=0) / ASR_RATE_HZ

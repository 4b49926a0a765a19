"""Do real recordings make real turns? One turn each, words recognised, answers intelligible, the history as heard.

The folder holds recordings and a ``manifest.jsonl`` with one object a line: ``file`` and the spoken ``text``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from loadtest.calls import CallRecord, hold_call, machine_load
from loadtest.wer import compare, pooled
from stages import presets
from voice.audio import read_file, resample
from voice.errors import BadRequest
from voice.events import ResponseEnded
from voice.interfaces import ASR_RATE_HZ, Stages
from voice.scope import Scope


def load_manifest(folder: Path) -> list[tuple[Path, str]]:
    """The recordings with their texts."""
    manifest = folder / "manifest.jsonl"
    if not manifest.is_file():
        raise BadRequest(f"{folder} has no manifest.jsonl")
    rows = [json.loads(line) for line in manifest.read_text().splitlines() if line.strip()]
    return [(folder / row["file"], row["text"]) for row in rows]


async def apart(stages: Stages, folder: Path, limit: int | None, max_tokens: int) -> bool:
    """Each recording a turn of its own; prints and returns whether all is well."""
    rows = load_manifest(folder)[:limit]
    with tempfile.TemporaryDirectory(prefix="voice-") as place:
        call = await hold_call(stages, [f for f, _ in rows], Path(place) / "call.wav", max_tokens=max_tokens)
    spoken = [s for s in call.said if s.text]
    print(f"recordings {len(rows)}, turns {len(spoken)}, problems {len(call.problems)} ({machine_load()})")
    texts = _texts_by_recording(call)
    errors = pooled([(text, heard) for (_, text), heard in zip(rows, texts, strict=True)])
    print(f"words recognised: {errors.rate:.1%} errors ({errors})")
    for (path, text), heard in zip(rows, texts, strict=True):
        if compare(text, heard).rate > 0:
            print(f"  {path.name}: {text!r} heard as {heard!r}")
    clear = await _intelligible(stages, call)
    return len(spoken) == len(rows) and errors.rate <= 0.06 and clear


def _texts_by_recording(call: CallRecord) -> list[str]:
    """The user text of the turns that belong to each recording, by time."""
    texts = ["" for _ in call.turns]
    for answer in call.answers:
        end = answer.times.speech_end_s
        if end is None:
            continue
        for number, turn in enumerate(call.turns):
            if turn.begin_s <= end <= turn.end_s + 1.0:
                texts[number] = f"{texts[number]} {answer.user_text}".strip()
    return texts


async def _intelligible(stages: Stages, call: CallRecord, words: int = 0) -> bool:
    """Whether transcribing the agent's channel gives back what the agent says it said.

    ``words`` that differ are forgiven: an answer that is cut ends within a word of the ear.
    """
    worst, bad, pairs = 0.0, 0, []
    with Scope("process") as scope:
        for answer in call.answers:
            start, end = _audible(call, answer.times.first_audio_s, _next_audio(call, answer))
            if start is None or end is None or not answer.heard:
                continue
            pcm = call.channels.agent_between(start - 0.1, end + 0.2)
            text = (
                await stages.recogniser.transcribe(resample(pcm, call.channels.rate_hz, ASR_RATE_HZ), scope)
            ).text
            pairs.append((answer.heard, text))
            errors = compare(answer.heard, text)
            rate = errors.rate
            worst = max(worst, rate)
            if rate > 0.15 and errors.total > words:
                bad += 1
                print(f"  answer {answer.heard!r} sounds like {text!r} ({rate:.0%})")
    total = pooled(pairs)
    print(f"answers: {len(pairs)}, {total.rate:.1%} errors, worst {worst:.0%}, above 15 %: {bad}")
    return bad == 0


def _next_audio(call: CallRecord, answer: ResponseEnded) -> float:
    starts = [a.times.first_audio_s for a in call.answers if a.times.first_audio_s is not None]
    mine = answer.times.first_audio_s
    return min((s for s in starts if mine is not None and s > mine), default=float("inf"))


def _audible(call: CallRecord, start: float | None, end: float) -> tuple[float | None, float | None]:
    if start is None:
        return None, None
    before = end - 0.02
    return call.channels.first_agent_s(start - 0.05, before), call.channels.last_agent_s(start - 0.05, before)


async def joined(stages: Stages, folder: Path, limit: int | None, gap_s: float, max_tokens: int) -> bool:
    """All recordings in one stream with gaps: the caller talks into most answers."""
    rows = load_manifest(folder)[:limit]
    parts: list[np.ndarray] = []
    gap = np.zeros(int(gap_s * ASR_RATE_HZ), np.int16)
    for path, _ in rows:
        pcm, rate_hz = read_file(path)
        parts += [resample(pcm, rate_hz, ASR_RATE_HZ), gap]
    with tempfile.TemporaryDirectory(prefix="voice-") as place:
        stream = Path(place) / "joined.wav"
        soundfile.write(stream, np.concatenate(parts), ASR_RATE_HZ)
        call = await hold_call(stages, [stream], Path(place) / "call.wav", max_tokens=max_tokens)
    spoken = [s for s in call.said if s.text]
    cut = sum(a.status == "interrupted" for a in call.answers)
    print(f"recordings {len(rows)}, turns {len(spoken)}, answers interrupted {cut} ({machine_load()})")
    errors = pooled([(" ".join(t for _, t in rows), " ".join(s.text for s in spoken))])
    print(f"words recognised: {errors.rate:.1%} errors")
    clear = await _intelligible(stages, call, words=1)
    return len(spoken) == len(rows) and clear


async def run(folder: Path, limit: int | None, gap_s: float | None, max_tokens: int) -> bool:
    """See :func:`apart` and :func:`joined`."""
    stages = presets.local()
    await presets.warm_up(stages)
    if gap_s is None:
        return await apart(stages, folder, limit, max_tokens)
    return await joined(stages, folder, limit, gap_s, max_tokens)

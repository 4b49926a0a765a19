"""A conversation on the real local engines: the loop is never held, nothing is left over, an interruption is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from watchdog import LIMIT_MS, watch_callbacks

from loadtest.calls import CallRecord, hold_call
from stages import presets
from voice.audio import read_file, resample
from voice.interfaces import Stages

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def stages() -> Stages:
    ready = presets.local()
    asyncio.run(presets.warm_up(ready))
    return ready


def talk(stages: Stages, files: list[Path], folder: Path, max_tokens: int = 10) -> CallRecord:
    return asyncio.run(hold_call(stages, files, folder / "call.wav", max_tokens=max_tokens))


def test_no_callback_computes_for_longer_than_5_ms(
    stages: Stages, speech_file: Callable[[str], Path], tmp_path: Path
) -> None:
    question = [speech_file("It costs $49.95, why is that?")]
    talk(stages, question, tmp_path)  # what is made once in a process is made here
    with watch_callbacks() as seen:
        call = talk(stages, question, tmp_path)
    assert len(call.answers) == 1
    assert seen.calls > 250
    assert seen.worst_ms <= LIMIT_MS, seen.report()


def test_nothing_is_left_over(stages: Stages, speech_file: Callable[[str], Path], tmp_path: Path) -> None:
    """Threads of the shared engines stay; each session's own must go."""
    question = [speech_file("Where do penguins live?")]
    process = psutil.Process()
    talk(stages, question, tmp_path)
    threads, files = process.num_threads(), process.num_fds()
    talk(stages, question, tmp_path)
    assert process.num_threads() <= threads + 2  # a pool's idle thread may come or go
    assert process.num_fds() <= files + 2


def test_an_interruption_silences_the_agent_and_the_history_ends_where_the_ear_did(
    stages: Stages, speech_file: Callable[[str], Path], tmp_path: Path
) -> None:
    parts = []
    for text in ("Please tell me a long story about a boat.", "Wait, please stop for a moment."):
        pcm, rate = read_file(speech_file(text))
        parts += [resample(pcm, rate, 16_000), np.zeros(int(3.5 * 16_000), np.int16)]
    caller = tmp_path / "caller.wav"
    soundfile.write(caller, np.concatenate(parts[:3]), 16_000)
    call = talk(stages, [caller], tmp_path, max_tokens=80)
    cut = call.answers[0]
    assert cut.status == "interrupted"
    assert cut.generated.startswith(cut.heard.rstrip())
    assert 0 < len(cut.heard.split()) < len(cut.generated.split())
    assert cut.times.first_audio_s is not None
    edge = min(at for at in call.edges_s if at > cut.times.first_audio_s)
    following = call.answers[1].times.first_audio_s or float("inf")
    last = call.channels.last_agent_s(cut.times.first_audio_s, following)
    assert last is not None
    assert last <= edge + 0.06

"""What all tests share: their speech comes from the default voice, made once a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

SpeechFile = Callable[[str], Path]


@pytest.fixture(scope="session")
def speech_file(tmp_path_factory: pytest.TempPathFactory) -> SpeechFile:
    """A function that has the default voice speak a text into a WAV file."""
    from loadtest.calls import speech
    from stages import presets

    folder = tmp_path_factory.mktemp("speech")
    made: dict[str, Path] = {}

    def make(text: str) -> Path:
        if text not in made:
            stages = presets.local()
            made[text] = folder / f"{len(made)}.wav"
            soundfile.write(made[text], asyncio.run(speech(stages, text)), stages.synthesiser.sample_rate)
        return made[text]

    return make

"""What does the caller's voice sound like? WAV files for the clients: tones that the test agent takes for words.

What each sentence is: :data:`clients.agent.CALLER`.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from clients import agent as test_agent

from voice.interfaces import Pcm16
from voice.testing import speak

RATE_HZ = 24_000
SPEECH_S = 0.8
FILES = {
    "hello": test_agent.HELLO,
    "weather": test_agent.WEATHER,
    "story": test_agent.STORY,
    "stop": test_agent.STOP,
    "pushed": test_agent.PUSHED,
    "forecast": test_agent.FORECAST,
}
"""Name of the file, without ``.wav`` → pitch of what is said in it."""


def said(name: str) -> Pcm16:
    """What is said in the file ``name``: 24 kHz, no silence around it."""
    return speak(SPEECH_S, FILES[name], RATE_HZ)


def write(folder: Path) -> None:
    """Write ``NAME.wav`` for each name of :data:`FILES`: 24 kHz, mono, 16 bit."""
    for name in FILES:
        save(folder / f"{name}.wav", said(name))


def save(path: Path, pcm: Pcm16) -> None:
    """Write one WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.ascontiguousarray(pcm, "<i2").tobytes())

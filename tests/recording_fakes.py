"""What tests of recordings share: tones that stand for utterances, and a detector that tells them by their level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from stages.asr.recordings.speech import Probabilities
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.testing import silence, speak

WINDOW = 512


class LevelFinder:
    """Speech is what is louder than nothing."""

    def open(self) -> LevelPath:
        return LevelPath()


class LevelPath:
    """One recording."""

    def __init__(self) -> None:
        self._rest: Pcm16 = np.zeros(0, np.int16)

    def push(self, pcm: Pcm16) -> Iterator[tuple[Pcm16, Probabilities]]:
        whole = np.concatenate([self._rest, pcm])
        cut = len(whole) // WINDOW * WINDOW
        self._rest = whole[cut:]
        if cut:
            yield whole[:cut], _loud(whole[:cut])

    def end(self) -> Iterator[tuple[Pcm16, Probabilities]]:
        if len(self._rest):
            whole = np.concatenate([self._rest, np.zeros(WINDOW - len(self._rest), np.int16)])
            yield whole, _loud(whole)


def _loud(audio: Pcm16) -> Probabilities:
    peaks = np.abs(audio.reshape(-1, WINDOW).astype(np.int32)).max(axis=1)
    return (peaks > 500).astype(np.float32)


def hz_of(number: int) -> int:
    """The tone of an utterance; twelve can be told apart."""
    return 160 + 20 * (number % 12)


def tones(path: Path, utterances: int, *, speech_s: float = 1.2, pause_s: float = 1.0) -> Path:
    """A recording of so many utterances, each a tone of its own, with pauses between."""
    parts: list[Pcm16] = [silence(pause_s, ASR_RATE_HZ)]
    for number in range(utterances):
        parts += [speak(speech_s, hz_of(number)), silence(pause_s, ASR_RATE_HZ)]
    soundfile.write(path, np.concatenate(parts), ASR_RATE_HZ)
    return path


def texts(words: Sequence[str]) -> dict[int, str]:
    """What a scripted recogniser hears in :func:`tones`."""
    return {hz_of(number): word for number, word in enumerate(words)}

"""What does a conversation sound like whose speakers and turns are known? Recorded or made-up voices, joined."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from loadtest.diarisation_error import Spoken
from stages.asr.levels import BLOCK_S, block_levels
from stages.tts.piper import Piper, PiperOptions
from voice.audio import resample
from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.speaking import spoken_text

HEIGHTS = (1.0, 1.3, 0.78, 1.6)
"""How much higher than the default voice the made-up ones are, pitch and formants alike, at the same pace."""

SENTENCES = (
    "Good morning, I would like to ask about the parcel that was sent to me last week.",
    "Could you tell me when the next train leaves in the evening?",
    "The meeting was moved to Thursday, because two people could not come.",
    "We walked along the river until it was too dark to see the path.",
    "I am not sure whether the office is open on Saturdays.",
    "Please send the invoice to my new address, I moved in September.",
    "The soup was cold, but the bread and the cheese were excellent.",
    "My sister plays the violin in a small orchestra near the harbour.",
    "How long does it take to repair a broken window of that size?",
    "They found an old map in the attic and hung it in the kitchen.",
    "No, I have never been there before. What is it like?",
    "The weather changed so quickly that we carried the chairs inside.",
    "Let me look at the calendar and call you back this afternoon.",
    "The children were playing football in the yard behind the school.",
    "He opened the letter slowly and read it twice before he answered.",
    "Thank you for waiting, your table will be ready in a moment.",
)

_SPEECH_RMS = 2_600  # about −22 dBFS
_LOUDER_DB = 4.0
_ROOM_PEAK = 12
_RANGE_DB = 25.0
"""What is this far below the loudest is a pause: old recordings hiss at −30 dB."""
_SILENCE_DBFS = -70.0
_SHORTEST_S = 0.7
_PAUSE_S = 0.3
"""A longer one ends an utterance: nobody speaks in it."""
_FILES = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recording and who speaks in it.

    Attributes:
        audio: 16 kHz.
        turns: What each utterance's first and last audible moments are, in order; none overlap.
    """

    audio: Pcm16
    turns: tuple[Spoken, ...]


async def made_up_voices(count: int) -> dict[str, list[Pcm16]]:
    """So many voices that each speak all sentences, at 16 kHz: the default voice, spoken slower or faster and then
    played back faster or slower.

    Raises:
        BadRequest: More voices than there are heights.
        ModelMissing: The default voice is not to be had.
    """
    if not 1 <= count <= len(HEIGHTS):
        raise BadRequest(f"there are 1 to {len(HEIGHTS)} made-up voices, not {count}")
    voices: dict[str, list[Pcm16]] = {}
    for height in HEIGHTS[:count]:
        piper = Piper(options=PiperOptions(speed=1.0 / height))
        rate_hz = round(piper.sample_rate * height)
        said = [await spoken_text(piper, sentence) for sentence in SENTENCES]
        voices[f"height {height:g}"] = _utterances([resample(pcm, rate_hz, ASR_RATE_HZ) for pcm in said])
    return voices


def recorded_voice(path: Path) -> list[Pcm16]:
    """The utterances of one speaker, at 16 kHz: a recording, or all recordings of a folder.

    Raises:
        BadRequest: No recording, one that can't be read, or none with speech of a second.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in _FILES) if path.is_dir() else [path]
    said: list[Pcm16] = []
    for file in files:
        try:
            pcm, rate_hz = soundfile.read(file, dtype="int16", always_2d=True)
        except (OSError, RuntimeError) as error:  # soundfile's own error is a RuntimeError
            raise BadRequest(f"{file} can't be read as a recording: {error}") from error
        said.append(resample(np.ascontiguousarray(pcm[:, 0]), rate_hz, ASR_RATE_HZ))
    if not (utterances := _utterances(said)):
        raise BadRequest(f"{path} holds no recording of a second of speech or more")
    return utterances


def _utterances(said: Sequence[Pcm16]) -> list[Pcm16]:
    """What is said between pauses, without silence around it, and all as loud."""
    utterances: list[Pcm16] = []
    for pcm in said:
        levels = block_levels(pcm)
        quiet_dbfs = max(float(np.percentile(levels, 95)) - _RANGE_DB, _SILENCE_DBFS)
        audible = np.flatnonzero(levels > quiet_dbfs)
        for blocks in np.split(audible, np.flatnonzero(np.diff(audible) > _PAUSE_S / BLOCK_S) + 1):
            if len(blocks) < _SHORTEST_S / BLOCK_S:
                continue
            first, last = (round(block * BLOCK_S * ASR_RATE_HZ) for block in (blocks[0], blocks[-1] + 1))
            heard = pcm[first:last].astype(np.float64)
            heard *= _SPEECH_RMS / np.sqrt(np.mean(np.square(heard)))
            utterances.append(np.clip(heard, -32_768, 32_767).astype(np.int16))
    return utterances


def conversation(voices: Mapping[str, Sequence[Pcm16]], seconds: float, seed: int) -> Conversation:
    """Turns of one to three utterances, each by another speaker than the last, with pauses of 0.2 to 1.2 s between
    turns and 0.1 to 0.5 s inside; each speaker with a loudness of its own (± 4 dB), in a room that is never quite
    silent.

    Args:
        voices: Utterances of each speaker at 16 kHz; spoken in random order, again when all have been.
        seconds: The last utterance is the first to pass this.
        seed: Everything follows from it and the voices.

    Raises:
        BadRequest: No voice, or one that says nothing.
    """
    if not voices or not all(voices.values()):
        raise BadRequest("a conversation needs voices that say something")
    rng = random.Random(seed)
    gains = {name: 10.0 ** (rng.uniform(-_LOUDER_DB, _LOUDER_DB) / 20.0) for name in voices}
    waiting: dict[str, list[Pcm16]] = {name: [] for name in voices}
    parts: list[tuple[int, Pcm16]] = []
    turns: list[Spoken] = []
    at_s, speaker = 0.5, ""
    while at_s < seconds:
        speaker = rng.choice([name for name in voices if name != speaker] or list(voices))
        for _ in range(rng.randint(1, 3)):
            if not waiting[speaker]:
                waiting[speaker] = rng.sample(list(voices[speaker]), len(voices[speaker]))
            said = waiting[speaker].pop()
            parts.append((round(at_s * ASR_RATE_HZ), _louder(said, gains[speaker])))
            turns.append((at_s, at_s + len(said) / ASR_RATE_HZ, speaker))
            at_s = turns[-1][1] + rng.uniform(0.1, 0.5)
        at_s += rng.uniform(0.1, 0.7)
    audio = np.random.default_rng(seed).integers(-_ROOM_PEAK, _ROOM_PEAK, round((at_s + 0.5) * ASR_RATE_HZ))
    for start, said in parts:
        audio[start : start + len(said)] += said
    return Conversation(np.clip(audio, -32_768, 32_767).astype(np.int16), tuple(turns))


def _louder(pcm: Pcm16, gain: float) -> Pcm16:
    louder: Pcm16 = np.clip(pcm * gain, -32_768, 32_767).astype(np.int16)
    return louder

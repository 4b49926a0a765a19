"""What does a recogniser hear in its test? Recordings with their words, or sentences in the default voice; alone, or
joined to long utterances."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.prompts import load_manifest
from loadtest.turn_sentences import TEST, TRAIN
from stages.tts.piper import DEFAULT_VOICE, Piper, PiperOptions
from voice.audio import first_audible, last_audible, read_file, resample
from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.speaking import spoken_text

SHORTEST_LONG_S, LONGEST_LONG_S = 10.0, 28.0
"""Of joined utterances: up to what Whisper takes in one window."""
JOIN_PAUSES_S = (0.2, 0.4)
ROUNDS = 2
"""How often each utterance is part of a long one, beside other neighbours."""
ROOM_PEAK = 8
"""Of the noise in pauses: a microphone is never quite silent."""

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAMES_AND_NUMBERS = (
    "My name is Eleanor Whitfield, and my colleague is Daniel Okafor.",
    "Please put me through to Doctor Steinberg in cardiology.",
    "The meeting with Priya Raman and Tom Gallagher is on Wednesday.",
    "I live in Albuquerque, but I was born in Minneapolis.",
    "We flew from Lisbon to Copenhagen by way of Frankfurt.",
    "The total comes to three hundred and forty seven dollars.",
    "It was founded in nineteen eighty four and sold in two thousand and twelve.",
    "Take the number sixteen bus and get off after eleven stops.",
    "The temperature fell from seventy two to fifty eight degrees.",
    "Gate twenty three closes in fifteen minutes.",
    "About sixty percent of the orders arrive within two days.",
    "Her extension is four thousand two hundred and nine.",
    "Mix two cups of flour with half a cup of sugar.",
    "The flight to Buenos Aires leaves at a quarter past nine.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """Something said.

    Attributes:
        name: Tells it from all others of a corpus.
        text: The words.
        audio: 16 kHz.
    """

    name: str
    text: str
    audio: Pcm16

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.audio) / ASR_RATE_HZ


def recorded(folder: Path, limit: int | None = None) -> list[Utterance]:
    """The recordings of a folder; its ``manifest.jsonl`` has one object a line: ``file`` and the spoken ``text``.

    Raises:
        BadRequest: No manifest, one that is no list of recordings, or none in it.
        BadAudio: A recording that can't be read.
    """
    try:
        rows = load_manifest(folder)[:limit]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{folder}/manifest.jsonl must have a file and a text in each line: {error!r}"
        ) from error
    if not rows:
        raise BadRequest(f"{folder}/manifest.jsonl names no recordings")
    found = []
    for path, text in rows:
        pcm, rate_hz = read_file(path)
        found.append(Utterance(path.name, str(text), resample(pcm, rate_hz, ASR_RATE_HZ)))
    return found


def sentences(seed: int, limit: int | None = None) -> list[str]:
    """Sentences without hesitations, in an order drawn from the seed; digits are drawn, too."""
    draw = random.Random(f"recognition {seed}")
    written = [one.text for one in (*TEST, *TRAIN) if one.kind != "hesitation"]
    written = list(dict.fromkeys([*written, *_NAMES_AND_NUMBERS]))
    draw.shuffle(written)
    return [_spelled(text, draw) for text in written[:limit]]


def _spelled(text: str, draw: random.Random) -> str:
    """As it is spoken without pauses: ``{3}`` becomes three digits."""

    def digits(match: re.Match[str]) -> str:
        return " ".join(draw.choice(_DIGITS) for _ in range(int(match[1])))

    spoken = re.sub(r"\{(\d)\}", digits, text.replace("|", " "))
    return re.sub(r"\s+([.,?!])", r"\1", re.sub(r"\s+", " ", spoken)).strip()


async def generated(seed: int, limit: int | None = None) -> list[Utterance]:
    """Sentences in the default voice, each with silence of 0.2 s around it.

    Raises:
        ModelMissing: The default voice is neither here nor to be had.
    """
    texts = sentences(seed, limit)
    return [
        Utterance(f"said {n}", text, pcm)
        for n, (text, pcm) in enumerate(zip(texts, await say(texts), strict=True))
    ]


async def say(texts: Sequence[str]) -> list[Pcm16]:
    """Each text in the default voice at 16 kHz, with room noise of 0.2 s around it; the same for the same text."""
    piper = Piper(DEFAULT_VOICE, options=PiperOptions(deterministic=True))
    around = room(0.2, np.random.default_rng(0))
    said = []
    for text in texts:
        pcm = resample(await spoken_text(piper, text), piper.sample_rate, ASR_RATE_HZ)
        said.append(np.concatenate([around, trimmed(pcm), around]))
    return said


def trimmed(pcm: Pcm16) -> Pcm16:
    """Without the silence around it, but for a moment that soft sounds may need."""
    start, end = first_audible(pcm, ASR_RATE_HZ), last_audible(pcm, ASR_RATE_HZ)
    if start is None or end is None:
        return pcm
    margin = ASR_RATE_HZ // 20
    return pcm[max(0, start - margin) : end + margin]


def room(seconds: float, rng: np.random.Generator) -> Pcm16:
    """A quiet room."""
    return rng.integers(-ROOM_PEAK, ROOM_PEAK + 1, round(seconds * ASR_RATE_HZ)).astype(np.int16)


def joined(utterances: Sequence[Utterance], seed: int) -> list[Utterance]:
    """Long utterances of :data:`SHORTEST_LONG_S` to :data:`LONGEST_LONG_S` made of short ones, with short pauses."""
    rng = np.random.default_rng(seed)
    found: list[Utterance] = []
    for _ in range(ROUNDS):
        waiting = [utterances[n] for n in rng.permutation(len(utterances))]
        while waiting:
            wanted_s = rng.uniform(SHORTEST_LONG_S, LONGEST_LONG_S)
            texts: list[str] = []
            parts: list[Pcm16] = []
            total_s = 0.0
            while waiting and total_s < wanted_s:
                sound = trimmed(waiting[-1].audio)
                pause = room(rng.uniform(*JOIN_PAUSES_S), rng)
                total_s += (len(sound) + len(pause)) / ASR_RATE_HZ
                if total_s > LONGEST_LONG_S and parts:
                    break
                texts.append(waiting.pop().text)
                parts += [pause, sound]
            audio = np.concatenate(parts)
            if SHORTEST_LONG_S <= len(audio) / ASR_RATE_HZ <= LONGEST_LONG_S:
                found.append(Utterance(f"long {len(found)}", " ".join(texts), audio))
    return found

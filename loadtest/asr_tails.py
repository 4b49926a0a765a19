"""Is something heard after what was said? In noise that follows speech, and in partial texts against the final one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.asr_corpus import Utterance
from loadtest.asr_engines import Engine, hear
from loadtest.asr_noises import KINDS, piece
from loadtest.asr_slices import speech_level
from loadtest.overlap_sounds import to_wave
from loadtest.wer import normalise

TAIL_S = 5.0
TAIL_DB = (-25.0, -5.0)
"""Of the noise after speech, against the speech."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Speech that noise follows.

    Attributes:
        name, said: Of the utterance.
        noise: Its kind.
        alone: What is heard of the speech alone.
        followed: What is heard with the noise.
        words: Of ``followed`` after all that was said.
        words_alone: The same of ``alone``: no fault of the noise.
    """

    name: str
    said: str
    noise: str
    alone: str
    followed: str
    words: int
    words_alone: int


def words_after(said: str, heard: str) -> int:
    """Words that were heard after all that was said.

    Compared by letters, so that a last word that noise made two of is none: the cheapest alignment of all that was said
    with a beginning of what was heard; what begins after that counts.
    """
    words = normalise(heard)
    costs = beginnings("".join(normalise(said)), "".join(words))
    last = max(end for end, cost in enumerate(costs) if cost == min(costs))
    begins = [sum(len(word) for word in words[:n]) for n in range(len(words))]
    return sum(at >= last for at in begins)


def words_changed(settled: str, final: str) -> tuple[int, int]:
    """How many words were settled, and how many the final text says otherwise: edits to a beginning of it."""
    words = normalise(settled)
    return len(words), min(*beginnings(words, normalise(final)), len(words))


def beginnings(wanted: Sequence[str], found: Sequence[str]) -> list[int]:
    """The edits (Levenshtein) that make all of ``wanted`` each beginning of ``found``, from none of it to all."""
    row = list(range(len(found) + 1))
    for count, one in enumerate(wanted, 1):
        corner, row[0] = row[0], count
        for end, other in enumerate(found, 1):
            corner, row[end] = row[end], min(corner + (one != other), row[end] + 1, row[end - 1] + 1)
    return row


async def speech_then_noise(engine: Engine, said: Sequence[Utterance], seed: int) -> list[Tail]:
    """Each utterance with :data:`TAIL_S` of a noise after it, the kinds in turn."""
    rng = np.random.default_rng([seed, 99])
    tails = []
    for number, one in enumerate(said):
        kind = list(KINDS)[number % len(KINDS)]
        dbfs = 20 * np.log10(max(1e-6, speech_level(to_wave(one.audio)))) + rng.uniform(*TAIL_DB)
        noise = piece(kind, rng, TAIL_S, float(dbfs))
        alone = (await hear(engine, one.audio)).text
        followed = (await hear(engine, np.concatenate([one.audio, noise]))).text
        after, before = words_after(one.text, followed), words_after(one.text, alone)
        tails.append(Tail(one.name, one.text, kind, alone, followed, after, before))
    return tails

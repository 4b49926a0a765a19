"""Who speaks when: how often is the diariser wrong in conversations that are known, and what does it cost?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from loadtest.calls import machine_load
from loadtest.conversations import Conversation, conversation, made_up_voices, recorded_voice
from loadtest.diarisation_error import DiarisationError, diarisation_error
from stages.asr.speakers.diarise import Diariser, SpeakerTurn
from stages.asr.speakers.encoder import SpeakerEncoder
from stages.vad.silero import WINDOW_S, WINDOW_SAMPLES, SileroVad
from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16

MOST_ERROR = 0.15
"""Of two speakers, without a collar."""
COLLAR_S = 0.25

_BEGINS, _ENDS = 0.5, 0.35
_PAUSE_S = 0.3


async def run(paths: Sequence[Path], minutes: float, runs: int, seed: int | None) -> bool:
    """Print the diarisation error of generated conversations, some with one speaker, some with all.

    Args:
        paths: One recording or folder of recordings for each speaker; none: made-up voices.
        minutes: Length of a conversation.
        runs: Conversations of each kind.
        seed: Of the first conversation; ``None``: drawn, and printed.

    Returns:
        Whether two speakers were told apart with at most 15 % error on average, and one speaker was always one.

    Raises:
        BadRequest: Two paths of the same name, or one without speech.
    """
    seed = random.randrange(10_000) if seed is None else seed
    voices = {path.stem: recorded_voice(path) for path in paths} or await made_up_voices(3)
    if paths and len(voices) < len(paths):
        raise BadRequest("two of the voices have the same name: name each file or folder after its speaker")
    print(f"conversations of {minutes:g} minutes, {runs} of each kind, first seed {seed}; {machine_load()}")
    print(f"error: missed + false + confused, % of speech; ±{COLLAR_S:g} s: without the ends of utterances\n")
    print(
        f"{'speakers':24}{'seed':>6}{'found':>7}{'error':>8}{'missed':>8}{'false':>7}{'confused':>10}", end=""
    )
    print(f"{f'±{COLLAR_S:g} s':>9}{'CPU s/min':>11}")
    diariser, passed = Diariser(SpeakerEncoder()), True
    for names in _casts(list(voices)):
        some = [await _measure(diariser, voices, names, minutes * 60, seed + i) for i in range(runs)]
        mean = sum(error.rate for error in some) / runs
        print(f"{'':24}{'mean':>6}{'':>7}{mean:8.1%}")
        passed &= len(names) != 2 or mean <= MOST_ERROR
        passed &= len(names) != 1 or all(error.found == 1 for error in some)
    diariser.close()
    print(
        "\npassed"
        if passed
        else f"\nfailed: above {MOST_ERROR:.0%} with two speakers, or one heard as several"
    )
    return passed


def _casts(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each alone, each two that are neighbours in the list, and all."""
    casts: list[tuple[str, ...]] = [(name,) for name in names]
    casts += pairwise(names)
    return casts if len(names) < 3 else [*casts, tuple(names)]


async def _measure(
    diariser: Diariser, voices: Mapping[str, Sequence[Pcm16]], names: Sequence[str], seconds: float, seed: int
) -> DiarisationError:
    spoken = conversation({name: voices[name] for name in names}, seconds, seed)
    spans = await speech_spans(spoken.audio)
    began = time.process_time()
    turns = await diariser.speakers(spans, lambda start_s, end_s: _between(spoken.audio, start_s, end_s))
    cpu_s = time.process_time() - began
    error, lenient = compare(spoken, turns), compare(spoken, turns, COLLAR_S)
    parts = [part / error.speech_s for part in (error.missed_s, error.false_s, error.confused_s)]
    print(f"{' + '.join(names)[:23]:24}{seed:6}{error.found:4}/{error.speakers:<2}{error.rate:8.1%}", end="")
    print(f"{parts[0]:8.1%}{parts[1]:7.1%}{parts[2]:10.1%}{lenient.rate:9.1%}", end="")
    print(f"{cpu_s / (len(spoken.audio) / ASR_RATE_HZ / 60):11.2f}", flush=True)
    return error


def compare(spoken: Conversation, turns: Sequence[SpeakerTurn], collar_s: float = 0.0) -> DiarisationError:
    """The error of a diariser's answer."""
    answer = [(turn.start_s, turn.end_s, turn.speaker) for turn in turns]
    return diarisation_error(spoken.turns, answer, collar_s=collar_s)


async def speech_spans(audio: Pcm16) -> list[tuple[float, float]]:
    """Where the default detector hears speech in 16 kHz audio, in seconds; pauses under 0.3 s are part of it."""
    stream, loop = SileroVad().open(), asyncio.get_running_loop()
    speaking, since_s, last_s = False, 0.0, 0.0
    spans: list[tuple[float, float]] = []
    for at in range(0, len(audio) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
        judged: asyncio.Future[float] = loop.create_future()
        stream.push(audio[at : at + WINDOW_SAMPLES], judged.set_result)
        probability, at_s = await judged, at / ASR_RATE_HZ
        if not speaking and probability >= _BEGINS:
            speaking, since_s = True, at_s
        if probability >= _ENDS:
            last_s = at_s + WINDOW_S
        elif speaking and at_s - last_s >= _PAUSE_S:
            spans.append((since_s, last_s))
            speaking = False
    spans += [(since_s, last_s)] if speaking else []
    stream.close()
    return spans


def _between(audio: Pcm16, start_s: float, end_s: float) -> Pcm16:
    return np.ascontiguousarray(audio[round(start_s * ASR_RATE_HZ) : round(end_s * ASR_RATE_HZ)])

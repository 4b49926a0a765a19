"""Can both sides still understand each other? Word errors over the bad network against those over a clean one.

The caller says sentences, which the server recognises; the agent answers with sentences, which the caller's side
recognises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.calls import speech
from loadtest.lossy_relay import Network
from loadtest.prompts import load_manifest
from loadtest.rtc.server import Watched
from loadtest.webrtc_caller import WebRtcCaller
from loadtest.wer import Errors, compare
from voice.audio import read_file, resample
from voice.interfaces import ASR_RATE_HZ, Pcm16, Stages
from voice.scope import Scope

SPEAK_HZ = 24_000
MOST_WORSE = 0.10
"""Word errors over the bad network may be higher by this share of the words."""
SPOKEN = (
    "What time does the next train to the city leave?",
    "I would like to book a table for four people on Friday evening.",
    "Can you tell me the way to the nearest hospital?",
    "My order has not arrived yet and I ordered it two weeks ago.",
    "Please send the invoice to my office and not to my home.",
    "How much does it cost to send a parcel to Canada?",
    "I forgot my password and I can not open my account.",
    "Is there a vegetarian dish on the menu today?",
    "The washing machine makes a loud noise and then it stops.",
    "We need two rooms with a view of the sea for three nights.",
)
"""What the caller says when no recordings are given, in the default voice."""
_QUIET_S = 1.0
_MOST_ANSWER_S = 20.0
_AUDIBLE = 300
_MARGIN_S = 0.3
_NOTHING: Pcm16 = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the caller says: int16 at 24 kHz, and its words."""

    pcm: Pcm16
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Word errors of one call, each way."""

    to_agent: Errors
    to_caller: Errors


async def utterances(stages: Stages, folder: Path | None, limit: int | None) -> list[Utterance]:
    """The recordings of a folder, or :data:`SPOKEN` in the default voice."""
    found = []
    if folder is not None:
        for path, text in load_manifest(folder)[:limit]:
            pcm, rate_hz = read_file(path)
            found.append(Utterance(resample(pcm, rate_hz, SPEAK_HZ), text))
    else:
        rate_hz = stages.synthesiser.sample_rate
        for text in SPOKEN[:limit]:
            found.append(Utterance(resample(await speech(stages, text), rate_hz, SPEAK_HZ), text))
    return found


async def measure(
    server: Watched, stages: Stages, said: Sequence[Utterance], network: Network, *, seed: int
) -> Words:
    """Hold one call."""
    loop = asyncio.get_running_loop()
    seconds = sum(utterance.pcm.size / SPEAK_HZ + _MOST_ANSWER_S for utterance in said)
    to_agent = Errors()
    spans: list[tuple[float, float, str]] = []
    async with WebRtcCaller(server.url, keep=int(50 * seconds), network=network, seed=seed) as caller:
        await asyncio.sleep(_QUIET_S)
        for utterance in said:
            begin = loop.time()
            caller.events.clear()
            caller.say(utterance.pcm)
            with contextlib.suppress(TimeoutError):
                await caller.until(lambda: _is_answered(caller), _MOST_ANSWER_S)
            await asyncio.sleep(_QUIET_S)
            to_agent += compare(utterance.text, _text(caller, "input_audio_transcription.completed"))
            spans.append((begin, loop.time(), _text(caller, "output_audio_transcript.done")))
        heard = list(caller.heard)
    to_caller = Errors()
    for begin, end, text in spans:
        received = np.concatenate([_NOTHING, *(pcm for at, pcm in heard if begin <= at < end)])
        to_caller += compare(text, await _recognised(stages, received))
    return Words(to_agent, to_caller)


def holds(clean: Words, bad: Words) -> bool:
    """Whether the bad network costs few words, each way."""
    return all(b.words > 0 and b.rate - a.rate <= MOST_WORSE for _, a, b in _pairs(clean, bad))


def report(clean: Words, bad: Words) -> str:
    """Lines to print."""
    return "\n".join(
        f"  {name}: word errors {a.rate:.1%} clean, {b.rate:.1%} bad: {100 * (b.rate - a.rate):+.1f} points "
        f"({a.total} of {a.words} and {b.total} of {b.words} words)"
        for name, a, b in _pairs(clean, bad)
    )


def _pairs(clean: Words, bad: Words) -> list[tuple[str, Errors, Errors]]:
    return [
        ("caller to agent", clean.to_agent, bad.to_agent),
        ("agent to caller", clean.to_caller, bad.to_caller),
    ]


def _is_answered(caller: WebRtcCaller) -> bool:
    """The caller has finished, and so has the agent."""
    return not caller.speaking and any(e["type"] == "output_audio_buffer.stopped" for e in caller.events)


def _text(caller: WebRtcCaller, kind: str) -> str:
    """The transcripts of all events of a kind."""
    return " ".join(str(event["transcript"]) for event in caller.events if event["type"].endswith(kind))


async def _recognised(stages: Stages, pcm: Pcm16) -> str:
    """The words of the audible part; an end of silence, as the recogniser gets it in a session."""
    voiced = np.flatnonzero(np.abs(pcm.astype(np.int32)) > _AUDIBLE)
    if not voiced.size:
        return ""
    margin = int(_MARGIN_S * ASR_RATE_HZ)
    pcm = pcm[max(0, int(voiced[0]) - margin) : int(voiced[-1]) + margin]
    with Scope("process") as scope:
        return (await stages.recogniser.transcribe(pcm, scope)).text

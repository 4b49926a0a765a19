"""How many words does a recogniser invent where nobody speaks? By kind of sound: alone, behind the voice detector, and
in noise that follows speech."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from loadtest.asr_corpus import generated, recorded, room
from loadtest.asr_engines import Engine, hear, open_engines, warm
from loadtest.asr_noises import KINDS, pieces
from loadtest.asr_tails import TAIL_S, Tail, speech_then_noise
from loadtest.calls import machine_load
from loadtest.progress import Progress
from loadtest.wer import normalise
from stages.vad.silero import SileroVad
from voice.audio import AudioFormat
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, DetectorStream, Pcm16, VoiceDetector
from voice.options import Limits, TurnOptions

MOST_A_MINUTE = 1.0
"""Words that may be invented where the guards alone stand between noise and text; behind the detector: none."""
_AFTER_S = 0.2  # as a session gives its recogniser after the last sample of speech
_PAUSE_S = 1.0
_JUDGED_WITHIN_S = 60.0


@dataclass
class Invented:
    """Of one kind of sound.

    Attributes:
        seconds: Of sound.
        utterances: What the recogniser was given.
        words: It found in them.
        texts: What they were.
        rejected: How often each reason was given.
        cpu_s: Processor time.
    """

    seconds: float = 0.0
    utterances: int = 0
    words: int = 0
    texts: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    @property
    def a_minute(self) -> float:
        """Words."""
        return 60 * self.words / self.seconds if self.seconds else 0.0

    async def hear(self, engine: Engine, audio: Pcm16) -> None:
        """Have it recognised."""
        heard = await hear(engine, audio)
        self.utterances += 1
        self.cpu_s += heard.cpu_s
        words = normalise(heard.text)
        self.words += len(words)
        if words:
            self.texts.append(heard.text)
        elif heard.rejected is not None:
            self.rejected[heard.rejected] += 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made and asked.

    Attributes:
        minutes: Of sound, all kinds together.
        asr, against, compute_type: See :func:`~loadtest.asr_engines.open_engines`.
        speech: Recordings that noise follows; ``None``: the default voice.
        tails: How many of them.
        seed: Of everything drawn.
        write: A file for the results.
    """

    minutes: float
    asr: tuple[str, ...]
    against: str | None
    compute_type: str | None
    speech: Path | None
    tails: int
    seed: int
    write: Path | None


async def run(plan: Plan) -> bool:
    """Print the tables; whether our recognisers invent at most :data:`MOST_A_MINUTE`, none behind the detector, and
    no tail."""
    engines = open_engines(plan.asr, plan.against, plan.compute_type)
    said = (
        await generated(plan.seed, plan.tails) if plan.speech is None else recorded(plan.speech, plan.tails)
    )
    await warm(engines, said[0].audio)
    print(f"seed {plan.seed}; {plan.minutes:g} min of sounds in which nobody speaks; {machine_load()}")
    each_s, good, detector = 60 * plan.minutes / len(KINDS), True, SileroVad()
    kept: dict[str, object] = {}
    for number, engine in enumerate(engines):
        bare, behind = await _kinds(engine, detector, each_s, plan.seed)
        tails = await speech_then_noise(engine, said, plan.seed)
        _print(engine.name, bare, behind)
        _print_tails(tails)
        if number < max(1, len(plan.asr)):
            good &= _holds(bare, behind, tails)
        kept[engine.name] = {"without_detector": bare, "behind_detector": behind, "tails": tails}
    print(f"\n{machine_load()}; {'passed' if good else 'failed'}")
    if plan.write is not None:
        result = {"minutes": plan.minutes, "seed": plan.seed, "machine": machine_load(), "engines": kept}
        plan.write.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    return good


async def _kinds(
    engine: Engine, detector: VoiceDetector, each_s: float, seed: int
) -> tuple[dict[str, Invented], dict[str, Invented]]:
    """Every kind as utterances of its pieces, and as a stream that the detector cuts."""
    bare: dict[str, Invented] = {}
    behind: dict[str, Invented] = {}
    progress = Progress()
    for number, kind in enumerate(KINDS):
        progress.show(10.0 * number, f"{engine.name}: {kind}")
        bare[kind] = Invented(seconds=each_s)
        for sound in pieces(kind, each_s, seed):
            await bare[kind].hear(engine, sound)
        behind[kind] = await behind_detector(engine, list(pieces(kind, each_s, seed)), detector)
    progress.end()
    return bare, behind


# ---------------------------------------------------------------- behind the detector


class _Stream:
    """A detector's stream that tells when it has judged so many windows."""

    def __init__(self, inner: DetectorStream, windows: int) -> None:
        self._inner, self._left = inner, windows
        self.judged_all = asyncio.Event()

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        def judged(probability: float) -> None:
            self._left -= 1
            on_result(probability)
            if self._left <= 0:
                self.judged_all.set()

        self._inner.push(window, judged)

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


class _OneStream:
    """A detector whose only stream is there already."""

    def __init__(self, detector: VoiceDetector, stream: _Stream) -> None:
        self.name, self.window_samples, self._stream = detector.name, detector.window_samples, stream

    def open(self) -> DetectorStream:
        return self._stream


async def behind_detector(engine: Engine, sounds: Sequence[Pcm16], detector: VoiceDetector) -> Invented:
    """What a session's ear takes for utterances is recognised; a quiet second comes before and after each sound."""
    rng = np.random.default_rng(0)
    streams = [np.concatenate([room(_PAUSE_S, rng), sound, room(_PAUSE_S, rng)]) for sound in sounds]
    found = Invented(seconds=sum(len(sound) for sound in sounds) / ASR_RATE_HZ)
    for utterances in await asyncio.gather(*(utterances_in(stream, detector) for stream in streams)):
        for utterance in utterances:
            await found.hear(engine, utterance)
    return found


async def utterances_in(stream: Pcm16, detector: VoiceDetector) -> list[Pcm16]:
    """What a detector and :class:`~voice.hearing.Ear` take for speech in a stream of a minute at most, as a session
    would hand it on."""
    options, seconds = TurnOptions(), len(stream) / ASR_RATE_HZ
    judged = _Stream(detector.open(), len(stream) // detector.window_samples)
    edges: list[int] = []
    limits = Limits(hear_backlog_s=max(Limits().hear_backlog_s, seconds + 1.0))
    ear = Ear(_OneStream(detector, judged), options, limits, AudioFormat(), edges.append, edges.append)
    ear.keep_from = 0
    ear.hear(stream, seconds)
    async with asyncio.timeout(_JUDGED_WITHIN_S):
        await judged.judged_all.wait()
    ear.close()
    found = []
    for began, paused in zip(edges[::2], [*edges[1::2], len(stream)], strict=False):
        start = max(0, began - int(options.pre_roll_s * ASR_RATE_HZ))
        found.append(stream[start : paused + int(_AFTER_S * ASR_RATE_HZ)])
    return found


# ---------------------------------------------------------------- what is printed


def _holds(bare: dict[str, Invented], behind: dict[str, Invented], tails: Sequence[Tail]) -> bool:
    minutes = sum(one.seconds for one in bare.values()) / 60
    few = sum(one.words for one in bare.values()) <= MOST_A_MINUTE * minutes
    none = sum(one.words for one in behind.values()) == 0
    return few and none and not any(tail.words > tail.words_alone for tail in tails)


def _print(name: str, bare: dict[str, Invented], behind: dict[str, Invented]) -> None:
    print(f"\n{name}{'without a detector':>{42 - len(name)}}{'behind the detector':>32}")
    print(f"{'kind':9}{'min':>6}{'pieces':>8}{'words':>7}{'a min':>7}{'CPU s':>7}", end="")
    print(f"{'utterances':>13}{'words':>7}{'a min':>7}  rejected, without a detector")
    for kind, one in bare.items():
        other = behind[kind]
        why = ", ".join(f"{reason} {count}" for reason, count in one.rejected.most_common())
        _line(kind, one, other, why)
    every, other = Invented(), Invented()
    for target, parts in ((every, bare), (other, behind)):
        for part in parts.values():
            target.seconds += part.seconds
            target.utterances += part.utterances
            target.words += part.words
            target.cpu_s += part.cpu_s
    _line("all", every, other, "")
    for where, parts in (("without", bare), ("behind", behind)):
        for kind, one in parts.items():
            for text in one.texts:
                print(f"  {where} the detector, {kind}: {text!r}")


def _line(kind: str, one: Invented, other: Invented, why: str) -> None:
    print(
        f"{kind:9}{one.seconds / 60:6.1f}{one.utterances:8}{one.words:7}{one.a_minute:7.2f}{one.cpu_s:7.1f}",
        end="",
    )
    print(f"{other.utterances:13}{other.words:7}{other.a_minute:7.2f}  {why}")


def _print_tails(tails: Sequence[Tail]) -> None:
    added = [tail for tail in tails if tail.words > tail.words_alone]
    changed = [tail for tail in tails if normalise(tail.alone) != normalise(tail.followed)]
    print(
        f"{len(tails)} utterances with {TAIL_S:g} s of noise after them: {sum(t.words for t in added)} words of tails "
        f"in {len(added)}; other words than without it in {len(changed)}"
    )
    for tail in added:
        print(f"  {tail.name}, {tail.noise}: {tail.said!r} heard as {tail.followed!r}")

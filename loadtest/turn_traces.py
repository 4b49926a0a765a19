"""What do the engines say about a call? Its pauses as the ear notices them, with words and turn-model answers at each.

No real time passes: each engine hears what it would have heard by then, and how long it takes is charged later, by
:mod:`loadtest.turn_eval`. Results are kept in a folder, by the hash of the audio.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from loadtest.turn_corpus import Call, SpokenTurn
from voice.audio import AudioFormat
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, DetectorStream, Pcm16, Recogniser, VoiceDetector
from voice.options import Limits, TurnOptions
from voice.scope import Priority, Scope

LOOKS_S = (0.2, 0.4, 0.8, 1.4)
"""Silences at which the turn model is asked."""
BEFORE_TURN_S = 0.2
"""The turn model hears the turn from a little before its start."""
_AT_ONCE = 8
_VERSION = 1


class TurnModel(Protocol):
    """Tells from the sound whether the user is done."""

    name: str

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        """Probability, 0–1; ``audio``: 16 kHz, the turn from its start."""


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause as the ear heard it. Times in seconds of the stream.

    Attributes:
        end_s: End of the speech before it.
        noticed_s: When the ear knew of it.
        resumed_s: When the ear noticed speech again, in the same turn; ``None``: the turn is over.
        began_s: Where that speech began.
        text: The words of the turn so far.
        voiced_s: Length of the turn so far, without its pauses.
        looks: Silence at which the turn model was asked, and its answer.
    """

    end_s: float
    noticed_s: float
    resumed_s: float | None
    began_s: float | None
    text: str
    voiced_s: float
    looks: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class TurnTrace:
    """A turn and its pauses. ``pauses[-1]`` is its end, unless it was ``missed``: no pause came after its end."""

    turn: SpokenTurn
    pauses: tuple[Pause, ...]
    missed: bool


@dataclass(frozen=True, slots=True)
class CallTrace:
    name: str
    turns: tuple[TurnTrace, ...]


@dataclass(slots=True)
class _Edge:
    speech: bool
    at: int  # sample where speech began or ended
    noticed: int


class _CountedStream:
    """A detector's stream that knows how many windows were judged."""

    def __init__(self, inner: DetectorStream, windows: int) -> None:
        self._inner, self._left = inner, windows
        self.judged = 0
        self.done = asyncio.Event()

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        def judged(probability: float) -> None:
            self.judged += 1
            on_result(probability)
            if self.judged >= self._left:
                self.done.set()

        self._inner.push(window, judged)

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


class _Counted:
    """A detector for one stream of known length."""

    def __init__(self, detector: VoiceDetector, samples: int) -> None:
        self.name, self.window_samples = detector.name, detector.window_samples
        self.stream = _CountedStream(detector.open(), samples // detector.window_samples)

    def open(self) -> DetectorStream:
        return self.stream


async def _edges(detector: VoiceDetector, audio: Pcm16, options: TurnOptions) -> list[_Edge]:
    """The edges that a session's ear would have seen."""
    counted = _Counted(detector, len(audio))
    found: list[_Edge] = []
    length_s = len(audio) / ASR_RATE_HZ + 1.0

    def note(speech: bool) -> Callable[[int], None]:
        return lambda at: found.append(_Edge(speech, at, counted.stream.judged * counted.window_samples))

    ear = Ear(
        counted,
        options,
        Limits(hear_backlog_s=max(5.0, length_s)),
        AudioFormat("pcm16", ASR_RATE_HZ),
        note(True),
        note(False),
    )
    ear.keep_from = 0
    ear.hear(audio, length_s)
    await counted.stream.done.wait()
    ear.close()
    return found


class Engines:
    """The three engines that turn-taking asks, and the folder of what they answered."""

    def __init__(
        self, detector: VoiceDetector, recogniser: Recogniser, model: TurnModel | None, cache: Path
    ) -> None:
        self._detector, self._recogniser, self._model = detector, recogniser, model
        self._cache = cache
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._scope = Scope("process", priority=Priority.PARTIAL)

    def close(self) -> None:
        self._scope.close()

    async def trace(self, call: Call, options: TurnOptions) -> CallTrace:
        """Hear a whole call."""
        path = self._cache / f"heard-{self._key(call, options)}.json"
        if not path.exists():
            edges = await _edges(self._detector, call.audio, options)
            found = [await self._turn(call.audio, turn, edges, options) for turn in call.turns]
            path.write_text(json.dumps([asdict(one) for one in found]))
        return CallTrace(call.name, tuple(_turn_from_json(row) for row in json.loads(path.read_text())))

    def _key(self, call: Call, options: TurnOptions) -> str:
        """Of what the result depends on."""
        ear = (options.speech_threshold, options.start_s, options.pause_s, options.pre_roll_s)
        names = f"{_VERSION} {self._recogniser.name} {self._model and self._model.name} {LOOKS_S} {ear}"
        turns = json.dumps([asdict(turn) for turn in call.turns])
        return hashlib.sha256(call.audio.tobytes() + names.encode() + turns.encode()).hexdigest()[:20]

    async def _turn(
        self, audio: Pcm16, turn: SpokenTurn, edges: Sequence[_Edge], options: TurnOptions
    ) -> TurnTrace:
        stretches = _stretches(turn, edges)
        if not stretches:
            return TurnTrace(turn, (), missed=True)
        jobs = []
        for number, (_, end) in enumerate(stretches):
            after = stretches[number + 1][0] if number + 1 < len(stretches) else None
            voiced = sum(e.at - b.at for b, e in stretches[: number + 1])
            jobs.append(self._pause(audio, stretches[0][0].at, end, after, voiced, options))
        pauses = await asyncio.gather(*jobs)
        return TurnTrace(turn, tuple(pauses), missed=pauses[-1].end_s < turn.end_s - 0.25)

    async def _pause(
        self, audio: Pcm16, start: int, end: _Edge, after: _Edge | None, voiced: int, options: TurnOptions
    ) -> Pause:
        async with self._slots:
            first = max(0, start - int(options.pre_roll_s * ASR_RATE_HZ))
            heard = audio[first : end.at + int(options.pause_s * ASR_RATE_HZ)]
            text = (await self._recogniser.transcribe(heard, self._scope)).text
            looks = []
            for silence_s in LOOKS_S if self._model is not None else ():
                stop = end.at + int(silence_s * ASR_RATE_HZ)
                if stop > len(audio) or (after is not None and stop > after.noticed):
                    break
                assert self._model is not None
                first = max(0, start - int(BEFORE_TURN_S * ASR_RATE_HZ))
                looks.append((silence_s, await self._model.completion(audio[first:stop], self._scope)))
        return Pause(
            end.at / ASR_RATE_HZ,
            end.noticed / ASR_RATE_HZ,
            None if after is None else after.noticed / ASR_RATE_HZ,
            None if after is None else after.at / ASR_RATE_HZ,
            text,
            voiced / ASR_RATE_HZ,
            tuple(looks),
        )


def _stretches(turn: SpokenTurn, edges: Sequence[_Edge]) -> list[tuple[_Edge, _Edge]]:
    """The turn's stretches of speech as the ear heard them, up to the first that ends at or after its true end."""
    found = []
    for began, ended in itertools.pairwise(edges):
        if not began.speech or ended.speech:
            continue
        if ended.at / ASR_RATE_HZ < turn.start_s or began.at / ASR_RATE_HZ > turn.end_s:
            continue
        found.append((began, ended))
        if ended.at / ASR_RATE_HZ >= turn.end_s - 0.15:
            break
    return found


def _turn_from_json(row: dict[str, Any]) -> TurnTrace:
    turn, pauses = row["turn"], row["pauses"]
    turn["pauses"] = tuple(tuple(p) for p in turn["pauses"])
    made = tuple(Pause(**{**p, "looks": tuple(tuple(look) for look in p["looks"])}) for p in pauses)
    return TurnTrace(SpokenTurn(**turn), made, row["missed"])

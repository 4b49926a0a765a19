"""What came of a recognition test, and how is it kept? Every sample with what was said and heard, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from loadtest.asr_engines import Heard
from loadtest.wer import Errors, compare
from voice.errors import BadRequest

FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """One utterance in one slice.

    Attributes:
        slice: One of :data:`~loadtest.asr_slices.SLICES`.
        name: Of the utterance; no two of a slice have the same.
        said: The words.
        seconds: Of audio.
        heard: By engine.
    """

    slice: str
    name: str
    said: str
    seconds: float
    heard: dict[str, Heard]

    @cached_property
    def errors(self) -> dict[str, Errors]:
        """Of each engine."""
        return {engine: compare(self.said, one.text) for engine, one in self.heard.items()}


@dataclass(frozen=True)
class Accuracy:
    """A run of ``asr accuracy``.

    Attributes:
        voice: Version of the package.
        corpus: Where the speech comes from, in words.
        seed: Of everything drawn.
        machine: Its load and cores.
        setting: Arithmetic and threads, in words.
        engines: Their names, ours first.
        samples: In the order they were heard.
    """

    voice: str
    corpus: str
    seed: int
    machine: str
    setting: str
    engines: tuple[str, ...]
    samples: tuple[Sample, ...]
    format: int = FORMAT

    @property
    def slices(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(sample.slice for sample in self.samples))

    def of(self, name: str | None) -> list[Sample]:
        """The samples of a slice, or all."""
        return [sample for sample in self.samples if name in (None, sample.slice)]


@dataclass(frozen=True, slots=True)
class Total:
    """An engine over some samples."""

    errors: Errors
    seconds: float
    cpu_s: float
    wall_s: float

    @property
    def rtf(self) -> float:
        """Processor time per time of speech."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


def total(samples: Iterable[Sample], engine: str) -> Total:
    """All of them pooled: long utterances weigh more."""
    errors, seconds, cpu_s, wall_s = Errors(), 0.0, 0.0, 0.0
    for sample in samples:
        errors += sample.errors[engine]
        seconds += sample.seconds
        cpu_s += sample.heard[engine].cpu_s
        wall_s += sample.heard[engine].wall_s
    return Total(errors, seconds, cpu_s, wall_s)


def write(result: Accuracy, path: Path) -> None:
    """As JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))


def read(path: Path) -> Accuracy:
    """What :func:`write` wrote.

    Raises:
        BadRequest: No such file, or something else in it.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Accuracy)
    except OSError as error:
        raise BadRequest(f"the baseline can't be read: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not what `asr accuracy --write` writes: {error}") from error
    if result.format != FORMAT:
        raise BadRequest(f"{path} was written by another version (format {result.format}, not {FORMAT})")
    if not result.engines or not result.samples:
        raise BadRequest(f"{path} holds no results")
    for sample in result.samples:
        figures = [sample.seconds, *(f for one in sample.heard.values() for f in (one.cpu_s, one.wall_s))]
        if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
            raise BadRequest(f"{path}: a time of {sample.name} in {sample.slice} is no time")
        if set(sample.heard) != set(result.engines):
            raise BadRequest(
                f"{path}: {sample.name} in {sample.slice} was not heard by each of {result.engines}"
            )
    return result


def failures(result: Accuracy, engine: str, samples: Sequence[Sample] | None = None) -> list[Sample]:
    """What the engine got wrong, worst first."""
    wrong = [one for one in (result.samples if samples is None else samples) if one.errors[engine].total]
    return sorted(wrong, key=lambda one: -one.errors[engine].total)

"""What a profile is: the service times of engines and the processor time of a session, measured once, in a file that
is checked strictly when it is read.

A time has the shape ``(fixed_s + per_unit_s × units) × factor``, where units are seconds of audio, tokens of the
prompt or characters, and the factor is drawn from the spread that was measured around that line.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from voice.errors import BadRequest

VERSION = 1
STAGES = ("recogniser", "model", "synthesiser")
QUANTILES = 21
"""A spread is kept as its minimum, its maximum and what lies between at every 5 %."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution by its quantiles, evenly spaced from the minimum to the maximum."""

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = list(self.quantiles) == sorted(self.quantiles)
        if len(self.quantiles) < 2 or not ascending or not all(map(math.isfinite, self.quantiles)):
            raise BadRequest("a spread is at least two finite numbers in ascending order")

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of what was measured; at least one sample."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        marks = [last * n / (QUANTILES - 1) for n in range(QUANTILES)]
        return cls(tuple(_between(ordered, mark) for mark in marks))

    @classmethod
    def always(cls, value: float) -> Spread:
        """No spread at all."""
        return cls((value, value))

    def at(self, share: float) -> float:
        """The value below which that share (0–1) lies. With a share drawn evenly: a draw."""
        return _between(self.quantiles, share * (len(self.quantiles) - 1))

    @property
    def mean(self) -> float:
        """Of the distribution."""
        inner = sum(self.quantiles[1:-1])
        return (inner + (self.quantiles[0] + self.quantiles[-1]) / 2) / (len(self.quantiles) - 1)


def _between(ordered: Sequence[float], mark: float) -> float:
    low = min(int(mark), len(ordered) - 2) if len(ordered) > 1 else 0
    if len(ordered) == 1:
        return ordered[0]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (mark - low)


@dataclass(frozen=True, slots=True)
class Service:
    """How long a call takes, alone on its engine."""

    fixed_s: float
    per_unit_s: float = 0.0
    factor: Spread = field(default_factory=lambda: Spread.always(1.0))

    def __post_init__(self) -> None:
        if min(self.fixed_s, self.per_unit_s, self.factor.quantiles[0]) < 0:
            raise BadRequest("a service time is not negative")

    def seconds(self, units: float, share: float) -> float:
        """A draw for a call of that size; ``share`` is drawn evenly from 0 to 1."""
        return (self.fixed_s + self.per_unit_s * units) * self.factor.at(share)

    def mean_s(self, units: float) -> float:
        """The mean for calls of that size."""
        return (self.fixed_s + self.per_unit_s * units) * self.factor.mean

    @classmethod
    def fit(cls, calls: Sequence[tuple[float, float]]) -> Service:
        """The line through measured calls, ``(units, seconds)``, and the spread around it.

        Slope and start are those of least squares, held at zero or above: more work never takes less time.
        """
        if not calls:
            raise BadRequest("nothing was measured")
        units, seconds = [u for u, _ in calls], [s for _, s in calls]
        fixed_s, per_unit_s = statistics.fmean(seconds), 0.0
        if len(set(units)) > 1:
            slope = statistics.linear_regression(units, seconds).slope
            per_unit_s = min(max(0.0, slope), fixed_s / statistics.fmean(units))
            fixed_s -= per_unit_s * statistics.fmean(units)
        line = [max(1e-9, fixed_s + per_unit_s * u) for u in units]
        return cls(fixed_s, per_unit_s, Spread.of([s / at for s, at in zip(seconds, line, strict=True)]))


@dataclass(frozen=True, slots=True)
class Engine:
    """What runs calls.

    Attributes:
        places: Calls that one replica runs at once; more wait.
        slowdown: How much longer each call takes for each other one beside it: 0 when they don't meet, 1 when they
            share one processor. It is taken at the call's start, and for a model at each piece of text.
    """

    places: int
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        if self.places < 1 or not 0.0 <= self.slowdown <= 2.0:
            raise BadRequest("an engine has at least one place, and a slowdown from 0 to 2")


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured, of one set of stages on one machine.

    Attributes:
        name: What it is of, for people.
        engines: By name. Stages that name the same one share it.
        engine_of: Stage → engine.
        recognition: By seconds of audio.
        first_token: By characters of the prompt.
        token: Between two tokens; no size.
        first_audio: By characters of the text.
        audio_second: To make one more second of audio after the first; no size.
        words_per_s: Of the voice.
        start_delay_s: From the first sample of speech to the edge.
        pause_delay_s: From the last one to the pause's edge.
        frame_cpu_s: Processor time of a session for each second that it lasts (audio in and out, detector).
        turn_cpu_s: Processor time of a turn on the event loop, all of it.
    """

    name: str
    engines: Mapping[str, Engine]
    engine_of: Mapping[str, str]
    recognition: Service
    first_token: Service
    token: Service
    first_audio: Service
    audio_second: Service
    words_per_s: float = 3.3
    start_delay_s: Spread = field(default_factory=lambda: Spread((0.064, 0.096)))
    pause_delay_s: Spread = field(default_factory=lambda: Spread((0.12, 0.152)))
    frame_cpu_s: float = 0.004
    turn_cpu_s: float = 0.01

    def __post_init__(self) -> None:
        if set(self.engine_of) != set(STAGES) or not set(self.engine_of.values()) <= set(self.engines):
            raise BadRequest(
                f"each of {', '.join(STAGES)} names one of the engines {', '.join(self.engines)}"
            )
        rates = (self.words_per_s, self.frame_cpu_s, self.turn_cpu_s)
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates) or not self.words_per_s:
            raise BadRequest("words_per_s must be positive, processor times at least 0")

    # ------------------------------------------------------------ the file

    def write(self, path: Path) -> None:
        """Save as JSON."""
        content = {"voice_profile": VERSION, **asdict(self)}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Load what :meth:`write` saved.

        Raises:
            BadRequest: Not such a file, of another version, or with values that can't be.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadRequest(f"{path} is no profile: {error}") from None
        version = content.pop("voice_profile", None) if isinstance(content, dict) else None
        if version != VERSION:
            raise BadRequest(f"{path} is no profile of version {VERSION}: record it anew")
        try:
            return _profile(content)
        except BadRequest as error:
            raise BadRequest(f"{path}: {error}") from None


def blank(name: str = "no time at all") -> Profile:
    """A profile of one engine with one place, all of whose calls take no time."""
    none = Service(0.0)
    return Profile(name, {"engine": Engine(1)}, dict.fromkeys(STAGES, "engine"), none, none, none, none, none)


def _profile(content: dict[str, Any]) -> Profile:
    """The profile that a file's content stands for, every field checked."""
    _same_fields("the profile", content, Profile)
    services = ("recognition", "first_token", "token", "first_audio", "audio_second")
    made: dict[str, Any] = {name: _service(name, content[name]) for name in services}
    for name in ("start_delay_s", "pause_delay_s"):
        made[name] = _spread(name, content[name])
    for name in ("words_per_s", "frame_cpu_s", "turn_cpu_s"):
        made[name] = _number(name, content[name])
    engines, engine_of = content["engines"], content["engine_of"]
    if (
        not isinstance(engines, dict)
        or not isinstance(engine_of, dict)
        or not isinstance(content["name"], str)
    ):
        raise BadRequest("engines and engine_of must be objects, and name a string")
    for name, engine in engines.items():
        _same_fields(f"engine {name}", engine, Engine)
        if not isinstance(engine["places"], int) or isinstance(engine["places"], bool):
            raise BadRequest(f"engine {name} has a whole number of places")
    made["engines"] = {
        name: Engine(engine["places"], _number("slowdown", engine["slowdown"]))
        for name, engine in engines.items()
    }
    if not all(isinstance(name, str) for name in engine_of.values()):
        raise BadRequest("engine_of maps names to names")
    return Profile(name=content["name"], engine_of=engine_of, **made)


def _same_fields(what: str, content: object, kind: type[Any]) -> None:
    wanted = set(kind.__dataclass_fields__)
    if not isinstance(content, dict) or set(content) != wanted:
        found = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise BadRequest(f"{what} has the fields {', '.join(sorted(wanted))}, not {found}")


def _service(name: str, content: object) -> Service:
    _same_fields(name, content, Service)
    assert isinstance(content, dict)
    fixed_s, per_unit_s = (_number(f"{name}.{key}", content[key]) for key in ("fixed_s", "per_unit_s"))
    return Service(fixed_s, per_unit_s, _spread(f"{name}.factor", content["factor"]))


def _spread(name: str, content: object) -> Spread:
    _same_fields(name, content, Spread)
    assert isinstance(content, dict)
    if not isinstance(content["quantiles"], list):
        raise BadRequest(f"{name} has a list of quantiles")
    return Spread(tuple(_number(name, one) for one in content["quantiles"]))


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRequest(f"{name} must be a finite number, not {value!r}")
    return float(value)

"""What do callers do? A scenario: what they say, how long they think, when they interrupt, nod or hang up, and what
network is between. Read from TOML or JSON and checked to the last key; each caller draws its turns from it.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from voice.errors import BadRequest

_MOST = 10**12
"""Of any number: longer ones can't always be printed, nor reckoned with."""
TEXTS = (
    "I would really like to hear more about the weather tomorrow.",
    "Can you tell me how long the shop is open today?",
    "Please book a table for two at seven.",
    "What was the name of that film again?",
    "I am not sure that I got that right.",
)
NODS = ("Mm-hm.", "Right.")


@dataclass(frozen=True, slots=True)
class Speak:
    """What callers say. Each turn draws one utterance.

    Attributes:
        texts: Spoken by the default voice.
        files: WAV files instead of texts, from the scenario's folder.
        nods: What a backchannel says; spoken by the default voice.
        nod_files: WAV files instead.
    """

    texts: tuple[str, ...] = TEXTS
    files: tuple[str, ...] = ()
    nods: tuple[str, ...] = NODS
    nod_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(
            bool(self.texts or self.files), "speak.texts must name at least one text, or speak.files a file"
        )
        for name in ("texts", "nods"):
            _check(
                all(text.strip() for text in getattr(self, name)), f"speak.{name} must not hold empty texts"
            )


@dataclass(frozen=True, slots=True)
class Spread:
    """Times that are drawn: evenly between two bounds, or from an exponential distribution that is cut there.

    Attributes:
        least_s, most_s: Bounds.
        mean_s: Of the exponential distribution before it is cut; ``None``: evenly.
    """

    least_s: float = 0.5
    most_s: float = 3.0
    mean_s: float | None = None

    def __post_init__(self) -> None:
        _check(
            0 <= self.least_s <= self.most_s <= 3600, "least_s and most_s must be 0 to 3600, in this order"
        )
        _check(self.mean_s is None or self.mean_s > 0, f"mean_s must be above 0, not {self.mean_s}")

    def draw(self, rng: random.Random) -> float:
        """Seconds."""
        if self.mean_s is None:
            return rng.uniform(self.least_s, self.most_s)
        return min(self.most_s, max(self.least_s, rng.expovariate(1.0 / self.mean_s)))


@dataclass(frozen=True, slots=True)
class Interject:
    """A barge-in or a backchannel: in what share of the answers, and how long after their first sound.

    Attributes:
        share: Of the answers, 0 to 1.
        least_s, most_s: After the answer is first heard, drawn evenly.
    """

    share: float = 0.0
    least_s: float = 1.0
    most_s: float = 4.0

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"share must be 0 to 1, not {self.share}")
        _check(
            0 <= self.least_s <= self.most_s <= 3600, "least_s and most_s must be 0 to 3600, in this order"
        )

    def draw(self, rng: random.Random) -> float | None:
        """Seconds after the answer's first sound; ``None``: not in this answer."""
        return rng.uniform(self.least_s, self.most_s) if rng.random() < self.share else None


Moment = Literal["speaking", "waiting", "listening"]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Callers that go without a word, as a phone whose battery is empty, and call again.

    Attributes:
        share: Of the turns, 0 to 1.
        when: What the caller does at that moment; ``"any"`` draws one of the three.
        again_after_s: Until the next call.
    """

    share: float = 0.0
    when: Literal["speaking", "waiting", "listening", "any"] = "any"
    again_after_s: float = 2.0

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"share must be 0 to 1, not {self.share}")
        _check(0 <= self.again_after_s <= 3600, "again_after_s must be 0 to 3600")

    def draw(self, rng: random.Random) -> Moment | None:
        """When in this turn; ``None``: not at all."""
        if rng.random() >= self.share:
            return None
        return rng.choice(get_args(Moment)) if self.when == "any" else self.when


@dataclass(frozen=True, slots=True)
class SlowReader:
    """Callers that take what the server sends slower than it comes. They are not part of the service level.

    Attributes:
        share: Of the callers, 0 to 1.
        bytes_per_s: What they read; speech as the protocol sends it takes 66,000.
    """

    share: float = 0.0
    bytes_per_s: float = 20_000.0

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"share must be 0 to 1, not {self.share}")
        _check(self.bytes_per_s > 0, "bytes_per_s must be above 0")


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between, the same in both directions. A lost packet is a late one: it is sent again.

    Attributes:
        delay_ms: One way.
        jitter_ms: Added to it, evenly from 0.
        loss: Share of the packets, 0 to 1; what comes after a lost one waits for it.
        resend_ms: How much later a lost packet comes.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    resend_ms: float = 200.0

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms", "resend_ms"):
            _check(0 <= getattr(self, name) <= 60_000, f"{name} must be 0 to 60000")
        _check(0 <= self.loss < 1, f"loss must be 0 or more and below 1, not {self.loss}")

    @property
    def perfect(self) -> bool:
        """Whether there is nothing between."""
        return not (self.delay_ms or self.jitter_ms or self.loss)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, without its size.

    Attributes:
        name: Shown in reports.
        ramp_s: Callers arrive evenly within this time.
        frame_ms: Length of the audio events that callers send: 10, 20, 40, 50 or 100.
        answer_s: A turn without an answer after this time is unanswered.
        listen_s: Longest that an answer is listened to; then the caller speaks over it. ``None``: to its end.
        speak, think, barge_in, backchannel, hang_up, slow_reader, network: See their classes; ``think`` is the time
            between an answer and the next turn.
        session: Settings of a Realtime session that each caller asks for at the start, without ``type``.
    """

    name: str = "everyday"
    ramp_s: float = 5.0
    frame_ms: int = 20
    answer_s: float = 10.0
    listen_s: float | None = None
    speak: Speak = field(default_factory=Speak)
    think: Spread = field(default_factory=Spread)
    barge_in: Interject = field(default_factory=lambda: Interject(0.3))
    backchannel: Interject = field(default_factory=Interject)
    hang_up: HangUp = field(default_factory=HangUp)
    slow_reader: SlowReader = field(default_factory=SlowReader)
    network: Network = field(default_factory=Network)
    session: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(bool(self.name.strip()), "name must not be empty")
        _check(0 <= self.ramp_s <= 3600, f"ramp_s must be 0 to 3600, not {self.ramp_s}")
        _check(self.frame_ms in (10, 20, 40, 50, 100), "frame_ms must be 10, 20, 40, 50 or 100")
        _check(0 < self.answer_s <= 600, "answer_s must be above 0, at most 600")
        _check(self.listen_s is None or self.listen_s > 0, "listen_s must be above 0")
        try:
            json.dumps(self.session, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest(f"session can't be sent as JSON: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        """As it would stand in a file."""
        return asdict(self)


def load(path: Path) -> Scenario:
    """Read a scenario: TOML, or JSON when the name ends in ``.json``.

    Raises:
        BadRequest: No such file, not of that format, an unknown key, a value of the wrong type or out of range.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"the scenario {path} can't be read: {error}") from None
    except ValueError as error:
        raise BadRequest(f"the scenario {path} is not valid {path.suffix[1:] or 'TOML'}: {error}") from None
    except RecursionError:
        raise BadRequest(f"the scenario {path} is nested too deeply") from None
    try:
        scenario = read(given)
    except BadRequest as error:
        raise BadRequest(f"the scenario {path}: {error}") from None
    except (RecursionError, ValueError) as error:  # while the fault was told, with what is wrong
        raise BadRequest(f"the scenario {path} holds something of the wrong kind: {error}") from None
    for name in (*scenario.speak.files, *scenario.speak.nod_files):
        if not (path.parent / name).is_file():
            raise BadRequest(f"the scenario {path}: there is no file {path.parent / name}")
    return scenario


def read(given: object) -> Scenario:
    """A scenario from the tables of a file.

    Raises:
        BadRequest: See :func:`load`.
    """
    return _table(Scenario, given, "")


# ---------------------------------------------------------------- strict reading

T = TypeVar("T")


def _table(kind: type[T], given: object, where: str) -> T:
    if not isinstance(given, dict):
        raise BadRequest(f"{where or 'a scenario'} must be a table, not {given!r}")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key in given:
        name = f"{where}.{key}" if where else str(key)
        _check(key in known, f"there is no {name}; known here: {', '.join(known)}")
    values = {
        key: _value(hints[key], value, f"{where}.{key}" if where else key) for key, value in given.items()
    }
    missing = [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in values]
    _check(not missing, f"{where} lacks {', '.join(missing)}")
    try:
        return kind(**values)
    except BadRequest as error:
        prefix = "" if not where or str(error).startswith(where) else f"{where}: "
        raise BadRequest(f"{prefix}{error}") from None


def _value(kind: Any, given: object, where: str) -> Any:
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        return _table(kind, given, where)
    if get_origin(kind) is tuple:
        ok = isinstance(given, list) and all(isinstance(item, str) for item in given)
        _check(ok, f"{where} must be a list of texts, not {given!r}")
        return tuple(given)  # type: ignore[arg-type]
    if get_origin(kind) is Literal:
        _check(
            given in get_args(kind),
            f"{where} must be {' or '.join(map(repr, get_args(kind)))}, not {given!r}",
        )
        return given
    if kind is str:
        _check(isinstance(given, str), f"{where} must be a text, not {given!r}")
        return given
    if get_origin(kind) is Mapping:
        _check(isinstance(given, dict), f"{where} must be a table, not {given!r}")
        return given
    if given is None and type(None) in get_args(kind):
        return None
    _check(not isinstance(given, int) or abs(given) < _MOST, f"{where} must be below {_MOST}")
    number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    _check(number, f"{where} must be a number, not {given!r}")
    _check(kind is not int or isinstance(given, int), f"{where} must be a whole number, not {given!r}")
    return given


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise BadRequest(message)

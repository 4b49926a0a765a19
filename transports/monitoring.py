"""How is the server doing? Counts and times for Prometheus (text format 0.0.4), and log lines for machines.

Neither ever holds what was said. Label values come from small fixed sets, so that no client can make them grow.
"""

from __future__ import annotations

import bisect
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from voice import __version__
from voice.admission import Door
from voice.degradation import Rung
from voice.events import Problem, ResponseEnded, SessionEvent, ToolEnded
from voice.load import StageLoad
from voice.service import Service
from voice.watchdog import CAUSES, Watchdog

LATENCIES_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Upper ends of the buckets for parts of a turn; 0.2 to 1.5 s is where a conversation is won or lost."""

LAGS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""Upper ends of the buckets for the event loop's lag; audio on a 20 ms grid suffers from 20 ms on."""

KINDS = ("twilio", "webrtc", "websocket")
END_REASONS = frozenset(
    {"closed", "client", "idle", "expired", "draining", "disconnected", "slow_client", "events_overflow"}
)
REFUSALS = frozenset(
    {
        "full",
        "client_full",
        "overloaded",
        "draining",
        "loading",
        "unauthorised",
        "forbidden",
        "bad_request",
        "too_large",
    }
)
STATUSES = frozenset({"completed", "interrupted", "cancelled", "failed"})
PROBLEMS = frozenset(
    {
        "EngineFailed",
        "DeadlineExceeded",
        "Overloaded",
        "BadAudio",
        "BadRequest",
        "ModelMissing",
        "ProtocolError",
        "ScopeCancelled",
    }
)

_TURN_PARTS = {
    "voice_to_voice": (
        "voice_to_voice_ms",
        "End of the user's speech to the first audible sample of the answer.",
    ),
    "asr": ("asr_ms", "The recognition that was used."),
    "first_token": ("llm_first_token_ms", "Call of the language model to its first text."),
    "first_audio": ("tts_first_audio_ms", "First call of the synthesiser to its first audio."),
}
_SESSION_COUNTERS = {
    "turns": ("turns_total", "User turns that entered the history."),
    "barge_ins": ("barge_ins_total", "Answers that the user interrupted."),
    "false_alarms": ("false_alarms_total", "Sounds over the agent's voice that turned out to be nothing."),
    "empty_turns": ("empty_turns_total", "Speech without words."),
    "guesses": ("guesses_total", "Answers begun before the turn was certain."),
    "guesses_kept": ("guesses_kept_total", "Guesses that were used."),
    "guesses_dropped": ("guesses_dropped_total", "Guesses that were thrown away."),
    "dropped_audio_samples": (
        "dropped_audio_samples_total",
        "Caller audio at 16 kHz that came faster than it could be judged.",
    ),
}


class Histogram:
    """Counts of values by bucket, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count ``value``; a bucket holds its upper end."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterable[str]:
        """The samples, buckets cumulated."""
        total = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound:g}"}} {total}'
        total += self.counts[-1]
        yield f'{name}_bucket{{le="+Inf"}} {total}'
        yield f"{name}_sum {self.sum:.6g}"
        yield f"{name}_count {total}"


class CountedSession(Protocol):
    """What is read of a session: ``voice.session.Session`` fits."""

    @property
    def counters(self) -> object: ...


class Metrics:
    """What happened on one server since it started."""

    def __init__(self) -> None:
        # shown as 0 from the start: what appears with its first count can't be seen to rise
        self.opened = Counter(dict.fromkeys(KINDS, 0))
        self.ended = Counter(dict.fromkeys(END_REASONS, 0))  # by reason
        self.refused = Counter(dict.fromkeys(REFUSALS, 0))  # by reason
        self.answers = Counter(dict.fromkeys(STATUSES, 0))  # by status
        self.tools = Counter(dict.fromkeys(("completed", "failed"), 0))  # by outcome
        self.problems = Counter(dict.fromkeys(PROBLEMS, 0))  # by kind
        self.lag = Histogram(LAGS_S)
        self.session_s = Histogram((1, 10, 30, 60, 120, 300, 600, 1800, 3600))
        self.turn_parts = {name: Histogram(LATENCIES_S) for name in _TURN_PARTS}
        self._over: Counter[str] = Counter()  # counters of sessions that have ended

    # ------------------------------------------------------------ what is told

    def refuse(self, reason: str) -> None:
        """A request or conversation was refused."""
        self.refused[_known(reason, REFUSALS)] += 1

    def observe(self, event: SessionEvent) -> None:
        """Count what a session told its owner."""
        match event:
            case ResponseEnded():
                self.answers[_known(event.status, STATUSES)] += 1
                for name, (field, _) in _TURN_PARTS.items():
                    if (took_ms := getattr(event.times, field)) is not None:
                        self.turn_parts[name].add(took_ms / 1000)
            case ToolEnded():
                self.tools["failed" if event.error else "completed"] += 1
            case Problem():
                self.problems[_known(event.kind, PROBLEMS)] += 1

    def end(self, reason: str, lasted_s: float, session: CountedSession | None) -> None:
        """A conversation is over; its counters join those of the others."""
        self.ended[_known(reason, END_REASONS)] += 1
        self.session_s.add(lasted_s)
        if session is not None:
            self._over.update(session_counts(session))

    # ------------------------------------------------------------ what is shown

    def render(self, live: Mapping[str, int], sessions: Iterable[CountedSession], state: str) -> str:
        """The text for a scrape.

        Args:
            live: Conversations under way, by kind.
            sessions: The sessions of those, whose counters are read now.
            state: ``"ready"``, ``"loading"``, ``"draining"`` or ``"failed"``.
        """
        counts = Counter(self._over)
        for session in sessions:
            counts.update(session_counts(session))
        out: list[str] = []
        _family(out, "build_info", "gauge", "The version that runs.", [f'{{version="{__version__}"}} 1'])
        _family(out, "ready", "gauge", "Whether new conversations are taken.", [f" {int(state == 'ready')}"])
        _family(out, "sessions", "gauge", "Conversations under way.", _labelled("kind", live))
        for name, label, help_text, values in (
            ("sessions_opened_total", "kind", "Conversations let in.", self.opened),
            ("sessions_ended_total", "reason", "Conversations that are over.", self.ended),
            ("refused_total", "reason", "Requests and conversations refused.", self.refused),
            ("answers_total", "status", "Answers of the agent.", self.answers),
            ("tool_calls_total", "outcome", "Tools that were called and returned.", self.tools),
            ("problems_total", "kind", "Things that went wrong in sessions that went on.", self.problems),
        ):
            _family(out, name, "counter", help_text, _labelled(label, values))
        for field, (name, help_text) in _SESSION_COUNTERS.items():
            _family(out, name, "counter", help_text, [f" {counts[field]}"])
        for part, (_, help_text) in _TURN_PARTS.items():
            _histogram(out, f"{part}_seconds", help_text, self.turn_parts[part])
        _histogram(out, "session_seconds", "Length of conversations that are over.", self.session_s)
        _histogram(out, "event_loop_lag_seconds", "How late the event loop's timer fired.", self.lag)
        return "\n".join(out) + "\n"


def blocked_lines(watchdog: Watchdog) -> str:
    """What the watchdog noticed, for a scrape."""
    out: list[str] = []
    counts: dict[str, int] = {cause: watchdog.counts[cause] for cause in CAUSES}
    help_text = "Times the event loop did not turn, by cause."
    _family(out, "event_loop_blocked_total", "counter", help_text, _labelled("cause", counts))
    help_text = "Seconds in which the event loop did not turn."
    _family(out, "event_loop_blocked_seconds_total", "counter", help_text, [f" {watchdog.blocked_s:.6g}"])
    worst_s = watchdog.worst.seconds if watchdog.worst is not None else 0.0
    help_text = "The longest time in which the event loop did not turn."
    _family(out, "event_loop_blocked_worst_seconds", "gauge", help_text, [f" {worst_s:.6g}"])
    return "\n".join(out) + "\n"


def service_lines(service: Service, door: Door | None) -> str:
    """How well all are served, for a scrape: load by stage, what is given up, dead engines, retries, the door."""
    out: list[str] = []

    def add(name: str, kind: str, help_text: str, samples: Sequence[tuple[str, float]]) -> None:
        _family(out, name, kind, help_text, [f"{labels} {value:.6g}" for labels, value in samples])

    add("service_level", "gauge", "What is given up under load; 0 is nothing.", [("", service.rung)])
    steps = [(f'{{level="{int(rung)}"}}', service.steps[rung.label]) for rung in Rung]
    add("service_changes_total", "counter", "Changes of the service level, by the new one.", steps)
    load = service.load()
    stages = [(f'{{stage="{_escaped(stage.name)}"}}', stage) for stage in load.stages]
    for name, help_text, value in _STAGE_GAUGES:
        add(f"stage_{name}", "gauge", help_text, [(label, value(stage)) for label, stage in stages])
    help_text = "Load of each stage as a share of its target."
    pressures = [(label, stage.pressure(load.targets)) for label, stage in stages]
    add("stage_load", "gauge", help_text, pressures)
    engines = [(f'{{stage="{_escaped(f"{e.role} {e.name}")}"}}', e) for e in service.engines]
    broken = [(label, e.breaker.is_open) for label, e in engines]
    add("engine_broken", "gauge", "Engines taken for dead.", broken)
    help_text = "How often an engine was found dead."
    add("engine_trips_total", "counter", help_text, [(label, e.trips) for label, e in engines])
    budgets = [(f'{{stage="{role}"}}', budget) for role, budget in service.retries.items()]
    spent = [(label, budget.spent) for label, budget in budgets]
    add("retries_total", "counter", "Failed requests that were sent again.", spent)
    denied = [(label, budget.denied) for label, budget in budgets]
    add("retries_denied_total", "counter", "Failed requests that were not: the budget was spent.", denied)
    add(
        "waiting_callers",
        "gauge",
        "Conversations that wait to be let in.",
        [("", door.waiting if door else 0)],
    )
    help_text = "Conversations that waited before they were let in."
    add("callers_waited_total", "counter", help_text, [("", door.waited if door else 0)])
    return "\n".join(out) + "\n"


_STAGE_GAUGES: tuple[tuple[str, str, Callable[[StageLoad], float]], ...] = (
    ("utilisation", "Share of the last seconds that a stage worked.", lambda stage: stage.utilisation),
    ("oldest_seconds", "Age of the oldest request that waits or runs.", lambda s: max(s.oldest_s, s.wait_s)),
    ("late_seconds", "How much longer than usual a first result takes.", lambda stage: stage.late_s),
    ("results_per_second", "First results a second.", lambda stage: stage.per_s),
    ("service_seconds", "Time to a first result.", lambda stage: stage.service_s or 0.0),
)


def _escaped(value: str) -> str:
    """A label's value: names of engines are their owner's, who may have put anything in them."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def session_counts(session: CountedSession) -> dict[str, int]:
    """A session's counters by name, with the audio that was dropped at its ear."""
    counters = session.counters
    found = {name: int(getattr(counters, name, 0)) for name in _SESSION_COUNTERS}
    found["dropped_audio_samples"] = int(getattr(getattr(session, "ear", None), "dropped_samples", 0))
    return found


def _known(value: str, known: frozenset[str]) -> str:
    return value if value in known else "other"


def _family(out: list[str], name: str, kind: str, help_text: str, samples: Iterable[str]) -> None:
    out += [f"# HELP voice_{name} {help_text}", f"# TYPE voice_{name} {kind}"]
    out += [f"voice_{name}{sample}" for sample in samples]


def _histogram(out: list[str], name: str, help_text: str, histogram: Histogram) -> None:
    _family(out, name, "histogram", help_text, [])
    out += histogram.lines(f"voice_{name}")


def _labelled(label: str, values: Mapping[str, int]) -> list[str]:
    return [f'{{{label}="{value}"}} {count}' for value, count in sorted(values.items())]


# ---------------------------------------------------------------- log lines

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, and what was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for ``record``; an exception's traceback goes into ``error``."""
        row: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        row |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """A line for people: time, level, message, and what was given as ``extra`` as ``key=value``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        extra = [f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD]
        return " ".join([super().formatMessage(record), *extra])


def log_to_stderr(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Have everything logged at ``level`` or above written to standard error; for programs, not for libraries.

    uvicorn's own lines on every connection are left out: they hold the client's query.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "httpx", "aiortc", "aioice"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))

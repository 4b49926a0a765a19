"""How long does the caller wait? Speculation on and off in one run, judged by the two channels of the recording."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import soundfile

from loadtest.calls import CallRecord, hold_call, hold_calls, machine_load, speech, speech_file
from stages import presets
from voice.events import TurnTimes
from voice.interfaces import Pcm16, Stages
from voice.options import TurnOptions

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Can you tell me a short story?",
    "What colour is the sky on a clear day?",
    "Where do penguins live?",
    "How do I boil an egg?",
    "What is the largest animal in the world?",
    "Who was the first man on the moon?",
    "What should I wear when it rains?",
    "Why do we sleep at night?",
)

HESITANT = (
    ("Could you tell me", "what the time is in Paris?"),
    ("I would like to know", "how far away the moon is."),
    ("My question is about", "the weather in the mountains."),
    ("Please explain to me", "how a telephone works."),
)
"""Questions with a pause inside: the guess that is made there is thrown away."""
HESITATION_S = 0.35
"""Shorter than any endpointing, longer than the pause at which guesses begin."""


@dataclass(frozen=True)
class Measured:
    """One turn: what the session says, and what the recording says. Times in ms."""

    times: TurnTimes
    voice_to_voice_ms: float
    gate_to_audio_ms: float
    differs_ms: float  # the larger difference between the session's times and the recording's

    @property
    def ready(self) -> bool:
        """The guess had audio when the gate opened."""
        t = self.times
        return (
            t.speculated
            and t.ready_ms is not None
            and t.endpoint_ms is not None
            and t.ready_ms <= t.endpoint_ms
        )

    @property
    def work_ms(self) -> float:
        """Recognition, model and synthesis, up to the first audio."""
        t = self.times
        return (t.asr_ms or 0.0) + (t.llm_first_clause_ms or 0.0) + (t.tts_first_audio_ms or 0.0)


def measure(call: CallRecord) -> list[Measured]:
    """Pair each answer with what the recording shows."""
    out = []
    for turn in call.turns:
        for answer in call.answers:
            t = answer.times
            if t.speech_end_s is None or t.first_audio_s is None or t.endpoint_ms is None:
                continue
            if not turn.begin_s <= t.speech_end_s <= turn.end_s + 0.5:
                continue
            end = call.channels.last_caller_s(turn.begin_s, turn.end_s + 0.1)
            first = call.channels.first_agent_s(turn.end_s - 0.5)
            if end is None or first is None:
                continue
            gate = t.speech_end_s + t.endpoint_ms / 1000.0
            differs = max(abs(end - t.speech_end_s), abs(first - t.first_audio_s))
            out.append(Measured(t, (first - end) * 1000, (first - gate) * 1000, differs * 1000))
    return out


async def compare(stages: Stages, questions: list[Path], place: Path, base: TurnOptions) -> bool:
    """One run: the same questions with speculation off and on; prints, returns whether the bounds hold."""
    rows: dict[bool, list[Measured]] = {}
    for speculate in (False, True):
        options = replace(base, speculate=speculate)
        call = await hold_call(stages, questions, place / "call.wav", options=options, max_tokens=12)
        rows[speculate] = measure(call)
    off, on = rows[False], rows[True]
    if len(on) < len(questions) or len(off) < len(questions):
        print(f"  only {len(off)} and {len(on)} of {len(questions)} turns were answered")
        return False
    endpoint = statistics.median(m.times.endpoint_ms or 0.0 for m in on)
    work = statistics.median(m.work_ms for m in off)
    v_off = statistics.median(m.voice_to_voice_ms for m in off)
    v_on = statistics.median(m.voice_to_voice_ms for m in on)
    ready = [m for m in on if m.ready]
    late = [m for m in on if not m.ready]
    gate = statistics.median(m.gate_to_audio_ms for m in ready) if ready else float("nan")
    over = [_over(m) for m in late]
    over_median = statistics.median(over) if over else 1.0
    differs = max(m.differs_ms for m in (*off, *on))
    gain = (v_off - v_on) / work
    # what runs between the pause and the certain turn can be hidden, and no more
    pause = statistics.median(m.times.pause_ms or 0.0 for m in on)
    possible = min(1.0, max(0.0, endpoint - pause) / work)
    print(
        f"  endpointing {endpoint:.0f} ms; voice to voice off {v_off:.0f}, on {v_on:.0f} ms; "
        f"recognition + model + synthesis {work:.0f} ms; gain {gain:.0%} of it, {possible:.0%} at most"
    )
    print(
        f"  guess ready in {len(ready)} of {len(on)}: gate to audio {gate:.0f} ms; "
        f"otherwise {over_median:.2f} × the longest of its parts (worst {max(over, default=1.0):.2f})"
    )
    print(f"  the session's times differ from the recording's by at most {differs:.0f} ms ({machine_load()})")
    bound = max(600.0, base.min_delay_s * 1000 + 20)
    return (
        endpoint <= bound
        and (not ready or gate <= 50)
        and over_median <= 1.1
        and gain >= min(0.6, 0.8 * possible)
        and differs <= 40
    )


def _over(m: Measured) -> float:
    t = m.times
    whole = (t.pause_ms or 0.0) + m.work_ms
    return m.voice_to_voice_ms / max(t.endpoint_ms or 1.0, whole)


def _base(min_delay_s: float | None) -> TurnOptions:
    base = TurnOptions(idle_s=None)
    if min_delay_s is None:
        return base
    return replace(base, min_delay_s=min_delay_s, max_delay_s=max(min_delay_s, base.max_delay_s))


async def run(turns: int, runs: int, min_delay_s: float | None = None) -> bool:
    """``runs`` runs of ``turns`` turns each way.

    A longer ``min_delay_s`` than the default shows what happens when the guess is ready before the turn is
    certain, also on a slow machine.
    """
    base = _base(min_delay_s)
    stages = presets.local()
    await presets.warm_up(stages)
    good = 0
    with tempfile.TemporaryDirectory(prefix="voice-") as folder:
        place = Path(folder)
        files = [await speech_file(stages, text, place / f"q{n}.wav") for n, text in enumerate(QUESTIONS)]
        questions = [files[n % len(files)] for n in range(turns)]
        for number in range(runs):
            print(f"run {number + 1} of {runs}, {turns} turns each way")
            good += await compare(stages, questions, place, base)
    print(f"{good} of {runs} runs within all bounds")
    return good * 2 > runs


# ---------------------------------------------------------------- several callers


@dataclass
class Together:
    """What several callers met in the calls of one way (speculation off or on)."""

    turns: int = 0
    rows: list[Measured] = field(default_factory=list)
    guesses: int = 0
    kept: int = 0
    dropped: int = 0
    levels: Counter[str] = field(default_factory=Counter)  # how often each level was used at a pause

    def add(self, calls: Sequence[CallRecord]) -> None:
        """Count in the calls that ran side by side."""
        for call in calls:
            self.turns += len(call.turns)
            self.rows += measure(call)
            self.guesses += call.counters.guesses
            self.kept += call.counters.guesses_kept
            self.dropped += call.counters.guesses_dropped

    def voice_to_voice_ms(self, percent: float) -> float:
        """A percentile over all answered turns."""
        return float(np.percentile([m.voice_to_voice_ms for m in self.rows], percent))


async def compare_together(
    stages: Stages, plain: list[Path], hesitant: list[Path], place: Path, base: TurnOptions, plan: Plan
) -> bool:
    """``plan.callers`` calls at once, off and on by turns; prints, returns whether guessing hurt nobody."""
    ways = {False: Together(), True: Together()}
    for number in range(plan.runs):
        chance = random.Random(f"{plan.seed} {number}")  # both ways hear the same
        callers = [_questions(plan.turns, plain, hesitant, chance) for _ in range(plan.callers)]
        starts_s = [chance.uniform(0.0, 4.0) for _ in range(plan.callers)]
        for speculate in (False, True) if number % 2 == 0 else (True, False):
            options = replace(base, speculate=speculate)
            before = _levels(stages)
            calls = await hold_calls(stages, callers, starts_s, place, options=options, max_tokens=12)
            ways[speculate].add(calls)
            ways[speculate].levels += _levels(stages) - before
    off, on = ways[False], ways[True]
    if min(len(off.rows), len(on.rows)) < 0.9 * off.turns:
        print(f"  only {len(off.rows)} and {len(on.rows)} of {off.turns} turns were answered")
        return False
    median = [way.voice_to_voice_ms(50) for way in (off, on)]
    p95 = [way.voice_to_voice_ms(95) for way in (off, on)]
    held = on.kept / on.guesses if on.guesses else 0.0
    levels = ", ".join(f"{name.lower()} {count}" for name, count in on.levels.items()) or "not counted"
    print(
        f"  {plan.callers} callers, {len(off.rows)} and {len(on.rows)} of {off.turns} turns: voice to voice "
        f"median off {median[0]:.0f}, on {median[1]:.0f} ms ({median[1] / median[0]:.2f}); "
        f"p95 off {p95[0]:.0f}, on {p95[1]:.0f} ms ({p95[1] / p95[0]:.2f})"
    )
    print(
        f"  guesses: {on.guesses} begun, {on.kept} kept ({held:.0%}), {on.dropped} dropped; "
        f"level at the pauses: {levels} ({machine_load()}, seed {plan.seed})"
    )
    return p95[1] <= p95[0] * _EVEN


def _questions(turns: int, plain: list[Path], hesitant: list[Path], chance: random.Random) -> list[Path]:
    """What one caller asks: a third of it with a hesitation."""
    return [chance.choice(hesitant if n % 3 == 1 else plain) for n in range(turns)]


def _levels(stages: Stages) -> Counter[str]:
    return Counter({level.name: n for level, n in stages.guesses.asked.items()})


async def hesitant_file(stages: Stages, parts: Sequence[str], path: Path) -> Path:
    """The parts in the default voice, :data:`HESITATION_S` of silence between them."""
    rate_hz = stages.synthesiser.sample_rate
    quiet = np.zeros(int(HESITATION_S * rate_hz), dtype=np.int16)
    pieces: list[Pcm16] = []
    for part in parts:
        spoken = await speech(stages, part)
        loud = np.flatnonzero(np.abs(spoken.astype(np.int32)) > _AUDIBLE)
        pieces += [quiet, spoken[loud[0] : loud[-1] + 1] if loud.size else spoken]
    soundfile.write(path, np.concatenate(pieces[1:]), rate_hz)
    return path


_AUDIBLE = 300  # about -40 dBFS
_EVEN = 1.05
"""The p95 of some dozens of turns on a shared machine is not known better than by 5 %."""


@dataclass(frozen=True)
class Plan:
    """How many callers at once, turns of each, runs each way, and what the questions are drawn from."""

    callers: int
    turns: int
    runs: int
    seed: int


async def run_together(
    callers: Sequence[int], turns: int, runs: int, min_delay_s: float | None, seed: int | None = None
) -> bool:
    """For each number of callers: ``runs`` runs of ``turns`` turns of each caller, speculation off and on.

    The two ways hear the same questions and take turns in going first, so that a busy neighbour on the machine
    disturbs both alike. ``seed`` draws questions and starts.
    """
    seed = random.randrange(2**32) if seed is None else seed
    base = _base(min_delay_s)
    stages = presets.local()
    await presets.warm_up(stages)
    good = True
    with tempfile.TemporaryDirectory(prefix="voice-") as folder:
        place = Path(folder)
        plain = [await speech_file(stages, text, place / f"q{n}.wav") for n, text in enumerate(QUESTIONS)]
        hesitant = [
            await hesitant_file(stages, parts, place / f"h{n}.wav") for n, parts in enumerate(HESITANT)
        ]
        for number in callers:
            plan = Plan(number, turns, runs, seed)
            good &= await compare_together(stages, plain, hesitant, place, base, plan)
    print("guessing hurt nobody" if good else "guessing made the p95 worse")
    return good

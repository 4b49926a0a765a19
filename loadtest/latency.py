"""How long does the caller wait? Speculation on and off in one run, judged by the two channels of the recording."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.calls import CallRecord, hold_call, machine_load, speech_file
from stages import presets
from voice.events import TurnTimes
from voice.interfaces import Stages
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
    print(
        f"  endpointing {endpoint:.0f} ms; voice to voice off {v_off:.0f}, on {v_on:.0f} ms; "
        f"recognition + model + synthesis {work:.0f} ms; gain {gain:.0%} of it"
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
        and gain >= 0.6
        and differs <= 40
    )


def _over(m: Measured) -> float:
    t = m.times
    whole = (t.pause_ms or 0.0) + m.work_ms
    return m.voice_to_voice_ms / max(t.endpoint_ms or 1.0, whole)


async def run(turns: int, runs: int, min_delay_s: float | None = None) -> bool:
    """``runs`` runs of ``turns`` turns each way.

    A longer ``min_delay_s`` than the default shows what happens when the guess is ready before the turn is
    certain, also on a slow machine.
    """
    base = TurnOptions(idle_s=None)
    if min_delay_s is not None:
        base = replace(base, min_delay_s=min_delay_s, max_delay_s=max(min_delay_s, base.max_delay_s))
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

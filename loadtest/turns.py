"""Are callers cut off, and how long do they wait? Our endpointing against its parts and against the usual ways.

``--part train`` is for tuning; the report is the test part, whose sentences, voices and seed are others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from loadtest.calls import machine_load
from loadtest.turn_corpus import GAP_S, LEAD_S, Call, Part, SpokenTurn, make_calls, missing_espeak
from loadtest.turn_eval import Costs, Ours, Score, Way, baselines, best_at, between, judge, next_above
from loadtest.turn_sentences import KINDS
from loadtest.turn_traces import CallTrace, Engines
from stages.asr.whisper import WhisperCt2
from stages.turn.smart_turn import SmartTurn
from stages.vad.silero import SileroVad
from voice.audio import first_audible, last_audible, read_file, resample
from voice.endpointing import TurnEnd, TurnModelSays, default_policies
from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ
from voice.options import TurnOptions

SEEDS: dict[Part, int] = {"train": 1, "test": 11}
_SOUNDS = (".flac", ".wav", ".ogg", ".mp3")
_ROOM = 20.0
"""Amplitude of the noise around recordings."""


def ours(options: TurnOptions) -> list[Ours]:
    """Our policies, whole and with a part left out."""
    no_model = [policy for policy in default_policies() if policy.name != TurnModelSays.name]
    return [
        Ours("ours", TurnEnd(), options),
        Ours("ours without words", TurnEnd([TurnModelSays()]), options),
        Ours("ours without turn model", TurnEnd(no_model), options),
        Ours("ours without adaptation", TurnEnd(adapt=False), options),
    ]


async def run(
    part: Part, seed: int | None, callers: int, turns: int, folders: Sequence[Path], cache: Path | None
) -> bool:
    """Prints the report; whether the bounds hold on the corpus."""
    options = TurnOptions()
    if missing := missing_espeak():
        print(missing)
    if cache is not None and not cache.is_dir():  # noqa: ASYNC240 - nothing else runs on this loop yet
        raise BadRequest(f"{cache} is no folder: make it first")
    with nullcontext(cache) if cache else tempfile.TemporaryDirectory(prefix="voice-turns-") as place:
        folder = Path(place)
        engines = Engines(SileroVad(), WhisperCt2(), SmartTurn(), folder)
        try:
            seed = SEEDS[part] if seed is None else seed
            calls = await make_calls(part, seed, callers, turns, folder)
            minutes = sum(len(call.audio) for call in calls) / ASR_RATE_HZ / 60
            print(f"{part} part, seed {seed}: {callers} callers, {callers * turns} turns, {minutes:.0f} min")
            traces = [await engines.trace(call, options) for call in calls]
            good = report(traces, options)
            for recordings in folders:
                print(f"\n{recordings}")
                report([await engines.trace(call, options) for call in from_folder(recordings)], options)
        finally:
            engines.close()
    print(machine_load())
    return good


def from_folder(folder: Path) -> list[Call]:
    """Each recording of a folder as a call of one turn.

    Raises:
        BadRequest: No recording there.
        BadAudio: One that can't be read.
    """
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in _SOUNDS)
    if not paths:
        raise BadRequest(f"{folder} holds no recordings ({', '.join(_SOUNDS)})")
    calls = []
    for path in paths:
        pcm, rate_hz = read_file(path)
        audio = resample(pcm, rate_hz, ASR_RATE_HZ)
        start, end = first_audible(audio, ASR_RATE_HZ) or 0, last_audible(audio, ASR_RATE_HZ) or len(audio)
        around = [np.zeros(int(seconds * ASR_RATE_HZ), np.int16) for seconds in (LEAD_S, GAP_S)]
        whole = np.concatenate([around[0], audio[start:end], around[1]])
        noise = np.random.default_rng(0).normal(0.0, _ROOM, len(whole))
        turn = SpokenTurn("recording", "", path.name, LEAD_S, LEAD_S + (end - start) / ASR_RATE_HZ, ())
        calls.append(Call(path.name, np.clip(whole + noise, -32768, 32767).astype(np.int16), (turn,)))
    return calls


def report(traces: Sequence[CallTrace], options: TurnOptions, costs: Costs | None = None) -> bool:
    """Prints all ways; whether ours cuts off at most half as many turns as the best other way of the same median
    delay, with a 90th percentile of at most 60 % of that one's."""
    costs = costs or Costs()
    print(
        f"charged: recognition {costs.recognition_s:g} s, turn model {costs.turn_model_s:g} s; "
        f"delays {options.min_delay_s:g} to {options.max_delay_s:g} s"
    )
    own = [judge(way, traces, costs) for way in ours(options)]
    others = [judge(way, traces, costs) for way in baselines()]
    print(f"{own[0].turns} turns, {own[0].inner_pauses} pauses inside them as the ear heard them\n")
    print(f"{'':48}{'cut off, %':>18}{'missed':>8}{'delay, s':>14}")
    print(f"{'':48}{'turns':>9}{'pauses':>9}{'%':>8}{'median':>7}{'p90':>7}")
    for score in own:
        _line(score)
    print()
    for score in _shown(others):
        _line(score)
    _kinds(ours(options)[0], traces, costs)
    return _verdict(own[0], others)


def _line(score: Score) -> None:
    print(
        f"{score.name:48}{score.cut_turns:9.1f}{score.cut_pauses:9.1f}{score.missed:8.1f}"
        f"{score.median_s:7.2f}{score.p90_s:7.2f}"
    )


def _shown(scores: Sequence[Score]) -> list[Score]:
    """Plain VAD, and of the rest those that no other beats in cut-offs, median and 90th percentile at once."""
    return [
        one
        for one in scores
        if one.name.startswith("VAD")
        or not any(
            other.cut_turns <= one.cut_turns
            and other.median_s <= one.median_s
            and other.p90_s <= one.p90_s
            and (other.cut_turns, other.median_s, other.p90_s) != (one.cut_turns, one.median_s, one.p90_s)
            for other in scores
        )
    ]


def _kinds(way: Way, traces: Sequence[CallTrace], costs: Costs) -> None:
    parts = []
    for kind in KINDS:
        of_kind = [CallTrace(c.name, tuple(t for t in c.turns if t.turn.kind == kind)) for c in traces]
        score = judge(way, of_kind, costs)
        if score.turns:
            parts.append(f"{kind} {score.cut_turns:.0f} % / {score.median_s:.2f} s")
    if parts:
        print(f"\nours by kind (turns cut off / median delay): {'; '.join(parts)}")


def _verdict(own: Score, others: Sequence[Score]) -> bool:
    best = best_at(others, own.median_s)
    fewer = own.cut_turns <= 0.5 * best.cut_turns
    sooner = own.p90_s <= 0.6 * best.p90_s
    print(f"\nbest other way with a median of at most {own.median_s:.2f} s: {best.name}")
    print(
        f"cut off {own.cut_turns:.1f} % of turns against {best.cut_turns:.1f} % (at most half: {_yes(fewer)}), pauses "
        f"{own.cut_pauses:.1f} % against {best.cut_pauses:.1f} %; p90 {own.p90_s:.2f} s against {best.p90_s:.2f} s "
        f"(at most 60 %: {_yes(sooner)})"
    )
    above = next_above(others, own.median_s)
    if above is not None:
        share = between(best, above, own.median_s)
        print(
            f"next better: {above.name}, {above.cut_turns:.1f} % of turns at {above.median_s:.2f} s; on the line "
            f"between the two, {share:.1f} % at ours (at most half: {_yes(own.cut_turns <= 0.5 * share)})"
        )
    able = [score for score in others if score.p90_s <= own.p90_s + 0.02]
    rival = min(able, key=lambda score: (score.cut_turns, score.median_s), default=None)
    if rival is not None:
        print(
            f"fewest cut-offs of all others with a p90 of at most ours: {rival.name}, "
            f"{rival.cut_turns:.1f} % of turns, median {rival.median_s:.2f} s"
        )
    return fewer and sooner


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"

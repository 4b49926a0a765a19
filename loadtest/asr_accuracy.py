"""How many words does a recogniser get wrong, by slice, and what does it cost? Beside faster-whisper and a baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import asr_report
from loadtest.asr_compare import Limits, Row, check_speech, compare_in, compare_with
from loadtest.asr_corpus import Utterance, generated, recorded
from loadtest.asr_engines import Engine, Heard, hear, open_engines, reference_of, warm
from loadtest.asr_results import Accuracy, Sample, failures, read, total, write
from loadtest.asr_slices import SLICES
from loadtest.calls import machine_load
from loadtest.progress import Progress
from voice import __version__
from voice.compute import CpuBudget
from voice.errors import BadRequest

MOST_SHOWN = 12
"""Failures that are printed; the files have all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tested, on what, and against what.

    Attributes:
        speech: A folder of recordings; ``None``: sentences in the default voice.
        asr: See :func:`~loadtest.asr_engines.open_engines`.
        against: As there.
        compute_type: As there.
        slices: Names; none: all.
        limit: Only the first so many utterances.
        seed: Of everything drawn.
        baseline: A file of ``write`` to compare with.
        write, html: Files to write.
        reference_limits: Against the reference of the same run.
        baseline_limits: Against the baseline.
    """

    speech: Path | None
    asr: tuple[str, ...]
    against: str | None
    compute_type: str | None
    slices: tuple[str, ...]
    limit: int | None
    seed: int
    baseline: Path | None
    write: Path | None
    html: Path | None
    reference_limits: Limits
    baseline_limits: Limits


async def run(plan: Plan) -> bool:
    """Print the tables, write the files; whether all limits hold.

    Raises:
        BadRequest: The speech, the baseline or a name can't be used.
        VoiceError: As the engines say.
    """
    if unknown := set(plan.slices) - set(SLICES):
        raise BadRequest(f"there is no slice {', '.join(sorted(unknown))}: choose {', '.join(SLICES)}")
    baseline = None if plan.baseline is None else read(plan.baseline)
    engines = open_engines(plan.asr, plan.against, plan.compute_type)
    folder, limit = plan.speech, plan.limit
    utterances = await generated(plan.seed, limit) if folder is None else recorded(folder, limit)
    print(
        f"seed {plan.seed}; {len(utterances)} utterances, {sum(u.seconds for u in utterances):.0f} s; {machine_load()}"
    )
    result = await listen(plan, utterances, engines, baseline)
    print_table(result)
    tables = list(_comparisons(plan, result, baseline))
    for title, rows in tables:
        print_comparison(title, rows)
    ours = plan.asr or result.engines[:1]
    for engine in ours:
        other = reference_of(engine) if reference_of(engine) in result.engines else None
        print_failures(result, engine, other)
    if plan.write is not None:
        write(result, plan.write)
    if plan.html is not None:
        plan.html.write_text(asr_report.page(result, tables), encoding="utf-8")
    return not any(row.broken for _, rows in tables for row in rows)


async def listen(
    plan: Plan, utterances: Sequence[Utterance], engines: Sequence[Engine], baseline: Accuracy | None
) -> Accuracy:
    """Every engine hears every utterance of every slice; they take turns in going first, one at a time."""
    names = tuple(dict.fromkeys(plan.slices)) or tuple(SLICES)
    await warm(engines, utterances[0].audio)
    load = machine_load()
    progress, begun = Progress(), asyncio.get_running_loop().time()
    samples: list[Sample] = []
    for name in names:
        heard_in = SLICES[name](utterances, plan.seed)
        if baseline is not None:  # told before it is heard, not after all
            check_speech(baseline, name, [(one.name, one.text, one.seconds) for one in heard_in])
        for number, one in enumerate(heard_in):
            order = engines if number % 2 == 0 else engines[::-1]
            heard: dict[str, Heard] = {}
            for engine in order:
                heard[engine.name] = await hear(engine, one.audio)
            samples.append(
                Sample(name, one.name, one.text, one.seconds, {e.name: heard[e.name] for e in engines})
            )
            at_s = asyncio.get_running_loop().time() - begun
            progress.show(at_s, f"{name}: {number + 1} of {len(heard_in)} utterances")
    progress.end()
    if not samples:
        raise BadRequest("these slices hold nothing: long utterances need 10 s of speech")
    budget = CpuBudget.detect()
    return Accuracy(
        voice=__version__,
        corpus="the default voice" if plan.speech is None else plan.speech.name,
        seed=plan.seed,
        machine=f"{load} before, {machine_load()} after",
        setting=f"{plan.compute_type or 'int8'}, {budget.asr_threads} threads",
        engines=tuple(engine.name for engine in engines),
        samples=tuple(samples),
    )


def _comparisons(plan: Plan, result: Accuracy, baseline: Accuracy | None) -> list[tuple[str, list[Row]]]:
    """Each table with its title."""
    found = []
    for name in plan.asr or result.engines[:1]:
        reference = reference_of(name)
        if reference in result.engines:
            title = f"{name} against {reference}: {plan.reference_limits}"
            found.append((title, compare_in(result, name, reference, plan.reference_limits)))
        if baseline is not None:
            title = f"{name} against the baseline ({baseline.machine}): {plan.baseline_limits}"
            found.append((title, compare_with(result, baseline, name, plan.baseline_limits)))
    return found


# ---------------------------------------------------------------- on a terminal


def print_table(result: Accuracy) -> None:
    """Word errors and cost by slice and engine."""
    print(f"\n{result.corpus}, {result.setting}; {result.machine}")
    print("CPU s: this process, all threads; real-time factor: of processor time (of the clock)\n")
    print(f"{'slice':12}{'engine':34}{'words':>7}{'wrong':>7}{'%':>7}{'sub':>5}{'del':>5}{'ins':>5}", end="")
    print(f"{'CPU s':>8}{'factor':>15}")
    for name in [*result.slices, None]:
        for engine in result.engines:
            one = total(result.of(name), engine)
            errors = one.errors
            print(
                f"{name or 'all':12}{engine[-33:]:34}{errors.words:7}{errors.total:7}{100 * errors.rate:7.2f}",
                end="",
            )
            print(f"{errors.substituted:5}{errors.deleted:5}{errors.inserted:5}{one.cpu_s:8.1f}", end="")
            print(f"{one.rtf:7.3f} ({one.wall_s / one.seconds:.3f})")


def print_comparison(title: str, rows: Sequence[Row]) -> None:
    """Pass or fail of each slice."""
    print(f"\n{title}")
    print(f"{'slice':12}{'words':>7}{'wrong':>7}{'other':>7}{'more':>6}{'95 %':>12}{'CPU':>7}  verdict")
    for row in rows:
        low, high = row.difference
        more = row.candidate.total - row.other.total
        cpu = "–" if row.cpu is None else f"{row.cpu:.2f}"
        print(
            f"{row.slice:12}{row.candidate.words:7}{row.candidate.total:7}{row.other.total:7}{more:+6}"
            f"{f'{low:+.0f}…{high:+.0f}':>12}{cpu:>7}  {'; '.join(row.broken) or 'pass'}"
        )


def print_failures(result: Accuracy, engine: str, other: str | None) -> None:
    """The worst of them; beside another engine only what that one hears better."""
    wrong = failures(result, engine)
    if other is not None:
        wrong = [one for one in wrong if one.errors[engine].total > one.errors[other].total]
    kind = "with errors" if other is None else f"with more errors than {other}"
    print(
        f"\n{engine}: {len(wrong)} of {len(result.samples)} utterances {kind}{', the worst:' if wrong else ''}"
    )
    for sample in wrong[:MOST_SHOWN]:
        heard = sample.heard[engine]
        why = f" (rejected: {heard.rejected})" if heard.rejected else ""
        print(f"  {sample.errors[engine].total} in {sample.slice}, {sample.name}: {sample.said!r}")
        print(f"    heard as {heard.text!r}{why}")
        if other is not None:
            print(f"    by the other as {sample.heard[other].text!r}")

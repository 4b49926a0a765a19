"""How soon are words there while somebody speaks, and do they stay? Partials and finals of real sessions, one or many
at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from loadtest.asr_corpus import Utterance, generated, joined, recorded, say, sentences
from loadtest.asr_engines import LANGUAGE
from loadtest.asr_tails import words_changed
from loadtest.asr_talkers import Talk, Talks, listening_options, talk_at_once
from loadtest.calls import machine_load
from loadtest.wer import compare, normalise, pooled
from stages import presets
from voice.interfaces import Stages
from voice.running import settle
from voice.scope import Scope

FINAL_MS = 150.0
"""From the pause to the final text, median, of utterances of at most :data:`SHORT_S`."""
SHORT_S = 8.0
FIRST_PARTIAL_MS = 700.0
CHANGED = 0.05
"""Most of the committed words that the final text may say otherwise."""
_LENGTHS_S = (0.0, 2.0, 4.0, SHORT_S, 30.0)
MARKS = (
    "elephant", "piano", "kitchen", "doctor", "window", "summer", "football", "chocolate",
    "airport", "garden", "library", "mountain", "television", "birthday", "umbrella", "hospital",
)  # fmt: skip
"""Each caller's own word, said in each of its utterances."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who speaks.

    Attributes:
        asr: As :func:`stages.presets.local` takes it; ``None``: its default.
        speech: A folder of recordings; ``None``: the default voice.
        sessions: At once; more than one speak marked words in the default voice.
        utterances: Of each session.
        partials: Whether partials are asked for.
        turn_model: Whether the turn model looks at each pause, too, as it does in a conversation.
        seed: Of everything drawn.
        write: A file for the results.
    """

    asr: str | None
    speech: Path | None
    sessions: int
    utterances: int
    partials: bool
    turn_model: bool
    seed: int
    write: Path | None


async def run(plan: Plan) -> bool:
    """Print what was measured; whether the bounds hold: with one session latency and stability, with several that
    all finals are complete, in order, and in their own session."""
    stages = presets.local(asr=plan.asr)
    said = await _marked(plan) if plan.sessions > 1 else [await _plain(plan)]
    await _warm(stages, said[0][0])
    if not plan.turn_model:
        stages = replace(stages, turn=None)
    settle()
    seconds = sum(one.seconds for of_one in said for one in of_one)
    print(
        f"seed {plan.seed}; {plan.sessions} sessions at once, {sum(map(len, said))} utterances, {seconds:.0f} s of "
        f"speech; {stages.recogniser.name}; partials {'on' if plan.partials else 'off'}; {machine_load()}"
    )
    talks = await talk_at_once(stages, said, listening_options(plan.partials), plan.seed)
    figures = Figures.of(talks, listening_options(plan.partials).partial_interval_s)
    _print(talks, figures, plan.partials)
    good = together(said, talks) if plan.sessions > 1 else _bounds(figures, plan.partials)
    print(f"latest frame {1000 * talks.late_s:.0f} ms; {machine_load()}; {'passed' if good else 'failed'}")
    if plan.write is not None:
        plan.write.write_bytes(
            msgspec.json.format(msgspec.json.encode({"figures": figures, "talks": talks}), indent=1)
        )
    return good


async def _plain(plan: Plan) -> list[Utterance]:
    """One session's: some of all lengths up to :data:`SHORT_S`, and a few joined ones."""
    source = await generated(plan.seed, plan.utterances) if plan.speech is None else recorded(plan.speech)
    short = [one for one in source if one.seconds <= SHORT_S][: plan.utterances]
    return [*short, *joined(source, plan.seed)[: max(1, plan.utterances // 10)]]


async def _marked(plan: Plan) -> list[list[Utterance]]:
    """Sentences that no two sessions share, each with its session's mark."""
    texts = sentences(plan.seed)
    said = []
    for session in range(plan.sessions):
        mark = MARKS[session % len(MARKS)]
        own = [texts[(session * plan.utterances + n) % len(texts)] for n in range(plan.utterances)]
        lines = [f"My word is {mark}. {text}" for text in own]
        audio = await say(lines)
        said.append(
            [
                Utterance(f"{session} {n}", line, pcm)
                for n, (line, pcm) in enumerate(zip(lines, audio, strict=True))
            ]
        )
    return said


async def _warm(stages: Stages, one: Utterance) -> None:
    with Scope("process") as scope:
        await stages.recogniser.transcribe(one.audio, scope, language=LANGUAGE)
        if stages.turn is not None:
            await stages.turn.completion(one.audio, scope)


# ---------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class Figures:
    """What the talks come to; times in milliseconds.

    Attributes:
        final_ms: From the pause to the final text, with the length of the utterance in seconds.
        after_speech_ms: From the last sample of speech to it.
        first_partial_ms: From the first sample of speech.
        due: Partials, one for each interval of speech.
        asked, answered, told: Of those.
        committed, changed: Words told as settled, and those of them that the final text says otherwise.
        taken_back: Partials whose settled words did not begin with those settled before.
    """

    final_ms: tuple[tuple[float, float], ...]
    after_speech_ms: tuple[float, ...]
    first_partial_ms: tuple[float, ...]
    due: int
    asked: int
    answered: int
    told: int
    committed: int
    changed: int
    taken_back: int

    @classmethod
    def of(cls, talks: Talks, interval_s: float) -> Figures:
        """All sessions together."""
        every = talks.all
        counts = [
            words_changed(settled, final) for talk in every for settled, final in settled_and_final(talk)
        ]
        ended = [talk for talk in every if talk.final_s is not None and talk.edge_s is not None]
        return cls(
            tuple((talk.ended_s - talk.began_s, 1000 * _since(talk.edge_s, talk.final_s)) for talk in ended),
            tuple(1000 * _since(talk.ended_s, talk.final_s) for talk in ended),
            tuple(1000 * (talk.partials[0].at_s - talk.began_s) for talk in every if talk.partials),
            sum(int((talk.ended_s - talk.began_s) / interval_s) for talk in every),
            sum(talk.passes[0] for talk in every),
            sum(talk.passes[1] for talk in every),
            sum(len(talk.partials) for talk in every),
            sum(words for words, _ in counts),
            sum(changed for _, changed in counts),
            sum(_taken_back(talk) for talk in every),
        )

    @property
    def short_final_ms(self) -> list[float]:
        """Of utterances of at most :data:`SHORT_S`."""
        return [ms for length_s, ms in self.final_ms if length_s <= SHORT_S]

    @property
    def changed_share(self) -> float:
        """Of the committed words."""
        return self.changed / self.committed if self.committed else 0.0


def _since(start_s: float | None, end_s: float | None) -> float:
    assert start_s is not None and end_s is not None
    return end_s - start_s


def settled_and_final(talk: Talk) -> list[tuple[str, str]]:
    """Of each turn: what was told as settled at last, and what was certain in the end."""
    settled = {one.item_id: one.settled for one in talk.partials}  # the last of each
    return [(settled.get(item, ""), final) for item, final in talk.finals.items()]


def _taken_back(talk: Talk) -> int:
    pairs = (pair for pair in pairwise(talk.partials) if pair[0].item_id == pair[1].item_id)
    return sum(not later.settled.startswith(earlier.settled) for earlier, later in pairs)


# ---------------------------------------------------------------- what is printed


def _print(talks: Talks, figures: Figures, partials: bool) -> None:
    every = talks.all
    print(f"\n{'final text':24}{'utterances':>12}{'median ms':>11}{'p95 ms':>8}{'worst':>7}")
    for low_s, high_s in pairwise(_LENGTHS_S):
        _spread(f"{low_s:g} to {high_s:g} s", [ms for s, ms in figures.final_ms if low_s < s <= high_s])
    _spread(f"up to {SHORT_S:g} s", figures.short_final_ms)
    _spread("after the last sample", figures.after_speech_ms)
    if partials:
        _spread("first partial", figures.first_partial_ms)
        skipped = 1 - figures.asked / figures.due if figures.due else 0.0
        print(
            f"partials: {figures.due} due, {figures.asked} asked for ({skipped:.0%} skipped), {figures.answered} "
            f"answered, {figures.told} told; {sum(not talk.partials for talk in every)} of {len(every)} utterances "
            "had none"
        )
        print(
            f"committed words: {figures.committed}, changed by the final text {figures.changed} "
            f"({figures.changed_share:.1%}); taken back before it: {figures.taken_back}"
        )
        own = (
            sum(c.committed_words_changed for c in talks.counters),
            sum(c.committed_words for c in talks.counters),
        )
        print(f"the sessions' own count: {own[0]} of {own[1]} changed")
        for settled, final in (pair for talk in every for pair in settled_and_final(talk)):
            if words_changed(settled, final)[1]:
                print(f"  settled {settled!r}, at last {final!r}")
    missing = sum(not talk.finals for talk in every)
    split = sum(len(talk.finals) > 1 for talk in every)
    errors = pooled([(talk.said, " ".join(talk.finals.values())) for talk in every])
    print(f"finals: {missing} utterances without one, {split} taken for several turns; {errors}")
    for problem in dict.fromkeys(talks.problems):
        print(f"  problem: {problem}")


def _spread(name: str, values: Sequence[float]) -> None:
    if values:
        median, p95 = np.percentile(values, [50, 95])
        print(f"{name:24}{len(values):12}{median:11.0f}{p95:8.0f}{max(values):7.0f}")


def _bounds(figures: Figures, partials: bool) -> bool:
    """One session."""
    final = bool(figures.short_final_ms) and float(np.median(figures.short_final_ms)) <= FINAL_MS
    print(f"final text within {FINAL_MS:g} ms of the pause, median up to {SHORT_S:g} s: {_yes(final)}")
    if not partials:
        return final
    first = bool(figures.first_partial_ms) and float(np.median(figures.first_partial_ms)) <= FIRST_PARTIAL_MS
    steady = figures.changed_share <= CHANGED
    print(f"first partial within {FIRST_PARTIAL_MS:g} ms of speech, median: {_yes(first)}")
    print(f"at most {CHANGED:.0%} of committed words changed: {_yes(steady)}")
    return final and first and steady


def together(said: Sequence[Sequence[Utterance]], talks: Talks) -> bool:
    """Whose utterance each final is most like: it must be the session's own, all of them once, in order. One that was
    taken for two turns has two finals, of other words."""
    lines = [
        (session, number, one.text) for session, own in enumerate(said) for number, one in enumerate(own)
    ]
    elsewhere = disordered = 0
    for session, own in enumerate(talks.by_caller):
        order: list[int] = []
        last = ""
        for text in (text for talk in own for text in talk.finals.values() if text):
            distances = [(compare(line, text).total, of != session, of, place) for of, place, line in lines]
            _, foreign, whose, place = min(distances)
            if not (order and order[-1] == place and text != last):
                order.append(place)
            last = text
            foreign_marks = {*MARKS[: len(said)]} - {MARKS[session % len(MARKS)]}
            if foreign or foreign_marks & {*normalise(text)}:
                elsewhere += 1
                print(f"  session {session} was told what {whose} said: {text!r}")
        if order != list(range(len(own))):
            disordered += 1
            print(f"  session {session}: finals of utterances {order}")
    print(
        f"finals in another session: {elsewhere}; "
        f"sessions with finals missing, doubled or out of order: {disordered}"
    )
    return elsewhere == 0 and disordered == 0


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"

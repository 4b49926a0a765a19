"""Does the agent let itself be interrupted by those who mean it, and by nothing else? Generated sounds, known truth."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadtest.calls import machine_load
from loadtest.overlap import Detector, Outcome, Overlap, Passage, Recognise
from loadtest.overlap_sounds import (
    RATE,
    Room,
    Speaker,
    Wave,
    at_level,
    breath,
    click,
    cough,
    fan,
    keyboard,
    laugh,
    music,
    room,
    spoken,
)
from stages.asr.whisper import WhisperCt2
from stages.tts.piper import Piper, PiperOptions
from voice.audio import resample
from voice.backchannels import ENGLISH_HINTS
from voice.interfaces import Pcm16, Recogniser
from voice.interruption import Interruptions
from voice.scope import Scope
from voice.speaking import spoken_text


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is said and who says it; tuning and report share nothing."""

    agent: tuple[str, ...]
    barge_ins: tuple[str, ...]
    backchannels: tuple[str, ...]
    speakers: tuple[Speaker, ...]
    seed: int


TUNING = Corpus(
    agent=(
        "Good morning, thanks for calling the harbour office. The ferry to the island leaves at quarter past nine, "
        "and the crossing takes about forty minutes.",
        "There are three ways to get to the museum from the station. You can walk along the river, which is the "
        "nicest, or take the number six tram, or wait for the shuttle bus.",
        "Your order was packed yesterday and left the warehouse this morning. The driver expects to be with you "
        "between two and four, and he will ring before he arrives.",
    ),
    barge_ins=(
        "Sorry, could I ask something about the price",
        "Hold on, I need to write that down",
        "Can you tell me how long it takes",
        "I would like to change my address",
        "Stop",
        "No wait",
    ),
    backchannels=(
        "mm hmm",
        "uh-huh",
        "yeah",
        "right",
        "okay",
        "I see",
        "got it",
        "sure",
        "yeah right",
        "oh okay",
    ),
    speakers=(Speaker("en-us"), Speaker("en-us+f3", 170, 55), Speaker("en-gb", 150, 40)),
    seed=1000,
)
REPORT = Corpus(
    agent=(
        "To make the dough, mix five hundred grams of flour with a pinch of salt and a little yeast, add warm water "
        "slowly, and knead it for ten minutes until it is smooth.",
        "The clinic is open from Monday to Friday. If you would like to see a doctor on the same day, please call "
        "before ten, and have your insurance number ready.",
        "I found two flights that would suit you. The first one leaves early in the morning and has a short stop in "
        "Vienna, while the other one is direct but costs a good deal more.",
        "Before we start, make sure that the printer is switched on and that the cable is firmly connected. Then "
        "open the lid, take out the old cartridge, and shake the new one gently.",
    ),
    barge_ins=(
        "Excuse me, which doctor is that",
        "I don't have the number with me",
        "What does the second one cost",
        "Actually I want to cancel the booking",
        "Could you repeat the last part please",
        "That is not what I asked for",
        "Wait a moment",
        "No, stop",
        "Yeah but what about the weekend",
        "Okay stop",
    ),
    backchannels=(
        "mm hmm", "uh-huh", "yeah", "right", "okay", "I see", "got it", "sure", "yeah yeah", "all right", "oh okay",
        "of course", "okay great", "yes", "oh I see", "great",
    ),
    speakers=(
        Speaker("en-us+m3", 165, 45),
        Speaker("en-us+f2", 155, 60),
        Speaker("en-gb-scotland", 160, 50),
        Speaker("en-gb-x-rp+f4", 175, 50),
        Speaker("en-us+m7", 145, 35),
    ),
    seed=9200,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of passage: what the near end does, whether a loudspeaker plays, and whether it means to interrupt."""

    name: str
    sound: str  # "", "backchannel", "barge-in", "cough", "click", "laugh", "breath"
    noise: str = ""  # "", "fan", "keyboard", "music"
    echo: bool = False
    group: str = ""  # which goal it counts for: "false", "dips" or "barge-in"


KINDS = (
    Kind("backchannel", "backchannel", group="false"),
    Kind("cough", "cough", group="false"),
    Kind("click", "click", group="false"),
    Kind("laugh", "laugh"),
    Kind("breath", "breath"),
    Kind("own echo", "", echo=True, group="false dips"),
    Kind("keyboard", "", "keyboard", group="dips"),
    Kind("fan", "", "fan", group="dips"),
    Kind("music", "", "music"),
    Kind("echo and fan", "", "fan", echo=True, group="false dips"),
    Kind("echo and keyboard", "", "keyboard", echo=True, group="false dips"),
    Kind("echo and backchannel", "backchannel", echo=True, group="false"),
    Kind("echo and cough", "cough", echo=True, group="false"),
    Kind("barge-in", "barge-in", group="barge-in"),
    Kind("barge-in over fan", "barge-in", "fan", group="barge-in"),
    Kind("barge-in over echo", "barge-in", echo=True, group="barge-in"),
)

_RETURNS_DB = (-6.0, -12.0, -20.0, -30.0)
_SOUNDS: dict[str, Callable[[np.random.Generator], Wave]] = {
    "cough": cough,
    "click": click,
    "laugh": laugh,
    "breath": breath,
}
_NOISES: dict[str, tuple[Callable[[np.random.Generator, float], Wave], float]] = {
    "fan": (fan, -42.0),
    "keyboard": (keyboard, -40.0),
    "music": (music, -36.0),
}
_SPARE_S = 6.0
"""The passage may last so much longer than the agent's speech: pauses."""


def make_passage(kind: Kind, number: int, corpus: Corpus, voices: list[Pcm16]) -> Passage:
    """The ``number``-th passage of a kind; the same for the same seed."""
    rng = np.random.default_rng([corpus.seed, KINDS.index(kind), number])
    which = int(rng.integers(len(voices)))
    agent = voices[which]
    spoken_s = agent.size / RATE
    near = at_level(rng.standard_normal(int((spoken_s + _SPARE_S) * RATE)), rng.uniform(-70, -58))
    if kind.noise:
        make, dbfs = _NOISES[kind.noise]
        noise = make(rng, near.size / RATE)[: near.size]
        near[: noise.size] += at_level(noise, dbfs + rng.uniform(-6, 3))
    moments = [rng.uniform(1.0, spoken_s - 2.5)]
    if kind.sound in ("backchannel", *_SOUNDS):
        moments = [rng.uniform(0.8, 2.0), rng.uniform(spoken_s - 3.5, spoken_s - 2.0)]
    at = []
    for moment in moments if kind.sound else []:
        start = int(moment * RATE)
        sound = _sound(kind, rng, corpus)[: near.size - start]
        near[start : start + sound.size] += sound
        at.append(start / RATE)
    return_db = _RETURNS_DB[number % len(_RETURNS_DB)]
    way_back: Room | None = room(rng, return_db) if kind.echo else None
    return Passage(agent, corpus.agent[which], near, way_back, tuple(at), kind.sound == "barge-in")


def _sound(kind: Kind, rng: np.random.Generator, corpus: Corpus) -> Wave:
    if kind.sound in _SOUNDS:
        return at_level(_SOUNDS[kind.sound](rng), rng.uniform(-30, -18))
    texts = corpus.backchannels if kind.sound == "backchannel" else corpus.barge_ins
    wave = spoken(texts[rng.integers(len(texts))], corpus.speakers[rng.integers(len(corpus.speakers))])
    return at_level(wave, rng.uniform(-32, -22))


# ---------------------------------------------------------------- runs


@dataclass(frozen=True, slots=True)
class Variant:
    """What is switched on."""

    name: str
    guarded: bool = True
    hold_s: float | None = None


Row = tuple[Passage, Outcome]


async def play_all(
    corpus: Corpus, voices: list[Pcm16], variant: Variant, recognise: Recognise, passages: int
) -> dict[str, list[Row]]:
    """Every kind of passage, that often."""
    detector = Detector()
    rows: dict[str, list[Row]] = defaultdict(list)
    for kind in KINDS:
        for number in range(passages):
            passage = make_passage(kind, number, corpus, voices)
            overlap = Overlap(
                detector, recognise, Interruptions(), guarded=variant.guarded, hold_s=variant.hold_s
            )
            rows[kind.name].append((passage, await overlap.play(passage)))
    return rows


@dataclass(frozen=True, slots=True)
class Figures:
    """What is judged. Shares 0–1; ``dips`` per minute of the agent's speech."""

    false_share: float
    dips: float
    caught_share: float


def figures(rows: dict[str, list[Row]]) -> Figures:
    """Over all kinds, by the goal that they count for."""
    false = [o for k in KINDS if "false" in k.group for _, o in rows[k.name]]
    dips = [o for k in KINDS if "dips" in k.group for _, o in rows[k.name]]
    barge_ins = [row for k in KINDS if k.group == "barge-in" for row in rows[k.name]]
    minutes = sum(o.spoken_s for o in dips) / 60.0
    return Figures(
        sum(o.interrupted_s is not None for o in false) / max(1, len(false)),
        sum(o.dips for o in dips) / max(1e-9, minutes),
        sum(caught(*row) for row in barge_ins) / max(1, len(barge_ins)),
    )


def caught(passage: Passage, outcome: Outcome) -> bool:
    """Whether a barge-in interrupted, after it began."""
    return outcome.interrupted_s is not None and outcome.interrupted_s > passage.sound_s[0]


def print_rows(variant: Variant, rows: dict[str, list[Row]]) -> None:
    """A line for each kind."""
    print(f"\n{variant.name}")
    print(f"{'':24}interrupted   dips/min   silent after onset   decided after that (ms, median / p90)")
    for kind in KINDS:
        mine = rows[kind.name]
        share = sum(o.interrupted_s is not None for _, o in mine) / len(mine)
        minutes = sum(o.spoken_s for _, o in mine) / 60.0
        dips = sum(o.dips for _, o in mine) / max(1e-9, minutes)
        line = f"{kind.name:24}{share:10.1%} {dips:10.1f}"
        if kind.group == "barge-in":
            line += _times(mine)
        print(line)
    total = figures(rows)
    print(
        f"false interruptions {total.false_share:.1%}, dips {total.dips:.2f}/min under echo, noise and keyboard, "
        f"barge-ins caught {total.caught_share:.1%}"
    )


def _times(rows: list[Row]) -> str:
    good = [(p, o) for p, o in rows if caught(p, o)]
    edges = [o.silent_s - p.sound_s[0] for p, o in good if o.silent_s is not None]
    decisions = [
        o.interrupted_s - o.silent_s
        for _, o in good
        if o.interrupted_s is not None and o.silent_s is not None
    ]
    if not good:
        return ""
    both = [
        f"{1000 * statistics.median(times):6.0f} / {1000 * float(np.percentile(times, 90)):4.0f}"
        for times in (edges, decisions)
    ]
    return f"{both[0]:>18} {both[1]:>20}"


async def run(passages: int, tuning: bool, ablations: bool, verbose: bool = False) -> bool:
    """Print all figures; whether the goals hold: false interruptions at most 5 %, dips at most 1 a minute, barge-ins
    caught at least 98 %."""
    corpus = TUNING if tuning else REPORT
    voice = Piper(options=PiperOptions(deterministic=True))
    voices = [resample(await spoken_text(voice, text), voice.sample_rate, RATE) for text in corpus.agent]
    recognise = remembered(WhisperCt2())
    variants = [Variant("all policies, own-voice guard, a client that can pause")]
    if ablations:
        variants += [
            Variant("without the own-voice guard", guarded=False),
            Variant("a client that can only flush, held 0.25 s", hold_s=0.25),
            Variant("a client that can only flush, held 1.5 s", hold_s=1.5),
        ]
    print(f"{'tuning' if tuning else 'report'} sounds, {passages} passages a kind; {machine_load()}")
    good = True
    for variant in variants:
        rows = await play_all(corpus, voices, variant, recognise, passages)
        print_rows(variant, rows)
        if verbose:
            _print_faults(rows)
        if variant is variants[0]:
            total = figures(rows)
            good = total.false_share <= 0.05 and total.dips <= 1.0 and total.caught_share >= 0.98
    return good


def remembered(recogniser: Recogniser) -> Recognise:
    """The recogniser, asked once for the same audio: variants share most of it."""
    known: dict[bytes, str] = {}

    async def recognise(audio: Pcm16) -> str:
        key = audio.tobytes()
        if key not in known:
            with Scope("process") as scope:
                known[key] = (await recogniser.transcribe(audio, scope, hints=ENGLISH_HINTS)).text
        return known[key]

    return recognise


def _print_faults(rows: dict[str, list[Row]]) -> None:
    for kind in KINDS:
        for number, (passage, outcome) in enumerate(rows[kind.name]):
            wrong = not caught(passage, outcome) if passage.barge_in else outcome.interrupted_s is not None
            if wrong or (outcome.held_s and "dips" in kind.group):
                held = ", ".join(f"{at:.2f}" for at in outcome.held_s)
                print(f"  {kind.name} {number}: held at {held or 'never'}; {outcome.by}; {outcome.text!r}")

"""Does a call by WebRTC hold up on a bad network? Words, drift, heard position and what calls leave behind.

The server runs in a process of its own, the caller in this one, and between them a relay that loses 3 % of the packets
and delays each by 5 to 35 ms, so that many change places.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from loadtest.calls import machine_load
from loadtest.lossy_relay import BAD, PERFECT, Network
from loadtest.rtc import drift, leaks, position, words
from loadtest.rtc.server import watched_server

PARTS = ("words", "drift", "position", "connects")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Attributes:
        parts: Of :data:`PARTS`.
        network: Of drift and position; words are always compared, clean against bad.
        prompts: Folder of recordings with a manifest.jsonl; ``None``: the default voice speaks.
        limit: Only so many of them; ``None``: all.
        minutes: Length of the call that is watched for drift.
        cuts: Answers that are cut.
        connects: Calls that are made and hung up.
    """

    parts: tuple[str, ...] = PARTS
    network: Network = BAD
    prompts: Path | None = None
    limit: int | None = None
    minutes: float = 10.0
    cuts: int = 30
    connects: int = 100


async def run(plan: Plan, seed: int | None = None) -> bool:
    """Do all parts, one after the other; prints, returns whether all bounds hold."""
    seed = random.randrange(1_000_000) if seed is None else seed
    print(f"seed {seed}; {plan.network}", flush=True)
    kept = True
    for part in plan.parts:
        lines, good = await _PARTS[part](plan, seed)
        print(f"{part}: {'holds' if good else 'FAILS'} ({machine_load()})\n{lines}", flush=True)
        kept = kept and good
    return kept


async def _words(plan: Plan, seed: int) -> tuple[str, bool]:
    from stages import presets

    stages = presets.local()
    said = await words.utterances(stages, plan.prompts, plan.limit)
    async with watched_server(voice=True) as server:
        clean, bad = [
            await words.measure(server, stages, said, network, seed=seed) for network in (PERFECT, BAD)
        ]
    return words.report(clean, bad), words.holds(clean, bad)


async def _drift(plan: Plan, seed: int) -> tuple[str, bool]:
    async with watched_server() as server:
        found = await drift.measure(server, plan.network, plan.minutes * 60, seed=seed)
    return drift.report(found), found.holds


async def _position(plan: Plan, seed: int) -> tuple[str, bool]:
    async with watched_server() as server:
        cuts = await position.measure(server, plan.network, plan.cuts, seed=seed)
    return position.report(cuts), position.holds(cuts)


async def _connects(plan: Plan, seed: int) -> tuple[str, bool]:
    async with watched_server() as server:
        found = await leaks.measure(server, plan.connects)
    return str(found), found.holds


_PARTS = {"words": _words, "drift": _drift, "position": _position, "connects": _connects}

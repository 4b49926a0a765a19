"""What can be asked of ``profile``, ``simulate``, ``validate`` and ``chaos``? Their command lines."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.option_types import above_zero, new_file, share, whole
from loadtest.own_thread import in_own_thread

if TYPE_CHECKING:
    from voice.interfaces import VoiceDetector

COMMANDS = ("profile", "simulate", "validate", "chaos")


async def run(args: argparse.Namespace) -> bool:
    """One of :data:`COMMANDS`; whether all that must hold held. What runs in virtual time has a thread of its own."""
    if args.command == "profile":
        return await _profile(args)
    if args.command == "simulate":
        from loadtest import simulate

        load = simulate.Load(
            args.sessions,
            args.workers,
            dict(args.replicas),
            args.seconds,
            seed=args.seed,
            speculate=not args.no_speculation,
        )
        return await in_own_thread(simulate.run, args.profile, load, args.processes, args.target, args.json)
    if args.command == "validate":
        from loadtest import validate

        return await validate.run(args.turns, args.seed)
    from loadtest import chaos

    options = chaos.Options(args.rate, tuple(args.leave_out), args.callers, args.seconds)
    return await in_own_thread(chaos.run, args.turns, args.seed, args.processes, options)


async def _profile(args: argparse.Namespace) -> bool:
    from loadtest.profile_recording import record

    if args.stages == "local":
        from stages import presets

        stages = await asyncio.to_thread(presets.local)
        await presets.warm_up(stages)
    else:
        from loadtest.stubs import stub_stages

        stages = stub_stages(await asyncio.to_thread(_detector))
    profile = await record(stages, args.stages, repeats=args.repeats, most_at_once=args.most_at_once)
    profile.write(args.out)
    for stage, name in profile.engine_of.items():
        engine = profile.engines[name]
        more = " or more" if engine.places >= args.most_at_once else ""
        print(
            f"{stage:12} on {name}: {engine.places}{more} at once, {engine.slowdown:.0%} longer for each beside"
        )
    print(
        f"a session takes {profile.frame_cpu_s * 1000:.1f} ms of a processor a second, a turn "
        f"{profile.turn_cpu_s * 1000:.0f} ms; written to {args.out}"
    )
    return True


def _detector() -> VoiceDetector:
    """The real one; without it, one by level."""
    from voice.errors import ModelMissing

    try:
        from stages.vad.silero import SileroVad

        return SileroVad()
    except (ImportError, ModelMissing) as error:
        from voice.testing import ScriptedDetector

        print(f"the frame path is measured with a detector by level: {error}")
        return ScriptedDetector()


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands and their options."""
    profile = commands.add_parser("profile", help="record the service times of stages into a file")
    profile.add_argument("--out", type=new_file, required=True, metavar="FILE")
    profile.add_argument("--stages", choices=("stubs", "local"), default="stubs")
    profile.add_argument("--repeats", type=whole, default=4, help="calls of each size; default 4")
    profile.add_argument("--most-at-once", type=whole, default=16, help="largest burst; default 16")
    simulate = commands.add_parser("simulate", help="the real session code in virtual time, by a profile")
    simulate.add_argument("--profile", type=Path, required=True, metavar="FILE")
    simulate.add_argument("--sessions", type=whole, required=True, metavar="N")
    simulate.add_argument("--workers", type=whole, default=1, metavar="W", help="event loops; default 1")
    simulate.add_argument(
        "--replicas", type=_replicas, nargs="+", default=[], metavar="ENGINE=K", help="default 1 each"
    )
    simulate.add_argument("--target", type=whole, metavar="N", help="sessions that replicas are counted for")
    simulate.add_argument("--seconds", type=above_zero, default=60.0, help="measured, after 20 s; default 60")
    simulate.add_argument("--processes", type=whole, default=1, metavar="P", help="of this machine")
    simulate.add_argument("--no-speculation", action="store_true")
    simulate.add_argument("--seed", type=int, default=0)
    simulate.add_argument("--json", action="store_true", help="print the results as JSON")
    validate = commands.add_parser("validate", help="measured against simulated, two profiles, five minutes")
    validate.add_argument("--turns", type=whole, default=160, help="of each measurement; default 160")
    validate.add_argument("--seed", type=int, default=1)
    chaos = commands.add_parser("chaos", help="random turns with faults at every await, in virtual time")
    chaos.add_argument("--turns", type=whole, default=1000, help="user turns; default 1000")
    chaos.add_argument("--seed", default="0", help="a number, or the seed of one round, N:M")
    chaos.add_argument("--rate", type=share, default=0.02, help="share of awaits with a fault; default 0.02")
    chaos.add_argument("--callers", type=whole, default=6, help="at once in a round; default 6")
    chaos.add_argument("--seconds", type=above_zero, default=90.0, help="of a round; default 90")
    chaos.add_argument(
        "--leave-out",
        type=_fault,
        nargs="+",
        default=[],
        metavar="KIND",
        help="faults that don't happen, such as hang",
    )
    chaos.add_argument("--processes", type=whole, default=os.cpu_count() or 1, metavar="P")


def _replicas(text: str) -> tuple[str, int]:
    name, equals, count = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text} should be ENGINE=K, such as recogniser=4")
    return name, whole(count)


def _fault(text: str) -> str:
    from loadtest.chaos_trouble import KINDS

    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"there is no fault {text!r}; there are {', '.join(KINDS)}")
    return text

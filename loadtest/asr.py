"""What can be asked of ``asr``? The command line of the recognition tests."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from loadtest.option_types import above_zero, new_file, whole, zero_or_more

SEED = 1
"""Of corpora that are compared with a baseline: it must be the same."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``asr accuracy``, ``asr invented`` and ``asr streaming``."""
    asr = commands.add_parser("asr", help="recognition: word errors, invented words, partials and latency")
    tests = asr.add_subparsers(metavar="TEST", required=True, dest="test")
    _add_accuracy(tests.add_parser("accuracy", help="word errors and processor time by slice"))
    _add_invented(tests.add_parser("invented", help="words found where nobody speaks"))
    _add_streaming(
        tests.add_parser("streaming", help="partials and finals of sessions: latency, stability, order")
    )


async def run(args: argparse.Namespace) -> bool:
    """One of the tests; whether all that must hold held."""
    if args.test == "invented":
        return await _invented(args)
    if args.test == "streaming":
        return await _streaming(args)
    return await _accuracy(args)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--asr", action="append", metavar="NAME", help="a recogniser's name, folder or URL; repeatable"
    )
    parser.add_argument(
        "--compute-type", metavar="TYPE", help="arithmetic, such as int8_float32; default int8"
    )
    _add_seed(parser)
    _add_speech(parser)


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, help=f"default {SEED}; -1 draws one")


def _add_speech(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--speech",
        type=Path,
        metavar="FOLDER",
        help="recordings with a manifest.jsonl; default: made sentences",
    )


def _add_against(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", choices=("faster-whisper",), help="its own defaults with the same weights"
    )


def _seed(args: argparse.Namespace) -> int:
    if args.seed is None:
        return SEED
    return random.randrange(10_000) if args.seed < 0 else int(args.seed)


def _add_accuracy(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    _add_against(parser)
    parser.add_argument("--slices", metavar="A,B", help="only these; default all")
    parser.add_argument("--limit", type=whole, help="only the first so many utterances")
    parser.add_argument(
        "--write", type=new_file, metavar="FILE", help="keep results and samples as JSON: a baseline"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with what was kept; 1 if it is worse"
    )
    parser.add_argument("--html", type=new_file, metavar="FILE", help="a page with every failure")
    parser.add_argument(
        "--worse-points",
        type=zero_or_more,
        default=0.5,
        metavar="X",
        help="word error rate, points; default 0.5",
    )
    parser.add_argument(
        "--worse-words", type=zero_or_more, default=2, metavar="Y", help="or words of a slice; default 2"
    )
    parser.add_argument(
        "--worse-rtf",
        type=zero_or_more,
        default=20.0,
        metavar="Z",
        help="processor time above the baseline's, percent; default 20",
    )
    parser.add_argument(
        "--cpu-share",
        type=above_zero,
        default=1 / 3,
        metavar="S",
        help="most processor time as a share of --against's; default a third",
    )


async def _accuracy(args: argparse.Namespace) -> bool:
    from loadtest import asr_accuracy
    from loadtest.asr_compare import Limits

    words = int(args.worse_words)
    plan = asr_accuracy.Plan(
        speech=args.speech,
        asr=tuple(args.asr or ()),
        against=args.against,
        compute_type=args.compute_type,
        slices=tuple(args.slices.split(",")) if args.slices else (),
        limit=args.limit,
        seed=_seed(args),
        baseline=args.baseline,
        write=args.write,
        html=args.html,
        reference_limits=Limits(0.0, words, args.cpu_share, cpu_per_slice=False),
        baseline_limits=Limits(args.worse_points, words, 1 + args.worse_rtf / 100),
    )
    return await asr_accuracy.run(plan)


def _add_invented(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    _add_against(parser)
    parser.add_argument(
        "--minutes", type=above_zero, default=4.0, help="of sounds; default 4, the full test 30"
    )
    parser.add_argument(
        "--tails", type=whole, default=24, metavar="N", help="utterances that noise follows; default 24"
    )
    parser.add_argument("--write", type=new_file, metavar="FILE", help="keep the results as JSON")


async def _invented(args: argparse.Namespace) -> bool:
    from loadtest import asr_invented

    plan = asr_invented.Plan(
        minutes=args.minutes,
        asr=tuple(args.asr or ()),
        against=args.against,
        compute_type=args.compute_type,
        speech=args.speech,
        tails=args.tails,
        seed=_seed(args),
        write=args.write,
    )
    return await asr_invented.run(plan)


def _add_streaming(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--asr", metavar="NAME", help="a recogniser's name, folder or URL")
    _add_seed(parser)
    _add_speech(parser)
    parser.add_argument(
        "--sessions", type=whole, default=1, metavar="N", help="at once, each with words of its own"
    )
    parser.add_argument(
        "--utterances", type=whole, metavar="N", help="of each; default 20, or 3 of several sessions"
    )
    parser.add_argument("--no-partials", action="store_true", help="finals only")
    parser.add_argument(
        "--no-turn-model", action="store_true", help="the recogniser has the processor to itself"
    )
    parser.add_argument("--write", type=new_file, metavar="FILE", help="keep the results as JSON")


async def _streaming(args: argparse.Namespace) -> bool:
    from loadtest import asr_streaming

    plan = asr_streaming.Plan(
        asr=args.asr,
        speech=args.speech,
        sessions=args.sessions,
        utterances=args.utterances or (20 if args.sessions == 1 else 3),
        partials=not args.no_partials,
        turn_model=not args.no_turn_model,
        seed=_seed(args),
        write=args.write,
    )
    return await asr_streaming.run(plan)

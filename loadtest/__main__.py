"""``python -m loadtest COMMAND``: what the README's figures are printed by."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from loadtest import asr, load_options, simulation_options
from loadtest.option_types import above_zero, whole, zero_or_more
from voice.errors import VoiceError

STOPPED = 130
"""What a shell says of a program that Ctrl-C ended."""
_LEAVE_S = 0.5


def main() -> int:
    """Run a command; 0 when all bounds hold, 1 when not or on failure, 130 when it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description="Measure conversations.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    prompts = commands.add_parser("prompts", help="turns, words and intelligibility over real recordings")
    prompts.add_argument("folder", type=Path, help="recordings with a manifest.jsonl")
    prompts.add_argument("--limit", type=whole, help="only the first so many")
    prompts.add_argument("--joined", type=zero_or_more, metavar="GAP_S", help="as one stream with such gaps")
    prompts.add_argument("--max-tokens", type=whole, default=24, help="longest answer")
    latency = commands.add_parser("latency", help="speculation on against off, one caller or several at once")
    latency.add_argument(
        "--callers", type=whole, action="append", metavar="N", help="so many at once; repeatable"
    )
    latency.add_argument("--turns", type=whole, help="of each caller; default 20, or 4 with --callers")
    latency.add_argument("--runs", type=whole, default=3)
    latency.add_argument("--seed", type=int, help="of what several callers ask, and when")
    latency.add_argument(
        "--min-delay", type=zero_or_more, metavar="S", help="endpointing, when not the default's"
    )
    barge = commands.add_parser(
        "barge-in", help="how soon the agent falls silent, and what the history keeps"
    )
    barge.add_argument("--turns", type=whole, default=10)
    barge.add_argument("--runs", type=whole, default=3)
    transport = commands.add_parser("transport", help="CPU of a session by each transport, silent stages")
    transport.add_argument("--sessions", type=whole, default=8)
    transport.add_argument("--seconds", type=above_zero, default=10.0)
    transport.add_argument("--runs", type=whole, default=3)
    webrtc = commands.add_parser("webrtc", help="words, drift, heard position and leaks over a bad network")
    webrtc.add_argument("--only", choices=("words", "drift", "position", "connects"), action="append")
    webrtc.add_argument("--network", choices=("bad", "clean"), default="bad", help="of drift and position")
    webrtc.add_argument("--prompts", type=Path, metavar="FOLDER", help="recordings with a manifest.jsonl")
    webrtc.add_argument("--limit", type=whole, help="only the first so many recordings")
    webrtc.add_argument("--minutes", type=above_zero, default=10.0, help="the call that is watched for drift")
    webrtc.add_argument("--cuts", type=whole, default=30, help="answers that are cut")
    webrtc.add_argument("--connects", type=whole, default=100, help="calls that are made and hung up")
    webrtc.add_argument("--seed", type=int)
    turns = commands.add_parser("turns", help="false cut-offs and response delay of ways to end a turn")
    turns.add_argument("folders", type=Path, nargs="*", help="recordings of one turn each, reported apart")
    turns.add_argument("--part", choices=("train", "test"), default="test", help="train is for tuning")
    turns.add_argument("--seed", type=int)
    turns.add_argument("--callers", type=whole, default=12)
    turns.add_argument("--turns", type=whole, default=10, help="turns of each caller")
    turns.add_argument("--cache", type=Path, help="keep voices and what the engines said here")
    interruptions = commands.add_parser(
        "interruptions", help="false interruptions, dips and missed barge-ins over generated sounds"
    )
    interruptions.add_argument("--passages", type=whole, default=12, help="of each kind")
    interruptions.add_argument("--tuning", action="store_true", help="the sounds that thresholds were set on")
    interruptions.add_argument(
        "--ablations", action="store_true", help="also without the guard, and flush-only"
    )
    interruptions.add_argument("--faults", action="store_true", help="list each wrong decision and dip")
    speakers = commands.add_parser("speakers", help="diarisation error over generated conversations")
    speakers.add_argument(
        "voices", type=Path, nargs="*", help="a recording or folder for each speaker; made-up voices if none"
    )
    speakers.add_argument("--minutes", type=above_zero, default=5.0, help="of each conversation")
    speakers.add_argument("--runs", type=whole, default=3, help="conversations of each kind")
    speakers.add_argument("--seed", type=int)
    recordings = commands.add_parser("recordings", help="long recordings, against faster-whisper's pipeline")
    recordings.add_argument("speech", type=Path, help="recordings with a manifest.jsonl, to be joined")
    recordings.add_argument("--also", nargs=2, action="append", metavar=("FILE", "TEXT"), help="one more")
    recordings.add_argument("--minutes", type=above_zero, default=60.0, help="of the joined recording")
    recordings.add_argument("--seed", type=int, default=7)
    recordings.add_argument("--folder", type=Path, default=Path("recordings"), help="where it is kept")
    recordings.add_argument("--beam", type=whole, action="append", help="of faster-whisper; default 1 and 5")
    recordings.add_argument("--runs", type=whole, default=1, help="of each; the fastest counts")
    framework = commands.add_parser(
        "framework", help="what the framework itself costs and adds, stub engines"
    )
    framework.add_argument("--sessions", type=whole, action="append", metavar="N", help="at once; repeatable")
    framework.add_argument("--seconds", type=above_zero, default=60.0, help="of each session")
    framework.add_argument("--runs", type=whole, default=1)
    framework.add_argument(
        "--kind",
        choices=("null", "voice", "speculating"),
        action="append",
        help="null: the harness alone; default all",
    )
    framework.add_argument("--speech", type=Path, metavar="FILE", help="the utterance, without a pause")
    framework.add_argument("--json", action="store_true", help="one run a line")
    asr.add_command(commands)
    load_options.add_commands(commands)
    simulation_options.add_commands(commands)
    args = parser.parse_args()
    try:
        return 0 if asyncio.run(_run(args)) else 1
    except VoiceError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():  # else the program waits until they are done
            child.terminate()
        print("\nloadtest: stopped", file=sys.stderr)
        return STOPPED


async def _run(args: argparse.Namespace) -> bool:
    if args.command == "asr":
        return await asr.run(args)
    if args.command in load_options.COMMANDS:
        return await load_options.run(args)
    if args.command in simulation_options.COMMANDS:
        return await simulation_options.run(args)
    if args.command == "framework":
        from loadtest import framework

        kinds = args.kind or ("null", "voice", "speculating")
        return await framework.run(
            args.sessions or [1, 8, 16], args.seconds, args.runs, kinds, args.speech, args.json
        )
    if args.command == "prompts":
        from loadtest import prompts

        return await prompts.run(args.folder, args.limit, args.joined, args.max_tokens)
    if args.command == "latency":
        from loadtest import latency

        if args.callers:
            return await latency.run_together(
                args.callers, args.turns or 4, args.runs, args.min_delay, args.seed
            )
        return await latency.run(args.turns or 20, args.runs, args.min_delay)
    if args.command == "transport":
        from loadtest import transport

        return await transport.run(args.sessions, args.seconds, args.runs)
    if args.command == "webrtc":
        from loadtest import webrtc
        from loadtest.lossy_relay import BAD, PERFECT

        parts = tuple(args.only or webrtc.PARTS)
        network = {"bad": BAD, "clean": PERFECT}[args.network]
        plan = webrtc.Plan(parts, network, args.prompts, args.limit, args.minutes, args.cuts, args.connects)
        return await webrtc.run(plan, args.seed)
    if args.command == "turns":
        from loadtest import turns

        return await turns.run(args.part, args.seed, args.callers, args.turns, args.folders, args.cache)
    if args.command == "speakers":
        from loadtest import speakers

        return await speakers.run(args.voices, args.minutes, args.runs, args.seed)
    if args.command == "recordings":
        from loadtest import prompts, recordings

        clips = prompts.load_manifest(args.speech) + [(Path(file), text) for file, text in args.also or ()]
        return await recordings.run(
            clips, args.minutes, args.seed, args.folder, args.beam or (1, 5), args.runs
        )
    if args.command == "interruptions":
        from loadtest import interruptions

        return await interruptions.run(args.passages, args.tuning, args.ablations, args.faults)
    from loadtest import barge_in

    return await barge_in.run(args.turns, args.runs)


def _end(status: int) -> None:
    """Of the program. When it was stopped, threads may still compute: torn down in C++ code they would abort it."""
    beside = [thread for thread in threading.enumerate() if thread.daemon and status == STOPPED]
    for thread in beside:
        thread.join(_LEAVE_S)
    if any(thread.is_alive() for thread in beside):
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    # as Ctrl-C: what has children or half a report ends them in order
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _end(main())

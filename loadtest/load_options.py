"""What can be asked of ``run``, ``knee`` and ``soak``? Their command lines, and the server that they put under load."""

from __future__ import annotations

import argparse
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.option_types import above_zero, new_file, whole, zero_or_more

if TYPE_CHECKING:
    from loadtest.scenario import Scenario
    from loadtest.setting import Setting
    from loadtest.stub_server import StubServer


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load.

    Attributes:
        setting: What its callers share.
        server: Our own, in a child process; ``None``: somebody's.
        pid: The process to be watched where it is not our own; ``None``: unknown.
        ideal_s: See :meth:`~loadtest.tally.Tally.summary`.
        seed: Of the callers.
    """

    setting: Setting
    server: StubServer | None
    pid: int | None
    ideal_s: float | None
    seed: int


COMMANDS = ("run", "knee", "soak")


async def run(args: argparse.Namespace) -> bool:
    """One of :data:`COMMANDS`; whether all that must hold held."""
    if args.command == "soak":
        from loadtest import soak

        return await soak.run(args)
    if args.command == "knee":
        from loadtest import knee

        return await knee.run(args)
    from loadtest import run

    return await run.run(args)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``run``, ``knee`` and ``soak``."""
    run = commands.add_parser(
        "run", help="callers against a server of the Realtime protocol, and what they hear"
    )
    _add_target(run)
    _add_common(run)
    run.add_argument("--sessions", type=whole, default=20, metavar="N", help="callers at once; default 20")
    run.add_argument(
        "--seconds", type=above_zero, default=60.0, metavar="S", help="after all have come; default 60"
    )
    run.add_argument("--json", action="store_true", help="print the results as JSON")
    knee = commands.add_parser("knee", help="raise the load until the service level breaks")
    _add_target(knee)
    _add_common(knee)
    knee.add_argument(
        "--from", type=whole, default=4, metavar="N", dest="least", help="begin with; default 4"
    )
    knee.add_argument(
        "--to", type=whole, default=1024, metavar="N", dest="most", help="at most; default 1024"
    )
    knee.add_argument(
        "--seconds", type=above_zero, default=30.0, metavar="S", help="of each step; default 30"
    )
    knee.add_argument("--p95-ms", type=above_zero, default=None, metavar="MS", help=P95_HELP)
    knee.add_argument(
        "--gaps", type=above_zero, default=1.0, metavar="PERCENT", help="answers with gaps; default 1"
    )
    knee.add_argument(
        "--errors", type=above_zero, default=1.0, metavar="PERCENT", help="turns that fail; default 1"
    )
    knee.add_argument("--json", action="store_true", help="print the results as JSON")
    soak = commands.add_parser("soak", help="a long run: memory, tasks, handles, drift of the latency")
    _add_common(soak)
    _add_own(soak)
    soak.add_argument("--minutes", type=above_zero, default=60.0, metavar="M", help="default 60")
    soak.add_argument("--sessions", type=whole, default=20, metavar="N", help="callers at once; default 20")
    soak.add_argument(
        "--json", type=new_file, metavar="FILE", help="write the results there, also while it goes on"
    )


P95_HELP = "longest p95 of the overhead, or of voice-to-voice where no ideal is known; default 500 or 1500"


def _add_target(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="of the server, such as ws://127.0.0.1:8080/v1/realtime")
    where.add_argument(
        "--in-process", action="store_true", help="our own server with stub engines, as a child process"
    )
    parser.add_argument("--token", metavar="KEY", help="the server's key")
    parser.add_argument(
        "--pid", type=whole, help="process of the server, if it runs here: its CPU and memory are read"
    )
    parser.add_argument(
        "--stub-tones", action="store_true", help="the server at the URL speaks in the stubs' tones"
    )
    parser.add_argument(
        "--ideal-ms", type=above_zero, metavar="MS", help="what its engines take: the overhead is told"
    )
    _add_own(parser)


def _add_own(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("our own server")
    own.add_argument("--speculate", action="store_true", help="answers begin before the turn is certain")
    own.add_argument("--max-sessions", type=whole, default=100_000, metavar="N", help="it refuses more")
    own.add_argument("--no-admission", action="store_true", help="it refuses nobody for its load")
    own.add_argument("--detector", choices=("silero", "loud"), default="silero", help="loud: without a model")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="what callers do, TOML or JSON")
    parser.add_argument(
        "--speech", type=Path, action="append", metavar="FILE", help="what they say, WAV; repeatable"
    )
    parser.add_argument(
        "--ramp", type=zero_or_more, metavar="S", help="callers come within; default the scenario's"
    )
    parser.add_argument("--seed", type=int, help="of all that callers draw")
    parser.add_argument("--html", type=new_file, metavar="FILE", help="write a report with plots")


@asynccontextmanager
async def opened(args: argparse.Namespace, scenario: Scenario) -> AsyncIterator[Target]:
    """The server that is meant, started if it is our own, and its callers' speech.

    Raises:
        BadRequest: A file can't be used, the URL is no address, or there is no process to be watched.
        EngineFailed: Our own server did not start.
    """
    from loadtest.light_socket import endpoint
    from loadtest.pacer import Pacer
    from loadtest.setting import Setting
    from loadtest.stub_server import StubOptions, process_sample, running
    from loadtest.utterances import make_lines
    from voice.running import settle

    url = getattr(args, "url", None)
    address = None if url is None else endpoint(url)
    if getattr(args, "pid", None) is not None:
        process_sample(args.pid)  # it must be there, at least at the start
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    folder = Path() if args.scenario is None else args.scenario.parent
    lines = await make_lines(scenario, folder, args.speech or ())
    pacer = Pacer(scenario.frame_ms / 1000)
    settle()  # a garbage collection here would be a delay that callers blame on the server
    if address is not None:
        setting = Setting(address, args.token, scenario, lines, args.stub_tones, pacer)
        yield Target(setting, None, args.pid, args.ideal_ms and args.ideal_ms / 1000, seed)
        return
    options = StubOptions(args.max_sessions, not args.no_admission, args.speculate, args.detector)
    async with running(options) as server:
        setting = Setting(server.url, None, scenario, lines, True, pacer)
        yield Target(setting, server, None, server.ideal_s, seed)

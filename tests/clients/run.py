"""Do stock clients work with our server? Runs each one's script, checks what it received, and prints a table.

``python tests/clients/run.py [--only NAME ...] [--scenario NAME ...] [--url ws://HOST:PORT/v1/realtime]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

TESTS = Path(__file__).resolve().parents[1]
# the project before its tests: folders there have the names of its packages
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from clients import contract, sounds  # noqa: E402
from clients.environments import CLIENTS, Client, prepare  # noqa: E402
from clients.order import faults  # noqa: E402
from clients.server import voice_serve  # noqa: E402
from clients.tls import Forwarder, make_certificate  # noqa: E402
from platformdirs import user_cache_path  # noqa: E402 - after the path

CLIENT_S = 300.0
"""Longest run of one client, all its scenarios."""
EXPECTED_ERRORS = {"pipecat": ("response_cancel_not_active",)}
"""Errors that a client provokes and then ignores: Pipecat cancels at every press of its button."""


def main() -> int:
    """Run the clients; returns 1 when anything failed."""
    args = _arguments()
    clients = [client for client in CLIENTS if client.name in args.only]
    rows: list[tuple[Client, dict[str, str | None]]] = []
    with tempfile.TemporaryDirectory() as folder, _reached(args.url) as url:
        work = Path(folder)
        sounds.write(work)
        certificate, key = make_certificate(work)
        parts = urlsplit(url)
        forwarder = Forwarder(parts.hostname or "127.0.0.1", parts.port or 80, certificate, key)
        for client in clients:
            print(f"{client.shown} ...", file=sys.stderr, flush=True)
            out = args.keep / client.name if args.keep else work / client.name
            out.mkdir(parents=True, exist_ok=True)
            reached = f"wss://127.0.0.1:{forwarder.port}{parts.path}" if client.tls else url
            environment = os.environ | {
                "PYTHONPATH": str(TESTS),
                "NODE_EXTRA_CA_CERTS": str(certificate),
                "CLIENTS_NODE": str(args.env_dir / "node"),
            }
            rows.append((client, _run(client, args, reached, work, out, environment)))
    print(_table(rows, args.scenario))
    return int(any(error is not None for _, results in rows for error in results.values()))


def _arguments() -> argparse.Namespace:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--scenario", nargs="+", choices=contract.SCENARIOS, default=list(contract.SCENARIOS))
    parser.add_argument("--url", help="a server that runs already, with the agent of agent.py")
    parser.add_argument("--env-dir", type=Path, default=user_cache_path("voice") / "clients")
    parser.add_argument("--keep", type=Path, help="folder for the events that each client received")
    return parser.parse_args()


def _reached(url: str | None) -> AbstractContextManager[str]:
    """The URL of the server: the given one, or one of our own."""
    return voice_serve() if url is None else nullcontext(url)


def _run(
    client: Client, args: argparse.Namespace, url: str, work: Path, out: Path, environment: dict[str, str]
) -> dict[str, str | None]:
    """Run one client's scenarios; the result is scenario → what went wrong, or ``None``."""
    try:
        command = prepare(client, args.env_dir)
    except (subprocess.CalledProcessError, OSError) as error:
        return dict.fromkeys(args.scenario, f"its environment can't be made: {error}")
    options = ["--url", url, "--sounds", str(work), "--out", str(out), "--only", *args.scenario]
    log = out / "log.txt"
    try:
        with open(log, "w") as err:
            done = subprocess.run(
                [*command, *options],
                cwd=TESTS,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=err,
                timeout=CLIENT_S,
            )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(args.scenario, f"not over after {CLIENT_S:g} s")
    results: dict[str, str | None] = dict.fromkeys(
        args.scenario, f"the script ended with {done.returncode}: {log.read_text()[-300:]}"
    )
    for line in done.stdout.decode().splitlines():
        if line.startswith('{"scenario"'):
            report = json.loads(line)
            results[report["scenario"]] = report["error"] or _disorder(client, out, report["scenario"])
    return results


def _disorder(client: Client, out: Path, scenario: str) -> str | None:
    """What is wrong with the order of the events a client received."""
    events = [json.loads(line) for line in (out / f"{scenario}.jsonl").read_text().splitlines()]
    found = faults(
        events,
        wire="webrtc" if client.wire == "webrtc" else "websocket",
        errors=EXPECTED_ERRORS.get(client.name, ()),
    )
    return f"{len(found)} faults of order, first {found[0]}" if found else None


def _table(rows: list[tuple[Client, dict[str, str | None]]], scenarios: list[str]) -> str:
    width = max(len(client.shown) for client, _ in rows)
    lines = [" " * width + "  " + "  ".join(f"{name:>12}" for name in scenarios)]
    complaints = []
    for client, results in rows:
        cells = ["ok" if results[name] is None else "FAILED" for name in scenarios]
        lines.append(f"{client.shown:<{width}}  " + "  ".join(f"{cell:>12}" for cell in cells))
        complaints += [f"{client.name} {name}: {results[name]}" for name in scenarios if results[name]]
    return "\n".join([*lines, *([""] if complaints else []), *complaints])


if __name__ == "__main__":
    sys.exit(main())

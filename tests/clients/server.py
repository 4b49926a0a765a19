"""How is ``voice serve`` run for a client? As a program of its own, with the test agent, on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0
"""Longest wait for the address it prints."""
STOP_S = 10.0


@contextmanager
def voice_serve(*options: str) -> Iterator[str]:
    """Start it, with further command-line ``options``; gives ``ws://HOST:PORT/v1/realtime``.

    At the end it is told to stop, and what it logged of trouble is printed.

    Raises:
        RuntimeError: It does not start, or does not end with status 0.
    """
    agent = Path(__file__).with_name("agent.py")
    command = [
        sys.executable,
        "-m",
        "voice.cli",
        "serve",
        "--port",
        "0",
        "--agent",
        f"{agent}:agent",
        *options,
    ]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=root)
        try:
            yield f"ws://127.0.0.1:{_port(server, log.fileno())}/v1/realtime"
        finally:
            server.terminate()
            try:
                status = server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                status = server.wait()
            log.seek(0)
            said = log.read()
            for line in said.splitlines():
                if re.search(r"ERROR|Traceback|WARNING", line):
                    print(f"the server logged: {line}", file=sys.stderr)
        if status != 0:
            raise RuntimeError(f"voice serve ended with {status}:\n{said[-2000:]}")


def _port(server: subprocess.Popen[bytes], log: int) -> int:
    """Wait for the address."""
    said = ""
    for _ in range(int(START_S / 0.1)):
        said = os.pread(log, 100_000, 0).decode(errors="replace")
        if found := re.search(r"https?://[\w.\[\]]+:(\d+)", said):
            return int(found[1])
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"voice serve printed no address:\n{said}")

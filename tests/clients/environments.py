"""Where do the stock clients live? Each in an environment of its own, at the pinned version, made when first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Client:
    """A client and the script that drives it.

    Attributes:
        name: What ``--only`` calls it.
        script: In this folder; its suffix says what runs it.
        packages: Requirements at exact versions, for pip or npm.
        environment: Folder under the environments' folder; clients of one may share it. ``""``: the Python that runs
            this, with the project's own dev extra.
        wire: Which transport its events come by.
        tls: It refuses unencrypted connections.
        shown: What the table says it is.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    environment: str
    shown: str
    wire: str = "websocket"
    tls: bool = False


NODE = ("openai@7.59.0", "@openai/agents-realtime@0.20.0", "ws@8", "zod@4", "esbuild@0.25", "typescript@5")

CLIENTS = (
    Client("openai-python", "openai_python.py", (), "", "openai 3.57.0 (Python)"),
    Client("openai-node", "openai_node.mjs", NODE, "node", "openai 7.59.0 (Node)", tls=True),
    Client("agents-node", "agents_node.mjs", NODE, "node", "@openai/agents-realtime 0.20.0 (Node)"),
    Client(
        "agents-webrtc",
        "webrtc_chromium.py",
        NODE,
        "node",
        "@openai/agents-realtime 0.20.0 (Chromium, WebRTC)",
        wire="webrtc",
    ),
    Client(
        "agents-python",
        "agents_python.py",
        ("openai-agents==0.24.0",),
        "agents",
        "openai-agents 0.24.0 (Python)",
    ),
    Client("pipecat", "pipecat_client.py", ("pipecat-ai==1.14.0",), "pipecat", "pipecat-ai 1.14.0"),
    Client(
        "livekit",
        "livekit_client.py",
        ("livekit-agents==1.8.9", "livekit-plugins-openai==1.8.9"),
        "livekit",
        "livekit-plugins-openai 1.8.9",
    ),
)


def prepare(client: Client, root: Path) -> list[str]:
    """Make the client's environment unless it is there; returns the command that runs its script.

    Raises:
        subprocess.CalledProcessError: pip or npm failed; its output was printed.
    """
    folder = root / client.environment
    if client.environment == "node":
        _npm(folder, client.packages)
        if client.script.endswith(".mjs"):
            return ["node", str(folder / client.script)]
        return _module(sys.executable, client)
    if client.environment:
        return _module(_venv(folder, client.packages), client)
    return _module(sys.executable, client)


def _module(python: str, client: Client) -> list[str]:
    return [python, "-m", f"clients.{Path(client.script).stem}"]


def _npm(folder: Path, packages: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for script in HERE.glob("*.mjs"):
        # modules are looked up beside the script that imports them
        shutil.copy(script, folder)
    if _is_made(folder, packages):
        return
    (folder / "package.json").write_text('{"private": true}\n')
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", *packages], cwd=folder, check=True)
    _made(folder, packages)


def _venv(folder: Path, packages: tuple[str, ...]) -> str:
    python = str(folder / "bin" / "python")
    if not _is_made(folder, packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        _made(folder, packages)
    return python


def _is_made(folder: Path, packages: tuple[str, ...]) -> bool:
    note = folder / "made.txt"
    return note.is_file() and note.read_text().split() == list(packages)


def _made(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / "made.txt").write_text("\n".join(packages) + "\n")

"""Imports point one way (DESIGN §2), and ``import voice`` is cheap: it pulls in no engine, server or media package."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("voice", "stages", "transports", "loadtest")
MAY_IMPORT = {
    "voice": {"voice"},
    "stages": {"stages", "voice"},
    "transports": {"transports", "voice"},
    "loadtest": {"loadtest", "stages", "transports", "voice"},
}
COMPOSITION_ROOT = "voice.cli"
"""The one module of ``voice`` that may import the other packages."""
OPTIONAL = {
    *(
        "torch",
        "torchaudio",
        "transformers",
        "tensorrt_llm",
        "snac",
        "silero_vad",
        "onnxruntime",
        "ctranslate2",
    ),
    *("faster_whisper", "xllamacpp", "piper", "tokenizers", "scipy", "sounddevice"),
    *("aiortc", "av", "websockets", "starlette", "uvicorn", "httpx", "pip", "huggingface_hub"),
}
"""Packages of engines, servers and media: each is imported by the file that uses it, when it is used."""


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported_by(name: str, path: Path) -> set[str]:
    """All modules that a file imports, wherever in the file, and for type checking too."""
    found: set[str] = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in modules(package)
        if name != COMPOSITION_ROOT
        for target in sorted(imported_by(name, path))
        if target.partition(".")[0] in {*PACKAGES, "examples", "tests"} - MAY_IMPORT[package]
    ]
    assert wrong == []
    assert list(modules(package)), "the package has modules to look at"


def test_nothing_imports_the_command_line() -> None:
    wrong = [
        name
        for package in PACKAGES
        for name, path in modules(package)
        if COMPOSITION_ROOT in imported_by(name, path) and name != "voice.__main__"
    ]
    assert wrong == []


MEASURE_CPU = {"voice.service", "voice.watchdog"}
"""They read how much processor time a thread has used, which no loop knows; never what time it is."""


def loaded_by(*names: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after importing ``names``."""
    code = f"import json, sys; import {', '.join(names)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_voice_loads_no_optional_package() -> None:
    assert loaded_by("voice") & OPTIONAL == set()


def test_an_agent_and_its_session_need_no_engine_server_or_media_package() -> None:
    assert loaded_by("voice", "voice.agent", "voice.session") & OPTIONAL == set()


def test_the_conversation_never_reads_a_clock_but_the_loops() -> None:
    """Only the event loop's time exists in the core, or virtual time would have holes (DESIGN §10)."""
    wrong = [
        f"{name} imports {target}"
        for package in ("voice", "stages", "transports")
        for name, path in modules(package)
        if name not in MEASURE_CPU
        for target in imported_by(name, path)
        if target == "time" or target.startswith("time.")
    ]
    assert wrong == []

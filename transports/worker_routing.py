"""Which worker has the conversation that a request is about? The ids that clients are given name it.

A call's id is ``rtc_NUMBER_…`` and a token to resume with is ``NUMBER.…``; without workers both are plain.
"""

from __future__ import annotations

import re
import secrets

ANYONE = 0
"""Instead of a worker's number: whoever has least to do."""

MOST_LINE_BYTES = 8192
"""A request's first line that is longer than this is nobody's business but the HTTP parser's."""

_NAMED = re.compile(rb"(?:[/=]rtc_(\d{1,9})_|[?&]resume=(\d{1,9})\.)")


def call_id(worker: int | None) -> str:
    """A new id of a WebRTC call that ``worker`` has (``None``: there is but one process)."""
    name = secrets.token_hex(16)
    return f"rtc_{name}" if worker is None else f"rtc_{worker}_{name}"


def resume_token(worker: int | None) -> str:
    """A new token with which a client comes back to its conversation."""
    token = secrets.token_urlsafe(24)
    return token if worker is None else f"{worker}.{token}"


def request_line(data: bytes) -> bytes | None:
    """The first line of a request that begins with ``data``; ``None`` while it is not there in full."""
    line, newline, _ = data.lstrip(b"\r\n").partition(b"\n")
    return line if newline or len(data) > MOST_LINE_BYTES else None


def named_worker(line: bytes) -> int | None:
    """The worker that a request's first line names; ``None``: any will do."""
    found = _NAMED.search(line[:MOST_LINE_BYTES])
    return None if found is None else int(found[1] or found[2])

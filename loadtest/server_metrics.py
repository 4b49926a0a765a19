"""Which stage of a server is the limit? What one of ours says itself: the load of each stage, at ``/metrics``."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

import httpx

TIMEOUT_S = 3.0
_STAGE = re.compile(r'^voice_stage_load\{stage="([^"]*)"\} (\S+)$', re.MULTILINE)


async def stage_loads(url: str, token: str | None) -> dict[str, float]:
    """The load of each stage as a share of its target; empty where the server tells none.

    Args:
        url: Of the Realtime endpoint.
        token: The server's key; ``None``: it needs none.
    """
    parts = urlsplit(url)
    base = re.sub(r"(/openai)?/v1/realtime/?$", "", parts.path)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, f"{base}/metrics", "", ""))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            answer = await client.get(address, headers=headers)
    except httpx.HTTPError:
        return {}
    return parse(answer.text) if answer.status_code == 200 else {}


def parse(text: str) -> dict[str, float]:
    """The stages of a scrape."""
    return {name: float(value) for name, value in _STAGE.findall(text)}

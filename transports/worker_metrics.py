"""How do the metrics of several workers become one scrape? Every sample gets its worker's number as a label."""

from __future__ import annotations

from collections.abc import Mapping


def merged(texts: Mapping[int, str]) -> str:
    """One text of the Prometheus format (0.0.4) from one for each worker, families kept together.

    Args:
        texts: By worker's number.
    """
    families: dict[str, list[str]] = {}
    comments: dict[str, dict[str, str]] = {}  # HELP and TYPE of each family, once
    for worker, text in sorted(texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                _, kind, family, *_ = line.split(" ", 3)
                families.setdefault(family, [])
                comments.setdefault(family, {}).setdefault(kind, line)
            elif line:
                families.setdefault(family, []).append(_labelled(line, worker))
    lines = [line for name, samples in families.items() for line in (*comments[name].values(), *samples)]
    return "\n".join(lines) + "\n"


def _labelled(sample: str, worker: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'

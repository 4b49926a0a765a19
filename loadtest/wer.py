"""Word errors of a run against a manifest.

``python -m loadtest.wer MANIFEST.jsonl RESULTS.jsonl`` prints the pooled rate of a run. The manifest has
one object a line with the spoken ``text``; the results are what ``voice talk --json`` prints (its ``turn``
lines) or objects with ``user`` or ``text``. Both are paired by order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from voice.word_errors import Errors, compare, normalise, pooled

__all__ = ["Errors", "compare", "main", "normalise", "pooled"]


def _texts(path: Path, *, results: bool) -> list[str]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if results:
        rows = [row for row in rows if row.get("type", "turn") == "turn"]
    return [str(row["user"] if "user" in row else row["text"]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints every text with errors and the pooled rate; 0 when it was computed."""
    paths = list(sys.argv[1:] if arguments is None else arguments)
    if len(paths) != 2:
        print("usage: python -m loadtest.wer MANIFEST.jsonl RESULTS.jsonl", file=sys.stderr)
        return 2
    try:
        said, heard = _texts(Path(paths[0]), results=False), _texts(Path(paths[1]), results=True)
    except (OSError, ValueError, KeyError) as error:
        print(f"can't read the texts: {error!r}", file=sys.stderr)
        return 1
    if len(said) != len(heard):
        print(f"{len(said)} texts were said, but there are {len(heard)} turns", file=sys.stderr)
        return 1
    for reference, hypothesis in zip(said, heard, strict=True):
        if (errors := compare(reference, hypothesis)).total:
            print(f"{errors.total} of {errors.words}: {reference!r} heard as {hypothesis!r}")
    print(pooled(zip(said, heard, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What is already recognised of a recording, if an earlier run was stopped? One line of JSON for each piece, on disk
before the next is begun.

A journal belongs to one recording (by its size, date and what is at its two ends), one recogniser and one way to cut.
A line that was not written whole, and all after it, is dropped. Once the transcript is whole, the journal is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from voice.errors import BadAudio
from voice.interfaces import Transcript, Word

log = logging.getLogger("voice.recordings")

Key = tuple[int, int, int]
"""Start, end and length of a piece in samples; see :attr:`stages.asr.recordings.cut.Piece.key`."""

KEPT_DAYS = 30
"""A journal that nobody came back to for so long is removed when another is opened in its folder."""

VERSION = 1
_ENDS_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20


def default_folder() -> Path:
    """Where journals are kept: ``VOICE_JOURNALS_DIR``, else ``voice/journals`` in the user's cache folder."""
    if chosen := os.environ.get("VOICE_JOURNALS_DIR"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("voice", appauthor=False)) / "journals"


def name_of(path: Path, setting: Mapping[str, object]) -> str:
    """The name of the journal of a recording that is recognised in one way; blocking.

    Args:
        path: The recording; its name doesn't matter.
        setting: All that its pieces and their texts depend on, as JSON can write it.

    Raises:
        BadAudio: The file can't be read.
    """
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            ends = file.read(_ENDS_BYTES)
            file.seek(max(0, stat.st_size - _ENDS_BYTES))
            ends += file.read(_ENDS_BYTES)
    except OSError as error:
        raise BadAudio(f"{path}: can't be read ({error.strerror or error})") from error
    what = json.dumps([VERSION, stat.st_size, stat.st_mtime_ns, dict(setting)], sort_keys=True)
    return f"{hashlib.sha256(what.encode() + ends).hexdigest()[:32]}.jsonl"


class Journal:
    """A journal that is open; blocking, for use in one thread at a time.

    Args:
        path: The file; made with its folder when absent.

    Attributes:
        done: The transcripts of the pieces that are done.

    Raises:
        OSError: It can't be opened or made.
        BlockingIOError: Another process is at this recording.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            _lock(self._file)
            self.done: dict[Key, Transcript] = self._read()
            _sweep(path)
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> dict[Key, Transcript]:
        """What whole lines say; the file is cut after the last of them."""
        done: dict[Key, Transcript] = {}
        self._file.seek(0)
        good = 0
        while line := self._file.readline(_LONGEST_LINE_BYTES):
            entry = _entry(line)
            if entry is None:
                log.warning("%s: dropped what follows %d whole lines", self.path, len(done))
                break
            done[entry[0]] = entry[1]
            good += len(line)
        self._file.truncate(good)
        return done

    def add(self, key: Key, transcript: Transcript) -> None:
        """Write a piece down; it survives a crash of the machine once this returns.

        Raises:
            OSError: The disk is full, or broken.
        """
        self.done[key] = transcript
        row = {
            "piece": key,
            "text": transcript.text,
            "language": transcript.language,
            "logprob": transcript.average_logprob,
            "rejected": transcript.rejected,
            "words": [[w.text, w.start_s, w.end_s, w.probability] for w in transcript.words],
        }
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Keep it for another run."""
        self._file.close()

    def remove(self) -> None:
        """The recording is done."""
        self.path.unlink(missing_ok=True)
        self._file.close()


def _sweep(newest: Path) -> None:
    """Remove what is much older than a journal that was opened now."""
    os.utime(newest)
    oldest_s = newest.stat().st_mtime - KEPT_DAYS * 86_400
    for other in newest.parent.glob("*.jsonl"):
        with contextlib.suppress(OSError):  # another run may have removed it
            if other.stat().st_mtime < oldest_s:
                other.unlink()


def _entry(line: bytes) -> tuple[Key, Transcript] | None:
    """A line's piece; ``None`` if it is not what :meth:`Journal.add` writes."""
    if not line.endswith(b"\n"):
        return None
    try:
        row: Any = json.loads(line)
        start, end, length = (_whole(number) for number in row["piece"])
        words = tuple(
            Word(_text(text), _number(a), _number(b), None if p is None else _number(p))
            for text, a, b, p in row["words"]
        )
        logprob = None if row["logprob"] is None else _number(row["logprob"])
        language, rejected = (None if row[n] is None else _text(row[n]) for n in ("language", "rejected"))
        return (start, end, length), Transcript(_text(row["text"]), language, logprob, words, rejected)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError("no whole number")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float) or value != value:
        raise TypeError("no number")
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error

else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

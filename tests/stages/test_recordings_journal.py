"""The journal of a recording: what survives, what is believed of a damaged one, and whose it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.asr.recordings.journal import Journal, default_folder, name_of
from voice.errors import BadAudio
from voice.interfaces import Transcript, Word

SAID = Transcript("Hello – „Welt“\n", "en", -0.25, (Word("Hello", 0.5, 1.0, 0.75), Word("x", 1.0, 1.5)), None)
NOTHING = Transcript("", None, None, rejected="no_speech")


def written(path: Path) -> None:
    journal = Journal(path)
    journal.add((0, 16_000, 16_000), SAID)
    journal.add((32_000, 48_000, 16_000), NOTHING)
    journal.close()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    written(tmp_path / "new folder" / "a.jsonl")
    journal = Journal(tmp_path / "new folder" / "a.jsonl")
    assert journal.done == {(0, 16_000, 16_000): SAID, (32_000, 48_000, 16_000): NOTHING}
    journal.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400))
def test_a_journal_that_was_cut_anywhere_keeps_its_whole_lines_and_takes_more(
    cut: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.unlink(missing_ok=True)
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    journal = Journal(path)
    assert len(journal.done) == whole[:cut].count(b"\n")
    journal.add((1, 2, 1), SAID)
    journal.close()
    again = Journal(path)
    assert len(again.done) == whole[:cut].count(b"\n") + 1
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe\n",
        b"null\n",
        b"[]\n",
        b'{"piece": [1, 2]}\n',
        b'{"piece": [1, 2, true], "text": "", "language": null, "logprob": null, "rejected": null, "words": []}\n',
        b'{"piece": [1, 2, 1], "text": 5, "language": null, "logprob": null, "rejected": null, "words": []}\n',
        b'{"piece": [1, 2, 1], "text": "", "language": null, "logprob": NaN, "rejected": null, "words": []}\n',
        b'{"piece": [1, 2, 1], "text": "", "language": 1, "logprob": null, "rejected": null, "words": [[]]}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 3_000_000 + b"\n",
    ],
)
def test_a_line_that_nobody_wrote_and_all_after_it_is_dropped(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path)
    path.write_bytes(path.read_bytes() + line + path.read_bytes())
    journal = Journal(path)
    assert len(journal.done) == 2
    journal.close()
    assert path.read_bytes().count(b"\n") == 2


def test_a_recording_that_another_run_is_at_is_not_shared(tmp_path: Path) -> None:
    first = Journal(tmp_path / "a.jsonl")
    with pytest.raises(BlockingIOError):
        Journal(tmp_path / "a.jsonl")
    first.close()
    Journal(tmp_path / "a.jsonl").close()


def test_a_journal_that_is_done_is_gone(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl")
    journal = Journal(tmp_path / "a.jsonl")
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_journals_that_nobody_came_back_to_are_removed(tmp_path: Path) -> None:
    for name, age_days in (("old.jsonl", 31), ("young.jsonl", 29), ("other.txt", 99)):
        (tmp_path / name).touch()
        now_s = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now_s, now_s - age_days * 86_400))
    Journal(tmp_path / "new.jsonl").close()
    assert {path.name for path in tmp_path.iterdir()} == {"young.jsonl", "other.txt", "new.jsonl"}


def test_a_journal_belongs_to_a_recording_and_to_how_it_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"a" * 200_000)
    os.utime(path, (1, 1))
    name = name_of(path, {"language": "en"})
    moved = path.rename(tmp_path / "b.wav")
    assert name_of(moved, {"language": "en"}) == name
    assert name_of(moved, {"language": "de"}) != name
    os.utime(moved, (2, 2))
    assert name_of(moved, {"language": "en"}) != name
    moved.write_bytes(b"a" * 199_999 + b"b")
    os.utime(moved, (1, 1))
    assert name_of(moved, {"language": "en"}) != name
    with pytest.raises(BadAudio, match="missing"):
        name_of(tmp_path / "missing", {})


def test_journals_are_kept_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOICE_JOURNALS_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("VOICE_JOURNALS_DIR")
    assert default_folder().name == "journals"

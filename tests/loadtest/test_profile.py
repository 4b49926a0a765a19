"""Profiles: what is recorded is what the stages take; a file is read as it was written, or refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadtest.drawn_stages import drawn_stages, pools_of
from loadtest.profile import Engine, Profile, Service, Spread
from loadtest.profile_recording import edge_delays, service_times
from voice.errors import BadRequest
from voice.testing import ScriptedDetector, run_virtual

SLOW = Profile(
    "slow",
    {"ears": Engine(1), "model": Engine(8, slowdown=0.25), "voice": Engine(2)},
    {"recogniser": "ears", "model": "model", "synthesiser": "voice"},
    recognition=Service(0.1, 0.05),
    first_token=Service(0.2, 0.001),
    token=Service(0.2),
    first_audio=Service(0.1, 0.002),
    audio_second=Service(0.2),
    words_per_s=3.0,
)


def recorded(profile: Profile) -> Profile:
    async def main() -> Profile:
        stages = drawn_stages(
            profile, pools_of(profile, {}), random.Random(1), ScriptedDetector(), answer_words=(6, 6)
        )
        return await service_times(stages, profile.name, most_at_once=16)

    return run_virtual(main())


def test_what_is_recorded_is_what_the_stages_take() -> None:
    found = recorded(SLOW)
    for name in ("recognition", "first_token", "first_audio"):
        real, seen = getattr(SLOW, name), getattr(found, name)
        assert seen.fixed_s == pytest.approx(real.fixed_s, rel=0.02, abs=0.002)
        assert seen.per_unit_s == pytest.approx(real.per_unit_s, rel=0.02)
    assert found.token.fixed_s == pytest.approx(0.2, rel=0.05)
    assert found.audio_second.fixed_s == pytest.approx(0.2, rel=0.05)
    assert found.words_per_s == pytest.approx(3.0, rel=0.05)


def test_places_and_slowdown_show_in_bursts() -> None:
    found = recorded(SLOW)
    places = {stage: found.engines[name].places for stage, name in found.engine_of.items()}
    assert places == {"recogniser": 1, "model": 8, "synthesiser": 2}
    assert found.engines["model"].slowdown == pytest.approx(0.25, rel=0.5)
    assert found.engines["recogniser"].slowdown == 0.0


def test_stages_that_share_an_engine_are_found() -> None:
    engines = {"cpu": Engine(1), "model": Engine(8)}
    shared = {"recogniser": "cpu", "model": "model", "synthesiser": "cpu"}
    found = recorded(Profile(**{**_fields(SLOW), "engines": engines, "engine_of": shared}))
    assert found.engine_of["recogniser"] == found.engine_of["synthesiser"] != found.engine_of["model"]


def test_edges_come_as_late_as_a_detector_by_level_notices_them() -> None:
    start, pause = edge_delays()
    assert 0.02 < start.quantiles[0] < start.quantiles[-1] < 0.15
    assert 0.1 < pause.quantiles[0] < pause.quantiles[-1] < 0.25


def _fields(profile: Profile) -> dict[str, Any]:
    return {name: getattr(profile, name) for name in Profile.__dataclass_fields__}


# ---------------------------------------------------------------- spreads and lines


def test_draws_follow_what_was_measured() -> None:
    chance = random.Random(3)
    measured = [chance.gauss(1.0, 0.1) for _ in range(2000)]
    spread = Spread.of(measured)
    drawn = sorted(spread.at(chance.random()) for _ in range(2000))
    assert drawn[1000] == pytest.approx(sorted(measured)[1000], rel=0.02)
    assert drawn[1900] == pytest.approx(sorted(measured)[1900], rel=0.03)
    assert spread.mean == pytest.approx(1.0, rel=0.02)
    assert min(measured) <= drawn[0] and drawn[-1] <= max(measured)


def test_a_line_never_falls_and_never_starts_below_zero() -> None:
    assert Service.fit([(1, 2.0), (2, 1.0)]).per_unit_s == 0.0
    steep = Service.fit([(1.0, 0.0), (2.0, 10.0)])
    assert steep.fixed_s == pytest.approx(0.0) and steep.per_unit_s > 0
    assert Service.fit([(5.0, 1.0)]).seconds(100.0, 0.5) == pytest.approx(1.0)


# ---------------------------------------------------------------- the file


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    SLOW.write(path)
    assert Profile.read(path) == SLOW


WRONG: dict[str, Any] = {
    "another version": {"voice_profile": 2},
    "a field too many": {"extra": 1},
    "not a number": {"frame_cpu_s": "fast"},
    "not finite": {"turn_cpu_s": float("nan")},
    "negative": {"recognition": {"fixed_s": -1.0, "per_unit_s": 0.0, "factor": {"quantiles": [1.0, 1.0]}}},
    "descending": {"start_delay_s": {"quantiles": [2.0, 1.0]}},
    "no places": {"engines": {"ears": {"places": 0, "slowdown": 0.0}}},
    "half a place": {"engines": {"ears": {"places": 1.5, "slowdown": 0.0}}},
    "an engine that is not there": {
        "engine_of": {"recogniser": "nobody", "model": "model", "synthesiser": "voice"}
    },
    "a stage without engine": {"engine_of": {"recogniser": "ears", "model": "model"}},
    "a name that is a number": {"name": 3},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_with_something_wrong_is_refused_and_says_so(what: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    SLOW.write(path)
    content = {**json.loads(path.read_text()), **WRONG[what]}
    path.write_text(json.dumps(content))
    with pytest.raises(BadRequest, match=r"p\.json"):
        Profile.read(path)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    SLOW.write(path)
    content = json.loads(path.read_text())
    del content["token"]
    path.write_text(json.dumps(content))
    with pytest.raises(BadRequest, match="token"):
        Profile.read(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "null"])
def test_what_is_no_profile_at_all_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(BadRequest, match="no profile"):
        Profile.read(path)

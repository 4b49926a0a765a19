"""What callers do: scenarios are read strictly, and what is drawn from them is what they say."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from loadtest import scenario
from loadtest.network import Link, Sips
from loadtest.scenario import HangUp, Interject, Network, Scenario, Speak, Spread
from voice.errors import BadRequest

READY = sorted((Path(__file__).parents[2] / "examples" / "scenarios").iterdir())


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_the_ready_scenarios_can_be_read(path: Path) -> None:
    assert scenario.load(path).name


def test_an_empty_scenario_is_everyday_talk() -> None:
    assert scenario.read({}) == Scenario()


def test_tables_become_what_they_name() -> None:
    found = scenario.read(
        {"ramp_s": 3, "speak": {"texts": ["Hello there."]}, "network": {"loss": 0.02}, "listen_s": None}
    )
    assert found == Scenario(ramp_s=3, speak=Speak(("Hello there.",)), network=Network(loss=0.02))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speek": {}}, "there is no speek; known here: name, ramp_s"),
        ({"barge_in": {"shares": 1}}, "there is no barge_in.shares; known here: share, least_s, most_s"),
        ({"barge_in": {"share": 3}}, "barge_in: share must be 0 to 1, not 3"),
        ({"barge_in": {"share": "often"}}, "barge_in.share must be a number, not 'often'"),
        ({"barge_in": 0.3}, "barge_in must be a table, not 0.3"),
        ({"frame_ms": 30}, "frame_ms must be 10, 20, 40, 50 or 100"),
        ({"frame_ms": 20.0}, "frame_ms must be a whole number, not 20.0"),
        ({"ramp_s": True}, "ramp_s must be a number, not True"),
        ({"ramp_s": float("nan")}, "ramp_s must be a number, not nan"),
        (
            {"think": {"least_s": 5, "most_s": 1}},
            "think: least_s and most_s must be 0 to 3600, in this order",
        ),
        ({"hang_up": {"when": "never"}}, "hang_up.when must be 'speaking' or"),
        ({"speak": {"texts": "Hello"}}, "speak.texts must be a list of texts, not 'Hello'"),
        ({"speak": {"texts": []}}, "speak.texts must name at least one text"),
        ({"network": {"loss": 1}}, "network: loss must be 0 or more and below 1"),
        ([], "a scenario must be a table"),
    ],
)
def test_what_is_wrong_is_named(given: object, said: str) -> None:
    with pytest.raises(BadRequest, match=r"^" + said.replace("(", r"\(")):
        scenario.read(given)


def test_faults_of_a_file_name_it(tmp_path: Path) -> None:
    for name, text, said in (
        ("a.toml", "name =", "is not valid toml"),
        ("b.json", "{", "is not valid json"),
        ("c.toml", "nam = 'x'", "there is no nam"),
        ("d.json", json.dumps({"speak": {"files": ["gone.wav"]}}), "there is no file .*gone.wav"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(BadRequest, match=f"{name}.*{said}"):
            scenario.load(path)
    with pytest.raises(BadRequest, match=r"gone.toml can't be read"):
        scenario.load(tmp_path / "gone.toml")


def test_a_scenario_survives_its_own_file(tmp_path: Path) -> None:
    whole = Scenario(barge_in=Interject(0.5), hang_up=HangUp(0.1, "waiting"), session={"a": {"b": 1}})
    path = tmp_path / "s.json"
    path.write_text(json.dumps(whole.as_dict()))
    assert scenario.load(path) == whole


def test_shares_and_times_are_drawn_as_they_are_told() -> None:
    rng = random.Random(1)
    drawn = [Interject(0.25, 1.0, 2.0).draw(rng) for _ in range(4000)]
    times = [value for value in drawn if value is not None]
    assert 900 < len(times) < 1100
    assert min(times) >= 1.0 and max(times) <= 2.0
    thoughts = [Spread(0.5, 30.0, mean_s=2.0).draw(rng) for _ in range(4000)]
    assert min(thoughts) >= 0.5 and max(thoughts) <= 30.0
    assert 1.9 < sum(thoughts) / len(thoughts) < 2.3
    moments = {HangUp(1.0).draw(rng) for _ in range(50)}
    assert moments == {"speaking", "waiting", "listening"}
    assert HangUp(0.0).draw(rng) is None


# ---------------------------------------------------------------- the network


def test_packets_come_late_but_never_out_of_order() -> None:
    link = Link(Network(delay_ms=50, jitter_ms=30, loss=0.1, resend_ms=200), random.Random(2))
    sent = [0.02 * n for n in range(500)]
    came = [link.arrives_at(at) for at in sent]
    assert came == sorted(came)
    late = [b - a for a, b in zip(sent, came, strict=True)]
    assert min(late) >= 0.05
    assert sum(value > 0.2 for value in late) > 50  # a lost one delays those after it, too


def test_a_perfect_network_delays_nothing() -> None:
    assert Network().perfect
    assert [Link(Network(), random.Random(0)).arrives_at(at) for at in (1.0, 2.0)] == [1.0, 2.0]


def test_a_slow_reader_reads_at_its_rate() -> None:
    sips, now = Sips(1000.0), 0.0
    for _ in range(10):
        now += sips.pause_s(now, 500)
    assert now == pytest.approx(5.0)

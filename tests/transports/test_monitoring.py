"""What operators see: numbers for Prometheus and lines for machines, neither with anything that was said."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest
from talk import make_agent

from transports.hosting import Host
from transports.monitoring import Histogram, JsonLines, Metrics, PlainLines
from voice.events import Problem, ResponseEnded, ToolEnded, TurnTimes
from voice.interfaces import ToolCall
from voice.session import Session
from voice.testing import PullClient, run_virtual, speak

LINE = re.compile(r'^voice_[a-z_]+(\{[a-z]+="[^"\n]*"\})? (\d+(\.\d+)?(e[+-]\d+)?)$')


def samples(text: str) -> dict[str, float]:
    """The samples of a scrape; fails on what is not the text format."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, "a family comes once"
            typed.add(name)
        elif not line.startswith("# HELP "):
            assert LINE.match(line), line
            name, _, value = line.rpartition(" ")
            family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
            assert family in typed or name.split("{")[0] in typed, f"{name} has no type"
            assert name not in found, f"{name} comes twice"
            found[name] = float(value)
    assert text.endswith("\n")
    return found


def test_a_conversation_is_counted_while_it_runs_and_after() -> None:
    async def run() -> None:
        host = Host(make_agent(["Fine, thank you."], said=["How are you?"]))
        caller = PullClient()
        with host.admit("address 192.0.2.7", "webrtc") as slot:
            async with Session(host.agent, caller, on_event=host.observe, scope=host.scope) as session:
                caller.attach(session)
                slot.bind(session, session.hang_up)
                caller.say(speak(1.0), 0.5)
                await caller.run(5.0)
                live = samples(host.render_metrics("ready"))
                assert live['voice_sessions{kind="webrtc"}'] == 1
                assert live["voice_turns_total"] == 1
                assert live["voice_guesses_total"] >= 1
        after = samples(host.render_metrics("draining"))
        assert after['voice_sessions{kind="webrtc"}'] == 0
        assert after['voice_sessions_opened_total{kind="webrtc"}'] == 1
        assert after['voice_sessions_ended_total{reason="closed"}'] == 1
        assert after["voice_turns_total"] == 1
        assert after['voice_answers_total{status="completed"}'] == 1
        assert after["voice_voice_to_voice_seconds_count"] == 1
        assert 0.2 < after["voice_voice_to_voice_seconds_sum"] < 2.0
        assert after["voice_asr_seconds_count"] == 1
        assert after["voice_event_loop_lag_seconds_count"] >= 19
        assert (live["voice_ready"], after["voice_ready"]) == (1, 0)

    run_virtual(run())


def test_counters_never_go_down_between_scrapes() -> None:
    async def run() -> None:
        host = Host(make_agent())
        seen: dict[str, float] = {}
        for _ in range(3):
            with host.admit("a", "websocket") as slot:
                async with Session(host.agent, PullClient(), scope=host.scope) as session:
                    slot.bind(session, session.hang_up)
                    session.counters.turns += 2
                    now = samples(host.render_metrics("ready"))
            later = samples(host.render_metrics("ready"))
            for name in seen.keys() | now.keys():
                if "_total" in name:
                    assert seen.get(name, 0) <= now.get(name, 0) <= later[name], name
            seen = later
        assert seen["voice_turns_total"] == 6

    run_virtual(run())


def test_histograms_count_as_prometheus_does() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 5.0):
        histogram.add(value)
    assert list(histogram.lines("x")) == [
        'x_bucket{le="0.1"} 2',
        'x_bucket{le="1"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 5.65",
        "x_count 4",
    ]


def test_labels_stay_few_whatever_comes() -> None:
    metrics = Metrics()
    for n in range(1000):
        metrics.observe(Problem("the user said secret", f"Kind{n}"))
        metrics.observe(ResponseEnded("r", "i", f"status-{n}", "secret", "secret", TurnTimes()))
        metrics.observe(ToolEnded("r", ToolCall("c", f"tool-{n}", '{"secret": 1}'), "secret", None))
        metrics.end(f'a reason of a tool "{n}"\n', 1.0, None)
        metrics.refuse(f"why-{n}")
    text = metrics.render({"websocket": 0}, [], "ready")
    found = samples(text)
    assert len(found) < 200
    assert "secret" not in text
    assert found['voice_problems_total{kind="other"}'] == 1000
    assert found['voice_sessions_ended_total{reason="other"}'] == 1000


# ---------------------------------------------------------------- log lines


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("voice.server", logging.WARNING, "x.py", 1, message, args, None)
    vars(made).update(extra)
    return made


def test_a_line_is_one_json_object_with_what_was_given() -> None:
    line = JsonLines().format(record("ended %s", "so\nso", session="sess_1", lasted_s=1.5, odd={1}))
    assert "\n" not in line
    row = json.loads(line)
    assert row.pop("time").endswith("+00:00")
    assert row == {
        "level": "warning",
        "logger": "voice.server",
        "message": "ended so\nso",
        "session": "sess_1",
        "lasted_s": 1.5,
        "odd": "{1}",
    }


def test_an_error_is_in_its_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    row = json.loads(JsonLines().format(made))
    assert "ValueError: no" in row["error"]


@pytest.mark.parametrize("formatter", [JsonLines(), PlainLines()])
def test_both_kinds_of_lines_show_what_was_given(formatter: logging.Formatter) -> None:
    line = formatter.format(record("session ended", session="sess_1", turns=3))
    assert "session ended" in line
    assert "sess_1" in line
    assert "3" in line

"""The report: pages that need nothing from outside, plots that tell the truth, figures and progress lines."""

from __future__ import annotations

import io
import os
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest import report
from loadtest.crowd import Moment
from loadtest.knee import Level, limit_of
from loadtest.progress import Progress, line
from loadtest.report_plots import Series, histogram, nice, over_time, thinned, ticks_to
from loadtest.run import callers_fault, lines_of, used
from loadtest.scenario import Scenario
from loadtest.server_metrics import parse
from loadtest.soak import checks, drift_ms, minutes_of, per_hour
from loadtest.stub_server import ServerSample, StubOptions
from loadtest.tally import GapHeard, Tally, TurnHeard


def moment(at_s: float, *, server: bool = True, sessions: int = 4, caller_cpu: float = 0.1) -> Moment:
    sample = ServerSample(
        10 + at_s / 2,
        100 + at_s,
        5,
        20,
        30,
        sessions,
        4.0,
        {"event loop": at_s / 2, "silero-vad": at_s / 10},
        1.0,
        3.0,
    )
    return Moment(
        at_s, sessions, 600.0, 700.0, int(at_s), 0, 0, 0, caller_cpu, 3.0, sample if server else None,
        0.5 if server else None, 1.1,
    )  # fmt: skip


def heard_tally() -> Tally:
    tally = Tally(100.0)
    for number in range(50):
        tally.turns.append(TurnHeard(float(number), 0.6 + number / 1000, 0.62 + number / 1000, False))
    tally.gaps.append(GapHeard(3.0, 0.05, True))
    tally.counts["calls"] = 4
    tally.error("error bad_thing: <script>alert(1)</script>")
    return tally


def result(server: bool = True) -> dict[str, Any]:
    moments = [moment(float(at), server=server) for at in range(1, 30)]
    tally = heard_tally()
    from dataclasses import asdict

    return {
        "kind": "run",
        "settings": {"sessions": 4, "figures_from_s": 0.0, "scenario": Scenario(name="a <b>").as_dict()},
        "machine": "load 0.10 on 2 cores",
        "heard": tally.summary(0.59),
        "used": used(moments),
        "moments": [asdict(one) for one in moments],
        "turns": [[turn.at_s, turn.received_s, turn.played_s] for turn in tally.turns],
    }


def well_formed(page: str) -> ElementTree.Element:
    """The page as a tree; void elements of HTML are closed for the parser."""
    body = page[page.index("<html") :]
    return ElementTree.fromstring(re.sub(r"<(meta[^>]*)>", r"<\1/>", body))


@pytest.mark.parametrize("server", [True, False])
def test_the_page_stands_alone_and_is_well_formed(server: bool) -> None:
    page = report.run_page(result(server))
    tree = well_formed(page)
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", page)
    assert "prefers-color-scheme:dark" in page
    assert "a &lt;b&gt;" in page and "&lt;script&gt;" in page
    pictures = [one for one in tree.iter() if one.tag == "svg" and one.get("role") == "img"]
    assert len(pictures) >= (6 if server else 4)
    identities = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(identities) == len(set(identities))
    for picture in pictures:
        title, description = picture[0], picture[1]
        assert (title.tag, description.tag) == ("title", "desc") and title.text and description.text
        assert picture.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_pages_of_knee_and_soak_are_well_formed() -> None:
    base = result()
    step = {
        "sessions": 4,
        "broken": ["gaps"],
        "heard": base["heard"],
        "used": base["used"],
        "limit": "unknown",
    }
    well_formed(report.knee_page({**base, "lines": ["knee: 4 sessions"], "steps": [step]}))
    tally = heard_tally()
    before = ServerSample(1.0, 100.0, 5, 12, 4, 0)
    figures = {"growth_mb_per_hour_per_session": 0.2, "growth_mb_per_hour": 0.8, "drift_ms": 1.0}
    row = {
        "at_s": 5.0, "rss_mb": 100.0, "tasks": 4, "handles": 5, "threads": 6, "server_cpu": 0.1, "caller_cpu": 0.1,
        "machine_cpu": None, "loop_lag_ms": 1.0, "caller_lag_ms": 1.0, "sessions": 4,
    }  # fmt: skip
    soak = {
        **base,
        "settings": {"sessions": 4, "minutes": 60.0},
        "rows": [row, {**row, "at_s": 10.0}],
        "minutes": [
            {"minute": one.minute, "p50_ms": one.p50_ms, "p95_ms": one.p95_ms} for one in minutes_of(tally)
        ],
        "checks": [
            {"what": one.what, "held": one.held, "found": one.found}
            for one in checks(figures, tally, before, before, 3600.0)
        ],
    }
    assert "pass" in report.soak_page(soak)
    well_formed(report.soak_page(soak))


# ---------------------------------------------------------------- plots


def test_a_histogram_counts_every_value_once() -> None:
    values = [500.0 + (number * 37) % 200 for number in range(321)]
    picture = ElementTree.fromstring(histogram("h", "ms", values))
    counts = [
        int(one.text.rsplit(": ", 1)[1]) for one in picture.iter("title") if one.text and ": " in one.text
    ]
    assert sum(counts) == len(values)


def test_the_peak_of_a_long_line_survives_thinning() -> None:
    points: list[tuple[float, float | None]] = [(float(n), 1.0) for n in range(10_000)]
    points[7777] = (7777.0, 99.0)
    kept = thinned(points)
    assert len(kept) <= 1500 and (7777.0, 99.0) in kept


def test_values_that_are_not_known_interrupt_a_line() -> None:
    picture = over_time("t", "ms", [Series("a", [(0, 1), (1, None), (2, 1), (3, 1)])])
    path = re.search(r' d="(M[^"]*)"', picture)
    assert path is not None and path[1].count("M") == 2


def test_plots_of_nothing_and_of_one_value_can_be_drawn() -> None:
    assert "Nothing was measured" in over_time("t", "ms", [Series("a", [(0, None)])])
    assert "Nothing was measured" in histogram("t", "ms", [])
    for picture in (over_time("t", "ms", [Series("a", [(0, 0.0)])]), histogram("t", "ms", [0.0, 0.0])):
        ElementTree.fromstring(picture)


def test_axes_have_round_ticks_that_hold_all_values() -> None:
    assert [nice(value) for value in (0.03, 1, 1.1, 7, 420)] == [0.05, 1, 2, 10, 500]
    for highest in (0.4, 3, 17, 998, 12_345):
        ticks = ticks_to(highest)
        assert ticks[0] == 0 and ticks[-1] >= highest and len(ticks) <= 7


# ---------------------------------------------------------------- figures


def test_what_was_used_is_told_by_session_and_thread() -> None:
    found = used([moment(float(at)) for at in range(1, 31)])
    assert found["cpu_s_per_session_minute"] == pytest.approx(7.5)  # half a core for four sessions
    assert found["server_threads_cores"] == pytest.approx({"event loop": 0.5, "silero-vad": 0.1})
    assert found["callers_fault"] is None


def test_the_callers_own_limit_is_told_apart_from_a_full_machine() -> None:
    busy = used([moment(1.0, caller_cpu=0.95)])["callers_fault"]
    assert busy == "the callers' own process was the limit: it used 0.95 of one core"
    cores = os.cpu_count() or 1
    assert "the machine they run on was full" in str(callers_fault(0.1, 60.0, float(cores)))
    assert "their own process was the limit" in str(callers_fault(0.1, 60.0, 0.2 * cores))
    assert callers_fault(0.1, 5.0, float(cores)) is None


def test_results_are_told_in_lines() -> None:
    said = "\n".join(lines_of(result()))
    assert "50 turns answered" in said and "gaps 1 (1 inside a sentence)" in said
    assert "7.50 CPU s a session-minute" in said and "bad_thing" in said
    assert "server" not in "\n".join(lines_of(result(server=False))).split("callers")[0].split("\n")[-1]


def test_a_service_level_names_what_broke() -> None:
    heard = heard_tally().summary(0.59)
    assert Level(500.0, 0.05, 0.01).broken(heard) == []
    assert Level(50.0, 0.0, 0.01).broken(heard) == ["p95 overhead 57 ms is over 50", "1 gaps in 50 answers"]
    heard["counts"]["unanswered"], heard["refusals"] = 2, 3
    assert Level(500.0, 1.0, 0.01).broken(heard) == ["5 of 55 turns or calls failed"]
    assert Level(500.0, 1.0, 1.0).broken(Tally(0.0).summary()) == [
        "no turn was answered in time; hold each load longer (--seconds)"
    ]


def test_the_limit_is_the_callers_the_loop_or_unknown() -> None:
    moments = [moment(float(at)) for at in range(1, 10)]
    assert limit_of(moments, used(moments), {}).startswith(
        "unknown; the busiest thread is that of the event loop"
    )
    busy = {**used(moments), "server_threads_cores": {"event loop": 0.97, "silero-vad": 0.3}}
    assert limit_of(moments, busy, {}) == "event loop"
    assert (
        limit_of(moments, {**busy, "server_threads_cores": {"silero-vad": 0.9}}, {})
        == "the thread of silero-vad"
    )
    assert limit_of(moments, {**busy, "callers_fault": "late"}, {}).startswith("not the server: late")
    loads = parse(
        'voice_up 1\nvoice_stage_load{stage="event loop"} 0.4\nvoice_stage_load{stage="model x"} 1.62\n'
    )
    assert loads == {"event loop": 0.4, "model x": 1.62}
    assert limit_of(moments, busy, loads) == "model x, at 162% of its target"


def test_growth_is_a_slope_and_drift_a_difference_of_medians() -> None:
    assert per_hour([(60.0 * n, 100 + n / 60) for n in range(61)]) == pytest.approx(1.0)
    assert per_hour([(0.0, 1.0)]) is None
    tally = Tally(0.0)
    tally.turns = [TurnHeard(float(at), 0.6 if at < 1800 else 0.65, 0.7, False) for at in range(3600)]
    assert drift_ms(tally, 0.0, 3600.0) == pytest.approx(50.0)
    assert drift_ms(tally, 2000.0, 3600.0) == pytest.approx(0.0)
    assert len(minutes_of(tally)) == 60 and minutes_of(tally)[0].p50_ms == 600.0


def test_a_soak_fails_by_growth_drift_left_overs_and_what_must_never_be_heard() -> None:
    before, after = ServerSample(1.0, 100.0, 5, 12, 4, 0), ServerSample(9.0, 190.0, 5, 13, 6, 0)
    figures = {"growth_mb_per_hour_per_session": 1.4, "growth_mb_per_hour": 28.0, "drift_ms": 30.0}
    tally = heard_tally()
    tally.counts["wrong_voice"] = 1
    failed = [one.what for one in checks(figures, tally, before, after, 3600.0) if one.held is False]
    assert failed == [
        "memory grows by less than 1 MB an hour and session",
        "the median latency rises by less than 20 ms",
        "no tasks are left over",
        "no handles are left over",
        "nobody hears another caller's answer",
    ]
    short = checks(figures, tally, before, None, 60.0)
    assert short[0].held is None and "told from 20 minutes on" in short[0].found


def test_the_ideal_is_what_silence_and_stubs_take() -> None:
    assert StubOptions().ideal_s == pytest.approx(0.59)
    assert StubOptions(speculate=True).ideal_s < StubOptions().ideal_s


# ---------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_and_a_file_gets_a_line_now_and_then() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(stream, every_s=10.0)
        for at in range(1, 25):
            progress.show(float(at), f"second {at}")
        progress.say("over")
    assert terminal.getvalue().count("\n") == 1 and terminal.getvalue().count("\r") >= 24
    assert file.getvalue().splitlines() == ["second 1", "second 11", "second 21", "over"]


def test_a_shorter_line_leaves_nothing_of_the_longer_one() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    progress.show(1.0, "a long line")
    progress.show(2.0, "short")
    assert terminal.getvalue().rsplit("\r", 1)[1] == "short".ljust(len("a long line"))


def test_a_moment_in_words_has_both_sides() -> None:
    said = line(moment(15.0), 8, 30.0)
    assert "[########        ]" in said and "4/8 calls" in said and "600/700 ms" in said
    assert "server 0.50 cores 115 MB" in said and "callers 0.10 cores" in said
    assert "server" not in line(moment(15.0, server=False), 8, 30.0)

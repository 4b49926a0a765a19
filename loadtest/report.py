"""What came of a load test, as one page: it opens from disk, asks nothing of any network, and can be sent by mail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from loadtest.report_plots import Series, histogram, over_time
from voice import __version__

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1c2330;--soft:#5b6472;--grid:#e3e6eb;--card:#f6f7f9;
--s0:#1f66c1;--s1:#c2500a;--s2:#0b7a56;--s3:#8a3fb0;--bad:#b3261e;--good:#0b7a56}
@media (prefers-color-scheme:dark){:root{--page:#14181f;--text:#e6e9ef;--soft:#a2abb8;--grid:#2b323d;--card:#1c222b;
--s0:#6ea8f5;--s1:#f2955a;--s2:#4cc79a;--s3:#c792ea;--bad:#ff8a80;--good:#4cc79a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
.soft,.none{color:var(--soft)}.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}.wrap{overflow-x:auto}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--grid);vertical-align:top}
th:first-child,td:first-child,td.wide{text-align:left}td.wide{overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}
.tile{background:var(--card);border-radius:.5rem;padding:.6rem .9rem;min-width:8.5rem}
.tile b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.85rem}
figure{margin:1.2rem 0}figcaption{font-weight:600;margin-bottom:.2rem}
figure>svg{width:100%;height:auto;display:block}figure text{fill:var(--soft);font:11px system-ui,sans-serif}
.key{font-weight:400;color:var(--soft);margin-left:1rem;font-size:.85rem}
.key svg{width:24px;height:8px;display:inline-block;margin-right:.3rem}
.grid{stroke:var(--grid)}.bound{stroke:var(--bad);stroke-dasharray:3 3}.line{fill:none;stroke-width:1.8}
.s0.line{stroke:var(--s0)}.s1.line{stroke:var(--s1)}.s2.line{stroke:var(--s2)}.s3.line{stroke:var(--s3)}
.s0.dot,.s0.bar{fill:var(--s0)}.s1.dot{fill:var(--s1)}.s2.dot{fill:var(--s2)}.s3.dot{fill:var(--s3)}.dot{opacity:.75}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);padding:.8rem;border-radius:.5rem;
font-size:.85rem}
"""
_SPREADS = {
    "voice_to_voice_ms": "Voice to voice: end of speech to the first audible sample received",
    "voice_to_voice_played_ms": "The same as played, with 60 ms of buffer",
    "overhead_ms": "Above what the engines and the end of the turn take",
    "barge_in_silence_ms": "Silent after the first sample of a barge-in",
    "gap_ms": "Gaps inside answers",
    "connect_ms": "Connecting",
    "refusal_ms": "Refusals",
}
Moments = Sequence[Mapping[str, Any]]


def run_page(result: Mapping[str, Any]) -> str:
    """The page of ``run``."""
    heard, settings = result["heard"], result["settings"]
    return _page(
        f"{settings['sessions']} callers, {settings['scenario']['name']}",
        result,
        [_tiles(result), _heard(heard), *_latency(result), *_resources(result["moments"]), _errors(heard)],
    )


def knee_page(result: Mapping[str, Any]) -> str:
    """The page of ``knee``."""
    rows = [
        (
            str(step["sessions"]),
            "held" if not step["broken"] else "broke: " + "; ".join(step["broken"]),
            _cell(step["heard"].get("overhead_ms") or step["heard"].get("voice_to_voice_ms"), "p50"),
            _cell(step["heard"].get("overhead_ms") or step["heard"].get("voice_to_voice_ms"), "p95"),
            str(step["heard"]["gaps"]),
            _number(step["used"]["server_cores"], 2),
            _number(step["used"]["server_rss_mb"], 0),
            _number(step["used"]["caller_cores"], 2),
        )
        for step in sorted(result["steps"], key=lambda step: step["sessions"])
    ]
    latency = (
        "overhead" if any(step["heard"].get("overhead_ms") for step in result["steps"]) else "voice to voice"
    )
    head = (
        "callers",
        "service level",
        f"{latency} p50 ms",
        "p95 ms",
        "gaps",
        "server cores",
        "MB",
        "caller cores",
    )
    summary = "".join(f"<p>{escape(text)}</p>" for text in result["lines"])
    worst = result["steps"][-1]
    return _page(
        "The knee",
        result,
        [
            summary,
            "<h2>Steps</h2>",
            _table(head, rows),
            *_resources(result["moments"]),
            _errors(worst["heard"]),
        ],
    )


def soak_page(result: Mapping[str, Any]) -> str:
    """The page of ``soak``."""
    marks = {True: ("good", "pass"), False: ("bad", "fail"), None: ("soft", "not told")}
    rows = "".join(
        f'<tr><td class="wide">{escape(check["what"])}</td><td class="{marks[check["held"]][0]}">'
        f'{marks[check["held"]][1]}</td><td class="wide">{escape(check["found"])}</td></tr>'
        for check in result["checks"]
    )
    return _page(
        f"Soak: {result['settings']['sessions']} callers for {result['settings']['minutes']:g} minutes",
        result,
        [
            "<h2>What must hold</h2>",
            f'<div class="wrap"><table>{rows}</table></div>',
            _heard(result["heard"]),
            "<h2>Over time</h2>",
            *_soak_plots(result),
            _errors(result["heard"]),
        ],
    )


def _soak_plots(result: Mapping[str, Any]) -> list[str]:
    rows, minutes = result["rows"], result["minutes"]

    def plot(title: str, unit: str, **names: str) -> str:
        series = [Series(label, [(row["at_s"], row[key]) for row in rows]) for key, label in names.items()]
        return over_time(title, unit, series)

    by_minute = [Series(f"p{p}", [(60 * m["minute"] + 30, m[f"p{p}_ms"]) for m in minutes]) for p in (50, 95)]
    return [
        plot("Memory of the server", "MB", rss_mb="resident"),
        over_time("Voice to voice by the minute", "ms", by_minute),
        plot(
            "Tasks, file descriptors and threads", "", tasks="tasks", handles="descriptors", threads="threads"
        ),
        plot("Cores in use", "cores", server_cpu="server", caller_cpu="callers", machine_cpu="machine"),
        plot("Worst delay of a timer each second", "ms", loop_lag_ms="server", caller_lag_ms="callers"),
        plot("Calls", "", sessions="calls"),
    ]


# ---------------------------------------------------------------- parts


def _tiles(result: Mapping[str, Any]) -> str:
    heard, used = result["heard"], result["used"]
    tiles = [
        (str(heard["turns"]), "turns answered"),
        (str(heard["counts"].get("unanswered", 0)), "not answered"),
        (_cell(heard["voice_to_voice_ms"], "p50"), "ms voice to voice, p50"),
        (_cell(heard["voice_to_voice_ms"], "p95"), "ms, p95"),
        (str(heard["gaps"]), "gaps"),
        (_number(used["cpu_s_per_session_minute"], 2), "CPU s a session-minute"),
        (_number(used["server_rss_mb"], 0), "MB server"),
        (_number(used["caller_cores"], 2), "cores for the callers"),
    ]
    said = "".join(f'<div class="tile"><b>{a}</b><span>{escape(b)}</span></div>' for a, b in tiles)
    warning = (
        f'<p class="bad">What the callers heard says little of the server: {escape(used["callers_fault"])}.</p>'
        if used["callers_fault"]
        else ""
    )
    return f'<div class="tiles">{said}</div>{warning}'


def _heard(heard: Mapping[str, Any]) -> str:
    rows = [
        (label, *(_cell(heard[name], key) for key in ("p50", "p95", "p99", "max")))
        for name, label in _SPREADS.items()
        if heard.get(name) is not None
    ]
    counts = {
        **heard["counts"],
        "gaps": heard["gaps"],
        "gaps inside a sentence": heard["gaps_inside_sentences"],
    }
    counted = [(name.replace("_", " "), str(number)) for name, number in sorted(counts.items())]
    return (
        "<h2>What callers heard, ms</h2>"
        + _table(("", "p50", "p95", "p99", "worst"), rows)
        + "<h2>Counts</h2>"
        + _table(("", "number"), counted)
    )


def _latency(result: Mapping[str, Any]) -> list[str]:
    turns, spread, from_s = (
        result["turns"],
        result["heard"]["voice_to_voice_ms"],
        result["settings"]["figures_from_s"],
    )
    marks = [(key, spread[key]) for key in ("p50", "p95", "p99")] if spread else []
    points = [(at_s, received_s * 1000) for at_s, received_s, _ in turns]
    return [
        "<h2>Latency</h2>",
        histogram("Voice to voice", "ms", [ms for at_s, ms in points if at_s >= from_s], marks=marks),
        over_time("Voice to voice over time, each dot a turn", "ms", [Series("turns", points, dots=True)]),
    ]


def _resources(moments: Moments) -> list[str]:
    def of(name: str) -> list[tuple[float, float | None]]:
        return [(moment["at_s"], moment[name]) for moment in moments]

    def of_server(name: str) -> list[tuple[float, float | None]]:
        return [(m["at_s"], m["server"][name] if m["server"] else None) for m in moments]

    return [
        "<h2>Over time</h2>",
        over_time("Calls", "", [Series("calls", of("sessions"))]),
        over_time(
            "Cores in use",
            "cores",
            [
                Series("server", of("server_cpu")),
                Series("callers", of("caller_cpu")),
                Series("machine", of("machine_cpu")),
            ],
        ),
        over_time("Memory of the server", "MB", [Series("resident", of_server("rss_mb"))]),
        over_time(
            "Worst delay of a timer each second",
            "ms",
            [Series("server", of_server("loop_lag_ms")), Series("callers", of("caller_lag_ms"))],
        ),
    ]


def _errors(heard: Mapping[str, Any]) -> str:
    if not heard["errors"]:
        return "<h2>Errors</h2><p>None.</p>"
    rows = "".join(
        f'<tr><td class="wide">{escape(message)}</td><td>{number}</td></tr>'
        for message, number in heard["errors"].items()
    )
    return f'<h2>Errors</h2><div class="wrap"><table>{rows}</table></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wrap"><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(title: str, result: Mapping[str, Any], parts: Iterable[str]) -> str:
    settings = escape(json.dumps(result["settings"], indent=1, ensure_ascii=False))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} · load test</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">voice {__version__} · {escape(str(result["machine"]))}</p>'
        f"{''.join(parts)}<h2>Settings</h2><pre>{settings}</pre></main></body></html>\n"
    )


def _cell(spread: Mapping[str, float] | None, key: str) -> str:
    return "–" if spread is None else f"{spread[key]:.0f}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"

"""What came of a recognition test, as one page that asks nothing of any network: tables, and every failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from loadtest.asr_compare import Row
from loadtest.asr_results import Accuracy, Sample, total

_STYLE = """
:root{color-scheme:light dark}
body{margin:0 auto;max-width:68rem;padding:1.5rem 1rem 4rem;font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.soft{opacity:.7}
.wrap{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
th:first-child,td:first-child,td.text{text-align:left}.bad{color:#c5221f;font-weight:600}.good{color:#0b8a5c;font-weight:600}
details{margin:.6rem 0}summary{cursor:pointer}
"""


def page(result: Accuracy, tables: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """The run, its comparisons, and for each slice what was heard wrong by whom."""
    parts = [_figures(result)]
    parts += [f"<h2>{escape(title)}</h2>{_comparison(rows)}" for title, rows in tables]
    parts += ["<h2>What was heard wrong</h2>", *(_slice(result, name) for name in result.slices)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Recognition test</title><style>{_STYLE}</style></head><body>"
        f"<h1>Recognition: {escape(result.corpus)}</h1>"
        f'<p class="soft">voice {escape(result.voice)}, seed {result.seed}, '
        f"{escape(result.setting)}; {escape(result.machine)}</p>{''.join(parts)}</body></html>\n"
    )


def _figures(result: Accuracy) -> str:
    lines = []
    for name in [*result.slices, None]:
        for engine in result.engines:
            one = total(result.of(name), engine)
            e = one.errors
            counts = [e.words, e.total, f"{100 * e.rate:.2f}", e.substituted, e.deleted, e.inserted]
            costs = [f"{one.seconds:.0f}", f"{one.cpu_s:.1f}", f"{one.rtf:.3f}"]
            lines.append(_cells([name or "all", engine, *(str(count) for count in counts), *costs]))
    errors = ("words", "wrong", "%", "substituted", "deleted", "inserted")
    head = ("slice", "engine", *errors, "speech s", "CPU s", "CPU s per s")
    return "<h2>Word errors and cost</h2>" + _table(head, lines)


def _comparison(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        low, high = row.difference
        cpu = "–" if row.cpu is None else f"{row.cpu:.2f}"
        verdict = f'<td class="text bad">{escape("; ".join(row.broken))}</td>'
        cells = [row.slice, f"{row.candidate.words}", f"{row.candidate.total}", f"{row.other.total}"]
        cells += [f"{low:+.0f} to {high:+.0f}", cpu]
        lines.append(_cells(cells) + (verdict if row.broken else '<td class="text good">pass</td>'))
    head = ("slice", "words", "wrong", "other wrong", "difference, 95 %", "CPU share", "verdict")
    return _table(head, lines)


def _slice(result: Accuracy, name: str) -> str:
    samples = result.of(name)
    wrong = [one for one in samples if any(errors.total for errors in one.errors.values())]
    head = ("utterance", "s", "said and heard", *(f"{engine}, wrong" for engine in result.engines))
    lines = [_failure(result, one) for one in sorted(wrong, key=_most_wrong, reverse=True)]
    return (
        f"<details><summary>{escape(name)}: {len(wrong)} of {len(samples)} utterances</summary>"
        f"{_table(head, lines)}</details>"
    )


def _most_wrong(sample: Sample) -> int:
    return max(errors.total for errors in sample.errors.values())


def _failure(result: Accuracy, sample: Sample) -> str:
    texts = [f"<b>{escape(sample.said)}</b>"]
    for engine in result.engines:
        heard = sample.heard[engine]
        why = f" (rejected: {heard.rejected})" if heard.rejected else ""
        texts.append(f'<span class="soft">{escape(engine)}:</span> {escape(heard.text + why) or "nothing"}')
    wrong = [f"{sample.errors[engine].total}" for engine in result.engines]
    text = f'<td class="text">{"<br>".join(texts)}</td>'
    return _cells([sample.name, f"{sample.seconds:.1f}"]) + text + _cells(wrong)


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _table(head: Sequence[str], lines: Iterable[str]) -> str:
    first = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wrap"><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'

"""How do figures become pictures? Plots as SVG text that needs nothing from outside: lines and points over time, and a
histogram. Colours are the page's, so that they follow its light and dark form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

WIDTH, HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 16, 38
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MOST_POINTS = 1500
_LABEL = 24
"""Room for the name of a mark."""
_DASHES = ("", "6 4", "2 3", "8 3 2 3")
"""Lines differ by more than colour."""
_numbers = itertools.count()
Place: TypeAlias = Callable[[float, float], tuple[float, float]]
"""Where a value stands in the picture."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line or a cloud of points.

    Attributes:
        name: In the legend.
        points: x and y; a y of ``None`` interrupts the line.
        dots: Draw points rather than a line.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    dots: bool = False


def over_time(title: str, unit: str, series: Sequence[Series], *, bound: float | None = None) -> str:
    """Values over the seconds of a run.

    Args:
        title: Of the plot, also for those who hear the page.
        unit: Of the values.
        series: At most four.
        bound: A value to be marked, such as a limit.
    """
    known = [(x, y) for one in series for x, y in one.points if y is not None]
    if not known:
        return _nothing(title)
    most_x = max(x for x, _ in known) or 1.0
    highest = max([y for _, y in known] + ([bound] if bound is not None else []))
    ticks = ticks_to(highest)
    top = ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / most_x * _INNER_WIDTH, _TOP + (1 - y / top) * _INNER_HEIGHT

    parts = _frame(
        ticks, [(tick, f"{tick:g}") for tick in ticks_to(most_x) if tick <= most_x], most_x, "seconds", unit
    )
    for number, one in enumerate(series):
        parts.append(_dots(one, number, place) if one.dots else _line(one, number, place))
    if bound is not None:
        y = place(0, bound)[1]
        parts.append(f'<line class="bound" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    said = "; ".join(_in_words(one, unit) for one in series)
    return _figure(title, said, parts, [one.name for one in series] if len(series) > 1 else [], series)


def histogram(
    title: str, unit: str, values: Sequence[float], *, marks: Sequence[tuple[str, float]] = ()
) -> str:
    """How often values occur, with marks such as percentiles."""
    if not values:
        return _nothing(title)
    step = nice(max(values) / 40 or 1.0)
    first = math.floor(min(values) / step)
    counts = [0] * (math.floor(max(values) / step) - first + 1)
    for value in values:
        counts[math.floor(value / step) - first] += 1
    begins, ends = first * step, (first + len(counts)) * step
    ticks = ticks_to(max(counts))

    def x_of(value: float) -> float:
        return _LEFT + (value - begins) / (ends - begins) * _INNER_WIDTH

    every = nice((ends - begins) / 8)
    labels = [
        (at - begins, f"{at:g}")
        for at in (every * n for n in range(math.ceil(begins / every), math.floor(ends / every) + 1))
    ]
    parts = _frame(ticks, labels, ends - begins, unit, "turns")
    for number, count in enumerate(counts):
        x, wide = x_of(begins + number * step), step / (ends - begins) * _INNER_WIDTH
        tall = count / ticks[-1] * _INNER_HEIGHT
        y = _TOP + _INNER_HEIGHT - tall
        label = f"{begins + number * step:g} to {begins + (number + 1) * step:g} {unit}: {count}"
        parts.append(
            f'<rect class="s0 bar" x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(0.5, wide - 1):.1f}" height="{tall:.1f}">'
            f"<title>{label}</title></rect>"
        )
    labelled_to = 0.0
    for name, value in marks:
        x = x_of(min(max(value, begins), ends))
        ends_y, label_x = _TOP + _INNER_HEIGHT, max(x, labelled_to)
        labelled_to = label_x + _LABEL
        parts.append(f'<line class="bound" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{ends_y}"/>')
        parts.append(f'<text x="{label_x:.1f}" y="{_TOP - 3}" text-anchor="middle">{escape(name)}</text>')
    said = f"{len(values)} values from {min(values):.0f} to {max(values):.0f} {unit}"
    said += "".join(f", {name} {value:.0f}" for name, value in marks)
    return _figure(title, said, parts, [], [])


# ---------------------------------------------------------------- axes


def nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def ticks_to(highest: float) -> list[float]:
    """Values for an axis from 0 to at least ``highest``."""
    if highest <= 0:
        return [0.0, 1.0]
    step = nice(highest / 5)
    return [round(step * n, 10) for n in range(math.ceil(highest / step - 1e-9) + 1)]


def _frame(
    ticks: Sequence[float], labels: Sequence[tuple[float, str]], most_x: float, x_unit: str, y_unit: str
) -> list[str]:
    parts = []
    for tick in ticks:
        y = _TOP + (1 - tick / ticks[-1]) * _INNER_HEIGHT
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for at, text in labels:
        x = _LEFT + at / most_x * _INNER_WIDTH
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_unit)}</text>')
    parts.append(f'<text x="4" y="{HEIGHT - 6}">{escape(y_unit)}</text>')
    return parts


# ---------------------------------------------------------------- marks


def _line(one: Series, number: int, place: Place) -> str:
    path, pen_up = [], True
    for x, y in thinned(one.points):
        if y is None:
            pen_up = True
            continue
        at_x, at_y = place(x, y)
        path.append(f"{'M' if pen_up else 'L'}{at_x:.1f} {at_y:.1f}")
        pen_up = False
    dash = _DASHES[number % len(_DASHES)]
    return f'<path class="s{number} line" stroke-dasharray="{dash}" d="{" ".join(path)}"/>'


def _dots(one: Series, number: int, place: Place) -> str:
    places = [place(x, y) for x, y in thinned(one.points) if y is not None]
    return "".join(f'<circle class="s{number} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places)


def thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Few enough to be drawn: of each stretch the highest value, so that no peak is lost."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    each = math.ceil(len(points) / _MOST_POINTS)
    stretches = (points[at : at + each] for at in range(0, len(points), each))
    return [
        max(stretch, key=lambda point: -math.inf if point[1] is None else point[1]) for stretch in stretches
    ]


def _in_words(one: Series, unit: str) -> str:
    values = [y for _, y in one.points if y is not None]
    if not values:
        return f"{one.name}: nothing"
    return f"{one.name}: {min(values):g} to {max(values):g} {unit}, last {values[-1]:g}"


def _figure(
    title: str, said: str, parts: Sequence[str], names: Sequence[str], series: Sequence[Series]
) -> str:
    key = next(_numbers)
    legend = "".join(
        '<span class="key"><svg viewBox="0 0 24 8" aria-hidden="true">'
        + (
            f'<circle class="s{n} dot" cx="12" cy="4" r="3"/>'
            if series[n].dots
            else f'<path class="s{n} line" stroke-dasharray="{_DASHES[n % len(_DASHES)]}" d="M0 4 L24 4"/>'
        )
        + f"</svg>{escape(name)}</span>"
        for n, name in enumerate(names)
    )
    return (
        f"<figure><figcaption>{escape(title)}{legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t{key} d{key}">'
        f'<title id="t{key}">{escape(title)}</title><desc id="d{key}">{escape(said)}</desc>'
        f"{''.join(parts)}</svg></figure>"
    )


def _nothing(title: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><p class="none">Nothing was measured.</p></figure>'
    )

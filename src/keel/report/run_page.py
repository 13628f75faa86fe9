"""Page of several trainings: their results, the settings that differ, and their curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.charts import WIDTH, Axes, polyline, text_width, ticks_between
from keel.report.html_page import Page, tag

LEFT, TOP, BOTTOM = 62, 26, 266
COLOURS = ("#2f7fb8", "#d9822b", "#3f9b57", "#c2475a", "#8a63b8", "#8c6d4f", "#c76fa8", "#7a8894", "#a3a52c", "#2aa5ab")
"""Colours of curves, readable on light and on dark paper; further curves are dashed."""
MAX_POINTS = 400
"""Points of a curve; more are averaged."""

Curve = Sequence[tuple[float, float]]
Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Names of the columns, and rows."""


def write_run_page(
    path: Path, title: str, results: Rows, settings: Rows, charts: Mapping[str, Mapping[str, Mapping[str, Curve]]]
) -> Path:
    """Write the page; `charts` are the curves of each run by section ("By step") and by what they show."""
    page = Page(title, "Trainings side by side, from the log of each run.")
    page.table(*results)
    page.section("Settings that differ")
    if settings[1]:
        page.table(*settings, numeric=False)
    else:
        page.text("All settings are equal.")
    runs = [row[0] for row in results[1]]
    for across, by_name in charts.items():
        page.section(f"By {across}")
        for name, curves in by_name.items():
            page.figure(run_curves(curves, runs, across=across, upward=name), _caption(name, len(curves)))
    return page.write(path)


def _caption(name: str, runs: int) -> str:
    several = f" of {runs} runs" if runs > 1 else ""
    return f"{name.capitalize()}{several}."


def run_curves(curves: Mapping[str, Curve], runs: Sequence[str], *, across: str, upward: str) -> Element:
    """Curves of any number of runs through (x, y) points in one chart, with a legend below; `runs` are those of all
    charts, so that a run has the same colour in each."""
    points = [point for curve in curves.values() for point in curve]
    last = max(x for x, _ in points)
    ys = ticks_between(min(y for _, y in points), max(y for _, y in points))
    axes = Axes(left=LEFT, right=WIDTH - 12, top=TOP, bottom=BOTTOM, low=0.0, high=last, ticks=ys)
    keys, height = _legend(list(curves), runs, BOTTOM + 58)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height:.0f}", role="img")
    axes.draw(svg, across, upward, {tick: f"{tick:,g}" for tick in ticks_between(0.0, last) if tick <= last})
    for name, curve in curves.items():
        number = runs.index(name)
        placed = axes.points(_averaged(curve))
        if len(placed) == 1:
            svg.append(tag("circle", tag("title", name), cx=placed[0][0], cy=placed[0][1], r=3.5, style=_fill(number)))
            continue
        svg.append(polyline(placed, name, "curve", _stroke(number)))
    svg.extend(keys)
    return svg


def _legend(names: Sequence[str], runs: Sequence[str], top: int) -> tuple[list[Element], float]:
    """A line and a name for each curve, in as many rows as they need; and the height of the chart."""
    found: list[Element] = []
    x, y = float(LEFT), float(top)
    for name in names:
        needed = 30 + text_width(name) + 18
        if x > LEFT and x + needed > WIDTH:
            x, y = float(LEFT), y + 20
        found.append(tag("line", class_="curve", x1=x, x2=x + 22, y1=y - 4, y2=y - 4, style=_stroke(runs.index(name))))
        found.append(tag("text", name, x=x + 30, y=y))
        x += needed
    return found, y + 10


def _stroke(number: int) -> str:
    dashes = number // len(COLOURS)
    return f"stroke: {COLOURS[number % len(COLOURS)]}" + (f"; stroke-dasharray: {6 / dashes:.0f} 4" if dashes else "")


def _fill(number: int) -> str:
    return f"fill: {COLOURS[number % len(COLOURS)]}"


def _averaged(curve: Curve) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` points: the first, means of equally many, and the last."""
    if len(curve) <= MAX_POINTS:
        return [*curve]
    inner = np.array_split(np.array(curve[1:-1], dtype=np.float64), MAX_POINTS - 2)
    return [curve[0], *((float(x), float(y)) for x, y in (part.mean(0) for part in inner)), curve[-1]]

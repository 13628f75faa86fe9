"""Page of several trainings: their results, the settings that differ, and their curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.charts import text_width, ticks_between
from keel.report.html_page import Page, tag

WIDTH, LEFT, TOP, HEIGHT = 720, 62, 26, 240
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
    low, high = min(y for _, y in points), max(y for _, y in points)
    xs, ys = ticks_between(0.0, last), ticks_between(low, high)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (y - ys[0]) / ((ys[-1] - ys[0]) or 1.0)
        return LEFT + (WIDTH - LEFT - 12) * x / (last or 1.0), TOP + HEIGHT * (1 - share)

    keys, height = _legend(list(curves), runs, TOP + HEIGHT + 58)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height:.0f}", role="img")
    for tick in ys:
        y = place(0, tick)[1]
        svg.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - 12, y1=y, y2=y))
        svg.append(tag("text", f"{tick:g}", class_="faint", x=LEFT - 8, y=y + 4, text_anchor="end"))
    for tick in (tick for tick in xs if tick <= last):
        x = place(tick, ys[0])[0]
        svg.append(tag("text", f"{tick:,g}", class_="faint", x=x, y=TOP + HEIGHT + 19, text_anchor="middle"))
    svg.append(tag("text", upward, class_="faint", x=0, y=14))
    svg.append(tag("text", across, class_="faint", x=WIDTH - 12, y=TOP + HEIGHT + 36, text_anchor="end"))
    for name, curve in curves.items():
        number = runs.index(name)
        placed = [place(x, y) for x, y in _averaged(curve)]
        if len(placed) == 1:
            svg.append(tag("circle", tag("title", name), cx=placed[0][0], cy=placed[0][1], r=3.5, style=_fill(number)))
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        svg.append(tag("polyline", tag("title", name), class_="curve", points=line, style=_stroke(number)))
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

"""Charts of a comparison as SVG: ranking, cost against quality, learning curves, pairwise verdicts."""

import math
from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np

from keel.localization import translate
from keel.metrics.comparison_results import Cell, Column, Comparison
from keel.metrics.scores import score_name
from keel.metrics.significance import PairwiseTest
from keel.report.charts import WIDTH, Axes, linear_scale, polyline, text_width, ticks_between
from keel.report.html_page import tag
from keel.report.scatter_map import place_label

MAX_LABEL = 190
"""Pixels of a system's name on a page."""
NARROW = 350
"""Width of a chart for a phone."""
COLOURS = 6
"""Colours of curves in the style sheet; further curves repeat them, dashed."""
CLOCK = (
    *((0.01, "10 ms"), (0.1, "0.1 s"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h")),
    *((36_000, "10 h"), (360_000, "4 days")),
)
"""Ticks of an axis of time."""


def ranking_chart(cells: Sequence[Cell], width: int = WIDTH) -> Element:
    """Scores with their intervals, the best first; rings are single seeds."""
    left, right, step = min(_room(width), max(text_width(cell.row) for cell in cells)) + 20, 66, 34
    bounds = [bound for cell in cells for bound in _bounds(cell)]
    ticks = ticks_between(min(bounds), max(bounds))
    place = linear_scale(ticks[0], ticks[-1], left, width - right)
    height = step * len(cells)
    svg = _canvas(height + 46, width)
    for tick in ticks:
        svg.append(tag("line", class_="grid", x1=place(tick), x2=place(tick), y1=4, y2=height + 4))
        svg.append(tag("text", f"{tick:g}", class_="faint", x=place(tick), y=height + 21, text_anchor="middle"))
    svg.append(
        tag(
            "text",
            translate(score_name(cells[0].metric)),
            class_="faint",
            x=width - right,
            y=height + 40,
            text_anchor="end",
        )
    )
    for number, cell in enumerate(cells):
        middle = 4 + step * number + step / 2
        low, high, *_ = _bounds(cell)
        kind = "mark" if number == 0 else "point"
        svg.append(_name(cell.row, left - 14, middle + 4.5, _room(width)))
        svg.append(tag("line", class_="interval", x1=place(low), x2=place(high), y1=middle, y2=middle))
        for value in cell.result.by_seed:
            svg.append(tag("circle", class_="dot small", cx=place(value), cy=middle - 9, r=2.4))
        svg.append(tag("circle", class_=kind, cx=place(cell.score.value), cy=middle, r=5.5))
        value = f"{cell.score.value:.3f}"
        svg.append(tag("text", value, x=float(width - 6), y=middle + 4.5, text_anchor="end", font_weight=600))
    return svg


def cost_chart(cells: Sequence[Cell], width: int = WIDTH) -> Element:
    """Score against the seconds of pre-training and one fine-tuning, in logarithmic scale; the line connects the
    systems that no cheaper one surpasses."""
    left, bottom = 54, 324
    seconds = [max(0.01, cell.total_seconds) for cell in cells]
    low, high = math.log10(min(seconds)) - 0.15, math.log10(max(seconds)) + 0.35
    low, high = min(low, high - 1), max(high, low + 1)
    values = [cell.score.value for cell in cells]
    ticks = ticks_between(min(values), max(values))
    axes = Axes(left=left, right=width - 24, top=24, bottom=bottom, low=low, high=high, ticks=ticks)
    svg = _canvas(bottom + 44, width)
    clock = {math.log10(value): name for value, name in CLOCK if low <= math.log10(value) <= high}
    axes.draw(svg, "time to pre-train and fine-tune", score_name(cells[0].metric), clock, vertical=True)
    points = np.array(axes.points(zip(map(math.log10, seconds), values, strict=True)))
    order = sorted(range(len(cells)), key=lambda index: (seconds[index], -values[index]))
    front = [index for rank, index in enumerate(order) if all(values[index] > values[other] for other in order[:rank])]
    if len(front) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points[front].tolist())
        svg.append(tag("polyline", class_="curve thin", points=path))
    along = [np.linspace(points[one], points[two], 40) for one, two in pairwise(front)]  # no label on the line
    taken = np.concatenate([points, *along])
    axis = [[0.0, 0.0, left, bottom]]
    boxes = np.vstack([np.hstack([taken - 5, taken + 5]), axis])
    for index, (x, y) in enumerate(points.tolist()):
        hint = f"{cells[index].row}: {values[index]:.3f}, {seconds[index]:,.1f} s"
        kind = "mark" if index in front else "point"
        svg.append(tag("circle", tag("title", hint), class_=kind, cx=x, cy=y, r=4.5))
    for index in [*front, *(index for index in order if index not in front)]:
        shown = _cut(cells[index].row, _room(width))
        label = place_label(shown, points[index], boxes, float(width), float(bottom))
        if label is not None:
            box, led = label
            boxes = np.vstack([boxes, box])
            if led:
                x, y = np.clip(points[index], [box[0], box[1] + 3], [box[2], box[3] - 3])
                svg.append(tag("line", class_="leader", x1=points[index][0], y1=points[index][1], x2=x, y2=y))
            svg.append(tag("text", shown, x=float(box[0]), y=float(box[3]) - 4))
    return svg


def learning_curves(comparison: Comparison, column: Column, width: int = WIDTH) -> Element:
    """The score of each system by the number of training examples, in logarithmic scale."""
    sizes = comparison.sizes(column)
    curves = {
        row: [(size, cell.score.value) for size in sizes if (cell := comparison.cell(row, column, size)).seeds]
        for row in [cell.row for cell in comparison.ranking(column)]
    }
    wide = min(_room(width), max(map(text_width, curves)))
    right, top, bottom = width - wide - 34, 24, 24 + max(260, 18 * len(curves))
    values = [value for curve in curves.values() for _, value in curve]
    ticks = ticks_between(min(values), max(values))
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    axes = Axes(left=54, right=right, top=top, bottom=bottom, low=low, high=high, ticks=ticks, inset=8)
    svg = _canvas(bottom + 44, width)
    metric = score_name(comparison.ranking(column)[0].metric)
    axes.draw(svg, "training examples", metric, {math.log10(size): f"{size:,}" for size in sizes}, vertical=True)
    ends: list[tuple[float, str, str]] = []
    for number, (row, curve) in enumerate(curves.items()):
        points = axes.points((math.log10(size), value) for size, value in curve)
        kind = f"line colour{number % COLOURS}" + (" dashed" if number >= COLOURS else "")
        svg.append(polyline(points, row, kind))
        svg.extend(tag("circle", class_=f"fill{number % COLOURS}", cx=x, cy=y, r=3.0) for x, y in points)
        ends.append((points[-1][1], row, f"fill{number % COLOURS}"))
    ends.sort()
    for (y, row, kind), at in zip(ends, _spread([y for y, _, _ in ends], 17, bottom), strict=True):
        svg.append(tag("line", class_="leader", x1=right + 5, y1=y, x2=right + 20, y2=at))
        svg.append(tag("text", tag("title", row), _cut(row, _room(width)), class_=kind, x=right + 24, y=at + 4.5))
    return svg


def verdict_matrix(rows: Sequence[str], tests: Sequence[PairwiseTest]) -> Element:
    """Differences in points between all pairs, row minus column; filled where the difference is decided."""
    label = min(MAX_LABEL, max(map(text_width, rows)))
    left = label + 16
    broad = min(64.0, (WIDTH - left - 4) / len(rows))
    side, top = 32, max(label * 0.75 + 14, 24.0)
    narrow = label > broad
    beyond = max(60.0, 0.75 * label - broad / 2 + 4) if narrow else 4.0  # where the last turned name ends
    svg = _canvas(top + side * len(rows) + 4, left + broad * len(rows) + beyond)
    by_pair = {(test.first, test.second): test for test in tests}
    for number, row in enumerate(rows):
        x, y = left + broad * (number + 0.5), top - 8
        turned = {"transform": f"rotate(-42 {x:.1f} {y:.1f})"} if narrow else {"text_anchor": "middle"}
        svg.append(tag("text", tag("title", row), _cut(row), x=x, y=y, **turned))
        svg.append(_name(row, left - 12, top + side * (number + 0.5) + 4.5))
        for other, name in enumerate(rows):
            if other == number:
                continue
            test, sign = (by_pair[row, name], 1) if (row, name) in by_pair else (by_pair[name, row], -1)
            value = 100 * sign * test.difference
            hint = f"{row} - {name}: {value:+.1f} points, p {test.p_holm:.3g} after Holm: {test.verdict}"
            kind = "undecided" if not test.decided else "better" if value > 0 else "worse"
            box = {"x": left + broad * other + 1.5, "y": top + side * number + 1.5, "rx": 3}
            svg.append(tag("rect", tag("title", hint), class_=kind, width=broad - 3, height=side - 3.0, **box))
            middle = {"x": left + broad * (other + 0.5), "y": top + side * (number + 0.5) + 4.5}
            text = {"text_anchor": "middle", "class_": f"on-{kind}", "font_size": 12 if broad > 44 else 10.5}
            svg.append(tag("text", f"{value:+.1f}" if abs(value) >= 0.05 else "0.0", **middle, **text))
    return svg


def _canvas(height: float, width: float) -> Element:
    """A picture that fills its page, or a smaller one in its own size."""
    own = None if width == WIDTH else f"width: {width:.0f}px"
    return tag("svg", viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", style=own)


def _room(width: float) -> float:
    """Pixels of a system's name; a longer one is cut, and shown when the mouse is over it."""
    return MAX_LABEL if width >= WIDTH else 0.3 * width


def _bounds(cell: Cell) -> tuple[float, ...]:
    """Both ends of the interval, and the scores of the seeds."""
    low, high = cell.score.low, cell.score.high
    value = cell.score.value
    return (value if low is None else low, value if high is None else high, *cell.result.by_seed)


def _name(name: str, x: float, y: float, room: float = MAX_LABEL) -> Element:
    return tag("text", tag("title", name), _cut(name, room), x=x, y=y, text_anchor="end")


def _cut(name: str, room: float = MAX_LABEL) -> str:
    """The name, shortened in the middle if it is too long for a chart."""
    while text_width(name) > room:
        half = len(name) // 2
        name = f"{name[: half - 1].removesuffix('…')}…{name[half + 1 :].removeprefix('…')}"
    return name


def _spread(positions: Sequence[float], least: float, bottom: float) -> list[float]:
    """Ascending positions, moved so that neighbours do not overlap and none is below `bottom`."""
    found = list(positions)
    for number in range(1, len(found)):
        found[number] = max(found[number], found[number - 1] + least)
    if found and found[-1] > bottom:
        found[-1] = bottom
        for number in range(len(found) - 2, -1, -1):
            found[number] = min(found[number], found[number + 1] - least)
    return found

"""Pictures of layers by task: weights of scalar mixes, probing curves."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from xml.etree.ElementTree import Element

from keel.localization import translate
from keel.report.charts import GAP, WIDTH, Axes, polyline, text_width, ticks_between
from keel.report.html_page import tag

CELL, CELL_HEIGHT = 42, 28
"""Width and height of a weight."""
NUMBER = 62
"""Width of gamma, and of the center of gravity."""


PANEL_HEIGHT, PLOT_TOP, PLOT_BOTTOM, PLOT_LEFT = 226, 50, 182, 34
"""Height of the panel of a task; sides of its plot."""
PANEL_GAP = 22
FEW_TASKS = 4
"""Tasks up to which two panels are side by side; else three."""
STYLES = {"task": (0, None), "control task": (1, "6 3"), "random weights": (2, "2 3")}
"""Colour and dashes of each curve."""
MAX_TICKS = 8
"""Layers with a number below a plot."""


class MixRow(NamedTuple):
    """The scalar mix of a task: weights by layer, γ and the mean layer under the weights."""

    name: str
    weights: Mapping[int, float]
    gamma: float
    center: float


def mix_chart(rows: Sequence[MixRow]) -> Element:
    """Tasks down, layers across: a cell is darker the larger its weight, a dot is the center of gravity of its row."""
    numbers = sorted({number for row in rows for number in row.weights})
    left, top = max(text_width(row.name) for row in rows) + 2 * GAP, 2 * CELL_HEIGHT
    right, bottom = left + CELL * len(numbers), top + CELL_HEIGHT * len(rows)
    width = right + GAP + 2 * NUMBER
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {bottom + 4}", role="img", style=f"max-width: {width:.0f}px")
    svg.append(tag("text", translate("layer"), class_="faint", x=left, y=17.0))
    for column, name in enumerate(map(str, numbers)):
        x = left + CELL * (column + 0.5)
        svg.append(tag("text", name, class_="faint", x=x, y=top - GAP, text_anchor="middle"))
    for name, edge in (("γ", right + GAP + NUMBER), ("center", width)):
        svg.append(tag("text", name, class_="faint", x=edge, y=top - GAP, text_anchor="end"))
    largest = max(weight for row in rows for weight in row.weights.values())
    for index, row in enumerate(rows):
        y = top + CELL_HEIGHT * index
        baseline = y + CELL_HEIGHT * 0.62
        svg.append(tag("text", row.name, x=left - GAP, y=baseline, text_anchor="end"))
        for column, number in enumerate(numbers):
            if number not in row.weights:
                continue
            weight, x = row.weights[number], left + CELL * column
            square = {"x": x + 0.5, "y": y + 0.5, "width": CELL - 1.0, "height": CELL_HEIGHT - 1.0, "rx": 2}
            title = tag("title", translate(f"{row.name}, layer {number}: {weight:.3f}"))
            svg.append(tag("rect", title, class_="mark", fill_opacity=f"{weight / largest:.3f}", **square))
            kind = "on-better" if weight > 0.55 * largest else None
            text = {"x": x + CELL / 2, "y": baseline - 1, "text_anchor": "middle", "pointer_events": "none"}
            svg.append(tag("text", f"{weight:.2f}", class_=kind, **text))
        for number, edge in ((row.gamma, right + GAP + NUMBER), (row.center, width)):
            svg.append(tag("text", f"{number:.2f}", x=edge, y=baseline, text_anchor="end"))
        spread = (row.center - numbers[0]) / ((numbers[-1] - numbers[0]) or 1)
        x = left + CELL * (0.5 + spread * (len(numbers) - 1))
        title = tag("title", translate(f"{row.name}: center of gravity {row.center:.2f}"))
        svg.append(tag("circle", title, class_="dot", cx=x, cy=y + CELL_HEIGHT - 3.5, r=2.6))
    return svg


class LayerCurve(NamedTuple):
    """Accuracies by layer, with their intervals if there are any."""

    values: Sequence[float]
    intervals: Sequence[tuple[float, float]] = ()


class ProbePanel(NamedTuple):
    """The curves of one task, by their names in `STYLES`, over the layers."""

    task: str
    subtitle: str
    layers: Sequence[int]
    curves: Mapping[str, LayerCurve]
    majority: float


def probe_chart(panels: Sequence[ProbePanel]) -> Element:
    """Small multiples: accuracy in percent by layer, a panel for each task; a dot is the best layer."""
    columns = min(len(panels), 2 if len(panels) <= FEW_TASKS else 3)
    width = (WIDTH - PANEL_GAP * (columns - 1)) / columns
    rows = -(-len(panels) // columns)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {30 + PANEL_HEIGHT * rows}", role="img")
    x = 0.0
    names = [name for name in STYLES if any(name in panel.curves for panel in panels)]
    for name in [*names, "majority class"]:
        colour, dashes = STYLES.get(name, (None, "1 3"))
        svg.append(_line([(x, 12.0), (x + 28, 12.0)], name, colour, dashes))
        svg.append(tag("text", name, x=x + 36, y=16.5))
        x += 36 + text_width(name) + 26
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        group = tag("g", transform=f"translate({column * (width + PANEL_GAP):.1f} {30 + row * PANEL_HEIGHT})")
        _draw_panel(group, panel, width)
        svg.append(group)
    return svg


def _draw_panel(group: Element, panel: ProbePanel, width: float) -> None:
    curves = {name: panel.curves[name] for name in STYLES if name in panel.curves}
    bounds = [value for each in curves.values() for value in (*each.values, *chain.from_iterable(each.intervals))]
    ticks = ticks_between(100 * min(bounds), 100 * max(bounds), 4)
    axes = Axes(
        left=PLOT_LEFT,
        right=width - 8,
        top=PLOT_TOP,
        bottom=PLOT_BOTTOM,
        low=panel.layers[0],
        high=panel.layers[-1],
        ticks=ticks,
        inset=8,
    )
    step = -(-len(panel.layers) // MAX_TICKS)
    axes.draw(group, "layer", "", {layer: f"{layer}" for layer in panel.layers[::step]})
    group.append(tag("text", panel.task, x=0, y=16.0, font_weight=600))
    group.append(tag("text", panel.subtitle, class_="faint small", x=0, y=33.0))
    if ticks[0] <= 100 * panel.majority <= ticks[-1]:
        y = axes.y(100 * panel.majority)
        group.append(_line([(axes.left, y), (axes.right, y)], f"majority class: {panel.majority:.1%}", None, "1 3"))
    for name, curve in curves.items():
        colour, dashes = STYLES[name]
        if curve.intervals and name == "task":
            upper = [(layer, 100 * high) for layer, (_, high) in zip(panel.layers, curve.intervals, strict=True)]
            lower = [(layer, 100 * low) for layer, (low, _) in zip(panel.layers, curve.intervals, strict=True)]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in axes.points([*upper, *reversed(lower)]))
            group.append(tag("polygon", points=points, class_=f"fill{colour}", fill_opacity=".16"))
        pixels = axes.points((layer, 100 * value) for layer, value in zip(panel.layers, curve.values, strict=True))
        group.append(_line(pixels, f"{panel.task}: {name}", colour, dashes))
        best = max(range(len(pixels)), key=curve.values.__getitem__)
        for index, ((x, y), layer, value) in enumerate(zip(pixels, panel.layers, curve.values, strict=True)):
            title = tag("title", translate(f"{panel.task}, {name}, layer {layer}: {value:.1%}"))
            shown = index == best and name == "task"
            opacity = None if shown else "0"  # a tooltip alone
            group.append(tag("circle", title, class_=f"fill{colour}", cx=x, cy=y, r=3.6, opacity=opacity))


def _line(points: Sequence[tuple[float, float]], name: str, colour: int | None, dashes: str | None) -> Element:
    kind = "wire" if colour is None else f"line colour{colour}"
    return polyline(points, name, kind, None if dashes is None else f"stroke-dasharray: {dashes}")

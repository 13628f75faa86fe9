"""Charts as SVG: bars with intervals, curves and heat maps; the page's style sheet sets the colours."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import numpy as np

from keel.localization import translate
from keel.report.html_page import tag

WIDTH = 720
FONT = 13
"""Font size in pixels."""
SIDE = 26
"""Side of a cell of a heat map."""
GAP = 8
"""Gap between these cells and their labels."""
SLOPE = 0.75
"""Sine of the angle of their column labels."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its interval; `highlighted` is the one to compare with."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    points: Sequence[float] = ()
    """Values of the single runs."""
    highlighted: bool = False


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The axes of a chart: sides of the plot in pixels, and the values at them."""

    left: float
    right: float
    top: float
    bottom: float
    low: float
    """Value of x at the left side, `high` that at the right side."""
    high: float
    ticks: Sequence[float]
    """Ticks of y, the first at the bottom, the last at the top."""
    inset: float = 0.0
    """Pixels between the left side and `low`."""

    def x(self, value: float) -> float:
        """Pixel of a value across."""
        return linear_scale(self.low, self.high, self.left + self.inset, self.right)(value)

    def y(self, value: float) -> float:
        """Pixel of a value upward."""
        return linear_scale(self.ticks[0], self.ticks[-1], self.bottom, self.top)(value)

    def points(self, curve: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """Pixels of the (x, y) points of a curve."""
        return [(self.x(x), self.y(y)) for x, y in curve]

    def draw(self, svg: Element, across: str, upward: str, xs: Mapping[float, str], *, vertical: bool = False) -> None:
        """Add both names, the grid, and the ticks of y and `xs`, those with their text; `vertical` adds lines there."""
        for tick in self.ticks:
            y = self.y(tick)
            svg.append(tag("line", class_="grid", x1=self.left, x2=self.right, y1=y, y2=y))
            svg.append(tag("text", f"{tick:g}", class_="faint", x=self.left - 8, y=y + 4, text_anchor="end"))
        svg.append(tag("text", translate(upward), class_="faint", x=0, y=13))
        for value, text in xs.items():
            x = self.x(value)
            if vertical:
                svg.append(tag("line", class_="grid", x1=x, x2=x, y1=self.top, y2=self.bottom))
            svg.append(tag("text", text, class_="faint", x=x, y=self.bottom + 19, text_anchor="middle"))
        svg.append(tag("text", translate(across), class_="faint", x=self.right, y=self.bottom + 38, text_anchor="end"))


def linear_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The pixel of a value: `start` for `low`, `end` for `high`."""
    return lambda value: float(start + (end - start) * (value - low) / ((high - low) or 1.0))


def polyline(points: Iterable[tuple[float, float]], name: str, kind: str, style: str | None = None) -> Element:
    """A line through pixels, with its name as a tooltip."""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", tag("title", name), class_=kind, points=line, style=style)


def bars(rows: Sequence[Bar], *, digits: int = 0) -> Element:
    """Horizontal bars from zero with their values, intervals as lines and single runs as rings."""
    left, right, step = min(max(190.0, *(text_width(bar.name) + 24 for bar in rows)), 440.0), 60, 40
    top = max((max(bar.value, bar.high or 0.0, *bar.points) for bar in rows), default=0.0)
    ticks = ticks_between(0.0, top)
    scale = (WIDTH - left - right) / (ticks[-1] or 1.0)
    height = step * len(rows)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height + 26}", role="img")
    for tick in ticks:
        x = left + scale * tick
        svg.append(tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height))
        svg.append(tag("text", f"{tick:g}", class_="faint", x=x, y=height + 18, text_anchor="middle"))
    for number, bar in enumerate(rows):
        middle = step * number + step / 2
        end = left + scale * bar.value
        shape = {"x": left, "y": middle - 11, "width": max(0.0, end - left), "height": 22, "rx": 2}
        svg.append(tag("text", bar.name, x=left - 12, y=middle + 4.5, text_anchor="end"))
        svg.append(tag("rect", class_="mark" if bar.highlighted else "plain", **shape))
        if bar.low is not None and bar.high is not None:
            x1, x2 = left + scale * bar.low, left + scale * bar.high
            svg.append(tag("line", class_="interval", x1=x1, x2=x2, y1=middle, y2=middle))
            end = max(end, x2)
        for point in bar.points:
            svg.append(tag("circle", class_="dot", cx=left + scale * point, cy=middle, r=3.2))
            end = max(end, left + scale * point)
        svg.append(tag("text", f"{bar.value:.{digits}f}", x=end + 10, y=middle + 4.5, font_weight=600))
    return svg


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], *, across: str, upward: str) -> Element:
    """Up to two curves through (x, y) points, each labelled at its end."""
    points = [point for curve in curves.values() for point in curve]
    last = max(x for x, _ in points)
    ys = ticks_between(min(y for _, y in points), max(y for _, y in points))
    left = max(48.0, max(text_width(f"{tick:g}") for tick in ys) + 10)
    axes = Axes(left=left, right=WIDTH - 110, top=26, bottom=256, low=0.0, high=last, ticks=ys)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {axes.bottom + 44}", role="img")
    whole = all(float(x).is_integer() for x, _ in points)
    xs = [tick for tick in ticks_between(0.0, last) if tick <= last and (tick.is_integer() or not whole)]
    axes.draw(svg, across, upward, {tick: f"{tick:,g}" for tick in xs})
    names: list[tuple[float, float, str]] = []
    for kind, (name, curve) in zip(("curve", "curve second"), curves.items(), strict=False):
        placed = axes.points(curve)
        svg.append(polyline(placed, name, kind))
        names.append((placed[-1][1] + 4, placed[-1][0] + 8, name))
    lowest, heights = -math.inf, []
    for y, *_ in sorted(names):
        lowest = max(y, lowest + 16)  # labels do not overlap
        heights.append(lowest)
    above = max(0.0, lowest - axes.bottom - 4)  # nor stand beside the ticks of x
    for height, (_, x, name) in zip(heights, sorted(names), strict=True):
        svg.append(tag("text", name, x=x, y=height - above))
    return svg


def heat_map(
    across: Sequence[str], down: Sequence[str], weights: np.ndarray, *, full: float = 1.0, digits: int = 2
) -> Element:
    """Heat map of weights [down, across] between 0 and `full`, with labels above and on the left."""
    left = max(map(text_width, down), default=0.0) + GAP
    rising = max(map(text_width, across), default=0.0)
    top = rising * SLOPE + 2 * GAP
    right, bottom = left + SIDE * len(across), top + SIDE * len(down)
    width = right + rising * (1 - SLOPE**2) ** 0.5
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {bottom + 2:.0f}", role="img", style=f"max-width: {width:.0f}px")
    turn = -np.degrees(np.arcsin(SLOPE))
    for column, name in enumerate(across):
        x, y = left + SIDE * (column + 0.6), top - GAP
        svg.append(tag("text", name, x=x, y=y, transform=f"rotate({turn:.1f} {x:.1f} {y:.1f})"))
    for row, name in enumerate(down):
        y = top + SIDE * row
        svg.append(tag("text", name, x=left - GAP, y=y + SIDE * 0.68, text_anchor="end"))
        for column, other in enumerate(across):
            share = float(np.clip(weights[row, column], 0, full))
            square = {"x": left + SIDE * column, "y": y, "width": SIDE, "height": SIDE}
            square["fill_opacity"] = f"{share / (full or 1.0):.3f}"
            svg.append(tag("rect", tag("title", f"{name} - {other}: {share:.{digits}f}"), class_="mark", **square))
    for number in range(len(across) + 1):
        x = left + SIDE * number
        svg.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=bottom))
    for number in range(len(down) + 1):
        y = top + SIDE * number
        svg.append(tag("line", class_="grid", y1=y, y2=y, x1=left, x2=right))
    return svg


def text_width(word: str) -> float:
    """Approximate width of a word in pixels."""
    broad = [unicodedata.east_asian_width(character) in "WF" or character in "mwMW@%" for character in word]
    return FONT * sum(1.0 if each else 0.6 for each in broad)


def ticks_between(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover `low` to `high`."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]

"""Charts as SVG: bars with intervals, and curves; the page's style sheet sets the colours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from keel.report.html_page import tag

WIDTH = 720


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


def bars(rows: Sequence[Bar], *, digits: int = 0) -> Element:
    """Horizontal bars from zero with their values, intervals as lines and single runs as rings."""
    left, right, step = 190, 60, 40
    top = max((max(bar.value, bar.high or 0.0, *bar.points) for bar in rows), default=0.0)
    ticks = ticks_between(0.0, top)
    scale = (WIDTH - left - right) / (ticks[-1] or 1.0)
    height = step * len(rows)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height + 26}", role="img")
    for tick in ticks:
        x = left + scale * tick
        svg.append(tag("line", class_="grid", x1=_px(x), x2=_px(x), y1=0, y2=height))
        svg.append(tag("text", f"{tick:g}", class_="faint", x=_px(x), y=height + 18, text_anchor="middle"))
    for number, bar in enumerate(rows):
        middle = step * number + step / 2
        end = left + scale * bar.value
        shape = {"x": left, "y": _px(middle - 11), "width": _px(end - left), "height": 22, "rx": 2}
        svg.append(tag("text", bar.name, x=left - 12, y=_px(middle + 4.5), text_anchor="end"))
        svg.append(tag("rect", class_="mark" if bar.highlighted else "plain", **shape))
        if bar.low is not None and bar.high is not None:
            x1, x2 = left + scale * bar.low, left + scale * bar.high
            svg.append(tag("line", class_="interval", x1=_px(x1), x2=_px(x2), y1=_px(middle), y2=_px(middle)))
            end = max(end, x2)
        for point in bar.points:
            svg.append(tag("circle", class_="dot", cx=_px(left + scale * point), cy=_px(middle), r=3.2))
            end = max(end, left + scale * point)
        svg.append(tag("text", f"{bar.value:.{digits}f}", x=_px(end + 10), y=_px(middle + 4.5), font_weight=600))
    return svg


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], *, across: str, upward: str) -> Element:
    """Up to two curves through (x, y) points, each labelled at its end."""
    left, right, top, height = 48, 110, 26, 230
    points = [point for curve in curves.values() for point in curve]
    last = max(x for x, _ in points)
    xs, ys = ticks_between(0.0, last), ticks_between(min(y for _, y in points), max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (y - ys[0]) / ((ys[-1] - ys[0]) or 1.0)
        return left + (WIDTH - left - right) * x / (last or 1.0), top + height * (1 - share)

    svg = tag("svg", viewBox=f"0 0 {WIDTH} {top + height + 44}", role="img")
    for tick in ys:
        y = place(0, tick)[1]
        svg.append(tag("line", class_="grid", x1=left, x2=WIDTH - right, y1=_px(y), y2=_px(y)))
        svg.append(tag("text", f"{tick:g}", class_="faint", x=left - 8, y=_px(y + 4), text_anchor="end"))
    for tick in (tick for tick in xs if tick <= last):
        x = place(tick, ys[0])[0]
        svg.append(tag("text", f"{tick:,g}", class_="faint", x=_px(x), y=top + height + 19, text_anchor="middle"))
    svg.append(tag("text", upward, class_="faint", x=0, y=14))
    svg.append(tag("text", across, class_="faint", x=WIDTH - right, y=top + height + 38, text_anchor="end"))
    names: list[tuple[float, float, str]] = []
    for kind, (name, curve) in zip(("curve", "curve second"), curves.items(), strict=False):
        placed = [place(x, y) for x, y in curve]
        svg.append(tag("polyline", class_=kind, points=" ".join(f"{_px(x)},{_px(y)}" for x, y in placed)))
        names.append((placed[-1][1] + 4, placed[-1][0] + 8, name))
    lowest = -math.inf
    for y, x, name in sorted(names):
        lowest = max(y, lowest + 16)  # labels do not overlap
        svg.append(tag("text", name, x=_px(x), y=_px(lowest)))
    return svg


def ticks_between(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover `low` to `high`."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _px(value: float) -> str:
    return f"{value:.1f}"

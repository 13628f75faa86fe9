"""Figures of preferences: values with intervals around zero, and signed values of all heads."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from keel.localization import translate
from keel.report.attention_charts import CELL_HEIGHT
from keel.report.charts import WIDTH, Bar, linear_scale, text_width, ticks_between
from keel.report.html_page import tag

ROW = 21
CELL_WIDTH = 46


def interval_chart(rows: Sequence[Bar], *, negative: str, positive: str, across: str) -> Element:
    """Values as dots with their intervals, zero in the middle of two directions; those without 0 are highlighted."""
    left = max(text_width(each.name) for each in rows) + 16
    values = [value for each in rows for value in (each.value, each.low, each.high) if value is not None]
    ticks = ticks_between(min(0.0, *values), max(0.0, *values), 6)
    top, height = 26.0, 26.0 + ROW * len(rows)
    place = linear_scale(ticks[0], ticks[-1], left, WIDTH - 20)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height + 44:.0f}", role="img", style=f"max-width: {WIDTH}px")
    for tick in ticks:
        x = place(tick)
        svg.append(tag("line", class_="grid", x1=x, x2=x, y1=top - 6, y2=height))
        svg.append(tag("text", f"{tick:+g}" if tick else "0", class_="faint", x=x, y=height + 18, text_anchor="middle"))
    zero = place(0.0)
    svg.append(tag("line", class_="interval", x1=zero, x2=zero, y1=top - 6, y2=height))
    svg.append(tag("text", f"← {translate(negative)}", class_="accent", x=zero - 10, y=14, text_anchor="end"))
    svg.append(tag("text", f"{translate(positive)} →", class_="accent", x=zero + 10, y=14))
    svg.append(tag("text", translate(across), class_="faint", x=WIDTH - 20, y=height + 38, text_anchor="end"))
    for number, each in enumerate(rows):
        y = top + ROW * (number + 0.5)
        hint = f"{each.name}: {each.value:+.3f}"
        svg.append(tag("text", each.name, x=left - 12, y=y + 4.5, text_anchor="end"))
        if each.low is not None and each.high is not None:
            hint += f" ({each.low:+.3f} to {each.high:+.3f})"
            svg.append(tag("line", class_="interval", x1=place(each.low), x2=place(each.high), y1=y, y2=y))
        kind = "mark" if each.highlighted else "plain"
        svg.append(tag("circle", tag("title", hint), class_=kind, cx=place(each.value), cy=y, r=4.5))
    return svg


def signed_heads(
    layers: Sequence[int],
    heads: Sequence[int],
    values: np.ndarray,
    decided: np.ndarray,
    *,
    positive: str,
    negative: str,
) -> Element:
    """Signed values [layers, heads] in percent: layers down, heads across, two colours; decided ones have a border."""
    left, top = 64, 26
    width, height = left + CELL_WIDTH * len(heads), top + CELL_HEIGHT * len(layers)
    svg = tag("svg", viewBox=f"0 0 {width} {height + 28}", role="img", style=f"max-width: {width}px")
    svg.append(tag("text", translate("heads"), class_="faint", x=left - 8, y=16, text_anchor="end"))
    for column, head in enumerate(heads):
        x = left + CELL_WIDTH * (column + 0.5)
        svg.append(tag("text", str(head), class_="faint", x=x, y=16, text_anchor="middle"))
    largest = float(np.abs(values).max()) or 1.0
    for row, layer in enumerate(layers):
        y = top + CELL_HEIGHT * row
        svg.append(tag("text", translate(f"layer {layer}"), class_="faint", x=left - 8, y=y + 16, text_anchor="end"))
        for column, head in enumerate(heads):
            value, x = float(values[row, column]), left + CELL_WIDTH * column
            size = {"width": CELL_WIDTH - 2, "height": CELL_HEIGHT - 2}
            opacity = f"{0.75 * abs(value) / largest:.3f}"
            hint = tag("title", translate(f"layer {layer}, head {head}: {100 * value:+.2f}%"))
            kind = "fill0" if value > 0 else "fill1"
            svg.append(tag("rect", hint, class_=kind, x=x + 1, y=y + 1, fill_opacity=opacity, **size))
            if decided[row, column]:
                svg.append(tag("rect", class_="box", style="fill: none", x=x + 1, y=y + 1, **size))
            text = {"x": x + CELL_WIDTH / 2, "y": y + 16.5, "text_anchor": "middle", "pointer_events": "none"}
            svg.append(tag("text", f"{100 * value:+.1f}", class_="small", **text))
    svg.append(
        tag(
            "text",
            translate(f"blue: {positive}; orange: {negative}; border: interval without 0"),
            class_="faint",
            x=left,
            y=height + 20,
        )
    )
    return svg

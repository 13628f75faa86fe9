"""Pictures of layers by task: weights of scalar mixes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from keel.report.charts import GAP, text_width
from keel.report.html_page import tag

CELL, CELL_HEIGHT = 42, 28
"""Width and height of a weight."""
NUMBER = 62
"""Width of gamma, and of the center of gravity."""


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
    svg.append(tag("text", "layer", class_="faint", x=left, y=17.0))
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
            title = tag("title", f"{row.name}, layer {number}: {weight:.3f}")
            svg.append(tag("rect", title, class_="mark", fill_opacity=f"{weight / largest:.3f}", **square))
            kind = "on-better" if weight > 0.55 * largest else None
            text = {"x": x + CELL / 2, "y": baseline - 1, "text_anchor": "middle", "pointer_events": "none"}
            svg.append(tag("text", f"{weight:.2f}", class_=kind, **text))
        for number, edge in ((row.gamma, right + GAP + NUMBER), (row.center, width)):
            svg.append(tag("text", f"{number:.2f}", x=edge, y=baseline, text_anchor="end"))
        spread = (row.center - numbers[0]) / ((numbers[-1] - numbers[0]) or 1)
        x = left + CELL * (0.5 + spread * (len(numbers) - 1))
        title = tag("title", f"{row.name}: center of gravity {row.center:.2f}")
        svg.append(tag("circle", title, class_="dot", cx=x, cy=y + CELL_HEIGHT - 3.5, r=2.6))
    return svg

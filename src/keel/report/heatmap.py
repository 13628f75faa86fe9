"""Heat maps of attention."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from xml.etree.ElementTree import Element

import numpy as np

from keel.errors import UsageError
from keel.report.html_page import Page, tag, write_picture
from keel.report.scatter_map import text_width

SIDE = 26
"""Side of a cell."""
GAP = 8
"""Gap between cells and labels."""
SLOPE = 0.75
"""Sine of the angle of the column labels."""


class AttentionWeights(Protocol):
    """Attention of target tokens to source tokens."""

    @property
    def source(self) -> Sequence[str]: ...
    @property
    def target(self) -> Sequence[str]: ...
    @property
    def weights(self) -> np.ndarray: ...  # [target, source]


def draw_grid(across: Sequence[str], down: Sequence[str], weights: np.ndarray) -> Element:
    """Heat map of weights [down, across] between 0 and 1, with labels above and on the left."""
    left = max(map(text_width, down), default=0.0) + GAP
    rising = max(map(text_width, across), default=0.0)
    top = rising * SLOPE + 2 * GAP
    width = left + SIDE * len(across) + rising * (1 - SLOPE**2) ** 0.5
    height = top + SIDE * len(down) + 2
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", style=f"max-width: {width:.0f}px")
    turn = -np.degrees(np.arcsin(SLOPE))
    for column, name in enumerate(across):
        x, y = left + SIDE * (column + 0.6), top - GAP
        svg.append(tag("text", name, x=f"{x:.1f}", y=f"{y:.1f}", transform=f"rotate({turn:.1f} {x:.1f} {y:.1f})"))
    for row, name in enumerate(down):
        y = top + SIDE * row
        svg.append(tag("text", name, x=f"{left - GAP:.1f}", y=f"{y + SIDE * 0.68:.1f}", text_anchor="end"))
        for column, other in enumerate(across):
            share = float(np.clip(weights[row, column], 0, 1))
            square = {"x": f"{left + SIDE * column:.1f}", "y": f"{y:.1f}", "width": SIDE, "height": SIDE}
            svg.append(
                tag("rect", tag("title", f"{name} - {other}: {share:.2f}"), class_="mark",
                    fill_opacity=f"{share:.3f}", **square)
            )  # fmt: skip
    for line in range(len(across) + 1):
        x = f"{left + SIDE * line:.1f}"
        svg.append(tag("line", class_="grid", x1=x, x2=x, y1=f"{top:.1f}", y2=f"{top + SIDE * len(down):.1f}"))
    for line in range(len(down) + 1):
        y = f"{top + SIDE * line:.1f}"
        svg.append(tag("line", class_="grid", y1=y, y2=y, x1=f"{left:.1f}", x2=f"{left + SIDE * len(across):.1f}"))
    return svg


def write_alignment(path: str | Path, alignments: Sequence[AttentionWeights]) -> Path:
    """Write heat maps to an .html file, or the first one to an .svg file."""
    path = picture_file(path)
    pictures = [draw_grid(found.source, found.target, found.weights) for found in alignments]
    if path.suffix.lower() == ".svg":
        return write_picture(path, pictures[0])
    page = Page("Alignment", "Attention to the source for each generated token; darker is more.")
    for found, picture in zip(alignments, pictures, strict=True):
        page.figure(picture, f"{' '.join(found.target)}, generated from the source above.")
    return page.write(path)


def picture_file(path: str | Path) -> Path:
    """The path, if it ends with .svg or .html."""
    if Path(path).suffix.lower() not in (".svg", ".html"):
        raise UsageError(f"{path} is neither .svg nor .html: use one of these endings")
    return Path(path)

"""Pictures of attention: all heads as a grid of small matrices, one head as a matrix, a number per head."""

from collections.abc import Sequence
from itertools import product
from xml.etree.ElementTree import Element

import numpy as np

from keel.localization import translate
from keel.report.charts import GAP, heat_map, text_width
from keel.report.html_page import tag
from keel.report.png_images import png_image

MAX_CELLS = 48
"""Tokens of a matrix whose cells are elements of their own, with tooltips."""
SMALL_SIDE = 12
"""Side of a cell of a larger matrix, which is one image."""
THUMBNAIL = 64
"""Side of a small matrix of the grid, in pixels."""
THUMBNAIL_GAP = 10
CELL, SIGNED_CELL, CELL_HEIGHT = 34, 46, 24
"""Widths of a number per head, without and with a sign, and its height."""
TABLE_LEFT, TABLE_TOP = 64, 26
"""Room for the names of layers and heads."""
LINE_STEP, BETWEEN = 22, 180
"""Height of a token beside lines of attention, and the distance of the two columns."""


def intensity(weights: np.ndarray) -> np.ndarray:
    """Square root of weights [..., queries, keys] relative to the largest of each matrix, from 0 to 1."""
    largest = weights.max((-2, -1), keepdims=True)
    return np.sqrt(weights / np.where(largest > 0, largest, 1))


def thumbnail(weights: np.ndarray) -> str:
    """A small image of weights [queries, keys]; of a large matrix, the maxima of blocks of cells."""
    return png_image(intensity(pooled_matrix(weights, THUMBNAIL)))


def pooled_matrix(weights: np.ndarray, side: int) -> np.ndarray:
    """Weights [..., queries, keys] with at most `side` rows and columns: the maxima of blocks of cells."""
    for axis in (-2, -1):
        count = weights.shape[axis]
        if count > side:
            weights = np.maximum.reduceat(weights, np.linspace(0, count, side, endpoint=False).astype(int), axis)
    return weights


def head_matrix(queries: Sequence[str], keys: Sequence[str], weights: np.ndarray) -> Element:
    """Matrix of weights [queries, keys] of one head; a dark cell is the largest weight."""
    if max(len(queries), len(keys)) <= MAX_CELLS:
        return heat_map(keys, queries, weights, full=float(weights.max()), digits=3)
    side, font = SMALL_SIDE, SMALL_SIDE - 2
    left, top = (max(map(text_width, names), default=0.0) * font / 13 + GAP for names in (queries, keys))
    width, height = left + side * len(keys), top + side * len(queries)
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", style=f"width: {width:.0f}px")
    labels = tag("g", style=f"font-size: {font}px")
    for column, name in enumerate(keys):
        x, y = left + side * (column + 0.75), top - GAP / 2
        labels.append(tag("text", name, x=x, y=y, transform=f"rotate(-90 {x:.1f} {y:.1f})"))
    for row, name in enumerate(queries):
        labels.append(tag("text", name, x=left - GAP / 2, y=top + side * (row + 0.75), text_anchor="end"))
    svg.append(labels)
    svg.append(_image(png_image(intensity(weights)), left, top, side * len(keys), side * len(queries)))
    return svg


def head_grid(
    layers: Sequence[int], heads: Sequence[int], weights: np.ndarray, titles: Sequence[Sequence[str]]
) -> Element:
    """Small matrices of weights [layers, heads, queries, keys]: layers down, heads across, with tooltips."""
    left, top, step = 64, 30, THUMBNAIL + THUMBNAIL_GAP
    width, height = left + step * len(heads), top + step * len(layers)
    svg = tag("svg", viewBox=f"0 0 {width} {height}", role="img", style=f"max-width: {width}px")
    for column, head in enumerate(heads):
        x = left + step * column + THUMBNAIL / 2
        svg.append(tag("text", translate(f"head {head}"), class_="faint", x=x, y=18, text_anchor="middle"))
    for row, layer in enumerate(layers):
        y = top + step * row
        svg.append(
            tag(
                "text",
                translate(f"layer {layer}"),
                class_="faint",
                x=left - 8,
                y=y + THUMBNAIL / 2 + 4,
                text_anchor="end",
            )
        )
        for column in range(len(heads)):
            place = {"x": left + step * column, "y": y, "width": THUMBNAIL, "height": THUMBNAIL}
            picture = _image(thumbnail(weights[row, column]), *place.values())
            edge = tag("rect", class_="box faint", style="fill: none", **place)
            svg.append(tag("g", tag("title", titles[row][column]), picture, edge))
    return svg


def attention_lines(
    queries: Sequence[str], keys: Sequence[str], weights: np.ndarray, words: tuple[Sequence[int], Sequence[int]]
) -> Element:
    """Head view: lines from tokens on the left to those that they attend to on the right, of [queries, keys] weights;
    only lines from or to the chosen `words` (positions among the queries and among the keys)."""
    chosen = np.zeros(weights.shape, bool)
    chosen[list(words[0])] = True
    chosen[:, list(words[1])] = True
    shown = np.where(chosen, weights, 0.0)
    shares = [shown.sum(1) / max(1, len(words[1])), shown.sum(0) / max(1, len(words[0]))]
    left, right = (max(map(text_width, names)) + 2 * GAP for names in (queries, keys))
    width, height = left + BETWEEN + right, LINE_STEP * max(len(queries), len(keys))
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {height}", role="img", style=f"max-width: {width:.0f}px")
    full = float(shown.max()) or 1.0
    for query, key in zip(*np.nonzero(shown > full / 100), strict=True):
        weight = float(shown[query, key])
        start, end = (LINE_STEP * (position + 0.5) for position in (query, key))
        style = {"style": f"stroke-width: {1 + 3 * weight / full:.1f}", "stroke_opacity": f"{weight / full:.3f}"}
        line = {"x1": left, "y1": start, "x2": left + BETWEEN, "y2": end}
        name = f"{queries[query]} - {keys[key]}: {weight:.3f}"
        svg.append(tag("line", tag("title", name), class_="line colour0", **line, **style))
    for side, (names, x, anchor) in enumerate(((queries, left - 4, "end"), (keys, left + BETWEEN + 4, "start"))):
        for position, name in enumerate(names):
            y, share = LINE_STEP * (position + 0.5), float(shares[side][position])
            if not words[side] and share > full / 100:
                box = {"x": x if side else x - text_width(name), "y": y - 9, "width": text_width(name), "height": 18.0}
                svg.append(tag("rect", class_="mark", fill_opacity=f"{0.45 * share / full:.3f}", rx=3, **box))
            kind = "accent" if position in words[side] else "" if not words[side] else "faint"
            svg.append(tag("text", name, class_=kind or None, x=x, y=y + 4.5, text_anchor=anchor))
    return svg


def head_numbers(layers: Sequence[int], heads: Sequence[int], shares: np.ndarray) -> Element:
    """Percentages of shares [layers, heads] as a table: layers down, heads across; a dark cell is the largest."""
    svg, corners = _head_table(layers, heads, CELL, below=2)
    largest = float(shares.max()) or 1.0
    decimals = 0 if largest >= 0.1 else 1
    for (layer, head), share, (x, y) in zip(product(layers, heads), shares.ravel().tolist(), corners, strict=True):
        opacity = max(0.0, share / largest)
        place = {"x": x, "y": y, "width": CELL, "height": CELL_HEIGHT, "fill_opacity": f"{opacity:.3f}"}
        name = translate(f"layer {layer}, head {head}: {share:.3f}")
        svg.append(tag("rect", tag("title", name), class_="mark", **place))
        kind = "on-better" if opacity > 0.55 else None
        text = {"x": x + CELL / 2, "y": y + 16.5, "text_anchor": "middle", "pointer_events": "none"}
        svg.append(tag("text", f"{100 * share:z.{decimals}f}", class_=kind, **text))
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
    svg, corners = _head_table(layers, heads, SIGNED_CELL, below=28)
    largest = float(np.abs(values).max()) or 1.0
    numbers = zip(values.ravel().tolist(), decided.ravel().tolist(), strict=True)
    for (layer, head), (value, is_decided), (x, y) in zip(product(layers, heads), numbers, corners, strict=True):
        size = {"width": SIGNED_CELL - 2, "height": CELL_HEIGHT - 2}
        opacity = f"{0.75 * abs(value) / largest:.3f}"
        hint = tag("title", translate(f"layer {layer}, head {head}: {100 * value:+.2f}%"))
        kind = "fill0" if value > 0 else "fill1"
        svg.append(tag("rect", hint, class_=kind, x=x + 1, y=y + 1, fill_opacity=opacity, **size))
        if is_decided:
            svg.append(tag("rect", class_="box", style="fill: none", x=x + 1, y=y + 1, **size))
        text = {"x": x + SIGNED_CELL / 2, "y": y + 16.5, "text_anchor": "middle", "pointer_events": "none"}
        svg.append(tag("text", f"{100 * value:+.1f}", class_="small", **text))
    legend = translate(f"blue: {positive}; orange: {negative}; border: interval without 0")
    svg.append(tag("text", legend, class_="faint", x=TABLE_LEFT, y=TABLE_TOP + CELL_HEIGHT * len(layers) + 20))
    return svg


def _head_table(
    layers: Sequence[int], heads: Sequence[int], cell: int, *, below: int
) -> tuple[Element, list[tuple[int, int]]]:
    """A table with the names of layers and heads, and room `below`; and the upper left corner (x, y) of each cell."""
    width, height = TABLE_LEFT + cell * len(heads), TABLE_TOP + CELL_HEIGHT * len(layers)
    svg = tag("svg", viewBox=f"0 0 {width} {height + below}", role="img", style=f"max-width: {width}px")
    svg.append(tag("text", translate("heads"), class_="faint", x=TABLE_LEFT - 8, y=16, text_anchor="end"))
    xs = [TABLE_LEFT + cell * column for column in range(len(heads))]
    ys = [TABLE_TOP + CELL_HEIGHT * row for row in range(len(layers))]
    for head, x in zip(heads, xs, strict=True):
        svg.append(tag("text", str(head), class_="faint", x=x + cell / 2, y=16, text_anchor="middle"))
    for layer, y in zip(layers, ys, strict=True):
        name = translate(f"layer {layer}")
        svg.append(tag("text", name, class_="faint", x=TABLE_LEFT - 8, y=y + 16, text_anchor="end"))
    return svg, [(x, y) for y in ys for x in xs]


def _image(source: str, x: float, y: float, width: float, height: float) -> Element:
    place = {"x": x, "y": y, "width": width, "height": height, "preserveAspectRatio": "none"}
    return tag("image", href=source, style="image-rendering: pixelated", **place)

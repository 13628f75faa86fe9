"""Pictures of attention: all heads as a grid of small matrices, one head as a matrix, a number per head."""

import base64
import struct
import zlib
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.charts import GAP, heat_map, text_width
from keel.report.html_page import tag

MAX_CELLS = 48
"""Tokens of a matrix whose cells are elements of their own, with tooltips."""
SMALL_SIDE = 12
"""Side of a cell of a larger matrix, which is one image."""
THUMBNAIL = 64
"""Side of a small matrix of the grid, in pixels."""
THUMBNAIL_GAP = 10
CELL = 34
"""Width of a number in `head_numbers`; its height is `CELL_HEIGHT`."""
CELL_HEIGHT = 24
SHADES = 32
COLOUR = (0x2F, 0x78, 0xA8)
"""Colour of images, which is visible on light and dark paper."""


def intensity(weights: np.ndarray) -> np.ndarray:
    """Square root of weights [..., queries, keys] relative to the largest of each matrix, from 0 to 1."""
    largest = weights.max((-2, -1), keepdims=True)
    return np.sqrt(weights / np.where(largest > 0, largest, 1))


def png_image(values: np.ndarray) -> str:
    """Values [height, width] from 0 to 1 as a data URI of a PNG image: one colour from transparent to opaque."""
    pixels = np.round(values * (SHADES - 1)).astype(np.uint8)
    alphas = bytes(round(255 * shade / (SHADES - 1)) for shade in range(SHADES))
    return palette_image(pixels, bytes(COLOUR) * SHADES, alphas)


def palette_image(pixels: np.ndarray, colours: bytes, alphas: bytes) -> str:
    """Pixels [height, width], indices into colours of three bytes and alphas, as a data URI of a PNG image."""
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], 1)  # each row begins with its filter, none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": colours,
        b"tRNS": alphas,
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


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
        svg.append(tag("text", f"head {head}", class_="faint", x=x, y=18, text_anchor="middle"))
    for row, layer in enumerate(layers):
        y = top + step * row
        svg.append(
            tag("text", f"layer {layer}", class_="faint", x=left - 8, y=y + THUMBNAIL / 2 + 4, text_anchor="end")
        )
        for column in range(len(heads)):
            place = {"x": left + step * column, "y": y, "width": THUMBNAIL, "height": THUMBNAIL}
            picture = _image(thumbnail(weights[row, column]), *place.values())
            edge = tag("rect", class_="box faint", style="fill: none", **place)
            svg.append(tag("g", tag("title", titles[row][column]), picture, edge))
    return svg


def head_numbers(layers: Sequence[int], heads: Sequence[int], shares: np.ndarray) -> Element:
    """Percentages of shares [layers, heads] as a table: layers down, heads across; a dark cell is the largest."""
    left, top = 64, 26
    width, height = left + CELL * len(heads), top + CELL_HEIGHT * len(layers)
    svg = tag("svg", viewBox=f"0 0 {width} {height + 2}", role="img", style=f"max-width: {width}px")
    svg.append(tag("text", "head", class_="faint", x=left - 8, y=16, text_anchor="end"))
    for column, head in enumerate(heads):
        x = left + CELL * (column + 0.5)
        svg.append(tag("text", str(head), class_="faint", x=x, y=16, text_anchor="middle"))
    largest = float(shares.max()) or 1.0
    decimals = 0 if largest >= 0.1 else 1
    for row, layer in enumerate(layers):
        y = top + CELL_HEIGHT * row
        svg.append(tag("text", f"layer {layer}", class_="faint", x=left - 8, y=y + 16, text_anchor="end"))
        for column, head in enumerate(heads):
            share, x = float(shares[row, column]), left + CELL * column
            opacity = max(0.0, share / largest)
            place = {"x": x, "y": y, "width": CELL, "height": CELL_HEIGHT, "fill_opacity": f"{opacity:.3f}"}
            name = f"layer {layer}, head {head}: {share:.3f}"
            svg.append(tag("rect", tag("title", name), class_="mark", **place))
            kind = "on-better" if opacity > 0.55 else None
            text = {"x": x + CELL / 2, "y": y + 16.5, "text_anchor": "middle", "pointer_events": "none"}
            svg.append(tag("text", f"{100 * share:.{decimals}f}", class_=kind, **text))
    return svg


def _image(source: str, x: float, y: float, width: float, height: float) -> Element:
    place = {"x": x, "y": y, "width": width, "height": height, "preserveAspectRatio": "none"}
    return tag("image", href=source, style="image-rendering: pixelated", **place)

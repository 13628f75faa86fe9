"""Pictures of a tensor trace: the overview of all tensors, and the map of a network's parts."""

import base64
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from keel.localization import translate, translated
from keel.report.charts import text_width
from keel.report.html_page import tag
from keel.report.png_images import palette_image

POSITIVE, NEGATIVE, MASKED_COLOUR = (0x2F, 0x78, 0xA8), (0xC9, 0x6A, 0x2B), (0x80, 0x80, 0x80)
"""Colours of values and of minus infinity, which are visible on light and dark paper."""
CARD, CARD_GAP, IMAGE = 180, 14, 84
"""Width of a tensor in the overview, the gap beside it, and the largest height of its picture."""
CARDS = 5
"""Tensors in a row."""
LABEL = 178
"""Width of the names of parts."""
MARGIN = 12
"""Space around the overview."""
MAX_CANDIDATES = 3
BOX, BOX_GAP, BOX_WIDTH = 30, 18, 186
"""Height of a box of the map, the distance to the next one, and its width."""
OUTSIDE = ("encoder output",)
"""Parts with tensors of each layer that are not within the layers of their network."""


class Part(NamedTuple):
    """A part of a network, and whether it is in every layer."""

    name: str
    in_layer: bool

    @property
    def label(self) -> str:
        """Its name without the number that distinguishes parts."""
        return re.sub(r" \d$", "", self.name)


def cells_of(picture: Mapping[str, Any]) -> np.ndarray:
    """[panels, rows, columns] the bytes of a stored picture."""
    shape = picture["panels"], picture["rows"], picture["columns"]
    return np.frombuffer(base64.b64decode(picture["data"]), np.uint8).reshape(shape)


def tensor_image(picture: Mapping[str, Any]) -> tuple[str, int, int]:
    """A stored picture as a data URI of an image with all panels side by side, and its height and width in cells."""
    cells, zero = cells_of(picture), 127 if picture["signed"] else 0
    panels, rows, columns = cells.shape
    across = max(1, min(panels, round((panels * rows / columns) ** 0.5 * (CARD / IMAGE) ** 0.5)))
    down = -(-panels // across)
    whole = np.full((down * (rows + 1) - 1, across * (columns + 1) - 1), zero, np.uint8)
    for number, panel in enumerate(cells):
        top, left = number // across * (rows + 1), number % across * (columns + 1)
        whole[top : top + rows, left : left + columns] = panel
    colours, alphas = bytearray(), bytearray()
    for byte in range(256):
        share = byte / 127 - 1 if picture["signed"] else byte / 254
        is_masked = byte == 255
        colours += bytes(MASKED_COLOUR if is_masked else POSITIVE if share >= 0 else NEGATIVE)
        alphas.append(70 if is_masked else round(255 * min(1.0, abs(share))))
    return palette_image(whole, bytes(colours), bytes(alphas)), *whole.shape


def overview_figure(found: Mapping[str, Any]) -> Element:
    """All tensors of the first layer, and of each step that has other ones than the step before; the other steps as a
    table of what they read and predict."""
    svg = tag("svg", tag("title", f"Tensors of {found['text']} in {found['model']}"))
    width = LABEL + CARDS * (CARD + CARD_GAP)
    svg.append(tag("text", f"{found['model']}: {found['summary']}", class_="heading", x=0, y=18))
    y = 30.0
    before: set[int] = set()
    for number, step in enumerate(found["steps"]):
        tensors = found["tensors"][step["first"] : step["first"] + step["count"]]
        kinds = {tensor["kind"] for tensor in tensors}
        title = step["title"]
        title = f"{number + 1}. {translate(title)}" if found["steps"][1:] else translate(title)
        text = f"{title}: {' '.join(step['read'])}" if step["read"] else title
        y += 22
        svg.append(tag("text", _fitting(text, width), x=0, y=y, class_="accent" if kinds != before else None))
        y += 10
        if kinds != before:
            y = _rows(svg, found, tensors, y)
        if step["predictions"]:
            y = _predictions(svg, step, y, width)
        before = kinds
    height = y + 12
    box = f"{-MARGIN} {-MARGIN} {width + 2 * MARGIN} {height + 2 * MARGIN:.0f}"
    svg.attrib |= {"viewBox": box, "role": "img", "style": f"max-width: {width}px"}
    return svg


def _rows(svg: Element, found: Mapping[str, Any], tensors: Sequence[Mapping[str, Any]], y: float) -> float:
    """Rows of cards, one group per part; returns the lower end."""
    layers = max(tensor["layer"] for tensor in tensors)
    shown = [tensor for tensor in tensors if tensor["layer"] <= 1]
    for (part, layer), group in groupby(shown, key=lambda each: (found["kinds"][each["kind"]]["part"], each["layer"])):
        members = [*group]
        for start in range(0, len(members), CARDS):
            if start == 0:
                svg.append(tag("text", translate(Part(part, bool(layer)).label), x=0, y=y + 26))
                if layer:
                    svg.append(tag("text", f"layer 1 of {layers}", class_="faint small", x=0, y=y + 42))
            lowest = y
            for place, tensor in enumerate(members[start : start + CARDS]):
                x = LABEL + place * (CARD + CARD_GAP)
                card, height = _card(found["kinds"][tensor["kind"]], tensor, x, y + 6)
                svg.append(card)
                lowest = max(lowest, y + 6 + height)
            y = lowest + 14
        svg.append(tag("line", class_="grid", x1=0, x2=LABEL + CARDS * (CARD + CARD_GAP), y1=y - 6, y2=y - 6))
    return y


def _card(kind: Mapping[str, Any], tensor: Mapping[str, Any], x: float, y: float) -> tuple[Element, float]:
    """A tensor, its name, shape and picture, and the height of all."""
    high = 16.0
    sizes = " × ".join(map(str, tensor["shape"]))
    words = (kind["name"], kind["meaning"], *kind["axes"])
    name, meaning, *axes = translated(words)
    card = tag("g", tag("title", f"{name}: {meaning} [{', '.join(axes)}]"))
    card.append(tag("text", _fitting(name, CARD + CARD_GAP), x=x, y=y + 13))
    card.append(tag("text", sizes, class_="faint small", x=x, y=y + 27))
    if "picture" in tensor:
        source, rows, columns = tensor_image(tensor["picture"])
        scale = min(CARD / columns, IMAGE / rows, 12)
        wide, high = (CARD, max(6.0, rows * scale)) if columns > 8 * rows else (columns * scale, rows * scale)
        place = {"x": x, "y": y + 33, "width": float(wide), "height": float(high), "preserveAspectRatio": "none"}
        card.append(tag("rect", class_="box faint", **{name: place[name] for name in ("x", "y", "width", "height")}))
        card.append(tag("image", href=source, style="image-rendering: pixelated", **place))
    else:
        flat = np.array(tensor["values"]).ravel().tolist()
        card.append(tag("text", _fitting(" ".join(map(str, flat)), CARD), class_="small", x=x, y=y + 46))
    return card, 33 + high


def _predictions(svg: Element, step: Mapping[str, Any], y: float, width: float) -> float:
    for name, top in step["predictions"].items():
        best = ", ".join(f"{each['token'].strip() or '␣'} {each['probability']:.2f}" for each in top[:MAX_CANDIDATES])
        cache = f"   KV cache: {step['cached']} + {len(step['read'])} positions" if step["cache_bytes"] else ""
        y += 16
        svg.append(tag("text", _fitting(f"{translate(name)}: {best}{cache}", width), class_="faint", x=0, y=y))
    return y + 4


def _fitting(text: str, width: float) -> str:
    """As much of a text as fits."""
    if text_width(text) <= width:
        return text
    while text and text_width(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def parts_of(found: Mapping[str, Any], network: str) -> list[Part]:
    """The parts of a network in the order of computation."""
    parts: dict[str, Part] = {}
    for step in found["steps"]:
        if step["network"] == network:
            for tensor in found["tensors"][step["first"] : step["first"] + step["count"]]:
                name = found["kinds"][tensor["kind"]]["part"]
                parts.setdefault(name, Part(name, tensor["layer"] > 0 and name not in OUTSIDE))
    return [*parts.values()]


def network_map(parts: Sequence[Part]) -> Element:
    """The parts as boxes from the bottom to the top, with residual connections; each box has the name of its part as
    `data-part`."""
    side, margin = 46, 40
    height = len(parts) * (BOX + BOX_GAP) + 16
    svg = tag("svg", viewBox=f"0 0 {BOX_WIDTH + side + margin} {height}", role="img", id="map")
    svg.append(tag("title", "The parts of the network, from the input at the bottom to the output at the top"))
    left = margin
    middle, right = left + BOX_WIDTH / 2, left + BOX_WIDTH
    tops = {part.name: height - 8.0 - (number + 1) * (BOX + BOX_GAP) + BOX_GAP for number, part in enumerate(parts)}
    inside = [part for part in parts if part.in_layer]
    if inside:
        upper, lower = tops[inside[-1].name] - 9, tops[inside[0].name] + BOX + 9
        area = {"x": left - 10, "y": upper, "width": BOX_WIDTH + side + 6, "height": lower - upper, "rx": 6}
        svg.append(tag("rect", class_="frame", **{name: float(value) for name, value in area.items()}))
    entry: float | None = None  # where the residual connection of the next sum begins
    for number, part in enumerate(parts):
        y = tops[part.name]
        if number:
            svg.append(_arrow([(middle, y + BOX + BOX_GAP), (middle, y + BOX)]))
        if part.in_layer and entry is None:
            entry = y + BOX + BOX_GAP / 2
        if part.label.startswith("add") and entry is not None:
            points = [(middle, entry), (right + 22, entry), (right + 22, y + BOX / 2), (right, y + BOX / 2)]
            svg.append(_arrow(points, strong=True))
            entry = y - BOX_GAP / 2
        if part.name == "cross-attention":
            svg.append(_arrow([(0, y + BOX / 2), (left, y + BOX / 2)]))
            svg.append(tag("text", "K, V", class_="small faint", x=4, y=y + BOX / 2 - 5))
        area = {"x": float(left), "y": y, "width": float(BOX_WIDTH), "height": float(BOX), "rx": 4}
        label = tag("text", translate(part.label), x=float(middle), y=y + BOX / 2 + 4.5, text_anchor="middle")
        svg.append(tag("g", tag("rect", class_="node", **area), label, data_part=part.name, class_="part"))
    return svg


def _arrow(points: Sequence[tuple[float, float]], *, strong: bool = False) -> Element:
    """A line through points with an arrow's head at its end."""
    more = " strong" if strong else ""
    (x1, y1), (x, y) = points[-2:]
    dx, dy = (x > x1) - (x < x1), (y > y1) - (y < y1)
    sides = [(x - 6 * dx + 3 * side * dy, y - 6 * dy + 3 * side * dx) for side in (1, -1)]
    line, tip = (" ".join(f"{a:.1f},{b:.1f}" for a, b in each) for each in (points, [(x, y), *sides]))
    return tag("g", tag("polyline", class_=f"wire{more}", points=line), tag("polygon", class_=f"tip{more}", points=tip))

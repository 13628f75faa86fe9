"""Scatter plot of words as SVG, with labels that do not overlap and arrows between pairs."""

import math
from collections.abc import Sequence
from colorsys import hls_to_rgb
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.charts import FONT, text_width
from keel.report.html_page import tag

EDGE = 24
"""Margin in pixels."""
AREA = 4500
"""Square pixels per word."""
FEWEST = 60
"""Words for which there is always room."""
WITHOUT_LABELS = 150
"""Words whose room a map without labels takes."""
RATIO = 2.0
"""Width to height, as on a projector below the title of a page."""
RINGS = (7, 15, 26, 40, 60, 90)
"""Distances of a label from its point; beyond the first, a line connects them."""
MANY = 1_500
"""Points above which they are small and have no tooltips, and labels may cover them."""
MAX_LABELS = 300
"""Words that are tried then, the most frequent ones."""
TURNS = tuple(math.radians(turn) for turn in (0, 180, 90, 270, 30, 150, 210, 330, 60, 120, 240, 300))


def draw_map(
    words: Sequence[str],
    points: np.ndarray,
    arrows: Sequence[tuple[int, int]] = (),
    *,
    groups: np.ndarray | None = None,
    group_names: Sequence[str] = (),
    labelled: bool = True,
) -> tuple[Element, int]:
    """Picture of words at points [n, 2], and the number of labels that did not fit: words are labelled in order, after
    the names of their `groups`, which are coloured; texts have tooltips only (`labelled` false)."""
    many = len(words) > MANY
    room = min(max(len(words), FEWEST), MANY) if labelled else WITHOUT_LABELS
    height = math.sqrt(AREA * room / RATIO)
    width = RATIO * height
    low, high = points.min(0), points.max(0)
    spread = np.where(high > low, high - low, 1.0)
    # One scale for both axes, so that equal arrows stay equal.
    scale = ((width - 2 * EDGE - 60) / spread[0], (height - 2 * EDGE) / spread[1])
    middle = (low + high) / 2
    placed = (points - middle) * [1, -1] * min(scale) + [width / 2, height / 2]
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {height:.0f}", role="img")
    taken = [placed[:0] if many or not labelled else placed]  # [n, 2] centres of small boxes that no label may overlap
    for start, end in arrows:
        _arrow(svg, placed[start], placed[end])
        steps = int(np.hypot(*(placed[end] - placed[start])) / 6) + 2
        taken.append(np.linspace(placed[start], placed[end], steps))
    highlighted = {number for arrow in arrows for number in arrow}
    for number, (x, y) in enumerate(placed.tolist()):
        kind = "point mark" if number in highlighted else "point"
        style = None if groups is None or number in highlighted else f"fill: {group_colour(int(groups[number]))}"
        titles = [] if many else [tag("title", words[number])]
        svg.append(tag("circle", *titles, class_=kind, style=style, cx=x, cy=y, r=1.2 if many else 3))
    middles = np.concatenate(taken)
    boxes = np.hstack([middles - 4, middles + 4])  # [boxes, 4] left, top, right, bottom
    for number, name in enumerate(group_names):
        assert groups is not None
        box, _ = place_label(name, np.median(placed[groups == number], 0), boxes[len(middles) :], width, height) or (
            None,
            False,
        )
        if box is not None:
            boxes = np.vstack([boxes, box])
            svg.append(tag("text", name, class_="halo", font_weight=600, x=box[0], y=box[3] - 4))
    if not labelled:
        return svg, 0
    without = 0
    order = sorted(range(len(words)), key=lambda number: number not in highlighted)
    for number in order[: MAX_LABELS if many else None]:
        label = place_label(words[number], placed[number], boxes, width, height)
        if label is None:
            without += 1
            continue
        box, led = label
        boxes = np.vstack([boxes, box])
        if led and not many:
            x, y = placed[number]
            right, below = np.clip([x, y], [box[0], box[1] + 3], [box[2], box[3] - 3])
            svg.append(tag("line", class_="leader", x1=x, y1=y, x2=right, y2=below))
        svg.append(tag("text", words[number], class_="halo" if many else None, x=box[0], y=box[3] - 4))
    return svg, without + max(0, len(words) - MAX_LABELS if many else 0)


def group_colour(number: int) -> str:
    """A colour of its own for each group, visible on light and dark paper: hues by the golden angle."""
    hue = (205 + 137.508 * number) % 360 / 360
    return "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue, 0.48, 0.55))


def place_label(
    word: str, point: np.ndarray, taken: np.ndarray, width: float, height: float
) -> tuple[np.ndarray, bool] | None:
    """Box of the nearest label position without overlap, and whether it needs a line."""
    half = np.array([text_width(word) / 2, FONT / 2 + 2])
    for ring in RINGS:
        for turn in TURNS:
            direction = np.array([math.cos(turn), -math.sin(turn)])
            middle = point + direction * (ring + half * [1, 0.8])
            box = np.concatenate([middle - half, middle + half])
            if box[0] < 0 or box[1] < 0 or box[2] > width or box[3] > height:
                continue
            separate = (
                (taken[:, 0] >= box[2]) | (taken[:, 2] <= box[0]) | (taken[:, 1] >= box[3]) | (taken[:, 3] <= box[1])
            )
            if separate.all():
                return box, ring != RINGS[0]
    return None


def _arrow(svg: Element, start: np.ndarray, end: np.ndarray) -> None:
    """Arrow from one point to another."""
    length = float(np.hypot(*(end - start)))
    if length < 12:
        return
    along = (end - start) / length
    across = np.array([-along[1], along[0]])
    tip, tail = end - 5 * along, start + 5 * along
    head = [tip, tip - 9 * along + 3.5 * across, tip - 9 * along - 3.5 * across]
    svg.append(tag("line", class_="arrow", x1=tail[0], y1=tail[1], x2=tip[0], y2=tip[1]))
    svg.append(tag("polygon", class_="mark", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in head)))

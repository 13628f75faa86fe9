"""A map of words as SVG: a point for each, labels that do not overlap, arrows between those that belong together."""

import math
import unicodedata
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.html_page import tag

FONT = 13
EDGE = 24
"""Pixels around the points."""
ROOM = 4500
"""Square pixels for each word; no map is smaller than one of 60 words."""
RINGS = (7, 15, 26, 40, 60, 90)
"""How far from its point a label may stand; beyond the first a line leads to it."""
TURNS = tuple(math.radians(turn) for turn in (0, 180, 90, 270, 30, 150, 210, 330, 60, 120, 240, 300))


def draw_map(words: Sequence[str], points: np.ndarray, arrows: Sequence[tuple[int, int]] = ()) -> tuple[Element, int]:
    """The picture of words at points [n, 2], the first ones labelled first, and how many labels found no room."""
    height = math.sqrt(ROOM * max(len(words), 60) / 1.5)
    width = 1.5 * height
    low, high = points.min(0), points.max(0)
    spread = np.where(high > low, high - low, 1.0)
    # One scale for both axes, or equal arrows would no longer be equal.
    scale = ((width - 2 * EDGE - 60) / spread[0], (height - 2 * EDGE) / spread[1])
    middle = (low + high) / 2
    placed = (points - middle) * [1, -1] * min(scale) + [width / 2, height / 2]
    svg = tag("svg", viewBox=f"0 0 {width:.0f} {height:.0f}", role="img")
    taken = [placed]  # [n, 2] the middles of small boxes that no label may touch
    for start, end in arrows:
        _arrow(svg, placed[start], placed[end])
        steps = int(np.hypot(*(placed[end] - placed[start])) / 6) + 2
        taken.append(np.linspace(placed[start], placed[end], steps))
    marked = {number for arrow in arrows for number in arrow}
    for number, (x, y) in enumerate(placed.tolist()):
        kind = "point mark" if number in marked else "point"
        svg.append(tag("circle", tag("title", words[number]), class_=kind, cx=f"{x:.1f}", cy=f"{y:.1f}", r=3))
    middles = np.concatenate(taken)
    boxes = np.hstack([middles - 4, middles + 4])  # [boxes, 4] left, top, right, bottom
    without = 0
    for number in sorted(range(len(words)), key=lambda number: number not in marked):
        label = _label(words[number], placed[number], boxes, width, height)
        if label is None:
            without += 1
            continue
        box, led = label
        boxes = np.vstack([boxes, box])
        if led:
            x, y = placed[number]
            right, below = np.clip([x, y], [box[0], box[1] + 3], [box[2], box[3] - 3])
            ends = {"x1": f"{x:.1f}", "y1": f"{y:.1f}", "x2": f"{right:.1f}", "y2": f"{below:.1f}"}
            svg.append(tag("line", class_="leader", **ends))
        svg.append(tag("text", words[number], x=f"{box[0]:.1f}", y=f"{box[3] - 4:.1f}"))
    return svg, without


def _label(
    word: str, point: np.ndarray, taken: np.ndarray, width: float, height: float
) -> tuple[np.ndarray, bool] | None:
    """The box of a label that touches nothing, as near as possible, and whether a line must lead to it."""
    half = np.array([text_width(word) / 2, FONT / 2 + 2])
    for ring in RINGS:
        for turn in TURNS:
            direction = np.array([math.cos(turn), -math.sin(turn)])
            middle = point + direction * (ring + half * [1, 0.8])
            box = np.concatenate([middle - half, middle + half])
            if box[0] < 0 or box[1] < 0 or box[2] > width or box[3] > height:
                continue
            apart = (
                (taken[:, 0] >= box[2]) | (taken[:, 2] <= box[0]) | (taken[:, 1] >= box[3]) | (taken[:, 3] <= box[1])
            )
            if apart.all():
                return box, ring != RINGS[0]
    return None


def text_width(word: str) -> float:
    """About how wide a word is, in pixels."""
    return FONT * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.6 for letter in word)


def _arrow(svg: Element, start: np.ndarray, end: np.ndarray) -> None:
    """A line from one point to the other, with a head."""
    length = float(np.hypot(*(end - start)))
    if length < 12:
        return
    along = (end - start) / length
    across = np.array([-along[1], along[0]])
    tip, tail = end - 5 * along, start + 5 * along
    head = [tip, tip - 9 * along + 3.5 * across, tip - 9 * along - 3.5 * across]
    ends = {"x1": f"{tail[0]:.1f}", "y1": f"{tail[1]:.1f}", "x2": f"{tip[0]:.1f}", "y2": f"{tip[1]:.1f}"}
    svg.append(tag("line", class_="arrow", **ends))
    svg.append(tag("polygon", class_="mark", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in head)))

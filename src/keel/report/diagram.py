"""Diagrams as SVG: boxes, arrows and labels on a canvas that grows with them; the style sheet sets the colours."""

import math
import re
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

from keel.report.charts import FONT, text_width
from keel.report.html_page import append_text, tag

SMALL, HEADING = 11, 15
"""Font sizes in pixels, beside FONT."""
SIZES = {"": FONT, "small": SMALL, "heading": HEADING}
"""Font sizes by the class of a text."""
MARGIN = 16
"""Pixels around a diagram."""
PADDING = 10
"""Pixels on both sides of a text in its box."""
LINE = 1.35
"""Distance of two lines of text / font size."""
TIP = 7.0
"""Length of an arrow's head."""
SUBSCRIPT = re.compile("\ue000(.*?)\ue001")
"""A subscript between characters that no text has."""

Anchor = Literal["start", "middle", "end"]
TextSize = Literal["", "small", "heading"]
Point = tuple[float, float]


@dataclass(frozen=True)
class Area:
    """A rectangle, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def x(self) -> float:
        """The middle across."""
        return self.left + self.width / 2

    @property
    def y(self) -> float:
        """The middle downwards."""
        return self.top + self.height / 2

    @property
    def above(self) -> Point:
        """The middle of the upper side."""
        return self.x, self.top

    @property
    def below(self) -> Point:
        """The middle of the lower side."""
        return self.x, self.bottom

    @property
    def before(self) -> Point:
        """The middle of the left side."""
        return self.left, self.y

    @property
    def after(self) -> Point:
        """The middle of the right side."""
        return self.right, self.y


def sub(base: str, index: str | int) -> str:
    """A symbol with a subscript, for labels."""
    return f"{base}\ue000{index}\ue001"


def label_width(text: str, size: TextSize = "") -> float:
    """Approximate width of a text in pixels."""
    return text_width(SUBSCRIPT.sub(r"\1", text)) * SIZES[size] / FONT


def fitted_width(*texts: str, size: TextSize = "", least: float = 0.0) -> float:
    """Width of a box in which each of these texts fits."""
    return max([least, *(label_width(text, size) + 2 * PADDING for text in texts)])


def centered(x: float, y: float, width: float, height: float) -> Area:
    """The rectangle around a point."""
    return Area(x - width / 2, y - height / 2, width, height)


class Diagram:
    """A drawing to which every method adds; frames are behind arrows, and arrows behind boxes and labels."""

    def __init__(self) -> None:
        self._frames, self._wires, self._boxes, self._labels = (tag("g") for _ in range(4))
        self._left = self._top = math.inf
        self._right = self._bottom = -math.inf

    def frame(self, area: Area, *, dashed: bool = False) -> Area:
        """A thin rectangle around a group."""
        return self._rectangle(self._frames, area, "frame dashed" if dashed else "frame", 8)

    def box(
        self,
        area: Area,
        *lines: str,
        kind: str = "node",
        size: TextSize = "",
        note: str = "",
        opaque: bool = True,
    ) -> Area:
        """A box with lines of text in its middle; `note` is a further line in small type."""
        if opaque:
            self._rectangle(self._boxes, area, "backing", 4)
        self._rectangle(self._boxes, area, kind, 4)
        texts: list[tuple[str, TextSize, str]] = [(line, size, "") for line in lines]
        if note:
            texts.append((note, "small", "faint"))
        heights = [SIZES[each] * LINE for _, each, _ in texts]
        y = area.y - sum(heights) / 2
        for (text, each, colour), height in zip(texts, heights, strict=True):
            self.label(text, area.x, y + height / 2, size=each, colour=colour)
            y += height
        return area

    def cells(self, area: Area, rows: int, columns: int, *, kind: str = "cell") -> Area:
        """A grid of equal cells: a vector or a matrix."""
        width, height = area.width / columns, area.height / rows
        for row in range(rows):
            for column in range(columns):
                cell = Area(area.left + column * width, area.top + row * height, width, height)
                self._rectangle(self._boxes, cell, kind, 0)
        return area

    def dot(self, x: float, y: float, *, kind: str = "node", radius: float = 5.0) -> Area:
        """A filled circle; arrows end behind it."""
        self._boxes.append(tag("circle", class_="backing", cx=float(x), cy=float(y), r=radius))
        self._boxes.append(tag("circle", class_=kind, cx=float(x), cy=float(y), r=radius))
        return self._grow(centered(x, y, 2 * radius, 2 * radius))

    def sum(self, x: float, y: float, sign: str = "+") -> Area:
        """A circle with the sign of an operation."""
        area = self.dot(x, y, kind="node", radius=9.0)
        self.label(sign, x, y)
        return area

    def arrow(self, *points: Point, kind: str = "wire", tip: bool = True) -> None:
        """A line through points, with an arrow's head at its end."""
        for x, y in points:
            self._grow(centered(x, y, 0, 0))
        *_, before, end = points
        path = [*points[:-1], self._tip(before, end, kind) if tip else end]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        self._wires.append(tag("polyline", class_=kind, points=line))

    def curve(self, start: Point, first: Point, second: Point, end: Point, *, kind: str = "wire") -> None:
        """A cubic Bezier curve with an arrow's head, by its two control points."""
        for x, y in (start, first, second, end):
            self._grow(centered(x, y, 0, 0))
        stop = self._tip(second, end, kind)
        path = "M {:.1f} {:.1f} C {:.1f} {:.1f}, {:.1f} {:.1f}, {:.1f} {:.1f}".format(*start, *first, *second, *stop)
        self._wires.append(tag("path", class_=kind, d=path))

    def label(
        self, text: str, x: float, y: float, *, anchor: Anchor = "middle", size: TextSize = "", colour: str = ""
    ) -> Area:
        """A line of text whose middle is at height `y`; a subscript is written by `sub`."""
        pixels = SIZES[size]
        kinds = " ".join(each for each in (size, colour) if each)
        element = tag("text", class_=kinds or None, x=float(x), y=y + 0.35 * pixels, text_anchor=anchor)
        for number, part in enumerate(SUBSCRIPT.split(text)):
            if number == 0:
                append_text(element, part)
            elif part:  # subscripts are the parts with odd numbers
                shift = "subscript" if number % 2 else None
                element.append(tag("tspan", part, class_=shift, dy=0.25 * pixels * (1 if number % 2 else -1)))
        self._labels.append(element)
        width = label_width(text, size)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        return self._grow(Area(left, y - pixels / 2, width, pixels))

    def picture(self, title: str) -> Element:
        """The SVG element."""
        left, top = self._left - MARGIN, self._top - MARGIN
        width, height = self._right + MARGIN - left, self._bottom + MARGIN - top
        return tag(
            "svg",
            tag("title", title),
            *(self._frames, self._wires, self._boxes, self._labels),
            viewBox=f"{left:.0f} {top:.0f} {width:.0f} {height:.0f}",
            width=f"{width:.0f}",
            height=f"{height:.0f}",
            role="img",
            style=f"max-width: {width:.0f}px",
        )

    def _rectangle(self, group: Element, area: Area, kind: str, radius: int) -> Area:
        shape = {"x": float(area.left), "y": float(area.top), "rx": radius}
        group.append(tag("rect", class_=kind, width=float(area.width), height=float(area.height), **shape))
        return self._grow(area)

    def _tip(self, before: Point, end: Point, kind: str) -> Point:
        """Add the head of an arrow; returns where its line ends."""
        length = math.dist(before, end) or 1.0
        along = (end[0] - before[0]) / length, (end[1] - before[1]) / length
        base = end[0] - TIP * along[0], end[1] - TIP * along[1]
        side = -along[1] * TIP * 0.42, along[0] * TIP * 0.42
        corners = [end, (base[0] + side[0], base[1] + side[1]), (base[0] - side[0], base[1] - side[1])]
        kinds = kind.replace("wire", "tip")
        self._wires.append(tag("polygon", class_=kinds, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)))
        return base

    def _grow(self, area: Area) -> Area:
        self._left, self._top = min(self._left, area.left), min(self._top, area.top)
        self._right, self._bottom = max(self._right, area.right), max(self._bottom, area.bottom)
        return area

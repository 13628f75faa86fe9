"""Page of a map of many words or texts, which pans, zooms and searches."""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from keel.errors import KeelError
from keel.report.html_page import Page, page_asset, tag
from keel.text_table import cut_characters

MAX_BYTES = 4_000_000
"""Bytes of words or texts in a page, compressed and as base64; all else takes less than one million."""
LENGTHS = (2_000, 500, 300, 200, 140, 100, 70, 50, 30, 20)
"""Characters at which texts are cut: the first that fits is chosen."""
STEPS = 65_535
"""Positions are stored as numbers from 0 to this one."""
BUTTONS = {"in": "+", "out": "−", "reset": "Reset", "png": "PNG"}


@dataclass(frozen=True, kw_only=True, eq=False)
class PointMap:
    """Words or texts at points of a plane, and their clusters."""

    names: Sequence[str]
    """Words, the most frequent first, or texts."""
    points: np.ndarray  # [names, 2]
    unit: Literal["word", "text"] = "word"
    groups: np.ndarray | None = None  # [names] index of each cluster
    clusters: Sequence[str] = field(default=())
    """Names of the clusters."""


def pack_points(points: np.ndarray) -> np.ndarray:
    """Points [n, 2] as 16-bit positions with the origin at the lower left; the longer side of the map is 65,535."""
    low = points.min(0)
    size = float((points.max(0) - low).max()) or 1.0
    return np.round((points - low) * (STEPS / size)).astype("<u2")


def encode_bytes(values: np.ndarray) -> str:
    """The bytes of an array as base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def point_map_page(title: str, caption: str, shown: PointMap) -> Page:
    """Build the page, below 5 MB; longer texts are cut until they fit."""
    page = Page(title, layout="fit", style=page_asset("points.css"))
    packed, clusters = pack_points(shown.points), list(shown.clusters)
    names, length = _store_names(shown.names)
    cut = f" Texts are cut after {length:,} characters." if any(len(name) > length for name in shown.names) else ""
    stored = f"{caption}{cut} The page stores positions with 16 bits, exact to 1/65,536 of the map's longer side."
    search = f"Search a {shown.unit}"
    rows = [
        tag("li", tag("button", tag("i"), name, type="button", data_cluster=number, aria_pressed="false"))
        for number, name in enumerate(clusters)
    ]
    legend = [tag("ul", *rows, aria_label="Clusters")] if rows else []
    aside = tag(
        "aside",
        tag("input", id="search", type="search", placeholder=search, aria_label=search, autocomplete="off"),
        tag("ol", id="results", aria_label="Found"),
        tag("p", id="read", aria_live="polite"),
        *legend,
        tag("details", tag("summary", f"{shown.unit.capitalize()}s in view"), tag("ol", id="words"), id="listed"),
    )
    canvas = tag("canvas", id="points", role="img", aria_label=caption)
    page.add(tag("div", tag("div", canvas, id="stage", tabindex="0"), aside, class_="map"))
    page.add(tag("figcaption", stored))
    page.script(page_asset("points.js"), **BUTTONS)
    facts = {
        "unit": shown.unit,
        "width": int(packed[:, 0].max()),
        "height": int(packed[:, 1].max()),
        "points": _compressed(packed.tobytes()),
        "names": names,
        "groups": None if shown.groups is None else _compressed(shown.groups.astype(np.uint8).tobytes()),
        "clusters": clusters,
    }
    page.data("facts", json.dumps(facts).replace("<", "\\u003c"))
    return page


def _store_names(names: Sequence[str]) -> tuple[str, int]:
    """The names, one per line, compressed as base64, and the length at which they are cut."""
    lines = [" ".join(name.split()) or "␣" for name in names]
    for length in LENGTHS:
        text = "\n".join(cut_characters(line, length) for line in lines)
        stored = _compressed(text.encode("utf-8", "replace"))
        if len(stored) <= MAX_BYTES:
            return stored, length
    raise KeelError(f"{len(names):,} texts do not fit a page of 5 MB: show fewer, or write an .svg file")


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()

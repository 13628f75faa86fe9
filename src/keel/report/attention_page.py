"""Page of attention weights: choose a head, hover over a token or a cell; the weights are in the page with 8 bits."""

import base64
import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from keel.errors import KeelError
from keel.localization import translate
from keel.report.attention_charts import thumbnail
from keel.report.html_page import Page, page_asset, tag

MAX_BYTES = 4_000_000
"""Bytes of the weights in a page, as base64; all else takes less than one million."""
MAX_BESIDE = 24
"""Tokens up to which the matrix is beside the heads, not below them."""
STEPS = 255
ATTEMPTS = ((2, 1.0), (1, 1.0), *((1, 0.7**count) for count in range(2, 16)))
"""Power of the coding and share of the weights that are stored, the largest ones: the first that fits is chosen. Square
roots distinguish small weights better, but compress less well."""
LARGER = 1.3
"""Ratio of the expected size to the budget above which compression is not tried: zlib may beat the entropy."""


class StoredHead(NamedTuple):
    """Weights of a head as bytes: the integer nearest to 255 x (w / largest)^(1 / power), 0 below a threshold."""

    largest: float
    power: int
    threshold: float
    """Smaller weights are not stored."""
    text: str
    """Compressed, as base64."""

    @property
    def error(self) -> float:
        """The largest difference of a stored weight to the exact one."""
        return self.largest * (1 - (1 - 0.5 / STEPS) ** self.power)


def store_head(weights: np.ndarray, budget: float, first: int = 0) -> tuple[StoredHead, int]:
    """Store weights [queries, keys] in at most `budget` bytes, else as few as possible, and the index of the attempt;
    attempts before `first` are left out."""
    largest = float(weights.max()) or 1.0
    shares = weights / largest
    for number in range(first, len(ATTEMPTS)):
        power, kept = ATTEMPTS[number]
        coded = np.round(STEPS * (np.sqrt(shares) if power == 2 else shares)).astype(np.uint8)
        counts = np.bincount(coded.ravel(), minlength=STEPS + 1)
        larger = np.cumsum(counts[::-1])[::-1]  # cells with this byte or a larger one
        least = max(1, min(STEPS, int((larger > kept * coded.size).sum())))
        spread = np.append(coded.size - larger[least], counts[least:]) / coded.size
        bits = -float((spread[spread > 0] * np.log2(spread[spread > 0])).sum())
        is_last = number == len(ATTEMPTS) - 1
        if coded.size * bits / 6 > LARGER * budget and not is_last:  # six bits per character
            continue
        coded[coded < least] = 0
        text = base64.b64encode(zlib.compress(coded.tobytes(), 6)).decode()
        if len(text) <= budget or is_last:
            return StoredHead(largest, power, largest * ((least - 0.5) / STEPS) ** power, text), number
    raise AssertionError("the last attempt returns")


class HeadWeights(NamedTuple):
    """Attention weights with their names."""

    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]
    weights: np.ndarray  # [layers, heads, queries, keys]
    titles: Sequence[Sequence[str]]  # [layers, heads]
    cross: bool
    """Whether queries and keys are of two texts."""


def attention_page(title: str, lead: str, view: HeadWeights, figures: Sequence[tuple[str, Element, str]]) -> Page:
    """Build the page; `figures` are further ones, each with the title of its section and a caption."""
    stored = _store_heads(view.weights)
    page = Page(title, lead, layout="broad", style=page_asset("attention.css"))
    threshold = max(each.threshold for each in stored)
    coarse = any(each.threshold > each.error for each in stored)
    left_out = f", and leaves out weights below {threshold:.2g} where a head has many of them" if coarse else ""
    page.text(
        "Choose a head; then hover over a token to see what it attends to, and click to keep it. The page stores the "
        f"weights with 8 bits, exact to {max(each.error for each in stored):.2g}{left_out}; Python and --json give the "
        "exact ones."
    )
    caption = "Each row is a token that attends, each column one that is attended to; colours show square roots."
    plot = tag("figure", tag("div", tag("canvas", id="matrix"), id="plot"), tag("figcaption", caption))
    is_small = max(len(view.queries), len(view.keys)) <= MAX_BESIDE
    sides: list[Element] = [_head_view(view)]
    if is_small:
        sides[0].append(plot)
    if len(stored) > 1:
        explained = (
            "Layers down, heads across; rows attend to columns. The strongest colour is the head's largest weight."
        )
        sides.insert(0, tag("div", _head_buttons(view), tag("p", explained, class_="quiet")))
    page.add(tag("div", *sides, class_="sides"))
    if not is_small:
        page.add(plot)
    for name, picture, caption in figures:
        page.section(name)
        page.figure(picture, caption)
    weights = [[each.largest, each.power, each.threshold, each.error, each.text] for each in stored]
    facts = {"layers": [*view.layers], "heads": [*view.heads], "cross": view.cross, "weights": weights}
    page.phrases(
        attends="{token} attends to: {list}",
        attended="{token} is attended to by: {list}",
        head="Layer {layer}, head {head}",
        precision="Largest weight of this head: {largest}, exact to {error}.",
        cut="Largest weight of this head: {largest}, exact to {error}; those below {threshold} are not stored.",
        old="This browser is too old to show the weights.",
    )
    page.script(page_asset("attention.js"))
    page.data("weights", json.dumps(facts))
    return page


def _store_heads(weights: np.ndarray) -> list[StoredHead]:
    """The stored weights of each head; those that need few bytes leave more to the others."""
    heads = weights.reshape(-1, *weights.shape[-2:])
    found: list[StoredHead] = []
    left, attempt = MAX_BYTES, 0
    for number, head in enumerate(heads):
        stored, attempt = store_head(head, left / (len(heads) - number), max(0, attempt - 1))
        found.append(stored)
        left -= len(stored.text)
    if left < 0:
        what = f"{len(heads):,} heads of {' x '.join(map(str, heads.shape[1:]))} weights do not fit a page of 5 MB"
        raise KeelError(f"{what}: choose some with --layer or --head")
    return found


def _head_view(view: HeadWeights) -> Element:
    """The texts of one head, which the script colours; they are there without it, too."""
    directions = ("from", "Attention from the token"), ("to", "Attention to the token")
    buttons = (tag("button", label, type="button", data_direction=name) for name, label in directions)
    parts = [
        tag("h2", translate(f"Layer {view.layers[0]}, head {view.heads[0]}"), id="chosen"),
        tag("p", *buttons, class_="choices"),
        tag("p", "", id="read", aria_live="polite"),
    ]
    texts = [("queries", "Target: the tokens that attend", view.queries), ("keys", "Source", view.keys)]
    for name, label, tokens in texts if view.cross else texts[:1]:
        spans = [tag("span", token or " ") for token in tokens]
        for span in spans:
            span.tail = " "
        parts += [tag("p", label, class_="quiet")] if view.cross else []
        parts.append(tag("p", *spans, id=name, class_="tokens", tabindex="0"))
    return tag("div", *parts, tag("p", "", id="precision", class_="quiet"))


def _head_buttons(view: HeadWeights) -> Element:
    """A table of buttons with small pictures, one per head."""
    columns = (tag("th", str(head), scope="col") for head in view.heads)
    rows = [tag("tr", tag("th", translate("heads"), scope="col"), *columns)]
    number = 0
    for layer, line, titles in zip(view.layers, view.weights, view.titles, strict=True):
        cells: list[Element] = [tag("th", translate(f"layer {layer}"), scope="row")]
        for matrix, title in zip(line, titles, strict=True):
            picture = tag("img", src=thumbnail(matrix), alt=title)
            button = tag("button", picture, type="button", title=title, data_head=number)
            cells.append(tag("td", button))
            number += 1
        rows.append(tag("tr", *cells))
    return tag("table", *rows, class_="heads")

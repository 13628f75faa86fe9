"""How a text was written, as a page for a class: the tree of hypotheses, the candidates of each step, where the writer
looked, and what it computed."""

from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.heatmap import draw_grid
from keel.report.html_page import Page, tag
from keel.report.scatter_map import text_width

BOX, GAP, ROW = 24, 26, 32
"""Pixels: the height of a word's box, the room between columns, and from one row of boxes to the next."""
FEW = 5
SHOWN = 40
"""Steps in one picture of the tree."""


def decoding_page(found: dict[str, Any]) -> Page:
    """The page of what `explain.decoding` gives."""
    title = {"beam search": "Beam search", "drawing": "Words drawn one by one"}.get(found["by"], "The likeliest word")
    page = Page(f"{title}: how a text was written", _lead(found), broad=True)
    _questions(page, found)
    for number, text in enumerate(found["texts"], 1):
        _text(page, found, text, f" {number}" if len(found["texts"]) > 1 else "")
    _cache(page, found["steps"])
    return page


def _lead(found: dict[str, Any]) -> str:
    if found["by"] == "beam search":
        how = found["how"]
        return (
            f"At each step {how['beams']} hypotheses are open. Each is made longer by every word there is; of all "
            f"these the {how['beams']} likeliest go on. The score of a text of n words is its log p / ((5 + n) / 6)^"
            f"{how['length_penalty']:g}."
        )
    settings = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in found["how"].items())
    return f"At each step every word has a probability, and one word is chosen ({settings})."


def _questions(page: Page, found: dict[str, Any]) -> None:
    """What readers ask about decoding, answered by this very text."""
    texts = [text for text in found["texts"] if text["path"]]
    page.section("What is fed into the next step?")
    if not texts:
        page.text("Nothing was written.")
        return
    nodes, path = texts[0]["hypotheses"], texts[0]["path"]
    first = nodes[path[0]]
    page.text(
        "A definite word, never a distribution. The network gives a probability for every word; one is taken, here ",
        tag("mark", _shown(first["word"])),
        f" with {first['chance']:.2%}, and only its number is read in the next step. All the words of a text are known "
        "in training, so that all places are computed at once; here each must wait for the word before it.",
    )
    if found["by"] == "beam search":
        other = [(node, _likeliest(nodes, node)) for node in (nodes[place] for place in path)]
        differ = [(node, best) for node, best in other if best is not node]
        page.text(
            "The beam's words, not the arg-max: every open hypothesis is fed with its own last word. The best answer "
            f"has {len(path)} words (its end counted), and {len(differ)} of them "
            + ("is" if len(differ) == 1 else "are")
            + " not the likeliest word after those before"
            + (f": at word {differ[0][0]['step']} " if differ else "."),
            *(
                (
                    tag("mark", _shown(differ[0][0]["word"])),
                    f" ({differ[0][0]['chance']:.2%}) was kept beside {_shown(differ[0][1]['word'])} "
                    f"({differ[0][1]['chance']:.2%}), and won in the end.",
                )
                if differ
                else ()
            ),
        )
    elif found["by"] == "drawing":
        drawn = sum(nodes[place] is not _likeliest(nodes, nodes[place]) for place in path)
        page.text(f"Of the {len(path)} words here {drawn} are not the likeliest of their step: they were drawn.")
    if len(found["texts"]) > 1:
        rows = [step["rows"] for step in found["steps"]]
        sizes = " and ".join(str(len(text["path"])) for text in found["texts"][:8])
        page.text(
            f"Texts of unequal length are written in one batch: the answers here have {sizes} words. "
            f"One that is done leaves the batch, whose rows were {_joined(rows)}; prompts of one length are read "
            "together, so that none is padded.",
        )


def _likeliest(nodes: list[dict[str, Any]], node: dict[str, Any]) -> dict[str, Any]:
    """Of those that were considered after the same words, the likeliest."""
    return max((each for each in nodes if each["parent"] == node["parent"]), key=lambda each: each["log_probability"])


def _joined(rows: list[int]) -> str:
    shown = [str(count) for number, count in enumerate(rows) if number == 0 or count != rows[number - 1]]
    return ", then ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def _text(page: Page, found: dict[str, Any], text: dict[str, Any], number: str) -> None:
    page.section(f"Text{number}")
    if text["source"]:
        page.text("Written from: ", tag("mark", " ".join(text["source"])))
    if text["prompt"]:
        page.text("Goes on from: ", tag("mark", "".join(text["prompt"]) if _spaced(text) else " ".join(text["prompt"])))
    if found["by"] == "beam search":
        rows = [(each["text"], f"{each['score']:.3f}", f"{each['log_probability']:.3f}") for each in text["answers"]]
        page.table(("answer", "score", "log p"), rows)
    else:
        page.text("Written: ", tag("mark", text["answers"][0]["text"]))
    nodes = text["hypotheses"]
    if found["by"] == "beam search":
        shown = [number for number, node in enumerate(nodes) if node["fate"] != "dropped"]
        caption = (
            "The hypotheses that were kept, one column for each step, the likeliest on top; the share is the word's "
            "probability. Blue: the best answer's way. A double frame: it ended there. Pale: kept for a while, and "
            "then without any successor among the best."
        )
    else:
        shown = _likely(nodes, set(text["path"]))
        caption = f"The {FEW} likeliest words of each step with their probabilities. Blue: the one that was taken."
    page.figure(_tree(nodes, shown, set(text["path"])), caption)
    _steps(page, text)
    for name in dict.fromkeys(name for place in text["path"] for name in nodes[place]["looked"]):
        _attention(page, text, name)


def _spaced(text: dict[str, Any]) -> bool:
    return any(word[:1].isspace() for word in text["prompt"])


def _likely(nodes: list[dict[str, Any]], path: set[int]) -> list[int]:
    """Of each step the likeliest few, and the one that was taken."""
    steps: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        steps.setdefault(node["step"], []).append(number)
    ordered = (sorted(numbers, key=lambda number: -nodes[number]["chance"]) for numbers in steps.values())
    return [number for step in ordered for rank, number in enumerate(step) if rank < FEW or number in path]


def _tree(nodes: list[dict[str, Any]], shown: list[int], path: set[int]) -> Element:
    """Boxes with words, from left to right, and lines from each to those that go on from it."""
    alive = [number for number in shown if nodes[number]["step"] <= SHOWN]
    columns: dict[int, list[int]] = {}
    for number in alive:
        columns.setdefault(nodes[number]["step"], []).append(number)
    places: dict[int, tuple[float, float, float]] = {}
    left = 4.0
    for step in sorted(columns):
        ordered = sorted(columns[step], key=lambda number: -nodes[number]["log_probability"])
        width = max(text_width(_label(nodes[number])) for number in ordered) + 16
        for row, number in enumerate(ordered):
            places[number] = (left, 22 + row * ROW, width)
        left += width + GAP
    height = 22 + ROW * max(map(len, columns.values()), default=1)
    parents = {nodes[number]["parent"] for number in alive}
    last = max(columns, default=0)
    svg = tag("svg", viewBox=f"0 0 {left:.0f} {height}", role="img", style=f"width: {left:.0f}px")
    for step, numbers in columns.items():
        svg.append(tag("text", str(step), class_="faint", x=f"{places[numbers[0]][0]:.1f}", y=12))
    for number in alive:
        x, y, _ = places[number]
        parent = nodes[number]["parent"]
        if parent in places:
            px, py, width = places[parent]
            ends = {"x1": f"{px + width:.1f}", "y1": py + BOX / 2, "x2": f"{x:.1f}", "y2": y + BOX / 2}
            svg.append(tag("line", class_="arrow" if number in path and parent in path else "leader", **ends))
    for number in alive:
        node, (x, y, width) = nodes[number], places[number]
        lost = number not in path and number not in parents and node["fate"] != "ended" and node["step"] < last
        kind = "box mark" if number in path else "box faint" if lost else "box"
        shape = {"x": f"{x:.1f}", "y": y, "width": f"{width:.1f}", "height": BOX, "rx": 4}
        svg.append(tag("rect", tag("title", _told(node)), class_=kind, **shape))
        if node["fate"] == "ended":
            inner = {"x": f"{x + 3:.1f}", "y": y + 3, "width": f"{width - 6:.1f}", "height": BOX - 6, "rx": 2}
            svg.append(tag("rect", class_=kind + " inner", **inner))
        svg.append(tag("text", _label(node), x=f"{x + 8:.1f}", y=y + 17, **{"class": "faint"} if lost else {}))
    return svg


def _label(node: dict[str, Any]) -> str:
    return f"{_shown(node['word'])} {_share(node['chance'])}"


def _share(chance: float) -> str:
    return f"{chance:.0%}" if chance >= 0.095 else f"{chance:.1%}" if chance >= 0.0005 else f"{chance:.0e}"


def _told(node: dict[str, Any]) -> str:
    return f"log p {node['log_probability']:.3f}, score {node['score']:.3f}: {node['fate']}, {node['why']}"


def _shown(word: str) -> str:
    return word.strip() or "␣"


def _steps(page: Page, text: dict[str, Any]) -> None:
    """A table of all candidates of all steps, folded up."""
    nodes, path = text["hypotheses"], set(text["path"])
    rows: list[Element] = []
    for number, node in enumerate(nodes):
        before = _words(nodes, node["parent"])
        word: Element | str = tag("mark", _shown(node["word"])) if number in path else _shown(node["word"])
        cells = (
            str(node["step"]), before or "(the start)", word, f"{node['chance']:.2%}",
            f"{node['log_probability']:.3f}", f"{node['score']:.3f}", node["fate"], node["why"],
        )  # fmt: skip
        rows.append(tag("tr", *(tag("td", cell) for cell in cells), class_=node["fate"]))
    head = ("step", "after", "word", "p(word)", "log p of all", "score", "fate", "why")
    names = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    table = tag("div", tag("table", names, tag("tbody", *rows)), class_="wide words")
    kept = sum(node["fate"] != "dropped" for node in nodes)
    page.add(
        tag("details", tag("summary", f"All {len(nodes):,} candidates, {kept:,} of them kept, step by step"), table)
    )


def _words(nodes: list[dict[str, Any]], number: int, most: int = 4) -> str:
    """The last words of a hypothesis."""
    words: list[str] = []
    while number >= 0:
        words.append(_shown(nodes[number]["word"]))
        number = nodes[number]["parent"]
    return ("... " if len(words) > most else "") + " ".join(reversed(words[:most]))


def _attention(page: Page, text: dict[str, Any], name: str) -> None:
    """Where each word of the best answer looked, the mean over layers and heads."""
    nodes = [text["hypotheses"][place] for place in text["path"]]
    looked = [_mean(node["looked"][name]) for node in nodes]
    weights = np.zeros((len(looked), max(map(len, looked))))
    for row, shares in zip(weights, looked, strict=True):
        row[: len(shares)] = shares
    own = ["<start>", *text["prompt"]]  # what there was to look at for the first word, but for a vector before it
    own = ["<sink>" for _ in range(len(looked[0]) - len(own))] + own + [node["word"] for node in nodes]
    over = text["source"] if name in ("cross_attention", "alignment") and text["source"] else own
    columns = [*map(_shown, over), *("" for _ in weights[0])][: weights.shape[1]]
    svg = draw_grid(columns, [_shown(node["word"]) for node in nodes], weights)
    svg.set("style", f"width: {svg.get('viewBox', '').split()[2]}px")  # a long text is scrolled, not made small
    what = {
        "cross_attention": "at the text to write from",
        "alignment": "at the text to write from",
    }.get(name, "at what was written before")
    page.figure(svg, f"Where the writer looked {what} to find each word of a row ({name}): the darker, the more.")


def _mean(layers: list[list[float]]) -> list[float]:
    return [sum(column) / len(layers) for column in zip(*layers, strict=True)]


def _cache(page: Page, steps: list[dict[str, Any]]) -> None:
    computed, remembered = (sum(step[name] for step in steps) for name in ("computed", "remembered"))
    shared = any(step["source_bytes"] for step in steps)
    page.section("What was computed, and what was remembered")
    page.text(
        f"In {len(steps)} steps {computed:,} words were read, each hypothesis its newest one alone. What the writer "
        f"had read before is kept in its state: without it {computed + remembered:,} would have been read, "
        f"{(computed + remembered) / max(computed, 1):.1f} times as many."
        + (
            " What it keeps of a text to write from is computed once, and all hypotheses of the text share it." * shared
        ),
    )
    rows = [
        (str(number), f"{step['rows']:,}", f"{step['computed']:,}", f"{step['remembered']:,}", f"{step['bytes']:,}",
         f"{step['source_bytes']:,}")
        for number, step in enumerate(steps, 1)
    ]  # fmt: skip
    head = ("step", "rows", "read", "remembered", "bytes of the state", "bytes of the texts to write from")
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    table = tag("table", tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))), body)
    page.add(tag("details", tag("summary", "Step by step"), tag("div", table, class_="wide")))

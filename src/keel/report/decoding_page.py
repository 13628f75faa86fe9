"""HTML page of a decoding trace: the tree of hypotheses, the candidates of each step, attention, and cost."""

from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.heatmap import draw_grid
from keel.report.html_page import Page, tag
from keel.report.scatter_map import text_width

BOX, GAP, ROW = 24, 26, 32
"""Pixels: height of a box, gap between columns, distance between rows."""
TOP = 5
MAX_STEPS = 40
"""Steps shown in the tree."""
COST_FIELDS = ("sequences", "computed", "cached", "state_bytes", "source_bytes")


def decoding_page(found: dict[str, Any]) -> Page:
    """Build the page from `explain.decoding_data`."""
    page = Page(f"{found['strategy'].capitalize()}: decoding step by step", _lead(found), broad=True)
    _questions(page, found)
    for number, text in enumerate(found["texts"], 1):
        _text(page, found, text, f" {number}" if len(found["texts"]) > 1 else "")
    _cache(page, found["steps"])
    return page


def _lead(found: dict[str, Any]) -> str:
    if found["strategy"] == "beam search":
        settings = found["settings"]
        return (
            f"At each step {settings['beams']} hypotheses are open. Each is extended by every token; the "
            f"{settings['beams']} most probable extensions continue. The score of a text of n tokens is "
            f"log p / ((5 + n) / 6)^{settings['length_penalty']:g}."
        )
    settings = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in found["settings"].items())
    return f"At each step the model gives every token a probability, and one token is chosen ({settings})."


def _questions(page: Page, found: dict[str, Any]) -> None:
    """Frequent questions about decoding, answered with this text."""
    texts = [text for text in found["texts"] if text["path"]]
    page.section("What is fed into the next step?")
    if not texts:
        page.text("No token was generated.")
        return
    nodes, path = texts[0]["hypotheses"], texts[0]["path"]
    first = nodes[path[0]]
    page.text(
        "One token, never a distribution. The model gives every token a probability; one token is chosen, here ",
        tag("mark", _visible(first["token"])),
        f" with {first['probability']:.2%}, and only its id is the input of the next step. In training all tokens of a "
        "text are known, so all positions are computed in parallel; in decoding each waits for the token before it.",
    )
    if found["strategy"] == "beam search":
        other = [(node, _most_probable(nodes, node)) for node in (nodes[index] for index in path)]
        differ = [(node, best) for node, best in other if best is not node]
        page.text(
            "The beam's tokens, not the argmax: the input of each open hypothesis is its own last token. "
            f"The best answer has {len(path)} tokens (end token included), and {len(differ)} of them "
            + ("is" if len(differ) == 1 else "are")
            + " not the most probable token after those before"
            + (f": at token {differ[0][0]['step']} " if differ else "."),
            *(
                (
                    tag("mark", _visible(differ[0][0]["token"])),
                    f" ({differ[0][0]['probability']:.2%}) was kept beside {_visible(differ[0][1]['token'])} "
                    f"({differ[0][1]['probability']:.2%}), and led to the best answer.",
                )
                if differ
                else ()
            ),
        )
    elif found["strategy"] == "sampling":
        others = sum(nodes[index] is not _most_probable(nodes, nodes[index]) for index in path)
        page.text(f"{others} of the {len(path)} sampled tokens are not the most probable ones of their step.")
    if len(found["texts"]) > 1:
        batch_sizes = [step["sequences"] for step in found["steps"]]
        sizes = " and ".join(str(len(text["path"])) for text in found["texts"][:8])
        page.text(
            f"Texts of different lengths are generated in one batch: the answers here have {sizes} tokens. A finished "
            f"text leaves the batch (batch size {_changes(batch_sizes)}); prompts of equal length are batched, so that "
            "none is padded.",
        )


def _most_probable(nodes: list[dict[str, Any]], node: dict[str, Any]) -> dict[str, Any]:
    """The most probable candidate with the same parent."""
    return max((each for each in nodes if each["parent"] == node["parent"]), key=lambda each: each["log_probability"])


def _changes(sizes: list[int]) -> str:
    shown = [str(size) for number, size in enumerate(sizes) if number == 0 or size != sizes[number - 1]]
    return ", then ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def _text(page: Page, found: dict[str, Any], text: dict[str, Any], number: str) -> None:
    page.section(f"Text{number}")
    if text["source"]:
        page.text("Source: ", tag("mark", " ".join(text["source"])))
    if text["prompt"]:
        page.text("Prompt: ", tag("mark", "".join(text["prompt"]) if _spaced(text) else " ".join(text["prompt"])))
    if found["strategy"] == "beam search":
        rows = [(each["text"], f"{each['score']:.3f}", f"{each['log_probability']:.3f}") for each in text["answers"]]
        page.table(("answer", "score", "log p"), rows)
    else:
        page.text("Generated: ", tag("mark", text["answers"][0]["text"]))
    nodes = text["hypotheses"]
    if found["strategy"] == "beam search":
        shown = [number for number, node in enumerate(nodes) if node["outcome"] != "dropped"]
        caption = (
            "The hypotheses that were kept, one column per step, the most probable on top, with the probability of the "
            "token. Blue: the best answer. Double frame: the hypothesis ended. Pale: kept, but later without a "
            "successor in the beam."
        )
    else:
        shown = _top_nodes(nodes, set(text["path"]))
        caption = f"The {TOP} most probable tokens of each step with their probabilities. Blue: the chosen one."
    page.figure(_tree(nodes, shown, set(text["path"])), caption)
    _steps(page, text)
    for name in dict.fromkeys(name for index in text["path"] for name in nodes[index]["attention"]):
        _attention(page, text, name)


def _spaced(text: dict[str, Any]) -> bool:
    return any(token[:1].isspace() for token in text["prompt"])


def _top_nodes(nodes: list[dict[str, Any]], path: set[int]) -> list[int]:
    """The most probable candidates of each step, and the chosen one."""
    steps: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        steps.setdefault(node["step"], []).append(number)
    ordered = (sorted(numbers, key=lambda number: -nodes[number]["probability"]) for numbers in steps.values())
    return [number for step in ordered for rank, number in enumerate(step) if rank < TOP or number in path]


def _tree(nodes: list[dict[str, Any]], shown: list[int], path: set[int]) -> Element:
    """Boxes with tokens from left to right, and lines to their successors."""
    alive = [number for number in shown if nodes[number]["step"] <= MAX_STEPS]
    columns: dict[int, list[int]] = {}
    for number in alive:
        columns.setdefault(nodes[number]["step"], []).append(number)
    positions: dict[int, tuple[float, float, float]] = {}
    left = 4.0
    for step in sorted(columns):
        ordered = sorted(columns[step], key=lambda number: -nodes[number]["log_probability"])
        width = max(text_width(_label(nodes[number])) for number in ordered) + 16
        for row, number in enumerate(ordered):
            positions[number] = (left, 22 + row * ROW, width)
        left += width + GAP
    height = 22 + ROW * max(map(len, columns.values()), default=1)
    parents = {nodes[number]["parent"] for number in alive}
    last = max(columns, default=0)
    svg = tag("svg", viewBox=f"0 0 {left:.0f} {height}", role="img", style=f"width: {left:.0f}px")
    for step, numbers in columns.items():
        svg.append(tag("text", str(step), class_="faint", x=f"{positions[numbers[0]][0]:.1f}", y=12))
    for number in alive:
        x, y, _ = positions[number]
        parent = nodes[number]["parent"]
        if parent in positions:
            px, py, width = positions[parent]
            ends = {"x1": f"{px + width:.1f}", "y1": py + BOX / 2, "x2": f"{x:.1f}", "y2": y + BOX / 2}
            svg.append(tag("line", class_="arrow" if number in path and parent in path else "leader", **ends))
    for number in alive:
        node, (x, y, width) = nodes[number], positions[number]
        lost = number not in path and number not in parents and node["outcome"] != "ended" and node["step"] < last
        kind = "box mark" if number in path else "box faint" if lost else "box"
        shape = {"x": f"{x:.1f}", "y": y, "width": f"{width:.1f}", "height": BOX, "rx": 4}
        svg.append(tag("rect", tag("title", _tooltip(node)), class_=kind, **shape))
        if node["outcome"] == "ended":
            inner = {"x": f"{x + 3:.1f}", "y": y + 3, "width": f"{width - 6:.1f}", "height": BOX - 6, "rx": 2}
            svg.append(tag("rect", class_=kind + " inner", **inner))
        svg.append(tag("text", _label(node), x=f"{x + 8:.1f}", y=y + 17, **{"class": "faint"} if lost else {}))
    return svg


def _label(node: dict[str, Any]) -> str:
    return f"{_visible(node['token'])} {_percent(node['probability'])}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.0005 else f"{share:.0e}"


def _tooltip(node: dict[str, Any]) -> str:
    return f"log p {node['log_probability']:.3f}, score {node['score']:.3f}: {node['outcome']}, {node['reason']}"


def _visible(token: str) -> str:
    return token.strip() or "␣"


def _steps(page: Page, text: dict[str, Any]) -> None:
    """A collapsed table of all candidates."""
    nodes, path = text["hypotheses"], set(text["path"])
    rows: list[Element] = []
    for number, node in enumerate(nodes):
        before = _last_tokens(nodes, node["parent"])
        token: Element | str = tag("mark", _visible(node["token"])) if number in path else _visible(node["token"])
        cells = (
            str(node["step"]), before or "(start)", token, f"{node['probability']:.2%}",
            f"{node['log_probability']:.3f}", f"{node['score']:.3f}", node["outcome"], node["reason"],
        )  # fmt: skip
        rows.append(tag("tr", *(tag("td", cell) for cell in cells), class_=node["outcome"]))
    head = ("step", "after", "token", "p(token)", "log p (total)", "score", "outcome", "reason")
    names = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    table = tag("div", tag("table", names, tag("tbody", *rows)), class_="wide words")
    kept = sum(node["outcome"] != "dropped" for node in nodes)
    page.add(tag("details", tag("summary", f"All {len(nodes):,} candidates by step, {kept:,} of them kept"), table))


def _last_tokens(nodes: list[dict[str, Any]], index: int, count: int = 4) -> str:
    """The last tokens of a hypothesis."""
    tokens: list[str] = []
    while index >= 0:
        tokens.append(_visible(nodes[index]["token"]))
        index = nodes[index]["parent"]
    return ("... " if len(tokens) > count else "") + " ".join(reversed(tokens[:count]))


def _attention(page: Page, text: dict[str, Any], name: str) -> None:
    """Heat map of attention for the best answer, averaged over layers and heads."""
    nodes = [text["hypotheses"][index] for index in text["path"]]
    attention = [_mean(node["attention"][name]) for node in nodes]
    weights = np.zeros((len(attention), max(map(len, attention))))
    for row, shares in zip(weights, attention, strict=True):
        row[: len(shares)] = shares
    own = ["<start>", *text["prompt"]]  # the context of the first token, apart from attention sinks
    own = ["<sink>" for _ in range(len(attention[0]) - len(own))] + own + [node["token"] for node in nodes]
    over = text["source"] if name in ("cross_attention", "alignment") and text["source"] else own
    columns = [*map(_visible, over), *("" for _ in weights[0])][: weights.shape[1]]
    svg = draw_grid(columns, [_visible(node["token"]) for node in nodes], weights)
    svg.set("style", f"width: {svg.get('viewBox', '').split()[2]}px")  # a long text scrolls instead of shrinking
    target = "the source" if name in ("cross_attention", "alignment") else "the tokens before"
    page.figure(svg, f"Attention ({name}) to {target}, one row per generated token; darker is more.")


def _mean(layers: list[list[float]]) -> list[float]:
    return [sum(column) / len(layers) for column in zip(*layers, strict=True)]


def _cache(page: Page, steps: list[dict[str, Any]]) -> None:
    computed, cached = (sum(step[name] for step in steps) for name in ("computed", "cached"))
    shared = any(step["source_bytes"] for step in steps)
    page.section("Computation and cache")
    page.text(
        f"{len(steps)} steps read {computed:,} tokens, only the newest of each hypothesis. The cached state holds the "
        f"rest: without it {computed + cached:,} tokens would have been read, "
        f"{(computed + cached) / max(computed, 1):.1f} times as many."
        + (" The encoded source is computed once and shared by all hypotheses of a text." * shared),
    )
    rows = [(str(number), *(f"{step[name]:,}" for name in COST_FIELDS)) for number, step in enumerate(steps, 1)]
    head = ("step", "sequences", "tokens read", "tokens cached", "bytes of state", "bytes of encoded sources")
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    table = tag("table", tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))), body)
    page.add(tag("details", tag("summary", "Step by step"), tag("div", table, class_="wide")))

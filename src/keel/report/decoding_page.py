"""HTML page of a decoding trace: the tree of hypotheses, the candidates of each step, attention, and cost."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from keel.report.charts import heat_map, text_width
from keel.report.html_page import Page, tag

BOX, GAP, ROW = 24, 26, 32
"""Pixels: height of a box, gap between columns, distance between rows."""
TOP = 5
MAX_STEPS = 40
"""Steps shown in the tree."""
COST_FIELDS = ("sequences", "computed", "cached", "state_bytes", "source_bytes")


def decoding_page(found: dict[str, Any]) -> Page:
    """Build the page from what `decoding_data` returns."""
    page = Page(f"{found['strategy'].capitalize()}: decoding step by step", _lead(found), layout="broad")
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
        parts: list[Element | str] = [
            "The beam's tokens, not the argmax: the input of each open hypothesis is its own last token. The best "
            f"answer has {len(path)} tokens (end token included), and {len(differ)} of them "
            f"{'is' if len(differ) == 1 else 'are'} not the most probable token after those before"
        ]
        for node, best in differ[:1]:
            parts += [f": at token {node['step']} ", tag("mark", _visible(node["token"]))]
            beside = f"{_visible(best['token'])} ({best['probability']:.2%})"
            parts.append(f" ({node['probability']:.2%}) was kept beside {beside}, and led to the best answer")
        page.text(*parts, ".")
    elif found["strategy"] == "sampling":
        others = sum(nodes[index] is not _most_probable(nodes, nodes[index]) for index in path)
        page.text(f"{others} of the {len(path)} sampled tokens are not the most probable ones of their step.")
    if len(found["texts"]) > 1:
        batch_sizes = [step["sequences"] for step in found["steps"]]
        sizes = " and ".join(str(len(text["path"])) for text in found["texts"][:8])
        page.text(
            f"Texts of different lengths are generated in one batch: the answers here have {sizes} tokens. A finished "
            f"text leaves the batch (batch size {_changes(batch_sizes)}); prompts of equal length are batched, so that "
            "none is padded."
        )


def _most_probable(nodes: list[dict[str, Any]], node: dict[str, Any]) -> dict[str, Any]:
    """The most probable candidate with the same parent."""
    return max((each for each in nodes if each["parent"] == node["parent"]), key=lambda each: each["log_probability"])


def _changes(sizes: list[int]) -> str:
    shown = [str(size) for size, _ in groupby(sizes)]
    return ", then ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def _text(page: Page, found: dict[str, Any], text: dict[str, Any], number: str) -> None:
    page.section(f"Text{number}")
    if text["source"]:
        page.text("Source: ", tag("mark", " ".join(text["source"])))
    if text["prompt"]:
        spaced = any(token[:1].isspace() for token in text["prompt"])
        page.text("Prompt: ", tag("mark", ("" if spaced else " ").join(text["prompt"])))
    nodes = text["hypotheses"]
    if found["strategy"] == "beam search":
        rows = [(each["text"], f"{each['score']:.3f}", f"{each['log_probability']:.3f}") for each in text["answers"]]
        page.table(("answer", "score", "log p"), rows)
        shown = [number for number, node in enumerate(nodes) if node["outcome"] != "dropped"]
        caption = (
            "The hypotheses that were kept, one column per step, the most probable on top, with the probability of the "
            "token. Blue: the best answer. Double frame: the hypothesis ended. Pale: kept, but later without a "
            "successor in the beam."
        )
    else:
        page.text("Generated: ", tag("mark", text["answers"][0]["text"]))
        steps = _by_step(nodes, range(len(nodes)), "probability").values()
        ranked = [(rank, number) for step in steps for rank, number in enumerate(step)]
        shown = [number for rank, number in ranked if rank < TOP or number in text["path"]]
        caption = f"The {TOP} most probable tokens of each step with their probabilities. Blue: the chosen one."
    page.figure(_tree(nodes, shown, set(text["path"])), caption)
    _steps(page, text)
    for name in dict.fromkeys(name for index in text["path"] for name in nodes[index]["attention"]):
        _attention(page, text, name)


def _by_step(nodes: list[dict[str, Any]], numbers: Iterable[int], by: str) -> dict[int, list[int]]:
    """Candidates of each step, the most probable first."""
    steps: dict[int, list[int]] = {}
    for number in numbers:
        steps.setdefault(nodes[number]["step"], []).append(number)
    return {step: sorted(steps[step], key=lambda number: -nodes[number][by]) for step in sorted(steps)}


def _tree(nodes: list[dict[str, Any]], shown: list[int], path: set[int]) -> Element:
    """Boxes with tokens from left to right, and lines to their successors."""
    alive = [number for number in shown if nodes[number]["step"] <= MAX_STEPS]
    columns = _by_step(nodes, alive, "log_probability")
    positions: dict[int, tuple[float, int, float]] = {}  # left, top and width of each box
    left = 4.0
    for numbers in columns.values():
        width = max(text_width(_label(nodes[number])) for number in numbers) + 16
        positions |= {number: (left, 22 + row * ROW, width) for row, number in enumerate(numbers)}
        left += width + GAP
    height = 22 + ROW * max(map(len, columns.values()), default=1)
    parents = {nodes[number]["parent"] for number in alive}
    svg = tag("svg", viewBox=f"0 0 {left:.0f} {height}", role="img", style=f"width: {left:.0f}px")
    for step, numbers in columns.items():
        svg.append(tag("text", str(step), class_="faint", x=positions[numbers[0]][0], y=12))
    for number in alive:
        (x, y, _), parent = positions[number], nodes[number]["parent"]
        if parent in positions:
            px, py, width = positions[parent]
            kind = "arrow" if number in path and parent in path else "leader"
            svg.append(tag("line", class_=kind, x1=px + width, y1=py + BOX / 2, x2=x, y2=y + BOX / 2))
    for number in alive:
        node, (x, y, width) = nodes[number], positions[number]
        ended = node["outcome"] == "ended"
        lost = not (number in path or number in parents or ended or node["step"] == max(columns))
        kind = "box mark" if number in path else "box faint" if lost else "box"
        why = f"log p {node['log_probability']:.3f}, score {node['score']:.3f}: {node['outcome']}, {node['reason']}"
        svg.append(tag("rect", tag("title", why), class_=kind, x=x, y=y, width=width, height=BOX, rx=4))
        if ended:
            inner = {"x": x + 3, "y": y + 3, "width": width - 6, "height": BOX - 6, "rx": 2}
            svg.append(tag("rect", class_=kind + " inner", **inner))
        svg.append(tag("text", _label(node), class_="faint" if lost else None, x=x + 8, y=y + 17))
    return svg


def _label(node: dict[str, Any]) -> str:
    share = node["probability"]
    percent = f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.0005 else f"{share:.0e}"
    return f"{_visible(node['token'])} {percent}"


def _visible(token: str) -> str:
    return token.strip() or "␣"


def _steps(page: Page, text: dict[str, Any]) -> None:
    """A collapsed table of all candidates."""
    nodes, path = text["hypotheses"], set(text["path"])
    rows: list[list[Element | str]] = []
    for number, node in enumerate(nodes):
        before, token = _last_tokens(nodes, node["parent"]) or "(start)", _visible(node["token"])
        chosen = tag("mark", token) if number in path else token
        figures = f"{node['probability']:.2%}", f"{node['log_probability']:.3f}", f"{node['score']:.3f}"
        rows.append([str(node["step"]), before, chosen, *figures, node["outcome"], node["reason"]])
    head = ("step", "after", "token", "p(token)", "log p (total)", "score", "outcome", "reason")
    outcomes = [node["outcome"] for node in nodes]
    summary = f"All {len(nodes):,} candidates by step, {len(nodes) - outcomes.count('dropped'):,} of them kept"
    page.table(head, rows, summary=summary, classes=outcomes, numeric=False)


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
    attention = [np.mean(node["attention"][name], 0) for node in nodes]
    weights = np.zeros((len(attention), max(map(len, attention))))
    for row, shares in zip(weights, attention, strict=True):
        row[: len(shares)] = shares
    own = ["<start>", *text["prompt"]]  # the context of the first token, apart from attention sinks
    own = ["<sink>" for _ in range(len(attention[0]) - len(own))] + own + [node["token"] for node in nodes]
    cross = name in ("cross_attention", "alignment")
    over = text["source"] if cross and text["source"] else own
    columns = [*map(_visible, over), *("" for _ in weights[0])][: weights.shape[1]]
    svg = heat_map(columns, [_visible(node["token"]) for node in nodes], weights)
    svg.set("style", f"width: {svg.get('viewBox', '').split()[2]}px")  # a long text scrolls instead of shrinking
    target = "the source" if cross else "the tokens before"
    page.figure(svg, f"Attention ({name}) to {target}, one row per generated token; darker is more.")


def _cache(page: Page, steps: list[dict[str, Any]]) -> None:
    computed, cached = (sum(step[name] for step in steps) for name in ("computed", "cached"))
    shared = any(step["source_bytes"] for step in steps)
    page.section("Computation and cache")
    page.text(
        f"{len(steps)} steps read {computed:,} tokens, only the newest of each hypothesis. The cached state holds the "
        f"rest: without it {computed + cached:,} tokens would have been read, "
        f"{(computed + cached) / max(computed, 1):.1f} times as many."
        + " The encoded source is computed once and shared by all hypotheses of a text."
        * shared
    )
    rows = [(str(number), *(f"{step[name]:,}" for name in COST_FIELDS)) for number, step in enumerate(steps, 1)]
    head = ("step", "sequences", "tokens read", "tokens cached", "bytes of state", "bytes of encoded sources")
    page.table(head, rows, summary="Step by step")

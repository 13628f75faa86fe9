"""Masking units of a text at each level of masking, with an example."""

from collections.abc import Sequence

from keel.report.diagram import Area, Diagram, label_width
from keel.report.figures.figure import Figure, cut_word

ROW, BOX, GAP = 36.0, 24.0, 4.0
"""Distance of two rows, height of a box, and distance of two columns."""
LINE_WIDTH = 860.0
"""Pixels of a line of tokens; more follow below."""
TITLES = {"token": "Tokens", "word": "Words", "phrase": "Phrases", "entity": "Entities"}
SUBTITLES = {"token": "basic level", "word": "whole words", "phrase": "phrase level", "entity": "entity level"}
TINTS = {"token": "node", "word": "node tint0", "phrase": "node tint2", "entity": "node tint1"}
SPECIAL_WIDTH = 34.0
"""Smallest width of a column."""


def draw_units(
    tokens: Sequence[str],
    levels: Sequence[tuple[str, Sequence[int], Sequence[str], Sequence[bool], Sequence[str]]],
    *,
    mask_rate: float,
    left_out: int = 0,
    name: str = "",
) -> Figure:
    """`levels`: name, number of tokens of each unit, its text, which tokens are masked, and the tokens with masks."""
    widths = [
        max([
            label_width(cut_word(token)) + 12,
            *(label_width(cut_word(shown[number]), "small") + 8 for *_, masked, shown in levels if masked[number]),
            SPECIAL_WIDTH,
        ])
        for number, token in enumerate(tokens)
    ]  # fmt: skip
    left = max(map(label_width, TITLES.values())) + 40
    diagram, y = Diagram(), 0.0
    for start, stop in _lines(widths, levels):
        edges = [left]
        for width in widths[start:stop]:
            edges.append(edges[-1] + width + GAP)
        for level, sizes, units, masked, shown in levels:
            diagram.label(TITLES[level], 0, y - 6, anchor="start")
            diagram.label(SUBTITLES[level], 0, y + 9, anchor="start", size="small", colour="faint")
            first = 0
            for size, text in zip(sizes, units, strict=True):
                begin, end = max(first, start) - start, min(first + size, stop) - start
                if begin < end:
                    box = Area(edges[begin], y - BOX / 2, edges[end] - edges[begin] - GAP, BOX)
                    whole = start <= first and first + size <= stop
                    diagram.box(
                        box, _fitted(text, box.width) if whole else "…", kind=TINTS[level if size > 1 else "token"]
                    )
                first += size
            for number in range(start, stop):
                middle = (edges[number - start] + edges[number - start + 1] - GAP) / 2
                if masked[number]:
                    diagram.label(cut_word(shown[number]), middle, y + ROW * 0.62, size="small", colour="accent")
                else:
                    diagram.label("·", middle, y + ROW * 0.62, size="small", colour="faint")
            y += ROW * 1.45
        y += 14
    more = f" The first training sequence is shown; {left_out:,} further tokens are in others." if left_out else ""
    return Figure(
        title="Masking units" + (f" of {name}" if name else ""),
        caption=(
            "What is masked as a whole at each level, and an example below it: "
            f"{mask_rate:.0%} of the tokens are masked, to be predicted. A masked token becomes [MASK] (80%), a random "
            f"token (10%) or stays (10%), independently of the others of its unit.{more}"
        ),
        picture=diagram.picture("Masking units"),
        numbers={
            "tokens": len(tokens),
            **{f"{TITLES[level].lower()}: units": len(sizes) for level, sizes, *_ in levels},
            **{f"{TITLES[level].lower()}: masked tokens": sum(masked) for level, _, _, masked, _ in levels},
        },
    )


def _fitted(text: str, width: float) -> str:
    """The beginning of a text that has room in a box."""
    while label_width(text) > width - 4 and len(text) > 1:
        text = f"{text[:-2]}…"
    return text


def _lines(
    widths: Sequence[float], levels: Sequence[tuple[str, Sequence[int], object, object, object]]
) -> list[tuple[int, int]]:
    """First token of each line and the one past its last; where possible, between units of all levels."""
    inside = [False] * (len(widths) + 1)
    for _, sizes, *_ in levels:
        first = 0
        for size in sizes:
            inside[first + 1 : first + size] = [True] * (size - 1)
            first += size
    lines: list[tuple[int, int]] = []
    start = 0
    while start < len(widths):
        stop, used = start, 0.0
        while stop < len(widths) and (used + widths[stop] <= LINE_WIDTH or stop == start):
            used += widths[stop] + GAP
            stop += 1
        better = next((place for place in range(stop, start, -1) if not inside[place]), stop)
        lines.append((start, better))
        start = better
    return lines

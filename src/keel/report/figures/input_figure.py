"""The input of a Transformer: token, segment and position embeddings, added."""

from collections.abc import Mapping, Sequence
from typing import Any

from keel.report.diagram import Area, Diagram, label_width, sub
from keel.report.figures.figure import Figure, cut_word

ROW, BOX, GAP = 40.0, 26.0, 4.0
"""Distance of two rows, height of a box, and distance of two boxes."""
LINE_WIDTH = 860.0
"""Pixels of a line of tokens; more follow below."""
KINDS = {"tokens": "node tint2", "positions": "node tint4"}
TITLES = {"tokens": "Token embeddings", "segments": "Segment embeddings", "positions": "Position embeddings"}


def draw_input(
    tokens: Sequence[str],
    ids: Sequence[int],
    segments: Sequence[str] | None,
    special: Sequence[bool],
    *,
    tables: Mapping[str, tuple[int, int]],
    position_encoding: str,
    left_out: int = 0,
    name: str = "",
) -> Figure:
    """Tokens with the names of their segments; `tables` has rows and width of each embedding table."""
    rows = {"tokens": [sub("E", id) for id in ids]}
    if segments is not None:
        rows["segments"] = [sub("E", segment) for segment in segments]
    if position_encoding != "none":
        rows["positions"] = [sub("E", number) for number in range(len(tokens))]
    notes = {name: f"{count:,} × {width}" for name, (count, width) in tables.items()}
    if position_encoding == "sinusoidal":
        notes["positions"] = "sinusoidal"
    shown = [*map(cut_word, tokens)]
    widths = [
        max(label_width(token) + 8, *(label_width(row[number]) + 12 for row in rows.values()), 34)
        for number, token in enumerate(shown)
    ]
    left = max(map(label_width, TITLES.values())) + 22
    diagram = Diagram()
    y = 0.0
    for line in _lines(widths):
        diagram.label("Input", 0, y, anchor="start")
        for number, part in enumerate(rows):
            middle = y + ROW * (number + 1)
            diagram.label(TITLES[part], 0, middle - 7, anchor="start")
            diagram.label(notes.get(part, ""), 0, middle + 9, anchor="start", size="small", colour="faint")
        x = left
        for number in line:
            width = widths[number]
            centre = x + width / 2
            diagram.label(shown[number], centre, y, colour="faint" if special[number] else "")
            for row, (part, texts) in enumerate(rows.items()):
                top = y + ROW * (row + 1) - BOX / 2
                kind = KINDS.get(part, "")
                if not kind:
                    assert segments is not None
                    kind = "node tint0" if segments[number] == "A" else "node tint1"
                diagram.box(Area(x, top, width, BOX), texts[number], kind=kind)
                if row:
                    diagram.label("+", centre, top - (ROW - BOX) / 2, size="small", colour="faint")
            x += width + GAP
        y += ROW * (len(rows) + 1) + 18
    count = len(tokens)
    parts = [TITLES[part].split()[0].lower() for part in rows]
    what = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 2 else parts)
    more = f" The first window is shown; {left_out:,} further tokens are in others." if left_out else ""
    numbers: dict[str, Any] = {"tokens": count, **{f"{TITLES[part].lower()}": note for part, note in notes.items()}}
    return Figure(
        title="Input embeddings" + (f" of {name}" if name else ""),
        caption=(
            f"The input embedding of a token is the sum of its {what} embedding. "
            f"{count:,} tokens; subscripts are the rows of each table: token ids"
            f"{', segments' if segments is not None else ''} and positions.{more}"
        ),
        picture=diagram.picture("Input embeddings"),
        numbers=numbers,
    )


def _lines(widths: Sequence[float]) -> list[list[int]]:
    """Indices of the tokens of each line."""
    lines: list[list[int]] = [[]]
    used = 0.0
    for number, width in enumerate(widths):
        if lines[-1] and used + width > LINE_WIDTH:
            lines.append([])
            used = 0.0
        lines[-1].append(number)
        used += width + GAP
    return lines

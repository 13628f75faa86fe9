"""A recurrent network, unrolled over time."""

from itertools import pairwise
from typing import NamedTuple

from torch import nn

from keel.errors import UsageError
from keel.model import Model
from keel.nn.meta_device import count_parameters
from keel.report.diagram import Area, Diagram, Point, centered, fitted_width, sub
from keel.report.figures.figure import Figure, figure_words
from keel.systems.rnn import Rnn
from keel.systems.ulmfit import Ulmfit

WORDS = ("the", "tide", "goes", "out", "again")
CELL_NAMES = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}
SHOWN_LAYERS = 3
"""Layers up to which all are drawn."""
BOX, RISE = 34, 68
"""Height of a box, and distance of two rows."""


class RecurrentShape(NamedTuple):
    """What the figure shows of a configuration."""

    cell: str
    sizes: list[tuple[int, int]]
    """Input and hidden size of each layer."""
    parameters: int
    """Parameters of the recurrent layers of one direction."""
    bidirectional: bool


def recurrent_shape(system: Rnn | Ulmfit) -> RecurrentShape:
    """The recurrent layers of a configuration."""

    def layers() -> nn.Module:
        return system.build_encoder(1).forwards

    if isinstance(system, Rnn):
        sizes = [(system.width, system.width)] * system.layers
        return RecurrentShape(system.cell, sizes, count_parameters(layers), system.bidirectional)
    widths = [system.width, *[system.hidden_size] * (system.layers - 1), system.width]
    return RecurrentShape("lstm", [*pairwise(widths)], count_parameters(layers), False)


def draw_unrolled(model: Model | None = None, text: str = "") -> Figure:
    """The network with its loop, and the same network at every time step."""
    system = Rnn(cell="rnn", layers=1) if model is None else model.system
    if not isinstance(system, Rnn | Ulmfit):
        raise UsageError(f"figure rnn shows models of rnn and ulmfit, and this is a {system.name}: choose another one")
    shape = recurrent_shape(system)
    words = figure_words(text, WORDS)
    count = len(shape.sizes)
    shown = [*range(1, count + 1)] if count <= SHOWN_LAYERS else [1, count]
    diagram = Diagram()
    step = fitted_width(*words, least=104) + 16
    start = 232.0
    rows = {layer: 60.0 + RISE * (len(shown) - 1 - number) for number, layer in enumerate(shown)}
    bottom = rows[shown[0]] + RISE
    top = rows[shown[-1]] - RISE

    def column(x: float, index: str, *, first: str = "", last: str = "") -> dict[int, Area]:
        """The inputs, states and outputs of one step."""
        inputs = diagram.box(centered(x, bottom, 64, BOX), sub("X", index), kind="node tint2")
        outputs = diagram.box(centered(x, top, 64, BOX), sub("O", index), kind="node tint1")
        found: dict[int, Area] = {}
        below = inputs
        for layer in shown:
            name = sub("H", index) if count == 1 else f"{sub('H', index)}⁽{_superscript(layer)}⁾"
            found[layer] = diagram.box(centered(x, rows[layer], 64, BOX), name, kind="node tint0")
            gap = count - len(shown) if layer == count else 0
            diagram.arrow(below.above, found[layer].below, kind="wire dashed" if gap else "wire colour2")
            if gap:
                diagram.label(f"{gap} more", x + 8, (below.top + found[layer].bottom) / 2, anchor="start", size="small")
            below = found[layer]
        diagram.arrow(below.above, outputs.below, kind="wire colour1")
        diagram.label(sub("W", "xh"), x + 8, (inputs.top + found[1].bottom) / 2, anchor="start", size="small")
        diagram.label(sub("W", "hq"), x + 8, (outputs.bottom + below.top) / 2, anchor="start", size="small")
        if first:
            diagram.label(first, x, inputs.bottom + 18)
        if last:
            diagram.label(last, x, outputs.top - 16, colour="faint")
        return found

    folded = column(44, "t", first="word t", last="word t + 1")
    for area in folded.values():
        _loop(diagram, area)
    diagram.label(sub("W", "hh"), folded[1].right + 32, folded[1].y, anchor="start", size="small")
    diagram.label("=", 170, (top + bottom) / 2, size="heading")
    before: dict[int, Point] = {layer: (start - 14, rows[layer]) for layer in shown}
    for layer in shown:
        diagram.label(sub("H", 0), start - 18, rows[layer], anchor="end", size="small", colour="faint")
    for number, word in enumerate(words):
        x = start + step * number + step / 2
        after = words[number + 1] if number + 1 < len(words) else "…"
        states = column(x, str(number + 1), first=word, last=after)
        for layer, area in states.items():
            diagram.arrow(before[layer], area.before, kind="wire colour0")
            diagram.label(sub("W", "hh"), (before[layer][0] + area.left) / 2 - 2, rows[layer] - 10, size="small")
            before[layer] = area.after
    width = start + step * len(words)
    for layer in shown:
        diagram.arrow(before[layer], (width + 26, rows[layer]), kind="wire colour0")
    _describe(diagram, shape, bottom + 62, width)
    name = CELL_NAMES[shape.cell]
    each = f"{count} {name} layer{'s' * (count > 1)}"
    more = " A second network of the same shape reads from right to left." if shape.bidirectional else ""
    return Figure(
        title=f"Recurrent network ({name}), unrolled over {len(words)} time steps",
        caption=(
            f"Left: {each} with a loop; right: the same network at every time step, with the same weights, so that its "
            f"{shape.parameters:,} parameters do not grow with the number of steps. The state H carries the words "
            f"before; the output predicts the next word.{more}"
        ),
        picture=diagram.picture("Recurrent network, unrolled over time"),
        numbers={
            "cell": shape.cell,
            "layers": count,
            "hidden sizes": [size for _, size in shape.sizes],
            "recurrent parameters": shape.parameters,
            "time steps": len(words),
        },
    )


def _describe(diagram: Diagram, shape: RecurrentShape, y: float, width: float) -> None:
    if shape.cell == "rnn":
        state = f"{sub('H', 't')} = tanh({sub('X', 't')} {sub('W', 'xh')} + {sub('H', 't−1')} {sub('W', 'hh')}"
        diagram.label(f"{state} + {sub('b', 'h')})", 12, y, anchor="start")
    else:
        name = CELL_NAMES[shape.cell]
        diagram.label(f"{sub('H', 't')} = {name}({sub('X', 't')}, {sub('H', 't−1')})", 12, y, anchor="start")
    diagram.label(f"{sub('O', 't')} = {sub('H', 't')} {sub('W', 'hq')} + {sub('b', 'q')}", 12, y + 24, anchor="start")
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[shape.cell]
    factor = f"{gates} · " if gates > 1 else ""
    parts = [
        f"layer {number}: {sub('W', 'xh')} {inputs} × {factor}{size}, {sub('W', 'hh')} {size} × {factor}{size}"
        for number, (inputs, size) in enumerate(shape.sizes, 1)
    ]
    if len(parts) > SHOWN_LAYERS:
        parts = [*parts[:2], "…", parts[-1]]
    x = max(360.0, width / 2)
    for number, part in enumerate(parts):
        diagram.label(part, x, y + 18 * number, anchor="start", size="small", colour="faint")
    total = f"{shape.parameters:,} parameters (two biases each), at any number of steps"
    diagram.label(total, x, y + 18 * len(parts), anchor="start", size="small", colour="accent")


def _loop(diagram: Diagram, area: Area) -> None:
    """An arrow from a box to itself."""
    start, end = (area.right, area.y + 8), (area.right, area.y - 8)
    diagram.curve(start, (start[0] + 36, start[1] + 22), (end[0] + 36, end[1] - 22), end, kind="wire colour0")


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))

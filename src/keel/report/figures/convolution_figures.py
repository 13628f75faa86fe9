"""Convolutions: what a window sees beside other networks, and the layers of a text CNN."""

from typing import NamedTuple

from keel.errors import UsageError
from keel.model import Model
from keel.nn.convolution import ConvolutionFilters
from keel.nn.meta_device import count_parameters
from keel.report.diagram import SMALL, Area, Diagram, centered, fitted_width, label_width
from keel.report.figures.figure import Figure, figure_words
from keel.systems.cnn import Cnn

SENTENCE = ("the", "animal", "did", "not", "cross", "the", "street", "because", "it", "was", "tired")
FOCUS = SENTENCE.index("because")
STACK = 3
"""Convolutions in the row with several."""
MATRIX = ("wait", "for", "the", "video", "and", "do", "n't", "rent", "it")
"""The sentence of Kim's figure."""
COLUMNS = 6
"""Columns of a matrix of word vectors that are drawn."""
MAX_GROUPS = 6
"""Kernel sizes that are drawn."""


class ContextRow(NamedTuple):
    """A network, and the positions that the output at one position depends on."""

    title: str
    layers: list[range]
    """Positions on the way, from the words up to the layer below the output."""
    reach: tuple[int, int]
    """Positions to the left and right of its own that one layer reads."""
    recurrent: bool = False
    rise: float = 34.0
    """Distance of two layers in pixels."""


def _cnn(model: Model | None, name: str) -> Cnn | None:
    if model is None:
        return None
    if not isinstance(model.system, Cnn):
        raise UsageError(f"figure {name} shows models of cnn, and this is a {model.system.name}: choose another one")
    return model.system


def window_sides(kernel_size: int) -> tuple[int, int]:
    """Positions on the left and right of the middle of a window, as in `ConvolutionFilters`."""
    return (kernel_size - 1) // 2, kernel_size // 2


def window_positions(focus: int, kernel_size: int, layers: int, length: int) -> list[range]:
    """The positions that stacked convolutions read for one output: of the words, then of each layer below the top."""
    left, right = window_sides(kernel_size)
    return [
        range(max(0, focus - depth * left), min(length, focus + depth * right + 1)) for depth in range(layers, 0, -1)
    ]


def draw_window(model: Model | None = None, text: str = "") -> Figure:
    """The words that one position sees: through convolutions, a recurrent network and self-attention."""
    system = _cnn(model, "window")
    kernel_size = 3 if system is None else max(system.kernel_sizes)
    words = figure_words(text, SENTENCE)
    focus = len(words) // 2 if text else FOCUS
    count = len(words)
    sides, everywhere = window_sides(kernel_size), (count, count)
    rows = [
        ContextRow(f"Convolution over {kernel_size} words", window_positions(focus, kernel_size, 1, count), sides),
        ContextRow(f"{STACK} such convolutions", window_positions(focus, kernel_size, STACK, count), sides),
        ContextRow("Recurrent network", [range(focus + 1)], everywhere, recurrent=True),
        ContextRow("Self-attention", [range(count)], everywhere, rise=68.0),
    ]
    seen = {row.title: len(row.layers[0]) for row in rows}
    diagram = Diagram()
    step = fitted_width(*words, size="small", least=46) - 8
    x0 = max(label_width(row.title) for row in rows) + 24 + step / 2
    y = 0.0
    for row in rows:
        top, base = y, y + row.rise * len(row.layers)
        middle = (top + base) / 2
        diagram.label(row.title, 0, middle - 9, anchor="start")
        share = f"sees {seen[row.title]} of {count} words"
        diagram.label(share, 0, middle + 10, anchor="start", size="small", colour="accent")
        _edges(diagram, row, focus, x0, step, base)
        for depth in range(len(row.layers) + 1):
            used = row.layers[depth] if depth < len(row.layers) else range(focus, focus + 1)
            if row.recurrent and depth == 1:
                used = row.layers[0]
            for number in range(count):
                kind = "node tint0" if number in used else "unused"
                if depth == len(row.layers) and number == focus:
                    kind = "node fill0"
                diagram.dot(x0 + step * number, base - row.rise * depth, kind=kind)
        for number, word in enumerate(words):
            colour = "accent" if number == focus else "" if number in row.layers[0] else "faint"
            diagram.label(word, x0 + step * number, base + 20, size="small", colour=colour)
        y = base + 62
    return Figure(
        title="A window against the whole sentence",
        caption=(
            f"What the output at “{words[focus]}” depends on, in one layer unless stated otherwise: a convolution sees "
            f"its window and each further one {kernel_size - 1} words more, a recurrent network all words up to its "
            "own, one by one, and self-attention all words at once."
        ),
        picture=diagram.picture("Words that one position sees, by network"),
        numbers={"words": count, "kernel size": kernel_size, **{f"seen: {name}": n for name, n in seen.items()}},
    )


def _edges(diagram: Diagram, row: ContextRow, focus: int, x0: float, step: float, base: float) -> None:
    def at(number: int, depth: int) -> tuple[float, float]:
        return x0 + step * number, base - row.rise * depth

    if row.recurrent:
        for number in row.layers[0]:
            (x, low), (_, high) = at(number, 0), at(number, 1)
            diagram.arrow((x, low - 6), (x, high + 6), kind="wire strong")
            if number < focus:
                diagram.arrow((x + 6, high), (x + step - 6, high), kind="wire strong")
        return
    targets = [*row.layers[1:], range(focus, focus + 1)]
    for depth, (sources, aims) in enumerate(zip(row.layers, targets, strict=True)):
        for aim in aims:
            for source in sources:
                if -row.reach[0] <= source - aim <= row.reach[1]:
                    diagram.arrow(at(source, depth), at(aim, depth + 1), kind="wire strong", tip=False)


def draw_cnn(model: Model | None = None, text: str = "") -> Figure:
    """Word vectors, filters of several kernel sizes, max-over-time pooling and the classifier."""
    system = _cnn(model, "cnn") or Cnn()
    words = figure_words(text, MATRIX)
    sizes = system.kernel_sizes[:MAX_GROUPS]
    outputs = model.task.labels.outputs if model and model.task else 2
    kernels = dict.fromkeys(system.kernel_sizes, system.filters)
    parameters = count_parameters(lambda: ConvolutionFilters(system.width, kernels))
    total = system.filters * len(system.kernel_sizes)
    diagram = Diagram()
    row, column = 26.0, 18.0
    cell = 13.0
    map_height = cell * len(words)
    pitch = max(map_height + 46, 110.0)
    height = pitch * len(sizes)
    left = max(label_width(word) for word in words) + 14
    matrix = Area(left, (height - 46 - row * len(words)) / 2 + 10, column * COLUMNS, row * len(words))
    diagram.cells(matrix, len(words), COLUMNS)
    for number, word in enumerate(words):
        diagram.label(word, left - 10, matrix.top + row * (number + 0.5), anchor="end")
    unit = system.units
    head = min(0.0, matrix.top) - 46
    _stage(diagram, matrix.x, head, "Embeddings", f"{len(words)} {unit} × {system.width}")
    maps, pooled = matrix.right + 150, matrix.right + 300
    _stage(diagram, maps, head, "Feature maps", f"{system.filters} per kernel size")
    _stage(diagram, pooled, head, "Max over time", f"{total} features")
    joined = Area(pooled - 9, (height - 46) / 2 + 10 - 16 * len(sizes), 18, 32 * len(sizes))
    for number, size in enumerate(sizes):
        kind = f"node tint{number % 6}"
        first = round(number * max(0, len(words) - size) / max(1, len(sizes) - 1)) if len(words) > size else 0
        window = Area(matrix.left, matrix.top + row * first, matrix.width, row * min(size, len(words)))
        diagram.box(window, kind=kind, opaque=False)
        top = pitch * number + 10
        for shift in (8, 4, 0):
            grid = diagram.cells(Area(maps - 8 + shift, top - shift, cell, map_height), len(words), 1)
        middle = min(first + (size - 1) // 2, len(words) - 1)
        hit = Area(grid.left, grid.top + cell * middle, cell, cell)
        diagram.box(hit, kind=kind, opaque=False)
        wire = f"wire colour{number % 6}"
        diagram.arrow((window.right, window.top), (hit.left, hit.top), kind=wire, tip=False)
        diagram.arrow((window.right, window.bottom), (hit.left, hit.bottom), kind=wire, tip=False)
        each = (size * system.width + 1) * system.filters
        label = f"{size} × {system.width}, {each:,} parameters"
        diagram.label(label, grid.left, top + map_height + 16, anchor="start", size="small", colour="faint halo")
        part = Area(joined.left, joined.top + 32 * number, joined.width, 32)
        diagram.cells(part, 2, 1, kind=f"cell tint{number % 6}")
        diagram.arrow((grid.right + 8, grid.top), part.before, kind="wire weak", tip=False)
        diagram.arrow((grid.right, grid.bottom), part.before, kind="wire weak", tip=False)
    names = list(model.task.labels.names) if model and model.task and len(model.task.labels.names) <= 6 else []
    shown = names or [f"class {number + 1}" for number in range(min(outputs, 4))]
    x = pooled + 150
    _stage(diagram, x, head, "Linear, softmax", f"{total} × {outputs}, dropout {system.dropout:g}")
    width = fitted_width(*shown, least=70)
    for number, name in enumerate(shown):
        y = joined.y + 34 * (number - (len(shown) - 1) / 2)
        box = diagram.box(centered(x, y, width, 26), name[:24])
        for end in (joined.top + 8, joined.bottom - 8):
            diagram.arrow((joined.right, end), box.before, kind="wire weak", tip=False)
    classifier = total * outputs + outputs
    return Figure(
        title="Convolutional network for text",
        caption=(
            f"Filters over {_listed(sizes)} adjacent {unit} slide over the {unit[:-1]} vectors (width {system.width}), "
            f"{system.filters} per kernel size; max-over-time pooling keeps the strongest activation of each filter, "
            f"and a linear layer reads the {total} features. The filters have {parameters:,} parameters, the "
            f"classifier {classifier:,}."
        ),
        picture=diagram.picture("Layers of a text CNN"),
        numbers={
            "width": system.width,
            "kernel sizes": list(system.kernel_sizes),
            "filters per kernel size": system.filters,
            "features": total,
            "filter parameters": parameters,
            "classifier parameters": classifier,
        },
    )


def _stage(diagram: Diagram, x: float, y: float, title: str, note: str) -> None:
    diagram.label(title, x, y)
    diagram.label(note, x, y + SMALL * 1.6, size="small", colour="faint")


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last

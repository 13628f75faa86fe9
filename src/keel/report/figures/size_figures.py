"""Sizes of published networks, and the family tree of the systems."""

import math
from typing import NamedTuple

from keel.model import Model
from keel.report.charts import linear_scale
from keel.report.diagram import Area, Diagram, centered, fitted_width, label_width
from keel.report.figures.figure import Figure, encoder_parameters, millions
from keel.systems import LINEAGE, SYSTEMS
from keel.systems.bert import Bert
from keel.systems.elmo import Elmo
from keel.systems.gpt import Gpt
from keel.systems.system import System
from keel.systems.transformer import TransformerSystem

BERT_WORDS, GPT_WORDS, GPT2_WORDS = 30_522, 40_478, 50_257
"""Vocabulary sizes of the published models."""


class Size(NamedTuple):
    """A published network."""

    name: str
    year: int
    system: System
    vocab_size: int
    """1 for ELMo, whose encoder reads characters."""


SIZES = (
    Size("ELMo small", 2018, Elmo.sized("small"), 1),
    Size("ELMo medium", 2018, Elmo.sized("medium"), 1),
    Size("ELMo original", 2018, Elmo.sized("original"), 1),
    Size("GPT", 2018, Gpt.sized("gpt1"), GPT_WORDS),
    Size("BERT-base", 2018, Bert.sized("base"), BERT_WORDS),
    Size("BERT-large", 2018, Bert.sized("large"), BERT_WORDS),
    Size("BERT-tiny", 2019, Bert.sized("tiny"), BERT_WORDS),
    Size("BERT-mini", 2019, Bert.sized("mini"), BERT_WORDS),
    Size("BERT-small", 2019, Bert.sized("small"), BERT_WORDS),
    Size("BERT-medium", 2019, Bert.sized("medium"), BERT_WORDS),
    Size("GPT-2 small", 2019, Gpt.sized("small"), GPT2_WORDS),
    Size("GPT-2 medium", 2019, Gpt.sized("medium"), GPT2_WORDS),
    Size("GPT-2 large", 2019, Gpt.sized("large"), GPT2_WORDS),
    Size("GPT-2 XL", 2019, Gpt.sized("xl"), GPT2_WORDS),
    Size("GPT-3", 2020, Gpt(layers=96, width=12_288, head_dim=128, max_positions=2048), GPT2_WORDS),
)


def draw_sizes(model: Model | None = None) -> Figure:
    """Layers, width, heads and parameters of published networks, and those of a model."""
    counted = [(size, encoder_parameters(size.system, size.vocab_size)) for size in SIZES]
    own = None
    if model is not None:
        own = Size(model.title, 0, model.system, model.encoder.vocab_size)
        counted.append((own, sum(weight.numel() for weight in model.encoder.parameters())))
    counted.sort(key=lambda pair: pair[1])
    diagram = Diagram()
    names = max(label_width(size.name) for size, _ in counted) + 24
    columns = {"year": names + 30, "layers": names + 84, "width": names + 142, "heads": names + 196}
    digits = max(label_width(f"{count:,}") for _, count in counted)
    right = columns["heads"] + 24 + digits
    low = math.floor(math.log10(counted[0][1]))
    high = math.ceil(math.log10(counted[-1][1]))
    plot = Area(right + 30, 16, max(380.0, 44.0 * (high - low)), 26 * len(counted))
    scale = linear_scale(low, high, plot.left, plot.right)
    for name, x in columns.items():
        diagram.label(name, x, 0, anchor="end", size="small", colour="faint")
    diagram.label("parameters", right, 0, anchor="end", size="small", colour="faint")
    for power in range(low, high + 1):
        x = scale(power)
        diagram.arrow((x, plot.top), (x, plot.bottom), kind="wire weak", tip=False)
        diagram.label(_power(power), x, plot.bottom + 16, size="small", colour="faint")
    diagram.label(
        "parameters, logarithmic scale", plot.right, plot.bottom + 36, anchor="end", size="small", colour="faint"
    )
    kinds = [Elmo, Gpt, Bert]
    for number, (size, count) in enumerate(counted):
        y = plot.top + 26 * (number + 0.5)
        accent = "accent" if size is own else ""
        diagram.label(size.name, 0, y, anchor="start", colour=accent)
        for name, text in zip(columns, _shape(size), strict=True):
            diagram.label(text, columns[name], y, anchor="end", size="small", colour="faint")
        diagram.label(f"{count:,}", right, y, anchor="end", colour=accent)
        x = scale(math.log10(count))
        diagram.arrow((plot.left, y), (x, y), kind="wire weak", tip=False)
        colour = kinds.index(type(size.system)) if type(size.system) in kinds else 4
        diagram.dot(x, y, kind=f"node fill{5 if size is own else colour}", radius=5.5)
    largest = {size.name: count for size, count in counted}
    return Figure(
        title="Sizes of published networks",
        caption=(
            "Parameters of the encoders, counted in networks built from the published configurations; tied output "
            f"embeddings count once, other heads are left out. From {counted[0][0].name} "
            f"({millions(counted[0][1])}) to {counted[-1][0].name} ({millions(counted[-1][1])})."
        ),
        picture=diagram.picture("Sizes of published networks"),
        numbers=largest,
    )


def _shape(size: Size) -> tuple[str, str, str, str]:
    system = size.system
    layers, width = (str(getattr(system, name, "")) for name in ("layers", "width"))
    heads = str(system.heads) if isinstance(system, TransformerSystem) else ""
    return str(size.year or ""), layers, width, heads


def _power(power: int) -> str:
    """A power of ten in short: 10K, 100M, 1B."""
    return f"{10 ** (power % 3)}{dict(enumerate(('', 'K', 'M', 'B', 'T'))).get(power // 3, f'e{power - power % 3}')}"


def draw_family_tree() -> Figure:
    """All systems by year, with an arrow from each ancestor to its descendants."""
    ancestors = dict(LINEAGE)
    years = sorted({system.year for system in SYSTEMS.values()})
    diagram = Diagram()
    rows = _rows(ancestors)
    widths = {name: fitted_width(name) for name in SYSTEMS}
    columns: dict[int, float] = {}
    edge = 0.0
    for year in years:
        wide = max(widths[name] for name, system in SYSTEMS.items() if system.year == year)
        columns[year] = edge + wide / 2
        edge += wide + 30
    areas: dict[str, Area] = {}
    bottom = 42.0 * (max(rows.values()) + 1) + 10
    for year, x in columns.items():
        diagram.label(str(year), x, -6, size="small", colour="faint")
        diagram.arrow((x, 8), (x, bottom), kind="wire weak", tip=False)
    related = {name for pair in LINEAGE for name in pair}
    for name, system in SYSTEMS.items():
        area = centered(columns[system.year], 42.0 * rows[name] + 34, widths[name], 28)
        areas[name] = diagram.box(area, name, kind="node tint0" if name in related else "node")
    for name, ancestor in LINEAGE:
        one, other = areas[ancestor], areas[name]
        start, end = one.after, other.before
        reach = (end[0] - start[0]) / 2
        diagram.curve(start, (start[0] + reach, start[1]), (end[0] - reach, end[1]), end, kind="wire strong")
    return Figure(
        title="Family tree of the systems",
        caption=(
            "Published systems by year. An arrow leads from an ancestor to a descendant, which shares its code and "
            "adds what is new."
        ),
        picture=diagram.picture("Family tree of the systems"),
        numbers={name: str(system.year) for name, system in SYSTEMS.items()},
    )


def _rows(ancestors: dict[str, str]) -> dict[str, int]:
    """A row for each system: a family shares neighbouring rows, and no two systems of a year share one."""
    children: dict[str, list[str]] = {}
    for name, ancestor in ancestors.items():
        children.setdefault(ancestor, []).append(name)
    rows: dict[str, int] = {}
    used: set[tuple[int, int]] = set()
    roots = [name for name in SYSTEMS if name not in ancestors]

    def reserve(name: str, row: int, since: int) -> int:
        """Place a system and its descendants from this row on; returns the lowest row that they use."""
        columns = range(since, SYSTEMS[name].year + 1)
        while any((row, year) in used for year in columns):
            row += 1
        rows[name] = row
        used.update((row, year) for year in columns)
        lowest = row
        for number, child in enumerate(children.get(name, [])):
            below = row if number == 0 and len(children[name]) == 1 else lowest + (number > 0)
            lowest = max(lowest, reserve(child, below, SYSTEMS[name].year + 1))
        return lowest

    lowest = -1
    for root in sorted(roots, key=lambda name: (name not in children, SYSTEMS[name].year)):
        if root in children:
            lowest = reserve(root, lowest + 1, SYSTEMS[root].year)
        else:
            reserve(root, 0, SYSTEMS[root].year)
    return rows

"""The networks of ELMo, GPT and BERT side by side, and one block of a Transformer."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple

from keel.errors import UsageError
from keel.model import Model
from keel.nn.meta_device import meta_device
from keel.report.diagram import Area, Diagram, Point, centered, fitted_width, sub
from keel.report.figures.figure import Figure, encoder_parameters
from keel.systems.bert import Bert, BertEncoder
from keel.systems.elmo import Elmo
from keel.systems.gpt import Gpt
from keel.systems.modernbert import ModernBert
from keel.systems.system import System
from keel.systems.transformer import TransformerSystem

TOKENS = 4
RISE, WIDE, HIGH = 66, 44, 24
"""Distance of two rows, and the sides of a unit."""
STEP, NARROW = 64, 52
"""Distance of two units; narrow in ELMo's two networks."""
Direction = Literal["both", "left", "right"]


class Network(NamedTuple):
    """A network of the comparison."""

    name: str
    system: System
    vocab_size: int
    note: str
    from_model: bool = False

    @property
    def layers(self) -> int:
        assert isinstance(self.system, Elmo | Gpt | Bert)
        return self.system.layers

    @property
    def parameters(self) -> int:
        return encoder_parameters(self.system, self.vocab_size)

    def shape(self) -> str:
        """Layers, width and heads in words."""
        if isinstance(self.system, Elmo):
            return f"2 × {self.system.layers} LSTM layers, width {self.system.width}, cells {self.system.cell_size}"
        assert isinstance(self.system, TransformerSystem)
        return f"{self.layers} layers, width {self.system.width}, {self.system.heads} heads of {self.system.head_dim}"


PUBLISHED = (
    Network("ELMo", Elmo(), 1, "one stack per direction"),
    Network("GPT", Gpt.sized("gpt1"), 40_478, "left to right"),
    Network("BERT", Bert(), 30_522, "left and right context in every layer"),
)


def draw_networks(model: Model | None = None) -> Figure:
    """ELMo, GPT and BERT; a model takes the place of the published network of its kind."""
    networks = list(PUBLISHED)
    which = ""
    if model is not None:
        kinds = (Elmo, Gpt, Bert)
        place = next((number for number, kind in enumerate(kinds) if isinstance(model.system, kind)), None)
        if place is None:
            what = f"figure networks shows models of elmo, gpt, bert and electra, and this is a {model.system.name}"
            raise UsageError(f"{what}: choose another one")
        old = networks[place]
        name = old.name if type(model.system) is kinds[place] else model.system.name.upper()
        networks[place] = old._replace(
            name=name, system=model.system, vocab_size=model.encoder.vocab_size, from_model=True
        )
        which = f" {name} is {model.title}."
    diagram = Diagram()
    x = 0.0
    for network in networks:
        x = _column(diagram, network, x) + 56
    counts = {network.name: network.parameters for network in networks}
    return Figure(
        title="The networks of ELMo, GPT and BERT",
        caption=(
            "E are input embeddings, T output vectors; the first and the last layer are drawn. ELMo concatenates two "
            "LSTM stacks, each of which sees one side; a position of GPT attends to itself and the positions before "
            f"it; a position of BERT attends to all.{which}"
        ),
        picture=diagram.picture("The networks of " + ", ".join(network.name for network in networks)),
        numbers={
            f"{network.name} {name}": value
            for network in networks
            for name, value in (("shape", network.shape()), ("parameters", counts[network.name]))
        },
    )


def _column(diagram: Diagram, network: Network, left: float) -> float:
    """One network; returns its right side."""
    elmo = isinstance(network.system, Elmo)
    rows = min(network.layers, 2)
    width = (2 * TOKENS * NARROW + 26 if elmo else TOKENS * STEP) * 1.0
    facts = (network.shape(), f"{network.parameters:,} parameters", network.note)
    width = max(width, *(fitted_width(fact, size="small") for fact in facts))
    middle = left + width / 2
    diagram.label(network.name, middle, -44, size="heading", colour="accent" if network.from_model else "")
    ys = [RISE * (rows - number) for number in range(rows)]
    bottom = RISE * (rows + 1)
    step = STEP if not elmo else width / TOKENS
    xs = [middle + step * (number - (TOKENS - 1) / 2) for number in range(TOKENS)]
    tops = [diagram.box(centered(x, 0, 36, HIGH), sub("T", _index(n)), kind="node tint1") for n, x in enumerate(xs)]
    inputs = [
        diagram.box(centered(x, bottom, 36, HIGH), sub("E", _index(n)), kind="node tint2") for n, x in enumerate(xs)
    ]
    stacks: list[tuple[list[float], Direction]] = [(xs, "left" if isinstance(network.system, Gpt) else "both")]
    if elmo:
        half = TOKENS * NARROW / 2 + 13
        offsets = [NARROW * (number - (TOKENS - 1) / 2) for number in range(TOKENS)]
        stacks = [
            ([middle - half + offset for offset in offsets], "left"),
            ([middle + half + offset for offset in offsets], "right"),
        ]
    for columns, direction in stacks:
        units = [
            [diagram.box(centered(x, y, WIDE, HIGH), "LSTM" if elmo else "Trm", kind="node tint0", size="small")
             for x in columns]
            for y in ys
        ]  # fmt: skip
        below = inputs
        for number, row in enumerate(units):
            kind = "wire" if number == 0 or network.layers == 2 else "wire dashed"
            for one, other in _edges(below, row, "own" if elmo else direction):
                diagram.arrow(one, other, kind=kind)
            if elmo:
                _recurrence(diagram, row, direction)
            below = row
        for unit, output in zip(units[-1], tops, strict=True):
            diagram.arrow(unit.above, output.below)
    label_x = min(stacks[0][0]) - WIDE / 2 - 8
    for number, y in enumerate(ys):
        layer = 1 if number == 0 else network.layers
        diagram.label(f"{layer}", label_x, y, anchor="end", size="small", colour="faint")
    for number, fact in enumerate(facts):
        colour = "accent" if number == 1 else "faint"
        diagram.label(fact, middle, bottom + 36 + 18 * number, size="small", colour=colour)
    return left + width


def _index(number: int) -> str:
    return "N" if number == TOKENS - 1 else str(number + 1)


def _edges(below: list[Area], above: list[Area], direction: str) -> Iterable[tuple[Point, Point]]:
    """Arrows between two layers: from all units, from those at the left, or from the unit's own."""
    for n, unit in enumerate(above):
        for m, source in enumerate(below):
            if direction == "both" or (direction == "left" and m <= n) or m == n:
                yield source.above, unit.below


def _recurrence(diagram: Diagram, row: list[Area], direction: str) -> None:
    units = row if direction == "left" else row[::-1]
    for one, other in pairwise(units):
        ends = (one.after, other.before) if direction == "left" else (one.before, other.after)
        diagram.arrow(*ends, kind="wire strong")


def draw_block(model: Model | None = None) -> Figure:
    """One Transformer block between embeddings and head, with widths and parameters."""
    system = Bert() if model is None else model.system
    if not isinstance(system, Bert | Gpt):
        what = f"figure block shows models of bert, electra, modernbert and gpt, and this is a {system.name}"
        raise UsageError(f"{what}: choose another one")
    vocab_size = 30_522 if model is None else model.encoder.vocab_size
    with meta_device():
        encoder = system.build_encoder(vocab_size)
    block = encoder.blocks()[-1]
    per_block = sum(weight.numel() for weight in block.parameters())
    total = sum(weight.numel() for weight in encoder.parameters())
    width, heads, hidden = system.width, system.heads, system.mlp_size
    causal = isinstance(system, Gpt)
    is_rotary = isinstance(system, ModernBert)
    pre_norm = is_rotary or (isinstance(system, Gpt) and system.pre_norm)
    diagram = Diagram()
    high, gap = 44.0, 26.0
    attention = ("Causal self-attention" if causal else "Self-attention", f"{heads} heads of {system.head_dim}")
    inner = f"2 × {hidden}" if is_rotary else f"{hidden}"
    mlp = ("Feed-forward", f"{width} → {inner} → {width}, {'gated ' * is_rotary}{system.activation}")
    norm = ("Layer norm", f"width {width}")
    parts = [norm, attention, None, norm, mlp, None] if pre_norm else [attention, None, norm, mlp, None, norm]
    kinds = {attention: "node tint0", mlp: "node tint1", norm: "node tint4"}
    y = 0.0
    x = 0.0
    segments = isinstance(encoder, BertEncoder) and encoder.segments is not None
    embedding_parts = "token + segment + position" if segments else "token + position"
    embedded = getattr(system, "embedding_width", width)
    table = f"{vocab_size:,} × {embedded} tokens, {system.max_positions:,} × {embedded} positions"
    if is_rotary:
        embedding_parts, table = "token", f"{vocab_size:,} × {embedded} tokens; rotary positions"
    wide = max(fitted_width(table, size="small"), fitted_width(f"Embeddings: {embedding_parts}"))
    area = centered(x, y, wide, high)
    below = diagram.box(area, f"Embeddings: {embedding_parts}", note=table, kind="node tint2")
    frame_bottom = y - high / 2 - 30
    y = frame_bottom - 22
    entry: Point = (x, frame_bottom - 6)
    residual = entry
    last: Area = below
    top = y
    for part in parts:
        if part is None:
            area = diagram.sum(x, y - 9)
            diagram.arrow(last.above, area.below)
            side = x + wide / 2 + 34
            diagram.arrow(residual, (side, residual[1]), (side, area.y), area.after, kind="wire strong")
            residual = (x, area.top - gap / 2)
            y = area.top - gap
        else:
            area = diagram.box(Area(x - wide / 2, y - high, wide, high), part[0], note=part[1], kind=kinds[part])
            diagram.arrow(last.above, area.below)
            if not pre_norm and part is norm:
                residual = (x, area.top - gap / 2)
            y = area.top - gap
        last = area
        top = area.top
    frame = diagram.frame(Area(x - wide / 2 - 26, top - 18, wide + 26 + 80, frame_bottom - top + 18))
    diagram.label(f"× {system.layers}", frame.right + 12, frame.y - 8, anchor="start", size="heading")
    diagram.label(f"{per_block:,}", frame.right + 12, frame.y + 14, anchor="start", size="small", colour="accent")
    diagram.label("parameters each", frame.right + 12, frame.y + 30, anchor="start", size="small", colour="faint")
    note = f"width {width}, one per token"
    out = diagram.box(Area(x - wide / 2, frame.top - 30 - high, wide, high), "Output vectors", note=note)
    diagram.arrow(last.above, out.below)
    name = "BERT-base" if model is None else model.title
    diagram.label(name, x, out.top - 22, size="heading")
    diagram.label(f"{total:,} parameters", frame.right + 12, below.y, anchor="start", size="small", colour="accent")
    diagram.label("in all", frame.right + 12, below.y + 16, anchor="start", size="small", colour="faint")
    return Figure(
        title=f"One block of {name}",
        caption=(
            f"{system.layers} blocks of {'causal ' * causal}self-attention ({heads} heads of {system.head_dim}) and a "
            f"feed-forward network ({width} to {hidden} to {width}), each with a residual connection (blue) and a "
            f"layer norm {'before' if pre_norm else 'after'} it: {per_block:,} parameters per block, {total:,} in all."
        ),
        picture=diagram.picture(f"One block of {name}"),
        numbers={
            "layers": system.layers,
            "width": width,
            "heads": heads,
            "head dim": system.head_dim,
            "feed-forward": hidden,
            "vocabulary": vocab_size,
            "parameters per block": per_block,
            "parameters": total,
        },
    )

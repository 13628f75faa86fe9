"""Every tensor of a forward pass, from token ids to output: name, shape, meaning, statistics and a small picture.

How a generated text was chosen, candidate by candidate, is another trace: `generation/decoding_trace.py`.
"""

import base64
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from keel.errors import KeelError
from keel.events import pluralize
from keel.model import Candidate
from keel.text_table import COLUMNS, aligned_lines, cut_text

MAX_TENSORS = 3_000
"""Tensors of one trace; decoding stops before a step that would exceed it."""
PICTURE_BYTES = 2_000_000
"""Bytes of all pictures of a trace: as plain data it stays below four million characters."""
SIDES = (64, 48, 32, 24, 16, 12, 8, 4, 2)
"""Rows and columns of a picture at most: the first with which all pictures fit."""
MAX_PANELS = 64
"""Matrices of one picture, such as heads."""
MASKED = 255
"""Byte of a cell that is minus infinity, or no number."""
TOP = 10
"""Most probable predictions that a step lists."""
NAME_WIDTH = 40
"""Characters of a token that plain data shows."""


@dataclass(frozen=True, kw_only=True)
class TensorKind:
    """A tensor of a network: what it is, whatever the text and the layer."""

    name: str
    axes: tuple[str, ...]
    """The symbolic shape: batch, tokens, heads, ..."""
    meaning: str
    formula: str = ""
    part: str = "embeddings"
    """The part of the network, a box of the diagram; a number at its end distinguishes parts of one name."""
    sources: tuple[str, ...] = ()
    """Names of the tensors that it is computed from; "stream" is the output of the layer below, or the embeddings."""
    stream: bool = False
    """Whether it is the output of a layer, or the embeddings, from which the next layer continues."""


class Statistics(NamedTuple):
    """Statistics of the finite values of a tensor, and how many are minus infinity."""

    min: float
    max: float
    mean: float
    std: float
    masked: int


class TensorPicture(NamedTuple):
    """A tensor as matrices of bytes, reduced to the values of largest magnitude in blocks of cells.

    With c = byte / 254, a value is limit * c^2, or with signed values, c = byte / 127 - 1, limit * c |c|; 255 is minus
    infinity. Square roots leave more of the 8 bits to small values.
    """

    cells: np.ndarray  # [panels, rows, columns] uint8
    limit: float
    signed: bool

    @property
    def error(self) -> float:
        """The largest difference of a stored value to the exact one."""
        return self.limit * (1 - (1 - 0.5 / (127 if self.signed else 254)) ** 2)

    def decoded(self) -> np.ndarray:
        """[panels, rows, columns] the values."""
        shares = self.cells / 127 - 1 if self.signed else self.cells / 254
        return np.where(self.cells == MASKED, -np.inf, self.limit * shares * np.abs(shares))


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedTensor:
    """A tensor of a forward pass."""

    kind: TensorKind
    values: np.ndarray
    """The exact values: ids are int64, all else float32."""
    layer: int = 0
    """From 1; 0 for what belongs to no layer."""
    sources: tuple["TracedTensor", ...] = ()
    """The tensors that it is computed from."""

    def __repr__(self) -> str:
        return f"TracedTensor({self.name!r}, [{', '.join(self.kind.axes)}] = {list(self.shape)})"

    @property
    def name(self) -> str:
        return f"{self.kind.name}, layer {self.layer}" if self.layer else self.kind.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @cached_property
    def statistics(self) -> Statistics:
        finite = self.values[np.isfinite(self.values)].astype(np.float64)
        masked = self.values.size - finite.size
        if not finite.size:
            return Statistics(0.0, 0.0, 0.0, 0.0, masked)
        low, high, mean, std = (float(each) for each in (finite.min(), finite.max(), finite.mean(), finite.std()))
        return Statistics(low, high, mean, std, masked)

    def picture(self, side: int = SIDES[0]) -> TensorPicture:
        """The tensor with at most `side` rows and columns; the axes before the last two are panels."""
        shape = self.values.shape
        matrices = self.values.reshape(-1, *((1, *shape)[-2:])).astype(np.float32)[:MAX_PANELS]
        masked = ~np.isfinite(matrices)
        values = np.where(masked, 0, matrices)
        for axis in (1, 2):
            count = values.shape[axis]
            if count > side:
                starts = np.arange(side) * count // side
                high = np.maximum.reduceat(values, starts, axis)
                low = np.minimum.reduceat(values, starts, axis)
                values = np.where(-low > high, low, high)
                masked = np.logical_and.reduceat(masked, starts, axis)
        limit, signed = float(np.abs(values).max(initial=0)) or 1.0, bool((values < 0).any())
        roots = np.sqrt(np.abs(values) / limit)
        cells = 127 + 127 * np.sign(values) * roots if signed else 254 * roots
        return TensorPicture(np.where(masked, MASKED, np.round(cells)).astype(np.uint8), limit, signed)

    def picture_size(self, side: int) -> int:
        """Bytes of the picture."""
        rows, columns = (1, 1, *self.shape)[-2:]
        panels = self.values.size // max(1, rows * columns)
        return min(panels, MAX_PANELS) * min(rows, side) * min(columns, side)

    @property
    def is_ids(self) -> bool:
        """Whether it has ids, which are listed instead of shown as a picture."""
        return self.values.dtype.kind == "i"


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceStep:
    """A forward pass, a decoding step, or a time step of a recurrent network."""

    title: str
    network: str = "model"
    """The network whose step it is, the encoder or the decoder where there are both."""
    tensors: list[TracedTensor] = field(repr=False)
    labels: Mapping[str, list[list[str]]] = field(repr=False)
    """Names along an axis, such as the tokens of "queries", of each sequence of the batch."""
    read: Sequence[str] = ()
    """The tokens that the step reads."""
    predictions: Mapping[str, list[Candidate]] = field(default_factory=dict)
    """The most probable predictions, by what is predicted."""
    chosen: str = ""
    """The token that the next step reads."""
    cached: int = 0
    """Positions whose keys and values come from the KV cache."""
    cache_bytes: int = 0
    """Size of the KV cache after the step."""

    def summary(self) -> str:
        """The step in one line."""
        parts = [f"reads {' '.join(self.read)}"] if self.read else []
        if self.cache_bytes:
            parts.append(f"KV cache: {self.cached} + {len(self.read)} positions, {self.cache_bytes:,} bytes")
        parts += [f"{name}: {_best(found, 3)}" for name, found in self.predictions.items()]
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorTrace:
    """All tensors of a text on its way through a model."""

    model: str
    system: str
    summary: str
    """Layers, heads and width."""
    text: str
    second: str = ""
    steps: list[TraceStep]
    explanations: list[str] = field(default_factory=list)
    """Sentences on this text, such as what Q, K and V of a masked word are."""

    def __repr__(self) -> str:
        return f"TensorTrace({self.model!r}, {self.text!r}, {len(self.steps)} steps, {len(self.tensors)} tensors)"

    @property
    def tensors(self) -> list[TracedTensor]:
        """The tensors of all steps, in the order in which they are computed."""
        return [tensor for step in self.steps for tensor in step.tensors]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return max((tensor.layer for tensor in self.tensors), default=0)

    def tensor(self, name: str, *, layer: int = 0, step: int = 1) -> TracedTensor:
        """A tensor by its name, as in "query", its layer and its step, both from 1."""
        if not 1 <= step <= len(self.steps):
            raise KeelError(f"there is no step {step}: choose from 1 to {len(self.steps)}")
        found = [each for each in self.steps[step - 1].tensors if (each.kind.name, each.layer) == (name, layer)]
        if not found:
            known = ", ".join(dict.fromkeys(each.name for each in self.steps[step - 1].tensors))
            raise KeelError(f"step {step} has no tensor {name!r} in layer {layer}: choose one of {known:.300}")
        return found[0]

    def lines(self, *, layer: int = 0, everything: bool = False) -> list[str]:
        """A line per tensor: of the first layer and the first step of each kind, of `everything`, or, with their
        meanings, of one `layer`."""
        if layer and not 1 <= layer <= self.layers:
            raise KeelError(f"there is no layer {layer}: choose from 1 to {self.layers}")
        lines = [f"{self.model}: {self.summary}"]
        before: tuple[Any, ...] = ()
        for number, step in enumerate(self.steps, 1):
            kinds = tuple(dict.fromkeys(tensor.kind for tensor in step.tensors))
            repeats = kinds == before and not everything
            before = kinds
            lines += [] if repeats else [""]
            title = f"{number}. {step.title}" if self.steps[1:] else step.title
            lines += textwrap.wrap(f"{title}; {step.summary()}" if step.summary() else title, COLUMNS)
            if layer:
                chosen = [] if repeats else [tensor for tensor in step.tensors if tensor.layer == layer]
                lines += [line for tensor in chosen for line in _described(tensor)]
            elif not repeats:
                lines += _table(step.tensors, None if everything else 1)
        if self.explanations:
            lines += ["", *(part for each in self.explanations for part in textwrap.wrap(each, COLUMNS))]
        if not everything and not layer:
            lines += ["", "--layer N: one layer with meanings; --all: all tensors; --out FILE.html: a page"]
        return lines

    def picture_side(self) -> int:
        """Rows and columns of a picture at most, so that all fit into the bound."""
        shown = [tensor for tensor in self.tensors if not tensor.is_ids]
        return next(
            (side for side in SIDES if sum(each.picture_size(side) for each in shown) <= PICTURE_BYTES), SIDES[-1]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, below four million characters: statistics and pictures instead of the exact values.

        Tensors are those of all steps; a kind and the sources of a tensor are indices.
        """
        tensors, side = self.tensors, self.picture_side()
        kinds: dict[TensorKind, int] = {}
        index = {id(tensor): number for number, tensor in enumerate(tensors)}
        found: list[dict[str, Any]] = []
        for tensor in tensors:
            statistics = tensor.statistics
            facts: dict[str, Any] = {
                "kind": kinds.setdefault(tensor.kind, len(kinds)),
                "layer": tensor.layer,
                "shape": list(tensor.shape),
                **{name: float(f"{value:.5g}") for name, value in statistics._asdict().items() if name != "masked"},
                "sources": [index[id(source)] for source in tensor.sources if id(source) in index],
            }
            if statistics.masked:
                facts["masked"] = statistics.masked
            if tensor.is_ids:
                facts["values"] = tensor.values.tolist()
            else:
                picture = tensor.picture(side)
                panels, rows, columns = picture.cells.shape
                data = base64.b64encode(picture.cells.tobytes()).decode()
                facts["picture"] = {
                    "panels": panels,
                    "rows": rows,
                    "columns": columns,
                    "signed": picture.signed,
                    "limit": float(f"{picture.limit:.5g}"),
                    "error": float(f"{picture.error:.2g}"),
                    "data": data,
                }
            found.append(facts)
        counts = [len(step.tensors) for step in self.steps]
        return {
            "model": self.model,
            "system": self.system,
            "summary": self.summary,
            "text": self.text,
            "second": self.second,
            "explanations": self.explanations,
            "kinds": [
                {**{name: getattr(kind, name) for name in ("name", "meaning", "formula", "part")},
                 "axes": list(kind.axes)}
                for kind in kinds
            ],
            "steps": [
                {
                    "title": step.title,
                    "network": step.network,
                    "read": [_cut(token) for token in step.read],
                    "labels": {axis: [[*map(_cut, row)] for row in rows] for axis, rows in step.labels.items()},
                    "predictions": {
                        name: [{"token": _cut(each.word), "probability": round(each.probability, 6)} for each in top]
                        for name, top in step.predictions.items()
                    },
                    "chosen": _cut(step.chosen),
                    "cached": step.cached,
                    "cache_bytes": step.cache_bytes,
                    "first": sum(counts[:number]),
                    "count": counts[number],
                }
                for number, step in enumerate(self.steps)
            ],
            "tensors": found,
        }  # fmt: skip


def _table(tensors: Sequence[TracedTensor], only: int | None) -> Iterator[str]:
    """A line per tensor, under the name of its layer; with `only`, of that layer and of what is in none."""
    shown = [each for each in tensors if only is None or each.layer in (0, only)]
    rows = [(each.kind.name, _sizes(each), f"[{', '.join(each.kind.axes)}]") for each in shown]
    table = aligned_lines(rows, left=3) if rows else iter(())
    for (layer, part), group in groupby(tensors, key=lambda each: (each.layer, "" if each.layer else each.kind.part)):
        members = [*group]
        if layer and only is not None and layer != only:
            if layer == only + 1:
                last = max(each.layer for each in tensors)
                names = f"layer {layer}" if last == layer else f"layers {layer} to {last}"
                yield f"{names}: the same {pluralize(len(members), 'tensor')}"
            continue
        yield part or f"layer {layer}"
        for _ in members:
            yield f"  {next(table)}"


def _described(tensor: TracedTensor) -> Iterator[str]:
    yield f"  {tensor.kind.name}  {_sizes(tensor)}  [{', '.join(tensor.kind.axes)}]"
    yield from textwrap.wrap(tensor.kind.meaning, COLUMNS, initial_indent="      ", subsequent_indent="      ")
    if tensor.kind.formula:
        yield f"      {tensor.kind.formula}"
    found = tensor.statistics
    masked = f", {found.masked:,} masked" if found.masked else ""
    yield f"      min {found.min:.3g}, max {found.max:.3g}, mean {found.mean:.3g}, std {found.std:.3g}{masked}"


def _sizes(tensor: TracedTensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _best(found: Sequence[Candidate], count: int) -> str:
    return ", ".join(f"{each.word.strip() or repr(each.word)} {each.probability:.2f}" for each in found[:count])


def _cut(name: str) -> str:
    return cut_text(name, NAME_WIDTH)

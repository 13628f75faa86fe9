"""Every tensor of a forward pass, from token ids to output: name, shape, meaning, statistics and a small picture.

How a generated text was chosen, candidate by candidate, is another trace: `generation/decoding_trace.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from keel.errors import KeelError
from keel.events import pluralize
from keel.explain.trace.tensor_picture import MAX_SIDE, Statistics, TensorPicture, picture_size
from keel.localization import translate, translated
from keel.model import Candidate
from keel.text_table import TextLines, aligned_lines, cut_text, translated_lines

MAX_TENSORS = 3_000
"""Tensors of one trace; decoding stops before a step that would exceed it."""
PICTURE_BYTES = 2_000_000
"""Bytes of all pictures of a trace: as plain data it stays below four million characters."""
SIDES = (MAX_SIDE, 48, 32, 24, 16, 12, 8, 4, 2)
"""Rows and columns of a picture at most: the first with which all pictures fit."""
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

    def to_dict(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("name", "meaning", "formula", "part")}
        return {**named, "axes": list(self.axes)}


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
        return Statistics.of(self.values)

    @property
    def is_ids(self) -> bool:
        """Whether it has ids, which are listed instead of shown as a picture."""
        return self.values.dtype.kind == "i"

    def to_dict(self, side: int) -> dict[str, Any]:
        """Shape, statistics and the picture, or the values of ids."""
        statistics = self.statistics._asdict()
        masked = statistics.pop("masked")
        facts: dict[str, Any] = {
            "shape": list(self.shape),
            **{name: float(f"{value:.5g}") for name, value in statistics.items()},
            **({"masked": masked} if masked else {}),
        }
        if self.is_ids:
            return {**facts, "values": self.values.tolist()}
        return {**facts, "picture": TensorPicture.of(self.values, side).to_dict()}


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

    def to_dict(self) -> dict[str, Any]:
        """What it reads and predicts, and the number of its tensors."""
        predictions = {
            name: [{"token": _cut(each.word), "probability": round(each.probability, 6)} for each in top]
            for name, top in self.predictions.items()
        }
        return {
            "title": self.title,
            "network": self.network,
            "read": [*map(_cut, self.read)],
            "labels": {axis: [[*map(_cut, row)] for row in rows] for axis, rows in self.labels.items()},
            "predictions": predictions,
            "chosen": _cut(self.chosen),
            "cached": self.cached,
            "cache_bytes": self.cache_bytes,
            "count": len(self.tensors),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorTrace(TextLines):
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
        before: tuple[TensorKind, ...] = ()
        for number, step in enumerate(self.steps, 1):
            kinds = tuple(dict.fromkeys(tensor.kind for tensor in step.tensors))
            repeats = kinds == before and not everything
            before = kinds
            lines += [] if repeats else [""]
            title = f"{number}. {step.title}" if self.steps[1:] else step.title
            lines += translated_lines(f"{title}; {step.summary()}" if step.summary() else title)
            if layer:
                chosen = [] if repeats else [tensor for tensor in step.tensors if tensor.layer == layer]
                lines += [line for tensor in chosen for line in _described(tensor)]
            elif not repeats:
                lines += _table(step.tensors, None if everything else 1)
        if self.explanations:
            lines += ["", *(part for each in self.explanations for part in translated_lines(each))]
        if not everything and not layer:
            lines += ["", "--layer N: one layer with meanings; --all: all tensors; --out FILE.html: a page"]
        return lines

    def picture_side(self) -> int:
        """Rows and columns of a picture at most, so that all fit into the bound."""
        shown = [tensor for tensor in self.tensors if not tensor.is_ids]
        sizes = ((side, sum(picture_size(each.shape, side) for each in shown)) for side in SIDES)
        return next((side for side, size in sizes if size <= PICTURE_BYTES), SIDES[-1])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, below four million characters: statistics and pictures instead of the exact values.

        Tensors are those of all steps; a kind and the sources of a tensor are indices.
        """
        tensors, side = self.tensors, self.picture_side()
        kinds: dict[TensorKind, int] = {}
        index = {id(tensor): number for number, tensor in enumerate(tensors)}
        found: list[dict[str, Any]] = []
        for tensor in tensors:
            sources = [index[id(source)] for source in tensor.sources if id(source) in index]
            kind = kinds.setdefault(tensor.kind, len(kinds))
            found.append({"kind": kind, "layer": tensor.layer, "sources": sources, **tensor.to_dict(side)})
        firsts = accumulate((len(step.tensors) for step in self.steps), initial=0)
        return {
            "model": self.model,
            "system": self.system,
            "summary": self.summary,
            "text": self.text,
            "second": self.second,
            "explanations": self.explanations,
            "kinds": [kind.to_dict() for kind in kinds],
            "steps": [{**step.to_dict(), "first": first} for step, first in zip(self.steps, firsts, strict=False)],
            "tensors": found,
        }


def _table(tensors: Sequence[TracedTensor], only: int | None) -> Iterator[str]:
    """A line per tensor, under the name of its layer; with `only`, of that layer and of what is in none."""
    shown = [each for each in tensors if only is None or each.layer in (0, only)]
    rows = [(translate(each.kind.name), _sizes(each), _axes(each)) for each in shown]
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
    yield f"  {translate(tensor.kind.name)}  {_sizes(tensor)}  {_axes(tensor)}"
    yield from translated_lines(tensor.kind.meaning, first="      ", further="      ")
    if tensor.kind.formula:
        yield f"      {tensor.kind.formula}"
    found = tensor.statistics
    masked = f", {found.masked:,} masked" if found.masked else ""
    yield f"      min {found.min:.3g}, max {found.max:.3g}, mean {found.mean:.3g}, std {found.std:.3g}{masked}"


def _sizes(tensor: TracedTensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _axes(tensor: TracedTensor) -> str:
    return f"[{', '.join(translated(tensor.kind.axes))}]"


def _best(found: Sequence[Candidate], count: int) -> str:
    return ", ".join(f"{each.word.strip() or repr(each.word)} {each.probability:.2f}" for each in found[:count])


def _cut(name: str) -> str:
    return cut_text(name, NAME_WIDTH)

"""Retrieval of translations: is the nearest sentence of the other language the right one, in each layer?"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.language_detection import detect_language
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.metrics.bootstrap import Score, accuracy_score
from keel.model import Model
from keel.text_table import TextLines, aligned_lines
from keel.text_vectors import PooledOutput

BLOCK = 2048
"""Sentences whose similarities are computed at once."""


@dataclass(frozen=True, kw_only=True)
class LayerRetrieval:
    """Accuracy@1 of the vectors of one layer."""

    layer: int
    """0 for the embeddings, n for the output of block n."""
    forward: Score
    """Share of first sentences whose nearest second sentence is their translation."""
    backward: Score
    """The same from second to first sentences."""

    @property
    def mean(self) -> float:
        """Mean of both directions."""
        return (self.forward.value + self.backward.value) / 2

    @property
    def name(self) -> str:
        return f"layer {self.layer}" if self.layer else "embeddings"


@dataclass(frozen=True, kw_only=True)
class Retrieval(TextLines):
    """Retrieval of translations by the layers of a model."""

    model: str
    first: str
    """Language of the first sentences, or "first"."""
    second: str
    count: int
    """Pairs of sentences."""
    centered: bool
    """Whether the mean vector of each language was subtracted."""
    layers: list[LayerRetrieval]

    def __repr__(self) -> str:
        best = f"best: {self.best.name}, mean accuracy@1 {self.best.mean:.3f}"
        return f"Retrieval({self.model!r}, {pluralize(self.count, 'pair')}; {best})"

    @property
    def best(self) -> LayerRetrieval:
        """The layer with the highest mean of both directions."""
        return max(self.layers, key=lambda each: each.mean)

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Accuracy by layer, for each direction."""
        return {
            f"{self.first} → {self.second}": [(each.layer, each.forward.value) for each in self.layers],
            f"{self.second} → {self.first}": [(each.layer, each.backward.value) for each in self.layers],
        }

    def rows(self) -> list[list[str]]:
        """A table of the layers, with its head."""
        head = ["", *self.curves(), "mean"]
        return [
            head,
            *([each.name, f"{each.forward:.3f}", f"{each.backward:.3f}", f"{each.mean:.3f}"] for each in self.layers),
        ]

    def lines(self) -> list[str]:
        """The table as text."""
        centered = ", mean-centred by language" if self.centered else ""
        return [
            f"accuracy@1 of translations among {self.count:,} sentences{centered}",
            *aligned_lines(self.rows(), left=1),
            f"best: {self.best.name}; chance {1 / self.count:.4f}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"best": self.best.layer}


def retrieve_translations(
    model: Model,
    pairs: Examples,
    *,
    center: bool = False,
    pool: PooledOutput = "mean",
    sample: int = 0,
    seed: int = 0,
    on_event: OnEvent = ignore,
) -> Retrieval:
    """Accuracy@1 of cosine similarity in both directions, for each layer, among all given sentences.

    A pair of which a sentence came before is left out, as it has several right answers. `center` subtracts the mean
    vector of each language, which removes most of what tells languages apart.
    """
    chosen = _distinct_pairs(pairs, on_event)
    if sample and len(chosen) > sample:
        note(on_event, f"a sample of {sample:,} of {pluralize(len(chosen), 'pair')} (seed {seed})")
        chosen = sorted(np.random.default_rng(seed).choice(chosen, sample, replace=False).tolist())
    if len(chosen) < 2:
        raise KeelError(f"{pairs.source} has fewer than two different pairs of sentences: give more")
    texts = [[str(column[index]) for index in chosen] for column in (pairs.texts, pairs.values)]
    vectors = [model.encode_layers(side, pool=pool, on_event=on_event) for side in texts]
    languages = [detect_language(" ".join(side)) for side in texts]
    named = "other" not in languages and "" not in languages and languages[0] != languages[1]
    layers = [
        LayerRetrieval(layer=number, forward=forward, backward=backward)
        for index, number in enumerate(model.encoder.layer_numbers)
        for forward, backward in [_accuracies(*(side[:, index] for side in vectors), center=center)]
    ]
    first, second = languages if named else ("first", "second")
    return Retrieval(model=model.title, first=first, second=second, count=len(chosen), centered=center, layers=layers)


def _distinct_pairs(pairs: Examples, on_event: OnEvent) -> list[int]:
    """The pairs neither of whose sentences came before."""
    if pairs.kind is None:
        raise UsageError(f"{pairs.source} has one column of sentences: give pairs, a sentence and its translation")
    seen: tuple[set[str], set[str]] = (set(), set())
    chosen: list[int] = []
    for index, pair in enumerate(zip(pairs.texts, pairs.values, strict=True)):
        keys = [" ".join(text.split()) for text in pair]
        if not any(key in side for key, side in zip(keys, seen, strict=True)):
            chosen.append(index)
        for key, side in zip(keys, seen, strict=True):
            side.add(key)
    if repeated := len(pairs) - len(chosen):
        note(
            on_event,
            f"{pairs.source}: {pluralize(repeated, 'pair')} of {len(pairs):,} with a repeated sentence left out",
        )
    return chosen


def _accuracies(first: np.ndarray, second: np.ndarray, *, center: bool) -> tuple[Score, Score]:
    """Accuracy@1 from the first vectors to the second ones, and back."""
    sides = [side - side.mean(0) if center else side for side in (first, second)]
    units = [side / np.linalg.norm(side, axis=1, keepdims=True).clip(1e-12) for side in sides]
    return _nearest_is_translation(*units), _nearest_is_translation(*reversed(units))


def _nearest_is_translation(queries: np.ndarray, targets: np.ndarray) -> Score:
    correct = 0
    for start in range(0, len(queries), BLOCK):
        nearest = (queries[start : start + BLOCK] @ targets.T).argmax(1)
        correct += int((nearest == np.arange(start, start + len(nearest))).sum())
    return accuracy_score(correct, len(queries))

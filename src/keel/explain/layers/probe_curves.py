"""Results of probing: the accuracy of a linear probe on each layer, by task."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from keel.events import pluralize
from keel.explain.layers.layer_table import TableColumn, layer_lines
from keel.metrics.bootstrap import Score, Values, bootstrap
from keel.text_table import TextLines

Unit = Literal["word", "span", "pair"]


@dataclass(frozen=True, kw_only=True)
class ProbeCurve:
    """The accuracy of a linear probe on each layer, for one task; intervals resample the texts of the test."""

    task: str
    source: str
    """File of the training examples."""
    unit: Unit
    """What is classified: words, spans or pairs of spans."""
    classes: int
    train: int
    """Training examples."""
    test: int
    """Test examples."""
    unseen: int
    """Test examples whose label does not occur in training: they count as errors."""
    majority: float
    """Accuracy of the most frequent training label."""
    layers: list[int]
    """Numbers of the layers; 0 for the embeddings."""
    scores: list[Score]
    l2: list[float]
    """L2 strength of each probe."""
    control: list[Score] | None = None
    """Accuracy of the same probe on the control task: a random label for each type of word or span."""
    selectivity: list[Score] | None = None
    """Accuracy minus that on the control task (Hewitt and Liang 2019)."""
    random: list[Score] | None = None
    """Accuracy with random weights of the encoder."""

    @property
    def best(self) -> int:
        """The layer of the highest accuracy, the lowest of several."""
        return self.layers[int(np.argmax([each.value for each in self.scores]))]

    @property
    def expected_layer(self) -> float | None:
        """Σ_l l Δ(l) / Σ_l Δ(l) over the layers above the embeddings (Tenney et al. 2019), where Δ(l) is what layer l
        adds to the highest accuracy of those below; None if none adds any. A scalar mix under a linear probe learns to
        be the best layer alone."""
        reached = np.maximum.accumulate([each.value for each in self.scores])
        gains = np.diff(reached)
        return float(gains @ self.layers[1:] / gains.sum()) if gains.sum() > 0 else None

    def score(self, layer: int) -> Score:
        """The accuracy on a layer."""
        return self.scores[self.layers.index(layer)]

    def brief(self) -> str:
        """One line: the best layer, and what to compare it with."""
        index, expected = self.layers.index(self.best), self.expected_layer
        found = f"{self.task}: best at layer {self.best}, {_percent(self.scores[index])}; majority {self.majority:.1%}"
        if self.selectivity is not None:
            found += f"; selectivity there {_percent(self.selectivity[index])}"
        if self.random is not None:
            found += f"; random weights at most {max(each.value for each in self.random):.1%}"
        return found if expected is None else f"{found}; expected layer {expected:.1f}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best, "expected_layer": self.expected_layer}


def _percent(score: Score) -> str:
    return f"{score.value:.1%}{percent_interval(score)}"


def percent_interval(score: Score) -> str:
    """The interval of a score in percent, in parentheses; empty without one."""
    if score.interval is None:
        return ""
    low, high = score.interval
    return f" ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True, kw_only=True)
class LayerProbes(TextLines):
    """Probing curves of a model: what a linear probe reads from each layer of the frozen encoder."""

    model: str
    layers: list[int]
    curves: list[ProbeCurve]
    seed: int = 0

    def __repr__(self) -> str:
        best = ", ".join(f"{each.task}: best at layer {each.best}" for each in self.curves)
        return f"LayerProbes({self.model!r}, {pluralize(len(self.layers), 'layer')}; {best})"

    def curve(self, task: str) -> ProbeCurve:
        """The curve of a task."""
        return next(each for each in self.curves if each.task == task)

    def lines(self) -> list[str]:
        """Tables of layers down and tasks across, and a line for each task."""
        sizes = sorted({(each.train, each.test) for each in self.curves})
        counts = ", ".join(f"{train:,} / {test:,}" for train, test in sizes)
        found = [
            f"{self.model}: linear probes on {pluralize(len(self.layers), 'layer')} (0: embeddings)",
            f"examples for training / test: {counts}",
            "",
            "accuracy in percent",
            *self._table([(each, each.scores) for each in self.curves], majority=True),
        ]
        for title, values in (
            ("selectivity: accuracy minus that of random labels by type", [each.selectivity for each in self.curves]),
            ("accuracy with random weights of the encoder", [each.random for each in self.curves]),
        ):
            shown = [(curve, each) for curve, each in zip(self.curves, values, strict=True) if each is not None]
            if shown:
                found += ["", title, *self._table(shown)]
        return [*found, "", *(each.brief() for each in self.curves)]

    def _table(self, values: Iterable[tuple[ProbeCurve, Sequence[Score]]], *, majority: bool = False) -> list[str]:
        columns = [
            TableColumn(
                curve.task,
                {layer: f"{100 * score.value:.1f}" for layer, score in zip(curve.layers, scores, strict=True)},
                [f"{100 * curve.majority:.1f}"] if majority else [],
            )
            for curve, scores in values
        ]
        return [*layer_lines(columns, ["majority"] if majority else [])]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        tasks = [each.to_dict() for each in self.curves]
        return {"model": self.model, "layers": self.layers, "seed": self.seed, "tasks": tasks}


def probe_scores(
    correct: np.ndarray, control: np.ndarray | None, random: np.ndarray | None, texts: np.ndarray
) -> dict[str, list[Score]]:
    """Scores of each layer from [layers, examples] whether each test example is correct, also those of the control task
    and with random weights, where given; `texts` [examples] is the text of each, which the bootstrap resamples."""
    parts = {"scores": correct, "control": control, "random": random}
    _, numbers = np.unique(texts, return_inverse=True)
    sizes = np.bincount(numbers).astype(float)
    sums = {
        name: np.stack([np.bincount(numbers, row) for row in part], 1)  # [texts, layers]
        for name, part in parts.items()
        if part is not None
    }

    def statistics(weights: np.ndarray) -> Values:
        shares = {name: weights @ each / (weights @ sizes)[:, None] for name, each in sums.items()}  # [samples, layers]
        if "control" in shares:
            shares["selectivity"] = shares["scores"] - shares["control"]
        return {f"{name} {layer}": column for name, each in shares.items() for layer, column in enumerate(each.T)}

    found: dict[str, list[Score]] = {}
    for name, score in bootstrap(statistics, len(sizes)).items():
        found.setdefault(name.split()[0], []).append(score)
    return found

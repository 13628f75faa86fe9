"""Attributions: which words made a prediction, by integrated gradients or occlusion, and how well they rank the words.

Integrated gradients: Sundararajan, Taly and Yan 2017. Occlusion: Zeiler and Fergus 2014; Li, Monroe and Jurafsky 2016.
Deletion and insertion curves: Petsiuk, Das and Saenko 2018.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.cells import cell_len

from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.attributions.prediction_layouts import NamedText
from keel.explain.attributions.prediction_scores import Baseline, EmbeddedPrediction, PredictionScores, score_prediction
from keel.localization import Verbatim, translate
from keel.model import Model
from keel.text_table import TextLines, cut_text, pad_left, pad_right, signed

Method = Literal["auto", "gradients", "occlusion"]
STEPS = 64
"""Points of the Gauss-Legendre rule."""
PARTS = (1, 4, 16)
"""Intervals of the integral: more if the completeness error is above the tolerance."""
TOLERANCE = 0.02
POINTS = 20
"""Most points of a curve after its first."""
ORDERS = 20
"""Random orders that curves are compared with."""
BAR = 24
"""Characters of the longest bar on each side of the axis."""
MAX_SHOWN = 40
"""Words with a line of their own."""
NAME = 20
"""Columns of a word."""


class WordAttribution(NamedTuple):
    """A word with its share in the score: index of its text, characters there, attribution."""

    word: str
    attribution: float
    text: int
    start: int
    end: int


@dataclass(frozen=True)
class Curves:
    """Probability of the prediction while words are deleted, or inserted into an input without words, in the order of
    their attributions; and its mean over random orders."""

    shares: list[float]
    """Shares of the words that are deleted or inserted, from 0 to 1."""
    deletion: list[float]
    insertion: list[float]
    random_deletion: list[float]
    random_insertion: list[float]
    random_areas: list[tuple[float, float]]
    """Areas under both curves for each random order."""

    @property
    def deletion_area(self) -> float:
        """Area under the curve: the lower the better."""
        return _area(self.shares, self.deletion)

    @property
    def insertion_area(self) -> float:
        """Area under the curve: the higher the better."""
        return _area(self.shares, self.insertion)

    @property
    def beats_random(self) -> bool:
        """Whether both areas are better than the means of random orders."""
        deletion, insertion = np.mean(self.random_areas, axis=0).tolist()
        return self.deletion_area < deletion and self.insertion_area > insertion

    def lines(self) -> list[str]:
        means, deviations = np.mean(self.random_areas, axis=0), np.std(self.random_areas, axis=0)
        rows = (("deletion", self.deletion_area, "low"), ("insertion", self.insertion_area, "high"))
        lines: list[str] = []
        for (name, area, wanted), mean, deviation in zip(rows, means, deviations, strict=True):
            curve, good = pad_right(translate(name), 9), translate(wanted)
            lines.append(f"{curve} area {area:.3f}, random order {mean:.3f} ± {deviation:.3f} ({good} is good)")
        return lines

    def to_dict(self) -> dict[str, Any]:
        random = np.mean(self.random_areas, axis=0).tolist()
        return {
            "shares": self.shares,
            "deletion": self.deletion,
            "insertion": self.insertion,
            "random_deletion": self.random_deletion,
            "random_insertion": self.random_insertion,
            "areas": {"deletion": self.deletion_area, "insertion": self.insertion_area},
            "random_areas": {"deletion": random[0], "insertion": random[1], "orders": len(self.random_areas)},
        }


@dataclass(frozen=True, kw_only=True)
class Explanation(TextLines):
    """The attributions of all words that a prediction was made from."""

    model: str
    task: str
    by: str
    """gradients or occlusion."""
    prediction: str
    """The label, tag, answer or number."""
    target: str
    """The score that attributions are shares of, such as "log-odds of 'positive'"."""
    probability: float | None
    """Probability of the prediction; None for a number."""
    texts: tuple[NamedText, ...]
    words: list[WordAttribution]
    score: float
    """The score of the input, such as the log-odds of a label."""
    baseline: str
    """What stands for an absent word: zero vectors, a special token, or "left out"."""
    baseline_score: float
    """The score of the input without its words."""
    steps: int
    """Integration steps in the end; 0 for occlusion."""
    passes: int
    """Forward passes of the input; by gradients, all but two of them with a backward pass."""
    tokens: int
    """Tokens of the input."""
    curves: Curves | None = None

    def __repr__(self) -> str:
        return (
            f"Explanation({self.prediction!r:.60} by {self.model!r}, {pluralize(len(self.words), 'word')}, {self.by})"
        )

    @property
    def total(self) -> float:
        """Sum of the attributions."""
        return float(sum(word.attribution for word in self.words))

    @property
    def difference(self) -> float:
        """What integrated gradients sum to: the score of the input minus that of the input without words."""
        return self.score - self.baseline_score

    @property
    def completeness_error(self) -> float:
        """Gap between the sum of the attributions and the difference of the scores, as a share of the sum of their
        absolute values; of occlusion it says how much the words interact."""
        return relative_gap(np.array([word.attribution for word in self.words]), self.difference)

    def ranked(self) -> list[WordAttribution]:
        """The words by their attribution, the strongest support for the prediction first."""
        return sorted(self.words, key=lambda word: -word.attribution)

    def lines(self) -> list[str]:
        """What is explained, a signed bar per word, the check of completeness and the cost."""
        chance = "" if self.probability is None else f" ({self.probability:.3f})"
        lines = [f"{self.prediction}{chance} by {self.model}", f"{self.target} {self.score:.3f}"]
        shown = self.words
        if len(shown) > MAX_SHOWN:
            least = sorted((abs(word.attribution) for word in shown), reverse=True)[MAX_SHOWN - 1]
            shown = [word for word in shown if abs(word.attribution) >= least][:MAX_SHOWN]
        largest = max((abs(word.attribution) for word in self.words), default=0.0) or 1.0
        width = min(NAME, max((cell_len(word.word) for word in shown), default=0))
        text = 0 if len(self.texts) == 1 else -1
        for word in shown:
            if word.text != text:
                text = word.text
                lines.append(f"{self.texts[text].name}:")
            bar = round(BAR * abs(word.attribution) / largest)
            left, right = ("-" * bar, "") if word.attribution < 0 else ("", "+" * bar)
            name, value = cut_text(word.word, width), signed(word.attribution, largest)
            lines.append(Verbatim(f"{pad_left(name, width)} {value:>8} {left:>{BAR}}|{right}".rstrip()))
        if len(self.words) > len(shown):
            lines.append(f"showing the {len(shown)} strongest of {len(self.words):,} words: --json prints all")
        lines += [*self.check(), self.cost()]
        return lines if self.curves is None else [*lines, *self.curves.lines()]

    def check(self) -> list[str]:
        """The sum of the attributions beside the difference of the scores, and how far they are apart."""
        without = f"{self.score:.3f} minus {self.baseline_score:.3f} without words ({self.baseline})"
        error = f"{self.completeness_error:.1%}"
        meaning = f"completeness error {error}" if self.steps else f"not additive, words interact: {error} apart"
        return [f"sum {self.total:.3f}, score {without}", f"{meaning}"]

    def cost(self) -> str:
        """The number of passes."""
        method = f"integrated gradients, {self.steps} steps" if self.steps else "occlusion"
        return f"{method}; {pluralize(self.passes, 'pass', 'passes')} of {pluralize(self.tokens, 'token')}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "task": self.task,
            "by": self.by,
            "prediction": self.prediction,
            "target": self.target,
            **({} if self.probability is None else {"probability": self.probability}),
            "texts": {each.name: each.text for each in self.texts},
            "words": [word._asdict() | {"text": self.texts[word.text].name} for word in self.words],
            "score": self.score,
            "baseline": self.baseline,
            "baseline_score": self.baseline_score,
            "sum": self.total,
            "completeness_error": self.completeness_error,
            "steps": self.steps,
            "passes": self.passes,
            "tokens": self.tokens,
            **({} if self.curves is None else {"curves": self.curves.to_dict()}),
        }


def attribute_words(
    model: Model,
    text: str,
    second: str | None = None,
    *,
    by: Method = "auto",
    label: str = "",
    word: str = "",
    baseline: Baseline = "auto",
    steps: int = STEPS,
    curves: bool = False,
    chinese_words: bool = False,
    on_event: OnEvent = ignore,
) -> Explanation:
    """The attribution of each word to the prediction of a fine-tuned model."""
    scores = score_prediction(
        model, text, second, label=label, word=word, baseline=baseline, chinese_words=chinese_words
    )
    embedded = isinstance(scores, EmbeddedPrediction)
    if by == "gradients" and not embedded:
        name = model.system.name
        raise UsageError(f"{name} counts words and has no input embeddings to take gradients of: use --by occlusion")
    count = len(scores.words)
    ends = scores.occlude(np.array([[False] * count, [True] * count]))
    score, baseline_score = ends.scores.tolist()
    values, passes, used = np.zeros(count), count, 0
    if embedded and by != "occlusion":
        passes = 0
        for parts in PARTS:
            used = parts * steps
            values = scores.integrated_gradients(steps, parts)
            passes += used
            if relative_gap(values, score - baseline_score) <= TOLERANCE:
                break
    else:
        values = score - scores.occlude(np.eye(count, dtype=bool)).scores.astype(float)
    found: Curves | None = None
    if curves:
        found = ranking_curves(scores, values)
        passes += 2 * (ORDERS + 1) * len(found.shares)
    assert model.task is not None
    explanation = Explanation(
        model=model.title,
        task=model.task.name,
        by="gradients" if used else "occlusion",
        prediction=scores.target.prediction,
        target=scores.target.meaning,
        probability=float(ends.probabilities[0]) if model.label_names or model.task.name == "answer" else None,
        texts=scores.texts,
        words=[
            WordAttribution(scores.texts[each.text].text[each.start : each.end], value, *each)
            for each, value in zip(scores.words, values.tolist(), strict=True)
        ],
        score=score,
        baseline=scores.baseline,
        baseline_score=baseline_score,
        steps=used,
        passes=passes + 2,
        tokens=scores.tokens,
        curves=found,
    )
    if used and explanation.completeness_error > TOLERANCE:
        error = f"{explanation.completeness_error:.1%}"
        note(on_event, f"completeness error {error} after {used:,} steps: use more --steps, or another --baseline")
    return explanation


def ranking_curves(scores: PredictionScores, values: np.ndarray, orders: int = ORDERS, seed: int = 0) -> Curves:
    """Deletion and insertion curves of a ranking by `values` [words], and of random orders."""
    count = len(values)
    rng = np.random.default_rng(seed)
    # The rank of each word in each order: 0 is deleted, or inserted, first.
    ranks = np.stack([np.argsort(np.argsort(-values, kind="stable")), *(rng.permutation(count) for _ in range(orders))])
    points = np.unique(np.linspace(0, count, min(count, POINTS) + 1).round().astype(int))
    deleted = ranks[:, None] < points[:, None]  # [orders, points, words]
    masks = np.stack([deleted, ~deleted]).reshape(-1, count)
    found = scores.occlude(masks).probabilities.astype(float).reshape(2, len(ranks), len(points))
    shares = (points / count).tolist()
    means = found[:, 1:].mean(1)
    return Curves(
        shares=shares,
        deletion=found[0, 0].tolist(),
        insertion=found[1, 0].tolist(),
        random_deletion=means[0].tolist(),
        random_insertion=means[1].tolist(),
        random_areas=[(_area(shares, a), _area(shares, b)) for a, b in zip(found[0, 1:], found[1, 1:], strict=True)],
    )


def relative_gap(values: np.ndarray, difference: float) -> float:
    """Gap between the sum of attributions and what they should sum to, as a share of their absolute values."""
    return float(abs(values.sum() - difference) / max(np.abs(values).sum(), 1e-9))


def _area(shares: list[float], curve: Sequence[float] | np.ndarray) -> float:
    return float(np.trapezoid(curve, shares))

"""How well a model predicts: scores with bootstrap intervals, the confusion matrix and the surest errors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.examples import Examples, Labels
from keel.data.predictions import ChoicePredictions, Predictions
from keel.errors import KeelError
from keel.events import counted

RESAMPLES = 1000
ERRORS = 20
ENOUGH = 10
"""Examples from which on it is no accident that all are given one class."""
POSITIVE = {"1", "true", "yes", "y", "positive", "pos", "good", "entailment", "duplicate", "paraphrase", "spam"}

Values = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure and the interval that holds it in 95 of 100 resamples of the examples."""

    value: float
    low: float | None
    """None, like `high`, where there are not two examples to draw from."""
    high: float | None

    def __format__(self, form: str) -> str:
        value, *bounds = (format(each, form or ".3f") for each in (self.value, self.low, self.high) if each is not None)
        return f"{value} ({' to '.join(bounds)})" if bounds else value

    def differs_from(self, other: "Score") -> bool:
        """Whether the two have intervals, and these do not overlap."""
        bounds = self.low, self.high, other.low, other.high
        low, high, other_low, other_high = (nan if each is None else each for each in bounds)
        return high < other_low or other_high < low


def format_score(name: str, score: Mapping[str, float]) -> str:
    """A `Score` as plain data in words: "accuracy 0.527 (0.469 to 0.585)"."""
    return f"{name} {Score(**score):.3f}"


def format_main_score(scores: Mapping[str, Any]) -> str:
    """The score to compare by in words, from `Scores.brief()` or from the mean over several runs."""
    main, values = scores["main"], scores["values"]
    if "mean" in scores:
        return f"{main} {scores['mean']:.3f} on average of {len(values)}"
    return format_score(main, values[main])


@dataclass(frozen=True, kw_only=True)
class PredictionError:
    """An example that was predicted wrongly, and how surely (for numbers: by how much)."""

    where: str
    text: str
    second: str | None
    label: Any
    predicted: Any
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of one model on one set of examples."""

    main: str
    """The name of the score to compare by."""
    values: dict[str, Score]
    count: int
    errors: list[PredictionError]
    """The surest ones, at most 20."""
    names: tuple[str, ...] = ()
    positive: str | None = None
    """Of two classes, the one whose F1 is given; with more, F1 is the mean over classes."""
    confusion: list[list[int]] | None = None
    """Rows are the true labels, columns the predicted ones, in the order of `names`; of tags, those of all words."""
    types: dict[str, dict[str, Score]] = field(default_factory=dict)
    """Of entities: precision, recall and F1 for each type."""
    note: str = ""
    """What to know about these figures."""

    @property
    def main_value(self) -> float:
        """The score to compare by."""
        return self.values[self.main].value

    @property
    def warning(self) -> str:
        """What is wrong with a model that gives every example, or every word, one class though they have several;
        nothing of others."""
        table = np.array(self.confusion or [[0]])
        truth, said = np.flatnonzero(table.any(1)), np.flatnonzero(table.any(0))
        if (total := int(table.sum())) < ENOUGH or len(said) > 1 or len(truth) < 2:
            return ""
        unit, name = "examples" if total == self.count else "words", self.names[said[0]]
        what = f"it says {name!r} to every one of the {total:,} {unit}"
        if self.main == "f1" and unit == "words" and name != "O":  # which stands for its tags, B-LOC and I-LOC
            what = f"it takes every one of the {total:,} words for a part of {name!r}"
        return f"{what}: try more --epochs, another --lr, or a model that has learned from more text"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def brief(self) -> dict[str, Any]:
        """The figures alone, for a model card: no text of the examples."""
        kept = ("main", "values", "count", *(["types"] if self.types else []))
        return {name: value for name, value in self.to_dict().items() if name in kept}

    def write(self, folder: Path) -> None:
        """Write scores.json, errors.tsv and, where there is one, confusion.tsv into a folder."""
        columns = [each.name for each in fields(PredictionError)]
        tables = {"errors.tsv": [columns, *([getattr(error, name) for name in columns] for error in self.errors)]}
        if self.confusion is not None:
            rows = zip(self.names, self.confusion, strict=True)
            tables["confusion.tsv"] = [["true \\ predicted", *self.names], *([name, *row] for name, row in rows)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "scores.json").write_text(json.dumps(self.brief(), indent=1), encoding="utf-8")
            for name, rows in tables.items():
                lines = ["\t".join(" ".join(str(cell).split()) for cell in row) + "\n" for row in rows]
                (folder / name).write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise KeelError(f"{folder} cannot be written to ({error.strerror}): choose another --out") from None

    def __str__(self) -> str:
        note = f" (f1 is of {self.positive!r})" if self.positive is not None else ""
        figures = ", ".join(format_score(name, vars(score)) for name, score in self.values.items())
        return f"{figures} on {counted(self.count, 'example')}{note}{self.note and f'; {self.note}'}"


def score_labels(examples: Examples, predictions: Predictions, *, seed: int = 0) -> Scores:
    """The scores that apply to these predictions, by the examples' own labels."""
    labels = predictions.labels
    truth, estimates = labels.targets(examples).numpy(), predictions.estimates
    random = np.random.default_rng(seed)
    if labels.kind == "one":
        return _score_one(examples, labels, truth, estimates, random)
    if labels.kind == "several":
        return _score_several(examples, labels, truth > 0, estimates, random)
    return _score_number(examples, truth.astype(np.float64), estimates.astype(np.float64), random)


def _score_one(
    examples: Examples, labels: Labels, targets: np.ndarray, estimates: np.ndarray, random: np.random.Generator
) -> Scores:
    count, classes = estimates.shape
    predicted = estimates.argmax(1)
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (targets, predicted), 1)
    positive = positive_class(labels.names)
    # These scores depend on the confusion counts alone, and resampling examples is a multinomial draw of those.
    truth, guess = confusion.nonzero()
    cells = np.vstack([confusion[truth, guess], random.multinomial(count, confusion[truth, guess] / count, RESAMPLES)])
    one_hot = np.eye(classes)
    values = _from_counts(
        hits=cells @ (one_hot[truth] * (truth == guess)[:, None]),
        truth=cells @ one_hot[truth],
        guess=cells @ one_hot[guess],
        positive=positive,
    )
    wrong = np.flatnonzero(predicted != targets)
    sureness = estimates[wrong, predicted[wrong]]
    said = [labels.names[number] for number in predicted]
    return Scores(
        main="accuracy",
        values=intervals(values, count),
        count=count,
        names=labels.names,
        positive=None if positive is None else labels.names[positive],
        confusion=confusion.tolist(),
        errors=_surest(examples, wrong, sureness, said),
    )


def positive_class(names: tuple[str, ...]) -> int | None:
    """Of two classes, the one that F1 asks for: by its name, else the later one; None where there are more."""
    if len(names) != 2:
        return None
    found = [number for number, name in enumerate(names) if name.lower() in POSITIVE]
    return found[0] if len(found) == 1 else 1


def _from_counts(hits: np.ndarray, truth: np.ndarray, guess: np.ndarray, positive: int | None) -> Values:
    """Scores from [samples, classes] counts of right guesses, true labels and guesses."""
    total = truth.sum(1)
    present = truth + guess > 0
    f1 = safe_ratio(2 * hits, truth + guess)
    # Matthews for any number of classes (Gorodkin 2004).
    spread = np.sqrt((total**2 - (guess**2).sum(1)) * (total**2 - (truth**2).sum(1)))
    return {
        "accuracy": hits.sum(1) / total,
        "f1": f1.sum(1) / present.sum(1) if positive is None else f1[:, positive],
        "matthews": safe_ratio(hits.sum(1) * total - (truth * guess).sum(1), spread),
    }


def _score_several(
    examples: Examples, labels: Labels, truth: np.ndarray, estimates: np.ndarray, random: np.random.Generator
) -> Scores:
    guess = estimates > 0.5
    parts: list[Values] = []
    for weights in resamples(len(truth), random):
        hits, true, guessed = weights @ (guess & truth), weights @ truth, weights @ guess
        f1 = safe_ratio(2 * hits, true + guessed)
        parts.append(
            {
                "f1": safe_ratio(2 * hits.sum(1), true.sum(1) + guessed.sum(1)),
                "macro_f1": safe_ratio(f1.sum(1), (true + guessed > 0).sum(1)),
                "accuracy": weights @ (guess == truth).all(1) / len(truth),
            }
        )
    wrong = np.flatnonzero((guess != truth).any(1))
    sureness = 0.5 + (np.abs(estimates - 0.5) * (guess != truth)).max(1)[wrong]
    said = [tuple(name for name, yes in zip(labels.names, row, strict=True) if yes) for row in guess]
    return Scores(
        main="f1",
        values=intervals(concatenate_parts(parts), len(truth)),
        count=len(truth),
        names=labels.names,
        errors=_surest(examples, wrong, sureness, said),
    )


def _score_number(examples: Examples, truth: np.ndarray, guess: np.ndarray, random: np.random.Generator) -> Scores:
    parts: list[Values] = []
    for weights in resamples(len(truth), random):
        parts.append(
            {
                "spearman": _correlation(weights, _ranks(weights, truth), _ranks(weights, guess)),
                "pearson": _correlation(weights, truth[None], guess[None]),
            }
        )
    wrong = np.flatnonzero(truth != guess)
    return Scores(
        main="spearman",
        values=intervals(concatenate_parts(parts), len(truth)),
        count=len(truth),
        errors=_surest(examples, wrong, np.abs(truth - guess)[wrong], guess.tolist()),
    )


def score_choices(examples: Examples, predictions: ChoicePredictions, *, seed: int = 0) -> Scores:
    """How often the likeliest choice is the right one, and how often a guess would be."""
    truth, said = predictions.labels.targets(examples).numpy(), predictions.predicted
    hits = np.array([each.index for each in said]) == truth
    resampled = np.random.default_rng(seed).binomial(len(hits), hits.mean(), RESAMPLES) / len(hits)
    wrong = np.flatnonzero(~hits)
    guess = np.mean([1 / len(choices) for choices in predictions.choices])
    return Scores(
        main="accuracy",
        values=intervals({"accuracy": np.append(hits.mean(), resampled)}, len(hits)),
        count=len(hits),
        errors=_surest(examples, wrong, np.array([said[n].probability for n in wrong]), [each.text for each in said]),
        note=f"a guess is right in {guess:.1%}",
    )


def resamples(count: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """[samples, examples] how often each resample holds each example, in chunks; the first is all of them once."""
    yield np.ones((1, count))
    chunk = max(1, min(RESAMPLES, 5_000_000 // count))
    for start in range(0, RESAMPLES, chunk):
        rows = min(chunk, RESAMPLES - start)
        chosen = random.integers(0, count, (rows, count)) + np.arange(rows)[:, None] * count
        yield np.bincount(chosen.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)


def _ranks(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[samples, examples]: the rank of every example in each resample, ties and repeats at their mean rank."""
    order = np.argsort(values, kind="stable")
    firsts = np.flatnonzero(np.r_[True, np.diff(values[order]) > 0])
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(firsts)), np.diff(np.r_[firsts, len(values)]))
    sizes = np.add.reduceat(weights[:, order], firsts, axis=1)
    return (sizes.cumsum(1) - sizes / 2)[:, group]


def _correlation(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[samples]: Pearson's r of each resample; 0 where x or y does not vary."""
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    y = y - (weights * y).sum(1, keepdims=True) / total
    covariance, spread_x, spread_y = ((weights * product).sum(1) for product in (x * y, x * x, y * y))
    return safe_ratio(covariance, np.sqrt(spread_x * spread_y))


def safe_ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, 0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)


def concatenate_parts(parts: list[Values]) -> Values:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def intervals(values: Values, count: int) -> dict[str, Score]:
    """Of each score, the value (the first one) and the percentiles of the others, its resamples of so many examples."""
    if count < 2:
        return {name: Score(value=float(figures[0]), low=None, high=None) for name, figures in values.items()}
    bounds = {name: np.quantile(figures[1:], (0.025, 0.975)).tolist() for name, figures in values.items()}
    return {name: Score(value=float(values[name][0]), low=low, high=high) for name, (low, high) in bounds.items()}


def _surest(examples: Examples, wrong: np.ndarray, sureness: np.ndarray, predicted: list[Any]) -> list[PredictionError]:
    order = np.argsort(-sureness, kind="stable")[:ERRORS]
    return [
        PredictionError(
            where=examples[number].location,
            text=examples[number].text,
            second=examples[number].second,
            label=examples[number].gold,
            predicted=predicted[number],
            confidence=float(sure),
        )
        for number, sure in zip(wrong[order].tolist(), sureness[order], strict=True)
    ]

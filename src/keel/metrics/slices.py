"""Slices of a labelled dataset: by text length, by true label or by the values of a column."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.label_columns import find_missing
from keel.data.label_kinds import ChoiceLabel, Regression, SpanLabel, TextTarget
from keel.data.predictions import Predictions
from keel.errors import UsageError
from keel.metrics.scores import Scores, SliceScores, score_name

BUCKETS = 4
"""Quantile buckets of lengths and numbers."""
SHOWN = 10
"""Values with a slice of their own, the most frequent ones; the others share one."""
NONE = "(none)"

Slices = dict[str, list[int]]
"""Example indices by the name of the slice."""
ScoreFunction = Callable[[Examples, Predictions], Scores]
"""What computes the scores of predictions, such as `Task.score`."""


def slice_by_length(examples: Examples) -> Slices:
    """Quartiles of the length in characters, of pairs that of both texts; of pre-tokenized texts in words."""
    if examples.words:
        return _quantile_buckets([len(words) for words in examples.words], "{:.0f}", " words")
    seconds = examples.seconds or [""] * len(examples)
    lengths = [len(text) + len(second) for text, second in zip(examples.texts, seconds, strict=True)]
    return _quantile_buckets(lengths, "{:.0f}", " characters")


def slice_by_label(examples: Examples) -> Slices:
    """The examples of each true label; numbers in quartiles, tags by their type, choices by their position, questions
    by whether they have an answer."""
    if isinstance(examples.kind, TextTarget):
        raise UsageError(
            "--slice label is for labels, and these targets are texts: use --slice length, or leave it out"
        )
    if isinstance(examples.kind, Regression):
        return _quantile_buckets(examples.values, "{:g}")
    if isinstance(examples.kind, ChoiceLabel):
        return slice_by_values([f"choice {value + 1}" for value in examples.values])
    if isinstance(examples.kind, SpanLabel):
        return slice_by_values(["answerable" if answers.texts else "unanswerable" for answers in examples.values])
    names = [dict.fromkeys(name.partition("-")[2] or name for name in each.names) for each in examples]
    return _most_frequent([tuple(each) for each in names])


def slice_by_values(values: Sequence[Any]) -> Slices:
    """The examples of each value, the most frequent first."""
    known = zip(values, find_missing(values), strict=True)
    return _most_frequent([() if missing else (str(value).strip(),) for value, missing in known])


def score_slices(
    slices: Slices, examples: Examples, predictions: Predictions, score: ScoreFunction
) -> list[SliceScores]:
    """Scores of each slice, with intervals from its own examples."""
    return [
        SliceScores(name=name, count=len(chosen), values=score(examples.take(chosen), predictions.take(chosen)).values)
        for name, chosen in slices.items()
    ]


def add_language_scores(scores: Scores, examples: Examples, predictions: Predictions, score: ScoreFunction) -> Scores:
    """The scores with those of each language, and with the mean of the main score over languages in the note."""
    slices: Slices = {}
    for index, language in enumerate(examples.languages):
        slices.setdefault(language, []).append(index)
    found = score_slices(slices, examples, predictions, score)
    values = [each.values[scores.main].value for each in found if scores.main in each.values]
    what = f"mean of {len(values)} languages: {score_name(scores.main)} {np.mean(values):.3f}"
    notes = [scores.note] * bool(scores.note) + [what] * (len(values) > 1)
    return replace(scores, slices=found, sliced_by="language", note="; ".join(notes))


def _quantile_buckets(numbers: Sequence[float], form: str, unit: str = "") -> Slices:
    values = np.asarray(numbers, dtype=np.float64)
    # An observed value ends each bucket, so that equal numbers share one.
    ends = np.unique(np.quantile(values, np.arange(1, BUCKETS + 1) / BUCKETS, method="inverted_cdf"))
    slices: Slices = {}
    for low, high in pairwise([-np.inf, *ends.tolist()]):
        chosen = np.flatnonzero((values > low) & (values <= high))
        first, last = (form.format(each) for each in (values[chosen].min(), high))
        slices[f"{first if first == last else f'{first} to {last}'}{unit}"] = chosen.tolist()
    return slices


def _most_frequent(names: Sequence[tuple[str, ...]]) -> Slices:
    """A slice for each of the most frequent names, one for those with any other, one for those without names."""
    counts = Counter(name for each in names for name in each)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    shown = ranked if len(ranked) <= SHOWN + 1 else ranked[:SHOWN]
    slices: Slices = {name: [] for name in shown}
    rest = {*ranked[len(shown) :]}
    other = f"other ({len(rest)} values)"
    for index, each in enumerate(names):
        for name in dict.fromkeys(other if name in rest else name for name in each) or (NONE,):
            slices.setdefault(name, []).append(index)
    return slices

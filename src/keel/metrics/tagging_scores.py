"""Scores of tags: F1 of entities as in conlleval, or accuracy per word."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from keel.data.examples import Examples
from keel.data.predictions import TagPredictions
from keel.data.tag_schemes import OUTSIDE, detect_scheme, extract_entities, parse_tag, write_tags
from keel.events import counted
from keel.metrics.scores import (
    ERRORS,
    PredictionError,
    Score,
    Scores,
    Values,
    concatenate_parts,
    intervals,
    resamples,
    safe_ratio,
)

CONTEXT = 6
"""Words that are shown on either side of an error."""


def score_tags(examples: Examples, predictions: TagPredictions, *, seed: int = 0) -> Scores:
    """Scores of all words; confidence intervals resample sentences."""
    known = predictions.labels.names
    scheme = detect_scheme([name] for name in known)
    truth: list[Sequence[str]] = [example.names for example in examples]
    if scheme != "none":  # the file may have another scheme
        truth = [write_tags(extract_entities(tags), len(tags), scheme) for tags in truth]
    guess = [predictions[number].tags for number in range(len(predictions))]
    correct = np.array([sum(map(str.__eq__, *pair)) for pair in zip(truth, guess, strict=True)], np.float64)
    words = np.array(list(map(len, truth)), np.float64)
    rng = np.random.default_rng(seed)
    if scheme == "none":
        parts: list[Values] = [
            {"accuracy": safe_ratio(weights @ correct, weights @ words)} for weights in resamples(len(truth), rng)
        ]
        values, types = intervals(concatenate_parts(parts), len(truth)), {}
        kinds = truth, guess
    else:
        values, types = _score_entities(truth, guess, correct, words, rng)
        kinds = [[[parse_tag(tag).type or tag for tag in tags] for tags in side] for side in (truth, guess)]
    names, confusion = _confusion(*kinds)
    return Scores(
        main="accuracy" if scheme == "none" else "f1",
        values=values,
        count=len(examples),
        names=names,
        confusion=confusion,
        types=types,
        errors=_most_confident(examples, predictions, truth),
        note=_unknown_tags(examples, truth, known),
    )


def _score_entities(
    truth: list[Sequence[str]],
    guess: Sequence[Sequence[str]],
    correct: np.ndarray,
    words: np.ndarray,
    rng: np.random.Generator,
) -> tuple[dict[str, Score], dict[str, dict[str, Score]]]:
    found = [(extract_entities(one), extract_entities(two)) for one, two in zip(truth, guess, strict=True)]
    types = sorted({entity.type for pair in found for side in pair for entity in side})
    number_of = {kind: number for number, kind in enumerate(types)}
    counts = np.zeros((3, len(found), len(types)))  # correct, true and predicted entities
    for row, (one, two) in enumerate(found):
        for side, group in enumerate(({*one} & {*two}, one, two)):
            for entity in group:
                counts[side, row, number_of[entity.type]] += 1
    parts: list[Values] = []
    for weights in resamples(len(found), rng):
        hits, true, guessed = weights @ counts
        part = {"accuracy": safe_ratio(weights @ correct, weights @ words)}
        # Scores of one type are named "f1\0LOC".
        for kind, columns in [("", slice(None)), *((kind, slice(n, n + 1)) for kind, n in number_of.items())]:
            h, t, g = (side[:, columns].sum(1) for side in (hits, true, guessed))
            figures = {"f1": safe_ratio(2 * h, t + g), "precision": safe_ratio(h, g), "recall": safe_ratio(h, t)}
            whole = columns == slice(None)
            part |= {name if whole else f"{name}\0{kind}": figure for name, figure in figures.items()}
        parts.append(part)
    scores = intervals(concatenate_parts(parts), len(found))
    whole = {name: scores[name] for name in ("f1", "precision", "recall", "accuracy")}
    each = {kind: {name: scores[f"{name}\0{kind}"] for name in ("f1", "precision", "recall")} for kind in types}
    return whole, each if len(each) > 1 else {}


def _confusion(
    truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[list[int]]]:
    cells = Counter(pair for one, two in zip(truth, guess, strict=True) for pair in zip(one, two, strict=True))
    names = sorted({name for pair in cells for name in pair}, key=lambda name: (name == OUTSIDE, name))
    return tuple(names), [[cells[one, two] for two in names] for one in names]


def _most_confident(
    examples: Examples, predictions: TagPredictions, truth: list[Sequence[str]]
) -> list[PredictionError]:
    sentence_of = np.repeat(np.arange(len(truth)), np.diff(predictions.starts))
    predicted = np.array(predictions.labels.names, dtype=object)[predictions.tag_ids]
    true = np.array([tag for tags in truth for tag in tags], dtype=object)
    wrong = np.flatnonzero(predicted != true)
    order = wrong[np.argsort(-predictions.estimates[wrong], kind="stable")][:ERRORS]
    errors: list[PredictionError] = []
    for position in order.tolist():
        sentence = int(sentence_of[position])
        number, words = position - int(predictions.starts[sentence]), predictions.texts[sentence][1]
        shown = [*words[max(0, number - CONTEXT) : number], f"[{words[number]}]", *words[number + 1 : number + CONTEXT]]
        errors.append(
            PredictionError(
                where=examples[sentence].location,
                text=" ".join(shown),
                second=None,
                label=true[position],
                predicted=predicted[position],
                confidence=float(predictions.estimates[position]),
            )
        )
    return errors


def _unknown_tags(examples: Examples, truth: list[Sequence[str]], known: Sequence[str]) -> str:
    names = {*known}
    odd = [(example, tag) for example, tags in zip(examples, truth, strict=True) for tag in tags if tag not in names]
    if not odd:
        return ""
    (example, tag), count = odd[0], len(odd)
    tag = parse_tag(tag).type or tag  # the prefix is that of the model's scheme, not of the file's
    have = counted(count, "word has", "words have")
    what = f"{have} a tag that did not occur in training, such as {tag!r} in the sentence at {example.location}"
    return f"{what}: counted as errors (correct them, or train with them)"

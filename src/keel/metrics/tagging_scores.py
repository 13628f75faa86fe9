"""Scores of tags: F1 of entities as in conlleval, or accuracy per word."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from keel.data.examples import Examples
from keel.data.predictions import TagPredictions
from keel.data.tag_schemes import OUTSIDE, detect_scheme, extract_entities, parse_tag, write_tags
from keel.events import pluralize
from keel.metrics.bootstrap import Values, intervals, resample, safe_ratio
from keel.metrics.label_scores import COUNTS, scores_by_label
from keel.metrics.scores import PredictionError, Scores, by_confidence

CONTEXT = 6
"""Words that are shown on either side of an error."""


def score_tags(examples: Examples, predictions: TagPredictions, *, seed: int = 0) -> Scores:
    """Scores of all words; confidence intervals resample sentences."""
    known = predictions.labels.names
    scheme = detect_scheme([name] for name in known)
    truth = tags_in_scheme(examples, known)
    guess: list[Sequence[str]] = [predictions.item(number).tags for number in range(len(predictions))]
    correct = np.array([sum(map(str.__eq__, *pair)) for pair in zip(truth, guess, strict=True)], np.float64)
    words = np.array(list(map(len, truth)), np.float64)
    counts, types, kinds = np.zeros((3, len(truth), 0)), (), (truth, guess)
    if scheme != "none":
        counts, types = _entity_counts(truth, guess)
        kinds = [[[parse_tag(tag).type or tag for tag in tags] for tags in side] for side in (truth, guess)]
    names, confusion = _confusion(*kinds)
    main = "accuracy" if scheme == "none" else "word_f1" if predictions.segmentation else "entity_f1"

    def statistics(weights: np.ndarray) -> Values:
        hits, true, guessed = weights @ counts
        found = {"accuracy": safe_ratio(weights @ correct, weights @ words)}
        if scheme != "none":
            h, t, g = (side.sum(1) for side in (hits, true, guessed))
            found = {main: safe_ratio(2 * h, t + g), "precision": safe_ratio(h, g), "recall": safe_ratio(h, t), **found}
        return found | dict(zip(COUNTS, (hits, true, guessed), strict=True))

    values = resample(statistics, len(truth), np.random.default_rng(seed))
    hits, true, guessed = (values.pop(name) for name in COUNTS)
    if scheme == "none":  # without intervals: counts of all tags in all sentences take too much memory
        types, table = names, np.array(confusion)
        hits, true, guessed = table.diagonal()[None], table.sum(1)[None], table.sum(0)[None]
    return Scores(
        main=main,
        values=intervals(values, len(truth)),
        count=len(examples),
        names=names,
        confusion=confusion,
        by_label=scores_by_label(types, hits, true, guessed) if any(types) else {},
        errors=_most_confident(examples, predictions, truth),
        note=_unknown_tags(examples, truth, known),
    )


def tags_in_scheme(examples: Examples, known: Sequence[str]) -> list[Sequence[str]]:
    """The true tags of each sentence in the scheme of the known tags; the file may have another one."""
    scheme = detect_scheme([name] for name in known)
    truth: list[Sequence[str]] = [example.names for example in examples]
    if scheme == "none":
        return truth
    return [write_tags(extract_entities(tags), len(tags), scheme) for tags in truth]


def tag_errors(
    examples: Examples, predictions: TagPredictions, true: np.ndarray, ranked: Iterable[tuple[int, float]]
) -> list[PredictionError]:
    """Errors by the position of a word among all words and its confidence; the word is in brackets in its context.

    `true` are the tags of all words.
    """
    errors: list[PredictionError] = []
    for position, confidence in ranked:
        sentence = int(np.searchsorted(predictions.starts, position, side="right")) - 1
        number, words = position - int(predictions.starts[sentence]), predictions.texts[sentence][1]
        shown = [*words[max(0, number - CONTEXT) : number], f"[{words[number]}]", *words[number + 1 : number + CONTEXT]]
        errors.append(
            PredictionError(
                where=examples[sentence].location,
                text=" ".join(shown),
                label=true[position],
                predicted=predictions.labels.names[predictions.tag_ids[position]],
                confidence=confidence,
            )
        )
    return errors


def _entity_counts(
    truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """[3, sentences, types] correct, true and predicted entities; and the types ("" in a segmentation)."""
    found = [(extract_entities(one), extract_entities(two)) for one, two in zip(truth, guess, strict=True)]
    types = sorted({entity.type for pair in found for side in pair for entity in side})
    counts = np.zeros((3, len(found), len(types)))
    for row, (one, two) in enumerate(found):
        for side, group in enumerate(({*one} & {*two}, one, two)):
            for entity in group:
                counts[side, row, types.index(entity.type)] += 1
    return counts, tuple(types)


def _confusion(
    truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[list[int]]]:
    cells = Counter(pair for one, two in zip(truth, guess, strict=True) for pair in zip(one, two, strict=True))
    names = sorted({name for pair in cells for name in pair}, key=lambda name: (name == OUTSIDE, name))
    return tuple(names), [[cells[one, two] for two in names] for one in names]


def _most_confident(
    examples: Examples, predictions: TagPredictions, truth: list[Sequence[str]]
) -> list[PredictionError]:
    predicted = np.array(predictions.labels.names, dtype=object)[predictions.tag_ids]
    true = np.array([tag for tags in truth for tag in tags], dtype=object)
    wrong = np.flatnonzero(predicted != true)
    return tag_errors(examples, predictions, true, by_confidence(wrong, predictions.estimates[wrong]))


def _unknown_tags(examples: Examples, truth: list[Sequence[str]], known: Sequence[str]) -> str:
    names = {*known}
    odd = [(example, tag) for example, tags in zip(examples, truth, strict=True) for tag in tags if tag not in names]
    if not odd:
        return ""
    (example, tag), count = odd[0], len(odd)
    tag = parse_tag(tag).type or tag  # the prefix is that of the model's scheme, not of the file's
    have = pluralize(count, "word has", "words have")
    what = f"{have} a tag that did not occur in training, such as {tag!r} in the sentence at {example.location}"
    return f"{what}: counted as errors (correct them, or train with them)"

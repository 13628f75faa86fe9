"""Claims about what the layers of a trained encoder know, measured by linear probes on frozen vectors."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import keel
from keel.claims.annotated_sentences import (
    WORDS,
    AnnotatedSentence,
    Reference,
    generate_dependencies,
    generate_references,
)
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import model_and_language
from keel.report.layer_charts import LayerCurve, ProbePanel, probe_chart

SENTENCES, EXAMPLES = 150, 1_000
"""Generated sentences for training and for the test; words of a treebank."""
LEXICAL = "class of a word"
COREFERENCE = "antecedent of a pronoun"
TREEBANK = {LEXICAL: "upos", "relation to the head": "deprel", "distance of the head": "head"}
"""Tasks, by their names in `keel layers`."""
FAR = 4
"""Distance of a head from which on it counts as far."""

Examples = list[dict[str, Any]]


def layers_by_task(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """121: in which layers linear probes find the class of a word, its head, and the antecedent of a pronoun."""
    model, language = model_and_language(model, say)
    sources: dict[str, tuple[Any, Any, tuple[str, ...]]] = {}
    if data is not None:
        files = [next(iter(sorted(data.glob(f"*{split}*.conllu*"))), None) for split in ("train", "test")]
        if None in files:
            what = f"{data} has no files *train*.conllu and *test*.conllu"
            raise keel.UsageError(f"{what}: use --data with the folder of a treebank (CoNLL-U)")
        sources.update({title: (files[0], files[1], (name,)) for title, name in TREEBANK.items()})
    elif language == "zh":
        parsed = [generate_dependencies(SENTENCES, Random(half)) for half in range(2)]
        sources[LEXICAL] = _classes(parsed[0]), _classes(parsed[1]), ()
        sources["distance of the head"] = _distances(parsed[0]), _distances(parsed[1]), ()
    else:
        what = "without data, sentences are generated in Chinese, which this model does not read"
        raise keel.UsageError(f"{what}: give --data FOLDER with a treebank (CoNLL-U)")
    pairs = [generate_references(language, SENTENCES, half, Random(half)) for half in range(2)]
    sources[COREFERENCE] = _antecedents(pairs[0]), _antecedents(pairs[1]), ()
    depths: dict[str, float] = {}
    panels: list[ProbePanel] = []
    say(f"{'task':24}  classes  majority  layer 0  best layer  accuracy  random weights  mean layer of gains")
    for title, (train, test, probe) in sources.items():
        found = keel.probe_layers(model, train=train, test=test, probe=probe, random=True, examples=EXAMPLES)
        (curve,) = found.curves
        values = [each.value for each in curve.scores]
        depths[title] = mean_layer_of_gains(curve.majority, values)
        best, twin = curve.score(curve.best), max(each.value for each in curve.random or [])
        numbers = f"{curve.majority:8.1%}  {values[0]:7.1%}  {curve.best:10}  {best.value:8.1%}  {twin:14.1%}"
        say(f"{title:24}  {curve.classes:7}  {numbers}  {depths[title]:19.1f}")
        bounds = [(low, high) for low, high in ((each.low, each.high) for each in curve.scores) if low is not None]
        intervals = [(low, high) for low, high in bounds if high is not None]
        shown = {"task": LayerCurve(values, intervals)}
        shown["random weights"] = LayerCurve([each.value for each in curve.random or []], ())
        panels.append(ProbePanel(title, f"{curve.classes} classes", curve.layers, shown, curve.majority))
    say.picture(probe_chart(panels), "Accuracy (%) of linear probes on each layer; bands are 95% intervals.")
    others = {title: depth for title, depth in depths.items() if title != LEXICAL}
    last = max(depths, key=lambda title: depths[title])
    listed = ", ".join(f"{title} {depth:.1f}" for title, depth in depths.items())
    return Verdict(
        all(depth > depths[LEXICAL] for depth in others.values()) and last == COREFERENCE,
        f"the mean layer of what a task gains differs between tasks: {listed}, of {len(panels[0].layers) - 1} layers",
    )


def mean_layer_of_gains(majority: float, accuracies: Sequence[float]) -> float:
    """Σ_l l Δ(l) / Σ_l Δ(l), the expected layer of Tenney et al. 2019 with the embeddings as layer 0, where Δ(l) is
    what layer l adds to the highest accuracy of the majority and the layers below."""
    gains = np.diff(np.maximum.accumulate([majority, *accuracies]))
    return float(gains @ np.arange(len(gains)) / gains.sum()) if gains.sum() > 0 else 0.0


def _classes(sentences: Iterable[AnnotatedSentence]) -> Examples:
    """Each word of the lists with the list that it is of."""
    kinds = {word: kind for kind, words in WORDS.items() for word in words.split()}
    return [
        {"words": each.words, "span1": [place, place + 1], "label": kinds[word]}
        for each in sentences
        for place, word in enumerate(each.words)
        if word in kinds
    ]


def _distances(sentences: Iterable[AnnotatedSentence]) -> Examples:
    """Each word with the distance of its head, all on one side."""
    return [
        {"words": each.words, "span1": [word, word + 1], "label": str(np.clip(head - word, -FAR, FAR))}
        for each in sentences
        for _, word, head in each.relations
    ]


def _antecedents(sentences: Iterable[Reference]) -> Examples:
    """A pronoun with each of two nouns, and whether it stands for it."""
    return [
        {
            "words": each.words,
            "span1": [each.pronoun, each.pronoun + 1],
            "span2": [noun, noun + 1],
            "label": str(number == each.antecedent),
        }
        for each in sentences
        for number, noun in enumerate(each.nouns)
    ]

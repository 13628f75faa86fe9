"""Claims about the use of a pre-trained encoder: its vectors as features or fine-tuned, and how texts are pooled."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import model_and_language
from keel.claims.opinion_texts import generate_opinions, generate_unlabelled, published_file, read_reviews
from keel.claims.small_models import Examples, learn_sentences
from keel.metrics.item_scores import ItemScores
from keel.metrics.significance import PairwiseTest, SystemResult, compare_pairs
from keel.tasks import TASKS

SEEDS = 3
COMMON: dict[str, Any] = {"dev": None, "max_tokens": 32, "threads": 1, "progress": False}
FROZEN: dict[str, Any] = {"freeze": True}
TUNED: dict[str, Any] = {"epochs": 4, "batch": 16}
"""Settings of a model of real text; the learning rate is Keel's default."""
TUNED_SMALL: dict[str, Any] = {"epochs": 10, "batch": 8, "lr": 1e-3}
SMALL_BERT = keel.Bert(
    layers=2, width=64, head_dim=32, max_positions=32, sequence_length=16, pair_objective="none", dropout=0.0,
    mask_rate=0.3,
)  # fmt: skip
POOLS = {"[CLS]": "first", "mean": "mean", "max": "max"}


class Setting(NamedTuple):
    """A pre-trained model, settings of its fine-tuning, training examples for each seed, and test examples."""

    model: keel.Model
    tuned: dict[str, Any]
    samples: list[Examples]
    test: Examples


def features_or_tuned(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """132: the same labels for a classifier of frozen vectors, and for fine-tuning of the same network."""
    setting = _setting(model, data, say)
    found = _accuracies(setting, {"features": FROZEN, "fine-tuned": setting.tuned}, say)
    (pair,) = compare_pairs(found)
    say(_difference(pair))
    return Verdict(
        pair.better == "fine-tuned" if pair.decided else None,
        f"with {len(setting.samples[0])} labels, {found['fine-tuned'].mean:.1%} fine-tuned and "
        f"{found['features'].mean:.1%} by a linear classifier of the frozen network's mean vectors",
    )


def pooling_of_texts(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """136: [CLS], mean and max pooling, of frozen vectors, after fine-tuning, and as sentence embeddings."""
    setting = _setting(model, data, say)
    found: dict[str, dict[str, SystemResult]] = {}
    for name, settings in (("frozen", FROZEN), ("fine-tuned", setting.tuned)):
        methods = {pool: {**settings, "pool": setting} for pool, setting in POOLS.items()}
        found[name] = _accuracies(setting, methods, say, f"{name}, ")
    if data is not None:
        _similarities(setting.model, data, say)
    tests = {name: compare_pairs(each) for name, each in found.items()}
    for name, each in product(tests, range(len(POOLS))):
        say(f"{name}: {_difference(tests[name][each])}")
    behind = {
        name: [
            pair.better for pair in pairs if "[CLS]" in (pair.first, pair.second) and pair.better not in ("", "[CLS]")
        ]
        for name, pairs in tests.items()
    }
    tuned = found["fine-tuned"]
    lost = f"behind {' and '.join(behind['frozen'])}" if behind["frozen"] else "not decided to be behind"
    figures = (
        f"fine-tuned, [CLS] {tuned['[CLS]'].mean:.1%}, mean {tuned['mean'].mean:.1%}, max {tuned['max'].mean:.1%}; "
        f"frozen, [CLS] {found['frozen']['[CLS]'].mean:.1%} is {lost}"
    )
    if behind["fine-tuned"]:
        return Verdict(False, figures)
    close = all(
        max(-pair.low, pair.high) < 0.05 for pair in tests["fine-tuned"] if "[CLS]" in (pair.first, pair.second)
    )
    return Verdict(True if close else None, figures)


def _setting(model: keel.Model | None, data: Path | None, say: Say) -> Setting:
    if model is None:
        base = learn_sentences(generate_unlabelled(1600, Random(0)), SMALL_BERT, steps=500)
        samples = [generate_opinions(48, 0, Random(seed)) for seed in range(SEEDS)]
        setting = Setting(base, TUNED_SMALL, samples, generate_opinions(400, 1, Random(SEEDS)))
        kind = "generated texts, the test has other opinion words than the training"
    elif data is None:
        raise keel.UsageError("a model of real text is evaluated on real text: give --data FOLDER with zh/chnsenticorp")
    else:
        model, language = model_and_language(model, say)
        examples, test = read_reviews(data, language)
        samples = [Random(seed).sample(examples, min(200, len(examples))) for seed in range(SEEDS)]
        setting = Setting(model, TUNED, samples, Random(SEEDS).sample(test, min(400, len(test))))
        kind = f"reviews, their first {COMMON['max_tokens']} tokens"
    say(f"{len(samples[0])} labels, {len(setting.test)} test texts, {SEEDS} seeds: {kind}")
    return setting


def _accuracies(
    setting: Setting, methods: Mapping[str, dict[str, Any]], say: Say, prefix: str = ""
) -> dict[str, SystemResult]:
    """Which test texts each method classifies correctly, for each training sample."""
    texts, labels = [text for text, _ in setting.test], np.array([label for _, label in setting.test])
    found = {}
    for name, settings in methods.items():
        seeds = []
        for seed, examples in enumerate(setting.samples):
            say.progress(f"{prefix}{name}, seed {seed}")
            tuned = keel.finetune(setting.model, examples, seed=seed, **COMMON | settings)
            correct = np.array([each.label for each in tuned.predict(texts)]) == labels
            seeds.append(ItemScores.ratio("accuracy", correct.astype(float), None))
        found[name] = SystemResult(seeds)
        values = ", ".join(f"{value:.1%}" for value in found[name].by_seed)
        say(f"{prefix}{name}: accuracy {found[name].mean:.1%} ({values})")
    return found


def _difference(pair: PairwiseTest) -> str:
    gap = 100 * np.array([pair.difference, pair.low, pair.high])
    return f"{pair.first} - {pair.second}: {gap[0]:+.1f} ({gap[1]:+.1f} to {gap[2]:+.1f}) points, {pair.verdict}"


def _similarities(model: keel.Model, data: Path, say: Say) -> None:
    """Spearman correlation of cosine similarities with those of annotators, without any training."""
    model, language = model_and_language(model, say)
    folder, pattern = {"zh": ("zh/sts_b_zh", "*test*"), "en": ("glue/STS-B", "test.tsv*")}[language]
    pairs = TASKS["pair"].read_labelled(
        published_file(data / folder, pattern), columns=keel.Columns(labels="regression")
    )
    wanted = np.array(pairs.values, float).reshape(len(pairs), -1)[:, 0]
    assert pairs.seconds is not None
    scores = []
    for pool in ("cls", "mean", "max"):
        one, other = (_unit(model.encode(texts, pool=pool)) for texts in (pairs.texts, pairs.seconds))
        scores.append(np.corrcoef(_ranks((one * other).sum(1)), _ranks(wanted))[0, 1])
    named = ", ".join(f"{name} {score:.3f}" for name, score in zip(POOLS, scores, strict=True))
    say(f"STS-B, {len(pairs)} pairs, similarity of the vectors without training, Spearman correlation: {named}")


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks; equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts + 1) / 2)[inverse]

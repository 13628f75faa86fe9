"""Probing of every layer of a frozen encoder by linear classifiers of words, spans and pairs of spans.

Liu et al. 2019 (a linear probe per layer), Tenney et al. 2019 (edge probing of one span or two), Hewitt and Liang 2019
(control tasks). A span is the mean of its tokens' vectors, a pair of spans is [a; b; a * b].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keel.data.probing_data import ProbingData, SpanLabels
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.layers.layer_features import LayerFeatures, layer_features, random_twin, refuse_one_layer
from keel.explain.layers.linear_probe import (
    FIRST,
    STRENGTHS,
    ProbeFeatures,
    choose_strength,
    fit_probe,
    held_out_groups,
    standardise,
)
from keel.explain.layers.probe_curves import LayerProbes, ProbeCurve, Unit, probe_scores
from keel.model import Model
from keel.training.counter_rng import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeExamples:
    """The examples of one task, for training or for test."""

    vectors: Tensor  # [examples, 1 or 2] indices of the vectors of each
    targets: Tensor  # [examples] labels by number; -1 for one that does not occur in training
    control: Tensor  # [examples] a random label for each type
    texts: np.ndarray  # [examples] the text of each


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbingTask:
    """One task with its examples."""

    name: str
    source: str
    unit: Unit
    labels: list[str]
    train: ProbeExamples
    test: ProbeExamples


@dataclass(eq=False)
class LayerOutcomes:
    """Which test examples of a task its probes classify correctly, and by which L2 strength, layer by layer."""

    correct: list[np.ndarray] = field(default_factory=list)  # of each layer, [examples] bool
    control: list[np.ndarray] = field(default_factory=list)
    strengths: list[int] = field(default_factory=list)
    """Indices of the candidates."""


def probe_model(
    model: Model,
    data: Sequence[tuple[ProbingData, ProbingData]],
    *,
    control: bool = False,
    random: bool = False,
    seed: int = 0,
    on_event: OnEvent = ignore,
) -> LayerProbes:
    """Probes of all tasks of the data (training, test) on all layers.

    With `control`, also of labels that are random by type; with `random`, also on an encoder with random weights.
    """
    refuse_one_layer(model)
    numbers, title = model.encoder.layer_numbers, model.title
    twin = random_twin(model, seed) if random else None
    curves: list[ProbeCurve] = []
    for train, test in data:
        found = _probe_file(model, train, test, title, control=control, seed=seed, on_event=on_event)
        by_chance = (
            [] if twin is None else _probe_file(twin, train, test, "random weights", seed=seed, on_event=on_event)
        )
        for number, (task, outcomes) in enumerate(found):
            known = any(each.task == task.name for each in curves)
            name = f"{task.name} ({task.source})" if known else task.name
            others = by_chance[number][1].correct if by_chance else []
            curves.append(_curve(name, task, numbers, outcomes, others))
    if not curves:
        raise KeelError("no task has examples of two classes in training and test data: give other files or tasks")
    return LayerProbes(model=title, layers=numbers, curves=curves, seed=seed)


def _curve(
    name: str, task: ProbingTask, numbers: list[int], outcomes: LayerOutcomes, others: list[np.ndarray]
) -> ProbeCurve:
    targets = task.test.targets
    control, random = (np.stack(each) if each else None for each in (outcomes.control, others))
    return ProbeCurve(
        task=name,
        source=task.source,
        unit=task.unit,
        classes=len(task.labels),
        train=len(task.train.targets),
        test=len(targets),
        unseen=int((targets < 0).sum()),
        majority=float((targets == task.train.targets.bincount().argmax()).double().mean()),
        layers=numbers,
        l2=[STRENGTHS[number] for number in outcomes.strengths],
        **probe_scores(np.stack(outcomes.correct), control, random, task.test.texts),
    )


def _probe_file(
    model: Model,
    train: ProbingData,
    test: ProbingData,
    title: str,
    *,
    control: bool = False,
    seed: int,
    on_event: OnEvent,
) -> list[tuple[ProbingTask, LayerOutcomes]]:
    """The outcomes of all tasks of a file: each text is encoded once, and its vectors serve all tasks."""
    learned, tested = (layer_features(model, part, on_event) for part in (train, test))
    found = [(task, LayerOutcomes()) for task in _tasks(train, test, learned, tested, seed, on_event)]
    numbers, device = model.encoder.layer_numbers, model.device
    for index, number in enumerate(numbers if found else []):
        vectors = standardise(*(each.vectors[index].to(device).float() for each in (learned, tested)))
        single = ProbeFeatures.of(*vectors) if any(task.unit != "pair" for task, _ in found) else None
        for task, outcomes in found:
            chosen = task.train.vectors.to(device), task.test.vectors.to(device)
            if task.unit == "pair" or single is None:
                features = ProbeFeatures.of(*map(pair_features, vectors, chosen))
            else:
                features = single.select(*(each[:, 0] for each in chosen))
            _probe_layer(task, features, outcomes, control, seed)
        note(on_event, f"{title}, {Path(train.source).name}: layer {number} of {numbers[-1]}: {_accuracies(found)}")
    return found


def _accuracies(found: Sequence[tuple[ProbingTask, LayerOutcomes]]) -> str:
    return ", ".join(f"{task.name} {outcomes.correct[-1].mean():.1%}" for task, outcomes in found)


def pair_features(vectors: Tensor, pairs: Tensor) -> Tensor:
    """[pairs, 3 width]: [a; b; a * b] of standardised vectors, for functions of each span and of their similarity."""
    one, other = vectors[pairs[:, 0]], vectors[pairs[:, 1]]
    return torch.cat([one, other, one * other], 1)


def _probe_layer(task: ProbingTask, features: ProbeFeatures, outcomes: LayerOutcomes, control: bool, seed: int) -> None:
    """Fit the probes of a task on one layer, and add which test examples they classify correctly."""
    device, classes = features.train.device, len(task.labels)
    targets, held_out = task.train.targets.to(device), held_out_groups(task.train.texts, seed).to(device)
    first = outcomes.strengths[-1] if outcomes.strengths else FIRST  # that of the layer below
    strength, start = choose_strength(features.train, features.variances, targets, classes, held_out, first)
    probe = fit_probe(features.train, features.variances, targets, classes, STRENGTHS[strength], start=start)
    outcomes.strengths.append(strength)
    outcomes.correct.append((probe.predict(features.test).cpu() == task.test.targets).numpy())
    if control:
        targets = task.train.control.to(device)
        probe = fit_probe(features.train, features.variances, targets, classes, STRENGTHS[strength])
        outcomes.control.append((probe.predict(features.test).cpu() == task.test.control).numpy())


def _tasks(
    train: ProbingData,
    test: ProbingData,
    learned: LayerFeatures,
    tested: LayerFeatures,
    seed: int,
    on_event: OnEvent,
) -> Iterator[ProbingTask]:
    """The tasks that training and test data have, with examples of two classes or more."""
    for name, given in train.tasks.items():
        kept = _readable(given, learned)
        others = _readable(test.tasks[name], tested) if name in test.tasks else np.zeros(0, np.int64)
        labels = sorted({given.labels[number] for number in kept})
        if len(labels) < 2 or not len(others):
            what = "no test examples" if len(labels) > 1 else pluralize(len(labels), "class", "classes")
            note(on_event, f"{train.source}: {name} has {what}: left out")
            continue
        counts = np.bincount([labels.index(given.labels[number]) for number in kept])
        yield ProbingTask(
            name=name,
            source=train.source,
            unit=_unit(train, given),
            labels=labels,
            train=_examples(name, train, given, kept, learned, labels, counts, seed),
            test=_examples(name, test, test.tasks[name], others, tested, labels, counts, seed),
        )


def _readable(given: SpanLabels, features: LayerFeatures) -> np.ndarray:
    """The examples whose spans have vectors."""
    return np.flatnonzero((features.index[given.spans] >= 0).all(1)) if len(given.labels) else np.zeros(0, np.int64)


def _unit(data: ProbingData, given: SpanLabels) -> Unit:
    if given.spans.shape[1] == 2:
        return "pair"
    return "word" if all(text.words for text in data.texts) and (np.diff(data.spans[:, 1:]) == 1).all() else "span"


def _examples(
    name: str,
    data: ProbingData,
    given: SpanLabels,
    kept: np.ndarray,
    features: LayerFeatures,
    labels: list[str],
    counts: np.ndarray,
    seed: int,
) -> ProbeExamples:
    number_of = {label: number for number, label in enumerate(labels)}
    shares, types = np.cumsum(counts) / counts.sum(), [given.types[number] for number in kept]
    return ProbeExamples(
        vectors=torch.from_numpy(features.index[given.spans[kept]]),
        targets=torch.tensor([number_of.get(given.labels[number], -1) for number in kept]),
        control=torch.from_numpy(control_labels(types, shares, f"{seed} {name}")),
        texts=data.spans[given.spans[kept, 0], 0],
    )


def control_labels(types: Sequence[str], shares: np.ndarray, key: str) -> np.ndarray:
    """A random label for each type (Hewitt and Liang 2019), from the distribution of the training labels with the
    cumulative `shares`: a hash of the type, so that it is the same in training and test."""
    known = {each: derive_seed(key, each) / 2**63 for each in dict.fromkeys(types)}
    return np.searchsorted(shares, [known[each] for each in types], side="right").clip(max=len(shares) - 1)

"""Ensembles: the mean of the predictions of several models that were fine-tuned for the same labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from keel.data.examples import Examples
from keel.data.predictions import AnswerPredictions, Predictions, TagPredictions
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.tasks.answer import SpanAnswering
from keel.tasks.classify import TextClassification
from keel.tasks.span_search import mean_logits
from keel.tasks.tag import TokenClassification
from keel.tasks.task import Task


@dataclass(frozen=True)
class Ensemble:
    """Tasks with the same labels; that of one model is the model itself."""

    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, tasks: Sequence[Task], names: Sequence[str]) -> Self:
        """The ensemble of these tasks, of models of these names; tasks or labels that differ are refused."""
        first = tasks[0]
        for task, name in zip(tasks[1:], names[1:], strict=True):
            if not isinstance(first, TextClassification | TokenClassification | SpanAnswering):
                raise UsageError(f"there is no mean of predictions of --task {first.name}: give one model")
            if task.name != first.name:
                what = f"{names[0]} was fine-tuned for {first.name}, and {name} for {task.name}"
                raise UsageError(f"{what}: an ensemble needs models of one task")
            kinds = first.labels.kind, task.labels.kind
            if type(kinds[0]) is not type(kinds[1]) or {*first.labels.names} != {*task.labels.names}:
                other = sorted({*first.labels.names} ^ {*task.labels.names})
                example = f" ({other[0]!r} is a label of one of them)" if other else ""
                what = f"{names[0]} and {name} have different labels{example}"
                raise UsageError(f"{what}: an ensemble needs models with the same labels")
            if isinstance(first, SpanAnswering) and isinstance(task, SpanAnswering):
                _refuse_other_windows(first, task, f"{names[0]} and {name}")
        return cls(tuple(tasks))

    @property
    def task(self) -> Task:
        """The first one, which reads and scores examples."""
        return self.tasks[0]

    def predict(self, examples: Examples, *, on_event: OnEvent = ignore) -> Predictions:
        """The mean of the probabilities (of labels, of choices, of the tags of each word), of the numbers, or of the
        start and end logits of answers."""
        if len(self.tasks) == 1:
            return self.task.predict(examples, on_event=on_event)
        if isinstance(self.task, TokenClassification):
            return self._predict_tags(examples, on_event)
        if isinstance(self.task, SpanAnswering):
            return self._predict_answers(self.task, examples, on_event)
        found = [task.predict(examples, on_event=on_event) for task in self.tasks]
        estimates = [each.estimates[..., self._order(task)] for task, each in zip(self.tasks, found, strict=True)]
        threshold = float(np.mean([each.threshold for each in found]))
        return replace(found[0], estimates=_mean(estimates), threshold=threshold)

    def _predict_tags(self, examples: Examples, on_event: OnEvent) -> TagPredictions:
        probabilities: list[np.ndarray] = []
        texts = []
        for task in self.tasks:
            assert isinstance(task, TokenClassification)
            texts, found = task.tag_probabilities(examples, on_event)  # the labels define what the words are
            probabilities.append(found[:, self._order(task)])
        mean = _mean(probabilities)
        return TagPredictions(self.task.labels, mean.max(1), mean.argmax(1), texts)

    def _predict_answers(self, first: SpanAnswering, examples: Examples, on_event: OnEvent) -> AnswerPredictions:
        """The best spans by the mean logits of each window; the threshold of "no answer" is the mean one."""
        tasks = [task for task in self.tasks if isinstance(task, SpanAnswering)]
        by_task = [task.window_logits(examples, on_event=on_event) for task in tasks]
        windows = [[mean_logits(each) for each in zip(*several, strict=True)] for several in zip(*by_task, strict=True)]
        thresholds = [task.null_threshold for task in tasks if task.null_threshold is not None]
        return first.best_answers(windows, examples, float(np.mean(thresholds)) if thresholds else None)

    def _order(self, task: Task) -> list[int] | slice:
        """The first task's labels among those of another."""
        names = task.labels.names
        return (
            slice(None) if names == self.task.labels.names else [names.index(name) for name in self.task.labels.names]
        )


def _refuse_other_windows(first: SpanAnswering, other: SpanAnswering, names: str) -> None:
    """Refuse models whose logits are not those of the same tokens, or that differ in what they can predict."""
    if first.tokenizer.fingerprint() != other.tokenizer.fingerprint():
        what = f"{names} have different tokenizers, so that their answers begin and end at different tokens"
        raise UsageError(f"{what}: an ensemble for --task answer needs models with the same tokenizer")
    if first.room != other.room:
        what = f"{names} read passages in windows of {first.room} and of {other.room} tokens"
        raise UsageError(f"{what}: an ensemble for --task answer needs models with the same maximum length")
    if (first.null_threshold is None) != (other.null_threshold is None):
        what = f"only one of {names} was trained with unanswerable questions"
        raise UsageError(f"{what}: an ensemble needs models that all were, or none")


def _mean(estimates: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(estimates).mean(0, dtype=np.float64).astype(np.float32)

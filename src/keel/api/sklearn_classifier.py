"""Fine-tuning as a scikit-learn estimator, for pipelines, cross-validation and grid search."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from keel.api.finetuning import finetune
from keel.errors import KeelError
from keel.model import Model

__all__ = ["Classifier"]


class Classifier:
    """A classifier of texts or, with task="pair", of (text, text) tuples.

    `settings` are those of `keel.finetune`. `fit` trains on all examples unless `dev` is given.
    """

    def __init__(self, base: Model | str | Path, task: str = "classify", **settings: Any):
        self.base = base
        self.task = task
        self.settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return {"base": self.base, "task": self.task, **self.settings}

    def set_params(self, **parameters: Any) -> Self:
        """Change constructor arguments."""
        self.base = parameters.pop("base", self.base)
        self.task = parameters.pop("task", self.task)
        self.settings |= parameters
        return self

    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> Self:  # noqa: N803
        """Fine-tune on texts and their classes."""
        texts, classes = list(X), list(y)
        if len(texts) != len(classes):
            raise KeelError(f"X has {len(texts)} texts and y {len(classes)} labels: give one label per text")
        settings = {"task": self.task, "dev": None, "labels": "single", **self.settings}
        self.model_ = finetune(self.base, list(zip(texts, classes, strict=True)), **settings)
        self.classes_ = np.unique(np.asarray(classes))
        return self

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:  # noqa: N803
        """[texts, classes] class probabilities, in the order of `classes_`."""
        if not hasattr(self, "model_"):
            raise _unfitted()
        task = self.model_.task
        assert task is not None
        found = task.predict(task.read_examples(list(X))).estimates
        number_of = {name: number for number, name in enumerate(task.labels.names)}
        return found[:, [number_of[str(name)] for name in self.classes_.tolist()]]

    def predict(self, X: Iterable[Any]) -> np.ndarray:  # noqa: N803
        """[texts] the most probable class of each."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def score(self, X: Iterable[Any], y: Iterable[Any]) -> float:  # noqa: N803
        """Accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(list(y))))

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's estimator tags: a classifier of texts."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
        )

    def __repr__(self) -> str:
        return f"Classifier({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"


def _unfitted() -> KeelError:
    """The error of an unfitted classifier; a NotFittedError too if scikit-learn is imported."""
    message = "this Classifier is not fitted: call fit first"
    if "sklearn" not in sys.modules:
        return KeelError(message)
    from sklearn.exceptions import NotFittedError

    class UnfittedError(KeelError, NotFittedError): ...

    return UnfittedError(message)

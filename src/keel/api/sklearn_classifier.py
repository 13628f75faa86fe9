"""Fine-tuning as a scikit-learn estimator, for pipelines, cross-validation and grid search."""

import sys
from pathlib import Path
from typing import Any, Self

import numpy as np

from keel.api.finetuning import finetune
from keel.data.examples import Columns
from keel.data.label_columns import find_missing
from keel.data.memory_sources import Frame, plain_source, source_items
from keel.data.predictions import Predictions
from keel.data.text_inputs import is_tabular
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.systems.system import System
from keel.tasks import TASKS

__all__ = ["Classifier"]

COLUMNS = ("text_column", "second_column")
"""Settings that apply to X as a DataFrame."""


class Classifier:
    """A classifier of texts or, with task="pair", of (text, text) tuples.

    `settings` are those of `keel.finetune`. `fit` trains on all examples unless `dev` is given. X may be a DataFrame,
    with the texts in `text_column` and, of pairs, `second_column`.
    """

    def __init__(self, base: Model | System | str | Path, task: str = "classify", **settings: Any):
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

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fine-tune on texts and their classes."""
        texts, classes = self._inputs(X), _classes(y)
        if len(texts) != len(classes):
            raise KeelError(f"X has {len(texts)} texts and y {len(classes)} labels: give one label per text")
        if True in (missing := find_missing(classes)):
            number = missing.index(True)
            raise KeelError(f"item {number} of y is {classes[number]!r}: give every text a label, or drop the text")
        settings = {"task": self.task, "dev": None, "labels": "single", "progress": False, **self.settings}
        settings = {name: value for name, value in settings.items() if name not in COLUMNS}
        self.model_ = finetune(self.base, list(zip(texts, classes, strict=True)), **settings)
        self.classes_ = np.unique(np.asarray(classes))
        return self

    def _inputs(self, X: Any) -> list[Any]:  # noqa: N803
        """The texts, or pairs of texts, of a list, a column, or the columns of a DataFrame."""
        source = plain_source(X)
        if not is_tabular(source):
            items = source_items(source)
            for number, item in enumerate(items):
                if not isinstance(item, str | tuple | list):
                    raise UsageError(f"item {number} of X is {item!r:.60}: give texts, or pairs of texts")
            return items
        columns = Columns(**{name: value for name, value in self.settings.items() if name in COLUMNS})
        examples = TASKS[self.task].make_examples(source, columns)
        return [each.text if each.second is None else (each.text, each.second) for each in examples]

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """[texts, classes] class probabilities, in the order of `classes_`."""
        return self._predictions(X).estimates[:, self._label_ids()]

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        if not hasattr(self, "model_"):
            raise _unfitted()
        task = self.model_.task
        assert task is not None
        return task.predict(task.read_examples(self._inputs(X)))

    def _label_ids(self) -> list[int]:
        """The model's label id of each of `classes_`, which have another order: 2 before 10."""
        names = self.model_.label_names
        return [names.index(str(name)) for name in self.classes_.tolist()]

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """[texts] the most probable class of each; of two classes, the one that a tuned threshold decides for."""
        decided = self._predictions(X).decide()  # by the model's label ids
        return self.classes_[np.argsort(self._label_ids())[decided]]

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(_classes(y))))

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


def _classes(y: Any) -> list[Any]:
    source = plain_source(y)
    return source.cells[0] if isinstance(source, Frame) and len(source.cells) == 1 else source_items(source)


def _unfitted() -> KeelError:
    """The error of an unfitted classifier; a NotFittedError too if scikit-learn is imported."""
    message = "this Classifier is not fitted: call fit first"
    if "sklearn" not in sys.modules:
        return KeelError(message)
    from sklearn.exceptions import NotFittedError

    class UnfittedError(KeelError, NotFittedError): ...

    return UnfittedError(message)

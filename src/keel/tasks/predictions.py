"""What a model says about examples: the answers, and the probabilities behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from keel.tasks.examples import Labels


@dataclass(frozen=True)
class Label:
    """A name and how probable the model finds it."""

    name: str
    probability: float

    def __repr__(self) -> str:
        return f"Label({self.name!r}, {self.probability:.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"label": self.name, "probability": self.probability}


Prediction = Label | list[Label] | float


@dataclass(frozen=True, eq=False)
class Predictions(Sequence[Prediction]):
    """One answer for each example: the likeliest label, the labels above one half (likeliest first), or a number."""

    labels: Labels
    estimates: np.ndarray
    """[examples, names] probabilities, or [examples] numbers."""

    def __len__(self) -> int:
        return len(self.estimates)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        if isinstance(index, slice):
            return Predictions(self.labels, self.estimates[index])
        estimate = self.estimates[index]
        if self.labels.kind == "number":
            return float(estimate)
        order = np.argsort(-estimate, kind="stable").tolist()
        ranked = [Label(self.labels.names[number], float(estimate[number])) for number in order]
        return ranked[0] if self.labels.kind == "one" else [label for label in ranked if label.probability > 0.5]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON lines."""
        plain: list[dict[str, Any]] = []
        for answer in self:
            if isinstance(answer, Label):
                plain.append(answer.to_dict())
            elif isinstance(answer, list):
                plain.append({"labels": [label.to_dict() for label in answer]})
            else:
                plain.append({"number": answer})
        return plain

    def __repr__(self) -> str:
        return repr(list(self))

"""Label kinds: how a label is parsed, encoded as a target, turned into a loss and decoded from a prediction."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.data.answer_spans import GoldAnswers
from keel.errors import KeelError

if TYPE_CHECKING:
    from keel.data.examples import Examples, Labels

POSITIVE = {"1", "true", "yes", "y", "positive", "pos", "good", "entailment", "duplicate", "paraphrase", "spam"}
"""Names of the positive class of two."""
Value = str | tuple[str, ...] | float | GoldAnswers
"""A label as read from a file."""


def label_names(value: Any) -> tuple[str, ...]:
    """The class names in a label: one, several or none."""
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def positive_class(names: Sequence[str]) -> int | None:
    """The positive class of two, by its name, else the second one; None for more classes."""
    if len(names) != 2:
        return None
    found = [number for number, name in enumerate(names) if name.lower() in POSITIVE]
    return found[0] if len(found) == 1 else 1


def parse_number(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None


@dataclass(frozen=True)
class Prediction:
    """A class name and its probability."""

    label: str
    confidence: float

    def __repr__(self) -> str:
        return f"Prediction(label={self.label!r}, confidence={self.confidence:.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"label": self.label, "probability": self.confidence}


LABEL_KINDS: "dict[str, type[LabelKind]]" = {}
"""Every subclass of `LabelKind` by its name."""


@dataclass(frozen=True)
class LabelKind:
    """What the labels of a dataset are."""

    name: ClassVar[str]
    """In model folders and, for kinds of a text's label, on the command line."""
    has_classes: ClassVar[bool] = False
    """Whether labels are class names."""
    outputs: ClassVar[int] = 1
    """Output size of the head, unless there are classes."""
    problem_type: ClassVar[str] = ""
    """Hugging Face's name."""
    default_task: ClassVar[str] = "classify"
    """Task of a folder that names none."""
    unit: ClassVar[tuple[str, ...]] = ()
    """An example in words: singular and, unless it takes an s, plural; empty for a text or a pair."""

    def __init_subclass__(cls) -> None:
        assert cls.name not in LABEL_KINDS, f"two label kinds are called {cls.name!r}"
        LABEL_KINDS[cls.name] = cls

    def describe(self, labels: "Labels") -> str:
        """What a model with these labels predicts."""
        return ", ".join(labels.names)

    def statistics(self, examples: "Examples") -> dict[str, Any]:
        """The distribution of the labels: the counts of the most frequent classes."""
        counts = Counter(name for value in examples.values for name in self.names_in(value))
        rest = {"and others": len(counts) - 20} if len(counts) > 20 else {}
        return dict(counts.most_common(20)) | rest

    def parse(self, value: Any, location: str) -> Value:
        """A label of this kind from a cell of a table."""
        raise NotImplementedError

    def parse_all(self, raw: list[Any], locations: Sequence[str]) -> list[Any]:
        """The labels in a column of a table."""
        parsed: dict[Any, Value] = {}
        labels: list[Value] = []
        for index, value in enumerate(raw):
            if isinstance(value, str | tuple):  # most of them repeat
                if value not in parsed:
                    parsed[value] = self.parse(value, locations[index])
                labels.append(parsed[value])
            else:
                labels.append(self.parse(value, locations[index]))
        return labels

    def names_in(self, value: Any) -> tuple[str, ...]:
        """The class names in a label."""
        return label_names(value)

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """Targets of all examples; `names` are the classes in order."""
        raise NotImplementedError

    def loss(self, logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """[batch] loss of each example from logits [batch, outputs]; with class weights if the kind has them."""
        raise NotImplementedError

    def balanced_weights(self, targets: Tensor, classes: int) -> Tensor:
        """Class weights that give all classes the same influence on the loss; for kinds with classes."""
        raise NotImplementedError

    def probabilities(self, logits: Tensor, *, one_vs_rest: bool = False) -> Tensor:
        """Probabilities, or the predicted numbers, from logits [examples, outputs]."""
        raise NotImplementedError

    def decide(self, estimates: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> np.ndarray:
        """What is predicted from probabilities [examples, classes]: class ids [examples], or a boolean per class."""
        raise NotImplementedError

    def decode(
        self, estimate: np.ndarray, names: tuple[str, ...], threshold: float = 0.5
    ) -> Prediction | list[Prediction] | float:
        """The prediction for one example from its probabilities."""
        raise NotImplementedError


@dataclass(frozen=True)
class SingleLabel(LabelKind):
    """One of several classes: softmax and cross-entropy."""

    name: ClassVar[str] = "single"
    has_classes: ClassVar[bool] = True
    problem_type: ClassVar[str] = "single_label_classification"

    def parse(self, value: Any, location: str) -> Value:
        names = list(map(str, value)) if isinstance(value, list | tuple | set) else [str(value)]
        if len(names) != 1:
            raise KeelError(f"{location}: {len(names)} labels where one is expected: use --labels multi")
        return names[0]

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """[examples] class ids."""
        ids = _class_ids(examples, names)
        for value, numbers in ids.items():
            if len(numbers) != 1:
                what = f"the label {value!r} is not a single class, as in training"
                remedy = "correct it, or choose another --label-column"
                raise KeelError(f"{examples.location_of(value)}: {what}: {remedy}")
        classes = np.array([number for (number,) in ids.values()], np.int64)
        return torch.from_numpy(classes[_indices_among(examples.values, ids)])

    def loss(self, logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        losses = F.cross_entropy(logits, targets, reduction="none")
        return losses if class_weights is None else losses * class_weights[targets]

    def balanced_weights(self, targets: Tensor, classes: int) -> Tensor:
        """[classes] n / (classes x examples of the class), as in scikit-learn; 0 for a class without examples."""
        counts = torch.bincount(targets.long(), minlength=classes).float()
        return torch.where(counts > 0, len(targets) / (counts * counts.count_nonzero()), 0.0)

    def probabilities(self, logits: Tensor, *, one_vs_rest: bool = False) -> Tensor:
        return logits.sigmoid() if one_vs_rest else logits.softmax(1)

    def decide(self, estimates: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> np.ndarray:
        """The most probable class; of two, the positive one if its probability is above a threshold that was set."""
        positive = positive_class(names)
        if positive is None or threshold == 0.5:
            return estimates.argmax(1)
        return np.where(estimates[:, positive] > threshold, positive, 1 - positive)

    def decode(self, estimate: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> Prediction:
        number = int(self.decide(estimate[None], names, threshold)[0])
        return Prediction(names[number], float(estimate[number]))


@dataclass(frozen=True)
class MultiLabel(LabelKind):
    """Any number of classes: a sigmoid and a binary cross-entropy for each."""

    name: ClassVar[str] = "multi"
    has_classes: ClassVar[bool] = True
    problem_type: ClassVar[str] = "multi_label_classification"

    def parse(self, value: Any, location: str) -> Value:
        if isinstance(value, str):
            value = [name.strip() for name in re.split("[,;|]", value) if name.strip()]
        names = map(str, value) if isinstance(value, list | tuple | set) else [str(value)]
        return tuple(sorted(set(names)))

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """[examples, classes] multi-hot vectors."""
        ids = _class_ids(examples, names)
        multi_hot = np.zeros((len(ids), len(names)), np.float32)
        for row, numbers in zip(multi_hot, ids.values(), strict=True):
            row[numbers] = 1
        return torch.from_numpy(multi_hot[_indices_among(examples.values, ids)])

    def loss(self, logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if class_weights is not None:
            losses = losses * torch.where(targets > 0, class_weights[1], class_weights[0])
        return losses.mean(1)

    def balanced_weights(self, targets: Tensor, classes: int) -> Tensor:
        """[2, classes] weights of absent and present labels: each is a binary problem of two equal halves."""
        present = targets.mean(0).clamp(0.5 / len(targets), 1 - 0.5 / len(targets))
        return torch.stack([0.5 / (1 - present), 0.5 / present])

    def probabilities(self, logits: Tensor, *, one_vs_rest: bool = False) -> Tensor:
        return logits.sigmoid()

    def decide(self, estimates: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> np.ndarray:
        """[examples, classes] whether each probability is above the threshold."""
        return estimates > threshold

    def decode(self, estimate: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> list[Prediction]:
        """The classes above the threshold, the most probable first."""
        return [each for each in _ranked(estimate, names) if each.confidence > threshold]


@dataclass(frozen=True)
class Regression(LabelKind):
    """A number: squared error."""

    name: ClassVar[str] = "regression"
    problem_type: ClassVar[str] = "regression"

    def describe(self, labels: "Labels") -> str:
        return "a number"

    def statistics(self, examples: "Examples") -> dict[str, Any]:
        return {"from": min(examples.values), "to": max(examples.values), "mean": sum(examples.values) / len(examples)}

    def parse(self, value: Any, location: str) -> Value:
        number = parse_number(value)
        if number is None:
            raise KeelError(f"{location}: the label {value!r} is not a number: correct it, or use --labels single")
        return number

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """[examples] numbers."""
        pairs = zip(examples.values, examples.locations, strict=True)
        return torch.tensor([self.parse(value, location) for value, location in pairs])

    def loss(self, logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        return (logits[:, 0] - targets).square()

    def probabilities(self, logits: Tensor, *, one_vs_rest: bool = False) -> Tensor:
        return logits[:, 0]

    def decode(self, estimate: np.ndarray, names: tuple[str, ...], threshold: float = 0.5) -> float:
        return float(estimate)


@dataclass(frozen=True)
class TagLabels(LabelKind):
    """A tag for each word."""

    name: ClassVar[str] = "tags"
    has_classes: ClassVar[bool] = True
    default_task: ClassVar[str] = "tag"
    unit: ClassVar[tuple[str, ...]] = ("sentence",)

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """[words of all examples] tag ids, -1 for unknown tags."""
        id_of = {name: number for number, name in enumerate(names)}
        return torch.tensor([id_of.get(name, -1) for value in examples.values for name in label_names(value)])


@dataclass(frozen=True)
class ChoiceLabel(LabelKind):
    """The index of the right one among the choices of an example."""

    name: ClassVar[str] = "choice"
    default_task: ClassVar[str] = "choose"

    def describe(self, labels: "Labels") -> str:
        return "the index of a choice"

    def statistics(self, examples: "Examples") -> dict[str, Any]:
        return {f"choice {number}": count for number, count in sorted(Counter(examples.values).items())}

    def encode_targets(self, examples: "Examples", names: tuple[str, ...]) -> Tensor:
        """[examples] choice indices."""
        return torch.tensor(examples.values)

    def loss(self, logits: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none")


@dataclass(frozen=True)
class TextTarget(LabelKind):
    """Another text: the target of a sequence-to-sequence model."""

    name: ClassVar[str] = "text"
    default_task: ClassVar[str] = "seq2seq"
    unit: ClassVar[tuple[str, ...]] = ("source with its target", "sources with their targets")

    def describe(self, labels: "Labels") -> str:
        own = labels.tokenizer
        return "a text" if own is None else f"a text of {len(own):,} tokens ({own.kind})"

    def names_in(self, value: Any) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class SpanLabel(LabelKind):
    """A span of the passage: the positions of its first and its last token."""

    name: ClassVar[str] = "span"
    outputs: ClassVar[int] = 2
    default_task: ClassVar[str] = "answer"
    unit: ClassVar[tuple[str, ...]] = ("question",)

    def describe(self, labels: "Labels") -> str:
        return "a span of the passage"

    def statistics(self, examples: "Examples") -> dict[str, Any]:
        answered = sum(bool(answers.texts) for answers in examples.values)
        return {"answerable": answered, "unanswerable": len(examples) - answered}


def _class_ids(examples: "Examples", names: tuple[str, ...]) -> dict[Any, list[int]]:
    """The class ids of each distinct label; an unknown class is refused."""
    id_of = {name: number for number, name in enumerate(names)}
    ids = {value: [id_of.get(name, -1) for name in label_names(value)] for value in dict.fromkeys(examples.values)}
    for value, numbers in ids.items():
        if -1 in numbers:
            known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
            what = f"the label {label_names(value)[numbers.index(-1)]!r} did not occur in training (classes: {known})"
            raise KeelError(f"{examples.location_of(value)}: {what}: correct it, or train with it")
    return ids


def _indices_among(values: list[Any], distinct: Iterable[Any]) -> np.ndarray:
    """[values] the index of each among the distinct ones."""
    indices = {value: index for index, value in enumerate(distinct)}
    return np.fromiter(map(indices.__getitem__, values), np.int64, len(values))


def _ranked(probabilities: np.ndarray, names: tuple[str, ...]) -> list[Prediction]:
    order = np.argsort(-probabilities, kind="stable").tolist()
    return [Prediction(names[number], float(probabilities[number])) for number in order]

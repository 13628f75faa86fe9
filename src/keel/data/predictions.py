"""Predictions of a task: labels, tags, choices or texts, with their probabilities."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from keel.data.examples import Labels
from keel.data.label_kinds import Prediction
from keel.data.notebook_html import MAX_ROWS, html_table
from keel.data.tables import LazySequence
from keel.data.tag_schemes import detect_scheme, extract_entities
from keel.events import pluralize

__all__ = ["ChoicePrediction", "EntitySpan", "GeneratedText", "Prediction", "SpanAnswer", "TaggedText"]

MAX_SHOWN = 10
"""Predictions in the `repr` of many."""


class EntitySpan(NamedTuple):
    """An entity with its character offsets."""

    start: int
    end: int
    label: str
    text: str


@dataclass(frozen=True)
class TaggedText:
    """The words of a text with their tags and the probability of each tag."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    segmentation: bool = False
    """Whether the tags are a word segmentation: B, M, E, S without types."""

    @property
    def segmented_words(self) -> list[str]:
        """The words of a segmentation; empty for other tags."""
        return [span.text for span in self.entities] if self.segmentation else []

    @property
    def entities(self) -> list[EntitySpan]:
        """The entities with character offsets; empty for tags without a scheme, such as parts of speech."""
        if not self.tags or detect_scheme([[tag] for tag in self.tags]) == "none":
            return []
        offsets: list[tuple[int, int]] = []
        end = 0
        for word in self.words:
            start = self.text.index(word, end)
            end = start + len(word)
            offsets.append((start, end))
        spans: list[EntitySpan] = []
        for each in extract_entities(self.tags):
            inner = range(each.start + 1, each.end) if self.segmentation else ()
            gaps = [index for index in inner if offsets[index - 1][1] < offsets[index][0]]  # whitespace ends a word
            for first, last in pairwise([each.start, *gaps, each.end]):
                start, end = offsets[first][0], offsets[last - 1][1]
                spans.append(EntitySpan(start, end, each.type, self.text[start:end]))
        return spans

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "words": list(self.words),
            "tags": list(self.tags),
            "probabilities": [round(value, 4) for value in self.probabilities],
            "entities": [span._asdict() for span in self.entities],
            **({"text": self.text, "segmented": self.segmented_words} if self.segmentation else {}),
        }

    def __repr__(self) -> str:
        shown = self.segmented_words or self.entities or list(zip(self.words, self.tags, strict=True))
        return f"TaggedText({self.text!r}, {shown})"


@dataclass(frozen=True)
class GeneratedText:
    """A text that a model generated, with its score."""

    text: str
    score: float | None = None
    """Length-normalised log-probability: what beam search ranks by."""
    log_probability: float | None = None
    prompt: str = ""
    """Prompt of a language model."""
    ended: bool = True
    """False if a seq2seq model reached the maximum number of tokens before its end token."""
    alternatives: "tuple[GeneratedText, ...]" = ()
    """The next best texts, if requested."""
    stopped: bool = False
    """Whether a stop string ended the text."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"GeneratedText({self.text!r}" + (")" if self.score is None else f", {self.score:.2f})")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the alternatives."""
        scores = {"score": self.score, "log_probability": self.log_probability}
        return {
            "generated": self.text,
            **{name: round(value, 4) for name, value in scores.items() if value is not None},
            **({"prompt": self.prompt} if self.prompt else {}),
            **({} if self.ended else {"ended": False}),
        }


@dataclass(frozen=True)
class ChoicePrediction:
    """The most probable choice, by its index and its text, and the probabilities of all choices."""

    index: int
    text: str
    probabilities: tuple[float, ...]

    @property
    def probability(self) -> float:
        return self.probabilities[self.index]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        figures = [round(value, 4) for value in self.probabilities]
        return {"choice": self.index, "answer": self.text, "probability": self.probability, "probabilities": figures}

    def __repr__(self) -> str:
        return f"ChoicePrediction({self.index}, {self.text!r}, {self.probability:.2f})"


@dataclass(frozen=True)
class SpanAnswer:
    """A span of a passage that answers a question; an empty text means that the passage does not answer it."""

    text: str
    probability: float
    """Among the best spans and, if the model may predict it, no answer."""
    start: int
    """Where it starts in the passage, in characters."""
    end: int
    null_odds: float = 0.0
    """Score of no answer minus that of the best span."""
    end_before_start: bool = False
    """Whether the most probable end precedes the most probable start, which may mean that there is no answer."""
    alternatives: "tuple[SpanAnswer, ...]" = ()
    """The best spans, the most probable first."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"SpanAnswer({self.text!r}, {self.probability:.2f}, {self.start}:{self.end})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the alternatives."""
        return {"answer": self.text, "probability": round(self.probability, 4), "start": self.start, "end": self.end}


class StructuredPrediction(Protocol):
    """A prediction for one example that is more than a number."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ...


AnyPrediction = StructuredPrediction | list[Prediction] | float


@dataclass(frozen=True, eq=False)
class Predictions(LazySequence[AnyPrediction]):
    """One prediction per example, in the form that the label kind decodes to."""

    labels: Labels
    estimates: np.ndarray
    """[examples, classes] probabilities, or [examples] numbers."""
    threshold: float = field(default=0.5, kw_only=True)
    """Probability above which a label of a multi-label task, or the positive class of two, is predicted."""

    unseen: int = field(default=0, kw_only=True)
    """How many classes at the end did not occur in training and are never predicted."""

    def __len__(self) -> int:
        return len(self.estimates)

    def item(self, index: int) -> AnyPrediction:
        return self.labels.kind.decode(self.estimates[index], self.labels.names, self.threshold)

    def decide(self) -> np.ndarray:
        """The predicted class ids [examples] or, of a multi-label task, a boolean for each class."""
        if not self.unseen:
            return self.labels.kind.decide(self.estimates, self.labels.names, self.threshold)
        known = self.estimates[:, : -self.unseen]
        decided = self.labels.kind.decide(known, self.labels.names[: -self.unseen], self.threshold)
        return decided if decided.ndim == 1 else np.pad(decided, ((0, 0), (0, self.unseen)))

    def take(self, indices: Iterable[int]) -> Self:
        return replace(self, estimates=self.estimates[[*indices]])

    def with_labels(self, labels: Labels) -> Self:
        """The same predictions among further classes, which come last and are never predicted."""
        more = len(labels.names) - len(self.labels.names)
        if not more:
            return self
        return replace(self, labels=labels, estimates=np.pad(self.estimates, ((0, 0), (0, more))), unseen=more)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON lines."""
        plain: list[dict[str, Any]] = []
        for prediction in self:
            if isinstance(prediction, list):
                plain.append({"labels": [label.to_dict() for label in prediction]})
            else:
                plain.append({"number": prediction} if isinstance(prediction, float | int) else prediction.to_dict())
        return plain

    def __repr__(self) -> str:
        return repr(PredictionList(self))


class PredictionList(list[AnyPrediction]):
    """A list of predictions whose `repr` is short."""

    def __repr__(self) -> str:
        more = f"\n... {len(self) - MAX_SHOWN:,} more]" if len(self) > MAX_SHOWN else "]"
        return "[" + ",\n ".join(map(repr, self[:MAX_SHOWN])) + more

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        columns = list(dict.fromkeys(name for each in self[:MAX_ROWS] for name in _fields(each)))
        rows = ([_fields(each).get(name, "") for name in columns] for each in self)
        return html_table(pluralize(len(self), "prediction"), columns, rows, total=len(self))


def _fields(prediction: AnyPrediction) -> dict[str, Any]:
    """The parts of a prediction that a table shows."""
    if isinstance(prediction, list):
        return {"labels": ", ".join(f"{each.label} {each.confidence:.2f}" for each in prediction)}
    if isinstance(prediction, float | int):
        return {"number": f"{prediction:.4g}"}
    if isinstance(prediction, TaggedText):
        found = prediction.segmented_words or [f"{each.text} ({each.label})" for each in prediction.entities]
        return {"text": prediction.text, "found": " / ".join(found) or " ".join(prediction.tags)}
    plain = prediction.to_dict()
    return {name: f"{value:.2f}" if isinstance(value, float) else value for name, value in plain.items()}


def is_segmentation(labels: Labels) -> bool:
    """Whether these tags are a word segmentation (B, M, E, S)."""
    return set(labels.names) <= {*"BMES"}


@dataclass(frozen=True, eq=False)
class TagPredictions(Predictions):
    """A tag for each word of each example; `estimates` are [words of all examples] their probabilities."""

    tag_ids: np.ndarray
    """[words of all examples]"""
    texts: list[tuple[str, tuple[str, ...]]]
    """Text and words of each example."""

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def starts(self) -> np.ndarray:
        """[examples + 1] where the words of each example start."""
        return np.cumsum([0, *(len(words) for _, words in self.texts)])

    @cached_property
    def segmentation(self) -> bool:
        return is_segmentation(self.labels)

    def item(self, index: int) -> TaggedText:
        inside = slice(*self.starts[index : index + 2])
        tags = tuple(self.labels.names[tag] for tag in self.tag_ids[inside].tolist())
        return TaggedText(*self.texts[index], tags, tuple(self.estimates[inside].tolist()), self.segmentation)

    def take(self, indices: Iterable[int]) -> Self:
        chosen = [*indices]
        words = _ranges(self.starts, chosen)
        texts = [self.texts[index] for index in chosen]
        return replace(self, estimates=self.estimates[words], tag_ids=self.tag_ids[words], texts=texts)


@dataclass(frozen=True, eq=False)
class GeneratedPredictions(Predictions):
    """A text for each example; `estimates` are [examples] their scores."""

    generated: list[list[GeneratedText]]
    """The best texts for each example, the best first."""

    def item(self, index: int) -> GeneratedText:
        return self.generated[index][0]

    def take(self, indices: Iterable[int]) -> Self:
        chosen = [*indices]
        return replace(super().take(chosen), generated=[self.generated[index] for index in chosen])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON lines: the best text and, if several were requested, all of them."""
        return [
            {**texts[0].to_dict(), **({"best": [text.to_dict() for text in texts]} if len(texts) > 1 else {})}
            for texts in self.generated
        ]


@dataclass(frozen=True, eq=False)
class AnswerPredictions(Predictions):
    """A span for each question; `estimates` are [examples] their probabilities."""

    answers: list[SpanAnswer]

    def item(self, index: int) -> SpanAnswer:
        return self.answers[index]

    def take(self, indices: Iterable[int]) -> Self:
        chosen = [*indices]
        return replace(super().take(chosen), answers=[self.answers[index] for index in chosen])


@dataclass(frozen=True, eq=False)
class ChoicePredictions(Predictions):
    """One of the choices for each example; `estimates` are [choices of all examples] their probabilities."""

    choices: list[tuple[str, ...]]
    """Choices of each example."""

    def __len__(self) -> int:
        return len(self.choices)

    @cached_property
    def starts(self) -> np.ndarray:
        """[examples + 1] where the choices of each example start."""
        return np.cumsum([0, *map(len, self.choices)])

    @property
    def predicted(self) -> list[ChoicePrediction]:
        """All predictions."""
        return [self.item(index) for index in range(len(self))]

    def item(self, index: int) -> ChoicePrediction:
        probabilities = self.estimates[slice(*self.starts[index : index + 2])]
        best = int(probabilities.argmax())
        return ChoicePrediction(best, self.choices[index][best], tuple(probabilities.tolist()))

    def take(self, indices: Iterable[int]) -> Self:
        chosen = [*indices]
        estimates = self.estimates[_ranges(self.starts, chosen)]
        return replace(self, estimates=estimates, choices=[self.choices[index] for index in chosen])


def _ranges(starts: np.ndarray, chosen: list[int]) -> list[int]:
    """The positions from the start of each chosen example to that of the next."""
    return [position for index in chosen for position in range(starts[index], starts[index + 1])]

"""What a model says about examples: the answers, and the probabilities behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np

from keel.data.examples import Labels
from keel.data.tag_schemes import detect_scheme, extract_entities


@dataclass(frozen=True)
class Prediction:
    """A name and how probable the model finds it."""

    label: str
    confidence: float

    def __repr__(self) -> str:
        return f"Label({self.label!r}, {self.confidence:.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"label": self.label, "probability": self.confidence}


class EntitySpan(NamedTuple):
    """A stretch of a text and what it is."""

    start: int
    end: int
    label: str
    text: str


@dataclass(frozen=True)
class TaggedText:
    """A text in words, a tag for each, and how probable the model finds it."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    segmentation: bool = False
    """Whether the tags say where words begin and end: B M E S, and of no type."""

    @property
    def segmented_words(self) -> list[str]:
        """The text cut into words by its tags; nothing where they speak of something else."""
        return [span.text for span in self.entities] if self.segmentation else []

    @property
    def entities(self) -> list[EntitySpan]:
        """What the tags speak of, by its place in the text; nothing where they are no tags of entities."""
        if not self.tags or detect_scheme([[tag] for tag in self.tags]) == "none":
            return []
        places: list[tuple[int, int]] = []
        end = 0
        for word in self.words:
            start = self.text.index(word, end)
            end = start + len(word)
            places.append((start, end))
        spans: list[EntitySpan] = []
        for each in extract_entities(self.tags):
            inner = range(each.start + 1, each.end) if self.segmentation else ()
            blanks = [number for number in inner if places[number - 1][1] < places[number][0]]  # these end words too
            for first, last in pairwise([each.start, *blanks, each.end]):
                start, end = places[first][0], places[last - 1][1]
                spans.append(EntitySpan(start, end, each.type, self.text[start:end]))
        return spans

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = [span._asdict() for span in self.entities]
        figures = [round(value, 4) for value in self.probabilities]
        cut = {"text": self.text, "segmented": self.segmented_words} if self.segmentation else {}
        return {"words": list(self.words), "tags": list(self.tags), "probabilities": figures, "entities": found, **cut}

    def __repr__(self) -> str:
        shown = self.segmented_words or self.entities or list(zip(self.words, self.tags, strict=True))
        return f"Tagged({self.text!r}, {shown})"


@dataclass(frozen=True)
class GeneratedText:
    """A text that another became, and how it was judged."""

    text: str
    score: float | None = None
    """log p, set right for its length: what texts were compared by."""
    log_probability: float | None = None
    prompt: str | None = None
    """What a language model went on from."""
    ended: bool = True
    """Whether the model ended it; if not, it was cut off where it had as many tokens as may be written."""
    alternatives: "tuple[GeneratedText, ...]" = ()
    """The next best, where they were asked for."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Rewritten({self.text!r}" + (")" if self.score is None else f", {self.score:.2f})")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the next best."""
        judged = {"score": self.score, "log_probability": self.log_probability}
        return {
            "rewritten": self.text,
            **{name: round(value, 4) for name, value in judged.items() if value is not None},
            **({} if self.prompt is None else {"prompt": self.prompt}),
            **({} if self.ended else {"ended": False}),
        }


@dataclass(frozen=True)
class ChoicePrediction:
    """The likeliest of some choices, by its number and its text, and how probable each of them is."""

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
        return f"Chosen({self.index}, {self.text!r}, {self.probability:.2f})"


AnyPrediction = Prediction | list[Prediction] | float | TaggedText | ChoicePrediction | GeneratedText


@dataclass(frozen=True, eq=False)
class Predictions(Sequence[AnyPrediction]):
    """One answer for each example: the likeliest label, the labels above one half (likeliest first), or a number."""

    labels: Labels
    estimates: np.ndarray
    """[examples, names] probabilities, or [examples] numbers."""

    def __len__(self) -> int:
        return len(self.estimates)

    @overload
    def __getitem__(self, index: int) -> AnyPrediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "AnyPrediction | Predictions":
        if isinstance(index, slice):
            return Predictions(self.labels, self.estimates[index])
        estimate = self.estimates[index]
        if self.labels.kind == "number":
            return float(estimate)
        order = np.argsort(-estimate, kind="stable").tolist()
        ranked = [Prediction(self.labels.names[number], float(estimate[number])) for number in order]
        return ranked[0] if self.labels.kind == "one" else [label for label in ranked if label.confidence > 0.5]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON lines."""
        plain: list[dict[str, Any]] = []
        for answer in self:
            if isinstance(answer, Prediction | TaggedText | ChoicePrediction | GeneratedText):
                plain.append(answer.to_dict())
            elif isinstance(answer, list):
                plain.append({"labels": [label.to_dict() for label in answer]})
            else:
                plain.append({"number": answer})
        return plain

    def __repr__(self) -> str:
        return repr(list(self))


def is_segmentation(labels: Labels) -> bool:
    """Whether these tags say where words begin and end."""
    return set(labels.names) <= {*"BMES"}


@dataclass(frozen=True, eq=False)
class TagPredictions(Predictions):
    """A tag for each word of each example; `estimates` are [words of all examples] their probabilities."""

    tag_ids: np.ndarray
    """[words of all examples] of the tags."""
    texts: list[tuple[str, tuple[str, ...]]]
    """Of each example the text and its words."""

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def starts(self) -> np.ndarray:
        """[examples + 1] where the words of each start."""
        return np.cumsum([0, *(len(words) for _, words in self.texts)])

    @cached_property
    def segmentation(self) -> bool:
        """Whether the tags say where words begin and end."""
        return is_segmentation(self.labels)

    @overload
    def __getitem__(self, index: int) -> TaggedText: ...
    @overload
    def __getitem__(self, index: slice) -> "TagPredictions": ...
    def __getitem__(self, index: int | slice) -> "TaggedText | TagPredictions":
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            places = np.concatenate([np.arange(*self.starts[[n, n + 1]]) for n in chosen] or [np.zeros(0, int)])
            texts = [self.texts[number] for number in chosen]
            return TagPredictions(self.labels, self.estimates[places], self.tag_ids[places], texts)
        number = range(len(self))[index]
        inside = slice(*self.starts[[number, number + 1]])
        tags = tuple(self.labels.names[tag] for tag in self.tag_ids[inside].tolist())
        return TaggedText(*self.texts[number], tags, tuple(self.estimates[inside].tolist()), self.segmentation)


@dataclass(frozen=True, eq=False)
class GeneratedPredictions(Predictions):
    """A text for each example; `estimates` are [examples] their scores."""

    generated: list[list[GeneratedText]]
    """For each example the best few, the best first."""

    @overload
    def __getitem__(self, index: int) -> GeneratedText: ...
    @overload
    def __getitem__(self, index: slice) -> "GeneratedPredictions": ...
    def __getitem__(self, index: int | slice) -> "GeneratedText | GeneratedPredictions":
        if isinstance(index, slice):
            return GeneratedPredictions(self.labels, self.estimates[index], self.generated[index])
        return self.generated[index][0]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data for JSON lines: the best text, and where more were asked for all of them."""
        return [
            {**texts[0].to_dict(), **({"best": [text.to_dict() for text in texts]} if len(texts) > 1 else {})}
            for texts in self.generated
        ]


@dataclass(frozen=True, eq=False)
class ChoicePredictions(Predictions):
    """One of the choices for each example; `estimates` are [choices of all examples] their probabilities."""

    choices: list[tuple[str, ...]]
    """Of each example."""

    def __len__(self) -> int:
        return len(self.choices)

    @cached_property
    def starts(self) -> np.ndarray:
        """[examples + 1] where the choices of each start."""
        return np.cumsum([0, *map(len, self.choices)])

    @property
    def predicted(self) -> list[ChoicePrediction]:
        """All of them."""
        return [self[number] for number in range(len(self))]

    @overload
    def __getitem__(self, index: int) -> ChoicePrediction: ...
    @overload
    def __getitem__(self, index: slice) -> "ChoicePredictions": ...
    def __getitem__(self, index: int | slice) -> "ChoicePrediction | ChoicePredictions":
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            parts = [self.estimates[slice(*self.starts[[n, n + 1]])] for n in chosen]
            estimates = np.concatenate(parts) if parts else self.estimates[:0]
            return ChoicePredictions(self.labels, estimates, [self.choices[n] for n in chosen])
        number = range(len(self))[index]
        chances = self.estimates[slice(*self.starts[[number, number + 1]])]
        best = int(chances.argmax())
        return ChoicePrediction(best, self.choices[number][best], tuple(chances.tolist()))

"""Probing data: texts whose spans, or pairs of spans, have labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

FORMATS = "CoNLL-U, columns of words and tags, jsonl with span1, span2 (optional) and label, or WiC as published"


class ProbedText(NamedTuple):
    """A text with labelled spans: of `words` where there are any, else of characters."""

    text: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpanLabels:
    """The examples of one task: spans, or pairs of spans, with a label each."""

    spans: np.ndarray  # [examples, 1 or 2] indices of spans
    labels: list[str]
    types: list[str]
    """The word or the text of the spans, ignoring case."""


@dataclass(frozen=True, kw_only=True)
class ProbingData:
    """Texts, their distinct spans, and tasks that label these."""

    source: str
    texts: list[ProbedText]
    spans: np.ndarray  # [spans, 3] text, start, end
    tasks: dict[str, SpanLabels]
    known: tuple[str, ...]
    """Names of all tasks that the file has."""


class ProbingItems(Protocol):
    """The sentences or records of a file."""

    @property
    def sizes(self) -> Sequence[int]:
        """Words of each sentence, or examples of each record."""
        ...

    def build(self, chosen: Sequence[int], wanted: Sequence[str]) -> ProbingData:
        """The data of some of them; its tasks are those of `wanted` that the file has, by default all."""
        ...

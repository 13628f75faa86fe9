"""Settings of a verb: each goes to the dataclass that has a field of its name."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from keel.config import replace, unknown_name
from keel.data.corpus import Corpus
from keel.errors import UsageError
from keel.events import OnEvent
from keel.systems.system import System
from keel.training.plan import Train

ENDING = re.compile(r"[\w*?\]]\.(txt|text|md|json|jsonl|csv|tsv|parquet)(\.(gz|xz|zst|bz2))?$", re.IGNORECASE)
"""Of a file's name, or of a pattern of names."""


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How a corpus is read and cut into pieces."""

    text_column: str = "text"
    """Which column of a csv, tsv, jsonl or parquet file is the text."""
    encoding: str = "auto"
    """Of the files; auto tries UTF-8, then GB18030."""
    dedup: Literal["none", "lines", "documents"] = "none"
    """What to keep only once."""
    sentences: Literal["auto", "split", "lines", "none"] = "auto"
    """How sentences are told apart: by their marks (split), as lines alone, where text is cut already, or not at all,
    so that text keeps its blanks and line breaks (none); auto is for the system to decide."""
    tokenizer: str = "auto"
    """wordpiece, bpe, words or characters; or a folder whose tokenizer is taken as it is."""
    vocabulary: int = 0
    """Pieces to learn, at most; 0 is the system's own number, of byte pairs those that come 10 times or more."""
    min_count: int = 0
    """Times that a word must come to be learned; 0 is the system's own number, 1 learns all."""
    phrases: int = 0
    """Passes that join words to phrases, as in new_york."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Whether capital letters are one with small ones."""
    sample: int = 200_000_000
    """Bytes of text that the tokenizer learns from."""
    held_out: float = 0.01
    """Share of the text that is only evaluated on."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out <= 0.5:
            raise UsageError(f"held_out must lie between 0 and 0.5, not at {self.held_out}: it is a share of the text")
        if self.sample <= 0 or 0 != self.vocabulary < 10:
            raise UsageError("sample must be above 0 bytes and vocabulary 10 pieces or more")
        if self.min_count < 0 or self.phrases < 0:
            raise UsageError("min_count and phrases must not be below 0")

    def resolve(self, system: System) -> Self:
        """The same, with what was left to the system."""
        return replace(self, sentences=system.default_sentences) if self.sentences == "auto" else self


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """How a new model, which learns from examples alone, cuts their text into pieces."""

    tokenizer: str = "auto"
    """wordpiece, bpe, words or characters; auto is the system's own kind, and where it is to write text bpe, for
    Chinese characters."""
    vocabulary: int = 0
    """Pieces to learn, at most; 0 is the system's own number."""
    separate: bool = False
    """For seq2seq: one vocabulary for what is read and another for what is written."""

    KINDS = ("auto", "wordpiece", "bpe", "words", "characters")

    def __post_init__(self) -> None:
        if self.tokenizer not in self.KINDS:
            raise UsageError(f"tokenizer must be one of {', '.join(self.KINDS)}, not {self.tokenizer!r}")
        if 0 != self.vocabulary < 10:
            raise UsageError(f"vocabulary must be 10 pieces or more, not {self.vocabulary}")


def route_settings(settings: dict[str, Any], *targets: Any, only: Collection[str] | None = None) -> list[Any]:
    """The targets with each setting put where a field has its name; of the first, a System, `only` these may change."""
    given: list[dict[str, Any]] = [{} for _ in targets]
    names = [{field.name for field in fields(target)} for target in targets]
    fixed: set[str] = set()
    if only is not None:
        fixed = names[0] - set(only)
        names[0] -= fixed
    for name, value in settings.items():
        place = next((number for number, known in enumerate(names) if name in known), None)
        if place is None and name in fixed:
            raise _fixed(name, targets[0], sorted(names[0]))
        if place is None:
            raise unknown_name(name, set().union(*names), "the settings")
        given[place][name] = value
    for target, values in zip(targets, given, strict=True):
        if isinstance(target, Train) and set(Train.LENGTHS) & values.keys():
            # One way to say how long takes the place of another.
            values |= {name: values.get(name, 0) for name in Train.LENGTHS}
    return [replace(target, **values) for target, values in zip(targets, given, strict=True)]


def _fixed(name: str, system: System, free: list[str]) -> UsageError:
    """The error for a setting of a system that this verb cannot change in a trained model."""
    if name in system.tunable:
        return UsageError(f"{name} is for learning from text: leave it out, or change it by keel pretrain")
    more = f"; what may change is {', '.join(free)}" if free else ""
    what = f"{name} is the model's shape and cannot change"
    return UsageError(f"{what}: leave it out, or start from a new {system.name}{more}")


def corpus_of(source: Any, text: TextSettings, on_event: OnEvent) -> Corpus:
    """Files by name, or texts in memory: a DataFrame's column, or a list of strings of which none names a file and one
    at least cannot, for it is empty, has blanks or is not English."""
    sentences = "split" if text.sentences == "auto" else text.sentences
    if isinstance(source, Corpus):
        return source.with_sentences(sentences)
    if hasattr(source, "columns"):
        if text.text_column not in source.columns:
            known = ", ".join(map(repr, source.columns))
            raise UsageError(f"the DataFrame has no column {text.text_column!r}: it has {known} (say text_column=...)")
        return Corpus.of([str(value) for value in source[text.text_column]], sentences=sentences)
    if isinstance(source, list) and any(map(_is_text, source)) and not _are_names(source):
        return Corpus.of(source, sentences=sentences)
    return Corpus(
        source,
        text_column=text.text_column,
        encoding=text.encoding,
        dedup=text.dedup,
        sentences=sentences,
        on_event=on_event,
    )


def _is_text(item: object) -> bool:
    return isinstance(item, str) and (not item or bool(re.search(r"\s", item)) or not item.isascii())


def _are_names(items: list[Any]) -> bool:
    """Whether one is a file or can be nothing but the name of some, or all end as names do, blanks or not."""
    endings = [ENDING.search(item, max(0, len(item) - 20)) if isinstance(item, str) else None for item in items]
    return all(endings) or any(
        isinstance(item, Path)
        or (isinstance(item, str) and os.path.isfile(item))
        or (ending and (ending[0].startswith("*") or not re.search(r"\s", item)))
        for item, ending in zip(items, endings, strict=True)
    )

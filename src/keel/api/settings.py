"""Settings of verbs: passed as objects or as single keywords, each routed to the dataclass with a field of its name."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from keel.config import Count, Doc, Ge, Le, Validated, replace, unknown_name
from keel.data.corpus import Corpus
from keel.data.examples import Columns
from keel.data.language_mix import SMOOTHING
from keel.data.separators import check_separator
from keel.errors import UsageError
from keel.events import OnEvent
from keel.formats.upgrades import new_names
from keel.generation.beam_search import BeamSearch
from keel.systems.system import System
from keel.tasks.head_settings import HeadSettings
from keel.training.plan import Train

__all__ = ["TextSettings", "VocabularySettings"]

Source = Any
"""A dataset or corpus: a file or pattern (str, Path, "-"), a list of texts or (text, label) pairs, or a DataFrame."""
LEAST_VOCABULARY = 10
SWEPT = ("lr", "epochs", "batch")
"""Settings of `Train` of which `finetune` takes several values."""
OVERWRITE = Doc("Replace the model and the run in --out.")


@dataclass(frozen=True, kw_only=True)
class TextSettings(Validated):
    """How a corpus is read and tokenized."""

    text_column: str = "text"
    """Text column of csv, tsv, jsonl and parquet files."""
    separator: str = "auto"
    """Column separator of csv and tsv files, such as ";" or tab; auto: a tab in .tsv, in .csv a comma, or the semicolon
    or tab that alone gives a table with the text column."""
    encoding: str = "auto"
    """Character encoding of the files; auto: byte order mark, UTF-8, else GB18030; invalid text is refused."""
    dedup: Literal["none", "lines", "documents"] = "none"
    """Deduplication: keep the first of equal lines or documents."""
    sentences: Literal["auto", "split", "lines", "none"] = "auto"
    """Sentence splitting: at punctuation (split), one sentence per line (lines), or none, which keeps whitespace and
    line breaks; auto: the system's default."""
    tokenizer: str = "auto"
    """Tokenizer to train: wordpiece, bpe, words or characters; or a folder with a trained tokenizer."""
    vocabulary: Annotated[int, Ge(0)] = 0
    """Maximum vocabulary size; 0: the system's default (for bpe, the merges that occur 10 times or more)."""
    oversize: Annotated[float, Ge(1)] = 1.0
    """WordPiece: train a vocabulary this many times as large, and keep the tokens that the text uses most; frequent
    words, such as names, then take the place of rarely used parts of words."""
    min_count: Annotated[int, Ge(0)] = 0
    """Minimum count of a word in the vocabulary; 0: the system's default."""
    phrases: Annotated[int, Ge(0)] = 0
    """Passes of phrase detection, which joins frequent bigrams as in new_york; ernie masks phrases as a whole."""
    entities: str = ""
    """File with one name per line; ernie masks them as a whole."""
    entity_model: str = ""
    """Folder of a tagging model; ernie masks the entities that it predicts as a whole."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Lowercasing; auto: the system's default."""
    sample: Count = 200_000_000
    """Bytes of text that the tokenizer is trained on."""
    language_smoothing: Annotated[float, Ge(0), Le(1)] = SMOOTHING
    """Corpus of several languages: each is sampled by its size to this power; 1: by its size, 0: all equally."""
    held_out: Annotated[float, Ge(0), Le(0.5)] = 0.01
    """Share of the text held out for validation."""

    def __post_init__(self) -> None:
        _check_vocabulary(self.vocabulary)
        check_separator(self.separator)

    def resolve(self, system: System) -> Self:
        """These settings with the system's default for sentences."""
        return replace(self, sentences=system.default_sentences) if self.sentences == "auto" else self


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Validated):
    """The tokenizer of a new model that is trained on labelled examples alone."""

    tokenizer: Literal["auto", "wordpiece", "bpe", "words", "characters"] = "auto"
    """Tokenizer to train; auto: the system's default, for seq2seq bpe; characters for Chinese in seq2seq, and for tags
    of Chinese characters."""
    vocabulary: Annotated[int, Ge(0)] = 0
    """Maximum vocabulary size; 0: the system's default."""
    separate: bool = False
    """Separate vocabularies for source and target, for seq2seq."""

    def __post_init__(self) -> None:
        _check_vocabulary(self.vocabulary)


def _check_vocabulary(size: int) -> None:
    if 0 != size < LEAST_VOCABULARY:
        raise UsageError(f"--text.vocabulary must be {LEAST_VOCABULARY} or more, not {size}")


SETTINGS_TYPES: dict[str, tuple[type[Validated], ...]] = {
    "train": (Train,),
    "text": (TextSettings, VocabularySettings),
    "columns": (Columns,),
    "head": (HeadSettings,),
    "search": (BeamSearch,),
}
"""The classes of each argument that takes a settings object."""


def merge_settings(keywords: Mapping[str, Any], **objects: Validated | None) -> dict[str, Any]:
    """Single settings by name: the fields given in settings objects, and keywords, which override them."""
    merged: dict[str, Any] = {}
    for name, settings in objects.items():
        accepted = SETTINGS_TYPES[name]
        if settings is not None and not isinstance(settings, accepted):
            names = " or ".join(f"keel.{each.__name__}(...)" for each in accepted)
            raise UsageError(f"{name} must be {names}, not {settings!r:.60}")
        if settings is not None:
            merged |= {field: getattr(settings, field) for field in settings.given}
    return merged | dict(keywords)


def route_settings(settings: Mapping[str, Any], *targets: Any, only: Collection[str] | None = None) -> list[Any]:
    """The targets with each setting in the field of its name; `only` these of the first, a System, may change."""
    given: list[dict[str, Any]] = [{} for _ in targets]
    names = [{field.name for field in fields(target)} for target in targets]
    fixed = set() if only is None else names[0] - set(only)
    names[0] -= fixed
    for name, value in settings.items():
        index = next((number for number, known in enumerate(names) if name in known), None)
        if index is None:
            raise _refusal(name, set().union(*names), fixed, targets[0])
        given[index][name] = value
    for target, values in zip(targets, given, strict=True):
        if isinstance(target, Train) and set(Train.LENGTHS) & values.keys():
            values |= {name: values.get(name, 0) for name in Train.LENGTHS}  # steps replace default epochs, and so on
    merged = [replace(target, **values) for target, values in zip(targets, given, strict=True)]
    for target in merged:
        if isinstance(target, Train):
            target.check_length()
        if isinstance(target, System) and only is None:
            target.check_new()
    return merged


def _refusal(name: str, known: set[str], fixed: set[str], system: Any) -> UsageError:
    """The error for a setting that no target takes; `fixed` ones belong to the shape of a trained model."""
    if name in fixed and name in system.tunable:
        return UsageError(f"{name} is a setting of pre-training: leave it out, or change it with keel pretrain")
    if name in fixed:
        free = sorted({field.name for field in fields(system)} - fixed)
        more = f"; these can change: {', '.join(free)}" if free else ""
        return UsageError(f"{name} is fixed in a trained model: leave it out, or start from a new {system.name}{more}")
    if renamed := [new for new in new_names(name) if new in known]:
        return UsageError(f"{name} was renamed: use {' or '.join(renamed)}")
    return unknown_name(name, known, "settings")


def corpus_of(source: Source, text: TextSettings, on_event: OnEvent) -> Corpus:
    """A corpus with these settings, or a given one with their sentence splitting."""
    sentences = "split" if text.sentences == "auto" else text.sentences
    if isinstance(source, Corpus):
        return source.with_sentences(sentences)
    return Corpus(
        source,
        text_column=text.text_column,
        separator=text.separator,
        encoding=text.encoding,
        dedup=text.dedup,
        sentences=sentences,
        on_event=on_event,
    )

"""Probing data of tagged words: CoNLL-U and columns, with a task per column."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keel.data.probing_data import FORMATS, ProbedText, ProbingData, SpanLabels
from keel.data.tagged_files import CONLLU, FIELDS, TAGGED, WHITESPACE, ColumnLayout, Lines, conllu_rows
from keel.errors import KeelError, UsageError
from keel.events import pluralize

FIELD_TASKS = ("upos", "xpos", "feats", "deprel")
"""Tasks that are a field of CoNLL-U."""
HEAD, ARC = "head", "arc"
"""The distance to the head; the relation of a word and its head, both given."""
DISTANCES = {1: "1", 2: "2", 3: "3 to 5", 6: "6 or more"}
"""Classes of the distance to the head, by the smallest distance of each."""
NO_WORDS = ("#", "-DOCSTART-")
"""Starts of lines that are no words."""

Words = list[tuple[int, list[str]]]
"""The numbered fields of each word of a sentence."""
LabelsOf = Callable[[Words], Iterator[tuple[tuple[int, ...], str]]]
"""The examples of a sentence: the indices of one or two words, and their label."""


@dataclass(frozen=True)
class TaggedBlocks:
    """A CoNLL-U file or a file of columns by sentence; a sentence is parsed when it is used."""

    name: str
    blocks: list[Lines]
    sizes: list[int]
    layout: ColumnLayout | None
    """None for CoNLL-U."""

    @classmethod
    def of(cls, lines: Lines, format: str, name: str) -> "TaggedBlocks":
        blocks: list[Lines] = [[]]
        for number, line in lines:
            if line.strip(WHITESPACE):
                blocks[-1].append((number, line))
            elif blocks[-1]:
                blocks.append([])
        layout = ColumnLayout.of(lines) if format == "columns" else None
        sizes = [sum(_is_word(line, layout) for _, line in block) for block in blocks]
        blocks = [block for block, size in zip(blocks, sizes, strict=True) if size]
        if not blocks:
            raise KeelError(f"{name} has no sentences: give {FORMATS}")
        if layout and layout.width < 2:
            raise KeelError(f"{name} has words without tags: put the tags of each word in columns after it")
        return cls(name, blocks, [size for size in sizes if size], layout)

    def build(self, chosen: Sequence[int], wanted: Sequence[str]) -> ProbingData:
        blocks = [self.blocks[number] for number in chosen]
        tasks: dict[str, LabelsOf]
        if self.layout is None:
            sentences = [[row for row in conllu_rows(block, self.name) if row] for block in blocks]
            available = _conllu_tasks(sentences, self.name)
            tasks = {name: available[name] for name in wanted or _filled_tasks(sentences) if name in available}
            _refuse_missing(sentences, tasks, self.name)
            form, known = CONLLU["FORM"], tuple(available)
        else:
            columns = _columns_of(wanted, self.layout.width, self.name)
            needed = 0, *columns.values()
            sentences = [[row for row in self.layout.rows(block, self.name, needed) if row] for block in blocks]
            tasks = {name: _field_labels(column) for name, column in columns.items()}
            form, known = 0, tuple(_columns_of((), self.layout.width, self.name))
        sentences = [sentence for sentence in sentences if sentence]
        texts = [ProbedText("", tuple(fields[form] for _, fields in sentence)) for sentence in sentences]
        starts = np.cumsum([0, *map(len, sentences)])[:-1].tolist()
        spans = [(text, word, word + 1) for text, sentence in enumerate(sentences) for word in range(len(sentence))]
        found = {name: _label_words(labels_of, sentences, texts, starts) for name, labels_of in tasks.items()}
        return ProbingData(
            source=self.name, texts=texts, spans=np.array(spans, np.int64).reshape(-1, 3), tasks=found, known=known
        )


def _is_word(line: str, layout: ColumnLayout | None) -> bool:
    """Whether a line is that of a word; in CoNLL-U, no comment, multi-word token or empty node."""
    return line.partition("\t")[0].isdigit() if layout is None else not line.startswith(NO_WORDS)


def _label_words(labels_of: LabelsOf, sentences: list[Words], texts: list[ProbedText], starts: list[int]) -> SpanLabels:
    spans: list[list[int]] = []
    labels: list[str] = []
    types: list[str] = []
    for sentence, text, start in zip(sentences, texts, starts, strict=True):
        for indices, label in labels_of(sentence):
            spans.append([start + index for index in indices])
            labels.append(label)
            types.append(" ".join(text.words[index] for index in indices).casefold())
    return SpanLabels(spans=np.array(spans, np.int64), labels=labels, types=types)


def _columns_of(wanted: Sequence[str], width: int, name: str) -> dict[str, int]:
    """The tasks of a file of columns: NAME=3, or 3; by default all columns after the first."""
    if not wanted:
        return {f"column {number}": number - 1 for number in range(2, width + 1)}
    found: dict[str, int] = {}
    for each in wanted:
        if not (parts := re.fullmatch(r"(?:(.+)=|column )?(\d+)", each)):
            continue
        if not 2 <= int(parts[2]) <= width:
            columns = f"columns 2 to {width}" if width > 2 else "column 2 only"
            raise UsageError(f"--probe {each}: {name} has labels in {columns}")
        found[parts[1] or f"column {parts[2]}"] = int(parts[2]) - 1
    return found


def _field_labels(column: int) -> LabelsOf:
    return lambda words: (((index,), fields[column]) for index, (_, fields) in enumerate(words))


def _conllu_tasks(sentences: list[Words], name: str) -> dict[str, LabelsOf]:
    """All tasks of these sentences by name; each morphological feature is one, for the words that have it."""
    relation = CONLLU["DEPREL"]
    features = sorted({each for words in sentences for _, fields in words for each in _features(fields)})
    return {
        **{task: _field_labels(CONLLU[task.upper()]) for task in FIELD_TASKS},
        HEAD: lambda words: (((index,), _distance(index, head)) for index, head in _heads(words, name)),
        ARC: lambda words: (
            ((index, head), words[index][1][relation]) for index, head in _heads(words, name) if head >= 0
        ),
        **{feature: _feature_labels(feature) for feature in features},
    }


def _filled_tasks(sentences: list[Words]) -> list[str]:
    """The tasks whose fields are not empty in all words; no single features."""
    needed = {**{task: {task.upper()} for task in FIELD_TASKS}, HEAD: {"HEAD"}, ARC: {"HEAD", "DEPREL"}}
    rows = [fields for words in sentences for _, fields in words]
    filled = {field for field in FIELDS if any(fields[CONLLU[field]] not in ("_", "") for fields in rows)}
    return [task for task, names in needed.items() if names <= filled]


def _refuse_missing(sentences: list[Words], tasks: Iterable[str], name: str) -> None:
    """Refuse words without a label."""
    needed = {task.upper() for task in tasks} | ({"DEPREL", "HEAD"} if ARC in tasks else set())
    for field in (each for each in TAGGED if each in needed):
        bare = [row for words in sentences for row in words if row[1][CONLLU[field]] in ("_", "")]
        if bare:
            number, fields = bare[0]
            what = f"{pluralize(len(bare), 'word has', 'words have')} no {field}, such as {fields[1][:40]!r}"
            raise KeelError(f"{name}:{number}: {what}: add it, or probe other tasks with --probe")


def _features(fields: Sequence[str]) -> dict[str, str]:
    """The morphological features of a word by name."""
    pairs = (each.partition("=") for each in fields[CONLLU["FEATS"]].split("|"))
    return {name: value for name, sign, value in pairs if sign}


def _feature_labels(feature: str) -> LabelsOf:
    def labels_of(words: Words) -> Iterator[tuple[tuple[int, ...], str]]:
        for index, (_, fields) in enumerate(words):
            if feature in (found := _features(fields)):
                yield (index,), found[feature]

    return labels_of


def _heads(words: Words, name: str) -> Iterator[tuple[int, int]]:
    """Each word with its head, as indices; -1 for the root."""
    index_of = {fields[0]: index for index, (_, fields) in enumerate(words)} | {"0": -1}
    for index, (number, fields) in enumerate(words):
        head = fields[CONLLU["HEAD"]]
        if head not in index_of or index_of[head] == index:
            what = f"HEAD {head!r} is no other word of the sentence"
            raise KeelError(f"{name}:{number}: {what}: correct it (0 for the root)")
        yield index, index_of[head]


def _distance(index: int, head: int) -> str:
    """The class of the distance to the head: its side, and how far it is."""
    if head < 0:
        return "root"
    far = max(least for least in DISTANCES if least <= abs(head - index))
    return f"{'right' if head > index else 'left'} {DISTANCES[far]}"

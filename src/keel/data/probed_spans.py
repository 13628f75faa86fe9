"""Probing data of labelled spans, or pairs of spans: records (jsonl), and WiC as published."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keel.data.probing_data import FORMATS, ProbedText, ProbingData, SpanLabels
from keel.data.tagged_files import Lines
from keel.errors import KeelError
from keel.events import pluralize

Span = tuple[int, int, int]
"""Text, start and end."""


class SpanRecord(NamedTuple):
    """A record: where it is, its texts, and examples of one or two spans with a label."""

    location: str
    texts: list[ProbedText]
    examples: list[tuple[list[Span], str]]


@dataclass(frozen=True)
class SpanRecords:
    """Records whose spans are labelled for one task."""

    name: str
    task: str
    records: list[SpanRecord]
    sizes: list[int]

    @classmethod
    def of(cls, records: Sequence[tuple[str, Mapping[str, Any]]], name: str, task: str) -> "SpanRecords":
        """From (location, record) pairs."""
        found = [_record(location, record) for location, record in records]
        if not found:
            raise KeelError(f"{name} has no records: give {FORMATS}")
        pairs = max(len(spans) for each in found for spans, _ in each.examples)
        for each in found:
            if any(len(spans) < pairs for spans, _ in each.examples):
                what = "span2 is missing, which other records have"
                raise KeelError(f"{each.location}: {what}: give both spans in all records")
        return cls(name, task, found, [len(each.examples) for each in found])

    def build(self, chosen: Sequence[int], wanted: Sequence[str]) -> ProbingData:
        texts: dict[ProbedText, int] = {}
        spans: dict[Span, int] = {}
        indices: list[list[int]] = []
        labels: list[str] = []
        types: list[str] = []
        for record in (self.records[number] for number in chosen):
            numbers = [texts.setdefault(text, len(texts)) for text in record.texts]
            for parts, label in record.examples:
                located = [(numbers[text], start, end) for text, start, end in parts]
                indices.append([spans.setdefault(span, len(spans)) for span in located])
                labels.append(label)
                types.append("\t".join(_span_text(record.texts[text], *span) for text, *span in parts).casefold())
        task = SpanLabels(spans=np.array(indices, np.int64), labels=labels, types=types)
        return ProbingData(
            source=self.name,
            texts=[*texts],
            spans=np.array([*spans], np.int64),
            tasks={self.task: task},
            known=(self.task,),
        )


def _span_text(text: ProbedText, start: int, end: int) -> str:
    return " ".join(text.words[start:end]) if text.words else text.text[start:end]


def _record(location: str, record: Mapping[str, Any]) -> SpanRecord:
    """One record: `text` (or `words`) with span1, span2 and label; `text2` where span2 is in a second text; `targets`
    with spans of words, as in edge probing (Tenney et al. 2019); or WiC as in SuperGLUE."""
    if "sentence1" in record and "start1" in record:
        spans = {f"span{n}": [record.get(f"start{n}"), record.get(f"end{n}")] for n in (1, 2)}
        texts = {"text": record["sentence1"], "text2": record.get("sentence2", "")}
        return _record(location, {**texts, **spans, "label": record.get("label")})
    targets = record.get("targets", [record])
    by_words = "targets" in record or "words" in record
    texts = [_text(location, record, "words" if "words" in record else "text", by_words)]
    if record.get("text2") is not None:
        texts.append(_text(location, record, "text2", by_words))
    if not isinstance(targets, list) or not all(isinstance(each, Mapping) for each in targets) or not targets:
        raise KeelError(f"{location}: targets must be a list of objects with span1 and label: correct or drop it")
    examples = []
    for target in targets:
        label = target.get("label")
        if label is None or label == "":
            raise KeelError(f"{location}: the label is missing: add it, or drop the record")
        spans = [_span(location, target, "span1", texts, 0)]
        if target.get("span2") is not None or len(texts) > 1:
            spans.append(_span(location, target, "span2", texts, len(texts) - 1))
        examples.append((spans, str(label)))
    return SpanRecord(location, texts, examples)


def _text(location: str, record: Mapping[str, Any], field: str, by_words: bool) -> ProbedText:
    value = record.get(field)
    if isinstance(value, str) and value.strip():
        return ProbedText("", tuple(value.split())) if by_words else ProbedText(value)
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return ProbedText("", tuple(value))
    given = f"{field} is {value!r:.40}" if field in record else f"it has {', '.join(map(str, record)) or 'no fields'}"
    raise KeelError(f"{location}: {given}: give a text, or a list of words, with span1, span2 (optional) and label")


def _span(location: str, target: Mapping[str, Any], field: str, texts: list[ProbedText], text: int) -> Span:
    value = target.get(field)
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(type(each) is int for each in value):
        given = f"not {value!r:.40}" if field in target else "but it is missing"
        raise KeelError(f"{location}: {field} must be [start, end], {given}: correct it")
    start, end = value
    whole, words = texts[text]
    unit, size = ("word", len(words)) if words else ("character", len(whole))
    if not 0 <= start < end <= size:
        what = f"{field} [{start}, {end}] is no span of a text of {pluralize(size, unit)}"
        raise KeelError(f"{location}: {what}: correct it (positions from 0, the end exclusive)")
    return text, start, end


def gold_file(path: Path) -> Path | None:
    """The labels beside the data of WiC as published: train.gold.txt beside train.data.txt."""
    if ".data.txt" not in path.name:
        return None
    stem = path.name.partition(".data.txt")[0]
    names = [f"{stem}.gold.txt{suffix}" for suffix in ("", ".xz", ".gz", ".bz2", ".zst")]
    found = next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)
    if found is None:
        raise KeelError(f"{path} has no labels: put {names[0]} beside it")
    return found


def wic_records(lines: Lines, gold: Lines, name: str, gold_name: str) -> SpanRecords:
    """WiC as published (Pilehvar and Camacho-Collados 2019): word, part of speech, positions of the word, two texts."""
    lines, gold = ([(number, line) for number, line in each if line.strip()] for each in (lines, gold))
    if len(lines) != len(gold):
        raise KeelError(
            f"{name} has {pluralize(len(lines), 'line')}, but {gold_name} has {len(gold)}: give matching files"
        )
    records = []
    for (number, line), (_, label) in zip(lines, gold, strict=True):
        fields = line.rstrip("\r\n").split("\t")
        positions = re.fullmatch(r"(\d+)-(\d+)", fields[2]) if len(fields) == 5 else None
        if positions is None:
            expected = "a word, its part of speech, positions such as 2-1, and two texts, separated by tabs"
            raise KeelError(f"{name}:{number}: this line is not of WiC: give {expected}")
        spans = {f"span{n}": [int(position), int(position) + 1] for n, position in enumerate(positions.groups(), 1)}
        record = {"words": fields[3], "text2": fields[4], **spans, "label": label.strip()}
        records.append((f"{name}:{number}", record))
    return SpanRecords.of(records, name, "wic")

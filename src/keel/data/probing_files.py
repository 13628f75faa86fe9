"""Readers of probing data: which format a file has, and a sample of it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.memory_sources import plain_source
from keel.data.probed_spans import SpanRecords, gold_file, wic_records
from keel.data.probed_words import TaggedBlocks
from keel.data.probing_data import FORMATS, ProbingData, ProbingItems
from keel.data.table_files import read_json_records
from keel.data.tagged_files import infer_format
from keel.data.text_files import file_kind, file_suffix, open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note

HELD_OUT = 5
"""One in five sentences or records is held out where there is no test file."""


def read_probing_data(
    train: Any, test: Any, wanted: Sequence[str] = (), *, examples: int, seed: int = 0, on_event: OnEvent = ignore
) -> tuple[ProbingData, ProbingData]:
    """Data for training and test of probes: files, or lists of records with spans.

    Of more than `examples` words (spans, pairs), a random sample of sentences (records) is used, the same for all
    tasks. Without test data, a fifth of the training data is held out.
    """
    name, items = source_name(train), _read(train, on_event)
    order, held_out, others = _shuffled(items, seed), None, items
    if test is None:
        count = len(order) // HELD_OUT
        if not count:
            raise KeelError(f"{name} is too small to hold out a fifth of it: give --test FILE")
        order, held_out = order[count:], order[:count]
        note(on_event, f"{name}: a fifth ({count:,} of {count + len(order):,}) is held out for the test")
    else:
        others = _read(test, on_event)
    learned = items.build(_sample(order, items, examples, name, on_event), wanted)
    held_out = _shuffled(others, seed) if held_out is None else held_out
    chosen = _sample(held_out, others, examples, source_name(train if test is None else test), on_event)
    return learned, others.build(chosen, wanted or [*learned.tasks])


def source_name(source: Any) -> str:
    """The name of a source in messages."""
    return str(source) if isinstance(source, str | Path) else "the list"


def _shuffled(items: ProbingItems, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(len(items.sizes)).tolist()


def _sample(order: Iterable[int], items: ProbingItems, most: int, name: str, on_event: OnEvent) -> list[int]:
    """The first of these that have at most `most` units in all, at least one, in the order of the file."""
    chosen: list[int] = []
    used = total = 0
    for number in order:
        total += items.sizes[number]
        if total <= most or not chosen:
            chosen.append(number)
            used = total
    if total > used:
        note(on_event, f"{name}: a sample of {used:,} of {total:,} (--examples changes it)")
    return sorted(chosen)


def _read(source: Any, on_event: OnEvent) -> ProbingItems:
    name = source_name(source)
    if not isinstance(source, str | Path):
        records = plain_source(source)
        if not isinstance(records, list | tuple) or not all(isinstance(each, dict) for each in records):
            raise UsageError(f"probing data must be a file or a list of records, not {type(source).__name__}")
        return SpanRecords.of([(f"item {n} of the list", each) for n, each in enumerate(records)], name, "spans")
    path = Path(source)
    if file_kind(path) == "jsonl" or file_suffix(path) == ".json":
        records = read_json_records(path, on_event=on_event)
        return SpanRecords.of([(f"{name}:{n}", each) for n, each in records], name, path.name.partition(".")[0])
    lines = list(open_text(path, on_event=on_event))
    if gold := gold_file(path):
        return wic_records(lines, list(open_text(gold, on_event=on_event)), name, str(gold))
    format = infer_format(lines, path)
    if format not in ("conllu", "columns"):
        raise KeelError(f"{name} has no labelled words or spans: give {FORMATS}")
    return TaggedBlocks.of(lines, format, name)

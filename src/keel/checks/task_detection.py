"""Detection of the task that a dataset is for, by its columns and first lines."""

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from keel.data.markup import SQUAD, markup_kind
from keel.data.memory_sources import Frame, is_records
from keel.data.multiple_choice_files import CHOICES, PUBLISHED
from keel.data.table_files import read_json_records, read_rows, read_table
from keel.data.table_sources import has_labels
from keel.data.tables import Columns
from keel.data.tagged_files import has_tags, tag_file
from keel.data.tagged_sentences import TAGS, WORDS
from keel.data.text_files import file_kind, file_suffix, open_text
from keel.errors import KeelError

SAMPLE = 2000
"""Lines by which a file is recognised."""
LONG_LINE, MAX_SAMPLE = 1 << 16, 1 << 20
"""Characters of a line, and of all lines, up to which it is read for that."""
CHOICE_COLUMN = re.compile(r"(ending|choice|option|sol|hyp)[ _]?(\d+|[a-e])")


def detect_task(source: Any, columns: Columns) -> str:
    """`tag`, `choose` or `answer` for datasets of these; empty for others: texts or pairs with labels."""
    try:
        if not isinstance(source, Path):
            records = source.records() if isinstance(source, Frame) else source if is_records(source) else [{}]
            return _task_of_record(records[0] if records else {})
        markup = markup_kind(source, columns.encoding)
        if markup == "DREAM JSON":
            return "choose"
        if markup == SQUAD:
            return "answer"
        if file_suffix(source) == ".json" and markup in ("JSON array of objects", "JSON lines"):
            return _task_of_record(next((row for _, row in read_json_records(source, columns.encoding)), {}))
        kind = file_kind(source)
        if kind not in ("csv", "tsv", "txt"):
            return _task_of_record(next((row for _, row in read_table(source, columns.encoding)), {}))
        lines = first_lines(source, columns)
        if kind != "csv" and (tag_file(source) or has_tags(lines)):
            return "tag"
        first = next((line for line in lines if line.strip()), "")
        header = (
            first.split("\t") if kind == "txt" else next((row for _, row in read_rows(source, columns.encoding)), [])
        )
        return _task_of_record(dict.fromkeys(header))
    except KeelError:  # reported when the whole file is read
        return ""


def is_labelled_file(path: Path, columns: Columns) -> bool:
    """Whether a plain text or JSON file holds labelled texts."""
    if file_suffix(path) == ".json":  # an array of objects; other documents are refused when they are read
        return True
    return has_labels(line for line in first_lines(path, columns) if line.strip())


def first_lines(path: Path, columns: Columns) -> list[str]:
    """The beginning of a text file; nothing of one that cannot be read, which is reported later."""
    lines: list[str] = []
    size = 0
    try:
        for _, line in islice(open_text(path, columns.encoding).line_chunks(LONG_LINE), SAMPLE):
            lines.append(line.removesuffix("\n"))
            size += len(line)
            if size > MAX_SAMPLE:
                break
    except KeelError:
        return []
    return lines


def _task_of_record(record: Mapping[str, Any]) -> str:
    known = {str(name).strip().lower(): value for name, value in record.items()}
    question = known.get("question")
    if isinstance(known.get("qas"), list) or _has_answer_spans(known):
        return "answer"
    listed = any(isinstance(known.get(name), list | Mapping) for name in CHOICES)
    if listed or (isinstance(question, Mapping) and "choices" in question) or PUBLISHED & known.keys():
        return "choose"
    if sum(CHOICE_COLUMN.fullmatch(name) is not None for name in known) > 1:
        return "choose"
    words, tags = ([known.get(name) for name in names] for names in (WORDS, TAGS))
    return "tag" if all(any(isinstance(value, list) for value in each) for each in (words, tags)) else ""


def _has_answer_spans(record: Mapping[str, Any]) -> bool:
    """Whether a record with a question has answers with offsets in a passage."""
    answers = record.get("answers", record.get("answer"))
    first = answers[0] if isinstance(answers, list) and answers else answers
    offsets = isinstance(first, Mapping) and "answer_start" in first
    return "question" in record and (offsets or "answer_start" in record or "is_impossible" in record)

"""Label columns of tables: which rows have a label, and which kind the labels are of."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from keel.data.label_kinds import LABEL_KINDS, LabelKind, MultiLabel, Regression, SingleLabel, Value, parse_number
from keel.data.memory_sources import is_null
from keel.data.tables import Table
from keel.errors import KeelError
from keel.events import OnEvent, note

SCORES = ("score", "similarity")
"""Columns whose decimals are numbers, not class names."""
MISSING = {"", "nan", "<na>", "#n/a"}
"""Labels, in lower case, of rows without one."""
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]+)*")
LEAST_CODES = 5
"""Other language codes among which the label "nan" is one too, Min Nan Chinese (ISO 639-3)."""


def find_missing(values: Sequence[Any]) -> list[bool]:
    """Which labels are missing: None, empty, whitespace, or the text that other programs write for no value.

    Among five or more other labels that are all language codes, "nan" is a code too.
    """
    texts = {value.strip() for value in values if isinstance(value, str)}
    others = {text for text in texts if text.lower() not in MISSING}
    no_label = {text for text in texts if text.lower() in MISSING}
    if len(others) >= LEAST_CODES and all(map(LANGUAGE_CODE.fullmatch, others)):
        no_label.discard("nan")
    return [value.strip() in no_label if isinstance(value, str) else is_null(value) for value in values]


def parse_labels(
    table: Table, column: int, requested: str, on_event: OnEvent
) -> tuple[LabelKind | None, list[Value | None]]:
    """The kind of the labels in a column, None if it is empty, and the labels; None for a row without one."""
    raw = table.cells[column]
    # With --labels multi an empty cell is a label: none of the classes.
    none_is_a_label = requested == "multi"
    missing = find_missing(raw)
    labelled = [index for index, cell in enumerate(raw) if not missing[index] or (none_is_a_label and cell == "")]
    present, locations = [raw[index] for index in labelled], table.locations.take(labelled)
    if all(missing):
        return None, [None] * len(raw)
    if len(present) < len(raw) and all(isinstance(value, float) and value.is_integer() for value in present):
        present = [int(value) for value in present]  # pandas reads integers with missing values as floats
    kind = _infer_kind(table, column, present, locations, requested, on_event)
    values: list[Value | None] = [None] * len(raw)
    for index, value in zip(labelled, kind.parse_all(present, locations), strict=True):
        values[index] = value
    return kind, values


def _infer_kind(
    table: Table, column: int, raw: list[Any], locations: Sequence[str], requested: str, on_event: OnEvent
) -> LabelKind:
    """The kind of these labels; numbers are class names, such as stars, unless they look like scores, with decimals."""
    if requested in LABEL_KINDS:
        return LABEL_KINDS[requested]()
    if table.kind is not None:
        return table.kind
    if any(isinstance(value, list | tuple | set) for value in raw):
        return MultiLabel()
    counts = Counter(map(str, raw))
    numbers = {text: parse_number(text) for text in counts}
    decimals = sum(count for text, count in counts.items() if numbers[text] is not None and "." in text)
    # Decimals that hardly ever repeat are measurements; a few that repeat are names, such as versions or stars.
    measured = len(counts) > max(20, len(raw) // 2) and 2 * decimals > len(raw)
    if None in numbers.values() and measured:
        odd = next(index for index, value in enumerate(raw) if numbers[str(value)] is None)
        what = f"the label {raw[odd]!r} is not a number, though most labels are"
        raise KeelError(f"{locations[odd]}: {what}: correct it, or use --labels single")
    if None in numbers.values() or not decimals:
        return SingleLabel()
    scores = measured or table.columns[column].lower() in SCORES or not isinstance(raw[0], str)
    if scores and any(number % 1 for number in numbers.values() if number):
        note(on_event, f"{table.source}: labels are numbers (regression); --labels single makes each of them a class")
        return Regression()
    classes = sorted(counts)
    shown = ", ".join(classes[:4]) + (", ..." if len(classes) > 4 else "")
    what = f"labels look like numbers and are read as {len(classes)} classes ({shown})"
    note(on_event, f"{table.source}: {what}; --labels regression reads them as numbers")
    return SingleLabel()

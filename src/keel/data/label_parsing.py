"""The label column of a table: which kind its labels are of, and their parsed values."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from keel.data.label_kinds import LABEL_KINDS, LabelKind, MultiLabel, Regression, SingleLabel, Value, parse_number
from keel.data.tables import Table
from keel.errors import KeelError
from keel.events import OnEvent, note

SCORES = ("score", "similarity")
"""Columns whose decimals are numbers, not class names."""


def infer_label_kind(
    table: Table, column: int | None, raw: list[Any], requested: str, on_event: OnEvent
) -> LabelKind | None:
    """The kind of these labels; numbers are class names, such as stars, unless they have decimals and look like
    scores."""
    missing = [value is None or value == "" or (isinstance(value, float) and value != value) for value in raw]
    if column is None or all(missing):
        return None
    if any(missing):
        location = table.locations[missing.index(True)]
        raise KeelError(f"{location}: the label is empty, though other rows have one: fill it in or drop the row")
    if requested in LABEL_KINDS:
        return LABEL_KINDS[requested]
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
        raise KeelError(f"{table.locations[odd]}: {what}: correct it, or use --labels single")
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


def parse_labels(raw: list[Any], kind: LabelKind, locations: Sequence[str]) -> list[Any]:
    """The values of a label column as labels of one kind."""
    parsed: dict[Any, Value] = {}
    labels: list[Value] = []
    for index, value in enumerate(raw):
        if isinstance(value, str | tuple):  # most of them repeat
            if value not in parsed:
                parsed[value] = kind.parse(value, locations[index])
            labels.append(parsed[value])
        else:
            labels.append(kind.parse(value, locations[index]))
    return labels

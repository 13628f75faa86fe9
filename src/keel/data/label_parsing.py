"""Labels as they stand in a table: which kind they are of, and what each is."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from keel.data.tables import Kind, Table
from keel.errors import KeelError
from keel.events import OnEvent, note

Value = str | tuple[str, ...] | float
"""A label as it was given."""
SCORES = ("score", "similarity")
"""Columns whose fractions are numbers, not names."""


def label_names(value: Any) -> tuple[str, ...]:
    """The names among a label: one, several or none."""
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def infer_label_kind(table: Table, column: int | None, raw: list[Any], asked: str, on_event: OnEvent) -> Kind | None:
    """What these labels are; numbers are names, such as stars, unless they have fractions and look like scores."""
    missing = [value is None or value == "" or (isinstance(value, float) and value != value) for value in raw]
    if column is None or all(missing):
        return None
    if any(missing):
        place = table.locations[missing.index(True)]
        raise KeelError(f"{place}: the label is empty, though other rows have one: fill it in or drop the row")
    if asked in ("one", "several", "number"):
        return asked
    if table.kind is not None:
        return table.kind
    if any(isinstance(value, list | tuple | set) for value in raw):
        return "several"
    counted = Counter(map(str, raw))
    numbers = {shown: _number(shown) for shown in counted}
    fractions = sum(count for shown, count in counted.items() if numbers[shown] is not None and "." in shown)
    # Decimals that hardly ever recur are measurements; few that recur are names, such as versions or stars.
    measured = len(counted) > max(20, len(raw) // 2) and 2 * fractions > len(raw)
    if None in numbers.values() and measured:
        odd = next(number for number, value in enumerate(raw) if numbers[str(value)] is None)
        raise KeelError(
            f"{table.locations[odd]}: the label {raw[odd]!r} is no number, though most are: mend it, or say --labels one"
        )
    if None in numbers.values() or not fractions:
        return "one"
    scores = measured or table.columns[column].lower() in SCORES or not isinstance(raw[0], str)
    if scores and any(number % 1 for number in numbers.values() if number):
        note(on_event, f"{table.source}: the labels are read as numbers; --labels one makes each of them a class")
        return "number"
    classes = sorted(counted)
    shown = ", ".join(classes[:4]) + (", ..." if len(classes) > 4 else "")
    what = f"the labels look like numbers and are read as {len(classes)} classes ({shown})"
    note(on_event, f"{table.source}: {what}; --labels number makes them numbers")
    return "one"


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN


def parse_labels(raw: list[Any], kind: Kind, places: Sequence[str]) -> list[Any]:
    """Labels of one kind as examples have them."""
    known: dict[Any, Value] = {}
    found: list[Value] = []
    for number, value in enumerate(raw):
        if isinstance(value, str | tuple):  # most come again
            if value not in known:
                known[value] = _label(value, kind, places[number])
            found.append(known[value])
        else:
            found.append(_label(value, kind, places[number]))
    return found


def _label(value: Any, kind: Kind, place: str) -> Value:
    if kind == "number":
        number = _number(value)
        if number is None:
            raise KeelError(f"{place}: the label {value!r} is no number: mend it, or say --labels one for classes")
        return number
    if isinstance(value, str) and kind == "several":
        value = [name.strip() for name in re.split("[,;|]", value) if name.strip()]
    names = list(map(str, value)) if isinstance(value, list | tuple | set) else [str(value)]
    if kind == "several":
        return tuple(sorted(set(names)))
    if len(names) != 1:
        raise KeelError(f"{place}: there are {len(names)} labels where one is wanted: say --labels several")
    return names[0]

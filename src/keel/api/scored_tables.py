"""Predictions beside the rows that they are for: a copy of a table with further columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keel.data.examples import Columns, table_examples
from keel.data.label_kinds import Prediction, Regression
from keel.data.predictions import Predictions
from keel.data.table_sources import load_table
from keel.data.table_writing import check_table_name, column_names, write_table
from keel.data.tables import choose_columns, describe_columns
from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.tasks import Task
from keel.tasks.classify import TextClassification
from keel.tasks.ensemble import Ensemble

AT_ONCE = 4096
"""Rows that predictions are made for at once."""
DIGITS = 6


def write_scored(ensemble: Ensemble, data: Any, columns: Columns, out: Path, on_event: OnEvent) -> list[dict[str, Any]]:
    """Write the table with prediction, confidence and the probability of every label; returns the rows as records."""
    task = ensemble.task
    if not isinstance(task, TextClassification):
        raise UsageError(f"--out is for models that label texts or pairs, not for {task.name}: leave it out")
    check_table_name(out, data, "--out")
    table = load_table(data, columns, on_event, pair=task.pair)
    text, second, label = roles = choose_columns(table, columns, pair=task.pair) if len(table) else (0, None, None)
    if len(table):
        note(on_event, describe_columns(table, *roles))
    examples = table_examples(table, (text, second, None), columns)  # labels are not needed, whatever they are
    names = column_names(table, (text, second, label))
    added = _added_columns(task)
    if clash := [name for name in added if name in names]:
        while {*added} & {*names}:
            added = [f"{name}_" for name in added]
        listed = ", ".join(map(repr, clash))
        note(on_event, f"{table.source} has {listed} already: the new columns are {', '.join(map(repr, added))}")
    records: list[dict[str, Any]] = []

    def rows() -> Iterator[list[Any]]:
        kept = zip(*table.cells, strict=True)
        for start in range(0, len(examples), AT_ONCE):
            for cells in _added_cells(ensemble.predict(examples[start : start + AT_ONCE], on_event=on_event)):
                row = [*next(kept), *cells]
                records.append(dict(zip([*names, *added], row, strict=True)))
                yield row

    write_table(out, [*names, *added], rows())
    note(on_event, f"{out}: {len(records):,} rows with the columns {', '.join(map(repr, added))}")
    return records


def _added_columns(task: Task) -> list[str]:
    if isinstance(task.labels.kind, Regression):
        return ["prediction"]
    return ["prediction", "confidence", *(f"probability_{name}" for name in task.labels.names)]


def _added_cells(predictions: Predictions) -> Iterator[list[Any]]:
    """Prediction, confidence (of several labels, that of the least certain) and probabilities of each example."""
    for prediction, estimate in zip(predictions, predictions.estimates, strict=True):
        if isinstance(prediction, float):
            yield [round(prediction, DIGITS)]
            continue
        probabilities = [round(float(value), DIGITS) for value in estimate]
        if isinstance(prediction, list):
            confidence = min((each.confidence for each in prediction), default=1 - max(probabilities))
            label = ",".join(each.label for each in prediction)
        else:
            assert isinstance(prediction, Prediction)
            label, confidence = prediction.label, prediction.confidence
        yield [label, round(confidence, DIGITS), *probabilities]

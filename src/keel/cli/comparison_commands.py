"""The command that compares systems."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from keel.api import comparison
from keel.cli.command import Answer, argument, arguments_of, command, section
from keel.data.examples import Columns
from keel.errors import UsageError
from keel.events import pluralize
from keel.report.comparison_table import comparison_lines
from keel.report.console import Console
from keel.systems import SYSTEMS
from keel.tasks import TASKS
from keel.tasks.sequence_to_sequence import SequenceToSequence

ROWS = f"Systems ({', '.join(SYSTEMS)}; with a size bert:mini), model folders, bundled models, files of word vectors."
COMPARED = [name for name in TASKS if name != SequenceToSequence.name]
"""Tasks whose scores have a paired test."""


@command(
    "train",
    "ROW... --train FILE --test FILE --out DIR",
    argument("rows", "ROW", ROWS, nargs="+"),
    argument("--out", "DIR", "Folder of the report, the results and the finished cells."),
    argument("--task", "|".join(COMPARED), "Task of the labelled examples. [classify]", default="classify"),
    arguments_of(
        comparison.compare,
        train="FILE",
        test="FILE",
        transfer="FILE",
        corpus="FILE",
        seeds="N",
        minutes="X",
        epochs="X",
        train_sizes="N,N,all",
        workers="N",
    ),
    section("columns", Columns()),
)
def compare(options: Namespace, console: Console) -> Answer:
    """Compare systems and models on your labels: scores, costs, paired tests, a report.

    The exit code is 1 if a cell failed, although all others are scored; rerun the command to retry it.
    """
    settings: dict[str, Any] = dict(options.settings)
    for name in ("train", "test", "out"):
        if not (getattr(options, name, None) or settings.get(name)):
            raise UsageError(f"--{name} is missing: keel compare onehot fasttext --train A.tsv --test B.tsv --out DIR")
    found = comparison.compare(options.rows, out=options.out, task=options.task, on_event=console, **settings)
    page = Path(options.out) / "report.html"
    data = {
        "report": str(page),
        "cells": found.to_dicts(),
        "tests": found.tests_to_dicts(),
        "verdicts": [*map(found.verdict, found.columns)],
    }
    lines = [*comparison_lines(found), f"report: {page}"]
    if failed := found.failed():
        lines.append(f"{len(failed)} of {pluralize(len(found.cells), 'cell')} failed: rerun the command to retry")
    return Answer(sentences=True, lines=lines, data=data, code=1 if failed else 0)

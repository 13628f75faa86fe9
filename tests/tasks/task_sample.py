"""What the contract tests and the golden runs know of a task: the constant SAMPLE in the test of its module."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from keel.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class TaskSample:
    """Labelled examples of a task, as Python data and as a file, and input that it must refuse."""

    examples: list[Any]
    inputs: list[Any]
    """Inputs of `predict`."""
    bad_input: Any
    file: str = "data.tsv"
    """Name of a labelled file."""
    header: str = ""
    row: Callable[[Any], str] = "\t".join
    """An example as it stands in the file."""
    bad_rows: list[str]
    """Rows that must be refused."""
    main_score: str = "accuracy"
    generates: bool = False
    """Whether it needs an encoder-decoder."""

    def write(self, folder: Path, rows: list[str] | None = None) -> Path:
        """Write these rows, or a few examples, to a file."""
        path = folder / self.file
        rows = [self.row(example) for example in self.examples[:12]] if rows is None else rows
        path.write_text(self.header + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        return path


def sample_of(task: str) -> TaskSample:
    """The sample in the test of a task: that of keel.tasks.pair is in tests/tasks/test_pair.py."""
    return import_module(f"tests.tasks.test_{TASKS[task].__module__.rpartition('.')[2]}").SAMPLE

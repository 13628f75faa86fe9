"""The GLUE benchmark as published (Wang et al. 2018): its tasks, metrics, folders and submission files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keel.data.examples import Columns, Examples, table_examples
from keel.data.table_sources import load_table
from keel.data.tables import choose_columns
from keel.events import ignore
from keel.training.checkpoint import atomic_file

MAX_SIMILARITY = 5.0
"""Highest score of STS-B."""


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task: its folder has train.tsv, dev.tsv and test.tsv, plain or compressed."""

    name: str
    task: str = "pair"
    metrics: tuple[str, ...] = ("accuracy",)
    """GLUE's metrics of this task; the first one chooses the learning rate."""
    columns: Columns = field(default_factory=Columns)
    dev: Mapping[str, str] = field(default_factory=lambda: {"": "dev"})
    """Files to score on, by what distinguishes them."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """Test files by the name of their submission file; {name: "test"} if empty."""

    def file(self, folder: Path, stem: str) -> Path | None:
        """A file of this task in GLUE's folder, whatever its compression."""
        path = folder / self.name / f"{stem}.tsv"
        return path if path.is_file() else next(iter(sorted(path.parent.glob(f"{path.name}.*"))), None)

    def test_files(self, folder: Path) -> dict[str, Path]:
        """The test files that exist, by the name of their submission file."""
        found = {name: self.file(folder, stem) for name, stem in (self.tests or {self.name: "test"}).items()}
        return {name: path for name, path in found.items() if path is not None}

    def read_test(self, path: Path) -> Examples:
        """The examples of a test file, without labels."""
        table = load_table(path, self.columns, ignore, pair=self.task == "pair")
        text, second, _ = choose_columns(table, self.columns, pair=self.task == "pair")
        return table_examples(table, (text, second, None), self.columns)


GLUE_TASKS = (
    GlueTask(name="CoLA", task="classify", metrics=("matthews",)),
    GlueTask(name="SST-2", task="classify"),
    GlueTask(name="MRPC", metrics=("binary_f1", "accuracy")),
    GlueTask(name="STS-B", metrics=("spearman", "pearson"), columns=Columns(labels="regression")),
    GlueTask(name="QQP", metrics=("binary_f1", "accuracy")),
    GlueTask(
        name="MNLI",
        dev={"matched": "dev_matched", "mismatched": "dev_mismatched"},
        tests={"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched", "AX": "../diagnostic/diagnostic"},
    ),
    GlueTask(name="QNLI"),
    GlueTask(name="RTE"),
    GlueTask(name="WNLI"),
)


def write_submission(path: Path, predictions: Iterable[Any]) -> None:
    """Write labels, or numbers, in the form that the GLUE server reads: index and prediction."""
    rows: Sequence[str] = [f"{number}\t{_submitted(prediction)}\n" for number, prediction in enumerate(predictions)]
    with atomic_file(path) as file:
        file.write(("index\tprediction\n" + "".join(rows)).encode())


def _submitted(prediction: Any) -> str:
    if isinstance(prediction, float | int):
        return f"{min(max(prediction, 0.0), MAX_SIMILARITY):.3f}"
    return str(prediction.label)

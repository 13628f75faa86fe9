"""Results of a comparison: systems by test sets, their costs, and the tests between them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any, Self

import numpy as np

from keel.data.examples import Examples
from keel.data.notebook_html import html_table
from keel.events import pluralize
from keel.metrics.bootstrap import Score
from keel.metrics.item_scores import ItemScores
from keel.metrics.scores import score_name
from keel.metrics.significance import PairwiseTest, SystemResult, compare_pairs

MAX_SHOWN = 12
"""Rows in the `repr` of a comparison."""
MAX_NAMED = 4
"""Rows that a verdict names."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One fine-tuned model: its scores by test set ("test", "transfer") and its costs."""

    seed: int
    items: Mapping[str, ItemScores]
    predicted: Mapping[str, Sequence[str]]
    """The predictions as text, by test set."""
    seconds: float
    """Fine-tuning, with tokenization and frozen features."""
    epochs: float
    steps: int
    parameters: int
    peak_memory: int
    """Bytes of the process (of the GPU, if there is one)."""
    texts_per_second: float
    """Speed of inference on the test set, tokenization included."""
    frozen: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "items": {name: each.to_dict() for name, each in self.items.items()}}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**{**plain, "items": {name: ItemScores.from_dict(each) for name, each in plain["items"].items()}})


@dataclass(frozen=True, kw_only=True)
class PretrainingCost:
    """The cost of pre-training a row."""

    seconds: float
    epochs: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Column:
    """A test set: its name, which part of a task it is, and its examples."""

    name: str
    task: int
    """Which of the train/test pairs."""
    part: str
    """test or transfer."""
    examples: Examples = field(repr=False)
    trained_on: int
    """Training examples."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A row on a column, at one number of training examples: the results of all seeds, or the reason why there are
    none."""

    row: str
    column: Column
    size: int
    seeds: Sequence[SeedResult] = ()
    pretraining: PretrainingCost | None = None
    error: str = ""

    @cached_property
    def result(self) -> SystemResult:
        return SystemResult([each.items[self.column.part] for each in self.seeds])

    @cached_property
    def score(self) -> Score:
        """The mean over seeds with its 95% interval."""
        return self.result.score

    @property
    def metric(self) -> str:
        return self.seeds[0].items[self.column.part].name if self.seeds else ""

    def predicted(self, index: int) -> str:
        """The most frequent prediction for an item."""
        return Counter(each.predicted[self.column.part][index] for each in self.seeds).most_common(1)[0][0]

    def average(self, figure: str) -> float:
        """The mean of a figure of `SeedResult` over seeds."""
        return mean(getattr(each, figure) for each in self.seeds)

    @property
    def peak_memory(self) -> int:
        return max(each.peak_memory for each in self.seeds)

    @property
    def total_seconds(self) -> float:
        """Pre-training and one fine-tuning."""
        return self.average("seconds") + (self.pretraining.seconds if self.pretraining else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        where = {"row": self.row, "column": self.column.name, "part": self.column.part, "train_size": self.size}
        if not self.seeds:
            return {**where, "error": self.error}
        before = self.pretraining
        return {
            **where,
            "metric": self.metric,
            "score": self.score.value,
            "low": self.score.low,
            "high": self.score.high,
            "seeds": self.result.by_seed,
            "test_size": len(self.column.examples),
            "pretraining_seconds": before.seconds if before else None,
            "pretraining_epochs": before.epochs if before else None,
            "finetuning_seconds": self.average("seconds"),
            "finetuning_epochs": self.average("epochs"),
            "parameters": self.seeds[0].parameters,
            "peak_memory_bytes": self.peak_memory,
            "texts_per_second": self.average("texts_per_second"),
            "frozen": self.seeds[0].frozen,
            **({"error": self.error} if self.error else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A test item on which the systems disagree most."""

    where: str
    text: str
    label: str
    predicted: dict[str, str]
    """The most frequent prediction of each row's seeds."""
    right: dict[str, float]
    """The score of each row on this item, averaged over seeds."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Systems compared on test sets; `cells` has one for each row, column and number of training examples."""

    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    """Conditions of the comparison: budgets, seeds, machine."""

    def cell(self, row: str, column: Column, size: int | None = None) -> Cell:
        """One cell; by default with the largest number of training examples."""
        found = [each for each in self.cells if each.row == row and each.column is column]
        return next(each for each in found if each.size == (size or max(cell.size for cell in found)))

    def ranking(self, column: Column, size: int | None = None) -> list[Cell]:
        """The cells of a column, the best first; without the failed ones."""
        cells = [self.cell(row, column, size) for row in self.rows]
        return sorted((cell for cell in cells if cell.seeds), key=lambda cell: -cell.score.value)

    def failed(self) -> list[Cell]:
        """The cells without a result, or with fewer seeds than planned."""
        return [cell for cell in self.cells if cell.error]

    def sizes(self, column: Column) -> list[int]:
        """The numbers of training examples of a column."""
        return sorted({cell.size for cell in self.cells if cell.column is column})

    @cached_property
    def _tests(self) -> dict[int, list[PairwiseTest]]:
        return {
            id(column): compare_pairs({cell.row: cell.result for cell in self.ranking(column)})
            for column in self.columns
        }

    def tests(self, column: Column) -> list[PairwiseTest]:
        """The tests between all pairs of rows, in the order of the ranking."""
        return self._tests[id(column)]

    def detectable(self, column: Column) -> float | None:
        """The smallest difference that this test set could show, after Holm's correction: the median over pairs that
        differ at all. None if no pair does, or there is none."""
        found = [test.detectable for test in self.tests(column) if test.detectable > 0]
        return median(found) if found else None

    def verdict(self, column: Column) -> str:
        """One sentence: which system is best, if this is decided."""
        ranked, tests = self.ranking(column), self.tests(column)
        if not ranked:
            return f"{column.name}: no system was scored."
        best, rest = ranked[0], ranked[1:]
        if not rest:
            return f"{column.name}: {best.row} is the only system that was scored."
        beaten = [test.second for test in tests if test.first == best.row and test.better == best.row]
        rivals = [cell.row for cell in rest if cell.row not in beaten]
        undecided = sum(not test.decided for test in tests)
        shown = f"{score_name(best.metric)} {best.score.value:.3f}"
        if not rivals:
            text = f"{column.name}: {best.row} is best ({shown}), and better than every other system."
        elif undecided == len(tests):
            return f"{column.name}: the ranking is not decided: no difference of two systems exceeds the noise."
        else:
            text = f"{column.name}: {best.row} is first ({shown}), but not decided against {join_names(rivals)}."
        if undecided:
            text += f" Not decided: {undecided} of {pluralize(len(tests), 'pair')}."
        return text

    def disagreements(self, column: Column, count: int = 12) -> list[Disagreement]:
        """The items on which the scores of the systems vary most, in the order of the test set among equals."""
        ranked = self.ranking(column)
        if len(ranked) < 2:
            return []
        by_row = {cell.row: cell.result.by_item for cell in ranked}
        scores = np.stack([*by_row.values()])  # [rows, items]
        spread = np.round(np.ptp(scores, 0) + 1e-3 * scores.var(0), 6)
        return [
            Disagreement(
                where=Path(column.examples[index].location).name,
                text=_shown_text(column.examples, index),
                label=_shown_label(column.examples, index),
                predicted={cell.row: cell.predicted(index) for cell in ranked},
                right={row: float(each[index]) for row, each in by_row.items()},
            )
            for index in np.argsort(-spread, kind="stable")[:count].tolist()
            if spread[index] > 0
        ]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per cell: scores and costs."""
        return [cell.to_dict() for cell in self.cells]

    def tests_to_dicts(self) -> list[dict[str, Any]]:
        """One dict per test of a pair, with its verdict."""
        return [
            {"column": column.name, "part": column.part, **asdict(test), "verdict": test.verdict}
            for column in self.columns
            for test in self.tests(column)
        ]

    def __repr__(self) -> str:
        lines = [self.verdict(column) for column in self.columns]
        if len(self.columns) == 1:
            ranked = self.ranking(self.columns[0])
            lines += [f"  {cell.row}: {cell.score:.3f}" for cell in ranked[:MAX_SHOWN]]
        return f"Comparison of {pluralize(len(self.rows), 'system')}\n" + "\n".join(lines)

    def _repr_html_(self) -> str:
        """The rankings in a notebook."""
        head = ("system", "score", "95% interval", "fine-tuning", "texts/s")
        return "".join(
            html_table(
                self.verdict(column),
                head,
                [
                    (
                        cell.row,
                        f"{cell.score.value:.3f}",
                        f"{cell.score.low:.3f} to {cell.score.high:.3f}",
                        f"{cell.average('seconds'):.1f} s",
                        f"{cell.average('texts_per_second'):,.0f}",
                    )
                    for cell in self.ranking(column)
                ],
            )
            for column in self.columns
        )


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"; of many the first ones."""
    if len(names) > MAX_NAMED:
        names = [*names[: MAX_NAMED - 1], f"{len(names) - MAX_NAMED + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _shown_text(examples: Examples, index: int) -> str:
    second = examples.seconds[index] if examples.seconds else ""
    return f"{examples.texts[index]} | {second}" if second else examples.texts[index]


def _shown_label(examples: Examples, index: int) -> str:
    label = examples[index].gold
    return " ".join(map(str, label)) if isinstance(label, tuple | list) else str(label)

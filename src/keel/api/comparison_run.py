"""The work of a comparison: its plan, the cells that are missing, and the collection of all that are stored."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from keel.api.comparison_processes import GRACE, PRETRAINING_FAILED, Processes, Work
from keel.api.comparison_rows import Budget, Equal, Row, RowSource, TaskData, content_key, resolve_rows
from keel.api.comparison_worker import CellJob, FinetuneJob, PretrainJob
from keel.api.run_folder import hardware
from keel.api.settings import Source
from keel.config import unknown_name
from keel.data.corpus import Corpus
from keel.errors import KeelError, UsageError
from keel.events import Event, OnEvent, note, pluralize
from keel.metrics.comparison_results import Cell, Comparison, PretrainingCost, SeedResult, join_names
from keel.metrics.scores import score_name
from keel.report.comparison_files import write_comparison
from keel.systems.system import System
from keel.tasks import TASKS
from keel.training.distributed import pick_device

DEFAULT_MINUTES = 5.0
"""Budget of each pre-training if none is given."""
MAX_WORKERS = 8
SETTINGS = "comparison.json"
"""The file by which a folder is known to hold a comparison."""
OWN_FILES = (".lock", "models", "cells")
"""What may be written before it."""


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The settings of a comparison."""

    rows: list[Row]
    out: Path
    task: str
    seeds: int
    budget: Budget
    workers: int

    @classmethod
    def resolve(
        cls,
        rows: Sequence[RowSource],
        out: str | Path,
        task: str,
        corpus: Source | None,
        seeds: int,
        minutes: float,
        equal: Equal,
        epochs: float,
        workers: int,
        on_event: OnEvent,
    ) -> "ComparisonPlan":
        """The plan of a call of `compare`: rows are resolved, and what cannot be compared is refused."""
        if task not in TASKS:
            raise unknown_name(task, TASKS, "--task")
        if equal == "tokens" and minutes:
            raise UsageError("--equal tokens has no budget of --minutes: leave one of them out, or use --epochs")
        if equal == "minutes" and epochs != 1:
            raise UsageError("--epochs is for --equal tokens: leave it out, or add --equal tokens")
        folder = Path(out)
        foreign = [path for path in folder.iterdir() if path.name not in OWN_FILES] if folder.is_dir() else []
        if foreign and not (folder / SETTINGS).exists():
            raise UsageError(f"{folder} is not empty and contains no comparison: choose another --out")
        given = [rows] if isinstance(rows, str | Path) else list(rows)
        found = resolve_rows(given, task, corpus is not None, folder / "models", on_event)
        pretrained = [row.name for row in found if row.pretrained]
        if pretrained and equal == "minutes" and not minutes:
            note(on_event, f"{', '.join(pretrained)}: {DEFAULT_MINUTES:g} minutes of pre-training each; set --minutes")
        if corpus is not None and not pretrained:
            note(on_event, "no system is pre-trained, so --corpus is not used")
        if seeds == 1:
            note(on_event, "with one seed the noise of training is unknown (2 points are assumed): use --seeds 3")
        budget = Budget(equal=equal, minutes=minutes or DEFAULT_MINUTES, epochs=epochs)
        return cls(rows=found, out=folder, task=task, seeds=seeds, budget=budget, workers=workers)


@dataclass
class ComparisonRun:
    """The work of one call: what is missing is trained, and all cells are collected."""

    plan: ComparisonPlan
    tasks: list[TaskData]
    sizes: list[list[int]]
    corpus: Corpus | None
    on_event: OnEvent
    errors: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """Reasons of failed cells by (row, task), of a failed pre-training by (row, None)."""
    done: int = 0
    total: int = 0

    @property
    def state(self) -> str:
        return f"{self.done} of {pluralize(self.total, 'cell')} done"

    def train_all(self) -> None:
        """Run everything whose result is not stored yet."""
        work = [each for row in self.plan.rows for each in self._work_of(row)]
        missing = sum(_cells(each) for each in work)
        self.total = missing + self._stored
        self.done = self._stored
        if self.done:
            verb = "is" if self.done == 1 else "are"
            note(self.on_event, f"{self.done} of {pluralize(self.total, 'cell')} {verb} stored and reused")
        if not work:
            return
        cores = _cores()
        on_gpu = pick_device("auto").type == "cuda"
        rows = len({each.row for each in work})
        workers = self.plan.workers or (1 if on_gpu else min(MAX_WORKERS, cores, max(rows, len(self.tasks))))
        limit = os.environ.get("OMP_NUM_THREADS", "")
        threads = max(1, min(cores // workers, int(limit) if limit.isdigit() else cores))
        note(
            self.on_event,
            f"{pluralize(missing, 'cell')} to compute in {pluralize(workers, 'process', 'processes')} of "
            f"{pluralize(threads, 'thread')}",
        )
        running: dict[str, float | None] = {}  # the finished share of a cell, once it is known
        began, done_before = time.monotonic(), self.done

        def update(each: Work, event: Event) -> None:
            match event["event"]:
                case "started":
                    running[each.name] = None
                case "step":
                    running[each.name] = event["step"] / max(1, event["steps"])
                case "cell":
                    self.done += 1
                    running[each.name] = None
                    self._note_cell(each, event)
                case "done":
                    running.pop(each.name, None)
                    if isinstance(each.job, PretrainJob):
                        self.done += 1
                        note(self.on_event, f"[{self.done}/{self.total}] {each.name}")
                case "failed":
                    running.pop(each.name, None)
                    self._note_failure(each, event["reason"])
                case _:
                    return
            share = (self.done - done_before + sum(filter(None, running.values()))) / max(1, missing)
            left = (time.monotonic() - began) * max(0.0, 1 / share - 1) if share else None
            shown = ", ".join(name if part is None else f"{name} {part:.0%}" for name, part in running.items())
            state = {"done": self.done, "total": self.total, "running": shown, "seconds_left": left}
            self.on_event({"event": "cells", **state})

        def announce_stop(names: Sequence[str]) -> None:
            if names:
                what = f"stopping: {join_names(names)} {'saves' if len(names) == 1 else 'save'} a checkpoint"
                note(self.on_event, f"{what}, for at most {GRACE:g} s; press Ctrl-C again to stop now")

        Processes(workers, threads).run(work, update, announce_stop)

    def _work_of(self, row: Row) -> list[Work]:
        """Pre-training, unless it is done, and one fine-tuning job per task for the cells that are missing."""
        start, first, work = row.start, None, list[Work]()
        missing = {
            number: [cell for cell in self._cell_jobs(row, number) if not cell.path.exists()]
            for number in range(len(self.tasks))
        }
        if row.pretrained:
            start, result = str(self._model_folder(row)), self._pretraining_file(row)
            if not self._is_pretrained(row):
                assert isinstance(row.start, System)
                assert self.corpus is not None
                job = PretrainJob(
                    system=row.start,
                    corpus=self.corpus,
                    settings=self.plan.budget.settings(row.start),
                    out=self._model_folder(row),
                    result=result,
                )
                first = Work(name=f"{row.name}: pre-training", job=job, row=row.name)
                work.append(first)
        for number, cells in missing.items():
            if cells:
                data = self.tasks[number]
                job = FinetuneJob(
                    start=start,
                    task=self.plan.task,
                    train=data.train,
                    labels=data.labels,
                    tests=data.tests,
                    cells=tuple(cells),
                )
                name = f"{row.name} on {data.name}" if len(self.tasks) > 1 else row.name
                work.append(Work(name=name, job=job, row=row.name, task=number, after=first, bytes=row.size_on_disk))
        return work

    def _cell_jobs(self, row: Row, number: int) -> list[CellJob]:
        """All cells of a row on a task; their files are named by a hash of all that they depend on."""
        weights = self._pretraining_key(row) if row.pretrained else row.key
        return [
            CellJob(size=size, seed=seed, path=self.plan.out / "cells" / f"{key}.json")
            for size in self.sizes[number]
            for seed in range(self.plan.seeds)
            if (key := content_key(weights, self.tasks[number].key, self.plan.task, size, seed))
        ]

    def _pretraining_key(self, row: Row) -> str:
        assert isinstance(row.start, System)
        return content_key(row.key, self._corpus_key, self.plan.budget.settings(row.start))

    @cached_property
    def _corpus_key(self) -> str:
        assert self.corpus is not None
        return self.corpus.fingerprint()

    def _pretraining_file(self, row: Row) -> Path:
        return self.plan.out / "cells" / f"{self._pretraining_key(row)}.json"

    def _model_folder(self, row: Row) -> Path:
        """It does not depend on the row's name, which may be longer beside other rows."""
        assert isinstance(row.start, System)
        return self.plan.out / "models" / f"{row.start.name}-{self._pretraining_key(row)[:8]}"

    def _is_pretrained(self, row: Row) -> bool:
        """Whether no pre-training is needed: its costs are stored, and its model, unless all cells are."""
        missing = any(not cell.path.exists() for n in range(len(self.tasks)) for cell in self._cell_jobs(row, n))
        return self._pretraining_file(row).exists() and (not missing or self._model_folder(row).is_dir())

    @property
    def _stored(self) -> int:
        """Cells that are stored, pre-trainings included."""
        cells = [cell for row in self.plan.rows for n in range(len(self.tasks)) for cell in self._cell_jobs(row, n)]
        before = sum(self._is_pretrained(row) for row in self.plan.rows if row.pretrained)
        return before + sum(cell.path.exists() for cell in cells)

    def _note_cell(self, work: Work, event: Event) -> None:
        assert isinstance(work.job, FinetuneJob)
        cell = next(each for each in work.job.cells if (each.size, each.seed) == (event["size"], event["seed"]))
        result = SeedResult.from_dict(json.loads(cell.path.read_text(encoding="utf-8")))
        items = result.items["test"]
        part = f", {pluralize(cell.size, 'example')}" if cell.size < len(work.job.train) else ""
        score = f"{score_name(items.name)} {items.value:.3f} in {result.seconds:.1f} s"
        note(self.on_event, f"[{self.done}/{self.total}] {work.name}, seed {cell.seed}{part}: {score}")

    def _note_failure(self, work: Work, reason: str) -> None:
        self.errors[work.row, work.task] = self.errors.get((work.row, None), reason)
        if reason != PRETRAINING_FAILED:
            note(self.on_event, f"{work.name} failed: {reason}")

    def collect(self) -> Comparison:
        """All cells that are stored, as a comparison; writes its files."""
        cells: list[Cell] = []
        columns = [column for number, data in enumerate(self.tasks) for column in data.columns(number)]
        for column in columns:
            for row in self.plan.rows:
                jobs = self._cell_jobs(row, column.task)
                before = _read(self._pretraining_file(row)) if row.pretrained else None
                for size in self.sizes[column.task]:
                    found = [_read(job.path) for job in jobs if job.size == size]
                    seeds = [SeedResult.from_dict(each) for each in found if each]
                    complete = len(seeds) == len(found)  # what an interrupted or failed job has left is shown too
                    cells.append(
                        Cell(
                            row=row.name,
                            column=column,
                            size=size,
                            seeds=seeds,
                            pretraining=PretrainingCost(**before) if before else None,
                            error="" if complete else self.errors.get((row.name, column.task), "not computed yet"),
                        )
                    )
        comparison = Comparison(
            rows=tuple(row.name for row in self.plan.rows),
            columns=tuple(columns),
            cells=tuple(cells),
            notes=tuple(self._conditions()),
        )
        write_comparison(comparison, self.plan.out)
        return comparison

    def _conditions(self) -> list[str]:
        pretrained = [row for row in self.plan.rows if row.pretrained]
        seeds = f"{pluralize(self.plan.seeds, 'seed')} of each system, default settings of each"
        device = pick_device("auto")
        machine = (
            hardware(device) if device.type == "cuda" else f"{pluralize(_cores(), 'core')} of {platform.machine()}"
        )
        budget = [f"{self.plan.budget.description} on {self.corpus}"] if pretrained else []
        return [seeds, *budget, f"costs are of this machine ({machine})"]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cells(work: Work) -> int:
    return len(work.job.cells) if isinstance(work.job, FinetuneJob) else 1


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise KeelError(f"{path} is damaged: delete it, and rerun the command to compute it again") from None

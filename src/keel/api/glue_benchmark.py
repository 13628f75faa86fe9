"""The GLUE benchmark: every task whose data is there is fine-tuned, scored on dev, and predicted for submission."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

from keel.api.finetuning import finetune
from keel.api.progress import shows_progress
from keel.api.settings import OVERWRITE
from keel.config import Count, Doc, Ge, enforces_bounds, unknown_name
from keel.data.examples import Examples
from keel.data.folder_json import read_json
from keel.data.glue_files import GLUE_TASKS, GlueTask, write_submission
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.formats.huggingface import is_keel_folder
from keel.metrics.scores import score_name
from keel.model import Model
from keel.model_card import Card
from keel.report.console import clock
from keel.systems import SYSTEMS
from keel.systems.system import System
from keel.tasks import TASKS
from keel.training.checkpoint import run_lock, write_json
from keel.training.plan import Positive

__all__ = ["GlueResult", "GlueScores", "glue"]

RESULTS, SUBMISSION = "glue.json", "submission"
HELD_OUT = 0.1
"""Share of the training examples on which the learning rate is chosen."""


@dataclass(frozen=True, kw_only=True)
class GlueResult:
    """Scores of one task on its dev set."""

    name: str
    lr: float
    scores: dict[str, list[float]]
    """By metric, that of each seed, between -1 and 1."""
    seconds: float
    """Wall-clock time of all its runs."""

    @property
    def value(self) -> float:
        """GLUE's score of the task: the mean of its metrics, each the median over the seeds."""
        return mean(map(median, self.scores.values()))


@dataclass(frozen=True, kw_only=True)
class GlueScores:
    """Scores of all tasks that were run, and why others were not."""

    results: list[GlueResult]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean of the tasks; None without results."""
        return mean(each.value for each in self.results) if self.results else None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names, and for each task its scores in percent (median, range over seeds), learning rate and time."""
        rows: list[list[str]] = []
        for each in self.results:
            scores = ", ".join(f"{score_name(name)} {_percent(values)}" for name, values in each.scores.items())
            seeds = len(next(iter(each.scores.values())))
            rows.append([each.name, f"{100 * each.value:.1f}", scores, f"{each.lr:g}", f"{seeds}", clock(each.seconds)])
        if self.mean is not None:
            rows.append(["mean", f"{100 * self.mean:.1f}", f"of {pluralize(len(self.results), 'task')}", "", "", ""])
        return ["task", "score", "metrics", "lr", "seeds", "time"], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        tasks = {
            each.name: {"score": each.value, "scores": each.scores, "lr": each.lr, "seconds": each.seconds}
            for each in self.results
        }
        return {"mean": self.mean, "tasks": tasks, "left_out": self.left_out}

    def __repr__(self) -> str:
        listed = ", ".join(f"{each.name} {100 * each.value:.1f}" for each in self.results)
        return f"GlueScores(mean {100 * (self.mean or 0):.1f}: {listed})"


@dataclass(frozen=True, kw_only=True)
class GlueData:
    """The training and dev examples of a task; checked before the first run."""

    definition: GlueTask
    train: Examples
    dev: dict[str, Examples]

    @property
    def size(self) -> int:
        """Characters of the training texts, to which the time of a run is proportional."""
        return sum(map(len, self.train.texts)) + sum(map(len, self.train.seconds or ()))

    def cost(self, rates: int, seeds: int) -> float:
        """Characters read by a sweep over this many learning rates, if there are several, and by all seeds."""
        return self.size * ((1 - HELD_OUT) * rates * (rates > 1) + seeds)


@shows_progress
@enforces_bounds
def glue(
    base: Model | System | str | Path,
    data: str | Path,
    *,
    out: str | Path,
    lr: Annotated[
        tuple[Positive, ...], Doc("Learning rates, of which the best on 10% of the training set is used.")
    ] = (5e-5, 1e-4, 3e-4),
    epochs: Annotated[Positive, Doc("Passes over the training set; the last one counts.")] = 4.0,
    batch: Annotated[Count, Doc("Batch size.")] = 32,
    seeds: Annotated[Count, Doc("Runs per task with different random seeds.")] = 3,
    minutes: Annotated[
        float, Ge(0), Doc("Time limit: fewer seeds, then fewer learning rates, then fewer tasks; 0: none.")
    ] = 0.0,
    tasks: Annotated[tuple[str, ...], Doc("Tasks, such as CoLA,RTE; default: all whose data is there.")] = (),
    overwrite: Annotated[bool, OVERWRITE] = False,
    device: str = "auto",
    threads: int = 0,
    progress: bool = True,
    on_event: OnEvent = ignore,
) -> GlueScores:
    """Fine-tune a model on all GLUE tasks whose data is in a folder; the same call resumes.

    The learning rate of each task is chosen on a tenth of its training set by GLUE's metric; then the whole training
    set is learned with every seed and scored on dev after the last epoch. `out` gets an ordinary model folder for each
    run, glue.json, and in submission/ a file for each test set, predicted by the best seed on dev.
    """
    given = {"lr": [*lr], "epochs": epochs, "batch": batch}
    found, left_out = _read_tasks(Path(data), tasks)
    if not lr:
        raise UsageError("--lr needs one learning rate or more")
    new = isinstance(base, Model | System) or str(base) in SYSTEMS
    start = base if new else Model.load(str(base), device=device, on_event=on_event)
    store = _Store(Path(out), {"model": start.fingerprint() if isinstance(start, Model) else str(base), **given})
    store.refuse_foreign_folder()
    with run_lock(store.folder):
        store.open(overwrite)
        budget = _Budget(60 * minutes, on_event)

        def tune(each: GlueData, folder: str, **settings: Any) -> Card:
            def train() -> None:
                common = {"task": each.definition.task, "columns": each.definition.columns, "device": device}
                metric = each.definition.metrics[0]
                more = {"epochs": epochs, "batch": batch, "threads": threads, "select_by": metric, "on_event": on_event}
                finetune(start, each.train, out=store.folder / folder, **common, **more, **settings)

            return store.run(folder, train)

        results: list[GlueResult] = []
        pending = sorted(found, key=lambda each: each.size)
        while pending:
            each, name = pending[0], pending[0].definition.name
            plan = budget.plan(pending, len(lr), seeds)
            pending = pending[1:]
            if plan is None:
                left_out[name] = f"does not fit into --minutes {minutes:g}"
                note(on_event, f"{name}: {left_out[name]}: left out")
                continue
            rates, planned = plan
            note(on_event, f"{name}: {pluralize(rates, 'learning rate')}, {pluralize(planned, 'seed')}")
            tried = _central(lr, rates)
            chosen = tried[0]
            if rates > 1:
                limit = {"sweep_minutes": max(budget.seconds_left, 1.0) / 60} if minutes else {}
                swept = tune(each, f"{name}/sweep", dev=f"{100 * HELD_OUT:g}%", lr=tried, **limit)
                chosen = swept.recipe["train"]["lr"]
            dev, *others = each.dev.values()
            further = {"test": others[0]} if others else {}
            cards = [
                tune(each, f"{name}/seed-{seed}", dev=dev, lr=chosen, seed=seed, **further) for seed in range(planned)
            ]
            budget.add(each, plan, store.seconds_of(name))
            results.append(_result(each.definition, chosen, cards, store.seconds_of(name)))
            _submit(each.definition, Path(data), store.folder, results[-1], device, on_event)
            store.write(GlueScores(results=results, left_out=left_out))
        order = [task.name for task in GLUE_TASKS]
        results.sort(key=lambda each: order.index(each.name))
        scores = GlueScores(results=results, left_out=left_out)
        store.write(scores)
        return scores


def _read_tasks(folder: Path, wanted: Sequence[str]) -> tuple[list[GlueData], dict[str, str]]:
    """The data of all wanted tasks, and why others are left out."""
    names = [task.name for task in GLUE_TASKS]
    for name in wanted:
        if name not in names:
            raise unknown_name(name, names, "--tasks")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: give GLUE's folder with --data")
    found: list[GlueData] = []
    left_out: dict[str, str] = {}
    for task in GLUE_TASKS:
        if wanted and task.name not in wanted:
            continue
        files = {stem: task.file(folder, stem) for stem in ("train", *task.dev.values())}
        if missing := [stem for stem, path in files.items() if path is None]:
            left_out[task.name] = f"no {missing[0]}.tsv in {folder / task.name}"
            continue
        kind = TASKS[task.task]
        read = {stem: kind.read_labelled(path, task.columns) for stem, path in files.items()}
        labels = kind.label_schema(read["train"])
        for stem in task.dev.values():
            kind.check_scorable(read[stem], labels)
        found.append(
            GlueData(definition=task, train=read["train"], dev={which: read[stem] for which, stem in task.dev.items()})
        )
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UsageError(f"{folder} has no GLUE task with training and dev files ({reasons}): give another --data")
    return found, left_out


class _Store:
    """The output folder: run folders, the time of each, and results in glue.json."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder, self.settings = folder, settings
        self.seconds: dict[str, float] = {}
        self.results: dict[str, Any] = {}

    def refuse_foreign_folder(self) -> None:
        """Refuse a folder with other files, before anything is written into it."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set[str]()
        if RESULTS not in names and names - {".lock"}:
            raise UsageError(f"{self.folder} is not empty and has no {RESULTS}: choose another --out")

    def open(self, overwrite: bool) -> None:
        """Take over the runs of an earlier call; with other settings they are refused, unless they are overwritten."""
        path = self.folder / RESULTS
        if path.is_file() and not overwrite:
            stored = read_json(path, {"settings": dict, "seconds": dict})
            for name, value in self.settings.items():
                if stored.get("settings", {}).get(name) != value:
                    what = f"{self.folder} has runs with another {name}"
                    raise UsageError(f"{what}: choose another --out, or pass --overwrite to replace them")
            self.seconds = dict(stored.get("seconds", {}))
        for name in (*(task.name for task in GLUE_TASKS), SUBMISSION) if overwrite else ():
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._save()

    def run(self, name: str, train: Callable[[], None]) -> Card:
        """The model card of a run, which is trained unless it is finished."""
        folder, begun = self.folder / name, time.monotonic()
        if not is_keel_folder(folder):
            train()
            self.seconds[name] = time.monotonic() - begun
            self._save()
        for checkpoints in [*(folder / "run").glob("**/checkpoints")]:  # of a finished run: they take much space
            shutil.rmtree(checkpoints)
        return Card.read(read_json(folder / "config.json"), folder)

    def seconds_of(self, task: str) -> float:
        """Wall-clock time of all runs of a task."""
        return sum(value for name, value in self.seconds.items() if name.startswith(f"{task}/"))

    def write(self, scores: GlueScores) -> None:
        """Write the results so far."""
        self.results = scores.to_dict()
        self._save()

    def _save(self) -> None:
        content = {**self.results, "settings": self.settings, "seconds": self.seconds}
        write_json(self.folder / RESULTS, content, indent=1)


@dataclass
class _Budget:
    """A time limit in seconds, 0 for none; what fits is judged by the time that the tasks before took for their text.

    A call that resumes decides as the first call did, since it counts the same tasks in the same order.
    """

    limit: float
    on_event: OnEvent
    spent: float = 0.0
    read: float = 0.0
    """Characters that the tasks so far have read."""

    @property
    def seconds_left(self) -> float:
        return self.limit - self.spent

    def plan(self, pending: Sequence[GlueData], rates: int, seeds: int) -> tuple[int, int] | None:
        """Learning rates and seeds for the next task so that all pending ones fit; None if it does not fit at all."""
        options = [(rates, count) for count in range(seeds, 0, -1)] + [(count, 1) for count in range(rates - 1, 0, -1)]
        if not self.limit or not self.read:
            return options[0]
        pace = self.spent / self.read
        fitting = (each for each in options if pace * sum(task.cost(*each) for task in pending) <= self.seconds_left)
        chosen = next(fitting, (1, 1) if pace * pending[0].cost(1, 1) <= self.seconds_left else None)
        if chosen and chosen != options[0]:
            kept = f"{pluralize(chosen[0], 'learning rate')} and {pluralize(chosen[1], 'seed')}"
            what = f"cut to {kept} (of {rates} and {seeds}), to fit into --minutes {self.limit / 60:g}"
            note(self.on_event, f"{pending[0].definition.name}: {what}")
        return chosen

    def add(self, task: GlueData, plan: tuple[int, int], seconds: float) -> None:
        """Count a task that is done."""
        self.spent, self.read = self.spent + seconds, self.read + task.cost(*plan)


def _result(task: GlueTask, lr: float, cards: Sequence[Card], seconds: float) -> GlueResult:
    scores: dict[str, list[float]] = {}
    for which, part in zip(task.dev, ("dev", "test"), strict=False):
        for metric in task.metrics:
            name = f"{metric} ({which})" if which else metric
            scores[name] = [card.scores[part]["values"][metric]["value"] for card in cards]
    return GlueResult(name=task.name, lr=lr, scores=scores, seconds=seconds)


def _submit(task: GlueTask, data: Path, out: Path, result: GlueResult, device: str, on_event: OnEvent) -> None:
    """Predict the test files with the best seed on dev, unless this is done."""
    by_seed = [mean(values) for values in zip(*result.scores.values(), strict=True)]
    folder = out / task.name / f"seed-{by_seed.index(max(by_seed))}"
    written = {name: out / SUBMISSION / f"{name}.tsv" for name in task.test_files(data)}
    done = (folder / "config.json").stat().st_mtime
    pending = [name for name, path in written.items() if not path.is_file() or path.stat().st_mtime < done]
    if not pending:
        return
    model = Model.load(folder, device=device, on_event=on_event).task
    assert model is not None
    for name in pending:
        examples = task.read_test(task.test_files(data)[name])
        write_submission(written[name], model.predict(examples, on_event=on_event))
        note(on_event, f"{written[name]}: {len(examples):,} predictions")


def _central(values: Sequence[float], count: int) -> tuple[float, ...]:
    """`count` values around the middle of the list."""
    first = (len(values) - count) // 2
    return tuple(values[first : first + count])


def _percent(values: Sequence[float]) -> str:
    spread = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) > 1 else ""
    return f"{100 * median(values):.1f}{spread}"

"""Comparison of systems and models on labelled data: `compare` trains, scores and tests them, and writes a report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from keel.api.comparison_rows import Equal, RowSource, read_corpus, read_tasks
from keel.api.comparison_run import SETTINGS, ComparisonPlan, ComparisonRun
from keel.api.keywords import ColumnKeywords
from keel.api.progress import shows_progress
from keel.api.settings import Source, merge_settings, route_settings
from keel.config import Count, Doc, Ge, enforces_bounds
from keel.data.examples import Columns, Examples
from keel.data.memory_sources import Frame, plain_source
from keel.errors import Interrupted, UsageError
from keel.events import OnEvent, ignore
from keel.metrics.comparison_results import Comparison
from keel.training.checkpoint import run_lock
from keel.training.plan import Positive

__all__ = ["compare"]


@shows_progress
@enforces_bounds
def compare(
    rows: Sequence[RowSource],
    *,
    train: Annotated[Source, Doc("Labelled training examples; several times for several tasks.", repeated=True)],
    test: Annotated[Source, Doc("Test examples of the same --train.", repeated=True)],
    out: str | Path,
    task: str = "classify",
    corpus: Annotated[Source | None, Doc("Raw text that systems are pre-trained on.")] = None,
    transfer: Annotated[
        Source | None, Doc("A second test set of the same --train, such as texts of another domain.", repeated=True)
    ] = None,
    seeds: Annotated[Count, Doc("Fine-tuning runs of each system, with different random seeds.")] = 3,
    minutes: Annotated[float, Ge(0), Doc("Pre-training budget of each system; 0: 5 minutes.")] = 0.0,
    equal: Annotated[Equal, Doc("What pre-trainings have in common: minutes, or the text that they read.")] = "minutes",
    epochs: Annotated[Positive, Doc("Passes over the corpus with --equal tokens.")] = 1.0,
    train_sizes: Annotated[
        str | Sequence[int | str], Doc("Numbers of training examples for learning curves, such as 50,250,all.")
    ] = "all",
    workers: Annotated[int, Ge(0), Doc("Processes that run at once; 0: one per core, as far as memory allows.")] = 0,
    columns: Columns | None = None,
    progress: bool = True,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> Comparison:
    """Compare systems and models on labelled data: scores with intervals, costs, and paired tests. Rerun it to resume.

    `rows` are names of systems (`"bert"`, or with a size `"bert:mini"`), systems, models, model folders, names of
    bundled models or files of word vectors. A system that needs pre-training reads `corpus`, within `minutes`; others
    learn from the labels alone. `train` and `test` are datasets, or lists of them for several tasks. Every row is
    fine-tuned with its default settings on all training examples, with each seed; no example is held out. `out` gets
    report.html, results.jsonl, results.csv, results.tex, figures and the finished cells, which a rerun reuses.
    """
    plan = ComparisonPlan.resolve(rows, out, task, corpus, seeds, minutes, equal, epochs, workers, on_event)
    (roles,) = route_settings(merge_settings(settings, columns=columns), Columns())
    tasks = read_tasks(task, _several(train), _several(test), _several(transfer), roles, on_event)
    sizes = [each.sizes(_sizes(train_sizes)) for each in tasks]
    text = None if corpus is None else read_corpus(corpus)
    with run_lock(plan.out):
        (plan.out / SETTINGS).write_text(json.dumps({"rows": [row.name for row in plan.rows]}), encoding="utf-8")
        run = ComparisonRun(plan, tasks, sizes, text, on_event)
        try:
            run.train_all()
        except KeyboardInterrupt:
            run.collect()  # writes what there is
            raise Interrupted(f"stopped with {run.state}: rerun the command to resume") from None
        return run.collect()


def _several(source: Source | None) -> list[Source]:
    """Datasets of several tasks: a list of files, tables or lists of examples; a list of examples is one dataset."""
    if source is None:
        return []
    return list(source) if isinstance(source, list | tuple) and source and all(map(_is_dataset, source)) else [source]


def _is_dataset(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and not isinstance(item[0], str)  # ["a text", "label"] is an example
    return isinstance(item, str | Path | Examples) or isinstance(plain_source(item), Frame)


def _sizes(given: str | Sequence[int | str]) -> list[int | Literal["all"]]:
    words = given.split(",") if isinstance(given, str) else [str(each) for each in given]
    found: list[int | Literal["all"]] = []
    for word in words:
        if word.strip() == "all":
            found.append("all")
        elif word.strip().isdecimal() and int(word) > 0:
            found.append(int(word))
        else:
            raise UsageError(f"--train-sizes must be numbers or all, such as 50,250,all, not {given!r}")
    return found

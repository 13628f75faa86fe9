"""Work of one process of a comparison: pre-train a row, or fine-tune it with all seeds and score the results.

A process of its own for each row has a true peak of memory, and if it crashes, the others continue. It reads a
pickled job from standard input, writes events as pickled messages, and ends when its parent is gone.
"""

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keel.api.finetuning_runs import FineTuningRuns
from keel.api.finetuning_setup import FineTuningSetup
from keel.api.pretraining import pretrain
from keel.api.settings import Source
from keel.data.answer_spans import NO_ANSWER
from keel.data.collation import EncodedExamples
from keel.data.examples import Examples, Labels
from keel.data.label_kinds import Prediction
from keel.data.predictions import AnyPrediction, ChoicePrediction, SpanAnswer, TaggedText
from keel.errors import KeelError, naming_flags
from keel.events import Event, OnEvent, ignore
from keel.metrics.comparison_results import PretrainingCost, SeedResult
from keel.metrics.item_scores import item_scores
from keel.systems.system import System
from keel.tasks import Task
from keel.training.checkpoint import write_json
from keel.training.counter_rng import derive_seed


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A fine-tuned model to make: a number of training examples, a seed, and the file of its result."""

    size: int
    seed: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class PretrainJob:
    """Pre-train a system; `result` gets the costs."""

    system: System
    corpus: Source
    settings: dict[str, Any]
    out: Path
    result: Path

    def run(self, report: OnEvent) -> None:
        last: Event = {}

        def listen(event: Event) -> None:
            nonlocal last
            last = event if event["event"] == "finished" else last
            report(event)

        model = pretrain(self.system, self.corpus, out=self.out, on_event=listen, **self.settings)
        cost = PretrainingCost(seconds=model.card.seconds, epochs=last.get("epochs", 1.0), steps=model.card.steps)
        write_json(self.result, vars(cost))


@dataclass(frozen=True, kw_only=True)
class FinetuneJob:
    """Fine-tune a row on one dataset, with each seed and number of examples, and score it on the test sets."""

    start: System | str
    task: str
    train: Examples
    labels: Labels
    tests: dict[str, Examples]
    cells: tuple[CellJob, ...]

    def run(self, report: OnEvent) -> None:
        setup = FineTuningSetup.resolve(self.start, None, self.task, None, False, {}, ignore)
        runs: _PreparedRuns | None = None
        failure: KeelError | None = None
        for cell in self.cells:
            try:
                if runs is None or not runs.serves(cell, len(self.train)):
                    runs = _PreparedRuns(setup, self._examples(cell), self.labels, cell, runs, report)
                result = runs.run(cell.seed, self.tests)
            except KeelError as error:  # other seeds and sizes may succeed
                failure = failure or error
                continue
            write_json(cell.path, result.to_dict())
            report({"event": "cell", "size": cell.size, "seed": cell.seed})
        if failure is not None:
            raise failure

    def _examples(self, cell: CellJob) -> Examples:
        """The first examples of a permutation that depends on the seed, one of each class before the others: larger
        sets contain the smaller ones."""
        if cell.size == len(self.train):
            return self.train
        order = np.random.default_rng(derive_seed(cell.seed, "train sizes")).permutation(len(self.train)).tolist()
        first: dict[str, int] = {}
        for index in order:
            for name in self.train.names_in(self.train.values[index]):
                first.setdefault(name, index)
        return self.train.take([*dict.fromkeys([*first.values(), *order])][: cell.size])


class _PreparedRuns:
    """What the seeds of one row and dataset share: the start, encoded examples and, if frozen, their features."""

    def __init__(
        self,
        setup: FineTuningSetup,
        examples: Examples,
        labels: Labels,
        cell: CellJob,
        former: "_PreparedRuns | None",
        report: OnEvent,
    ):
        began = time.perf_counter()
        setup = setup.fit_to_examples(examples)
        start, labels = setup.starting_model(examples, labels, ignore)
        self.cell = cell
        self.runs = FineTuningRuns(setup, start, labels, report)
        self.encoded = self.runs.prepare(examples)
        self.seconds = time.perf_counter() - began
        # The features of a frozen pre-trained encoder are the same for all seeds and sizes.
        shared = former is not None and setup.freeze and setup.parent is not None
        self.tests: dict[tuple[str, System], tuple[EncodedExamples, float]] = former.tests if former and shared else {}

    def serves(self, cell: CellJob, every: int) -> bool:
        """Whether a cell has the same training examples: all of them with any seed."""
        return cell.size == self.cell.size and (cell.seed == self.cell.seed or cell.size == every)

    def run(self, seed: int, tests: dict[str, Examples]) -> SeedResult:
        """Train with a seed, and score on the test sets."""
        tuned = self.runs.train_once(self.encoded, None, seed, None, {}, tune=False)
        task, items, predicted, speed = tuned.task.eval(), {}, {}, 0.0
        for part, examples in tests.items():
            encoded, encoding = self._encoded(task, part, examples)
            began = time.perf_counter()
            found = task.predict(encoded)
            speed = speed or len(examples) / (encoding + time.perf_counter() - began)
            items[part] = item_scores(examples, found)
            predicted[part] = [shown_prediction(found[index]) for index in range(len(examples))]
        return SeedResult(
            seed=seed,
            items=items,
            predicted=predicted,
            seconds=self.seconds + tuned.history.seconds,
            epochs=1.0 if self.runs.setup.solves else tuned.history.epochs,
            steps=tuned.history.steps,
            parameters=sum(weight.numel() for weight in task.parameters()),
            peak_memory=peak_memory(),
            texts_per_second=speed,
            frozen=self.runs.setup.freeze,
        )

    def _encoded(self, task: Task, part: str, examples: Examples) -> tuple[EncodedExamples, float]:
        """The encoded test set and the seconds it took; each seed of fastText may choose n-grams of its own."""
        key = part, task.system
        if key not in self.tests:
            began = time.perf_counter()
            encoded = task.encode_examples(examples, labelled=False)
            self.tests[key] = encoded, time.perf_counter() - began
        return self.tests[key]


def shown_prediction(prediction: AnyPrediction) -> str:
    """A prediction as text, for the page of the comparison."""
    match prediction:
        case Prediction():
            return prediction.label
        case list():
            return ", ".join(each.label for each in prediction)
        case TaggedText():
            return ", ".join(f"{each.text} ({each.label})" for each in prediction.entities) or " ".join(prediction.tags)
        case ChoicePrediction():
            return prediction.text
        case float() | int():
            return f"{prediction:.3g}"
    assert isinstance(prediction, SpanAnswer)  # generated texts are not compared
    return prediction.text or NO_ANSWER


def peak_memory() -> int:
    """Bytes: the largest memory of this process or, with a GPU, of the GPU."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        # Not ru_maxrss, which on Linux includes the memory of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def failure_reason(error: BaseException) -> str:
    """The reason of a failed cell in one sentence."""
    if isinstance(error, KeelError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in repr(error) or "OutOfMemory" in repr(error):
        return "out of memory: compare fewer systems at once with --workers 1"
    return " ".join(f"{type(error).__name__}: {error}".split())


def serve() -> None:
    """Run the job that is read from standard input; see `comparison_processes`."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    lock = threading.Lock()

    def send(message: object) -> None:
        with lock:
            pickle.dump(message, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()

    job, flags_named = pickle.load(requests)
    threading.Thread(target=_end_with_parent, args=[requests.read], daemon=True).start()
    with naming_flags() if flags_named else nullcontext():
        try:
            job.run(send)
            send({"event": "done"})
        except (Exception, KeyboardInterrupt) as error:
            send({"event": "failed", "reason": failure_reason(error)})


def _end_with_parent(read: Callable[[], bytes]) -> None:
    read()  # until the parent closes it, or is gone
    os._exit(1)

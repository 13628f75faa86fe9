"""Labelled datasets of a fine-tuning run: training, validation (dev) and test examples."""

from dataclasses import dataclass
from typing import Self

from keel.api.settings import Source
from keel.data.examples import Columns, Examples, Labels, split_validation
from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.tasks import Task


@dataclass(frozen=True)
class LabelledData:
    """The datasets of a run, and the labels of all training examples."""

    everything: Examples
    """The training examples before any are held out."""
    train: Examples
    dev: Examples | None
    test: Examples | None
    labels: Labels

    @classmethod
    def read(
        cls,
        task: type[Task],
        columns: Columns,
        data: Source,
        dev: Source,
        test: Source | None = None,
        *,
        folds: bool = False,
        seed: int,
        on_event: OnEvent,
    ) -> Self:
        """Read and check all datasets: a label that does not occur in training is found before training."""
        everything = task.read_examples(data, columns, on_event)
        labels = task.label_schema(everything)
        train, held_out = _split_dev(everything, task, columns, dev, seed, on_event)
        tested = None if test is None else task.read_examples(test, columns, on_event)
        for examples in (held_out, tested, everything if folds else None):
            if examples is not None:
                task.check_scorable(examples, labels)
        return cls(everything, train, held_out, tested, labels)


def _split_dev(
    examples: Examples, task: type[Task], columns: Columns, dev: Source, seed: int, on_event: OnEvent
) -> tuple[Examples, Examples | None]:
    """Training and validation examples; `dev` is a dataset, a share such as "10%" (stratified by label), or None."""
    if dev is None or (isinstance(dev, str) and dev == "none"):
        return examples, None
    if not (isinstance(dev, str) and dev.endswith("%")):
        return examples, task.read_examples(dev, columns, on_event)
    try:
        share = float(dev[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"--dev must be a file or a share between 0% and 100% such as 10%, not {dev}")
    train, held_out = split_validation(examples, share, seed)
    if not held_out:
        note(on_event, "no examples are held out as dev, as each has a label of its own: give a file with --dev")
        return train, None
    what = f"{len(held_out):,} of {len(examples):,} examples are held out as dev"
    note(on_event, f"{what} ({dev}, seed {seed}; change with --dev)")
    return train, held_out

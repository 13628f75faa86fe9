"""The probe of a pre-training run: a copy of the model is fine-tuned on labelled examples and scored."""

from dataclasses import dataclass
from typing import Any, Self

from keel.api.finetuning import finetune
from keel.api.labelled_data import split_dev
from keel.api.settings import Source
from keel.config import unknown_name
from keel.data.examples import Columns, Examples, Labels
from keel.errors import UsageError
from keel.events import OnEvent
from keel.model import Model
from keel.tasks import TASKS, Task
from keel.training.plan import Train


@dataclass(frozen=True)
class Probe:
    """A labelled dataset, split into training and validation."""

    task: type[Task]
    labels: Labels
    train: Examples
    validation: Examples

    @classmethod
    def read(cls, source: Source, task: str, train: Train, on_event: OnEvent) -> Self:
        """Read and check the dataset; a tenth of it is held out."""
        if task not in TASKS:
            raise unknown_name(task, TASKS, "--probe-task")
        kind = TASKS[task]
        everything = kind.read_examples(source, on_event=on_event)
        training, validation = split_dev(everything, kind, Columns(), "10%", train.seed, on_event)
        if validation is None:
            raise UsageError("--probe has too few examples to hold out a tenth of them: give more")
        labels = kind.label_schema(training)
        kind.check_scorable(validation, labels)
        return cls(kind, labels, training, validation)

    def scores_of(self, model: Model, train: Train, report: OnEvent) -> dict[str, Any]:
        """Validation scores of a fine-tuned copy of the model."""
        tuned = finetune(
            model,
            self.train,
            dev=self.validation,
            task=self.task.name,
            seed=train.seed,
            device=train.device,
            on_event=report,
        )
        return tuned.card.scores["dev"]

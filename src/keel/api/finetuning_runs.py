"""The runs of one fine-tuning: several seeds or folds, and the choice of the best run."""

import dataclasses
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from keel.api.finetuning_setup import FineTuningSetup, adapt_model
from keel.config import replace, to_dict, unknown_name
from keel.data.collation import EncodedExamples
from keel.data.example_splits import cross_validation_folds
from keel.data.examples import Examples, Labels
from keel.data.label_kinds import SingleLabel
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.metrics.scores import Scores
from keel.model import Model
from keel.nn.encoder import Encoder
from keel.nn.linear_training import FrozenEncoderTraining, LinearTraining, fold_accuracies
from keel.nn.meta_device import meta_device
from keel.systems.system import CountBased
from keel.tasks import Task
from keel.tasks.auxiliary_lm import AuxiliaryLM
from keel.tasks.embedding_restriction import RestrictedEmbeddings
from keel.training.counter_rng import derive_seed
from keel.training.distributed import pick_device
from keel.training.linear_solver import within_one_standard_error
from keel.training.loop import SCORE, Evaluate, History, fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import CrossValidation, CustomUpdate, Objective

FEW_STEPS, FEW_TEXTS = 30, 10_000
"""Updates by batches, and by single texts, below which a run is likely to underfit."""
LAST_SHARE, COLLAPSED = 0.2, 0.98
"""A run has collapsed if the mean loss of this last share of its steps is above this share of the labels' entropy."""
LEAST_STEPS = 100
"""Steps of a run that should have learned more than the frequencies of the labels."""
SEED_OFFSET = 1000
"""What is added to the seed of a collapsed run to repeat it."""
LEAST_BATCH = 8
"""The smallest batch that is recommended instead of more epochs."""
MOST_EPOCHS = 100
"""The most epochs that are recommended: more overfit."""


@dataclass(frozen=True)
class FineTuningRun:
    """The result of one run: the task, its history, and its scores on dev and test, if there are any."""

    task: Task
    history: History
    scores: Scores | None
    folds: dict[str, Any] | None = None
    """Scores of the cross-validation that is part of training, if it is."""
    test: Scores | None = None
    lr: float = 0.0
    """The peak learning rate: the given one, or the one that training chose."""


class CrossValidated(NamedTuple):
    """The learning rate that cross-validation chose."""

    lr: float
    fold_errors: list[float]
    """Share of wrong labels among the held-out examples of each fold."""


@dataclass(frozen=True)
class FineTuningRuns:
    """The common settings of all runs of one `finetune`."""

    setup: FineTuningSetup
    parent: Model
    labels: Labels
    report: OnEvent
    select_by: str = ""
    """Score on dev by which the best run is chosen; the main score if empty."""
    label: str = ""
    """The settings that a sweep varies, in words."""

    @cached_property
    def parent_fingerprint(self) -> str:
        return self.parent.fingerprint()

    def task_on(self, encoder: Encoder, *, frozen: bool = False) -> Task:
        head = self.setup.head.non_default()
        return self.setup.task(self.parent.system, encoder, self.parent.tokenizer, self.labels, frozen=frozen, **head)

    def new_task(self, seed: int) -> Task:
        """A new head on a copy of the parent's encoder or, from scratch, on a new one."""
        torch.manual_seed(derive_seed(seed, "weights"))
        if self.setup.from_scratch:
            encoder = self.parent.system.build_encoder(self.parent.encoder.vocab_size)
        else:
            encoder = deepcopy(self.parent.encoder).requires_grad_(True)  # pre-training may have frozen parts
        task = self.task_on(encoder, frozen=self.setup.freeze)
        if not self.setup.from_scratch and isinstance(self.parent.task, self.setup.task):
            task.load_head_from(self.parent.task)
        task.precision = self.setup.train.precision
        return task.to(pick_device(self.setup.train.device))

    def auxiliary_objective(self, task: Task) -> Objective:
        """The task's loss plus the parent's pre-training loss on the same batches."""
        objective = task.system.build_objective(task.encoder, task.tokenizer)
        known = {} if self.parent.objective is None or self.setup.from_scratch else self.parent.objective.state_dict()
        for name, weight in objective.state_dict().items():
            if name in known and not name.startswith("encoder."):
                # New special tokens have no weights yet.
                trained = weight[: len(known[name])] if weight.dim() else weight
                trained.copy_(known[name])
        return AuxiliaryLM(task, objective.to(pick_device(self.setup.train.device)), self.setup.head.lm_loss)

    def train_once(
        self,
        data: EncodedExamples,
        dev: Examples | None,
        seed: int,
        run: Path | None,
        which: Mapping[str, Any],
        *,
        tune: bool = True,
    ) -> FineTuningRun:
        """Train with one seed and score on dev; `tune` decisions on dev, if the settings ask for it.

        `which` are fields of the event with the scores: which of how many runs it is.
        """
        runs, data, choice = self.choose_by_cross_validation(data, seed)
        task = runs.new_task(seed)
        objective = runs.objective_of(task)
        identity = {
            "system": task.system.name,
            **self.setup.recipe,
            "labels": list(self.labels.names),
            "examples": data.examples.fingerprint(),
            "parent": self.parent_fingerprint if run and not self.setup.from_scratch else "",
            "tokenizer": task.tokenizer.fingerprint() if run else "",
            **({"target": self.labels.tokenizer.fingerprint()} if run and self.labels.tokenizer else {}),
            **{f"system.{name}": value for name, value in to_dict(task.system).items()},
        }
        sources = {"examples": f"the examples of {data.examples.source}"}
        if self.parent.card.title:
            sources["parent"] = f"the model {self.parent.card.title}"
        seeded = replace(self.setup.train, seed=seed, **({"lr": choice.lr} if choice else {}))
        # A language model predicts any word, so no embeddings can be left out.
        restriction = task.restrict_embeddings(data, restrict=not self.setup.head.lm_loss)
        evaluate = None
        if seeded.final_weights == "best" and dev is not None:
            evaluate = self.evaluation(task, dev, restriction)
            seeded = replace(seeded, evaluate_every=math.ceil(task.epoch_size(data) / seeded.batch))
        with restriction as narrow:
            history = fit(
                objective or task,
                narrow,
                seeded,
                run,
                self.report,
                evaluate=evaluate,
                identity=identity,
                earlier_identity=task.system.earlier_identity(),
                sources=sources,
            )
        if choice:
            folds = fold_accuracies(choice.fold_errors)
        else:
            folds = objective.fold_scores() if isinstance(objective, CustomUpdate) else None
        for message in objective.notes() if objective else ():
            note(self.report, message)
        if dev is None:
            return FineTuningRun(task, history, None, folds, lr=seeded.lr)
        if tune:
            task.tune_decisions(dev, self.report)
        scores = task.score(dev, task.predict(dev, on_event=self.report))
        self.report({"event": "scores", "on": "dev", "seed": seed, **which, **scores.to_dict()})
        return FineTuningRun(task, history, scores, folds, lr=seeded.lr)

    def evaluation(self, task: Task, dev: Examples, restriction: RestrictedEmbeddings) -> Evaluate:
        """An evaluation on dev during training: its loss, and the score by which runs are compared."""
        encoded = task.encode_examples(dev)  # predictions read examples: a task may encode them otherwise
        losses = validation_loss(encoded, self.setup.train, len(encoded))

        def evaluate(objective: Objective) -> dict[str, float]:
            was_training = task.training
            with restriction.suspended():
                values = losses(task)
                scores = task.eval().score(dev, task.predict(dev))
            task.train(was_training)
            return {**values, SCORE: self.score_value(scores)}

        return evaluate

    def objective_of(self, task: Task) -> Objective | None:
        """What a run optimises, if it is not the task itself."""
        objective = FrozenEncoderTraining(task) if self.setup.solves_frozen else None
        if not self.setup.freeze and not task.network:
            objective = task.system.finetuning_policy.custom_update(task)
        weighted = objective is None or isinstance(objective, LinearTraining)
        if not weighted and self.setup.head.class_weights != "none":
            what = f"the custom updates of {task.system.name} have no class weights"
            raise UsageError(f"{what}: leave out --class-weights, or use another system")
        return self.auxiliary_objective(task) if self.setup.head.lm_loss else objective

    def choose_by_cross_validation(
        self, data: EncodedExamples, seed: int
    ) -> tuple["FineTuningRuns", EncodedExamples, CrossValidated | None]:
        """The runs with the system, and the learning rate, of the best held-out errors and losses
        (`within_one_standard_error`); and the examples as that system reads them. Without a cross-validation, the only
        candidate and None."""
        policy, train, kind = self.parent.system.finetuning_policy, self.setup.train, self.labels.kind
        texts = len(set(data.examples.text_keys())) if train.optimizer == "own" else 0
        candidates: list[tuple[FineTuningRuns, EncodedExamples]] = []
        for system in policy.candidate_systems(kind, texts):
            start, runs, encoded = adapt_model(system, self.parent, train.seed), self, data
            if start is not self.parent:
                runs = dataclasses.replace(self, parent=start)
                encoded = dataclasses.replace(runs, report=ignore).prepare(data.examples)
            candidates.append((runs, encoded))
        found: list[CrossValidation] = []
        for runs, encoded in candidates if policy.cross_validates(kind, texts) else []:
            task = runs.new_task(seed)
            objective = runs.objective_of(task)
            if isinstance(objective, CustomUpdate):
                with task.restrict_embeddings(encoded) as narrow:
                    measured = objective.cross_validate(narrow, epochs=train.epochs, batch=train.batch, seed=seed)
                found += [measured] if measured else []
        if not found:
            return *candidates[0], None
        assert len(found) == len(candidates), "all candidates are cross-validated, or none"
        errors, losses = torch.cat([each.errors for each in found]), torch.cat([each.losses for each in found])
        candidate, setting = divmod(within_one_standard_error(errors, losses), len(found[0].lrs))
        runs, encoded = candidates[candidate]
        lr, unset = found[candidate].lrs[setting], to_dict(self.parent.system)
        settings = [
            f"{name} {value}" for name, value in to_dict(runs.parent.system).items() if value and not unset[name]
        ]
        note(self.report, f"{', '.join([f'learning rate {lr:g}', *settings])}, chosen by cross-validation")
        return runs, encoded, CrossValidated(lr, found[candidate].fold_errors(setting))

    def name_seed(self, seed: int) -> str:
        """The name of a run: "seed 0", or "seed 0, lr 0.0001" in a sweep."""
        return f"seed {seed}{self.label and f', {self.label}'}"

    def train_seed(
        self, seed: int, data: EncodedExamples, dev: Examples | None, run: Path | None, runs: int
    ) -> FineTuningRun:
        """Train with a seed in a folder of its own inside `run`, and once more with another one if the run has
        collapsed; `runs` is the number of all runs."""
        name = self.name_seed(seed)
        tuned = self.train_once(data, dev, seed, run and run / run_folder_name(name), {"run": name, "runs": runs})
        if not self.has_collapsed(tuned.history):
            return tuned
        other = seed + SEED_OFFSET
        what = f"the run of {name} has collapsed: it has learned how frequent the labels are, and nothing else"
        note(self.report, f"{what}; it is repeated with seed {other}")
        name = self.name_seed(other)
        again = self.train_once(data, dev, other, run and run / run_folder_name(name), {"run": name, "runs": runs})
        if not self.has_collapsed(again.history):
            return again
        note(self.report, f"the run of {name} has collapsed too: lower --lr")
        return tuned

    def has_collapsed(self, history: History) -> bool:
        """Whether the fine-tuning of a pre-trained encoder ended with the loss of label frequencies."""
        setup, counts = self.setup, [count for count in self.labels.counts if count]
        plain = not setup.head.lm_loss and setup.head.class_weights == "none"
        may_collapse = setup.system.finetuning_policy.may_collapse and not (setup.from_scratch or setup.freeze)
        if not (may_collapse and plain and isinstance(self.labels.kind, SingleLabel)) or history.steps < LEAST_STEPS:
            return False
        recent = [loss for step, loss in history.losses if step > (1 - LAST_SHARE) * history.steps]
        if not recent or len(counts) < 2:
            return False
        total = sum(counts)
        entropy = -sum(count / total * math.log(count / total) for count in counts)
        return mean(recent) > COLLAPSED * entropy

    def choice_value(self, run: FineTuningRun) -> float:
        """The score on dev by which the best run is chosen."""
        return 0.0 if run.scores is None else self.score_value(run.scores)

    def score_value(self, scores: Scores) -> float:
        if self.select_by and self.select_by not in scores.values:
            raise unknown_name(self.select_by, scores.values, "--select-by")
        return scores.values[self.select_by or scores.main].value

    def best_of(
        self,
        seeds: int,
        examples: Examples,
        dev: Examples | None,
        test: Examples | None,
        run: Path | None,
        scores: dict[str, Any],
        first: FineTuningRun | None = None,
    ) -> FineTuningRun:
        """The best run on dev (the first if there is no dev); its scores and the means of all runs are added to
        `scores`. `first` is the run of the first seed, if a sweep has made it."""
        data = self.prepare(examples) if first is None or seeds > 1 else None
        best: FineTuningRun | None = None
        best_value = 0.0
        on_dev: list[Scores] = []
        on_test: list[Scores] = []
        for seed in range(self.setup.train.seed, self.setup.train.seed + seeds):
            tuned, first = first, None
            if tuned is None:
                assert data is not None
                tuned = self.train_seed(seed, data, dev, run, seeds)
            on_dev += [tuned.scores] if tuned.scores else []
            if test is not None:
                tested = tuned.task.score_languages(test, tuned.task.predict(test, on_event=self.report))
                which = {"run": self.name_seed(seed), "runs": seeds}
                self.report({"event": "scores", "on": "test", "seed": seed, **which, **tested.to_dict()})
                on_test.append(tested)
                tuned = dataclasses.replace(tuned, test=tested)
            value = self.choice_value(tuned)
            if best is None or value > best_value:
                best, best_value = tuned, value
        assert best is not None
        if self.setup.train.epochs and (advice := self.advice(best.history.steps, len(examples))):
            note(self.report, advice)
        if best.folds:
            scores["cross-validation"] = best.folds
        if best.scores:
            scores["dev"] = best.scores.brief()
            if best.scores.warning:
                note(self.report, f"on dev {best.scores.warning}")
        if best.test:
            scores["test"] = best.test.brief()
        if seeds > 1:
            scores |= {
                f"{name}_seeds": average(found) for name, found in {"dev": on_dev, "test": on_test}.items() if found
            }
        return best

    def advice(self, steps: int, examples: int) -> str:
        """What to change in a run of too few updates; empty for any other."""
        if self.setup.solves or isinstance(self.setup.system, CountBased):
            return ""
        own = self.setup.train.optimizer == "own"  # an update per text, whatever the batch
        made, few = (max(1, round(self.setup.train.epochs * examples)), FEW_TEXTS) if own else (steps, FEW_STEPS)
        if made >= few or self.setup.train.epochs >= MOST_EPOCHS:
            return ""
        remedies = [f"--epochs {min(MOST_EPOCHS, math.ceil(self.setup.train.epochs * few / made))}"]
        batch = 1 << int(math.log2(max(1, self.setup.train.batch * made // few)))
        if own:
            remedies.append("a higher --lr")
        elif batch >= LEAST_BATCH:
            remedies.append(f"--batch {batch}")
        return f"the run made only {pluralize(made, 'update')}: try {' or '.join(remedies)}"

    def prepare(self, examples: Examples) -> EncodedExamples:
        """Encode the examples once for all seeds; with a frozen encoder, compute its features."""
        if self.setup.freeze:
            task = self.new_task(self.setup.train.seed)
        else:  # no weights are needed, and a task may freeze parameters of its encoder
            with meta_device():
                encoder = self.parent.system.build_encoder(self.parent.encoder.vocab_size)
            task = self.task_on(encoder)
        return task.encode_examples(examples, batch_size=self.setup.train.batch, on_event=self.report)

    def cross_validate(self, examples: Examples, count: int, run: Path | None) -> dict[str, Any]:
        """Score every example once, by a run trained on the other folds."""
        scores: list[Scores] = []
        for number, (rest, fold) in enumerate(cross_validation_folds(examples, count, self.setup.train.seed), 1):
            name = f"fold {number}"
            folder, which = run and run / run_folder_name(name), {"run": name, "runs": count}
            tuned = self.train_once(self.prepare(rest), fold, self.setup.train.seed, folder, which, tune=False)
            scores += [tuned.scores] if tuned.scores else []
        return average(scores)


def run_folder_name(run: str) -> str:
    """The folder of a run: "seed-0,lr-0.0001" for "seed 0, lr 0.0001"."""
    return run.replace(", ", ",").replace(" ", "-")


def average(scores: list[Scores]) -> dict[str, Any]:
    """Mean and sample standard deviation of the main score over several runs, and each value."""
    values = [found.main_value for found in scores]
    spread = {"std": stdev(values)} if len(values) > 1 else {}
    return {"main": scores[0].main, "mean": mean(values), **spread, "values": values}

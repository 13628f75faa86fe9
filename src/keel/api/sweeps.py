"""Sweeps: lists of learning rates, epochs or batch sizes, of which the best on the validation examples is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

from keel.api.finetuning_runs import FineTuningRun, FineTuningRuns
from keel.api.settings import SWEPT
from keel.config import replace as replace_settings
from keel.data.collation import EncodedExamples
from keel.data.examples import Examples
from keel.errors import UsageError, flag_of
from keel.events import note
from keel.metrics.scores import score_name


@dataclass(frozen=True)
class Sweep:
    """All combinations of the values given; without lists, a single one."""

    candidates: list[dict[str, Any]]
    minutes: float
    """Training time after which no further candidate is started; 0: no limit."""

    @classmethod
    def take_from(cls, settings: dict[str, Any], minutes: float) -> Self:
        """The sweep of the lists in these settings, in which the first candidate's values replace them."""
        lists = {name: settings[name] for name in SWEPT if isinstance(settings.get(name), list | tuple)}
        for name, values in lists.items():
            if not values or len({*values}) < len(values):
                raise UsageError(f"{flag_of(name)} needs different values, not {_listed(values)}")
        candidates = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
        settings |= candidates[0]
        if minutes and len(candidates) == 1:
            raise UsageError("--sweep-minutes limits a sweep: give a list such as --lr 1e-4,3e-4, or leave it out")
        return cls(candidates, minutes)

    def run(
        self, runs: FineTuningRuns, examples: Examples, dev: Examples | None, folder: Path | None
    ) -> tuple[FineTuningRuns, FineTuningRun | None]:
        """The settings that score best on dev with the first seed, and their run; without lists, the given ones.

        A candidate that would not end within the time limit, judged by those before it, and all after it are left out.
        """
        if len(self.candidates) == 1:
            return runs, None
        if dev is None:
            raise UsageError(f"a list for {flag_of(min(self.candidates[0]))} needs validation examples: give --dev")
        prepared: dict[int, EncodedExamples] = {}
        best: tuple[FineTuningRuns, FineTuningRun] | None = None
        values: dict[str, float] = {}
        seconds = cost = 0.0
        plans = [replace_settings(runs.setup.train, **candidate) for candidate in self.candidates]  # all are checked
        for number, (candidate, train) in enumerate(zip(self.candidates, plans, strict=True)):
            if self.minutes and best and seconds + cost * (train.epochs or 1.0) > 60 * self.minutes:
                what = f"the sweep is cut to {number} of {len(self.candidates)} settings"
                note(runs.report, f"{what}: the next would exceed --sweep-minutes {self.minutes:g}")
                break
            label = ", ".join(f"{name} {exact_number(value)}" for name, value in candidate.items())
            tried = replace(runs, setup=replace(runs.setup, train=train), label=label)
            if train.batch not in prepared:
                prepared[train.batch] = tried.prepare(examples)
            found = tried.train_seed(train.seed, prepared[train.batch], dev, folder, len(self.candidates))
            seconds += found.history.seconds
            cost = found.history.seconds / (train.epochs or 1.0)
            values[label] = tried.choice_value(found)
            if best is None or values[label] > values[best[0].label]:
                best = tried, found
        assert best is not None
        assert best[1].scores is not None
        score = score_name(runs.select_by or best[1].scores.main)
        listed = ", ".join(f"{value:.3f} ({label})" for label, value in values.items())
        note(runs.report, f"sweep: {score} on dev {listed}: {best[0].label} is chosen")
        return best


def exact_number(value: float) -> str:
    """The short text of a number if no other number has it, else all digits: folders of close values differ."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _listed(values: Sequence[Any]) -> str:
    return ",".join(exact_number(value) if isinstance(value, int | float) else str(value) for value in values) or "none"

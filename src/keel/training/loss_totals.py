"""Training losses between two log entries, and the validation loss."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from keel.errors import KeelError
from keel.events import Event
from keel.training.batch_loading import add_to_sums
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.loss_names import PART
from keel.training.objective import CustomUpdate, Objective
from keel.training.plan import Train
from keel.training.step import StepResult, autocast


def validation_loss(data: Any, train: Train, max_examples: int = 512) -> Callable[[Objective], dict[str, float]]:
    """Evaluation function: the losses of an objective on the same `max_examples` held-out examples every time."""

    def evaluate(objective: Objective) -> dict[str, float]:
        device = next(objective.parameters()).device
        was_training = objective.training
        objective.eval()
        sums: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        # Fits wherever training does; the eager loss of a custom update needs more memory than its kernel.
        most = 4 if isinstance(objective, CustomUpdate) else 64
        total = min(max_examples, objective.epoch_size(data))
        chunk = min(most, train.batch, total)
        with torch.no_grad():
            state = objective.initial_state(chunk)
            if state is not None:  # the state belongs to a fixed number of parallel streams
                total -= total % chunk
            for start in range(0, total, chunk):
                part = range(start, min(start + chunk, total)) if state is None else range(chunk)
                first = 0 if state is None else start
                rng = CounterRng(seed=0, step=0, first_example=first, batch_size=chunk)
                batch = objective.batch(data, rng, part).to(device)
                with autocast(train.precision, device):
                    losses, state = objective(batch, state)
                add_to_sums(sums, losses)
                add_to_sums(counts, objective.counts(batch))
        objective.train(was_training)
        values = {name: float(value / counts[name].clamp(min=1)) for name, value in sums.items()}
        return {"loss": sum(values.values()), **values}

    return evaluate


def validation_loss_of_parts(
    parts: Mapping[str, Any], shares: Mapping[str, float], train: Train, max_examples: int = 512
) -> Callable[[Objective], dict[str, float]]:
    """Evaluation function of a dataset in parts: the mean losses by share, and the loss of each part."""
    each = {name: validation_loss(data, train, max(1, max_examples // len(parts))) for name, data in parts.items()}

    def evaluate(objective: Objective) -> dict[str, float]:
        found: dict[str, dict[str, float]] = {}
        for name, losses in each.items():
            try:
                found[name] = losses(objective)
            except KeelError as error:
                raise KeelError(f"{name}: {error}") from None
        mean = {loss: sum(shares[name] * found[name][loss] for name in found) for loss in next(iter(found.values()))}
        return {**mean, **{f"{PART}{name}": losses["loss"] for name, losses in found.items()}}

    return evaluate


class LossTotals:
    """Sums of losses and counts since the last log entry; they stay on the device until read."""

    def __init__(self) -> None:
        self.steps = 0
        self.sums: dict[str, Tensor] = {}
        self.units: dict[str, Tensor] = {}
        self.norm: Tensor | None = None
        self.lr = 0.0
        self.began = time.monotonic()

    def add(self, result: StepResult, lr: float) -> None:
        add_to_sums(self.sums, result.losses)
        add_to_sums(self.units, {name: count for name, count in result.counts.items() if name not in result.losses})
        self.norm, self.lr = result.norm, lr
        self.steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude work that is not a training step from the logged speed."""
        start = time.monotonic()
        yield
        self.began += time.monotonic() - start

    def finite(self, world: World) -> bool:
        """Whether all losses and the last gradient norm are finite, in every process."""
        values = [value.float() for value in (*self.sums.values(), self.norm) if value is not None]
        return not values or bool(world.sum_over_processes(torch.stack(values)).isfinite().all())

    def summary(self, world: World) -> Event:
        """Log event: mean losses, learning rate, and speed (such as tokens per second)."""
        names = list(self.sums)
        means = world.sum_over_processes(torch.stack([self.sums[name].double() for name in names])) / self.steps
        losses = dict(zip(names, means.tolist(), strict=True))
        seconds = time.monotonic() - self.began
        event: Event = {"loss": sum(losses.values()), "losses": losses, "lr": self.lr}
        event["seconds_per_step"] = seconds / self.steps
        event |= {f"{name}_per_second": float(count) / seconds for name, count in self.units.items()}
        if self.norm is not None:
            event["norm"] = float(self.norm)
        return event

"""How a run is to go: its settings, and the plan of steps that they come to."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

from keel.config import Validated
from keel.errors import UsageError
from keel.training.distributed import Parallel
from keel.training.objective import Phase
from keel.training.optimizers import Schedule, lr_at

Precision = Literal["auto", "fp32", "bf16"]

MOST = 1_000_000_000
"""Of steps, epochs or minutes: what they come to must be a number that the machine can hold."""


@dataclass(frozen=True, kw_only=True)
class Train(Validated):
    """How long, how fast and with what care to train. One of steps, epochs and minutes is set."""

    steps: int = 0
    """Updates in all."""
    epochs: float = 0.0
    """Times through the data."""
    minutes: float = 0.0
    """Wall-clock time; becomes a plan of steps after the first measured ones."""
    batch: int = 32
    """Rows in one update, over all devices and micro-batches."""
    ramp: float = 0.0
    """Share of the steps, at the start, over which the batch doubles twice to its full size."""
    accumulate: int = 1
    """Micro-batches that a device cuts its rows into, to save memory."""
    optimizer: Literal["adamw", "muon", "own"] = "adamw"
    """adamw, or muon for the matrices inside the blocks and AdamW for the rest; own: the system makes its updates."""
    lr: float = 1e-4
    """The full learning rate."""
    schedule: Schedule = "linear"
    """How the rate moves after the warm-up."""
    warmup: float = 0.1
    """Steps over which the rate rises; below 1, that share of all steps."""
    cooldown: float = 0.2
    """Share of the steps over which a trapezoid's rate falls."""
    layer_decay: float = 1.0
    """The rate of each block is that of what stands above it times this; the head has the full one, words the
    least unless they are the softmax too."""
    unfreeze: Literal["none", "gradual"] = "none"
    """gradual: at first the head learns alone, then one block more each epoch from the top, words last unless
    they are the softmax too."""
    weight_decay: float = 0.01
    """Pull of matrices to zero."""
    beta1: float = 0.9
    """Memory of AdamW's mean."""
    beta2: float = 0.999
    """Memory of AdamW's variance."""
    epsilon: float = 1e-6
    """AdamW's denominator."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 lets any pass."""
    average: float = 0.0
    """Share of the steps, at the end, whose weights are averaged into the result."""
    precision: Precision = "auto"
    """Of the products; weights and sums stay fp32. auto takes bf16 on a GPU that has it."""
    compile: bool = False
    """Compile every block."""
    parallel: Parallel = "ddp"
    """Under torchrun: whole copies (ddp) or shards (fsdp)."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes the GPU if there is one."""
    threads: int = 0
    """CPU threads; 0 leaves torch's own number."""
    seed: int = 0
    """Of every draw: the same seed gives the same run."""
    evaluate_every: int = 1000
    """Steps between evaluations; 0 evaluates at the start and the end alone."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; 0 leaves it to the clock."""
    checkpoint_minutes: float = 5.0
    """Minutes after which a checkpoint is due anyway."""
    keep: int = 2
    """Recent checkpoints to keep, beside the best."""
    log_every: int = 10
    """Steps between reports."""

    LENGTHS = ("steps", "epochs", "minutes")
    """The ways to say how long; one of them is set."""
    GRADIENT_SETTINGS = (
        "weight_decay",
        "beta1",
        "beta2",
        "epsilon",
        "clip",
        "precision",
        "compile",
        "parallel",
        "accumulate",
    )
    """What means nothing to a system that makes its own updates."""
    CHANGEABLE = ("evaluate_every", "checkpoint_every", "checkpoint_minutes", "keep", "log_every")
    """What may change when a run is taken up again."""

    def __post_init__(self) -> None:
        lengths = (self.steps, self.epochs, self.minutes)
        said = " and ".join(f"--{name} {value:g}" for name, value in zip(self.LENGTHS, lengths, strict=True) if value)
        if sum(length > 0 for length in lengths) != 1 or min(lengths) < 0:
            given = f", not by {said}" if said else ""
            raise UsageError(f"say how long to train by one of --steps, --epochs and --minutes, above 0{given}")
        if max(lengths) > MOST:
            raise UsageError(f"{said} would never end: give {MOST:,} or less")
        for name in ("batch", "accumulate", "lr", "epsilon", "checkpoint_minutes", "log_every", "keep"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "clip", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be below 0, as {getattr(self, name)} is")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"layer_decay must lie above 0 and at 1 at most, not at {self.layer_decay}")
        if self.unfreeze == "gradual" and self.average:
            raise UsageError("an average takes all weights from the same steps, and --unfreeze does not: leave one out")
        for name in ("beta1", "beta2", "cooldown", "ramp", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        most = 4 * (os.cpu_count() or 1)
        if not 0 <= self.threads <= most:
            raise UsageError(f"threads must lie between 0 and {most} on this machine, not at {self.threads}")
        if self.accumulate > self.batch:
            raise UsageError(f"accumulate ({self.accumulate}) cannot be more than batch ({self.batch}) rows")


@dataclass(frozen=True)
class StepPlan:
    """Where in a plan a step stands: everything about it that does not depend on the data."""

    step: int
    batch_size: int
    """Of this step, over all devices and micro-batches."""
    first_example: int
    """How many rows the steps before this one drew in its phase."""
    phase: int
    lr: float


@dataclass(frozen=True)
class PlanSegment:
    """Steps that are alike in shape."""

    begin: int
    stop: int
    batch_size: int
    phase: int


@dataclass(frozen=True)
class Plan:
    """The steps to go, stored with every checkpoint as their number: all else follows from it and the settings."""

    steps: int
    train: Train
    phases: Sequence[Phase] = (Phase(),)

    @cached_property
    def segments(self) -> list[PlanSegment]:
        """The plan cut wherever the rows of a step or the phase change."""
        ramp = [(0.0, 4), (self.train.ramp / 2, 2), (self.train.ramp, 1)] if self.train.ramp else [(0.0, 1)]
        begins = list(accumulate((phase.share for phase in self.phases), initial=0.0))[:-1]
        cuts = sorted({round(share * self.steps) for share in (*begins, *(share for share, _ in ramp))} | {self.steps})
        found = []
        for begin, stop in pairwise(cuts):
            number = max(n for n, share in enumerate(begins) if round(share * self.steps) <= begin)
            parts = [parts for share, parts in ramp if round(share * self.steps) <= begin][-1]
            rows = max(1, round(self.train.batch * self.phases[number].batch_share / parts))
            found.append(PlanSegment(begin, stop, rows, number))
        return found

    def step_plan(self, step: int) -> StepPlan:
        """One step of the plan."""
        here = next(stretch for stretch in self.segments if step < stretch.stop)
        before = [each for each in self.segments if each.phase == here.phase and each.begin < here.begin]
        first = (
            sum((each.stop - each.begin) * each.batch_size for each in before) + (step - here.begin) * here.batch_size
        )
        # A smaller batch wants a smaller rate: the noise of its gradient is larger.
        full = self.train.batch * self.phases[here.phase].batch_share
        rate = self.train.lr * self.lr_factor(step) * min(1.0, here.batch_size / full) ** 0.5
        return StepPlan(step=step, batch_size=here.batch_size, first_example=first, phase=here.phase, lr=rate)

    @property
    def average_from(self) -> int:
        """The first step whose weights may go into the average."""
        return self.steps - round(self.train.average * self.steps)

    def averages_step(self, step: int) -> bool:
        """Whether the weights after this step go into the average: a hundred at even distances, or all if fewer."""
        return (
            step >= self.average_from and (self.steps - 1 - step) % max(1, (self.steps - self.average_from) // 100) == 0
        )

    def steps_for(self, rows: float) -> int:
        """How many steps of the first phase draw that many rows, with the shares of this plan."""
        drawn = sum(
            (each.stop - each.begin) * each.batch_size / self.phases[each.phase].batch_share for each in self.segments
        )
        return max(1, math.ceil(rows * self.steps / drawn))

    def seconds_from(self, costs: Mapping[tuple[int, int], float], begin: int) -> float:
        """From step `begin` to the end, if a step of some rows in some phase costs so many."""
        return sum(
            costs[each.batch_size, each.phase] * max(0, each.stop - max(begin, each.begin)) for each in self.segments
        )

    def describe(self) -> str:
        """In words, whatever is not the same from the first step to the last."""
        parts = [f"{each.batch_size} rows from step {each.begin}" for each in self.segments]
        parts = parts if len(parts) > 1 else []
        if self.train.schedule == "trapezoid":
            parts.append(f"cool-down from step {self.steps - round(self.train.cooldown * self.steps)}")
        if self.train.average:
            parts.append(f"average from step {self.average_from}")
        return "".join(f", {part}" for part in parts)

    def lr_factor(self, step: int) -> float:
        """The share of the full rate at a step."""
        warmup = round(self.train.warmup * self.steps) if self.train.warmup < 1 else round(self.train.warmup)
        return lr_at(
            step,
            self.steps,
            schedule=self.train.schedule,
            warmup=min(warmup, self.steps - 1),
            cooldown=round(self.train.cooldown * self.steps),
        )

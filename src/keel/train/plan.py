"""How a run is to go: its settings, and the plan of steps that they come to."""

import os
from dataclasses import dataclass
from typing import Literal

from keel.errors import UsageError
from keel.train.optimizers import Schedule, rate_share
from keel.train.parallel import Parallel


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long, how fast and with what care to train. One of steps, epochs and minutes is set."""

    steps: int = 0
    """Updates in all."""
    epochs: float = 0.0
    """Times through the data."""
    minutes: float = 0.0
    """Wall-clock time; becomes a plan of steps after the first measured ones."""
    batch: int = 32
    """Rows in one update, over all devices and micro-batches."""
    accumulate: int = 1
    """Micro-batches that a device cuts its rows into, to save memory."""
    lr: float = 1e-4
    """The full learning rate."""
    schedule: Schedule = "linear"
    """How the rate moves after the warm-up."""
    warmup: float = 0.1
    """Steps over which the rate rises; below 1, that share of all steps."""
    cooldown: float = 0.2
    """Share of the steps over which a trapezoid's rate falls."""
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
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the products; weights and sums stay fp32."""
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
    FREE = ("evaluate_every", "checkpoint_every", "checkpoint_minutes", "keep", "log_every")
    """What may change when a run is taken up again."""

    def __post_init__(self) -> None:
        lengths = (self.steps, self.epochs, self.minutes)
        if sum(length > 0 for length in lengths) != 1 or min(lengths) < 0:
            raise UsageError("say how long to train by one of --steps, --epochs and --minutes, above 0")
        for name in ("batch", "accumulate", "lr", "epsilon", "checkpoint_minutes", "log_every", "keep"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "clip", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be below 0, as {getattr(self, name)} is")
        for name in ("beta1", "beta2", "cooldown"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        most = 4 * (os.cpu_count() or 1)
        if not 0 <= self.threads <= most:
            raise UsageError(f"threads must lie between 0 and {most} on this machine, not at {self.threads}")
        if self.accumulate > self.batch:
            raise UsageError(f"accumulate ({self.accumulate}) cannot be more than batch ({self.batch}) rows")


@dataclass(frozen=True)
class Plan:
    """The steps to go, stored with every checkpoint: the rate is a pure function of it."""

    steps: int

    def rate(self, step: int, train: Train) -> float:
        warmup = round(train.warmup * self.steps) if train.warmup < 1 else round(train.warmup)
        return train.lr * rate_share(
            step,
            self.steps,
            schedule=train.schedule,
            warmup=min(warmup, self.steps - 1),
            cooldown=round(train.cooldown * self.steps),
        )

"""Training settings, and the plan of steps derived from them."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Literal

from keel.config import Count, Ge, Gt, Le, Lt, Validated
from keel.errors import UsageError
from keel.training.counter_rng import CounterRng
from keel.training.distributed import Parallel
from keel.training.objective import Phase

Precision = Literal["auto", "fp32", "bf16"]
Schedule = Literal["linear", "cosine", "constant", "trapezoid", "slanted", "inverse_sqrt"]
SLANT = 32
"""Ratio of the peak learning rate to the smallest one of the slanted triangular schedule."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]

MAX_LENGTH = 1_000_000_000
"""Upper bound of steps, epochs or minutes: their product with the batch size must fit into an int64."""


@dataclass(frozen=True, kw_only=True)
class Train(Validated):
    """Training settings: length (one of steps, epochs, minutes), batch, optimizer, schedule, checkpoints."""

    steps: int = 0
    """Number of optimizer steps."""
    epochs: float = 0.0
    """Passes over the training data."""
    minutes: float = 0.0
    """Wall-clock budget; converted into a number of steps after timing a few of them."""
    batch: Count = 32
    """Global batch size: examples per step, over all devices and micro-batches."""
    ramp: Fraction = 0.0
    """Batch size warm-up: share of the steps over which the batch grows from 1/4 to 1/2 to its full size."""
    accumulate: Count = 1
    """Gradient accumulation: micro-batches per step and device, to save memory."""
    optimizer: Literal["adamw", "muon", "own"] = "adamw"
    """adamw; muon (Muon for the matrices inside the blocks, AdamW for the rest); own (the
    custom updates of word2vec, GloVe, fastText and count-based systems)."""
    lr: Positive = 1e-4
    """Peak learning rate."""
    schedule: Schedule = "linear"
    """Learning rate schedule after the warm-up."""
    warmup: NonNegative = 0.1
    """Warm-up: number of steps, or share of the steps if below 1."""
    cooldown: Fraction = 0.2
    """Cool-down of the trapezoid schedule: share of the steps over which the learning rate decays to 0."""
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """Layer-wise learning rate decay: each block has the learning rate of the block above times this factor; the head
    has the full one, embeddings the smallest unless they are tied to the softmax."""
    unfreeze: Literal["none", "gradual"] = "none"
    """gradual: gradual unfreezing (ULMFiT): the head is trained first, then one more block per epoch from the top;
    embeddings last unless they are tied to the softmax."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of weight matrices."""
    beta1: Fraction = 0.9
    """AdamW beta1 (first-moment decay)."""
    beta2: Fraction = 0.999
    """AdamW beta2 (second-moment decay)."""
    epsilon: Positive = 1e-6
    """AdamW epsilon (added to the denominator)."""
    clip: NonNegative = 1.0
    """Gradient clipping: maximum gradient norm; 0 turns it off."""
    average: Fraction = 0.0
    """Weight averaging: share of the last steps whose weights are averaged into the result."""
    final_weights: Literal["last", "best"] = "last"
    """Final weights: those of the last step, or of the best evaluation on the validation set (best); fine-tuning then
    evaluates after every epoch."""
    precision: Precision = "auto"
    """Mixed precision: dtype of matrix products; weights and reductions stay fp32. auto: bf16 where the GPU supports
    it."""
    compile: bool = False
    """torch.compile every block."""
    parallel: Parallel = "ddp"
    """Data parallelism under torchrun: ddp (replicated weights) or fsdp (sharded weights)."""
    device: str = "auto"
    """Device: cpu, cuda, cuda:1; auto: the GPU if there is one."""
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads; 0: PyTorch's default, which OMP_NUM_THREADS sets."""
    seed: int = 0
    """Random seed: the same seed gives the same run; for word2vec, GloVe and fastText with --threads 1 only, since
    several threads are nondeterministic (Hogwild)."""
    evaluate_every: Annotated[int, Ge(0)] = 1000
    """Steps between evaluations; 0: only before the first and after the last step."""
    checkpoint_every: Annotated[int, Ge(0)] = 1000
    """Steps between checkpoints; 0: only every checkpoint_minutes."""
    checkpoint_minutes: Positive = 5.0
    """Maximum minutes between checkpoints."""
    keep: Count = 2
    """Number of recent checkpoints to keep, in addition to the best one."""
    log_every: Count = 10
    """Steps between log entries."""

    LENGTHS = ("steps", "epochs", "minutes")
    """Settings of the length of a run; exactly one is set when it starts."""
    GRADIENT_SETTINGS = (
        *("weight_decay", "beta1", "beta2", "epsilon", "clip", "precision", "compile", "parallel", "accumulate"),
        "final_weights",
    )
    """Settings without a meaning for systems with their own updates."""
    INHERITED = (
        *(*LENGTHS, "batch", "optimizer", "lr", "schedule", "warmup", "cooldown"),
        *("weight_decay", "beta1", "beta2", "epsilon", "clip"),
    )
    """Settings of a run that continued pre-training takes over."""
    ANY_TRAINING = ("device", "threads", "seed", "precision")
    """Settings, beside the changeable ones, that do not say how gradients update the weights."""
    LATER = (("final_weights", "last"),)
    """Settings that checkpoints of earlier versions lack, with the values of that time."""
    CHANGEABLE = ("evaluate_every", "checkpoint_every", "checkpoint_minutes", "keep", "log_every")
    """Settings that may change when a run is resumed."""

    def __post_init__(self) -> None:
        if self.steps or self.epochs or self.minutes:  # else it is the system's default
            self.check_length()
        if self.unfreeze == "gradual" and self.average:
            raise UsageError("--train.average needs all weights trained in every step, unlike --unfreeze: drop one")
        max_threads = 4 * (os.cpu_count() or 1)
        if self.threads > max_threads:
            raise UsageError(f"threads must be {max_threads} or less on this machine, not {self.threads}")
        if self.accumulate > self.batch:
            what = f"--train.accumulate {self.accumulate} is more than the examples of --batch {self.batch}"
            raise UsageError(f"{what}: lower it, or use a larger batch")

    def check_length(self) -> None:
        """Refuse a run without a length, with several, or without an end."""
        lengths = (self.steps, self.epochs, self.minutes)
        flags = " and ".join(f"--{name} {value:g}" for name, value in zip(self.LENGTHS, lengths, strict=True) if value)
        if sum(length > 0 for length in lengths) != 1 or min(lengths) < 0:
            given = f", not {flags}" if flags else ""
            raise UsageError(f"set the length of the run by one of --steps, --epochs and --minutes, above 0{given}")
        if max(lengths) > MAX_LENGTH:
            raise UsageError(f"{flags} would never end: give {MAX_LENGTH:,} or less")


@dataclass(frozen=True)
class StepPlan:
    """One step of a plan: everything about it that does not depend on the data."""

    step: int
    batch_size: int
    """Examples of this step, over all devices and micro-batches."""
    first_example: int
    """Examples of earlier steps of the same phase."""
    phase: int
    lr: float
    steps: int
    """Steps of the plan."""

    def rng(self, seed: int) -> CounterRng:
        """Random numbers of this step."""
        return CounterRng(
            seed=seed,
            step=self.step,
            first_example=self.first_example,
            batch_size=self.batch_size,
            phase=self.phase,
            steps=self.steps,
        )


@dataclass(frozen=True)
class PlanSegment:
    """A range of steps with the same batch size and phase."""

    begin: int
    stop: int
    batch_size: int
    phase: int


@dataclass(frozen=True)
class Plan:
    """The steps of a run; a checkpoint stores only their number, as all else follows from it and the settings."""

    steps: int
    train: Train
    phases: Sequence[Phase] = (Phase(),)

    @cached_property
    def segments(self) -> list[PlanSegment]:
        """The plan, cut wherever the batch size or the phase changes."""
        ramp = [(0.0, 4), (self.train.ramp / 2, 2), (self.train.ramp, 1)] if self.train.ramp else [(0.0, 1)]
        begins = list(accumulate((phase.share for phase in self.phases), initial=0.0))[:-1]
        cuts = sorted({round(share * self.steps) for share in (*begins, *(share for share, _ in ramp))} | {self.steps})
        segments = []
        for begin, stop in pairwise(cuts):
            phase = max(n for n, share in enumerate(begins) if round(share * self.steps) <= begin)
            divisor = [divisor for share, divisor in ramp if round(share * self.steps) <= begin][-1]
            batch_size = max(1, round(self.train.batch * self.phases[phase].batch_share / divisor))
            segments.append(PlanSegment(begin, stop, batch_size, phase))
        return segments

    def step_plan(self, step: int) -> StepPlan:
        here = next(segment for segment in self.segments if step < segment.stop)
        before = [each for each in self.segments if each.phase == here.phase and each.begin < here.begin]
        first = sum((each.stop - each.begin) * each.batch_size for each in before)
        first += (step - here.begin) * here.batch_size
        # A smaller batch needs a smaller learning rate, as its gradient is noisier.
        full = self.train.batch * self.phases[here.phase].batch_share
        lr = self.train.lr * self.lr_factor(step) * min(1.0, here.batch_size / full) ** 0.5
        return StepPlan(
            step=step, batch_size=here.batch_size, first_example=first, phase=here.phase, lr=lr, steps=self.steps
        )

    @property
    def average_from(self) -> int:
        """First step whose weights may enter the average."""
        return self.steps - round(self.train.average * self.steps)

    def averages_step(self, step: int) -> bool:
        """Whether the weights after this step enter the average: 100 evenly spaced steps, or all if fewer."""
        every = max(1, (self.steps - self.average_from) // 100)
        return step >= self.average_from and (self.steps - 1 - step) % every == 0

    def examples_between(self, begin: int, stop: int) -> float:
        """Examples (of the first phase's length) of the steps from `begin` to before `stop`."""
        return sum(
            max(0, min(stop, each.stop) - max(begin, each.begin))
            * each.batch_size
            / self.phases[each.phase].batch_share
            for each in self.segments
        )

    def steps_for(self, examples: float) -> int:
        """Number of steps that process this many examples (of the first phase's length) with this plan's shares."""
        return max(1, math.ceil(examples * self.steps / self.examples_between(0, self.steps)))

    def seconds_from(self, costs: Mapping[tuple[int, int], float], begin: int) -> float:
        """Seconds from step `begin` to the end, given the seconds of a step by (batch size, phase)."""
        return sum(
            costs[each.batch_size, each.phase] * max(0, each.stop - max(begin, each.begin)) for each in self.segments
        )

    def describe(self) -> str:
        """What changes in the course of the run, for a log line."""
        parts = [f"batch size {each.batch_size} from step {each.begin}" for each in self.segments]
        parts = parts if len(parts) > 1 else []
        if self.train.schedule == "trapezoid":
            parts.append(f"cool-down from step {self.steps - round(self.train.cooldown * self.steps)}")
        if self.train.average:
            parts.append(f"weight average from step {self.average_from}")
        return "".join(f", {part}" for part in parts)

    def lr_factor(self, step: int) -> float:
        """Factor of the peak learning rate at a step: linear warm-up, then the schedule.

        linear and cosine decay to 0; inverse_sqrt decays as 1 / sqrt(step) (Vaswani et al.); trapezoid is constant,
        then decays linearly over the cool-down; slanted is the slanted triangle of Howard and Ruder,
        (1 + p (32 - 1)) / 32 with p from 0 to 1 over the warm-up and back to 0.
        """
        schedule = self.train.schedule
        warmup = round(self.train.warmup * self.steps if self.train.warmup < 1 else self.train.warmup)
        warmup = min(warmup, self.steps - 1)
        progress = (step - warmup) / max(1, self.steps - warmup)
        if schedule == "slanted":
            p = step / warmup if step < warmup else 1 - progress
            return (1 + max(0.0, p) * (SLANT - 1)) / SLANT
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "inverse_sqrt":
            return (max(1, warmup) / (step + 1)) ** 0.5
        if schedule == "linear":
            return max(0.0, 1 - progress)
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        if schedule == "trapezoid":
            return max(0.0, min(1.0, (self.steps - step) / max(1, round(self.train.cooldown * self.steps))))
        return 1.0

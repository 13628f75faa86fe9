"""One training step: batch, gradients of the mean losses, optimizer step."""

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from keel.config import cache_folder
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, note, pluralize
from keel.training.batch_loading import add_to_sums, batch_source
from keel.training.carried_state import CarriedState
from keel.training.counter_rng import derive_seed
from keel.training.cuda_graphs import LossesAndNorm, OutOfMemoryError, StepGraphs, error_tail, is_compiler_error
from keel.training.distributed import World, copy_to_cpu, defer_gradient_sync, gather_tensor, is_sharded
from keel.training.objective import CustomUpdate, Objective, Tensors, parts_of
from keel.training.optimizers import make_optimizer, set_lr
from keel.training.parameter_groups import ParameterGroups
from keel.training.plan import Precision, StepPlan, Train

States = Sequence[Tensors | None]
"""Recurrent state of each micro-batch."""
Counts = Mapping[str, Tensor]
"""Number of predictions of each loss, over all processes."""


@dataclass(frozen=True)
class StepResult:
    """Result of one step: this process's share of each mean loss, the global counts, the gradient norm."""

    losses: dict[str, Tensor]
    counts: dict[str, Tensor]
    norm: Tensor | None


class Stepper:
    """Runs the steps of a plan, with gradient accumulation, mixed precision, CUDA graphs and data parallelism."""

    def __init__(self, objective: Objective, data: Any, train: Train, world: World, on_event: OnEvent):
        if train.optimizer == "own":
            raise UsageError("this system has no custom updates: use --train.optimizer adamw or muon")
        self.objective, self.train, self.world, self.on_event = objective, train, world, on_event
        self.parts = train.accumulate
        """Micro-batches per step: more than `train.accumulate` after running out of memory."""
        # A persistent compile cache; many machines clear torch's default one.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
        self.compiled = train.compile
        if train.compile:
            for module in chain.from_iterable(map(parts_of, objective.blocks())):
                module.compile()
        if train.unfreeze == "gradual" and world.size > 1 and train.parallel == "fsdp":
            raise UsageError("fsdp cannot unfreeze sharded weights: use --train.parallel ddp with --unfreeze")
        self.wrapped = world.wrap(objective, train.parallel)
        self.optimizer = make_optimizer(objective, train)
        self.parameter_groups = ParameterGroups(objective, data, train)
        self.carried = CarriedState(objective, world)
        self.batches = batch_source(objective, data, train, world.device, on_event)
        self.threads, self.nondeterministic = torch.get_num_threads(), False
        self.graphs = StepGraphs(on_event) if world.device.type == "cuda" and world.size == 1 else None
        self._undo: list[tuple[Tensor, Tensor]] | None = None
        """Weights before the first dry run."""

    def train_step(self, step_plan: StepPlan, coming: Sequence[StepPlan] = (), dry: bool = False) -> StepResult:
        """One update; `coming`: the next steps, whose batches may be prefetched.

        It is retried with smaller micro-batches when out of memory, and eagerly if the compiler fails.
        """
        while True:
            try:
                return self._step(step_plan, coming, dry)
            except OutOfMemoryError:
                size = -(-step_plan.batch_size // (self.world.size * self.parts))
                what = f"out of GPU memory with a micro-batch of {pluralize(size, 'example')}"
                if self.world.size > 1 or size < 2:
                    raise KeelError(f"{what}: lower --batch or raise --train.accumulate") from None
                self.parts *= 2
                note(self.on_event, f"{what}: now {self.parts} micro-batches of {-(-size // 2)}, with the same result")
            except Exception as error:
                if not (self.compiled and is_compiler_error(error)):
                    raise
                self.compiled = False
                for module in chain.from_iterable(map(parts_of, self.objective.blocks())):
                    module._compiled_call_impl = None
                note(self.on_event, f"blocks cannot be compiled here and run eagerly ({error_tail(error)})")
            self.optimizer.zero_grad(set_to_none=True)
            if self.graphs:
                self.graphs.clear()
            if self.world.device.type == "cuda":
                torch.cuda.empty_cache()

    def dry_run(self, step_plan: StepPlan) -> StepResult:
        """A step with a learning rate of 0, for timing: the same work, graphs included; call `undo_dry_runs` after."""
        if self._undo is None:
            tensors = [_local(each) for each in (*self.objective.parameters(), *self.objective.buffers())]
            self._undo = [(tensor, copy_to_cpu(tensor)) for tensor in tensors]
        return self.train_step(replace(step_plan, lr=0.0), dry=True)

    def undo_dry_runs(self) -> None:
        """Restore weights, optimizer state (no step was taken before) and recurrent state after dry runs."""
        with torch.no_grad():
            for tensor, saved in self._undo or ():
                tensor.copy_(saved)
            for state in self.optimizer.state.values():
                for value in state.values():
                    _local(value).zero_()
        self._undo = None
        self.carried.last = None

    def _step(self, step_plan: StepPlan, coming: Sequence[StepPlan], dry: bool) -> StepResult:
        groups = self.parameter_groups
        if groups.set_trainable(None if dry else step_plan):  # a dry run times the most expensive steps
            if self.graphs:
                self.graphs.clear()
            self.wrapped = self.world.wrap(self.objective, self.train.parallel)  # DDP waits for all trainable weights
            if not dry:
                trained = f"{groups.trainable} of {len(groups)} layer groups are trained"
                note(self.on_event, f"step {step_plan.step}: {trained}")
        batches, counts = self._batches(step_plan, coming)
        set_lr(self.optimizer, step_plan.lr)
        states = self.carried.parts(step_plan, self._parts(step_plan)) or [None] * len(batches)
        seed = derive_seed(self.train.seed, step_plan.step, self.world.rank)
        work = partial(self._update, states)
        run = partial(self.graphs.run, update=work) if self.graphs else work
        losses, norm = run(batches, counts, seed)
        return StepResult(losses, counts, norm)

    def _update(self, states: States, batches: Sequence[Tensors], counts: Counts, seed: int | None) -> LossesAndNorm:
        self.optimizer.zero_grad(set_to_none=True)  # of a failed attempt
        if seed is not None:
            torch.manual_seed(seed)  # for dropout
        try:
            losses, after = self._gradients(batches, states, counts)
        except torch.OutOfMemoryError as error:  # no weight has changed yet, unlike in optimizer.step
            raise OutOfMemoryError from error
        norm = gather_tensor(nn.utils.clip_grad_norm_(self.objective.parameters(), self.train.clip or math.inf))
        self.optimizer.step()
        for state, new in zip(states, after, strict=True):
            if state is not None:
                state.copy_from(new)
        self.optimizer.zero_grad(set_to_none=True)
        return losses, norm

    def _batches(self, step_plan: StepPlan, coming: Sequence[StepPlan]) -> tuple[list[Tensors], dict[str, Tensor]]:
        """This process's micro-batches of one step, and the global counts of predictions."""
        parts = self._parts(step_plan)
        batches, counts = self.batches.get(step_plan, parts, [(other, self._parts(other)) for other in coming])
        names = sorted(counts)
        totals = self.world.sum_over_processes(torch.stack([counts[name].double() for name in names]))
        return batches, dict(zip(names, totals, strict=True))

    def _parts(self, step_plan: StepPlan) -> list[range]:
        parts = self.world.micro_batches(step_plan.batch_size, self.parts)
        return [part for part in parts if part] if self.world.size == 1 else parts

    def _gradients(
        self, batches: Sequence[Tensors], states: States, counts: Counts
    ) -> tuple[dict[str, Tensor], list[Tensors | None]]:
        """Backward pass of the mean losses; returns this process's share of each mean, and the new states."""
        shares: dict[str, Tensor] = {}
        after: list[Tensors | None] = []
        for number, (batch, state) in enumerate(zip(batches, states, strict=True)):
            with defer_gradient_sync(self.wrapped, number < len(batches) - 1):
                with autocast(self.train.precision, self.world.device):
                    losses, new = self.wrapped(batch, state)
                means = {name: loss / counts[name].clamp(min=1).to(loss.dtype) for name, loss in losses.items()}
                # DDP averages gradients over processes, so each share of the mean is multiplied by their number.
                (sum(means.values(), start=torch.zeros((), device=self.world.device)) * self.world.size).backward()
            add_to_sums(shares, {name: mean.detach() for name, mean in means.items()})
            after.append(new)
        return shares, after


class CustomUpdateStepper:
    """Runs the steps of an objective with its own updates: no gradients, no optimizer, one process on a CPU."""

    def __init__(self, objective: CustomUpdate, data: Any, train: Train, world: World, on_event: OnEvent):
        if not objective.any_device and (world.size > 1 or world.device.type != "cpu"):
            remedy = "use --device cpu and --threads, no torchrun"
            raise UsageError(f"this system trains on the CPU in one process: {remedy}")
        if train.optimizer != "own":
            raise UsageError("this system has custom updates and no optimizer: leave out --train.optimizer")
        plain = Train(steps=1)
        for name in Train.GRADIENT_SETTINGS:
            encodes = objective.any_device and name == "precision"  # that of the encoder
            if getattr(train, name) != getattr(plain, name) and not encodes:
                raise UsageError(f"this system has custom updates, without {name}: leave out --train.{name}")
        if train.layer_decay != 1 or train.unfreeze != "none":
            raise UsageError("this system has custom updates: leave out --layer-decay and --unfreeze")
        self.objective, self.data, self.train = objective, data, train
        self.threads = train.threads or torch.get_num_threads()
        self.parts = 1
        self.carried = CarriedState(objective, world)  # empty
        self.parameter_groups = ParameterGroups(objective, data, train)  # all trained
        self.trial: CustomUpdate | None = None
        """Copy for dry runs; its one-time statistics are not part of a step's time."""
        self.optimizer = _NoOptimizer()
        self.nondeterministic = self.threads > 1 and objective.nondeterministic
        if self.nondeterministic:
            what = f"{self.threads} threads update the same vectors (Hogwild), which is nondeterministic"
            note(on_event, f"{what}: use --threads 1 for reproducible results")

    def train_step(self, step_plan: StepPlan, coming: Sequence[StepPlan] = ()) -> StepResult:
        self.trial = None
        return self._update(self.objective, step_plan)

    def dry_run(self, step_plan: StepPlan) -> StepResult:
        self.trial = self.trial or deepcopy(self.objective)
        return self._update(self.trial, step_plan)

    def undo_dry_runs(self) -> None:
        self.trial = None

    def _update(self, objective: CustomUpdate, step_plan: StepPlan) -> StepResult:
        rng = step_plan.rng(self.train.seed)
        sums, counts = objective.update(self.data, rng, range(step_plan.batch_size), step_plan.lr, self.threads)
        means = {name: torch.tensor(sums[name] / max(1.0, counts[name]), dtype=torch.float64) for name in sums}
        return StepResult(means, {name: torch.tensor(float(count)) for name, count in counts.items()}, None)


class _NoOptimizer(torch.optim.Optimizer):
    """Optimizer without parameters; super().__init__ would import the compiler, which takes memory."""

    def __init__(self) -> None:
        self.state, self.param_groups = defaultdict(dict), []


def stepper_of(
    objective: Objective, data: Any, train: Train, world: World, on_event: OnEvent
) -> Stepper | CustomUpdateStepper:
    """The stepper of this objective."""
    kind = CustomUpdateStepper if isinstance(objective, CustomUpdate) else Stepper
    return kind(objective, data, train, world, on_event)  # pyright: ignore[reportArgumentType]


def _local(tensor: Tensor) -> Tensor:
    """The local shard of a sharded tensor; it shares its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor.detach()  # pyright: ignore[reportAttributeAccessIssue]


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """fp32 or bf16: "auto" resolved for this device; refuses what the device does not support."""
    supported = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        return "bf16" if device.type == "cuda" and supported else "fp32"
    if precision == "bf16" and not supported:
        raise UsageError(f"{torch.cuda.get_device_name(device)} does not support bf16: use --train.precision fp32")
    return precision


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Mixed precision context: bf16 matrix products where the setting resolves to it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=resolve_precision(precision, device) == "bf16")

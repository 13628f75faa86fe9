"""One update of the network: rows drawn, gradients of mean losses, a step of the optimizer."""

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
from keel.events import OnEvent, note
from keel.training.batch_loading import batch_source
from keel.training.carried_state import CarriedState
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.cuda_graphs import Found, StepGraphs
from keel.training.device_errors import OutOfMemoryError, error_tail, is_compiler_error
from keel.training.distributed import World, defer_gradient_sync, gather_tensor
from keel.training.objective import CustomUpdate, Objective, Tensors, parts_of
from keel.training.optimizers import make_optimizer, set_lr
from keel.training.parameter_groups import ParameterGroups
from keel.training.plan import Precision, StepPlan, Train


@dataclass(frozen=True)
class StepResult:
    """What one step found: this process's share of each mean loss, the global counts, the gradient's norm."""

    losses: dict[str, Tensor]
    counts: dict[str, Tensor]
    norm: Tensor | None


class Stepper:
    """Takes the steps of a plan; which kernels, graphs and threads that needs stays in here."""

    def __init__(self, objective: Objective, data: Any, train: Train, world: World, on_event: OnEvent):
        if train.optimizer == "own":
            raise UsageError("this system has no updates of its own: use --train.optimizer adamw or muon")
        self.objective, self.train, self.world, self.on_event = objective, train, world, on_event
        self.parts = train.accumulate
        """Micro-batches that a step is cut into: more than asked for once memory did not suffice."""
        # What was compiled once need not be again; torch's own place is emptied by many machines.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
        self.compiled = train.compile
        if train.compile:
            for module in chain.from_iterable(map(parts_of, objective.blocks())):
                module.compile()
        if train.unfreeze == "gradual" and world.size > 1 and train.parallel == "fsdp":
            raise UsageError(
                "shards cannot be frozen and unfrozen on the way: use --train.parallel ddp with --unfreeze"
            )
        self.wrapped = world.wrap(objective, train.parallel)
        self.optimizer = make_optimizer(objective, train)
        self.levels = ParameterGroups(objective, data, train)
        self.carried = CarriedState(objective, world)
        self.batches = batch_source(objective, data, train, world.device, on_event)
        self.graphs = StepGraphs(on_event) if world.device.type == "cuda" and world.size == 1 else None

    def train_step(self, place: StepPlan, coming: Sequence[StepPlan] = ()) -> StepResult:
        """One update; `coming` are the places after this one, whose rows may be drawn meanwhile."""
        taken = self._careful(place, coming, update=True)
        return replace(taken, norm=None if taken.norm is None else gather_tensor(taken.norm))

    def dry_run(self, place: StepPlan) -> StepResult:
        """The work of a step without its update: nothing has changed afterwards."""
        return self._careful(place, (), update=False)

    def _careful(self, place: StepPlan, coming: Sequence[StepPlan], update: bool) -> StepResult:
        """A step, tried again in smaller parts if memory does not suffice, or without the compiler if that fails."""
        while True:
            try:
                return self._step(place, coming, update)
            except OutOfMemoryError:
                rows = -(-place.batch_size // (self.world.size * self.parts))
                if self.world.size > 1 or rows < 2:
                    remedy = "lower --batch, or cut it into parts with --train.accumulate"
                    raise KeelError(f"{rows} rows do not fit into the memory of the GPU: {remedy}") from None
                self.parts *= 2
                what = f"{rows} rows at once do not fit into the memory of the GPU"
                now = f"a step is {self.parts} parts of {-(-rows // 2)} now, which sum up to the same"
                note(self.on_event, f"{what}: {now}")
            except Exception as error:
                if not (self.compiled and is_compiler_error(error)):
                    raise
                self.compiled = False
                for module in chain.from_iterable(map(parts_of, self.objective.blocks())):
                    module._compiled_call_impl = None
                note(self.on_event, f"the blocks cannot be compiled here and run as they are ({error_tail(error)})")
            self.optimizer.zero_grad(set_to_none=True)
            if self.graphs:
                self.graphs.clear()
            if self.world.device.type == "cuda":
                torch.cuda.empty_cache()

    def _step(self, place: StepPlan, coming: Sequence[StepPlan], update: bool) -> StepResult:
        if self.levels.set(place if update else None):  # a rehearsal tries the steps that cost most
            if self.graphs:
                self.graphs.clear()
            self.wrapped = self.world.wrap(self.objective, self.train.parallel)  # it waits for all that learn
            if update:
                note(self.on_event, f"{self.levels.learning} of {len(self.levels)} levels learn from step {place.step}")
        batches, counts = self._draw(place, coming)
        set_lr(self.optimizer, place.lr)
        states = self.carried.parts(place, self._parts(place)) or [None] * len(batches)
        seed = derive_seed(self.train.seed, place.step, self.world.rank)
        work = partial(self._update, states, update=update)
        found = self.graphs.run(batches, counts, seed, work) if self.graphs and update else work(batches, counts, seed)
        return StepResult(found[0], counts, found[1])

    def _update(
        self,
        states: Sequence[Tensors | None],
        batches: Sequence[Tensors],
        counts: Mapping[str, Tensor],
        seed: int | None,
        *,
        update: bool,
    ) -> Found:
        self.optimizer.zero_grad(set_to_none=True)  # of a try that was broken off
        if seed is not None:
            torch.manual_seed(seed)  # for dropout alone
        try:
            losses, after = self._gradients(batches, states, counts)
        except torch.OutOfMemoryError as error:  # nothing has changed yet, unlike in the optimizer's own step
            raise OutOfMemoryError from error
        norm = None
        if update:
            norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.train.clip or math.inf)
            self.optimizer.step()
            for state, new in zip(states, after, strict=True):
                if state is not None:
                    state.copy_from(new)
        self.optimizer.zero_grad(set_to_none=True)
        return losses, norm

    def _draw(self, place: StepPlan, coming: Sequence[StepPlan]) -> tuple[list[Tensors], dict[str, Tensor]]:
        """This process's micro-batches of one step, and the global counts of what they predict."""
        parts = self._parts(place)
        batches, found = self.batches.get(place, parts, [(other, self._parts(other)) for other in coming])
        names = sorted(found)
        totals = self.world.sum_over_processes(torch.stack([found[name].double() for name in names]))
        return batches, dict(zip(names, totals, strict=True))

    def _parts(self, place: StepPlan) -> list[range]:
        parts = [self.world.part(range(place.batch_size), self.parts, number) for number in range(self.parts)]
        return [part for part in parts if part] if self.world.size == 1 else parts

    def _gradients(
        self, batches: Sequence[Tensors], states: Sequence[Tensors | None], counts: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[Tensors | None]]:
        """Gradients of the mean losses; gives this process's share of each mean, and each batch's state to hand on."""
        shares: dict[str, Tensor] = {}
        after: list[Tensors | None] = []
        for number, (batch, state) in enumerate(zip(batches, states, strict=True)):
            with defer_gradient_sync(self.wrapped, number < len(batches) - 1):
                with autocast(self.train.precision, self.world.device):
                    losses, new = self.wrapped(batch, state)
                means = {name: loss / counts[name].clamp(min=1).to(loss.dtype) for name, loss in losses.items()}
                # Processes average their gradients, so each one brings its share of the mean times their number.
                (sum(means.values(), start=torch.zeros((), device=self.world.device)) * self.world.size).backward()
            add_to_sums(shares, {name: mean.detach() for name, mean in means.items()})
            after.append(new)
        return shares, after


class CustomUpdateStepper:
    """Takes the steps of an objective that makes its own updates: no gradients, no optimizer, one process on a CPU."""

    def __init__(self, objective: CustomUpdate, data: Any, train: Train, world: World, on_event: OnEvent):
        if world.size > 1 or world.device.type != "cpu":
            raise UsageError(
                "this system learns on the CPU of one machine, with --threads: use --device cpu, no torchrun"
            )
        if train.optimizer != "own":
            raise UsageError("this system makes its own updates, without an optimizer: leave out --train.optimizer")
        plain = Train(steps=1)
        for name in Train.GRADIENT_SETTINGS:
            if getattr(train, name) != getattr(plain, name):
                raise UsageError(f"this system makes its own updates, which know no {name}: leave out --train.{name}")
        if train.layer_decay != 1 or train.unfreeze != "none":
            raise UsageError("this system learns by updates of its own, all at once: no --layer-decay, no --unfreeze")
        self.objective, self.data, self.train = objective, data, train
        self.threads = train.threads or os.cpu_count() or 1
        self.parts = 1
        self.carried = CarriedState(objective, world)  # nothing
        self.levels = ParameterGroups(objective, data, train)  # all learn
        self.trial: CustomUpdate | None = None
        """A copy to rehearse with: what it counts once is no part of a step."""
        self.optimizer = _Forgetful()
        if self.threads > 1 and objective.nondeterministic:
            note(on_event, f"{self.threads} threads write into the same vectors: for equal bits, use --threads 1")

    def train_step(self, place: StepPlan, coming: Sequence[StepPlan] = ()) -> StepResult:
        self.trial = None
        return self._taken(self.objective, place)

    def dry_run(self, place: StepPlan) -> StepResult:
        self.trial = self.trial or deepcopy(self.objective)
        return self._taken(self.trial, place)

    def _taken(self, objective: CustomUpdate, place: StepPlan) -> StepResult:
        draw = CounterRng(
            seed=self.train.seed,
            step=place.step,
            first_example=place.first_example,
            batch_size=place.batch_size,
            phase=place.phase,
        )
        sums, counts = objective.update(self.data, draw, range(place.batch_size), place.lr, self.threads)
        means = {
            name: torch.tensor(value / max(1.0, counts[name]), dtype=torch.float64) for name, value in sums.items()
        }
        return StepResult(means, {name: torch.tensor(float(count)) for name, count in counts.items()}, None)


class _Forgetful(torch.optim.Optimizer):
    """Has nothing to remember. It is made without torch's help, which would bring the compiler and its memory."""

    def __init__(self) -> None:
        self.state, self.param_groups = defaultdict(dict), []


def stepper_of(
    objective: Objective, data: Any, train: Train, world: World, on_event: OnEvent
) -> Stepper | CustomUpdateStepper:
    """What takes the steps of this objective."""
    kind = CustomUpdateStepper if isinstance(objective, CustomUpdate) else Stepper
    return kind(objective, data, train, world, on_event)  # pyright: ignore[reportArgumentType]


def add_to_sums(totals: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Add each value to the total of its name."""
    for name, value in values.items():
        totals[name] = totals[name] + value if name in totals else value


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """fp32 or bf16: what "auto" comes to on this device; what the device lacks is refused."""
    has = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        return "bf16" if device.type == "cuda" and has else "fp32"
    if precision == "bf16" and not has:
        raise UsageError(f"{torch.cuda.get_device_name(device)} has no bf16: use --train.precision fp32")
    return precision


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Products in the precision that the setting comes to."""
    return torch.autocast(device.type, torch.bfloat16, enabled=resolve_precision(precision, device) == "bf16")

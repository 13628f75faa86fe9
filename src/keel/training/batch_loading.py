"""Batches of a step: made on the CPU, on the GPU that holds the data, or by a prefetching thread."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from keel.events import OnEvent, note
from keel.training.counter_rng import CounterRng
from keel.training.cuda_graphs import error_tail, is_compiler_error
from keel.training.objective import Objective, Tensors
from keel.training.plan import StepPlan, Train

PREFETCH_STEPS = 2
"""Steps whose batches are prefetched where the tokens do not fit on the GPU."""
MAX_DATA_SHARE = 0.25
"""Share of the GPU's free memory that the dataset may take."""

MicroBatches = tuple[list[Tensors], dict[str, Tensor]]
"""Micro-batches, and the number of their predictions."""
Coming = tuple[StepPlan, Sequence[range]]
"""A later step, and the examples of each of its micro-batches."""


def add_to_sums(totals: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Add each value to the total of its name."""
    for name, value in values.items():
        totals[name] = totals[name] + value if name in totals else value


def batch_source(objective: Objective, data: Any, train: Train, device: torch.device, on_event: OnEvent) -> "Batches":
    """Choose the source of batches that keeps the device busy."""
    if device.type != "cuda" or not isinstance(data, Tensors):
        return CpuBatches(objective, data, train.seed, device)
    if objective.prefetched:
        return PrefetchedBatches(objective, data, train.seed, device)
    free, _ = torch.cuda.mem_get_info(device)
    if data.nbytes() <= MAX_DATA_SHARE * free:
        return GpuBatches(objective, data.to(device), train, on_event)
    what = f"{data.nbytes() / 2**30:.1f} GiB of tokens need too much GPU memory"
    note(on_event, f"{what}: they stay in main memory, with {PREFETCH_STEPS} batches prefetched")
    return PrefetchedBatches(objective, data, train.seed, device)


class CpuBatches:
    """Batches made on the CPU at each step."""

    def __init__(self, objective: Objective, data: Any, seed: int, device: torch.device):
        self.objective, self.data, self.seed, self.device = objective, data, seed, device

    def get(self, step_plan: StepPlan, parts: Sequence[range], coming: Sequence[Coming] = ()) -> MicroBatches:
        return _to_device(*self.make(step_plan, parts), self.device)

    def make(self, step_plan: StepPlan, parts: Sequence[range]) -> MicroBatches:
        """The micro-batches in main memory."""
        rng = step_plan.rng(self.seed)
        return _with_counts(self.objective, [self.objective.batch(self.data, rng, part) for part in parts])


class GpuBatches:
    """Batches made on the GPU that holds the data: a thousand small operations, compiled once per phase."""

    def __init__(self, objective: Objective, data: Tensors, train: Train, on_event: OnEvent):
        self.objective, self.data, self.train, self.on_event = objective, data, train, on_event
        self.compiled: dict[int, Callable[[Tensor], Tensors]] = {}

    def get(self, step_plan: StepPlan, parts: Sequence[range], coming: Sequence[Coming] = ()) -> MicroBatches:
        numbers = [step_plan.step, step_plan.first_example, step_plan.batch_size, step_plan.steps]
        numbers = torch.tensor(numbers).pin_memory()
        numbers = numbers.to(self.data.device, non_blocking=True)
        if step_plan.phase not in self.compiled:
            self.compiled[step_plan.phase] = self._compile(step_plan.phase, numbers)
        batch = self.compiled[step_plan.phase](numbers)
        # A smaller batch or a micro-batch is a prefix or slice: examples do not depend on later ones.
        return _with_counts(self.objective, [batch.slice_examples(part) for part in parts])

    def _compile(self, phase: int, numbers: Tensor) -> Callable[[Tensor], Tensors]:
        examples = range(max(1, round(self.train.batch * self.objective.phases()[phase].batch_share)))

        def make(numbers: Tensor) -> Tensors:
            rng = CounterRng(
                seed=self.train.seed,
                step=numbers[0],
                first_example=numbers[1],
                batch_size=numbers[2],
                phase=phase,
                steps=numbers[3],
            )
            return self.objective.batch(self.data, rng, examples)

        make(numbers)  # fills caches, which must not be filled inside the compiled function
        # Otherwise the compiler folds 64-bit constants into 32-bit index arithmetic.
        options: dict[str, Any] = {"constant_and_index_propagation": False}
        compiled = torch.compile(make, dynamic=False, fullgraph=True, options=options)
        try:
            compiled(numbers)
        except Exception as error:
            if not is_compiler_error(error):
                raise
            note(self.on_event, f"batches cannot be compiled here and are made eagerly, slower ({error_tail(error)})")
            return make
        return compiled


class PrefetchedBatches(CpuBatches):
    """Batches made on the CPU by a thread, some steps ahead of the GPU."""

    def __init__(self, objective: Objective, data: Any, seed: int, device: torch.device):
        super().__init__(objective, data, seed, device)
        self.pool = ThreadPoolExecutor(1, "keel-batches")
        self.pending: dict[tuple[StepPlan, tuple[range, ...]], Future[MicroBatches]] = {}

    def get(self, step_plan: StepPlan, parts: Sequence[range], coming: Sequence[Coming] = ()) -> MicroBatches:
        wanted = [(step, tuple(ranges)) for step, ranges in ((step_plan, parts), *coming)]
        self.pending = {key: self.pending.get(key) or self.pool.submit(self.make, *key) for key in wanted}
        return _to_device(*self.pending.pop(wanted[0]).result(), self.device)


Batches = CpuBatches | GpuBatches
"""Source of the micro-batches of a step."""


def _with_counts(objective: Objective, batches: list[Any]) -> MicroBatches:
    counts: dict[str, Tensor] = {}
    for batch in batches:
        add_to_sums(counts, objective.counts(batch))
    return batches, counts


def _to_device(batches: list[Tensors], counts: dict[str, Tensor], device: torch.device) -> MicroBatches:
    """Move to the device, through pinned memory if it is a GPU."""
    if device.type != "cuda":
        return [batch.to(device) for batch in batches], {name: value.to(device) for name, value in counts.items()}
    moved = [batch.pin().to(device, non_blocking=True) for batch in batches]
    return moved, {name: value.pin_memory().to(device, non_blocking=True) for name, value in counts.items()}

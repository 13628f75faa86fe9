"""Where the rows of a step come from: the CPU, the GPU on which the data lives, or a thread some steps ahead."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from keel.events import OnEvent, note
from keel.training.counter_rng import CounterRng
from keel.training.device_errors import error_tail, is_compiler_error
from keel.training.objective import Objective, Tensors
from keel.training.plan import StepPlan, Train

PREFETCH_STEPS = 2
"""Steps whose batches are drawn while the GPU works, where tokens do not fit on it."""
ROOM = 0.25
"""Share of a GPU's free memory that data may take to live there."""

Drawn = tuple[list[Tensors], dict[str, Tensor]]
"""Micro-batches, and the counts of what they predict."""


class Batches(Protocol):
    """The micro-batches of a step, cut as `parts` says; `coming` are the next steps and their parts."""

    def get(self, place: StepPlan, parts: list[range], coming: list[tuple[StepPlan, list[range]]]) -> Drawn: ...


def batch_source(objective: Objective, data: Any, train: Train, device: torch.device, on_event: OnEvent) -> Batches:
    """The way to draw batches of this data that keeps the device busy."""
    if device.type != "cuda" or not isinstance(data, Tensors):
        return CpuBatches(objective, data, train.seed, device)
    if objective.prefetched:
        return PrefetchedBatches(objective, data, train.seed, device)
    free, _ = torch.cuda.mem_get_info(device)
    if data.nbytes() <= ROOM * free:
        return GpuBatches(objective, data.to(device), train, on_event)
    what = f"{data.nbytes() / 2**30:.1f} GiB of tokens would take too much of the GPU's memory"
    note(on_event, f"{what}: they stay outside, {PREFETCH_STEPS} batches are kept ready")
    return PrefetchedBatches(objective, data, train.seed, device)


class CpuBatches:
    """Batches drawn on the spot by the CPU: where it trains, or where drawing is little work."""

    def __init__(self, objective: Objective, data: Any, seed: int, device: torch.device):
        self.objective, self.data, self.seed, self.device = objective, data, seed, device

    def get(self, place: StepPlan, parts: list[range], coming: list[tuple[StepPlan, list[range]]]) -> Drawn:
        draw = _draw_of(self.seed, place)
        batches, counts = _counted(self.objective, [self.objective.batch(self.data, draw, rows) for rows in parts])
        return _moved(batches, counts, self.device)


class GpuBatches:
    """Batches drawn by the GPU from data that lives there: a thousand small operations, compiled once a phase."""

    def __init__(self, objective: Objective, data: Tensors, train: Train, on_event: OnEvent):
        self.objective, self.data, self.train, self.on_event = objective, data, train, on_event
        self.compiled: dict[int, Callable[[Tensor], Tensors]] = {}

    def get(self, place: StepPlan, parts: list[range], coming: list[tuple[StepPlan, list[range]]]) -> Drawn:
        numbers = (
            torch.tensor([place.step, place.first_example, place.batch_size])
            .pin_memory()
            .to(self.data.device, non_blocking=True)
        )
        if place.phase not in self.compiled:
            self.compiled[place.phase] = self._compile(place.phase, numbers)
        batch = self.compiled[place.phase](numbers)
        # Of a smaller batch or a part of one: the rows before do not depend on those after.
        batches = [batch.slice_examples(rows) for rows in parts]
        return _counted(self.objective, batches)

    def _compile(self, phase: int, numbers: Tensor) -> Callable[[Tensor], Tensors]:
        rows = range(max(1, round(self.train.batch * self.objective.phases()[phase].batch_share)))

        def draw(numbers: Tensor) -> Tensors:
            place = CounterRng(
                seed=self.train.seed, step=numbers[0], first_example=numbers[1], batch_size=numbers[2], phase=phase
            )
            return self.objective.batch(self.data, place, rows)

        draw(numbers)  # what is computed once and kept must not be computed inside the compiled function
        # Or the compiler folds 64-bit constants into the 32-bit numbers of rows and columns.
        options: dict[str, Any] = {"constant_and_index_propagation": False}
        compiled = torch.compile(draw, dynamic=False, fullgraph=True, options=options)
        try:
            compiled(numbers)
        except Exception as error:
            if not is_compiler_error(error):
                raise
            note(self.on_event, f"batches cannot be compiled here, which costs speed alone ({error_tail(error)})")
            return draw
        return compiled


class PrefetchedBatches:
    """Batches drawn on the CPU by a thread, some steps ahead of the GPU."""

    def __init__(self, objective: Objective, data: Any, seed: int, device: torch.device):
        self.objective, self.data, self.seed, self.device = objective, data, seed, device
        self.pool = ThreadPoolExecutor(1, "keel-batches")
        self.drawn: dict[StepPlan, tuple[list[range], Future[Drawn]]] = {}

    def get(self, place: StepPlan, parts: list[range], coming: list[tuple[StepPlan, list[range]]]) -> Drawn:
        wanted = [(place, parts), *coming]
        self.drawn = {key: self.drawn[key] for key, cut in wanted if key in self.drawn and self.drawn[key][0] == cut}
        for key, cut in wanted:
            if key not in self.drawn:
                self.drawn[key] = cut, self.pool.submit(self._make, key, cut)
        return _moved(*self.drawn.pop(place)[1].result(), self.device)

    def _make(self, place: StepPlan, parts: list[range]) -> Drawn:
        draw = _draw_of(self.seed, place)
        return _counted(self.objective, [self.objective.batch(self.data, draw, rows) for rows in parts])


def _draw_of(seed: int, place: StepPlan) -> CounterRng:
    return CounterRng(
        seed=seed, step=place.step, first_example=place.first_example, batch_size=place.batch_size, phase=place.phase
    )


def _counted(objective: Objective, batches: list[Any]) -> Drawn:
    counts: dict[str, Tensor] = {}
    for batch in batches:
        for name, value in objective.counts(batch).items():
            counts[name] = counts[name] + value if name in counts else value
    return batches, counts


def _moved(batches: list[Tensors], counts: dict[str, Tensor], device: torch.device) -> Drawn:
    """On the device, by way of memory from which a GPU copies for itself."""
    if device.type != "cuda":
        return [batch.to(device) for batch in batches], {name: value.to(device) for name, value in counts.items()}
    moved = [batch.pin().to(device, non_blocking=True) for batch in batches]
    return moved, {name: value.pin_memory().to(device, non_blocking=True) for name, value in counts.items()}

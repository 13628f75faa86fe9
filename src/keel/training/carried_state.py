"""Recurrent state carried from the examples of one step to the same examples of the next (truncated BPTT)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keel.errors import KeelError
from keel.training.distributed import World
from keel.training.objective import Objective, Tensors
from keel.training.plan import StepPlan

PREFIX = "carried."


class CarriedState:
    """State of all examples of a step, batch first; updated in place, so that CUDA graphs can write it."""

    def __init__(self, objective: Objective, world: World):
        self.objective, self.world = objective, world
        self.buffers: dict[int, Tensors | None] = {}
        """State by batch size: buffers captured in a CUDA graph must stay where they are."""
        self.last: tuple[int, int] | None = None
        """Batch size and phase of the current state."""
        self.written: list[range] = []
        """The examples whose state this process computes."""

    def parts(self, step_plan: StepPlan, parts: list[range]) -> list[Tensors] | None:
        """The state of each micro-batch; the initial state where the batch size or phase has changed."""
        state = self._at(step_plan.batch_size, step_plan.phase)
        self.written = parts
        return None if state is None else [state.slice_examples(part) for part in parts]

    def _at(self, rows: int, phase: int) -> Tensors | None:
        if rows not in self.buffers:
            self.buffers[rows] = self.objective.initial_state(rows)
        elif self.last != (rows, phase) and (state := self.buffers[rows]) is not None:
            state.copy_from(self.objective.initial_state(rows))
        self.last = rows, phase
        return self.buffers[rows]

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name, for a checkpoint; gathers the examples of all processes."""
        state = self.buffers[self.last[0]] if self.last else None
        if state is None:
            return {}
        whole = [torch.zeros_like(value) for value in state.tensors()]
        for mine, value in zip(whole, state.tensors(), strict=True):
            for part in self.written:
                mine[part.start : part.stop] = value[part.start : part.stop]
        return {f"{PREFIX}{number}": self.world.sum_over_processes(value) for number, value in enumerate(whole)}

    def restore(self, tensors: Mapping[str, Tensor], last: Sequence[int], step: int) -> None:
        """Restore the state of a checkpoint at `step`, with its (batch size, phase); other names are ignored."""
        state = self._at(*last)
        if state is None:
            return
        for number, value in enumerate(state.tensors()):
            found = tensors.get(f"{PREFIX}{number}")
            if found is None or found.shape != value.shape:
                stored = "none" if found is None else f"one of shape {tuple(found.shape)}"
                needed = f"resuming needs a recurrent state of shape {tuple(value.shape)}"
                what = f"the checkpoint of step {step} holds {stored}, of another batch size or network"
                raise KeelError(f"{needed}, but {what}: use --overwrite to start from scratch")
            value.copy_(found)

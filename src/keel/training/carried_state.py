"""What the rows of one step hand to the same rows of the next: the state of a recurrent network."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keel.errors import KeelError
from keel.training.distributed import World
from keel.training.objective import Objective, Tensors
from keel.training.plan import StepPlan

PREFIX = "carried."


class CarriedState:
    """The state of all rows of a step, each tensor rows first; it stays in place, so that graphs can write it."""

    def __init__(self, objective: Objective, world: World):
        self.objective, self.world = objective, world
        self.kept: dict[int, Tensors | None] = {}
        """By the number of rows: what was captured in a graph must stay where it is."""
        self.last: tuple[int, int] | None = None
        """Rows and phase of the state there is."""
        self.written: list[range] = []
        """The rows whose state this process computes."""

    def parts(self, place: StepPlan, parts: list[range]) -> list[Tensors] | None:
        """The state of each part of a step's rows; the first one where the step before had other rows."""
        state = self._at(place.batch_size, place.phase)
        self.written = parts
        return None if state is None else [state.slice_examples(part) for part in parts]

    def _at(self, rows: int, phase: int) -> Tensors | None:
        if rows not in self.kept:
            self.kept[rows] = self.objective.initial_state(rows)
        elif self.last != (rows, phase) and (state := self.kept[rows]) is not None:
            state.copy_from(self.objective.initial_state(rows))
        self.last = rows, phase
        return self.kept[rows]

    def tensors(self) -> dict[str, Tensor]:
        """All of it by names of its own, for a checkpoint; every process brings the rows it has computed."""
        state = self.kept[self.last[0]] if self.last else None
        if state is None:
            return {}
        if self.world.size > 1:
            whole = [torch.zeros_like(value) for value in state.tensors()]
            for mine, value in zip(whole, state.tensors(), strict=True):
                for part in self.written:
                    mine[part.start : part.stop] = value[part.start : part.stop]
            return {f"{PREFIX}{number}": self.world.sum_over_processes(value) for number, value in enumerate(whole)}
        return {f"{PREFIX}{number}": value for number, value in enumerate(state.tensors())}

    def restore(self, tensors: Mapping[str, Tensor], last: Sequence[int], step: int) -> None:
        """Go on from what `tensors` gave after so many steps, when `last` was as it is; other names are passed over."""
        state = self._at(*last)
        if state is None:
            return
        for number, value in enumerate(state.tensors()):
            found = tensors.get(f"{PREFIX}{number}")
            if found is None or found.shape != value.shape:
                told = "none" if found is None else f"one of shape {tuple(found.shape)}"
                raise KeelError(
                    f"the network needs a state of shape {tuple(value.shape)} to go on, and the checkpoint of step "
                    f"{step} holds {told}: it is of another batch or network; use --overwrite to start anew"
                )
            value.copy_(found)

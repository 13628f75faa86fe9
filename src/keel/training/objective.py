"""What the loop asks of whatever it trains: batches, counts, losses."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from keel.training.counter_rng import CounterRng

State = Any
"""What a recurrent or caching network hands from one call to the next; the loop passes it on without looking."""


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """A record of tensors that moves between devices as one."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return self._each(lambda value: value.to(device, non_blocking=non_blocking))

    def pin(self) -> Self:
        """The same in memory from which a GPU copies while the CPU goes on."""
        return self._each(lambda value: value if value.is_cuda else value.pin_memory())

    def clone(self) -> Self:
        return self._each(Tensor.clone)

    def slice_examples(self, rows: range) -> Self:
        """These rows of every tensor inside."""
        return self._each(lambda value: value[rows.start : rows.stop])

    def index_select(self, index: Tensor) -> Self:
        """The rows of these numbers, in their order; one may come several times, or not at all."""
        return self._each(lambda value: value.index_select(0, index.to(value.device)))  # twice as fast as indexing

    def tensors(self) -> list[Tensor]:
        """All tensors inside, in the order of their fields."""
        found: list[Tensor] = []
        self._each(lambda value: found.append(value) or value)
        return found

    @torch.no_grad()
    def copy_from(self, values: Self | None) -> None:
        """Write the numbers of a record of the same shape into the tensors of this one."""
        assert values is not None
        for mine, value in zip(self.tensors(), values.tensors(), strict=True):
            mine.copy_(value)

    def nbytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.tensors())

    @property
    def device(self) -> torch.device:
        return self.tensors()[0].device

    def signature(self) -> tuple[Any, ...]:
        """Equal for records whose tensors are alike in shape and type, and whose other fields are equal."""
        return tuple(
            value.signature()
            if isinstance(value, Tensors)
            else (value.shape, value.dtype)
            if isinstance(value, Tensor)
            else value
            for value in (getattr(self, field.name) for field in fields(self))
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {
            field.name: value._each(change) if isinstance(value, Tensors) else change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | Tensors)
        }
        return replace(self, **changed)


@dataclass(frozen=True)
class Phase:
    """A part of the training in which all rows are of one shape."""

    share: float = 1.0
    """Of the steps."""
    batch_share: float = 1.0
    """How many rows make a step, as a share of the batch: longer ones are fewer."""


class Objective(nn.Module):
    """A network with its batches and its losses. `data` is whatever it reads: the loop only passes it on."""

    prefetched: ClassVar[bool] = False
    """Whether its batches are drawn on the CPU even if `data` could live on a GPU; then not all need be rows first."""

    def epoch_size(self, data: Any) -> int:
        """How many rows make one epoch."""
        raise NotImplementedError

    def setup(self, data: Any) -> None:
        """Look at all the data once, before the first step of a run or before it is taken up again."""

    def batch(self, data: Any, rng: CounterRng, examples: range) -> Tensors:
        """These rows of one step: a pure function of the draw's (seed, step) and of each row's number.

        If `data` is a record of tensors, so that it can live on a GPU, all tensors of a batch have its rows first.
        """
        raise NotImplementedError

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """How many predictions each loss sums over, known before the forward pass."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> Tensors | None:
        """The state of so many rows before they have read anything, all tensors rows first, on the weights' device;
        none if a step needs to know nothing of the one before."""
        return None

    def forward(self, batch: Any, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        """Sums of losses by name (never means: the loop divides by the global counts) and the state to hand on, which
        the same rows of the next step get."""
        raise NotImplementedError

    def phases(self) -> list[Phase]:
        """The parts of the training, in order; a draw tells `batch` in which one it is."""
        return [Phase()]

    def notes(self) -> list[str]:
        """What whoever trained it should know about the data it met."""
        return []

    def finish(self) -> None:
        """Whatever is left to do when all steps are taken."""

    def blocks(self) -> list[nn.Module]:
        """The units that are compiled, sharded, unfrozen or given a rate of their own, from the input upwards; a list
        of modules is one unit that is called part by part."""
        return []

    def input_parameters(self) -> list[nn.Parameter]:
        """The weights below the blocks, such as those of words; whatever is neither here nor there is above them."""
        return []


class CustomUpdate(Objective):
    """An objective that learns by updates of its own making, on a CPU; `forward` stays as their definition."""

    nondeterministic: ClassVar[bool] = True
    """Whether several threads write into the same numbers, so that no two runs are equal."""

    def update(
        self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Learn from these rows of one step; the sum of each loss, and counts as in `counts`.

        With one thread the result is the same to the bit every time; several write without waiting for each other.
        """
        raise NotImplementedError


def parts_of(block: nn.Module) -> list[nn.Module]:
    """The modules of a block that are called."""
    return [*block] if isinstance(block, nn.ModuleList) else [block]

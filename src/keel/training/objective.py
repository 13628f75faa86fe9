"""The interface between the training loop and what it trains: batches, counts, losses."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from keel.training.counter_rng import CounterRng

State = Any
"""Recurrent state (or cache) from one call to the next; opaque to the loop."""
Sums = tuple[dict[str, float], dict[str, float]]
"""The sum of each loss of a step, and the number of predictions that it sums over."""


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Dataclass of tensors that moves between devices as a unit."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return self._each(lambda value: value.to(device, non_blocking=non_blocking))

    def pin(self) -> Self:
        """Copy into pinned memory, for asynchronous copies to a GPU."""
        return self._each(lambda value: value if value.is_cuda else value.pin_memory())

    def clone(self) -> Self:
        return self._each(Tensor.clone)

    def slice_examples(self, rows: range) -> Self:
        """Slice the first dimension of every tensor."""
        return self._each(lambda value: value[rows.start : rows.stop])

    def index_select(self, index: Tensor) -> Self:
        """Select indices (repeats allowed) along the first dimension of every tensor."""
        return self._each(lambda value: value.index_select(0, index.to(value.device)))  # twice as fast as indexing

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        tensors: list[Tensor] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensors):
                tensors += value.tensors()
            elif isinstance(value, Tensor):
                tensors.append(value)
        return tensors

    @torch.no_grad()
    def copy_from(self, values: Self | None) -> None:
        """Copy the values of equally shaped tensors in place."""
        assert values is not None
        for mine, value in zip(self.tensors(), values.tensors(), strict=True):
            mine.copy_(value)

    def nbytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.tensors())

    @property
    def device(self) -> torch.device:
        return self.tensors()[0].device

    def signature(self) -> tuple[Any, ...]:
        """Key of the shapes and dtypes of all tensors and the values of all other fields."""
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
    """A part of training, such as that with one sequence length."""

    share: float = 1.0
    """Share of the steps."""
    batch_share: float = 1.0
    """Batch size as a share of `Train.batch`: longer sequences need smaller batches."""


class Objective(nn.Module):
    """A network with its batches and losses; `data` is opaque to the training loop."""

    prefetched: ClassVar[bool] = False
    """Whether batches are always made on the CPU, ahead of the GPU; only then may tensors lack the batch dimension."""
    derived: ClassVar[frozenset[str]] = frozenset()
    """Names of tensors that follow from others: a model is stored without them."""

    def epoch_size(self, data: Any) -> int:
        """Number of examples in an epoch."""
        raise NotImplementedError

    def setup(self, data: Any) -> None:
        """Collect statistics over the dataset before the first step (also on resume)."""

    def batch(self, data: Any, rng: CounterRng, examples: range) -> Tensors:
        """Examples of one step: a pure function of (seed, step, example index) and, if it `follows_progress`, of the
        planned steps of the run, `rng.steps`.

        If `data` is `Tensors`, and so may live on a GPU, every tensor of a batch has the batch dimension first.
        """
        raise NotImplementedError

    @property
    def follows_progress(self) -> bool:
        """Whether batches change with the progress of a run: its number of steps is fixed then."""
        return False

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Number of predictions that each loss sums over, known before the forward pass."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> Tensors | None:
        """Initial recurrent state, batch first, on the device of the weights; None for stateless objectives."""
        return None

    def forward(self, batch: Any, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        """Sums of losses by name (never means: the loop divides by the global counts), and the state for the same
        examples of the next step."""
        raise NotImplementedError

    def phases(self) -> list[Phase]:
        """Phases of training, in order; `batch` finds the current one in `rng.phase`."""
        return [Phase()]

    def start_phase(self, number: int) -> None:
        """Prepare the weights before the first step of a later phase."""

    def notes(self) -> list[str]:
        """Notes for the user about the training data."""
        return []

    def finish(self) -> None:
        """Finish training after the last step."""

    def derive(self) -> None:
        """Compute the tensors in `derived`, of a stored model."""

    def blocks(self) -> list[nn.Module]:
        """Units of compilation, sharding, unfreezing and layer-wise learning rates, from the input upwards; a
        ModuleList is one unit whose modules are called separately."""
        return []

    def least_lrs(self) -> dict[nn.Parameter, float]:
        """Smallest peak learning rate of parameters that would hardly move at that of large matrices."""
        return {}

    def input_parameters(self) -> list[nn.Parameter]:
        """Parameters below the blocks, such as embeddings; all other parameters are above the blocks."""
        return []


@dataclass(frozen=True)
class CrossValidation:
    """Peak learning rates, compared on the same held-out examples."""

    lrs: tuple[float, ...]
    errors: Tensor  # [learning rates, examples] 1 where the prediction is wrong
    losses: Tensor  # [learning rates] sum over the examples
    folds: Tensor  # [examples]

    def fold_errors(self, choice: int) -> list[float]:
        """Mean error with one of the learning rates on the held-out examples of each fold."""
        return [float(self.errors[choice, self.folds == fold].mean()) for fold in self.folds.unique()]


class CustomUpdate(Objective):
    """An objective with its own parameter updates, computed on a CPU; `forward` defines the loss that they minimize."""

    nondeterministic: ClassVar[bool] = True
    """Whether several threads update the same parameters without locks (Hogwild)."""
    any_device: ClassVar[bool] = False
    """Whether the network may be on any device, and in several processes, which then make the same updates."""

    def cross_validate(self, data: Any, *, epochs: float, batch: int, seed: int) -> CrossValidation | None:
        """Compare peak learning rates before the first step (also on resume); None to keep the given one."""
        return None

    def fold_scores(self) -> dict[str, Any] | None:
        """Scores on the held-out examples of each fold, if training included a cross-validation."""
        return None

    def update(self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        """Update the parameters by the examples of one step; returns the sum of each loss, and counts as in `counts`.

        With one thread the result is bit-exact.
        """
        raise NotImplementedError


def parts_of(block: nn.Module) -> list[nn.Module]:
    """The callable modules of a block."""
    return [*block] if isinstance(block, nn.ModuleList) else [block]

"""What decoding asks of whoever writes: an n-gram, a recurrent network, a GPT, a decoder with texts to write from."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from keel.systems.base import Writing
from keel.train.objective import State, Tensors


@runtime_checkable
class Writer(Protocol):
    """An objective that says how likely each id is to come next."""

    @property
    def opening(self) -> int:
        """The id that stands before every text."""
        ...

    @property
    def closing(self) -> int | None:
        """The id that ends a sentence, where ends are foretold."""
        ...

    def begin(self, rows: int) -> Tensors | None:
        """The state of so many rows before their first id, all tensors rows first; none if nothing was read."""
        ...

    def next(self, ids: Tensor, state: State | None) -> tuple[Tensor, Tensors]:
        """[rows, vocabulary] scores, as a softmax takes them, of what follows these further ids [rows, time], which may
        be on any device, and the state after them, whose rows may be taken in any order."""
        ...


def kept(state: State | None, rows: Tensor, texts: Tensor | None = None) -> Any:
    """A writer's state for these of its rows, in this order; one who writes from texts keeps these of them (None: all,
    in which case each text has as many rows as any other)."""
    if isinstance(state, Writing):
        return state.kept(rows, texts)
    return None if state is None else state.take(rows)

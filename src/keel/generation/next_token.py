"""What decoding asks of whoever writes: an n-gram, a recurrent network, a GPT, a decoder with texts to write from."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from keel.errors import KeelError
from keel.nn.encoder import DecodingState, Recorder
from keel.training.objective import State, Tensors


@runtime_checkable
class NextTokenModel(Protocol):
    """An objective that says how likely each id is to come next."""

    @property
    def bos_id(self) -> int:
        """The id that stands before every text."""
        ...

    @property
    def eos_id(self) -> int | None:
        """The id that ends a sentence, where ends are foretold."""
        ...

    @property
    def max_context(self) -> int | None:
        """How many ids it can look back on, where there is a limit: a state goes on without end."""
        ...

    def new_state(self, batch_size: int) -> Tensors | None:
        """The state of so many rows before their first id, all tensors rows first; none if nothing was read."""
        ...

    def step(self, ids: Tensor, state: State | None, record: Recorder | None = None) -> tuple[Tensor, Tensors]:
        """[rows, vocabulary] scores, as a softmax takes them, of what follows these further ids [rows, time], which may
        be on any device, and the state after them, whose rows may be taken in any order. The scores are the caller's,
        who may write into them; `record` is shown attention, where there is any."""
        ...


def kept(state: State | None, rows: Tensor, texts: Tensor | None = None) -> Any:
    """A writer's state for these of its rows, in this order; one who writes from texts keeps these of them (None: all,
    in which case each text has as many rows as any other)."""
    if isinstance(state, DecodingState):
        return state.select(rows, texts)
    return None if state is None else state.take(rows)


def room(writer: NextTokenModel, prompts: Sequence[Sequence[int]], tokens: int) -> int:
    """How many of so many tokens can be written after these prompts; one longer than its writer can look back on is
    refused, never cut."""
    longest = writer.max_context
    if longest is None:
        return tokens
    size = 1 + max(map(len, prompts), default=0)
    if size > longest:
        limit = f"the {longest:,} that the model reads (one is its opening mark)"
        raise KeelError(f"a prompt of {size - 1:,} tokens does not fit into {limit}: shorten it")
    return min(tokens, longest - size + 1)


def groups(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The numbers of the prompts, those of one length together: rows of a batch are equally long, so that none is
    padded."""
    lengths: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        lengths.setdefault(len(prompt), []).append(number)
    return [*lengths.values()]


def started(writer: NextTokenModel, prompts: Sequence[Sequence[int]], numbers: list[int]) -> tuple[Tensor, Any]:
    """[rows, time] what these of the prompts have a writer read first, and the state before."""
    state = writer.new_state(len(prompts))
    if len(numbers) < len(prompts):
        state = kept(state, torch.tensor(numbers), torch.tensor(numbers))
    return torch.tensor([[writer.bos_id, *prompts[number]] for number in numbers]), state


BLOCK = 64
"""Scores of which only the largest is looked at first."""


def top_candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """[rows, count] the largest scores of [rows, vocabulary], the largest first, and their ids.

    The `count` largest lie in the `count` blocks with the largest maxima: on a CPU, where torch sorts pairs of numbers
    and places, that is many times as fast.
    """
    rows, vocabulary = scores.shape
    whole = vocabulary // BLOCK * BLOCK
    if scores.is_cuda or 2 * count * BLOCK > vocabulary:
        return scores.topk(count, dim=1)
    blocks = scores[:, :whole].unflatten(1, (-1, BLOCK))  # [rows, blocks, BLOCK]
    chosen = blocks.amax(2).topk(count, dim=1).indices
    few = blocks.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(1)
    places = (chosen[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    few = torch.cat([few, scores[:, whole:]], 1)
    places = torch.cat([places, torch.arange(whole, vocabulary).expand(rows, -1)], 1)
    values, best = few.topk(count, dim=1)
    return values, places.gather(1, best)

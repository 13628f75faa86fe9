"""What all decoding methods share: prompts, states and candidates of a causal language model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from keel.errors import KeelError
from keel.generation.decoding_trace import DecodingTrace
from keel.nn.encoder import DecodingState
from keel.systems.capabilities import CausalLM
from keel.training.objective import State

BLOCK = 64
"""Block size of the two-stage top-k."""


def select_state(state: State | None, indices: Tensor, sources: Tensor | None = None) -> Any:
    """Reorder a decoding state by batch index; of a seq2seq state also select the source texts (None: all, each with
    equally many hypotheses)."""
    if isinstance(state, DecodingState):
        return state.select(indices, sources)
    return None if state is None else state.index_select(indices)


def new_token_budget(model: CausalLM, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> int:
    """Number of tokens that fit after the longest prompt; a prompt that exceeds the context raises."""
    if model.max_context is None:
        return max_new_tokens
    size = 1 + max(map(len, prompts), default=0)
    if size > model.max_context:
        limit = f"the model's context of {model.max_context:,} tokens (one is the start token)"
        raise KeelError(f"a prompt of {size - 1:,} tokens does not fit into {limit}: shorten it")
    return min(max_new_tokens, model.max_context - size + 1)


def group_by_length(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Prompt indices grouped by length, so that no batch needs padding."""
    lengths: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        lengths.setdefault(len(prompt), []).append(index)
    return [*lengths.values()]


def prompt_batch(model: CausalLM, prompts: Sequence[Sequence[int]], indices: list[int]) -> tuple[Tensor, Any]:
    """First input [batch, time] for these prompts, and the state before it."""
    state = model.new_state(len(prompts))
    if len(indices) < len(prompts):
        state = select_state(state, torch.tensor(indices), torch.tensor(indices))
    return torch.tensor([[model.bos_id, *prompts[index]] for index in indices]), state


def decode_step(
    model: CausalLM, texts: list[int], ids: Tensor, state: State | None, trace: DecodingTrace | None
) -> tuple[Tensor, Any]:
    """Logits [batch, vocab_size] after `ids` [batch, time] of these texts, and the new state; recorded in the trace."""
    scores, state = model.step(ids, state, None if trace is None else trace.record_attention)
    if trace is not None:
        trace.record_step(texts, ids, state)
    return scores, state


def top_candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Top-k of scores [batch, vocab_size]: values and ids [batch, count], in descending order.

    The top k lie in the k blocks with the largest maxima; on a CPU this is many times faster than `topk`.
    """
    batch, vocab_size = scores.shape
    whole = vocab_size // BLOCK * BLOCK
    if scores.is_cuda or 2 * count * BLOCK > vocab_size:
        return scores.topk(count, dim=1)
    blocks = scores[:, :whole].unflatten(1, (-1, BLOCK))  # [batch, blocks, BLOCK]
    chosen = blocks.amax(2).topk(count, dim=1).indices
    values = blocks.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(1)
    ids = (chosen[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    values = torch.cat([values, scores[:, whole:]], 1)
    ids = torch.cat([ids, torch.arange(whole, vocab_size).expand(batch, -1)], 1)
    values, best = values.topk(count, dim=1)
    return values, ids.gather(1, best)

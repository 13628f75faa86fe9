"""Sampling: temperature, top-k, top-p (nucleus) and repetition penalty."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.config import Ge, Gt, Le, Lt, Validated
from keel.errors import UsageError
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.next_token import BLOCK, decode_step, group_by_length, prompt_batch, select_state, top_candidates
from keel.nn.inference_loop import eval_mode
from keel.systems.capabilities import CausalLM

AHEAD = 64
"""Steps per block of random numbers."""
NUCLEUS_SIZES = 128, 2048
"""Sizes at which a top-p nucleus is tried before the whole vocabulary is sorted."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Validated):
    """Settings of sampling."""

    temperature: Annotated[float, Ge(0), Lt(math.inf)] = 1.0
    """Softmax temperature; 0 is greedy decoding."""
    top_k: Annotated[int, Ge(0)] = 0
    """Sample from the k most probable tokens; 0: all."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus sampling: the smallest set of tokens whose probability exceeds p."""
    repetition_penalty: Annotated[float, Gt(0), Lt(math.inf)] = 1.0
    """Penalty on the logits of earlier tokens (Keskar et al., "CTRL", 2019); 1: none."""
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Random seed; sequence n of a batch uses seed + n, so it does not depend on the others."""


GREEDY = Sampling(temperature=0.0)


def sample(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    *,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    banned: Collection[int] = (),
    is_finished: Callable[[int, int], bool] | None = None,
    trace: DecodingTrace | None = None,
) -> Iterator[list[int]]:
    """Yield one id per prompt for each step, never a `banned` one.

    A sequence ends after an id of `stop_ids` or when `is_finished(index, id)`; it then leaves the batch and repeats its
    last id. Iteration stops when all sequences have ended. Prompts of each length form one batch.
    """
    if max_new_tokens < 1:
        raise UsageError(f"--tokens must be 1 or more, not {max_new_tokens}")
    stops = {*stop_ids}

    def finished(index: int, id: int) -> bool:
        return id in stops or (is_finished is not None and is_finished(index, id))

    return _interleave(
        model,
        [
            _sample_batch(model, prompts, indices, sampling, max_new_tokens, list(banned), finished, trace)
            for indices in group_by_length(prompts)
        ],
        len(prompts),
    )


def _interleave(model: CausalLM, batches: list[Iterator[list[tuple[int, int]]]], count: int) -> Iterator[list[int]]:
    last = [-1] * count
    with eval_mode(model):
        for step in zip_longest(*batches, fillvalue=()):
            for index, id in (pair for batch in step for pair in batch):
                last[index] = id
            yield [*last]


@torch.no_grad()
def _sample_batch(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    active: list[int],
    sampling: Sampling,
    max_new_tokens: int,
    banned: list[int],
    finished: Callable[[int, int], bool],
    trace: DecodingTrace | None,
) -> Iterator[list[tuple[int, int]]]:
    """(prompt index, next id) of the active sequences at each step, for prompts of equal length."""
    ids, state = prompt_batch(model, prompts, active)
    prompt, uniforms, seen, banned_ids = ids[:, 1:], None, None, None
    # Random numbers come from the CPU, in blocks of fixed size: independent of device and of the number of tokens.
    generators = [torch.Generator().manual_seed(sampling.seed + index) for index in active]
    for step in range(max_new_tokens):
        scores, state = decode_step(model, active, ids, state, trace)
        log_probs = None if trace is None else scores.float().log_softmax(1)
        if sampling.temperature and step % AHEAD == 0:
            blocks = [torch.rand(AHEAD, generator=generator, dtype=torch.float64) for generator in generators]
            uniforms = torch.stack(blocks).to(scores.device)  # [batch, AHEAD]
        if sampling.repetition_penalty != 1:
            if seen is None:
                seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, prompt.to(scores.device), True)
            scores = apply_repetition_penalty(scores, seen, sampling.repetition_penalty)
        if banned:
            banned_ids = torch.tensor(banned, device=scores.device) if banned_ids is None else banned_ids
            scores.index_fill_(1, banned_ids, -torch.inf)
        chosen = scores.argmax(1) if uniforms is None else sample_ids(scores, sampling, uniforms[:, step % AHEAD])
        new_ids = chosen.tolist()
        over = [finished(index, id) for index, id in zip(active, new_ids, strict=True)]
        if trace is not None and log_probs is not None:
            trace.record_sampling(active, log_probs, new_ids, over, greedy=uniforms is None)
        yield [*zip(active, new_ids, strict=True)]
        remaining = [position for position, ended in enumerate(over) if not ended]
        if not remaining:
            return
        ids = chosen[:, None]
        if seen is not None:
            seen.scatter_(1, ids, True)
        if len(remaining) < len(active):
            keep = torch.tensor(remaining, device=scores.device)
            ids, state, active = ids[keep], select_state(state, keep, keep), [active[each] for each in remaining]
            uniforms, seen = (None if each is None else each[keep] for each in (uniforms, seen))
            generators = [generators[each] for each in remaining]


def apply_repetition_penalty(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """s / penalty for s > 0, else s * penalty, at the ids that were seen."""
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def sample_ids(scores: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Ids [batch] by inverse transform sampling: where the cumulative probability of logits [batch, vocab_size] passes
    each sequence's uniform number [batch]."""
    scores, ids = scores.float() / sampling.temperature, None
    if 0 < sampling.top_k < scores.shape[1]:
        scores, ids = top_candidates(scores, sampling.top_k)
    probabilities = scores.softmax(1)
    if sampling.top_p < 1:
        if ids is None:
            probabilities, ids = _nucleus(probabilities, sampling.top_p)
        before = probabilities.cumsum(1, dtype=torch.float64) - probabilities
        probabilities = probabilities.masked_fill(before >= sampling.top_p, 0)
    found = _inverse_cdf(probabilities, uniforms[:, None])
    return (found if ids is None else ids.gather(1, found))[:, 0]


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """[batch, 1] first index at which the cumulative weights [batch, size] pass this share [batch, 1] of their sum.

    A large vocabulary is searched block by block first, since torch's cumsum is sequential.
    """
    size = weights.shape[1]
    if size > BLOCK * BLOCK:
        blocks = F.pad(weights, (0, -size % BLOCK)).unflatten(1, (-1, BLOCK))  # [batch, blocks, BLOCK]
        block = _inverse_cdf(sums := blocks.sum(2), uniforms)
        within = uniforms * sums.sum(1, keepdim=True, dtype=torch.float64)
        before = (sums.cumsum(1, dtype=torch.float64) - sums).gather(1, block)
        part = ((within - before) / sums.gather(1, block)).clamp(0, 1)
        inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0]
        return block * BLOCK + _inverse_cdf(inside, part)
    sums = weights.cumsum(1, dtype=torch.float64)
    return torch.searchsorted(sums, uniforms * sums[:, -1:], right=True).clamp(max=size - 1)


def _nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The largest probabilities in order with their ids, at least as many as exceed `top_p` in sum."""
    for count in NUCLEUS_SIZES:
        if probabilities.shape[1] > count:
            best, ids = top_candidates(probabilities, count)
            if bool((best.sum(1) > top_p).all()):
                return best, ids
    return probabilities.sort(descending=True, stable=True)

"""One vector for a row from those of its tokens."""

from typing import Literal

import torch
from torch import Tensor

from keel.data.token_batch import TokenBatch

Pool = Literal["default", "concat", "mean", "max", "first", "last"]


def pool_tokens(top: Tensor, batch: TokenBatch, strategy: Pool) -> Tensor:
    """[batch, width] of a row's vectors the mean, the largest numbers, the first or the last; or "concat", [batch,
    3 width]: the last, the largest and the mean side by side (Howard and Ruder 2018), so that one telling word counts
    wherever it stands."""
    lengths = batch.lengths[:, None]  # [batch, 1]
    if batch.sequence_starts is None:
        place = torch.arange(top.shape[1], device=top.device)
    else:  # packed end to end: each row's own places, and some beyond
        place = torch.arange(min(batch.max_seqlen, top.shape[1]), device=top.device)
        top = top[0, (batch.sequence_starts[:, None] + place).clamp(max=top.shape[1] - 1)]
    inside = (place < lengths)[..., None]  # [batch, time, 1]

    def last() -> Tensor:
        return top.gather(1, (lengths - 1)[..., None].expand(-1, -1, top.shape[-1]))[:, 0]

    def largest() -> Tensor:
        return top.masked_fill(~inside, torch.finfo(top.dtype).min).amax(1)

    def mean() -> Tensor:
        return (top * inside).sum(1) / lengths

    if strategy == "concat":
        return torch.cat([last(), largest(), mean()], 1)
    return {"mean": mean, "max": largest, "first": lambda: top[:, 0], "last": last}[strategy]()

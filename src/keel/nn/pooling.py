"""Pooling: one vector per sequence from those of its tokens, one per token from those of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from keel.data.token_batch import TokenBatch

Pool = Literal["default", "concat", "mean", "max", "first", "last"]


SIF_A = 1e-3
"""a of the SIF weights, as in the paper."""


@dataclass(frozen=True)
class SentencePooling:
    """How a model makes a sentence embedding of token vectors, as a sentence-transformers folder defines it."""

    pool: Literal["mean", "max", "first", "last"]
    normalize: bool = False
    """Whether embeddings have length 1."""
    max_tokens: int = 0
    """Tokens of a text that are read, special tokens included; 0 for all, long texts in windows."""
    lowercase: bool = False
    """Whether texts are lowercased before they are tokenized."""
    sif: bool = False
    """Whether the mean has the weights of `sif_weights`; not in sentence-transformers folders."""


def sif_weights(vocab_size: int, special_ids: Sequence[int]) -> Tensor:
    """[vocab_size + 1]: the weight a / (a + p(w)) of each word w, smooth inverse frequency (Arora et al., 2017), and
    that of words outside the vocabulary.

    The words are in the order of their frequency, as vector files have them; by Zipf's law p(w) is proportional to
    1 / rank. The paper's common component is not removed: single texts have none.
    """
    is_word = torch.ones(vocab_size + 1)
    is_word[list(special_ids)] = 0
    rank = is_word.cumsum(0).clamp(min=1)
    return SIF_A / (SIF_A + 1 / (rank * (is_word / rank).sum()))


def pool_tokens(top: Tensor, batch: TokenBatch, strategy: Pool) -> Tensor:
    """[batch, width] mean, max, first or last of a sequence's vectors; or "concat", [batch, 3 width]: last, max and
    mean concatenated (Howard and Ruder 2018), so that a single decisive word counts at any position."""
    lengths = batch.lengths[:, None]  # [batch, 1]
    if batch.sequence_starts is None:
        position = torch.arange(top.shape[1], device=top.device)
    else:  # packed: each sequence's own positions, and some beyond
        position = torch.arange(min(batch.max_seqlen, top.shape[1]), device=top.device)
        top = top[0, (batch.sequence_starts[:, None] + position).clamp(max=top.shape[1] - 1)]
    inside = (position < lengths)[..., None]  # [batch, time, 1]

    def last() -> Tensor:
        return top.gather(1, (lengths - 1)[..., None].expand(-1, -1, top.shape[-1]))[:, 0]

    def maximum() -> Tensor:
        return top.masked_fill(~inside, torch.finfo(top.dtype).min).amax(1)

    def mean() -> Tensor:
        return (top * inside).sum(1) / lengths

    if strategy == "concat":
        return torch.cat([last(), maximum(), mean()], 1)
    return {"mean": mean, "max": maximum, "first": lambda: top[:, 0], "last": last}[strategy]()


class ScalarMix(nn.Module):
    """γ Σ_j s_j h_j over an encoder's layers h_0 ... h_L, with learned weights s = softmax(scores) and scale γ (Peters
    et al. 2018)."""

    def __init__(self, layers: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(1))

    @property
    def weights(self) -> Tensor:
        """[layers]: s, from the input embeddings upwards."""
        return self.scores.softmax(0)

    def forward(self, layers: Tensor) -> Tensor:
        """[..., width] of [..., layers, width]."""
        return self.gamma * (self.weights[:, None] * layers).sum(-2)

"""Sampled softmax for large vocabularies (Jean et al., "On Using Very Large Target Vocabulary for NMT", 2015)."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.training.counter_rng import CounterRng


class SampledSoftmax:
    """Log-uniform sampling without replacement: p(rank) = log((rank + 2) / (rank + 1)) / log(ranks + 1), rank from 0.

    It approximates Zipf's law for a vocabulary that lists words by frequency after its special tokens.
    """

    def __init__(self, vocab_size: int, count: int, excluded: Iterable[int]):
        self.excluded = sorted(excluded)
        """Special tokens that are never predicted."""
        self.ranks = vocab_size - len(self.excluded)
        self.count = count if 2 * count < self.ranks else 0
        """Number of samples; 0 for the full softmax, if these would be half of the vocabulary or more."""

    def sample(self, rng: CounterRng) -> tuple[Tensor, Tensor]:
        """[count] distinct words, and [] the number of draws until one more would have been found."""
        if not self.count:
            return torch.empty(0, dtype=torch.long), torch.tensor(0)
        size = 3 * self.count
        while True:
            uniform = (rng.random_bits("negatives", torch.zeros(1, dtype=torch.long), size)[0] >> 10).double() / 2**53
            rank = torch.exp(uniform * math.log(self.ranks + 1)).long() - 1
            found, first = np.unique(rank.clamp(0, self.ranks - 1).numpy(), return_index=True)
            if len(found) > self.count:
                break
            size *= 2
        order = first.argsort()
        words = torch.from_numpy(found[order[: self.count]])
        for special_id in self.excluded:  # ranks to ids
            words += words >= special_id
        return words, torch.tensor(int(first[order[self.count]]))

    def loss(
        self, vectors: Tensor, table: Tensor, bias: Tensor, words: Tensor, sampled: Tensor, tries: Tensor
    ) -> Tensor:
        """Sum of -log softmax of each word among the sampled ones, by logits minus log(1 - (1 - p(word))^tries).

        vectors [words, width], table [vocab, width], bias [vocab]; the correction is the log inclusion probability.
        """
        ids = torch.cat([words, sampled])
        rank = ids - sum((ids > special_id).long() for special_id in self.excluded)
        probabilities = torch.log1p(1 / (rank + 1)) / math.log(self.ranks + 1)
        shift = bias[ids] - (-torch.expm1(tries * torch.log1p(-probabilities))).log()
        own_shift, sampled_shift = shift.split([len(words), len(sampled)])
        own = (vectors.float() * F.embedding(words, table)).sum(1) + own_shift
        scores = F.linear(vectors, F.embedding(sampled, table), sampled_shift)
        scores = scores.masked_fill(words[:, None] == sampled, -torch.inf).float()  # accidental hits
        return (torch.logaddexp(own, scores.logsumexp(1)) - own).sum()

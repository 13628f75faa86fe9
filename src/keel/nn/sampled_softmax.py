"""A softmax over a word and others that are drawn, for vocabularies too large to weigh up whole (Jean et al. 2015)."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.training.counter_rng import CounterRng


class SampledSoftmax:
    """Distinct words drawn by p(rank) = log((rank + 2) / (rank + 1)) / log(ranks + 1), the first rank being 0: about as
    frequent as words of text, which a vocabulary lists by their frequency after its marks."""

    def __init__(self, vocabulary: int, count: int, never: Iterable[int]):
        self.never = sorted(never)
        """The marks that follow no word."""
        self.ranks = vocabulary - len(self.never)
        self.count = count if 2 * count < self.ranks else 0
        """0 if half of all words were asked for: to weigh up all is less work then."""

    def sample(self, draw: CounterRng) -> tuple[Tensor, Tensor]:
        """[count] words, drawn until there are so many, and [] the draws that it took: all before the one that finds a
        further word."""
        if not self.count:
            return torch.empty(0, dtype=torch.long), torch.tensor(0)
        size = 3 * self.count
        while True:
            share = (draw.random_bits("negatives", torch.zeros(1, dtype=torch.long), size)[0] >> 10).double() / 2**53
            rank = torch.exp(share * math.log(self.ranks + 1)).long() - 1
            found, first = np.unique(rank.clamp(0, self.ranks - 1).numpy(), return_index=True)
            if len(found) > self.count:
                break
            size *= 2
        order = first.argsort()
        words = torch.from_numpy(found[order[: self.count]])
        for mark in self.never:  # from ranks to words
            words += words >= mark
        return words, torch.tensor(int(first[order[self.count]]))

    def loss(self, vectors: Tensor, table: Tensor, bias: Tensor, words: Tensor, drawn: Tensor, tries: Tensor) -> Tensor:
        """The sum of -log softmax of each word's score among those of the drawn words, all less the log of the chance
        1 - (1 - p(word))^tries to be among these: vectors [words, width], table [vocabulary, width], bias [vocabulary].
        """
        ids = torch.cat([words, drawn])
        rank = ids - sum((ids > mark).long() for mark in self.never)
        chances = torch.log1p(1 / (rank + 1)) / math.log(self.ranks + 1)
        shift = bias[ids] - (-torch.expm1(tries * torch.log1p(-chances))).log()
        truth, others = shift.split([len(words), len(drawn)])
        own = (vectors.float() * F.embedding(words, table)).sum(1) + truth
        scores = F.linear(vectors, F.embedding(drawn, table), others)
        scores = scores.masked_fill(words[:, None] == drawn, -torch.inf).float()  # a word is not told from itself
        return (torch.logaddexp(own, scores.logsumexp(1)) - own).sum()

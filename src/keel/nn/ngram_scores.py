"""Tag scores of the n-grams around each word, as a linear-chain CRF with hand-made features has them.

Beside the scores of a network they are the wide part of a wide and deep model (Cheng et al. 2016). With characters as
words, they are the usual features of Chinese taggers (Peng & Dredze 2015): uni-, bi- and trigrams in a window of five.
"""

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.nn.task_network import MULTIPLIER

WINDOW = 2
"""Words on either side."""
SPAN = 2 * WINDOW + 1
LONGEST = 3
SLOTS = [(start, size) for size in range(1, LONGEST + 1) for start in range(SPAN + 1 - size)]
"""First word in the window, and size, of each n-gram; the same words in another slot have another score."""
UNSEEN = 4.0
"""An n-gram with n occurrences in training is dropped with probability UNSEEN / (UNSEEN + n) (Kiperwasser & Goldberg
2016): otherwise all n-grams of a name are known in training, but not in new text, where names would be missed."""
NO_KEY = torch.iinfo(torch.int64).max


def word_hash(word: str) -> int:
    """A hash of 64 bits, signed; 0 stands for a position beyond the sentence."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def ngram_keys(hashes: Tensor) -> Tensor:
    """[batch, words, slots]: keys of the n-grams around each word, by hashes of words [batch, words].

    The key of slot s is s + the sum of m^(5 s + w + 1) h_w over its words w of the window, modulo 2^64, with m =
    `MULTIPLIER`.
    """
    padded = F.pad(hashes, (WINDOW, WINDOW))
    keys = torch.arange(len(SLOTS), device=hashes.device).expand(*hashes.shape, -1)
    multipliers = _multipliers().to(hashes.device)
    for position in range(SPAN):
        keys = keys + padded[:, position : position + hashes.shape[1], None] * multipliers[position]
    return keys


def _multipliers() -> Tensor:
    """[positions, slots]: odd numbers, 0 where a slot does not have the position."""
    rows = [
        [pow(MULTIPLIER, SPAN * slot + word + 1, 1 << 64) * (start <= word < start + size) for word in range(SPAN)]
        for slot, (start, size) in enumerate(SLOTS)
    ]
    return torch.from_numpy(np.array(rows, np.uint64).T.astype(np.int64))


class NgramScores(nn.Module):
    """A score for each tag of each of the most frequent n-grams; their sum is added to the logits of a word."""

    keys: Tensor  # [size] sorted; NO_KEY where there are fewer n-grams
    drop: Tensor  # [size] dropout probability in training

    def __init__(self, size: int, tags: int):
        super().__init__()
        self.scores = nn.Embedding.from_pretrained(torch.zeros(size, tags), freeze=False)
        self.register_buffer("keys", torch.full((size,), NO_KEY))
        self.register_buffer("drop", torch.zeros(size), persistent=False)

    def count(self, hashes: np.ndarray, starts: np.ndarray) -> None:
        """Choose the n-grams of these words: sequence i has those from starts[i] to starts[i + 1]."""
        # Positions beyond a sequence are those between it and the next.
        positions = np.arange(len(hashes)) + WINDOW * np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        flat = np.zeros(len(hashes) + WINDOW * (len(starts) - 1), np.int64)
        flat[positions] = hashes
        keys = ngram_keys(torch.from_numpy(flat)[None])[0, torch.from_numpy(positions)]
        found, counts = np.unique(keys.numpy(), return_counts=True)
        chosen = np.sort(np.argsort(-counts, kind="stable")[: len(self.keys)])
        self.keys.fill_(NO_KEY)
        self.keys[: len(chosen)] = torch.from_numpy(found[chosen])
        self.drop[: len(chosen)] = torch.from_numpy(UNSEEN / (UNSEEN + counts[chosen])).float()

    def forward(self, hashes: Tensor) -> Tensor:
        """[batch, words, tags] of the hashes of words [batch, words], 0 beyond a sequence."""
        keys = ngram_keys(hashes)
        index = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        known = self.keys[index] == keys
        if self.training:
            known &= torch.rand(keys.shape, device=keys.device) >= self.drop[index]
        return (self.scores(index) * known[..., None]).sum(-2)

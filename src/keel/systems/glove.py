"""GloVe (Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", 2014).

New then: training on global co-occurrence counts instead of windows of text. The dot product of two vectors is fit to
the log co-occurrence count of their words by weighted least squares; a word's vector is the sum of its center and
context vectors.
"""

import hashlib
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import Count, Ge, Gt, Lt, cache_folder
from keel.data.documents import Documents
from keel.data.token_store import disk_errors
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.systems.static_vectors import DatasetCache, StaticEncoder, StaticSystem, sum_over_threads
from keel.systems.system import OWN_UPDATES
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Sums, Tensors

CHUNK_CELLS = 4096
"""Cells of the co-occurrence matrix per training example."""


@dataclass(frozen=True, kw_only=True)
class Glove(StaticSystem):
    """Hyper-parameters of GloVe."""

    window: Count = 10
    """Context words on either side; each counts 1 / distance."""
    x_max: Annotated[float, Gt(0)] = 100.0
    """Cutoff of the weighting function: co-occurrence counts above it have weight 1."""
    alpha: Annotated[float, Ge(0), Lt(math.inf)] = 0.75
    """Exponent of the weighting function (count / x_max)^alpha below the cutoff."""
    memory: Annotated[float, Gt(0)] = 4.0
    """Memory for counting co-occurrences, in GiB; the rest is on disk."""

    name = "glove"
    year = 2014
    pretraining_defaults = replace(OWN_UPDATES, epochs=25, batch=64, lr=0.05, schedule="constant", log_every=50)
    tunable = ("window", "x_max", "alpha", "memory")

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "GloveTraining":
        return GloveTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Cooccurrences(Tensors):
    """Cells of the co-occurrence matrix X."""

    centers: Tensor  # [pairs]
    contexts: Tensor  # [pairs]
    counts: Tensor  # [pairs]


class _CooccurrenceFile(NamedTuple):
    """The co-occurrence counts of a corpus, memory-mapped from the cache."""

    cells: np.ndarray
    path: Path
    new: bool
    """Counted in this run rather than found in the cache."""


class GloveTraining(CustomUpdate):
    """J = 1/2 sum over i, j of f(X_ij) (w_i . w~_j + b_i + b~_j - log X_ij)^2, with f(x) = min(1, (x / x_max)^alpha).

    The encoder gets w + w~ at the end of training. Rows are [w, b, 1, 0 ...] and [w~, 1, b~, 0 ...], whose dot product
    is the score; the `_sums` hold AdaGrad's accumulated squared steps.
    """

    centers: nn.Parameter  # [vocab, size]
    contexts: nn.Parameter
    center_sums: Tensor
    context_sums: Tensor

    def __init__(self, system: Glove, encoder: StaticEncoder, tokenizer: Tokenizer):
        from keel.kernels.simd import round_up_to_lanes

        super().__init__()
        self.system, self.encoder, self.special_ids = system, encoder, tokenizer.special_ids
        width = encoder.width
        size = round_up_to_lanes(width + 2)
        for name, learned, one in (("center", width, width + 1), ("context", width + 1, width)):
            rows = torch.zeros(encoder.vocab_size, size)
            for part in (slice(width), learned):
                nn.init.uniform_(rows[:, part], -0.5 / width, 0.5 / width)
            rows[:, one] = 1.0
            rows[self.special_ids, :width] = 0.0  # never trained: an unknown word adds nothing to a mean
            self.register_parameter(f"{name}s", nn.Parameter(rows))
            self.register_buffer(f"{name}_sums", torch.ones_like(rows))
        self._cooccurrences = DatasetCache[_CooccurrenceFile]()

    def notes(self) -> list[str]:
        return [
            f"{len(file.cells):,} co-occurring pairs {'counted' if file.new else 'read from the cache'}: "
            f"{file.cells.nbytes / 1e6:,.1f} MB in {file.path}, which may be deleted"
            for file in self._cooccurrences.values()
        ]

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(len(self._cells(data)) / CHUNK_CELLS)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> Cooccurrences:
        """The cells of these examples in the order of `update`, in both directions."""
        cells = self._cells(data)
        chosen = np.concatenate(
            [cells[first : first + CHUNK_CELLS] for first in self._chunk_starts(data, rng, examples)]
        )
        both = torch.from_numpy(np.stack([chosen["first"], chosen["second"]], 1).astype(np.int64))
        once = torch.ones(both.shape, dtype=torch.bool)
        once[:, 1] = both[:, 0] != both[:, 1]
        counts = torch.from_numpy(np.repeat(chosen["count"], 2)).view(-1, 2)
        return Cooccurrences(centers=both[once], contexts=both.flip(1)[once], counts=counts[once])

    def counts(self, batch: Cooccurrences) -> dict[str, Tensor]:
        """Sum of weights f(X): most pairs of a corpus are rare and weigh little, but not those of validation text."""
        return {"squares": self._weights(batch).double().sum()}

    def forward(self, batch: Cooccurrences, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        scores = (self.centers[batch.centers] * self.contexts[batch.contexts]).sum(-1)
        return {"squares": 0.5 * (self._weights(batch) * (scores - batch.counts.log()).square()).sum()}, None

    def _weights(self, batch: Cooccurrences) -> Tensor:
        return (batch.counts / self.system.x_max).pow(self.system.alpha).clamp(max=1.0)

    def update(self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        from keel.kernels.glove_updates import update_glove

        cells = self._cells(data)
        if len(cells) <= self.encoder.vocab_size and (cells["first"] == cells["second"]).all():
            raise KeelError("no two different words of the corpus co-occur: use more text")
        chunk_starts = self._chunk_starts(data, rng, examples)
        tables = [
            table.detach().numpy() for table in (self.centers, self.contexts, self.center_sums, self.context_sums)
        ]

        def one(chunk_starts: np.ndarray) -> tuple[float, float, int]:
            x_max, alpha = self.system.x_max, self.system.alpha
            return update_glove(
                cells, chunk_starts, CHUNK_CELLS, self.encoder.width, x_max, alpha, np.float32(lr), *tables
            )

        shares = [chunk_starts[number::threads].copy() for number in range(threads)]
        loss, weights, updates = sum_over_threads(one, shares)
        return {"squares": loss}, {"squares": weights, "pairs": updates}

    def finish(self) -> None:
        with torch.no_grad():
            self.encoder.words.weight.copy_((self.centers + self.contexts)[:, : self.encoder.width])

    def _chunk_starts(self, data: Documents, rng: CounterRng, examples: range) -> np.ndarray:
        """First cell of each example."""
        index, _ = rng.epoch_order(torch.arange(examples.start, examples.stop), self.epoch_size(data))
        return index.numpy() * CHUNK_CELLS

    def _cells(self, data: Documents) -> np.ndarray:
        return self._cooccurrences.get(
            data, lambda: _count_cooccurrences(data, self.special_ids, self.encoder.vocab_size, self.system)
        ).cells


def _count_cooccurrences(data: Documents, special_ids: list[int], vocab_size: int, system: Glove) -> _CooccurrenceFile:
    """Co-occurrence counts of these documents, from the cache if it has them.

    Counts of validation documents are scaled up to the size of their corpus.
    """
    from keel.kernels.cooccurrence import CELL, count_cooccurrences
    from keel.kernels.word_counts import TokenSpans, count_words

    text = TokenSpans(*data.document_arrays())
    digest = hashlib.blake2b(f"1 {system.window} {vocab_size} {special_ids}".encode(), digest_size=16)
    for array in text:
        digest.update(array.data)
    folder = cache_folder() / "cooccurrences"
    path = folder / digest.hexdigest()
    new = not path.exists()
    if new:
        counts = count_words(*text, vocab_size)
        counts[special_ids] = 0
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as temporary:
                count_cooccurrences(
                    text, counts, Path(temporary) / "cells", window=system.window, scale=len(text.ids) / data.size,
                    memory=system.memory, threads=torch.get_num_threads(),
                )  # fmt: skip
                os.rename(Path(temporary) / "cells", path)
    cells = np.asarray(np.memmap(path, CELL, "r")) if path.stat().st_size else np.empty(0, CELL)
    return _CooccurrenceFile(cells, path, new)

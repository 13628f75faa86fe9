"""GloVe (Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", 2014).

New then: the text is read once, to count which words stand near which; what is learned from are the counts. The
product of two vectors is to be the logarithm of how often their words met, by weighted least squares. A word's vector
is the sum of the two that it has, as a center and as a context.
"""

import errno
import hashlib
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import cache_folder
from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.systems.static_vectors import StaticEncoder, StaticSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, State, Tensors
from keel.training.plan import Train

CHUNK_CELLS = 4096
"""Cells in a row of training."""


@dataclass(frozen=True, kw_only=True)
class Glove(StaticSystem):
    """The hyper-parameters of GloVe."""

    window: int = 10
    """Words on either side that are near; each counts as 1 / its distance."""
    x_max: float = 100.0
    """Pairs that met more often than that weigh no more."""
    alpha: float = 0.75
    """Rarer ones weigh (count / x_max) to this power."""
    memory: float = 4.0
    """GiB that counting may take; what does not fit is kept on disk."""

    name: ClassVar[str] = "glove"
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own",
        epochs=25,
        batch=64,
        lr=0.05,
        schedule="constant",
        warmup=0,
        evaluate_every=0,
        log_every=50,
        device="cpu",
    )
    tunable: ClassVar[tuple[str, ...]] = ("window", "x_max", "alpha", "memory")

    def __post_init__(self) -> None:
        for name in ("width", "window"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("x_max", "memory"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.alpha < math.inf:
            raise UsageError(f"alpha must not be below 0, as {self.alpha} is")

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "GloveTraining":
        return GloveTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Cooccurrences(Tensors):
    """Pairs of words and how often they met."""

    centers: Tensor  # [pairs]
    contexts: Tensor  # [pairs]
    counts: Tensor  # [pairs]


class _CooccurrenceFile(NamedTuple):
    """The cells of a corpus, on disk."""

    cells: np.ndarray
    data: Documents
    path: Path
    new: bool
    """Whether they were counted now."""

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Nobody writes into them: a copy of the objective needs none of its own."""
        return self


class GloveTraining(CustomUpdate):
    """1/2 sum over i, j of f(X_ij) (w_i . w~_j + b_i + b~_j - log X_ij)^2, with f(x) = min(1, (x / x_max)^alpha).

    The encoder gets w + w~ when training is done; until then both stand here, in rows [w, b, 1, 0 ...] and
    [w~, 1, b~, 0 ...] whose product is the score, and beside each number the sum of its squared steps for AdaGrad.
    """

    centers: nn.Parameter  # [vocabulary, size]
    contexts: nn.Parameter
    center_sums: Tensor
    context_sums: Tensor

    def __init__(self, system: Glove, encoder: StaticEncoder, tokenizer: Tokenizer):
        from keel.kernels.glove_updates import LANES

        super().__init__()
        self.system, self.encoder, self.specials = system, encoder, tokenizer.special_ids
        width = encoder.width
        size = math.ceil((width + 2) / LANES) * LANES
        for name, learned, one in (("center", width, width + 1), ("context", width + 1, width)):
            rows = torch.zeros(encoder.vocab_size, size)
            for part in (slice(width), learned):
                nn.init.uniform_(rows[:, part], -0.5 / width, 0.5 / width)
            rows[:, one] = 1.0
            rows[self.specials, :width] = 0.0  # never met in training: an unknown word adds nothing to a mean
            self.register_parameter(f"{name}s", nn.Parameter(rows))
            self.register_buffer(f"{name}_sums", torch.ones_like(rows))
        self._kept: dict[int, _CooccurrenceFile] = {}

    def notes(self) -> list[str]:
        return [
            f"{len(kept.cells):,} pairs of words that meet {'were counted' if kept.new else 'had been before'}: "
            f"{kept.cells.nbytes / 1e6:,.1f} MB in {kept.path}, which may be deleted"
            for kept in self._kept.values()
        ]

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(len(self._cells(data)) / CHUNK_CELLS)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> Cooccurrences:
        """The pairs of these rows in the order in which `update` learns from them, both ways each."""
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
        """The loss is told by the pairs' weights: those that are rare, and weigh next to nothing, are most of the pairs
        of a text, but none of those of a small part that is held out."""
        return {"squares": self._weights(batch).double().sum()}

    def forward(self, batch: Cooccurrences, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        scores = (self.centers[batch.centers] * self.contexts[batch.contexts]).sum(-1)
        return {"squares": 0.5 * (self._weights(batch) * (scores - batch.counts.log()).square()).sum()}, None

    def _weights(self, batch: Cooccurrences) -> Tensor:
        return (batch.counts / self.system.x_max).pow(self.system.alpha).clamp(max=1.0)

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels.glove_updates import update_glove

        cells = self._cells(data)
        if len(cells) <= self.encoder.vocab_size and (cells["first"] == cells["second"]).all():
            raise KeelError("no two different words of the corpus stand near each other: give it more text")
        firsts = self._chunk_starts(data, rng, examples)
        tables = [
            table.detach().numpy() for table in (self.centers, self.contexts, self.center_sums, self.context_sums)
        ]

        def one(firsts: np.ndarray) -> tuple[float, float, int]:
            x_max, alpha = self.system.x_max, self.system.alpha
            return update_glove(cells, firsts, CHUNK_CELLS, self.encoder.width, x_max, alpha, np.float32(lr), *tables)

        if threads == 1:
            results = [one(firsts)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(one, [firsts[number::threads].copy() for number in range(threads)]))
        loss, weights, updates = (sum(column) for column in zip(*results, strict=True))
        return {"squares": loss}, {"squares": weights, "pairs": updates}

    def finish(self) -> None:
        with torch.no_grad():
            self.encoder.words.weight.copy_((self.centers + self.contexts)[:, : self.encoder.width])

    def _chunk_starts(self, data: Documents, rng: CounterRng, examples: range) -> np.ndarray:
        """The number of each row's first cell."""
        index, _ = rng.epoch_order(torch.arange(examples.start, examples.stop), self.epoch_size(data))
        return index.numpy() * CHUNK_CELLS

    def _cells(self, data: Documents) -> np.ndarray:
        if id(data) not in self._kept:
            self._kept[id(data)] = _count_cooccurrences(data, self.specials, self.encoder.vocab_size, self.system)
        return self._kept[id(data)].cells


def _count_cooccurrences(data: Documents, specials: list[int], vocabulary: int, system: Glove) -> _CooccurrenceFile:
    """The cells of these documents, counted anew unless the cache has them.

    What is held out is a small part of its corpus: its counts are taken as many times as it would take to fill it.
    """
    from keel.kernels.cooccurrence import CELL, DocumentSpans, count_cooccurrences
    from keel.kernels.word_counts import count_words

    ids = data.ids.numpy()
    begins, stops = (np.ascontiguousarray(data.starts.numpy()[bounds]) for bounds in data.spans.numpy().T)
    text = DocumentSpans(ids.view(f"u{ids.itemsize}"), begins, stops)
    digest = hashlib.blake2b(f"1 {system.window} {vocabulary} {specials}".encode(), digest_size=16)
    for array in text:
        digest.update(array.data)
    folder = cache_folder() / "cooccurrences"
    path = folder / digest.hexdigest()
    new = not path.exists()
    if new:
        counts = count_words(*text, vocabulary)
        counts[specials] = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as beside:
                count_cooccurrences(
                    text, counts, Path(beside) / "cells", window=system.window, scale=len(ids) / data.size,
                    memory=system.memory, threads=torch.get_num_threads(),
                )  # fmt: skip
                os.rename(Path(beside) / "cells", path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise KeelError(f"the disk of {folder} is full: free some and run the same command again") from None
            raise KeelError(f"{folder} cannot be written ({error.strerror}): set KEEL_CACHE to another place") from None
    cells = np.asarray(np.memmap(path, CELL, "r")) if path.stat().st_size else np.empty(0, CELL)
    return _CooccurrenceFile(cells, data, path, new)

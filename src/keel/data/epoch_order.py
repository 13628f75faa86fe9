"""Epoch order of labelled examples: every example once per epoch, epochs without a gap between them."""

from collections.abc import Callable

import numpy as np

from keel.training.counter_rng import CounterRng, derive_seed

CACHED_EPOCHS = 4


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator that shuffles one epoch."""
    return np.random.default_rng(derive_seed(seed, "epoch", epoch))


class EpochOrder:
    """Example indices of each step; `make_order(seed, epoch)` is a permutation of `size` examples.

    A corpus is too large for an array per epoch: `CounterRng.epoch_order` computes its permutation index by index.
    """

    def __init__(self, size: int, make_order: Callable[[int, int], np.ndarray]):
        self.size, self.make_order = size, make_order
        self._cache: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """[size] all examples in the order of one epoch."""
        if (seed, epoch) not in self._cache:
            if len(self._cache) >= CACHED_EPOCHS:
                self._cache.clear()
            self._cache[seed, epoch] = self.make_order(seed, epoch)
        return self._cache[seed, epoch]

    def step_indices(self, rng: CounterRng, examples: range) -> np.ndarray:
        """The examples of a part of a step; a batch may end one epoch and begin the next."""
        epochs, position = np.divmod(int(rng.first_example) + np.arange(examples.start, examples.stop), self.size)
        indices = np.empty_like(position)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self(rng.seed, epoch)[position[epochs == epoch]]
        return indices

"""SplitMix64 (Steele, Lea & Flood 2014) in Numba: the state is an integer that advances by GAMMA."""

import numpy as np
from numba import njit

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
A, B, C = np.uint64(30), np.uint64(27), np.uint64(31)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def mix(x):
    """SplitMix64's finalizer, as in training/counter_rng.py."""
    x = (x ^ (x >> A)) * FIRST
    x = (x ^ (x >> B)) * SECOND
    return x ^ (x >> C)


@njit(cache=True, nogil=True, inline="always")
def random_below(bits, size):
    """A uniform integer from 0 to size - 1, from the lower half of the bits."""
    return np.int64(((bits & LOW) * np.uint64(size)) >> HALF)


@njit(cache=True, nogil=True, inline="always")
def sample_alias(bits, probabilities, aliases):
    """Sample an index by Walker's alias method, in 2^32."""
    column = random_below(bits, len(probabilities))
    other = np.int64(aliases[column])  # read always: a mispredicted branch costs more
    return other if (bits >> HALF) >= np.uint64(probabilities[column]) else column

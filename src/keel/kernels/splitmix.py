"""Draws in compiled code: SplitMix64 (Steele, Lea & Flood 2014), whose state is a number that goes on by GAMMA."""

import numpy as np
from numba import njit

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
A, B, C = np.uint64(30), np.uint64(27), np.uint64(31)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def mix(x):
    """Bits of a state: SplitMix64's finalizer, as in train/draw.py."""
    x = (x ^ (x >> A)) * FIRST
    x = (x ^ (x >> B)) * SECOND
    return x ^ (x >> C)


@njit(cache=True, nogil=True, inline="always")
def random_below(bits, size):
    """One of 0 to size - 1, by the lower half of some bits."""
    return np.int64(((bits & LOW) * np.uint64(size)) >> HALF)


@njit(cache=True, nogil=True, inline="always")
def sample_alias(bits, chances, others):
    """One of unlike chances, by Walker's alias method, in 2^32."""
    drawn = random_below(bits, len(chances))
    other = np.int64(others[drawn])  # read in any case: to guess whether it is needed costs more
    return other if (bits >> HALF) >= np.uint64(chances[drawn]) else drawn

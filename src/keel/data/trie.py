"""Words by their characters in a trie, for compiled code."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from keel.data.byte_bpe import slot
from keel.data.text_encodings import code_points


class Trie:
    """A trie in hash tables: `child` finds the node after a character, and `values` has the value of each word."""

    def __init__(self, words: Sequence[str], values: np.ndarray):
        """`values` [words] float; of equal words, the last one counts."""
        codes = code_points("".join(words))
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        slots = 1 << max(4, (2 * len(codes)).bit_length())
        self.keys, self.nodes = np.full(slots, -1, np.int64), np.zeros(slots, np.int32)
        by_node = np.full(len(codes) + 1, np.nan)
        used = _grow(codes, sizes, values, self.keys, self.nodes, by_node)
        self.values = by_node[:used].copy()
        """[nodes] the value of the word that ends at each node, NaN if there is none."""


@njit(cache=True, nogil=True)
def child(keys, nodes, node, code):
    """Child of a node; 0, the root, if there is none."""
    return nodes[slot(keys, np.int64(node) << 21 | np.int64(code))]


@njit(cache=True, nogil=True)
def _grow(codes, sizes, word_values, keys, nodes, values):
    """Insert all words; returns the number of nodes."""
    used, begin = 1, 0
    for word in range(len(sizes)):
        node = 0
        for place in range(begin, begin + sizes[word]):
            key = np.int64(node) << 21 | np.int64(codes[place])
            where = slot(keys, key)
            if keys[where] == -1:
                keys[where], nodes[where] = key, used
                used += 1
            node = nodes[where]
        values[node] = word_values[word]
        begin += sizes[word]
    return used

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

    def find_longest(self, codes: np.ndarray, sizes: np.ndarray, alphabetic: np.ndarray) -> np.ndarray:
        """[found, 3] start, end and value (a whole number) of the words in texts of these sizes, from left to right the
        longest; none starts or ends between two `alphabetic` characters."""
        return _find_longest(codes, sizes, alphabetic, self.keys, self.nodes, self.values)


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


@njit(cache=True, nogil=True)
def _find_longest(codes, sizes, alphabetic, keys, nodes, values):
    found = np.empty((len(codes), 3), np.int64)
    count = begin = 0
    for size in sizes:
        stop, place = begin + size, begin
        while place < stop:
            end, term = place, -1
            if place == begin or not alphabetic[place] or not alphabetic[place - 1]:
                node, y = 0, place
                while y < stop:
                    node = child(keys, nodes, node, codes[y])
                    if node == 0:
                        break
                    y += 1
                    inside = y < stop and alphabetic[y] and alphabetic[y - 1]
                    if values[node] == values[node] and not inside:
                        end, term = y, int(values[node])
            if term >= 0:
                found[count, 0], found[count, 1], found[count, 2] = place, end, term
                count += 1
                place = end
            else:
                place += 1
        begin = stop
    return found[:count].copy()

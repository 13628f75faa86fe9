"""A tree over the words, frequent ones near its root (Huffman 1952): the softmax as a walk of yes and no."""

from collections import deque
from typing import NamedTuple

import numpy as np


class HuffmanTree(NamedTuple):
    """For each word the inner nodes from the root down to it, and which way it goes at each."""

    nodes: np.ndarray  # [words, depth] int32: numbers of inner nodes, 0 beyond the word's own length
    signs: np.ndarray  # [words, depth] float32: 1 or -1, 0 beyond
    lengths: np.ndarray  # [words] int32


def huffman_tree(counts: np.ndarray) -> HuffmanTree:
    """The tree in which the mean length of a walk, by these counts, is the least; words - 1 inner nodes, root last.

    p(word) is the product of sigmoid(sign x score of node) on its walk, which sums up to 1 over all words.
    """
    size = len(counts)
    order = size - 1 - np.argsort(counts[::-1], kind="stable")  # the rarest first, of equals the last, as word2vec.c
    leaves = deque(zip(counts[order].tolist(), order.tolist(), strict=True))
    inner: deque[tuple[float, int]] = deque()  # made in the order of their weight
    parents = np.zeros(2 * size - 1, np.int64)
    ways = np.zeros(2 * size - 1, np.float32)
    for node in range(size - 1):
        weight = 0.0
        for way in (1.0, -1.0):
            light = leaves if not inner or (leaves and leaves[0][0] < inner[0][0]) else inner
            part, child = light.popleft()
            parents[child], ways[child] = node, way
            weight += part
        inner.append((weight, size + node))

    walks: list[tuple[np.ndarray, np.ndarray]] = []  # from the words up: each ends at the root at another time
    lengths = np.zeros(size, np.int32)
    here = np.arange(size)
    root = 2 * size - 2
    while (under := here != root).any():
        lengths += under
        walks.append((np.where(under, parents[here], 0), np.where(under, ways[here], 0)))
        here = np.where(under, size + parents[here], root)
    nodes, signs = np.zeros((size, len(walks)), np.int32), np.zeros((size, len(walks)), np.float32)
    for up, (parent, way) in enumerate(walks):
        words = np.flatnonzero(lengths > up)
        nodes[words, lengths[words] - 1 - up], signs[words, lengths[words] - 1 - up] = parent[words], way[words]
    return HuffmanTree(nodes, signs, lengths)

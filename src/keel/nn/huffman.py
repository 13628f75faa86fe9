"""Huffman tree (Huffman 1952) for the hierarchical softmax: frequent words have short paths."""

from collections import deque
from typing import NamedTuple

import numpy as np


class HuffmanTree(NamedTuple):
    """Path of each word: the inner nodes from the root, and the direction at each."""

    nodes: np.ndarray  # [words, depth] int32: inner nodes, 0 beyond the length of the path
    signs: np.ndarray  # [words, depth] float32: 1 or -1, 0 beyond
    lengths: np.ndarray  # [words] int32


def huffman_tree(counts: np.ndarray) -> HuffmanTree:
    """The tree of least mean path length under these counts; words - 1 inner nodes, root last.

    p(word) is the product of sigmoid(sign x score of node) over its path, which sums to 1 over all words.
    """
    size = len(counts)
    # By rising count, ties by falling index, as in word2vec.c.
    order = size - 1 - np.argsort(counts[::-1], kind="stable")
    leaves = deque(zip(counts[order].tolist(), order.tolist(), strict=True))
    inner: deque[tuple[float, int]] = deque()  # created by rising weight
    parents = np.zeros(2 * size - 1, np.int64)
    directions = np.zeros(2 * size - 1, np.float32)
    for node in range(size - 1):
        weight = 0.0
        for direction in (1.0, -1.0):
            lighter = leaves if not inner or (leaves and leaves[0][0] < inner[0][0]) else inner
            part, child = lighter.popleft()
            parents[child], directions[child] = node, direction
            weight += part
        inner.append((weight, size + node))

    levels: list[tuple[np.ndarray, np.ndarray]] = []  # from the leaves to the root
    lengths = np.zeros(size, np.int32)
    current = np.arange(size)
    root = 2 * size - 2
    while (below_root := current != root).any():
        lengths += below_root
        levels.append((np.where(below_root, parents[current], 0), np.where(below_root, directions[current], 0)))
        current = np.where(below_root, size + parents[current], root)
    nodes, signs = np.zeros((size, len(levels)), np.int32), np.zeros((size, len(levels)), np.float32)
    for level, (parent, direction) in enumerate(levels):
        words = np.flatnonzero(lengths > level)
        place = words, lengths[words] - 1 - level
        nodes[place], signs[place] = parent[words], direction[words]
    return HuffmanTree(nodes, signs, lengths)

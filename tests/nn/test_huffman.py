"""Huffman tree: minimal mean path length, and probabilities that sum to 1."""

import heapq

import numpy as np
import pytest

from keel.nn.huffman import huffman_tree


@pytest.mark.parametrize("size", [2, 3, 10, 1000])
def test_mean_path_length_is_minimal(size: int) -> None:
    counts = np.random.default_rng(size).zipf(1.3, size).clip(max=10**9)
    tree = huffman_tree(counts)
    heap, cost = counts.tolist(), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        cost += joined
        heapq.heappush(heap, joined)
    assert (tree.lengths * counts).sum() == cost
    assert (np.count_nonzero(tree.signs, axis=1) == tree.lengths).all()


def test_probabilities_sum_to_one() -> None:
    counts = np.array([0, 0, 7, 1, 30, 2, 2, 0])
    tree = huffman_tree(counts)
    scores = np.random.default_rng(0).normal(size=len(counts) - 1)[np.minimum(tree.nodes, len(counts) - 2)]
    factors = np.where(tree.signs != 0, 1 / (1 + np.exp(-tree.signs * scores)), 1.0)
    assert factors.prod(1).sum() == pytest.approx(1.0)
    assert tree.nodes[:, 0].tolist() == [len(counts) - 2] * len(counts)  # the root


def test_a_single_word_has_an_empty_path() -> None:
    assert huffman_tree(np.array([5])).lengths.tolist() == [0]

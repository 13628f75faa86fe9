"""Context windows and negatives are sampled as word2vec defines them."""

from itertools import pairwise

import numpy as np
import pytest

from keel.kernels.context_windows import allocate_windows, sample_windows
from keel.nn.huffman import huffman_tree
from keel.systems.word2vec import NO_TREE, sampling_tables

COUNTS = np.array([0, 800, 400, 200, 100, 50, 25, 12, 6, 3])


def sampled_windows(block: int, *, window: int = 3, negatives: int = 4, length: int = 3000, tree=NO_TREE):
    """The windows of random words in sentences of ten."""
    probabilities = sampling_tables(COUNTS, 0.0, 0.75)
    words = np.random.default_rng(0).choice(len(COUNTS), length, p=COUNTS / COUNTS.sum())
    sentences = np.arange(length) // 10
    filled = allocate_windows(length, window, negatives, tree)
    count = sample_windows(
        words,
        sentences,
        length,
        window,
        probabilities.probabilities,
        probabilities.aliases,
        negatives,
        block,
        tree,
        np.uint64(3),
        *filled,
    )
    return words, count, *(table[:count] for table in filled)


@pytest.mark.parametrize("block", [1, 4])
def test_windows_of_a_block_share_negatives(block: int) -> None:
    _, count, _, targets, _, sizes = sampled_windows(block)
    starts = [0]
    while starts[-1] < count:
        starts.append(sizes[starts[-1], 2])
    assert starts[-1] == count
    assert max(stop - start for start, stop in pairwise(starts)) == block
    for start, stop in pairwise(starts):
        compared = sizes[start, 1]
        others = targets[start, 1:compared].tolist()
        everything = targets[start:stop, 0].tolist() + others
        assert len(set(everything)) == len(everything)
        assert all(targets[line, 1:compared].tolist() == others for line in range(start, stop))
        assert 0 not in everything


def test_window_sizes_are_uniform_and_negatives_follow_the_power() -> None:
    words, count, near, targets, _, sizes = sampled_windows(1, negatives=1, length=60_000)
    assert count == 60_000  # no sentence of one word
    inner = [line for line in range(count) if 3 <= line % 10 < 7]
    shares = np.bincount(sizes[inner, 0]) / len(inner)
    np.testing.assert_allclose(shares[[2, 4, 6]], 1 / 3, atol=0.01)
    line = inner[0]
    reach = sizes[line, 0] // 2
    expected = [*words[line - reach : line], *words[line + 1 : line + reach + 1]]
    assert near[line, : 2 * reach].tolist() == expected
    rare = targets[:, 0] >= 5  # where the center is rarely excluded
    found = np.bincount(targets[rare & (sizes[:, 1] == 2), 1], minlength=len(COUNTS))
    weights = COUNTS**0.75
    np.testing.assert_allclose(found[1:5] / found[1:5].sum(), weights[1:5] / weights[1:5].sum(), atol=0.03)


def test_targets_of_a_tree_are_the_huffman_path() -> None:
    tree = huffman_tree(COUNTS)
    words, count, _, targets, truths, sizes = sampled_windows(1, negatives=0, tree=tree)
    for line in range(count):
        length = tree.lengths[words[line]]
        assert sizes[line, 1] == length
        assert targets[line, :length].tolist() == tree.nodes[words[line], :length].tolist()
        assert truths[line, :length].tolist() == (tree.signs[words[line], :length] > 0).tolist()

"""Which words meet: what of a text is kept, and the windows around its words, drawn by compiled code.

Sub-sampling, the drawn reach of a window and the drawn words are those of word2vec (Mikolov et al. 2013).
"""

import numpy as np
from numba import njit

from keel.kernels.splitmix import GAMMA, LOW, mix, random_below, sample_alias


@njit(cache=True, nogil=True)
def subsample_words(ids, bounds, begins, ends, first, last, keep, state, words, sentences):
    """Fill in the words numbered first to last that stay after sub-sampling, and each one's sentence; how many.

    Document n starts at begins[n] in ids, and ends[n] words are in all documents up to its end. `keep` is each word's
    chance in 2^32; 0 drops what is no word. `bounds` are where sentences start.
    """
    count = 0
    document = np.searchsorted(ends, first, side="right")
    while first < last:
        before = ends[document - 1] if document > 0 else 0
        place = begins[document] + first - before
        stop = place + min(last, ends[document]) - first
        first += stop - place
        sentence = np.searchsorted(bounds, place, side="right")
        for here in range(place, stop):
            while bounds[sentence] <= here:  # the last bound is the end of all
                sentence += 1
            word = np.int64(ids[here])
            state += GAMMA
            if (mix(state) & LOW) < keep[word]:
                words[count] = word
                sentences[count] = sentence
                count += 1
        document += 1
    return count, state


@njit(cache=True, nogil=True)
def sample_context(words, sentences, count, center, window, state, near):
    """Fill in the words near a center, up to a drawn distance and inside its sentence; how many, and the new state."""
    state += GAMMA
    reach = window - random_below(mix(state), window)
    begin, stop = max(0, center - reach), min(count, center + reach + 1)
    while sentences[begin] != sentences[center]:
        begin += 1
    while sentences[stop - 1] != sentences[center]:
        stop -= 1
    for place in range(stop - begin - 1):
        near[place] = words[begin + place + (begin + place >= center)]
    return stop - begin - 1, state


@njit(cache=True, nogil=True)
def sample_negatives(targets, first, stop, chances, others, negatives, state):
    """Fill in what to tell the centers targets[first:stop, 0] from, behind each of them; how many there are in a line.

    Words are drawn by `chances` and `others` (Walker's alias method, in 2^32); none is a center or comes twice.
    """
    compared = 1
    for _ in range(negatives):
        state += GAMMA
        word = sample_alias(mix(state), chances, others)
        fresh = True
        for line in range(first, stop):
            fresh &= targets[line, 0] != word
        for earlier in range(1, compared):
            fresh &= targets[first, earlier] != word
        for line in range(first, stop):
            targets[line, compared] = word
        compared += fresh
    return compared, state


@njit(cache=True, nogil=True)
def allocate_windows(length, window, negatives, tree):
    """Room for the windows of so many words, a line each.

    The words near; the targets, in sixes; 1 where a target is true (16 more numbers may be read); how many words are
    near, how many targets there are, and where the windows end that share what was drawn.
    """
    columns = -(-max(1 + negatives, tree[0].shape[1]) // 6) * 6
    near, targets = np.empty((length, 2 * window), np.int32), np.empty((length, columns), np.int32)
    truths, sizes = np.zeros((length, columns + 16), np.float32), np.zeros((length, 3), np.int32)
    truths[:, 0] = np.float32(1.0)
    return near, targets, truths, sizes


@njit(cache=True, nogil=True)
def sample_windows(
    words, sentences, count, window, chances, others, negatives, block, tree, state, near, targets, truths, sizes
):
    """Fill in the windows of those of `count` words that have others near; how many these are.

    Up to `block` windows in a row, of different centers, share what they are told from. With a tree, the targets are
    the nodes on the way to the word instead. Targets beyond the last repeat the first.
    """
    filled = first = 0
    for center in range(count):
        found, state = sample_context(words, sentences, count, center, window, state, near[filled])
        if found > 0:
            word = words[center]
            for line in range(first, filled):
                if targets[line, 0] == word:
                    state = _finish_block(first, filled, chances, others, negatives, state, targets, sizes)
                    first = filled
                    break
            targets[filled, 0], sizes[filled, 0] = word, found
            filled += 1
            if filled == first + block:
                state = _finish_block(first, filled, chances, others, negatives, state, targets, sizes)
                first = filled
    if filled > first:
        _finish_block(first, filled, chances, others, negatives, state, targets, sizes)
    nodes, signs, lengths = tree
    if len(lengths) > 0:
        for line in range(filled):
            word = targets[line, 0]
            sizes[line, 1] = lengths[word]
            for step in range(targets.shape[1]):
                there = step if step < lengths[word] else 0
                targets[line, step] = nodes[word, there]
                truths[line, step] = np.float32(signs[word, there] > 0)
    return filled


@njit(cache=True, nogil=True)
def _finish_block(first, stop, chances, others, negatives, state, targets, sizes):
    """Draw for the windows of a block."""
    compared, state = sample_negatives(targets, first, stop, chances, others, negatives, state)
    for line in range(first, stop):
        targets[line, compared:] = targets[line, 0]
        sizes[line, 1], sizes[line, 2] = compared, stop
    return state

"""word2vec's training examples (Mikolov et al. 2013), in Numba: subsampling, random window sizes, negative sampling."""

import numpy as np
from numba import njit

from keel.kernels.splitmix import GAMMA, LOW, mix, random_below, sample_alias


@njit(cache=True, nogil=True)
def subsample_words(ids, bounds, begins, ends, first, last, keep_probabilities, state, words, sentences):
    """Fill in the words first to last that survive subsampling and their sentences; return their number and the state.

    Document n starts at ids[begins[n]], and documents up to n hold ends[n] words. `keep_probabilities` are
    in units of 2^-32, 0 for special tokens. `bounds` are the sentence starts.
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
            while bounds[sentence] <= here:  # the last bound is the end of the text
                sentence += 1
            word = np.int64(ids[here])
            state += GAMMA
            if (mix(state) & LOW) < keep_probabilities[word]:
                words[count] = word
                sentences[count] = sentence
                count += 1
        document += 1
    return count, state


@njit(cache=True, nogil=True)
def sample_context(words, sentences, count, center, window, state, context):
    """Fill in the context of a center, up to a random distance in its sentence; return its size and the state."""
    state += GAMMA
    reach = window - random_below(mix(state), window)
    begin, stop = max(0, center - reach), min(count, center + reach + 1)
    while sentences[begin] != sentences[center]:
        begin += 1
    while sentences[stop - 1] != sentences[center]:
        stop -= 1
    for place in range(stop - begin - 1):
        context[place] = words[begin + place + (begin + place >= center)]
    return stop - begin - 1, state


@njit(cache=True, nogil=True)
def allocate_windows(length, window, negatives, tree):
    """Allocate the windows of `length` centers, a line each.

    They are: context words; targets, padded to a multiple of 6; labels (16 further columns may be read); and sizes: the
    number of context words, the number of targets, and the end of the block of windows that share negatives.
    """
    columns = -(-max(1 + negatives, tree[0].shape[1]) // 6) * 6
    context, targets = np.empty((length, 2 * window), np.int32), np.empty((length, columns), np.int32)
    labels, sizes = np.zeros((length, columns + 16), np.float32), np.zeros((length, 3), np.int32)
    labels[:, 0] = np.float32(1.0)
    return context, targets, labels, sizes


@njit(cache=True, nogil=True)
def sample_windows(
    words, sentences, count, window, probabilities, aliases, negatives, block, tree, state, context, targets, labels,
    sizes,
):  # fmt: skip
    """Fill in the windows of those of `count` words that have a context; return how many.

    Up to `block` consecutive windows with different centers share negatives. With a Huffman tree the targets are the
    nodes on the path to the center instead. Targets beyond the last repeat the first.
    """
    filled = first = 0
    for center in range(count):
        found, state = sample_context(words, sentences, count, center, window, state, context[filled])
        if found > 0:
            word = words[center]
            for line in range(first, filled):
                if targets[line, 0] == word:
                    state = _finish_block(first, filled, probabilities, aliases, negatives, state, targets, sizes)
                    first = filled
                    break
            targets[filled, 0], sizes[filled, 0] = word, found
            filled += 1
            if filled == first + block:
                state = _finish_block(first, filled, probabilities, aliases, negatives, state, targets, sizes)
                first = filled
    if filled > first:
        _finish_block(first, filled, probabilities, aliases, negatives, state, targets, sizes)
    nodes, signs, lengths = tree
    if len(lengths) > 0:
        for line in range(filled):
            word = targets[line, 0]
            sizes[line, 1] = lengths[word]
            for step in range(targets.shape[1]):
                there = step if step < lengths[word] else 0
                targets[line, step] = nodes[word, there]
                labels[line, step] = np.float32(signs[word, there] > 0)
    return filled


@njit(cache=True, nogil=True)
def _finish_block(first, stop, probabilities, aliases, negatives, state, targets, sizes):
    """Sample negatives for the centers targets[first:stop, 0] into the following columns; return the state.

    Sampling is by Walker's alias method, in 2^32. No negative is one of these centers or repeats.
    """
    target_count = 1
    for _ in range(negatives):
        state += GAMMA
        word = sample_alias(mix(state), probabilities, aliases)
        fresh = True
        for line in range(first, stop):
            fresh &= targets[line, 0] != word
        for earlier in range(1, target_count):
            fresh &= targets[first, earlier] != word
        for line in range(first, stop):
            targets[line, target_count] = word
        target_count += fresh
    for line in range(first, stop):
        targets[line, target_count:] = targets[line, 0]
        sizes[line, 1], sizes[line, 2] = target_count, stop
    return state

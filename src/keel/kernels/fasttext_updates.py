"""fastText's n-grams and its updates (Bojanowski et al. 2017), compiled by Numba.

A word is the mean of its own vector and those of its n-grams, which share a table by their hash. That mean is made once
for all that it foretells, and what it learns goes back once: each vector is read and written once a window. The
definition is the loss in `systems/fasttext.py`, to which a test holds the functions here.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Sequence

import numpy as np
from numba import njit

from keel.kernels.context_windows import sample_context, subsample_words
from keel.kernels.simd import broadcast, lane_sums, load, maximum, store, where_nonnegative, zeros
from keel.kernels.splitmix import GAMMA, mix, sample_alias
from keel.kernels.word2vec_updates import FLUSH_AFTER, ONE, ZERO, exp_minus, flush_losses, prefetch_row

END = "</s>"
"""fastText's mark for the end of a line, which it does not cut."""
AHEAD = 2
"""Windows between asking for vectors and using them: the memory is slower than the sums."""


def hash_subwords(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The buckets of the n-grams of all words in a row [grams], and where each word's start [words]; "" has none."""
    marked = [b"" if word in ("", END) else b"<%b>" % word.encode("utf-8", "surrogatepass") for word in words]
    text = np.frombuffer(b"".join(marked), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, marked), np.int64, len(marked)))
    starts = np.empty(len(marked), np.int64)
    count = _hash_ngrams(text, ends, min_n, max_n, buckets, starts, np.empty(0, np.int32))
    grams = np.empty(count, np.int32)
    _hash_ngrams(text, ends, min_n, max_n, buckets, starts, grams)
    return grams, starts


@njit(cache=True, nogil=True)
def _hash_ngrams(text, ends, min_n, max_n, buckets, starts, grams):
    """Fill in the buckets, if there is room, and each word's start; how many there are.

    The hash is FNV-1a in 32 bits, over bytes as C's signed characters: those of other letters than ASCII's spread their
    sign. A mark alone is no n-gram.
    """
    count, begin = 0, 0
    for word in range(len(ends)):
        starts[word] = count
        end = ends[word]
        for first in range(begin, end):
            if text[first] & 0xC0 == 0x80:  # inside a letter
                continue
            state, place, n = np.uint64(2166136261), first, 1
            while place < end and n <= max_n:
                while True:
                    byte = np.uint64(text[place])
                    state ^= byte if byte < 128 else byte | np.uint64(0xFFFFFF00)
                    state = (state * np.uint64(16777619)) & np.uint64(0xFFFFFFFF)
                    place += 1
                    if place == end or text[place] & 0xC0 != 0x80:
                        break
                if n >= min_n and not (n == 1 and (first == begin or place == end)):
                    if len(grams) > 0:
                        grams[count] = np.int32(state % np.uint64(buckets))
                    count += 1
                n += 1
        begin = end
    return count


@njit(nogil=True, inline="always")
def _mean(words, own, grams, parts, h):
    """h = the mean of some rows of both tables."""
    share = broadcast(ONE / np.float32(len(own) + len(parts)))
    even = len(parts) // 2 * 2
    for i in range(0, words.shape[1], 16):
        a = b = broadcast(ZERO)
        for place in range(len(own)):
            a += load(words, own[place], i)
        for place in range(0, even, 2):  # two sums do not wait for each other
            a += load(grams, parts[place], i)
            b += load(grams, parts[place + 1], i)
        if even < len(parts):
            b += load(grams, parts[even], i)
        store(h, 0, i, (a + b) * share)


@njit(nogil=True, inline="always")
def _scores(h, outputs, targets, told, scores):
    """scores = u h for the targets' vectors u, four at a time; beyond the last stands the first."""
    for place in range(0, told, 4):
        w, x, y, z = targets[place], targets[place + 1], targets[place + 2], targets[place + 3]
        a = b = c = d = broadcast(ZERO)
        for i in range(0, outputs.shape[1], 16):
            v = load(h, 0, i)
            a += load(outputs, w, i) * v
            b += load(outputs, x, i) * v
            c += load(outputs, y, i) * v
            d += load(outputs, z, i) * v
        store(scores, 0, place, lane_sums((a, b, c, d)))


@njit(nogil=True, inline="always")
def _update_vectors(words, own, grams, parts, h, outputs, targets, told, errors):
    """u <- u + error h for the targets' vectors u, and each vector that h is the mean of by the sum of error u.

    Each of them takes the whole change, as the first code had it.
    """
    for i in range(0, words.shape[1], 16):
        change, v = broadcast(ZERO), load(h, 0, i)
        for place in range(told):
            change += broadcast(errors[0, place]) * load(outputs, targets[place], i)
        for place in range(told):  # read again: a word may stand here twice
            row = targets[place]
            store(outputs, row, i, load(outputs, row, i) + broadcast(errors[0, place]) * v)
        for place in range(len(own)):
            store(words, own[place], i, load(words, own[place], i) + change)
        for place in range(len(parts)):
            store(grams, parts[place], i, load(grams, parts[place], i) + change)


@njit(nogil=True, inline="always")
def _errors(scores, steps, true, told, rate, tally, used):
    """Turn scores into rate (label - sigmoid(score)); `steps` are ones and then zeros, with the step in the middle.

    A loss log(1 + exp(-+score)) is max(0, -+score) + log(1 + exp(-|score|)): tally[1] sums up the former; tally[0] is
    the product of what the logarithm is taken of. Gives the losses that were settled, and how many wait.
    """
    loss, one, middle = 0.0, broadcast(ONE), steps.shape[1] // 2
    for place in range(0, told, 16):
        score = load(scores, 0, place)
        label, there = load(steps, 0, middle - true + place), load(steps, 0, middle - told + place)
        rest = exp_minus(score)
        chance = where_nonnegative(score, one, rest) / (one + rest)
        store(scores, 0, place, (label - chance) * broadcast(rate))
        store(tally, 0, 0, load(tally, 0, 0) * (one + there * rest))
        store(tally, 1, 0, load(tally, 1, 0) + there * maximum(score * (one - label - label), broadcast(ZERO)))
        used += 1
        if used == FLUSH_AFTER:
            loss += flush_losses(tally)
            used = 0
    return loss, used


@njit(cache=True, nogil=True)
def sample_targets(words, sentences, count, window, chances, others, negatives, bag, state, near, targets, sizes):
    """Fill in the words near each of `count` words, and what is foretold there, followed by what it is told from.

    A word foretells those near it; with `bag` (CBOW) they foretell it. For each prediction `negatives` words are drawn,
    which leave out the one that is right. `sizes` are how many words are near, predictions and targets in all.
    """
    for center in range(count):
        found, state = sample_context(words, sentences, count, center, window, state, near[center])
        true = min(found, 1) if bag else found
        for place in range(true):
            targets[center, place] = words[center] if bag else near[center, place]
        told = true
        for place in range(true):
            for _ in range(negatives):
                state += GAMMA
                word = sample_alias(mix(state), chances, others)
                targets[center, told] = word
                told += word != targets[center, place]
        for place in range(told, min(told + 4, targets.shape[1])):
            targets[center, place] = targets[center, 0]
        sizes[center, 0], sizes[center, 1], sizes[center, 2] = found, true, told


@njit(cache=True, nogil=True)
def allocate_targets(count, window, negatives):
    """Tables for `draw_targets` to fill."""
    most = 2 * window * (1 + negatives) + 4
    return np.empty((count, 2 * window), np.int32), np.empty((count, most), np.int32), np.empty((count, 3), np.int32)


@njit(cache=True, nogil=True)
def update_fasttext(
    ids, bounds, begins, ends, keep, chances, others, firsts, lasts, states, inputs, grams, outputs, parts, starts,
    window, negatives, bag, rate,
):  # fmt: skip
    """Learn from the words numbered firsts[n] to lasts[n], for each n; the sum of losses and how many predictions.

    With h the mean of some vectors: u <- u + rate (label - sigmoid(u h)) h, and likewise each of those vectors by u.
    """
    length = (lasts - firsts).max()
    words, sentences = np.empty(length, np.int64), np.empty(length, np.int64)
    near, targets, sizes = allocate_targets(length, window, negatives)
    h, scores, tally, joined = zeros(1, inputs.shape[1]), zeros(1, targets.shape[1] + 16), zeros(2, 16), parts[:0]
    steps = zeros(1, 2 * scores.shape[1])
    steps[0, : scores.shape[1]] = ONE
    flush_losses(tally)
    loss, predictions, used = 0.0, 0, 0
    for n in range(len(firsts)):
        count, state = subsample_words(
            ids, bounds, begins, ends, firsts[n], lasts[n], keep, states[n], words, sentences
        )
        sample_targets(words, sentences, count, window, chances, others, negatives, bag, state, near, targets, sizes)
        for center in range(count):
            later = center + AHEAD
            if later < count:
                coming = words[min(later + window, count - 1)] if bag else words[later]
                prefetch_row(inputs, coming)
                for place in range(starts[coming], starts[coming + 1]):
                    prefetch_row(grams, parts[place])
                for place in range(sizes[later, 2]):
                    prefetch_row(outputs, targets[later, place])
            found, true, told = sizes[center]
            if found == 0:
                continue
            if bag:
                own, size = near[center, :found], 0
                for word in own:
                    begin, stop = starts[word], starts[word + 1]
                    if size + stop - begin > len(joined):
                        joined = np.append(joined, np.empty(len(joined) + stop - begin, np.int32))
                    joined[size : size + stop - begin] = parts[begin:stop]
                    size += stop - begin
                rows = joined[:size]
            else:
                near[center, 0] = words[center]
                own, rows = near[center, :1], parts[starts[words[center]] : starts[words[center] + 1]]
            _mean(inputs, own, grams, rows, h)
            _scores(h, outputs, targets[center], told, scores)
            lost, used = _errors(scores, steps, true, told, rate, tally, used)
            _update_vectors(inputs, own, grams, rows, h, outputs, targets[center], told, scores)
            loss, predictions = loss + lost, predictions + true
    return loss + flush_losses(tally), predictions

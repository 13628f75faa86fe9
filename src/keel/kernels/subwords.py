"""fastText's n-grams and its updates (Bojanowski et al. 2017), compiled by Numba.

A word is the mean of its own vector and those of its n-grams, which share a table by their hash. A center makes that
mean once, for all words near it, and all of them are told from the same drawn words: each vector is read and written
once a window. The definition is the loss in `systems/fasttext.py`, to which a test holds the functions here.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from keel.kernels.windows import _chances, _copy, next_window

END = "</s>"
"""fastText's mark for the end of a line, which it does not cut."""


def subwords(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The buckets of the n-grams of all words in a row [grams], and where each word's start [words]; "" has none."""
    marked = [b"" if word in ("", END) else b"<%b>" % word.encode("utf-8", "surrogatepass") for word in words]
    text = np.frombuffer(b"".join(marked), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, marked), np.int64, len(marked)))
    starts = np.empty(len(marked), np.int64)
    count = _cut(text, ends, min_n, max_n, buckets, starts, np.empty(0, np.int32))
    grams = np.empty(count, np.int32)
    _cut(text, ends, min_n, max_n, buckets, starts, grams)
    return grams, starts


@njit(cache=True, nogil=True)
def _cut(text, ends, min_n, max_n, buckets, starts, grams):
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


@njit(cache=True, nogil=True, fastmath=True)
def _add_rows(words, grams, word, parts, first, last, width, total):
    """Add a word's own vector and those of its n-grams to a total; how many they are."""
    own = words[word]
    for i in range(width):
        total[i] += own[i]
    for place in range(first, last):
        row = grams[parts[place]]
        for i in range(width):
            total[i] += row[i]
    return 1 + last - first


@njit(cache=True, nogil=True, fastmath=True)
def _change_rows(words, grams, word, parts, first, last, width, change):
    """Each vector that a mean is of takes the whole change, as the first code had it."""
    own = words[word]
    for i in range(width):
        own[i] += change[i]
    for place in range(first, last):
        row = grams[parts[place]]
        for i in range(width):
            row[i] += change[i]


@njit(cache=True, nogil=True, fastmath=True)
def _compare(u, count, h, size, scores):
    """scores = u h, four rows at a time."""
    for row in range(0, count, 4):
        w, x, y, z = u[row], u[row + 1], u[row + 2], u[row + 3]
        a = b = c = d = np.float32(0.0)
        for i in range(size):
            a += w[i] * h[i]
            b += x[i] * h[i]
            c += y[i] * h[i]
            d += z[i] * h[i]
        scores[row], scores[row + 1], scores[row + 2], scores[row + 3] = a, b, c, d


@njit(cache=True, nogil=True, fastmath=True)
def _mix_rows(errors, u, count, size, change):
    """change = errors u, four rows at a time."""
    for i in range(size):
        change[i] = np.float32(0.0)
    for row in range(0, count, 4):
        w, x, y, z = u[row], u[row + 1], u[row + 2], u[row + 3]
        a, b, c, d = errors[row], errors[row + 1], errors[row + 2], errors[row + 3]
        for i in range(size):
            change[i] += a * w[i] + b * x[i] + c * y[i] + d * z[i]


@njit(cache=True, nogil=True, fastmath=True)
def learn(
    words, sentences, count, inputs, grams, parts, starts, outputs, window, chances, others, negatives, rate, state, bag
):
    """A center foretells every word near it; or with `bag` (CBOW) the mean of all vectors of the words near it, it.

    With h the mean of some input vectors: u <- u + rate (label - sigmoid(u h)) h, and likewise each of the input
    vectors by u. Gives the sum of losses and the number of predictions.
    """
    width = inputs.shape[1]
    size = (width + 15) // 16 * 16  # whole registers: what is beyond the width stays zero
    most = (2 * window + negatives + 3) // 4 * 4
    near, drawn = np.empty(2 * window, np.int64), np.empty(1 + negatives, np.int64)
    targets, weights = np.empty(most, np.int64), np.empty(most, np.float32)
    u, h, change = np.zeros((most, size), np.float32), np.zeros(size, np.float32), np.zeros(size, np.float32)
    scores, powers, bits = np.zeros(most, np.float32), np.zeros(most, np.float32), np.zeros(most, np.int32)
    scale = bits.view(np.float32)
    loss, predictions = 0.0, 0
    for center in range(count):
        found, compared, state = next_window(
            words, sentences, count, center, window, chances, others, negatives, state, near, drawn
        )
        if found == 0:
            continue
        # What is foretold comes first, then what it is told from: once for each prediction that it could spoil.
        true = 1 if bag else found
        for place in range(true):
            targets[place] = drawn[0] if bag else near[place]
        told = true
        for place in range(1, compared):
            weight = true
            for other in range(true):
                weight -= targets[other] == drawn[place]
            targets[told], weights[told] = drawn[place], weight
            told += 1
        filled = (told + 3) // 4 * 4
        _copy(outputs, targets, told, filled, width, u)

        for i in range(width):
            h[i] = np.float32(0.0)
        rows = 0
        for place in range(found if bag else 1):
            word = near[place] if bag else drawn[0]
            rows += _add_rows(inputs, grams, word, parts, starts[word], starts[word + 1], width, h)
        share = np.float32(1.0) / np.float32(rows)
        for i in range(width):
            h[i] *= share

        _compare(u, filled, h, size, scores)
        _chances(scores, filled, powers, bits, scale)
        product = 1.0
        for place in range(true):
            product *= scores[place]
            if product < 1e-150:  # one logarithm for many
                loss -= np.log(product)
                product = 1.0
            scores[place] = (np.float32(1.0) - scores[place]) * rate
        loss -= np.log(product)
        for place in range(true, told):
            loss -= weights[place] * np.log(np.float64(scores[place] * powers[place]))  # the chance that it is not so
            scores[place] *= -rate * weights[place]
        for place in range(told, filled):
            scores[place] = np.float32(0.0)
        predictions += true

        _mix_rows(scores, u, filled, size, change)
        for place in range(told):
            row, error = outputs[targets[place]], scores[place]
            for i in range(width):
                row[i] += error * h[i]
        for place in range(found if bag else 1):
            word = near[place] if bag else drawn[0]
            _change_rows(inputs, grams, word, parts, starts[word], starts[word + 1], width, change)
    return loss, predictions

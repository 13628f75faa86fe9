"""fastText's n-grams and its updates (Bojanowski et al. 2017), compiled by Numba.

A word is the mean of its own vector and those of its n-grams, which share a table by their hash. A center makes that
mean once, for all words near it, and all of them are told from the same drawn words: each vector is read and written
once a window. The definition is the loss in `systems/fasttext.py`, to which a test holds the functions here.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from keel.kernels.lanes import choose, largest, load, prefetch, spread, store, sums, truncate, two_to, zeros
from keel.kernels.windows import next_window

END = "</s>"
"""fastText's mark for the end of a line, which it does not cut."""
AHEAD = 2
"""Windows between asking for vectors and using them: the memory is slower than the sums."""
ZERO, HALF, ONE, FAR = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(-120.0)
LOG2_E = np.float32(1.4426950408889634)
P1, P2, P3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
P4, P5, P6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
"""ln(2)^n / n!: 2^f by its series, to 1e-7 for f up to a half."""


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


@njit(nogil=True, inline="always")
def _exp_minus(x):
    """exp(-|x|) = 2^n 2^f with n whole, the second by its series."""
    power = largest(largest(x, spread(ZERO) - x) * spread(-LOG2_E), spread(FAR))
    n = truncate(power - spread(HALF))  # the nearest, for power is not above 0
    f = power - n
    series = spread(P4) + f * (spread(P5) + f * spread(P6))
    series = spread(P1) + f * (spread(P2) + f * (spread(P3) + f * series))
    return (spread(ONE) + f * series) * two_to(n)


@njit(nogil=True, inline="always")
def _fetch(table, row):
    """Ask the memory for a row."""
    for i in range(0, table.shape[1], 16):
        prefetch(table, row, i)


@njit(nogil=True, inline="always")
def _mean(words, own, grams, parts, h):
    """h = the mean of some rows of both tables."""
    share = spread(ONE / np.float32(len(own) + len(parts)))
    even = len(parts) // 2 * 2
    for i in range(0, words.shape[1], 16):
        a = b = spread(ZERO)
        for place in range(len(own)):
            a += load(words, own[place], i)
        for place in range(0, even, 2):  # two sums do not wait for each other
            a += load(grams, parts[place], i)
            b += load(grams, parts[place + 1], i)
        if even < len(parts):
            b += load(grams, parts[even], i)
        store(h, 0, i, (a + b) * share)


@njit(nogil=True, inline="always")
def _compare(h, outputs, targets, told, scores):
    """scores = u h for the targets' vectors u, four at a time."""
    for place in range(0, told, 4):
        w, x, y, z = targets[place], targets[place + 1], targets[place + 2], targets[place + 3]
        a = b = c = d = spread(ZERO)
        for i in range(0, outputs.shape[1], 16):
            v = load(h, 0, i)
            a += load(outputs, w, i) * v
            b += load(outputs, x, i) * v
            c += load(outputs, y, i) * v
            d += load(outputs, z, i) * v
        store(scores, 0, place, sums((a, b, c, d)))


@njit(nogil=True, inline="always")
def _change(words, own, grams, parts, h, outputs, targets, told, errors):
    """u <- u + error h for the targets' vectors u, and each vector that h is the mean of by the sum of error u.

    Each of them takes the whole change, as the first code had it.
    """
    for i in range(0, words.shape[1], 16):
        change, v = spread(ZERO), load(h, 0, i)
        for place in range(told):
            change += spread(errors[0, place]) * load(outputs, targets[place], i)
        for place in range(told):  # read again: a word may stand here twice
            row = targets[place]
            store(outputs, row, i, load(outputs, row, i) + spread(errors[0, place]) * v)
        for place in range(len(own)):
            store(words, own[place], i, load(words, own[place], i) + change)
        for place in range(len(parts)):
            store(grams, parts[place], i, load(grams, parts[place], i) + change)


@njit(nogil=True, inline="always")
def _choose(true, words, drawn, targets, labels, weights):
    """Fill in the targets: what is foretold first, then what it is told from, once for each prediction it could spoil;
    how many they are. Beyond the last they weigh nothing."""
    told = true + len(drawn)
    for place in range(true):
        targets[place] = words[place]
        labels[0, place] = weights[0, place] = ONE
    for place in range(true, told):
        targets[place], weight = drawn[place - true], true
        for other in range(true):
            weight -= targets[other] == targets[place]
        labels[0, place], weights[0, place] = ZERO, weight
    for place in range(told, told + 16):
        targets[place], weights[0, place] = targets[0], ZERO
    return told


@njit(nogil=True, inline="always")
def _errors(scores, labels, weights, true, told, rate, above, below):
    """Turn scores into rate weight (label - sigmoid(score)); the sum of the losses.

    A loss log(1 + exp(-+score)) is max(0, -+score) + log(1 + exp(-|score|)).
    """
    one, loss = spread(ONE), 0.0
    for place in range(0, told, 16):
        score, label, weight = load(scores, 0, place), load(labels, 0, place), load(weights, 0, place)
        rest = _exp_minus(score)
        chance = choose(score, one, rest) / (one + rest)
        store(scores, 0, place, (label - chance) * weight * spread(rate))
        store(above, 0, place, largest(score * (one - label - label), spread(ZERO)) * weight)
        store(below, 0, place, one + rest)
    known = unknown = 1.0
    for place in range(told):
        loss += np.float64(above[0, place])
        if place < true:
            known *= np.float64(below[0, place])
        elif weights[0, place] == true:
            unknown *= np.float64(below[0, place])
        else:
            loss += np.float64(weights[0, place]) * np.log(np.float64(below[0, place]))
    return loss + np.log(known) + true * np.log(unknown)  # two logarithms for many


@njit(cache=True, nogil=True)
def learn(
    words, sentences, count, inputs, grams, parts, starts, outputs, window, chances, others, negatives, rate, state, bag
):
    """A center foretells every word near it; or with `bag` (CBOW) the mean of all vectors of the words near it, it.

    With h the mean of some input vectors: u <- u + rate (label - sigmoid(u h)) h, and likewise each of the input
    vectors by u. Gives the sum of losses and the number of predictions. Tables are as wide as a multiple of 16.
    """
    near, drawn = np.empty((count, 2 * window), np.int64), np.empty((count, 1 + negatives), np.int64)
    found, compared = np.empty(count, np.int64), np.empty(count, np.int64)
    for center in range(count):
        found[center], compared[center], state = next_window(
            words, sentences, count, center, window, chances, others, negatives, state, near[center], drawn[center]
        )
    most = 2 * window + negatives + 32
    targets, bagged, h = np.zeros(most, np.int64), np.empty(64, np.int32), zeros(1, inputs.shape[1])
    labels, weights, scores = zeros(1, most), zeros(1, most), zeros(1, most)
    above, below = zeros(1, most), zeros(1, most)
    loss, predictions = 0.0, 0
    for center in range(count):
        later = center + AHEAD
        if later < count:
            entering = words[min(later + window, count - 1)]
            coming, foretold = (entering, words[later]) if bag else (words[later], entering)
            _fetch(inputs, coming)
            for place in range(starts[coming], starts[coming + 1]):
                _fetch(grams, parts[place])
            _fetch(outputs, foretold)
            for place in range(1, compared[later]):
                _fetch(outputs, drawn[later, place])
        if found[center] == 0:
            continue

        around, itself = near[center, : found[center]], words[center : center + 1]
        own, true = (around, itself) if bag else (itself, around)
        rows = parts[starts[own[0]] : starts[own[0] + 1]]
        if bag:
            size = 0
            for place in range(len(own)):
                begin, stop = starts[own[place]], starts[own[place] + 1]
                if size + stop - begin > len(bagged):
                    bagged = np.append(bagged, np.empty(len(bagged) + stop - begin, np.int32))
                bagged[size : size + stop - begin] = parts[begin:stop]
                size += stop - begin
            rows = bagged[:size]

        told = _choose(len(true), true, drawn[center, 1 : compared[center]], targets, labels, weights)
        _mean(inputs, own, grams, rows, h)
        _compare(h, outputs, targets, told, scores)
        loss += _errors(scores, labels, weights, len(true), told, rate, above, below)
        _change(inputs, own, grams, rows, h, outputs, targets, told, scores)
        predictions += len(true)
    return loss, predictions

"""fastText's hashed n-grams and SGD updates (Bojanowski et al. 2017), in Numba.

The input vector of a window is computed once for all its predictions, and its gradient is applied once: each vector is
read and written once per window. The reference is the loss in `systems/fasttext.py`, which a test compares with.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Sequence

import numpy as np
from numba import njit

from keel.kernels.context_windows import sample_context, subsample_words
from keel.kernels.simd import broadcast, lane_sums, load, store, zeros
from keel.kernels.splitmix import GAMMA, LOW, mix, sample_alias
from keel.kernels.word2vec_updates import ONE, ZERO, flush_losses, prefetch_row, sigmoid_errors

END = "</s>"
"""fastText's end-of-line token, which has no n-grams."""
FNV_START = np.uint64(2166136261)
AHEAD = 2
"""Windows between prefetching vectors and using them."""


def hash_subwords(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Buckets of the n-grams of all words [ngrams], and where those of each word start [words]; "" has none."""
    bracketed = [b"" if word in ("", END) else b"<%b>" % word.encode("utf-8", "surrogatepass") for word in words]
    text = np.frombuffer(b"".join(bracketed), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, bracketed), np.int64, len(bracketed)))
    starts = np.empty(len(bracketed), np.int64)
    count = _hash_ngrams(text, ends, min_n, max_n, buckets, starts, np.empty(0, np.int32))
    grams = np.empty(count, np.int32)
    _hash_ngrams(text, ends, min_n, max_n, buckets, starts, grams)
    return grams, starts


@njit(cache=True, nogil=True, inline="always")
def fnv1a(state, byte):
    """A step of fastText's hash, 32-bit FNV-1a over signed bytes: those above 127 are sign-extended."""
    signed = np.uint64(byte) if byte < 128 else np.uint64(byte) | np.uint64(0xFFFFFF00)
    return ((state ^ signed) * np.uint64(16777619)) & LOW


@njit(cache=True, nogil=True)
def _hash_ngrams(text, ends, min_n, max_n, buckets, starts, grams):
    """Fill in the buckets, if `grams` is not empty, and the start of each word; return the number of n-grams.

    < or > alone is no n-gram.
    """
    count, begin = 0, 0
    for word in range(len(ends)):
        starts[word] = count
        end = ends[word]
        for first in range(begin, end):
            if text[first] & 0xC0 == 0x80:  # inside a character
                continue
            state, position, n = FNV_START, first, 1
            while position < end and n <= max_n:
                while True:
                    state = fnv1a(state, text[position])
                    position += 1
                    if position == end or text[position] & 0xC0 != 0x80:
                        break
                if n >= min_n and not (n == 1 and (first == begin or position == end)):
                    if len(grams) > 0:
                        grams[count] = np.int32(state % np.uint64(buckets))
                    count += 1
                n += 1
        begin = end
    return count


@njit(nogil=True, inline="always")
def _mean(words, own, grams, parts, h):
    """h = the mean of these rows of both tables."""
    share = broadcast(ONE / np.float32(len(own) + len(parts)))
    even = len(parts) // 2 * 2
    for i in range(0, words.shape[1], 16):
        a = b = broadcast(ZERO)
        for position in range(len(own)):
            a += load(words, own[position], i)
        for position in range(0, even, 2):  # two independent accumulators hide latency
            a += load(grams, parts[position], i)
            b += load(grams, parts[position + 1], i)
        if even < len(parts):
            b += load(grams, parts[even], i)
        store(h, 0, i, (a + b) * share)


@njit(nogil=True, inline="always")
def _scores(h, outputs, targets, target_count, scores):
    """scores = u . h for the output vectors u of the targets, four at a time; padding repeats the first target."""
    for position in range(0, target_count, 4):
        w, x, y, z = targets[position], targets[position + 1], targets[position + 2], targets[position + 3]
        a = b = c = d = broadcast(ZERO)
        for i in range(0, outputs.shape[1], 16):
            v = load(h, 0, i)
            a += load(outputs, w, i) * v
            b += load(outputs, x, i) * v
            c += load(outputs, y, i) * v
            d += load(outputs, z, i) * v
        store(scores, 0, position, lane_sums((a, b, c, d)))


@njit(nogil=True, inline="always")
def _update_vectors(words, own, grams, parts, h, outputs, targets, target_count, errors):
    """u <- u + error h for the output vectors u, and add the sum of error u to each vector that h is the mean of.

    Each of these gets the whole gradient, as in the authors' code.
    """
    for i in range(0, words.shape[1], 16):
        change, v = broadcast(ZERO), load(h, 0, i)
        for position in range(target_count):
            change += broadcast(errors[0, position]) * load(outputs, targets[position], i)
        for position in range(target_count):  # read again: a target may occur twice
            row = targets[position]
            store(outputs, row, i, load(outputs, row, i) + broadcast(errors[0, position]) * v)
        for position in range(len(own)):
            store(words, own[position], i, load(words, own[position], i) + change)
        for position in range(len(parts)):
            store(grams, parts[position], i, load(grams, parts[position], i) + change)


@njit(nogil=True, inline="always")
def _errors(scores, steps, positives, target_count, lr, loss_parts, used):
    """Turn scores into lr (label - sigmoid(score)); `steps` is ones, then zeros, with the step in the middle.

    Returns the flushed losses and the number of pending factors.
    """
    loss, middle = 0.0, steps.shape[1] // 2
    for position in range(0, target_count, 16):
        label, there = load(steps, 0, middle - positives + position), load(steps, 0, middle - target_count + position)
        error, lost, used = sigmoid_errors(load(scores, 0, position), label, there, lr, loss_parts, used)
        store(scores, 0, position, error)
        loss += lost
    return loss, used


@njit(cache=True, nogil=True)
def sample_targets(
    words, sentences, count, window, probabilities, aliases, negatives, cbow, state, context, targets, sizes
):
    """Fill in the context of each of `count` words and its targets: the words to predict, then the negatives.

    Skip-gram: the center predicts its context words; CBOW: the context predicts the center. For each prediction
    `negatives` words are sampled; those equal to its target are dropped. `sizes` are the numbers of context words,
    predictions and targets.
    """
    for center in range(count):
        found, state = sample_context(words, sentences, count, center, window, state, context[center])
        positives = min(found, 1) if cbow else found
        for position in range(positives):
            targets[center, position] = words[center] if cbow else context[center, position]
        target_count = positives
        for position in range(positives):
            for _ in range(negatives):
                state += GAMMA
                word = sample_alias(mix(state), probabilities, aliases)
                targets[center, target_count] = word
                target_count += word != targets[center, position]
        for position in range(target_count, min(target_count + 4, targets.shape[1])):
            targets[center, position] = targets[center, 0]
        sizes[center, 0], sizes[center, 1], sizes[center, 2] = found, positives, target_count


@njit(cache=True, nogil=True)
def allocate_targets(count, window, negatives):
    """Allocate the tables of `sample_targets`."""
    most = 2 * window * (1 + negatives) + 4
    return np.empty((count, 2 * window), np.int32), np.empty((count, most), np.int32), np.empty((count, 3), np.int32)


@njit(cache=True, nogil=True)
def update_fasttext(
    ids, bounds, begins, ends, keep, probabilities, aliases, chunk_starts, chunk_ends, states, inputs, grams, outputs,
    parts, starts, window, negatives, cbow, lr,
):  # fmt: skip
    """Update by all chunks of words; return the sum of losses and the number of predictions.

    With h the mean of the input vectors: u <- u + lr (label - sigmoid(u . h)) h, and each input vector likewise by u.
    """
    length = (chunk_ends - chunk_starts).max()
    words, sentences = np.empty(length, np.int64), np.empty(length, np.int64)
    context, targets, sizes = allocate_targets(length, window, negatives)
    h, scores, loss_parts, joined = zeros(1, inputs.shape[1]), zeros(1, targets.shape[1] + 16), zeros(2, 16), parts[:0]
    steps = zeros(1, 2 * scores.shape[1])
    steps[0, : scores.shape[1]] = ONE
    flush_losses(loss_parts)
    loss, predictions, used = 0.0, 0, 0
    for n in range(len(chunk_starts)):
        count, state = subsample_words(
            ids, bounds, begins, ends, chunk_starts[n], chunk_ends[n], keep, states[n], words, sentences
        )
        sample_targets(
            words, sentences, count, window, probabilities, aliases, negatives, cbow, state, context, targets, sizes
        )
        for center in range(count):
            later = center + AHEAD
            if later < count:
                coming = words[min(later + window, count - 1)] if cbow else words[later]
                prefetch_row(inputs, coming)
                for position in range(starts[coming], starts[coming + 1]):
                    prefetch_row(grams, parts[position])
                for position in range(sizes[later, 2]):
                    prefetch_row(outputs, targets[later, position])
            found, positives, target_count = sizes[center]
            if found == 0:
                continue
            if cbow:
                own, size = context[center, :found], 0
                for word in own:
                    begin, stop = starts[word], starts[word + 1]
                    if size + stop - begin > len(joined):
                        joined = np.append(joined, np.empty(len(joined) + stop - begin, np.int32))
                    joined[size : size + stop - begin] = parts[begin:stop]
                    size += stop - begin
                rows = joined[:size]
            else:
                context[center, 0] = words[center]
                own, rows = context[center, :1], parts[starts[words[center]] : starts[words[center] + 1]]
            _mean(inputs, own, grams, rows, h)
            _scores(h, outputs, targets[center], target_count, scores)
            lost, used = _errors(scores, steps, positives, target_count, lr, loss_parts, used)
            _update_vectors(inputs, own, grams, rows, h, outputs, targets[center], target_count, scores)
            loss, predictions = loss + lost, predictions + positives
    return loss + flush_losses(loss_parts), predictions

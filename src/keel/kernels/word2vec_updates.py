"""SGD updates of word2vec (Mikolov et al. 2013), in Numba.

All words of a window share targets: the center and its negatives, or the nodes of its Huffman path. Their scores are a
small matrix product, and each vector is read and written once per window instead of once per pair (Ji et al. 2016,
"Parallelizing Word2Vec in Shared and Distributed Memory"). The reference is the loss in `systems/word2vec.py`, which a
test compares with. Threads update the same vectors without locks (Recht et al. 2011, "Hogwild!").
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
import numpy as np
from numba import njit

from keel.kernels.context_windows import allocate_windows, sample_windows, subsample_words
from keel.kernels.simd import (
    broadcast,
    exp2_of_integer,
    lane_sums,
    load,
    maximum,
    prefetch,
    store,
    truncate,
    where_nonnegative,
    zeros,
)

GROUP = 6
"""Targets per SIMD vector of scores: 2 words x 6 targets fill 12 of 16 lanes."""
BLOCK = 4
"""CBOW windows that share negatives and are updated together."""
FLUSH_AFTER = 100
"""Factors up to 2 whose product fits into a float32."""
ZERO, HALF, ONE, FAR = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(-120.0)
LOG2_E = np.float32(1.4426950408889634)
P1, P2, P3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
P4, P5, P6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
"""ln(2)^n / n!: the series of 2^f, accurate to 1e-7 for |f| <= 1/2."""


@njit(nogil=True, inline="always")
def _pair_dots(v, a, b, u, w, x, y, z):
    """Dot products of row a of v with rows w, y, z of u, and of row b with x, y, z: 16 partial sums each."""
    aw = ay = az = bx = by = bz = broadcast(ZERO)
    for i in range(0, v.shape[1], 16):
        first, second = load(v, a, i), load(v, b, i)
        q, r = load(u, y, i), load(u, z, i)
        aw += first * load(u, w, i)
        ay += first * q
        az += first * r
        bx += second * load(u, x, i)
        by += second * q
        bz += second * r
    return aw, ay, az, bx, by, bz


@njit(nogil=True, inline="always")
def _row_dots(v, a, u, x, y, z):
    """Dot products of row a of v with rows x, y, z of u: 16 partial sums each."""
    ax = ay = az = broadcast(ZERO)
    for i in range(0, v.shape[1], 16):
        first = load(v, a, i)
        ax += first * load(u, x, i)
        ay += first * load(u, y, i)
        az += first * load(u, z, i)
    return ax, ay, az


@njit(nogil=True, inline="always")
def _exp_minus(x):
    """exp(-|x|) = 2^n 2^f with integer n, and 2^f by its series."""
    power = maximum(maximum(x, broadcast(ZERO) - x) * broadcast(-LOG2_E), broadcast(FAR))
    n = truncate(power - broadcast(HALF))  # rounds to nearest, as power <= 0
    f = power - n
    series = broadcast(P4) + f * (broadcast(P5) + f * broadcast(P6))
    series = broadcast(P1) + f * (broadcast(P2) + f * (broadcast(P3) + f * series))
    return (broadcast(ONE) + f * series) * exp2_of_integer(n)


@njit(cache=True, nogil=True)
def flush_losses(loss_parts):
    """Return the accumulated losses and reset them."""
    loss = 0.0
    for lane in range(16):
        loss += np.log(np.float64(loss_parts[0, lane])) + np.float64(loss_parts[1, lane])
        loss_parts[0, lane], loss_parts[1, lane] = ONE, ZERO
    return loss


@njit(nogil=True, inline="always")
def sigmoid_errors(score, label, there, lr, loss_parts, used):
    """lr (label - sigmoid(score)) where `there` is 1, else 0; the flushed losses; the number of pending factors.

    A loss log(1 + exp(-+score)) is max(0, -+score) + log(1 + exp(-|score|)): loss_parts[1] sums the former;
    loss_parts[0] is the product of the arguments of the logarithm.
    """
    loss, one = 0.0, broadcast(ONE)
    small = _exp_minus(score)
    error = (label - where_nonnegative(score, one, small) / (one + small)) * (there * broadcast(lr))
    above = maximum(score * (one - label - label), broadcast(ZERO))
    store(loss_parts, 0, 0, load(loss_parts, 0, 0) * (one + there * small))
    store(loss_parts, 1, 0, load(loss_parts, 1, 0) + there * above)
    used += 1
    if used == FLUSH_AFTER:
        loss, used = flush_losses(loss_parts), 0
    return error, loss, used


@njit(nogil=True, inline="always")
def _prediction_errors(
    v, indices, line, rows, u, targets, center, own, all_labels, target_count, lr, errors, labels, present,
    loss_parts, used,
):  # fmt: skip
    """errors = lr (label - sigmoid(v u^T)); two rows of v and a group of targets share a SIMD vector.

    The rows of v are indices[line, :rows], their targets targets[center]; if `own` is 1, each row has the targets of
    its own center, which differ in the first one only. Returns the flushed losses and the number of pending factors.
    """
    loss = 0.0
    groups = (target_count + GROUP - 1) // GROUP
    for group in range(groups):
        label = load(all_labels, center, GROUP * group)
        store(labels, group, 0, label)
        store(labels, group, GROUP, label)  # for each of the two rows
    for row in range(0, rows, 2):
        alone = row + 1 == rows
        for group in range(groups):
            k, n = GROUP * group, center + own * row
            t, w, x = targets[n, k], targets[n, k + 1], targets[n, k + 2]
            y, z, o = targets[n, k + 3], targets[n, k + 4], targets[n, k + 5]
            if alone:
                a = indices[line, row]
                score = lane_sums(_row_dots(v, a, u, t, w, x) + _row_dots(v, a, u, y, z, o))
            else:
                a, b = indices[line, row], indices[line, row + 1]
                left = _pair_dots(v, a, b, u, t, targets[n + own, k], w, x)
                right = _pair_dots(v, a, b, u, y, y, z, o)
                score = lane_sums(left[:3] + right[:3] + left[3:] + right[3:])
            label = load(labels, group, 0)
            there = load(present, min(GROUP, target_count - k) + (GROUP if alone else 0), 0)
            error, lost, used = sigmoid_errors(score, label, there, lr, loss_parts, used)
            store(errors, row // 2 * groups + group, 0, error)
            loss += lost
    return loss, used


@njit(nogil=True, inline="always")
def _update_targets(v, context, line, found, u, targets, center, target_count, errors, changes):
    """changes = errors u, and u <- u + errors^T v: 16 columns of three targets at a time."""
    groups = (target_count + GROUP - 1) // GROUP
    for i in range(0, v.shape[1], 16):
        for column in range(0, GROUP * groups, 3):
            x, y, z = targets[center, column], targets[center, column + 1], targets[center, column + 2]
            p, q, r = load(u, x, i), load(u, y, i), load(u, z, i)
            dx = dy = dz = broadcast(ZERO)
            group, position = column // GROUP, column % GROUP
            for row in range(found):
                error, lane = row // 2 * groups + group, row % 2 * GROUP + position
                ex, ey, ez = errors[error, lane], errors[error, lane + 1], errors[error, lane + 2]
                a = load(v, context[line, row], i)
                change = broadcast(ex) * p + broadcast(ey) * q + broadcast(ez) * r
                if column > 0:
                    change += load(changes, row, i)
                store(changes, row, i, change)
                dx += broadcast(ex) * a
                dy += broadcast(ey) * a
                dz += broadcast(ez) * a
            store(u, x, i, load(u, x, i) + dx)  # read again: targets are padded by repetition
            store(u, y, i, load(u, y, i) + dy)
            store(u, z, i, load(u, z, i) + dz)


@njit(nogil=True, inline="always")
def _update_means(inputs, context, sizes, first, rows, means, u, targets, target_count, errors, changes):
    """As `_update_targets`, with up to four means as v, whose first targets differ; add each change to its context."""
    groups = (target_count + GROUP - 1) // GROUP
    for line in range((rows + 1) // 2 * groups, 2 * groups):
        store(errors, line, 0, broadcast(ZERO))
    for i in range(0, inputs.shape[1], 16):
        a, b, c, d = load(means, 0, i), load(means, 1, i), load(means, 2, i), load(means, 3, i)
        to_a = to_b = to_c = to_d = broadcast(ZERO)
        for column in range(1, target_count):
            line, lane, target = column // GROUP, column % GROUP, targets[first, column]
            p, q = broadcast(errors[line, lane]), broadcast(errors[line, GROUP + lane])
            r, s = broadcast(errors[groups + line, lane]), broadcast(errors[groups + line, GROUP + lane])
            output = load(u, target, i)
            store(u, target, i, (output + p * a + q * b) + (r * c + s * d))
            to_a += p * output
            to_b += q * output
            to_c += r * output
            to_d += s * output
        store(changes, 0, 0, to_a)
        store(changes, 1, 0, to_b)
        store(changes, 2, 0, to_c)
        store(changes, 3, 0, to_d)
        for row in range(rows):
            error, target = broadcast(errors[row // 2 * groups, row % 2 * GROUP]), targets[first + row, 0]
            output = load(u, target, i)
            store(u, target, i, output + error * load(means, row, i))
            change = load(changes, row, 0) + error * output
            for position in range(sizes[first + row, 0]):
                word = context[first + row, position]
                store(inputs, word, i, load(inputs, word, i) + change)


@njit(nogil=True, inline="always")
def prefetch_row(table, row):
    """Prefetch a row of a table."""
    for i in range(0, table.shape[1], 16):
        prefetch(table, row, i)


@njit(cache=True, nogil=True)
def update_word2vec(corpus, sampling, tree, chunks, inputs, outputs, settings):
    """Update by all chunks of words; return the sum of losses and the number of predictions.

    Skip-gram: v <- v + lr (label - sigmoid(v . u)) u for every context word, and u likewise by v; as in the authors'
    code, the context words are the inputs and the center is the target, which gives the same pairs as the paper's
    direction. CBOW: v is the mean of the context, and each context word gets the whole gradient, as in the
    authors' code; up to `block` windows are updated together, from the same initial values.
    """
    window, negatives, block, cbow, lr = settings
    width, length = inputs.shape[1], (chunks.ends - chunks.starts).max()
    words, sentences = np.empty(length, np.int64), np.empty(length, np.int64)
    context, targets, all_labels, sizes = allocate_windows(length, window, negatives, tree)
    groups = targets.shape[1] // GROUP
    most = max(2 * window, BLOCK)
    errors, changes, means = zeros(most // 2 * groups, 16), zeros(most, width), zeros(BLOCK, width)
    itself = np.arange(BLOCK).astype(np.int32).reshape(1, BLOCK)
    labels, loss_parts = zeros(groups + 1, 16), zeros(2, 16)
    present = zeros(2 * GROUP + 1, 16)  # masks by the size of a group; the second half for a single row
    for number in range(1, GROUP + 1):
        present[number, :number] = present[number, GROUP : GROUP + number] = ONE
        present[GROUP + number, :number] = ONE
    flush_losses(loss_parts)
    loss, predictions, used = 0.0, 0, 0
    for n in range(len(chunks.starts)):
        count, state = subsample_words(
            corpus.ids, corpus.bounds, corpus.begins, corpus.ends, chunks.starts[n], chunks.ends[n], sampling.keep,
            chunks.states[n], words, sentences,
        )  # fmt: skip
        count = sample_windows(
            words, sentences, count, window, sampling.probabilities, sampling.aliases, negatives, block, tree, state,
            context, targets, all_labels, sizes,
        )  # fmt: skip
        center = 0
        while center < count:
            target_count, stop = sizes[center, 1], sizes[center, 2]
            for later in range(stop, min(count, 2 * stop - center)):  # prefetch as many windows ahead
                for column in range(sizes[later, 1] if later == stop or not cbow else 1):
                    prefetch_row(outputs, targets[later, column])
                prefetch_row(inputs, targets[min(count - 1, later + window), 0])
            if cbow:
                rows = stop - center
                for row in range(rows):
                    found = sizes[center + row, 0]
                    share = broadcast(ONE / np.float32(found))
                    for i in range(0, width, 16):
                        total = load(inputs, context[center + row, 0], i)
                        for position in range(1, found):
                            total += load(inputs, context[center + row, position], i)
                        store(means, row, i, total * share)
                lost, used = _prediction_errors(
                    means, itself, 0, rows, outputs, targets, center, 1, all_labels, target_count, lr, errors, labels,
                    present, loss_parts, used,
                )  # fmt: skip
                _update_means(
                    inputs, context, sizes, center, rows, means, outputs, targets, target_count, errors, changes
                )
            else:
                rows = sizes[center, 0]
                lost, used = _prediction_errors(
                    inputs, context, center, rows, outputs, targets, center, 0, all_labels, target_count, lr, errors,
                    labels, present, loss_parts, used,
                )  # fmt: skip
                _update_targets(inputs, context, center, rows, outputs, targets, center, target_count, errors, changes)
                for row in range(rows):
                    for i in range(0, width, 16):
                        word = context[center, row]
                        store(inputs, word, i, load(inputs, word, i) + load(changes, row, i))
            loss += lost
            predictions += rows
            center = stop
    return loss + flush_losses(loss_parts), predictions

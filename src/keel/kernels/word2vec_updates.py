"""What the words of a window learn (word2vec, Mikolov et al. 2013), compiled by Numba.

All words of a window are compared with the same targets: the true word and some drawn ones, or the nodes on its way
down a tree. The comparisons are then a small matrix product, and each vector is read and written once a window instead
of once a pair (Ji et al. 2016, "Parallelizing Word2Vec in Shared and Distributed Memory"). The definition is the loss
in `systems/word2vec.py`, to which a test holds every function here. Threads write into the same vectors without asking
each other (Recht et al. 2011, "Hogwild!").
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
"""Targets whose scores with two words of a window fill one set of lanes: 2 x 6 of 16."""
BLOCK = 4
"""Windows of CBOW that share what was drawn and learn at once."""
FLUSH_AFTER = 100
"""How many numbers up to 2 may be multiplied in float32."""
ZERO, HALF, ONE, FAR = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(-120.0)
LOG2_E = np.float32(1.4426950408889634)
P1, P2, P3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
P4, P5, P6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
"""ln(2)^n / n!: 2^f by its series, to 1e-7 for f up to a half."""


@njit(nogil=True, inline="always")
def _pair_dots(v, a, b, u, w, x, y, z):
    """Row a of v times rows w, y and z of u, and row b times x, y and z: each product's 16 partial sums."""
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
    """Row a of v times rows x, y and z of u."""
    ax = ay = az = broadcast(ZERO)
    for i in range(0, v.shape[1], 16):
        first = load(v, a, i)
        ax += first * load(u, x, i)
        ay += first * load(u, y, i)
        az += first * load(u, z, i)
    return ax, ay, az


@njit(nogil=True, inline="always")
def exp_minus(x):
    """exp(-|x|) = 2^n 2^f with n whole, the second by its series."""
    power = maximum(maximum(x, broadcast(ZERO) - x) * broadcast(-LOG2_E), broadcast(FAR))
    n = truncate(power - broadcast(HALF))  # the nearest, for power is not above 0
    f = power - n
    series = broadcast(P4) + f * (broadcast(P5) + f * broadcast(P6))
    series = broadcast(P1) + f * (broadcast(P2) + f * (broadcast(P3) + f * series))
    return (broadcast(ONE) + f * series) * exp2_of_integer(n)


@njit(nogil=True, inline="always")
def _prediction_errors(
    v, places, line, rows, u, targets, center, own, truths, compared, rate, errors, labels, present, tally, used
):
    """errors = rate (label - sigmoid(v u^T)), those of two rows of v with a group of targets in a line of lanes.

    The rows of v are places[line, :rows], their targets targets[center]; if `own` is 1, each row has the targets of
    another center, which differ in the first one alone. A loss log(1 + exp(-+score)) is max(0, -+score) +
    log(1 + exp(-|score|)): tally[1] sums up the former; tally[0] is the product of what the logarithm is taken of.
    Gives the losses that were settled, and how many wait.
    """
    loss, one = 0.0, broadcast(ONE)
    groups = (compared + GROUP - 1) // GROUP
    for group in range(groups):
        label = load(truths, center, GROUP * group)
        store(labels, group, 0, label)
        store(labels, group, GROUP, label)  # once for each of the two rows
    for row in range(0, rows, 2):
        alone = row + 1 == rows
        for group in range(groups):
            k, n = GROUP * group, center + own * row
            t, w, x = targets[n, k], targets[n, k + 1], targets[n, k + 2]
            y, z, o = targets[n, k + 3], targets[n, k + 4], targets[n, k + 5]
            if alone:
                a = places[line, row]
                score = lane_sums(_row_dots(v, a, u, t, w, x) + _row_dots(v, a, u, y, z, o))
            else:
                a, b = places[line, row], places[line, row + 1]
                left = _pair_dots(v, a, b, u, t, targets[n + own, k], w, x)
                right = _pair_dots(v, a, b, u, y, y, z, o)
                score = lane_sums(left[:3] + right[:3] + left[3:] + right[3:])
            label = load(labels, group, 0)
            there = load(present, min(GROUP, compared - k) + (GROUP if alone else 0), 0)
            small = exp_minus(score)
            chance = where_nonnegative(score, one, small) / (one + small)
            store(errors, row // 2 * groups + group, 0, (label - chance) * (there * broadcast(rate)))
            store(tally, 0, 0, load(tally, 0, 0) * (one + there * small))
            store(tally, 1, 0, load(tally, 1, 0) + there * maximum(score * (one - label - label), broadcast(ZERO)))
            used += 1
            if used == FLUSH_AFTER:
                loss += flush_losses(tally)
                used = 0
    return loss, used


@njit(cache=True, nogil=True)
def flush_losses(tally):
    """The losses in a tally, which starts anew."""
    loss = 0.0
    for lane in range(16):
        loss += np.log(np.float64(tally[0, lane])) + np.float64(tally[1, lane])
        tally[0, lane], tally[1, lane] = ONE, ZERO
    return loss


@njit(nogil=True, inline="always")
def _update_targets(v, near, line, found, u, targets, center, compared, errors, changes):
    """changes = errors u, and u <- u + errors^T v: sixteen columns of three targets at a time."""
    groups = (compared + GROUP - 1) // GROUP
    for i in range(0, v.shape[1], 16):
        for column in range(0, GROUP * groups, 3):
            x, y, z = targets[center, column], targets[center, column + 1], targets[center, column + 2]
            p, q, r = load(u, x, i), load(u, y, i), load(u, z, i)
            dx = dy = dz = broadcast(ZERO)
            group, place = column // GROUP, column % GROUP
            for row in range(found):
                error, lane = row // 2 * groups + group, row % 2 * GROUP + place
                ex, ey, ez = errors[error, lane], errors[error, lane + 1], errors[error, lane + 2]
                a = load(v, near[line, row], i)
                change = broadcast(ex) * p + broadcast(ey) * q + broadcast(ez) * r
                if column > 0:
                    change += load(changes, row, i)
                store(changes, row, i, change)
                dx += broadcast(ex) * a
                dy += broadcast(ey) * a
                dz += broadcast(ez) * a
            store(u, x, i, load(u, x, i) + dx)  # read again: a word may be drawn twice
            store(u, y, i, load(u, y, i) + dy)
            store(u, z, i, load(u, z, i) + dz)


@njit(nogil=True, inline="always")
def _update_means(inputs, near, sizes, first, rows, means, u, targets, compared, errors, changes):
    """As `_learn`, with up to four means as v, whose first targets differ; what is near takes its mean's change."""
    groups = (compared + GROUP - 1) // GROUP
    for line in range((rows + 1) // 2 * groups, 2 * groups):
        store(errors, line, 0, broadcast(ZERO))
    for i in range(0, inputs.shape[1], 16):
        a, b, c, d = load(means, 0, i), load(means, 1, i), load(means, 2, i), load(means, 3, i)
        to_a = to_b = to_c = to_d = broadcast(ZERO)
        for column in range(1, compared):
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
            for place in range(sizes[first + row, 0]):
                word = near[first + row, place]
                store(inputs, word, i, load(inputs, word, i) + change)


@njit(nogil=True, inline="always")
def prefetch_row(table, row):
    """Ask the memory for a row."""
    for i in range(0, table.shape[1], 16):
        prefetch(table, row, i)


@njit(cache=True, nogil=True)
def update_word2vec(
    ids, bounds, begins, ends, keep, chances, others, tree, firsts, lasts, states, inputs, outputs, window, negatives,
    block, mean, rate,
):  # fmt: skip
    """Learn from the words numbered firsts[n] to lasts[n], for each n; the sum of losses and how many predictions.

    Skip-gram: every word near a center foretells its targets, v <- v + rate (label - sigmoid(v u)) u, and u likewise by
    v. With `mean`, CBOW: the mean of the words near does, and each of them takes the whole change, as the first code
    had it; up to `block` windows learn at once, from what all of them were at first.
    """
    width, length = inputs.shape[1], (lasts - firsts).max()
    words, sentences = np.empty(length, np.int64), np.empty(length, np.int64)
    near, targets, truths, sizes = allocate_windows(length, window, negatives, tree)
    groups = targets.shape[1] // GROUP
    most = max(2 * window, BLOCK)
    errors, changes, means = zeros(most // 2 * groups, 16), zeros(most, width), zeros(BLOCK, width)
    itself = np.arange(BLOCK).astype(np.int32).reshape(1, BLOCK)
    labels, tally = zeros(groups + 1, 16), zeros(2, 16)
    present = zeros(2 * GROUP + 1, 16)  # by how many of a group there are; the second half for one row alone
    for number in range(1, GROUP + 1):
        present[number, :number] = present[number, GROUP : GROUP + number] = ONE
        present[GROUP + number, :number] = ONE
    flush_losses(tally)
    loss, predictions, used = 0.0, 0, 0
    for n in range(len(firsts)):
        count, state = subsample_words(
            ids, bounds, begins, ends, firsts[n], lasts[n], keep, states[n], words, sentences
        )
        count = sample_windows(
            words, sentences, count, window, chances, others, negatives, block, tree, state, near, targets, truths,
            sizes,
        )  # fmt: skip
        center = 0
        while center < count:
            compared, stop = sizes[center, 1], sizes[center, 2]
            for later in range(stop, min(count, 2 * stop - center)):  # as many windows ahead
                for column in range(sizes[later, 1] if later == stop or not mean else 1):
                    prefetch_row(outputs, targets[later, column])
                prefetch_row(inputs, targets[min(count - 1, later + window), 0])
            if mean:
                rows = stop - center
                for row in range(rows):
                    found = sizes[center + row, 0]
                    share = broadcast(ONE / np.float32(found))
                    for i in range(0, width, 16):
                        total = load(inputs, near[center + row, 0], i)
                        for place in range(1, found):
                            total += load(inputs, near[center + row, place], i)
                        store(means, row, i, total * share)
                lost, used = _prediction_errors(
                    means, itself, 0, rows, outputs, targets, center, 1, truths, compared, rate, errors, labels,
                    present, tally, used,
                )  # fmt: skip
                _update_means(inputs, near, sizes, center, rows, means, outputs, targets, compared, errors, changes)
            else:
                rows = sizes[center, 0]
                lost, used = _prediction_errors(
                    inputs, near, center, rows, outputs, targets, center, 0, truths, compared, rate, errors, labels,
                    present, tally, used,
                )  # fmt: skip
                _update_targets(inputs, near, center, rows, outputs, targets, center, compared, errors, changes)
                for row in range(rows):
                    for i in range(0, width, 16):
                        word = near[center, row]
                        store(inputs, word, i, load(inputs, word, i) + load(changes, row, i))
            loss += lost
            predictions += rows
            center = stop
    return loss + flush_losses(tally), predictions

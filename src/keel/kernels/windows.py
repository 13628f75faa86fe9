"""word2vec's updates (Mikolov et al. 2013), a window at a time, compiled by Numba.

All words of a window are compared with the same words, the true one and some drawn ones: the comparisons are a small
matrix product, and each vector is read and written once a window instead of once a pair (Ji et al. 2016, "Parallelizing
Word2Vec in Shared and Distributed Memory"). The definition is the loss in `systems/word2vec.py`, to which a test holds
every function here. Threads write into the same vectors without asking each other (Recht et al. 2011, "Hogwild!").
"""

import numpy as np
from numba import njit

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
A, B, C = np.uint64(30), np.uint64(27), np.uint64(31)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
LOG2_E = np.float32(1.4426950408889634)
P1, P2, P3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
P4, P5, P6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
"""ln(2)^n / n!: 2^f by its series, to 1e-7 for f up to a half."""
EDGE = np.float32(30.0)
"""Scores beyond it count as it: their chance is 0 or 1 in float32 anyway."""


@njit(cache=True, nogil=True, inline="always")
def _mix(x):
    """SplitMix64's finalizer, as in train/draw.py."""
    x = (x ^ (x >> A)) * FIRST
    x = (x ^ (x >> B)) * SECOND
    return x ^ (x >> C)


@njit(cache=True, nogil=True)
def kept_words(ids, bounds, begins, ends, first, last, keep, state, words, sentences):
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
            if (_mix(state) & LOW) < keep[word]:
                words[count] = word
                sentences[count] = sentence
                count += 1
        document += 1
    return count, state


@njit(cache=True, nogil=True)
def next_window(words, sentences, count, center, window, chances, others, negatives, state, near, targets):
    """Fill in the words near a center, up to a drawn distance and inside its sentence, and what to tell it from.

    targets[0] is the center itself; the others are drawn by `chances` and `others` (Walker's alias method, in 2^32),
    where the center, if it comes up, is left out. Gives how many there are of each, and the state of the draws.
    """
    state += GAMMA
    reach = window - np.int64(((_mix(state) & LOW) * np.uint64(window)) >> HALF)
    found = 0
    for place in range(max(0, center - reach), min(count, center + reach + 1)):
        if place != center and sentences[place] == sentences[center]:
            near[found] = words[place]
            found += 1
    targets[0] = words[center]
    compared = 1
    if found > 0:
        for _ in range(negatives):
            state += GAMMA
            bits = _mix(state)
            word = np.int64(((bits & LOW) * np.uint64(len(chances))) >> HALF)
            if (bits >> HALF) >= chances[word]:
                word = others[word]
            if word != targets[0]:
                targets[compared] = word
                compared += 1
    return found, compared, state


@njit(cache=True, nogil=True, fastmath=True)
def _copy(table, places, count, filled, width, rows):
    """Copy the vectors at these places into rows that lie close together, and zeros up to `filled` rows."""
    for row in range(count):
        source, target = table[places[row]], rows[row]
        for i in range(width):
            target[i] = source[i]
    for row in range(count, filled):
        target = rows[row]
        for i in range(width):
            target[i] = np.float32(0.0)


@njit(cache=True, nogil=True, fastmath=True)
def _compare(v, rows, u, columns, size, scores):
    """scores = v u^T for rows and columns that are filled up to multiples of 2 and 3: six sums at a time."""
    for row in range(0, rows, 2):
        a, b = v[row], v[row + 1]
        for column in range(0, columns, 3):
            x, y, z = u[column], u[column + 1], u[column + 2]
            ax = ay = az = bx = by = bz = np.float32(0.0)
            for i in range(size):
                ax += a[i] * x[i]
                ay += a[i] * y[i]
                az += a[i] * z[i]
                bx += b[i] * x[i]
                by += b[i] * y[i]
                bz += b[i] * z[i]
            scores[row, column], scores[row, column + 1], scores[row, column + 2] = ax, ay, az
            scores[row + 1, column], scores[row + 1, column + 1], scores[row + 1, column + 2] = bx, by, bz


@njit(cache=True, nogil=True, fastmath=True)
def _chances(scores, count, powers, bits, scale):
    """Turn scores into sigmoid(score), and powers into exp(-score), for `count` numbers in a row.

    exp is 2^n 2^f with n whole: the first by writing n into the exponent of a float, the second by a polynomial, so
    that all scores of a window go through side by side. `scale` is `bits`, seen as floats.
    """
    for i in range(count):
        power = -min(max(scores[i], -EDGE), EDGE) * LOG2_E
        whole = np.floor(power + np.float32(0.5))
        part = power - whole
        bits[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        powers[i] = np.float32(1.0) + part * (P1 + part * (P2 + part * (P3 + part * (P4 + part * (P5 + part * P6)))))
    for i in range(count):
        powers[i] *= scale[i]
        scores[i] = np.float32(1.0) / (np.float32(1.0) + powers[i])


@njit(cache=True, nogil=True, fastmath=True)
def _errors(scores, rows, columns, rate, powers):
    """Turn chances into (label - chance) * rate, where column 0 is true; the sum of the losses."""
    loss, product = 0.0, 1.0
    for row in range(rows):
        product *= scores[row, 0]
        scores[row, 0] = (np.float32(1.0) - scores[row, 0]) * rate
        for column in range(1, columns):
            product *= scores[row, column] * powers[row, column]  # the chance that it is not so
            scores[row, column] *= -rate
        if product < 1e-150:  # one logarithm for many
            loss -= np.log(product)
            product = 1.0
    return loss - np.log(product)


@njit(cache=True, nogil=True)
def _blank(scores, found, rows, compared, columns):
    """No error where there is no word."""
    for row in range(rows):
        for column in range(0 if row >= found else compared, columns):
            scores[row, column] = np.float32(0.0)


@njit(cache=True, nogil=True, fastmath=True)
def _mix_rows(errors, rows, u, columns, size, changes):
    """changes = errors u: for each row the sum of u's rows by its errors, three at a time."""
    for row in range(rows):
        change = changes[row]
        for column in range(0, columns, 3):
            x, y, z = u[column], u[column + 1], u[column + 2]
            p, q, r = errors[row, column], errors[row, column + 1], errors[row, column + 2]
            if column == 0:
                for i in range(size):
                    change[i] = p * x[i] + q * y[i] + r * z[i]
            else:
                for i in range(size):
                    change[i] += p * x[i] + q * y[i] + r * z[i]


@njit(cache=True, nogil=True, fastmath=True)
def _add_columns(errors, rows, v, u_row, column, width):
    """u <- u + errors^T v: one row of u, by two rows of v at a time."""
    for row in range(0, rows, 2):
        a, b = v[row], v[row + 1]
        p, q = errors[row, column], errors[row + 1, column]
        for i in range(width):
            u_row[i] += p * a[i] + q * b[i]


@njit(cache=True, nogil=True, fastmath=True)
def skipgram(words, sentences, count, inputs, outputs, window, chances, others, negatives, rate, state):
    """Every word near a center foretells the center: v <- v + rate (label - sigmoid(v u)) u, and u likewise by v.

    Gives the sum of losses and the number of pairs (center, near word).
    """
    width = inputs.shape[1]
    size = (width + 15) // 16 * 16  # whole registers: what is beyond the width stays zero
    most, drawn = 2 * window, (negatives + 3) // 3 * 3
    near, targets = np.empty(most, np.int64), np.empty(1 + negatives, np.int64)
    v, u = np.zeros((most, size), np.float32), np.zeros((drawn, size), np.float32)
    changes = np.zeros((most, size), np.float32)
    scores, powers = np.zeros((most, drawn), np.float32), np.zeros((most, drawn), np.float32)
    flat_scores, flat_powers = scores.ravel(), powers.ravel()  # the same numbers, in one row
    bits = np.zeros(most * drawn, np.int32)
    scale = bits.view(np.float32)
    loss, pairs = 0.0, 0
    for center in range(count):
        found, compared, state = next_window(
            words, sentences, count, center, window, chances, others, negatives, state, near, targets
        )
        if found == 0:
            continue
        even, threes = found + found % 2, (compared + 2) // 3 * 3
        _copy(inputs, near, found, even, width, v)
        _copy(outputs, targets, compared, threes, width, u)
        _compare(v, even, u, threes, size, scores)
        _chances(flat_scores, found * drawn, flat_powers, bits, scale)
        loss += _errors(scores, found, compared, rate, powers)
        pairs += found
        _blank(scores, found, even, compared, threes)
        _mix_rows(scores, found, u, threes, size, changes)
        for column in range(compared):
            _add_columns(scores, even, v, outputs[targets[column]], column, width)
        for row in range(found):
            target = inputs[near[row]]
            change = changes[row]
            for i in range(width):
                target[i] += change[i]
    return loss, pairs


@njit(cache=True, nogil=True, fastmath=True)
def cbow(words, sentences, count, inputs, outputs, window, chances, others, negatives, rate, state):
    """The mean of the words near a center foretells it; each of them takes the whole change, as the first code had it.

    Gives the sum of losses and the number of centers.
    """
    width = inputs.shape[1]
    size = (width + 15) // 16 * 16
    most, drawn = 2 * window, (negatives + 3) // 3 * 3
    near, targets = np.empty(most, np.int64), np.empty(1 + negatives, np.int64)
    v, u = np.zeros((2, size), np.float32), np.zeros((drawn, size), np.float32)
    changes = np.zeros((1, size), np.float32)
    scores, powers = np.zeros((2, drawn), np.float32), np.zeros((2, drawn), np.float32)
    flat_scores, flat_powers = scores.ravel(), powers.ravel()
    bits = np.zeros(2 * drawn, np.int32)
    scale = bits.view(np.float32)
    mean, change = v[0], changes[0]
    loss, centers = 0.0, 0
    for center in range(count):
        found, compared, state = next_window(
            words, sentences, count, center, window, chances, others, negatives, state, near, targets
        )
        if found == 0:
            continue
        for i in range(size):
            mean[i] = np.float32(0.0)
        for row in range(found):
            source = inputs[near[row]]
            for i in range(width):
                mean[i] += source[i]
        share = np.float32(1.0) / np.float32(found)
        for i in range(size):
            mean[i] *= share
        threes = (compared + 2) // 3 * 3
        _copy(outputs, targets, compared, threes, width, u)
        _compare(v, 2, u, threes, size, scores)
        _chances(flat_scores, drawn, flat_powers, bits, scale)
        loss += _errors(scores, 1, compared, rate, powers)
        centers += 1
        _blank(scores, 1, 2, compared, threes)
        _mix_rows(scores, 1, u, threes, size, changes)
        for column in range(compared):
            _add_columns(scores, 2, v, outputs[targets[column]], column, width)
        for row in range(found):
            target = inputs[near[row]]
            for i in range(width):
                target[i] += change[i]
    return loss, centers

"""fastText's classifier (Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification"), compiled by Numba.

A text is the mean of the vectors of its words and n-grams; a linear layer tells its labels from it. One text is one
update, and all of it is the gradient of the loss in `systems/bags.py`, to which a test holds this.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
import math

import numpy as np
from numba import njit

from keel.kernels.simd import prefetch
from keel.kernels.splitmix import GAMMA, LOW, mix, sample_alias

MULTIPLIER, SIGN = np.uint64(116049371), np.uint64(1 << 31)


@njit(cache=True, nogil=True)
def word_hashes(text, ends):
    """[words] fastText's hash of each, FNV-1a over bytes as C's signed characters, as it goes into further sums."""
    found = np.empty(len(ends), np.uint64)
    begin = 0
    for word in range(len(ends)):
        state = np.uint64(2166136261)
        for place in range(begin, ends[word]):
            byte = np.uint64(text[place])
            state ^= byte if byte < 128 else byte | np.uint64(0xFFFFFF00)
            state = (state * np.uint64(16777619)) & LOW
        begin = ends[word]
        found[word] = state if state < SIGN else state | ~LOW  # from 32 signed bits to 64
    return found


@njit(cache=True, nogil=True)
def add_word_ngrams(places, starts, end, hashes, written, longest, buckets):
    """Rows of words, each up to the mark of its end, and then its stretches of two to `longest` words, as buckets.

    All are places: first those of words, as they were given, then those of the distinct buckets. Gives the rows, where
    each starts, and the buckets. What is not `written` does not count as a word; without a mark, end is -1.
    """
    size = len(places) + len(starts)
    rows, firsts = np.empty(size * longest, np.int32), np.empty(len(starts), np.int64)
    numbers, found = np.full(buckets, -1, np.int32), np.empty(size * (longest - 1), np.int32)
    line = np.empty(size, np.uint64)
    at, known, words = 0, 0, len(hashes)
    for row in range(len(starts) - 1):
        firsts[row] = at
        count = 0
        for here in range(starts[row], starts[row + 1] + 1):
            place = places[here] if here < starts[row + 1] else end
            if place < 0:
                break
            rows[at] = place
            at += 1
            if written[place]:
                line[count] = hashes[place]
                count += 1
            if place == end:
                break
        for first in range(count):
            state = line[first]
            for last in range(first + 1, min(count, first + longest)):
                state = state * MULTIPLIER + line[last]
                bucket = np.int64(state % np.uint64(buckets))
                if numbers[bucket] < 0:
                    numbers[bucket] = known
                    found[known] = bucket
                    known += 1
                rows[at] = words + numbers[bucket]
                at += 1
    firsts[-1] = at
    return rows[:at].copy(), firsts, found[:known].copy()


@njit(cache=True, nogil=True)
def sample_labels(target, chances, others, state, outputs):
    """Fill in the target, and then others than it that are drawn by Walker's alias method, in 2^32."""
    outputs[0] = target
    for place in range(1, len(outputs)):
        outputs[place] = target
        while outputs[place] == target:
            state += GAMMA
            outputs[place] = sample_alias(mix(state), chances, others)
    return state


@njit(cache=True, nogil=True)
def _gather_rows(places, words, parts, starts, own, grams):
    """Fill in the rows of these words' own vectors and of their n-grams'; how many there are of each."""
    owned, count = 0, 0
    for place in places:
        if words[place] >= 0:
            own[owned] = words[place]
            owned += 1
        for part in range(starts[place], starts[place + 1]):
            grams[count] = parts[part]
            count += 1
    return owned, count


@njit(cache=True, nogil=True)
def _prefetch_bag(places, words, parts, starts, inputs, grams):
    """Ask for the vectors of a text to come: they are on their way while this one is learned from."""
    for place in places:
        if words[place] >= 0:
            for i in range(0, inputs.shape[1], 16):
                prefetch(inputs, words[place], i)
        for part in range(starts[place], starts[place + 1]):
            for i in range(0, grams.shape[1], 16):
                prefetch(grams, parts[part], i)


@njit(cache=True, nogil=True, fastmath=True)
def _sum_rows(table, rows, count, total):
    """Add rows of a table to a total, four at a time: the total is read and written less often."""
    width = len(total)
    fours = count - count % 4
    for n in range(0, fours, 4):
        a, b, c, d = table[rows[n]], table[rows[n + 1]], table[rows[n + 2]], table[rows[n + 3]]
        for i in range(width):
            total[i] += (a[i] + b[i]) + (c[i] + d[i])
    for n in range(fours, count):
        a = table[rows[n]]
        for i in range(width):
            total[i] += a[i]


@njit(cache=True, nogil=True, fastmath=True)
def _add_to_rows(table, rows, count, change):
    """Add a change to rows of a table."""
    width = len(change)
    for n in range(count):
        a = table[rows[n]]
        for i in range(width):
            a[i] += change[i]


@njit(cache=True, nogil=True)
def _errors(scores, wanted, count, softmax, errors):
    """Fill in what is wanted less what is said, by outputs against each other or each for itself; the loss."""
    loss = 0.0
    if softmax:
        most = scores[0]
        for k in range(1, count):
            most = max(most, scores[k])
        total = np.float32(0.0)
        for k in range(count):
            errors[k] = np.exp(scores[k] - most)
            total += errors[k]
        for k in range(count):
            if wanted[k] > 0:
                loss += math.log(np.float64(total)) + np.float64(most) - np.float64(scores[k])
            errors[k] = wanted[k] - errors[k] / total
    else:
        for k in range(count):
            power = np.exp(-abs(scores[k]))  # never overflows
            sure = np.float32(1.0) / (np.float32(1.0) + power)
            errors[k] = wanted[k] - (sure if scores[k] >= 0 else np.float32(1.0) - sure)
            right = scores[k] if wanted[k] > 0 else -scores[k]
            loss += math.log1p(np.float64(power)) + max(0.0, -np.float64(right))
    return loss


@njit(cache=True, nogil=True, fastmath=True)
def update_classifier(
    order,  # which texts, in order
    states,  # of the draws of each of these
    firsts,  # this and what follows up to targets: as in systems/bags.py
    ids,
    words,
    parts,
    starts,
    classes,
    targets,
    inputs,
    grams,
    outputs,
    nodes,  # [classes, depth] or nothing: the walk to each class through a tree
    signs,  # [classes, depth] as the walk goes on at each node, 1 or -1
    lengths,  # [classes]
    chances,  # [classes] or nothing: how other classes are drawn
    others,
    negatives,
    softmax,
    rate,
):
    """Learn from these texts, one after the other; the sum of losses, how many texts, how many words."""
    width, most = inputs.shape[1], max(len(outputs), 1 + negatives, nodes.shape[1])
    hidden, change = np.zeros(width, np.float32), np.zeros(width, np.float32)
    scores, errors, wanted = np.zeros(most, np.float32), np.zeros(most, np.float32), np.zeros(most, np.float32)
    compared = np.arange(most)
    own_rows, gram_rows = np.empty(64, np.int64), np.empty(64, np.int64)
    loss, learned, read = 0.0, 0, 0
    for number in range(len(order)):
        text = order[number]
        if number + 1 < len(order):
            _prefetch_bag(
                ids[firsts[order[number + 1]] : firsts[order[number + 1] + 1]], words, parts, starts, inputs, grams
            )
        places = ids[firsts[text] : firsts[text + 1]]
        read += len(places)
        room = 0
        for place in places:
            room += starts[place + 1] - starts[place]
        if len(places) > len(own_rows) or room > len(gram_rows):
            own_rows = np.empty(max(len(own_rows), 2 * len(places)), np.int64)
            gram_rows = np.empty(max(len(gram_rows), 2 * room), np.int64)
        owned, found = _gather_rows(places, words, parts, starts, own_rows, gram_rows)
        if owned + found == 0:
            continue
        share = np.float32(1.0) / np.float32(owned + found)
        for i in range(width):
            hidden[i] = np.float32(0.0)
        _sum_rows(inputs, own_rows, owned, hidden)
        _sum_rows(grams, gram_rows, found, hidden)
        for i in range(width):
            hidden[i] *= share
        # Which outputs are asked, and what each of them should say.
        right = classes[text]
        if nodes.shape[1] > 0:
            count = lengths[right]
            for k in range(count):
                compared[k] = nodes[right, k]
                wanted[k] = np.float32(0.5) * (signs[right, k] + np.float32(1.0))
        elif len(chances) > 0:
            count = 1 + negatives
            sample_labels(right, chances, others, states[number], compared[:count])
            wanted[0] = np.float32(1.0)
        elif targets.shape[1] > 0:
            count = targets.shape[1]
            for k in range(count):
                wanted[k] = targets[text, k]
        else:
            count = len(outputs)
            for k in range(count):
                wanted[k] = np.float32(0.0)
            wanted[right] = np.float32(1.0)
        for k in range(count):
            row, score = outputs[compared[k]], np.float32(0.0)
            for i in range(width):
                score += row[i] * hidden[i]
            scores[k] = score
        loss += _errors(scores, wanted, count, softmax, errors)
        for i in range(width):
            change[i] = np.float32(0.0)
        for k in range(count):
            row, step = outputs[compared[k]], rate * errors[k]
            for i in range(width):
                change[i] += step * row[i]
        for k in range(count):
            row, step = outputs[compared[k]], rate * errors[k]
            for i in range(width):
                row[i] += step * hidden[i]
        for i in range(width):
            change[i] *= share
        _add_to_rows(inputs, own_rows, owned, change)
        _add_to_rows(grams, gram_rows, found, change)
        learned += 1
    return loss, learned, read

"""SGD updates of fastText's classifier (Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification").

One text is one update: the gradient of the loss in `systems/fasttext_classifier.py`, which a test compares with.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
import math

import numpy as np
from numba import njit

from keel.kernels.fasttext_updates import FNV_START, fnv1a
from keel.kernels.splitmix import GAMMA, LOW, mix, sample_alias
from keel.kernels.word2vec_updates import prefetch_row

MULTIPLIER, SIGN = np.uint64(116049371), np.uint64(1 << 31)


@njit(cache=True, nogil=True)
def word_hashes(text, ends):
    """[words] fastText's hash of each word, sign-extended to 64 bits."""
    found = np.empty(len(ends), np.uint64)
    begin = 0
    for word in range(len(ends)):
        state = FNV_START
        for at in range(begin, ends[word]):
            state = fnv1a(state, text[at])
        begin = ends[word]
        found[word] = state if state < SIGN else state | ~LOW  # from 32 signed bits to 64
    return found


@njit(cache=True, nogil=True)
def add_word_ngrams(units, starts, end, hashes, present, longest, buckets):
    """Bags of words up to the end-of-line token, followed by hashed word n-grams of 2 to `longest` words.

    Entries index a table of units: first the given words, then the distinct buckets. Returns the bags, where each
    starts, and the buckets. Words that are not `present` are left out of n-grams; without end-of-line token end is -1.
    """
    size = len(units) + len(starts)
    rows, bag_starts = np.empty(size * longest, np.int32), np.empty(len(starts), np.int64)
    numbers, found = np.full(buckets, -1, np.int32), np.empty(size * (longest - 1), np.int32)
    line = np.empty(size, np.uint64)
    at, bucket_count, words = 0, 0, len(hashes)
    for row in range(len(starts) - 1):
        bag_starts[row] = at
        count = 0
        for here in range(starts[row], starts[row + 1] + 1):
            unit = units[here] if here < starts[row + 1] else end
            if unit < 0:
                break
            rows[at] = unit
            at += 1
            if present[unit]:
                line[count] = hashes[unit]
                count += 1
            if unit == end:
                break
        for first in range(count):
            state = line[first]
            for last in range(first + 1, min(count, first + longest)):
                state = state * MULTIPLIER + line[last]
                bucket = np.int64(state % np.uint64(buckets))
                if numbers[bucket] < 0:
                    numbers[bucket] = bucket_count
                    found[bucket_count] = bucket
                    bucket_count += 1
                rows[at] = words + numbers[bucket]
                at += 1
    bag_starts[-1] = at
    return rows[:at].copy(), bag_starts, found[:bucket_count].copy()


@njit(cache=True, nogil=True)
def sample_labels(target, probabilities, aliases, state, outputs):
    """Fill in the target and then negatives other than it, sampled by Walker's alias method, in 2^32."""
    outputs[0] = target
    for k in range(1, len(outputs)):
        outputs[k] = target
        while outputs[k] == target:
            state += GAMMA
            outputs[k] = sample_alias(mix(state), probabilities, aliases)
    return state


@njit(cache=True, nogil=True)
def _gather_rows(units, words, parts, starts, own, grams):
    """Fill in the rows of these words' vectors and of their n-grams'; return how many of each."""
    owned, count = 0, 0
    for unit in units:
        if words[unit] >= 0:
            own[owned] = words[unit]
            owned += 1
        for part in range(starts[unit], starts[unit + 1]):
            grams[count] = parts[part]
            count += 1
    return owned, count


@njit(cache=True, nogil=True)
def _prefetch_bag(units, words, parts, starts, inputs, grams):
    """Prefetch the vectors of the next text during the update of this one."""
    for unit in units:
        if words[unit] >= 0:
            prefetch_row(inputs, words[unit])
        for part in range(starts[unit], starts[unit + 1]):
            prefetch_row(grams, parts[part])


@njit(cache=True, nogil=True, fastmath=True)
def _sum_rows(table, rows, count, total):
    """Add rows of a table to a total, four at a time to save reads and writes of the total."""
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
def _add_to_rows(table, rows, count, change, factors):
    """Add a change to rows of a table, times the factor of each row if there are any."""
    width = len(change)
    if len(factors) > 0:
        for n in range(count):
            a, factor = table[rows[n]], factors[rows[n]]
            for i in range(width):
                a[i] += factor * change[i]
    else:
        for n in range(count):
            a = table[rows[n]]
            for i in range(width):
                a[i] += change[i]


@njit(cache=True, nogil=True)
def count_texts(order, bags, inputs, grams):
    """Fill in the number of texts of `order` that contain each row of the word vectors, and of the n-gram vectors."""
    bag_starts, ids, words, parts, starts = bags[:5]
    last_input, last_gram = np.full(len(inputs), -1, np.int64), np.full(len(grams), -1, np.int64)
    for text in order:
        for unit in ids[bag_starts[text] : bag_starts[text + 1]]:
            word = words[unit]
            if word >= 0 and last_input[word] != text:
                last_input[word] = text
                inputs[word] += 1
            for part in range(starts[unit], starts[unit + 1]):
                gram = parts[part]
                if last_gram[gram] != text:
                    last_gram[gram] = text
                    grams[gram] += 1


@njit(cache=True, nogil=True)
def mean_vectors(order, bags, inputs, grams, means):
    """Fill in the mean vector of each text of `order`; zeros for one without vectors."""
    bag_starts, ids, words, parts, starts = bags[:5]
    for number in range(len(order)):
        mean, count = means[number], 0
        mean[:] = 0
        for unit in ids[bag_starts[order[number]] : bag_starts[order[number] + 1]]:
            if words[unit] >= 0:
                mean += inputs[words[unit]]
                count += 1
            for part in range(starts[unit], starts[unit + 1]):
                mean += grams[parts[part]]
                count += 1
        mean /= np.float32(max(1, count))


@njit(cache=True, nogil=True)
def _errors(scores, labels, count, softmax, errors):
    """Fill in label - prediction, by a softmax or by independent sigmoids; return the loss."""
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
            if labels[k] > 0:
                loss += math.log(np.float64(total)) + np.float64(most) - np.float64(scores[k])
            errors[k] = labels[k] - errors[k] / total
    else:
        for k in range(count):
            power = np.exp(-abs(scores[k]))  # never overflows
            sure = np.float32(1.0) / (np.float32(1.0) + power)
            errors[k] = labels[k] - (sure if scores[k] >= 0 else np.float32(1.0) - sure)
            right = scores[k] if labels[k] > 0 else -scores[k]
            loss += math.log1p(np.float64(power)) + max(0.0, -np.float64(right))
    return loss


@njit(cache=True, nogil=True, fastmath=True)
def update_classifier(order, states, bags, inputs, grams, outputs, factors, tree, sampling, negatives, softmax, lr):
    """Update by the texts of `order`, with an RNG state for each; return the sum of losses and the numbers of texts and
    words.

    `bags` are the arrays of _BagArrays in systems/fasttext_classifier.py, `factors` those of the learning rate of each
    row of inputs and of grams (empty: 1), `tree` the paths to the classes (HuffmanTree) and `sampling` the alias table
    of negatives; a loss without them gets empty ones.
    """
    bag_starts, ids, words, parts, starts, classes, targets = bags
    input_factors, gram_factors = factors
    nodes, signs, lengths = tree
    probabilities, aliases = sampling
    width, most = inputs.shape[1], max(len(outputs), 1 + negatives, nodes.shape[1])
    hidden, change = np.zeros(width, np.float32), np.zeros(width, np.float32)
    scores, errors, labels = np.zeros(most, np.float32), np.zeros(most, np.float32), np.zeros(most, np.float32)
    compared = np.arange(most)
    own_rows, gram_rows = np.empty(64, np.int64), np.empty(64, np.int64)
    loss, learned, read = 0.0, 0, 0
    for number in range(len(order)):
        text = order[number]
        if number + 1 < len(order):
            following = order[number + 1]
            _prefetch_bag(ids[bag_starts[following] : bag_starts[following + 1]], words, parts, starts, inputs, grams)
        units = ids[bag_starts[text] : bag_starts[text + 1]]
        read += len(units)
        ngram_count = 0
        for unit in units:
            ngram_count += starts[unit + 1] - starts[unit]
        if len(units) > len(own_rows) or ngram_count > len(gram_rows):
            own_rows = np.empty(max(len(own_rows), 2 * len(units)), np.int64)
            gram_rows = np.empty(max(len(gram_rows), 2 * ngram_count), np.int64)
        owned, found = _gather_rows(units, words, parts, starts, own_rows, gram_rows)
        if owned + found == 0:
            continue
        share = np.float32(1.0) / np.float32(owned + found)
        hidden[:] = 0
        _sum_rows(inputs, own_rows, owned, hidden)
        _sum_rows(grams, gram_rows, found, hidden)
        for i in range(width):
            hidden[i] *= share
        # The outputs to compare with, and the label of each.
        right = classes[text]
        if nodes.shape[1] > 0:
            count = lengths[right]
            for k in range(count):
                compared[k] = nodes[right, k]
                labels[k] = np.float32(0.5) * (signs[right, k] + np.float32(1.0))
        elif len(probabilities) > 0:
            count = 1 + negatives
            sample_labels(right, probabilities, aliases, states[number], compared[:count])
            labels[0] = 1
        elif targets.shape[1] > 0:
            count = targets.shape[1]
            labels[:count] = targets[text]
        else:
            count = len(outputs)
            labels[:] = 0
            labels[right] = 1
        for k in range(count):
            row, score = outputs[compared[k]], np.float32(0.0)
            for i in range(width):
                score += row[i] * hidden[i]
            scores[k] = score
        loss += _errors(scores, labels, count, softmax, errors)
        change[:] = 0
        for k in range(count):
            row, step = outputs[compared[k]], lr * errors[k]
            for i in range(width):
                change[i] += step * row[i]
        for k in range(count):
            row, step = outputs[compared[k]], lr * errors[k]
            for i in range(width):
                row[i] += step * hidden[i]
        for i in range(width):
            change[i] *= share
        _add_to_rows(inputs, own_rows, owned, change, input_factors)
        _add_to_rows(grams, gram_rows, found, change, gram_factors)
        learned += 1
    return loss, learned, read

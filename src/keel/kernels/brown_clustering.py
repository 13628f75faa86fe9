"""Brown clustering (Brown et al. 1992): greedy merges of word classes with exact incremental updates, in Numba.

For class bigram counts N(a, b), T in all, with h(n) = n log n:

    T x average mutual information = sum h(N(a, b)) + (terms in T alone) - sum r(a) log R(a) - sum s(b) log S(b)

R and S are the left and right margins of a class over all bigrams, r and s those over bigrams whose other word has a
class already. Merging a and b loses

    (r(a) + r(b)) log(R(a) + R(b)) - r(a) log R(a) - r(b) log R(b) + (the same of s and S) - shared(a, b)
    shared(a, b) = sum over other classes k of e(N(a, k), N(b, k)) + e(N(k, a), N(k, b))
                   + h(the sum of the four counts of a and b with themselves) - (the sum of their h)

where e(x, y) = h(x + y) - h(x) - h(y), which is 0 unless both are positive. When class y is merged into another, only
terms in which y has a count change: (classes) x (neighbours of y) of them, which is few for rare words.
"""

import numpy as np
from numba import njit

NOT_A_PAIR = -1e300
"""shared(a, b) of a slot that is not in use: the loss of such a merge exceeds any other."""


@njit(cache=True, nogil=True)
def _h(n, nlogn):
    return nlogn[n] if n < len(nlogn) else n * np.log(np.float64(n))


@njit(cache=True, nogil=True)
def _own_overlap(joint, a, b, nlogn):
    """The terms of shared(a, b) with the counts of a and b among themselves."""
    aa, ab, ba, bb = joint[a, a], joint[a, b], joint[b, a], joint[b, b]
    return _h(aa + ab + ba + bb, nlogn) - _h(aa, nlogn) - _h(ab, nlogn) - _h(ba, nlogn) - _h(bb, nlogn)


@njit(cache=True, nogil=True)
def _overlap(counts, nonzero, a, others, b, nlogn):
    """Sum over k other than a and b of e(counts[k], others[k]); `nonzero` are the nonzero indices of counts."""
    total = 0.0
    for k in nonzero:
        x, y = counts[k], others[k]
        if y > 0 and k != a and k != b:
            total += _h(x + y, nlogn) - _h(x, nlogn) - _h(y, nlogn)
    return total


@njit(cache=True, nogil=True)
def _add_overlaps(counts, shared, slot, nlogn):
    """Add e(N(slot, a), N(slot, b)) to shared(a, b) of all other pairs."""
    nonzero = np.flatnonzero(counts)
    for i in range(len(nonzero)):
        a = nonzero[i]
        if a == slot:
            continue
        x = counts[a]
        row = shared[a]
        for j in range(i + 1, len(nonzero)):
            b = nonzero[j]
            if b != slot:
                y = counts[b]
                row[b] += _h(x + y, nlogn) - _h(x, nlogn) - _h(y, nlogn)


@njit(cache=True, nogil=True)
def _add_class(slot, joint, transposed, shared, active, nlogn):
    """Add a class whose counts are in `joint` and its transpose `transposed` already."""
    _add_overlaps(transposed[slot], shared, slot, nlogn)
    _add_overlaps(joint[slot], shared, slot, nlogn)
    rights, lefts = np.flatnonzero(joint[slot]), np.flatnonzero(transposed[slot])
    for b in range(len(joint)):
        if b != slot and active[b]:
            found = _overlap(joint[slot], rights, slot, joint[b], b, nlogn)
            found += _overlap(transposed[slot], lefts, slot, transposed[b], b, nlogn)
            shared[min(slot, b), max(slot, b)] = found + _own_overlap(joint, slot, b, nlogn)


@njit(cache=True, nogil=True)
def _merge_side(kept, gone, x, y, others, shared, active, nlogn):
    """Update `shared` for the merge of y into x, for the counts on one side.

    kept[k] and gone[k] are the counts of x and y with class k, others[b, k] those of b. x and y are not `active` here.
    """
    nonzero = np.flatnonzero(gone)
    size = len(kept)
    before, after = np.empty(size), np.empty(size)
    for k in range(size):
        before[k], after[k] = _h(kept[k], nlogn), _h(kept[k] + gone[k], nlogn)
    for i in range(len(nonzero)):
        a = nonzero[i]
        if not active[a]:
            continue
        old, new, own = kept[a], kept[a] + gone[a], gone[a]
        for b in range(size):
            # A pair of two such classes occurs twice: it is updated the first time.
            if b == a or not active[b] or (gone[b] > 0 and b < a):
                continue
            change = 0.0
            if kept[b] + gone[b] > 0:
                change += _h(new + kept[b] + gone[b], nlogn) - after[a] - after[b]
            if old > 0 and kept[b] > 0:
                change -= _h(old + kept[b], nlogn) - before[a] - before[b]
            if gone[b] > 0:
                change -= _h(own + gone[b], nlogn) - _h(own, nlogn) - _h(gone[b], nlogn)
            shared[min(a, b), max(a, b)] += change
    for b in range(size):
        if not active[b]:
            continue
        change = 0.0
        count = others[b]
        for i in range(len(nonzero)):
            k = nonzero[i]
            if active[k] and k != b and count[k] > 0:
                change += _h(kept[k] + gone[k] + count[k], nlogn) - after[k]
                if kept[k] > 0:
                    change -= _h(kept[k] + count[k], nlogn) - before[k]
                else:
                    change -= _h(count[k], nlogn)
        if kept[y] > 0 and count[y] > 0:  # y is no longer a third class
            change -= _h(kept[y] + count[y], nlogn) - before[y] - _h(count[y], nlogn)
        shared[min(x, b), max(x, b)] += change


@njit(cache=True, nogil=True)
def _merge_pair(x, y, joint, transposed, shared, active, nlogn):
    """Merge class y into class x."""
    size = len(joint)
    active[x] = active[y] = False
    _merge_side(joint[x], joint[y], x, y, joint, shared, active, nlogn)
    _merge_side(transposed[x], transposed[y], x, y, transposed, shared, active, nlogn)
    for b in range(size):
        if active[b]:
            shared[min(x, b), max(x, b)] -= _own_overlap(joint, x, b, nlogn)
    within = joint[x, x] + joint[x, y] + joint[y, x] + joint[y, y]
    for k in range(size):
        joint[x, k] += joint[y, k]
        transposed[x, k] += transposed[y, k]
    for k in range(size):
        transposed[k, x], joint[k, x] = joint[x, k], transposed[x, k]
    for k in range(size):
        joint[y, k] = transposed[y, k] = joint[k, y] = transposed[k, y] = 0
    joint[x, x] = transposed[x, x] = within
    for b in range(size):
        if active[b]:
            shared[min(x, b), max(x, b)] += _own_overlap(joint, x, b, nlogn)
        if b != y:
            shared[min(y, b), max(y, b)] = NOT_A_PAIR
    active[x] = True


@njit(cache=True, nogil=True)
def _update_logs(slot, margins, logs):
    """Recompute log(R(a) + R(b)) and log(S(a) + S(b)) for one class."""
    for side in range(2):
        for b in range(margins.shape[1]):
            logs[side, min(slot, b), max(slot, b)] = np.log(max(1.0, margins[side, slot] + margins[side, b]))


@njit(cache=True, nogil=True, fastmath=True)
def _merge_losses(a, shared, log_left, log_right, inner_left, inner_right, terms, losses):
    """Fill in the loss of each merge of class a with a later one; return the smallest."""
    least, left, right, own = 1e299, inner_left[a], inner_right[a], terms[a]
    for b in range(a + 1, len(terms)):
        loss = (left + inner_left[b]) * log_left[b] + (right + inner_right[b]) * log_right[b]
        loss -= own + terms[b] + shared[b]
        losses[b] = loss
        least = min(least, loss)
    return least


@njit(cache=True, nogil=True)
def _best_merge(shared, logs, margins, inner, active, terms, losses):
    """Return the pair whose merge loses the least mutual information, and the loss."""
    size = len(active)
    for a in range(size):
        terms[a] = inner[0, a] * np.log(max(1.0, margins[0, a])) + inner[1, a] * np.log(max(1.0, margins[1, a]))
    best, x, y = 1e299, -1, -1
    for a in range(size - 1):
        if not active[a]:
            continue
        least = _merge_losses(a, shared[a], logs[0, a], logs[1, a], inner[0], inner[1], terms, losses)
        if least < best:
            best, x = least, a
            for b in range(a + 1, size):
                if losses[b] == least:
                    y = b
                    break
    return x, y, best


@njit(cache=True, nogil=True)
def n_log_n_table(count):
    """[count] n log n of the integers from 0."""
    table = np.zeros(count)
    for n in range(2, count):
        table[n] = n * np.log(np.float64(n))
    return table


@njit(cache=True, nogil=True)
def merge_classes(
    first, last, words, after, after_starts, after_counts, before, before_starts, before_counts,
    slots, joint, transposed, shared, active, nlogn, merges,
):  # fmt: skip
    """Run steps first to last: step n makes the n-th word a class and merges the best pair once there is one class too
    many; after the last word, each step merges the best pair.

    Words are ranked by frequency. `after` holds the followers of each word from after_starts on, with their counts;
    `before` the predecessors. Fills in slots[word] and merges[step] = (kept, merged, loss), -1 if there was no merge.
    """
    size = len(joint)
    # Left and right: R and S, r and s, log(R(a) + R(b)) and log(S(a) + S(b)).
    margins, inner, logs = np.zeros((2, size)), np.zeros((2, size)), np.zeros((2, size, size))
    for word in range(words):
        if slots[word] >= 0:
            margins[0, slots[word]] += after_counts[after_starts[word] : after_starts[word + 1]].sum()
            margins[1, slots[word]] += before_counts[before_starts[word] : before_starts[word + 1]].sum()
    for a in range(size):
        inner[0, a], inner[1, a] = joint[a].sum(), transposed[a].sum()
        _update_logs(a, margins, logs)
    terms, losses = np.empty(size), np.empty(size)
    for row in range(first, last):
        merges[row - first, 0] = merges[row - first, 1] = -1
        if row < words:
            slot = 0
            while active[slot]:
                slot += 1
            slots[row] = slot
            active[slot] = True
            margins[:, slot] = 0
            for i in range(after_starts[row], after_starts[row + 1]):
                margins[0, slot] += after_counts[i]
                if slots[after[i]] >= 0:
                    joint[slot, slots[after[i]]] += after_counts[i]
            for i in range(before_starts[row], before_starts[row + 1]):
                margins[1, slot] += before_counts[i]
                if slots[before[i]] >= 0 and before[i] != row:
                    joint[slots[before[i]], slot] += before_counts[i]
            for k in range(size):
                transposed[slot, k], transposed[k, slot] = joint[k, slot], joint[slot, k]
                shared[min(slot, k), max(slot, k)] = 0.0 if active[k] else NOT_A_PAIR
            for k in range(size):
                inner[0, k] += joint[k, slot] if k != slot else 0
                inner[1, k] += joint[slot, k] if k != slot else 0
            inner[0, slot], inner[1, slot] = joint[slot].sum(), transposed[slot].sum()
            _add_class(slot, joint, transposed, shared, active, nlogn)
            _update_logs(slot, margins, logs)
            if not active.all():
                continue
        x, y, loss = _best_merge(shared, logs, margins, inner, active, terms, losses)
        if x < 0:  # a single class is left
            continue
        x_neighbours, y_neighbours = np.count_nonzero(joint[x]), np.count_nonzero(joint[y])
        if x_neighbours + np.count_nonzero(transposed[x]) < y_neighbours + np.count_nonzero(transposed[y]):
            x, y = y, x
        _merge_pair(x, y, joint, transposed, shared, active, nlogn)
        for table in (margins, inner):
            table[:, x] += table[:, y]
            table[:, y] = 0
        _update_logs(x, margins, logs)
        for word in range(min(row + 1, words)):
            if slots[word] == y:
                slots[word] = x
        merges[row - first, 0], merges[row - first, 1], merges[row - first, 2] = x, y, loss

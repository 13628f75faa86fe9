"""Brown's greedy merges of word classes (Brown et al. 1992), with exact updates, compiled by Numba.

For counts N(a, b) of a word of class a before one of class b, T in all, with h(n) = n log n:

    T x mutual information = sum h(N(a, b)) + (terms with T alone) - sum r(a) log R(a) - sum s(b) log S(b)

R and S are how often words of a class stand on the left and on the right of any word, r and s of a word that has a
class already. So a merge of a and b loses

    (r(a) + r(b)) log(R(a) + R(b)) - r(a) log R(a) - r(b) log R(b) + (the same of s and S) - shared(a, b)
    shared(a, b) = sum over other classes k of e(N(a, k), N(b, k)) + e(N(k, a), N(k, b))
                   + h(the sum of the four counts of a and b with themselves) - (the sum of their h)

where e(x, y) = h(x + y) - h(x) - h(y), which is 0 unless both are above 0. When a class y dissolves into another,
only those terms change in which y has a count: classes x (neighbours of y) of them, few for the rare words that are
most of all words.
"""

import numpy as np
from numba import njit

NOT_A_PAIR = -1e300
"""What a pair shares that is no pair: its loss is beyond any other."""


@njit(cache=True, nogil=True)
def _n_log_n(n, known):
    return known[n] if n < len(known) else n * np.log(np.float64(n))


@njit(cache=True, nogil=True)
def _own_overlap(joint, a, b, known):
    """What the counts of a and b with themselves add to what they share."""
    aa, ab, ba, bb = joint[a, a], joint[a, b], joint[b, a], joint[b, b]
    return (
        _n_log_n(aa + ab + ba + bb, known)
        - _n_log_n(aa, known)
        - _n_log_n(ab, known)
        - _n_log_n(ba, known)
        - _n_log_n(bb, known)
    )


@njit(cache=True, nogil=True)
def _overlap(counts, places, a, others, b, known):
    """Sum over k of e(counts[k], others[k]); `places` are those where counts has any. Classes a and b are no third."""
    total = 0.0
    for k in places:
        x, y = counts[k], others[k]
        if y > 0 and k != a and k != b:
            total += _n_log_n(x + y, known) - _n_log_n(x, known) - _n_log_n(y, known)
    return total


@njit(cache=True, nogil=True)
def _add_overlaps(counts, shared, slot, known):
    """Add to what two other classes share what they share of this one's counts."""
    places = np.flatnonzero(counts)
    for i in range(len(places)):
        a = places[i]
        if a == slot:
            continue
        x = counts[a]
        row = shared[a]
        for j in range(i + 1, len(places)):
            b = places[j]
            if b != slot:
                y = counts[b]
                row[b] += _n_log_n(x + y, known) - _n_log_n(x, known) - _n_log_n(y, known)


@njit(cache=True, nogil=True)
def _add_class(slot, joint, turned, shared, alive, known):
    """A class whose counts stand in `joint` already, and in its transpose `turned`, joins the others."""
    _add_overlaps(turned[slot], shared, slot, known)
    _add_overlaps(joint[slot], shared, slot, known)
    rights, lefts = np.flatnonzero(joint[slot]), np.flatnonzero(turned[slot])
    for b in range(len(joint)):
        if b != slot and alive[b]:
            found = _overlap(joint[slot], rights, slot, joint[b], b, known)
            found += _overlap(turned[slot], lefts, slot, turned[b], b, known)
            shared[min(slot, b), max(slot, b)] = found + _own_overlap(joint, slot, b, known)


@njit(cache=True, nogil=True)
def _merge_side(kept, gone, x, y, others, shared, alive, known):
    """y goes into x: what two other classes share of x's counts on one side changes, and what x shares with others.

    kept[k] and gone[k] are the counts of x and y with each class k, others[b, k] those of b. Neither is `alive` here.
    """
    places = np.flatnonzero(gone)
    size = len(kept)
    before, after = np.empty(size), np.empty(size)
    for k in range(size):
        before[k], after[k] = _n_log_n(kept[k], known), _n_log_n(kept[k] + gone[k], known)
    for i in range(len(places)):
        a = places[i]
        if not alive[a]:
            continue
        old, new, own = kept[a], kept[a] + gone[a], gone[a]
        for b in range(size):
            # A pair of two such classes comes up twice: the first time does it all.
            if b == a or not alive[b] or (gone[b] > 0 and b < a):
                continue
            change = 0.0
            if kept[b] + gone[b] > 0:
                change += _n_log_n(new + kept[b] + gone[b], known) - after[a] - after[b]
            if old > 0 and kept[b] > 0:
                change -= _n_log_n(old + kept[b], known) - before[a] - before[b]
            if gone[b] > 0:
                change -= _n_log_n(own + gone[b], known) - _n_log_n(own, known) - _n_log_n(gone[b], known)
            shared[min(a, b), max(a, b)] += change
    for b in range(size):
        if not alive[b]:
            continue
        change = 0.0
        count = others[b]
        for i in range(len(places)):
            k = places[i]
            if alive[k] and k != b and count[k] > 0:
                change += _n_log_n(kept[k] + gone[k] + count[k], known) - after[k]
                if kept[k] > 0:
                    change -= _n_log_n(kept[k] + count[k], known) - before[k]
                else:
                    change -= _n_log_n(count[k], known)
        if kept[y] > 0 and count[y] > 0:  # y is no third class any more
            change -= _n_log_n(kept[y] + count[y], known) - before[y] - _n_log_n(count[y], known)
        shared[min(x, b), max(x, b)] += change


@njit(cache=True, nogil=True)
def _merge_pair(x, y, joint, turned, shared, alive, known):
    """Merge class y into class x."""
    size = len(joint)
    alive[x] = alive[y] = False
    _merge_side(joint[x], joint[y], x, y, joint, shared, alive, known)
    _merge_side(turned[x], turned[y], x, y, turned, shared, alive, known)
    for b in range(size):
        if alive[b]:
            shared[min(x, b), max(x, b)] -= _own_overlap(joint, x, b, known)
    within = joint[x, x] + joint[x, y] + joint[y, x] + joint[y, y]
    for k in range(size):
        joint[x, k] += joint[y, k]
        turned[x, k] += turned[y, k]
    for k in range(size):
        turned[k, x], joint[k, x] = joint[x, k], turned[x, k]
    for k in range(size):
        joint[y, k] = turned[y, k] = joint[k, y] = turned[k, y] = 0
    joint[x, x] = turned[x, x] = within
    for b in range(size):
        if alive[b]:
            shared[min(x, b), max(x, b)] += _own_overlap(joint, x, b, known)
        if b != y:
            shared[min(y, b), max(y, b)] = NOT_A_PAIR
    alive[x] = True


@njit(cache=True, nogil=True)
def _update_logs(slot, lefts, rights, log_left, log_right):
    """Tables of log(R(a) + R(b)) and log(S(a) + S(b)): the part of one class."""
    for b in range(len(lefts)):
        low, high = min(slot, b), max(slot, b)
        log_left[low, high] = np.log(max(1.0, lefts[slot] + lefts[b]))
        log_right[low, high] = np.log(max(1.0, rights[slot] + rights[b]))


@njit(cache=True, nogil=True, fastmath=True)
def _merge_losses(row, shared, log_left, log_right, left, right, own, inner_left, inner_right, terms, losses):
    """Fill in what each merge of one class with a later one loses; the least of these."""
    least = 1e299
    for b in range(row + 1, len(terms)):
        loss = (left + inner_left[b]) * log_left[b] + (right + inner_right[b]) * log_right[b]
        loss -= own + terms[b] + shared[b]
        losses[b] = loss
        least = min(least, loss)
    return least


@njit(cache=True, nogil=True)
def _best_merge(shared, log_left, log_right, lefts, rights, inner_left, inner_right, alive, terms, losses):
    """The pair whose merge loses the least, and the loss."""
    size = len(lefts)
    for a in range(size):
        terms[a] = inner_left[a] * np.log(max(1.0, lefts[a])) + inner_right[a] * np.log(max(1.0, rights[a]))
    best, x, y = 1e299, -1, -1
    for a in range(size - 1):
        if not alive[a]:
            continue
        least = _merge_losses(
            a, shared[a], log_left[a], log_right[a], inner_left[a], inner_right[a], terms[a],
            inner_left, inner_right, terms, losses,
        )  # fmt: skip
        if least < best:
            best, x = least, a
            for b in range(a + 1, size):
                if losses[b] == least:
                    y = b
                    break
    return x, y, best


@njit(cache=True, nogil=True)
def n_log_n_table(count):
    """n log n for the first numbers."""
    table = np.zeros(count)
    for n in range(2, count):
        table[n] = n * np.log(np.float64(n))
    return table


@njit(cache=True, nogil=True)
def merge_classes(
    first, last, words, after, after_starts, after_counts, before, before_starts, before_counts,
    slots, joint, turned, shared, alive, known, merges,
):  # fmt: skip
    """Rows first to last of the work: the n-th word becomes a class, of one class too many the best two merge; when
    there are no more words, the best two merge.

    Words stand by their frequency. `after` are the words that follow each, from after_starts on, and how often;
    `before` those that precede it. Fills in slots[word], and merges[row] = (kept, dissolved, its loss), -1 if none.
    """
    size = len(joint)
    lefts, rights = np.zeros(size), np.zeros(size)
    inner_left, inner_right = np.zeros(size), np.zeros(size)
    for word in range(words):
        if slots[word] >= 0:
            lefts[slots[word]] += after_counts[after_starts[word] : after_starts[word + 1]].sum()
            rights[slots[word]] += before_counts[before_starts[word] : before_starts[word + 1]].sum()
    for a in range(size):
        inner_left[a], inner_right[a] = joint[a].sum(), turned[a].sum()
    log_left, log_right = np.zeros((size, size)), np.zeros((size, size))
    for a in range(size):
        _update_logs(a, lefts, rights, log_left, log_right)
    terms, losses = np.empty(size), np.empty(size)
    for row in range(first, last):
        merges[row - first, 0] = merges[row - first, 1] = -1
        if row < words:
            slot = 0
            while alive[slot]:
                slot += 1
            slots[row] = slot
            alive[slot] = True
            lefts[slot] = rights[slot] = 0
            for i in range(after_starts[row], after_starts[row + 1]):
                lefts[slot] += after_counts[i]
                if slots[after[i]] >= 0:
                    joint[slot, slots[after[i]]] += after_counts[i]
            for i in range(before_starts[row], before_starts[row + 1]):
                rights[slot] += before_counts[i]
                if slots[before[i]] >= 0 and before[i] != row:
                    joint[slots[before[i]], slot] += before_counts[i]
            for k in range(size):
                turned[slot, k], turned[k, slot] = joint[k, slot], joint[slot, k]
                shared[min(slot, k), max(slot, k)] = 0.0 if alive[k] else NOT_A_PAIR
            for k in range(size):
                inner_left[k] += joint[k, slot] if k != slot else 0
                inner_right[k] += joint[slot, k] if k != slot else 0
            inner_left[slot], inner_right[slot] = joint[slot].sum(), turned[slot].sum()
            _add_class(slot, joint, turned, shared, alive, known)
            _update_logs(slot, lefts, rights, log_left, log_right)
            if not alive.all():
                continue
        x, y, loss = _best_merge(
            shared, log_left, log_right, lefts, rights, inner_left, inner_right, alive, terms, losses
        )
        if x < 0:  # a single class is left
            continue
        if np.count_nonzero(joint[x]) + np.count_nonzero(turned[x]) < np.count_nonzero(joint[y]) + np.count_nonzero(
            turned[y]
        ):
            x, y = y, x
        _merge_pair(x, y, joint, turned, shared, alive, known)
        lefts[x] += lefts[y]
        rights[x] += rights[y]
        inner_left[x] += inner_left[y]
        inner_right[x] += inner_right[y]
        lefts[y] = rights[y] = inner_left[y] = inner_right[y] = 0
        _update_logs(x, lefts, rights, log_left, log_right)
        for word in range(min(row + 1, words)):
            if slots[word] == y:
                slots[word] = x
        merges[row - first, 0], merges[row - first, 1], merges[row - first, 2] = x, y, loss

"""Linear-chain CRF in Numba: forward algorithm, its gradient (forward-backward), and Viterbi decoding.

Sums are scaled products rather than log-sum-exps: every step is divided by its largest entry, whose logarithm is
accumulated. No entry is below exp(-spread) of the largest, where the spread is that of the transitions plus that of the
step's emissions; callers make sure that the product of two such entries fits into a float64. The reference is the
log-sum-exp in `nn/crf_layer.py`, which tests compare with.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def forward(emissions, lengths, starts, transitions, ends, alphas, scales):
    """[batch] log Z; fills `alphas` [batch, time, tags] and `scales` [batch, time] for `backward`.

    alpha_t(j) = exp(e_t(j)) sum_i alpha_{t-1}(i) exp(transition(i, j)), each step divided by its largest entry.
    """
    rows, _, tags = emissions.shape
    highest = transitions.max()
    steps = np.exp(transitions - highest)
    found = np.zeros(rows)
    for row in range(rows):
        length = lengths[row]
        if length == 0:
            continue
        total = 0.0
        for t in range(length):
            alpha, scores = alphas[row, t], emissions[row, t]
            if t == 0:
                top = scores[0] + starts[0]
                for j in range(tags):
                    alpha[j] = scores[j] + starts[j]
                    top = max(top, alpha[j])
                for j in range(tags):
                    alpha[j] = np.exp(alpha[j] - top)
                total += top
            else:
                before = alphas[row, t - 1]
                alpha[:] = 0.0
                for i in range(tags):
                    weight, step = before[i], steps[i]
                    for j in range(tags):
                        alpha[j] += weight * step[j]
                top = scores[0]
                for j in range(tags):
                    top = max(top, scores[j])
                for j in range(tags):
                    alpha[j] *= np.exp(scores[j] - top)
                total += top + highest
            largest = 0.0
            for j in range(tags):
                largest = max(largest, alpha[j])
            for j in range(tags):
                alpha[j] /= largest
            scales[row, t] = largest
            total += np.log(largest)
        last, top = alphas[row, length - 1], ends.max()
        rest = 0.0
        for j in range(tags):
            rest += last[j] * np.exp(ends[j] - top)
        found[row] = total + top + np.log(rest)
    return found


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def backward(emissions, lengths, transitions, ends, alphas, scales, weights, tag_sums, start_sums, step_sums, end_sums):
    """Gradient of log Z, times the weight of each sequence: marginals p(tag_t) into `tag_sums` [batch, time, tags], and
    expected starts, transitions and ends added to the other three."""
    rows, _, tags = emissions.shape
    steps = np.exp(transitions - transitions.max())
    turned = np.ascontiguousarray(steps.T)
    pairs = np.zeros((tags, tags))
    beta, after = np.empty(tags), np.empty(tags)
    for row in range(rows):
        length, weight = lengths[row], weights[row]
        if length == 0:
            continue
        beta[:] = np.exp(ends - ends.max())
        for t in range(length - 1, -1, -1):
            alpha, scores, marginals = alphas[row, t], emissions[row, t], tag_sums[row, t]
            whole = 0.0
            for j in range(tags):
                whole += alpha[j] * beta[j]
            share = weight / whole
            for j in range(tags):
                marginals[j] = alpha[j] * beta[j] * share
            if t == length - 1:
                end_sums += marginals
            if t == 0:
                start_sums += marginals
                break
            before, top, largest = alphas[row, t - 1], scores[0], 0.0
            for j in range(tags):
                top = max(top, scores[j])
            for j in range(tags):
                after[j] = np.exp(scores[j] - top) * beta[j]
            for i in range(tags):
                pair, scaled = pairs[i], before[i] * share / scales[row, t]
                for j in range(tags):
                    pair[j] += scaled * after[j]
            beta[:] = 0.0
            for j in range(tags):
                ahead, step = after[j], turned[j]
                for i in range(tags):
                    beta[i] += ahead * step[i]
            for i in range(tags):
                largest = max(largest, beta[i])
            for i in range(tags):
                beta[i] /= largest
    step_sums += pairs * steps


@njit(cache=True, nogil=True, error_model="numpy")
def viterbi(emissions, lengths, starts, transitions, ends, found):
    """Fill in the most probable tag sequences `found` [batch, time]."""
    rows, time, tags = emissions.shape
    best = np.empty((time, tags), emissions.dtype)
    for row in range(rows):
        length = lengths[row]
        if length == 0:
            continue
        for t in range(length):
            scores, here = emissions[row, t], best[t]
            if t == 0:
                for j in range(tags):
                    here[j] = scores[j] + starts[j]
                continue
            before = best[t - 1]
            here[:] = -np.inf
            for i in range(tags):
                score, step = before[i], transitions[i]
                for j in range(tags):
                    here[j] = max(here[j], score + step[j])
            for j in range(tags):
                here[j] += scores[j]
        tag = np.argmax(best[length - 1] + ends)
        found[row, length - 1] = tag
        # No back-pointers: the predecessor is recomputed along the best path only.
        for t in range(length - 1, 0, -1):
            before, came = best[t - 1], 0
            for i in range(1, tags):
                if before[i] + transitions[i, tag] > before[came] + transitions[came, tag]:
                    came = i
            tag = came
            found[row, t - 1] = tag

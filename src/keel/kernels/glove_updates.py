"""GloVe's updates (Pennington et al. 2014), a pair of words at a time, compiled by Numba.

Rows are [w, b, 1, 0 ...] for a center and [w~, 1, b~, 0 ...] for a context, filled up to whole registers, so that one
product is the whole score w.w~ + b + b~. The definition is the loss in `systems/glove.py`, to which a test holds this.
Threads write into the same rows without asking each other.
"""

import numpy as np
from numba import njit

LANES = 16
"""Numbers in a register."""


# Division must be the processor's own (a check for zero would keep everything from going side by side).
@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def update_glove(cells, firsts, length, width, x_max, alpha, rate, centers, contexts, center_sums, context_sums):
    """Learn from `length` cells after each of `firsts`, both ways; sums of losses and weights, how many updates.

    AdaGrad: the square of a step g = rate * gradient is added to its sum s first, then g / sqrt(s) is taken away. As
    s >= g^2, no number ever moves by more than 1, whatever the gradient: nothing has to be clipped. The rate of biases
    is 1, as in the authors' code; with that of vectors SimLex-999 was two points lower after five epochs.
    """
    one, edge, power = np.float32(1.0), np.log(np.float32(x_max)), np.float32(alpha)
    size = centers.shape[1]
    loss, weights, updates = 0.0, 0.0, 0
    for first in firsts:
        for place in range(first, min(first + length, len(cells))):
            word, other = cells[place].first, cells[place].second
            target = np.log(cells[place].count)
            weight = min(one, np.exp(power * (target - edge)))
            for turn in range(1 if word == other else 2):
                if turn == 1:
                    word, other = other, word
                w, c, w_sums, c_sums = centers[word], contexts[other], center_sums[word], context_sums[other]
                score = np.float32(0.0)
                for i in range(size):
                    score += w[i] * c[i]
                error = score - target
                loss += 0.5 * weight * error * error
                step = rate * weight * error
                bias, other_bias, squares, other_squares = w[width], c[width + 1], w_sums[width], c_sums[width + 1]
                for i in range(size):
                    u, v = step * c[i], step * w[i]
                    p, q = w_sums[i] + u * u, c_sums[i] + v * v
                    w_sums[i], c_sums[i] = p, q
                    w[i] -= u / np.sqrt(p)
                    c[i] -= v / np.sqrt(q)
                step = weight * error
                squares += step * step
                other_squares += step * step
                w[width], w_sums[width] = bias - step / np.sqrt(squares), squares
                c[width + 1], c_sums[width + 1] = other_bias - step / np.sqrt(other_squares), other_squares
                w[width + 1] = c[width] = one  # what stands for 1 stays
                weights += float(weight)
                updates += 1
    return loss, weights, updates

"""GloVe's AdaGrad updates (Pennington et al. 2014), one pair of words at a time, in Numba.

Rows are [w, b, 1, 0 ...] for a center and [w~, 1, b~, 0 ...] for a context, padded to whole SIMD registers, so that one
dot product is the score w.w~ + b + b~. The reference is the loss in `systems/glove.py`, which a test compares with.
Threads update the same rows without locks (Hogwild).
"""

import numpy as np
from numba import njit


# Without error_model="numpy" a check for division by zero would prevent vectorization.
@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def update_glove(cells, chunk_starts, length, width, x_max, alpha, lr, centers, contexts, center_sums, context_sums):
    """Update by `length` cells from each of `chunk_starts`, in both directions; return the sums of losses and weights
    and the number of updates.

    AdaGrad: for a step g = lr * gradient, s <- s + g^2, then w <- w - g / sqrt(s). As s >= g^2, no parameter moves by
    more than 1, so nothing is clipped. The learning rate of biases is 1, as in the authors' code; with that of vectors
    SimLex-999 was two points lower after five epochs.
    """
    one, edge, power = np.float32(1.0), np.log(np.float32(x_max)), np.float32(alpha)
    size = centers.shape[1]
    loss, weights, updates = 0.0, 0.0, 0
    for first in chunk_starts:
        for position in range(first, min(first + length, len(cells))):
            word, other = cells[position].first, cells[position].second
            target = np.log(cells[position].count)
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
                step = lr * weight * error
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
                w[width + 1] = c[width] = one  # the constant column stays 1
                weights += float(weight)
                updates += 1
    return loss, weights, updates

"""What is counted in a corpus, compiled by Numba: words, the documents that hold them, and words side by side."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_words(ids, begins, ends, vocabulary):
    """[vocabulary] how often each id stands in these stretches of ids."""
    counts = np.zeros(vocabulary, np.int64)
    for number in range(len(begins)):
        for place in range(begins[number], ends[number]):
            counts[ids[place]] += 1
    return counts


@njit(cache=True, nogil=True)
def count_documents(ids, begins, ends, vocabulary):
    """[vocabulary] in how many of these stretches each id stands."""
    counts, last_seen = np.zeros(vocabulary, np.int64), np.full(vocabulary, -1, np.int64)
    for number in range(len(begins)):
        for place in range(begins[number], ends[number]):
            word = ids[place]
            if last_seen[word] != number:
                last_seen[word] = number
                counts[word] += 1
    return counts


@njit(cache=True, nogil=True)
def fill_bigram_keys(ids, begins, ends, first, rank, size, keys):
    """Fill in rank(left) * size + rank(right) for words side by side in the sentences from number `first` on.

    A rank of -1 is no word. Gives the number of keys, and of the sentence to go on with: the first that might not fit.
    """
    count = 0
    for sentence in range(first, len(begins)):
        if count + ends[sentence] - begins[sentence] > len(keys):
            return count, sentence
        left = np.int64(-1)
        for place in range(begins[sentence], ends[sentence]):
            right = rank[np.int64(ids[place])]
            if left >= 0 and right >= 0:
                keys[count] = left * size + right
                count += 1
            left = right
    return count, len(begins)

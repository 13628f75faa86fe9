"""Word, document and bigram counts of a corpus, in Numba."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import numpy as np
from numba import njit


class TokenSpans(NamedTuple):
    """Token ids of a corpus, and where each document or sentence begins and stops."""

    ids: np.ndarray
    begins: np.ndarray  # [spans]
    stops: np.ndarray  # [spans]

    def slice(self, first: int, last: int) -> Self:
        """Spans `first` to `last`."""
        return self._replace(begins=self.begins[first:last], stops=self.stops[first:last])


def ranges_within(sizes: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of items whose sizes sum to at most `most`, or of one item."""
    first, taken, index = 0, 0, -1
    for index, size in enumerate(sizes):
        if taken and taken + size > most:
            yield first, index
            first, taken = index, 0
        taken += size
    yield first, index + 1


@njit(cache=True, nogil=True)
def count_words(ids, begins, ends, vocab_size):
    """[vocab_size] occurrences of each id in ids[begins[n]:ends[n]], for all n."""
    counts = np.zeros(vocab_size, np.int64)
    for number in range(len(begins)):
        for position in range(begins[number], ends[number]):
            counts[ids[position]] += 1
    return counts


@njit(cache=True, nogil=True)
def count_documents(ids, begins, ends, vocab_size):
    """[vocab_size] the number of spans ids[begins[n]:ends[n]] that contain each id."""
    counts, last_seen = np.zeros(vocab_size, np.int64), np.full(vocab_size, -1, np.int64)
    for number in range(len(begins)):
        for position in range(begins[number], ends[number]):
            word = ids[position]
            if last_seen[word] != number:
                last_seen[word] = number
                counts[word] += 1
    return counts


@njit(cache=True, nogil=True)
def fill_bigram_keys(ids, begins, ends, first, rank, size, keys):
    """Fill in rank(left) * size + rank(right) for the bigrams of the sentences from number `first` on.

    A rank of -1 breaks a bigram. Returns the number of keys and the next sentence, the first that might not fit.
    """
    count = 0
    for sentence in range(first, len(begins)):
        if count + ends[sentence] - begins[sentence] > len(keys):
            return count, sentence
        left = np.int64(-1)
        for position in range(begins[sentence], ends[sentence]):
            right = rank[np.int64(ids[position])]
            if left >= 0 and right >= 0:
                keys[count] = left * size + right
                count += 1
            left = right
    return count, len(begins)

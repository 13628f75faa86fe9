"""Phrases: words that occur together far more often than by chance, joined to one, as new_york (Mikolov et al. 2013).

score(a, b) = (count(ab) - discount) / (count(a) count(b)) x (distinct words and pairs), above a threshold, as in
gensim. Pairs are joined from left to right; each further pass may join the phrases of the one before.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numba import njit

from keel.data.byte_bpe import pair_table, slot

DISCOUNT, THRESHOLD = 5, 10.0
MAX_PAIRS = 20_000_000
"""Distinct pairs in memory, in about half a gigabyte; above it the rarest are dropped."""

Encode = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Iterates over all text: word indices (-1: unknown) of some sentences, and the length of each sentence."""


class Phrases:
    """Pairs of ids and the id of their phrase, in several passes."""

    def __init__(self, passes: Sequence[np.ndarray]):
        """Each pass is [pairs, 3]: two ids and the id of the phrase."""
        self._table = pair_table(np.concatenate([np.zeros((0, 3), np.int64), *passes]))
        self._limits = np.cumsum([0, *map(len, passes)])  # a rank below the second number is of the first pass

    def join(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids after joining, the number of ids per text, and the number of words of each id."""
        ids, lengths, sizes = ids.copy(), lengths.copy(), np.ones(len(ids), np.int64)
        used = _join(ids, lengths, sizes, *self._table, self._limits)
        return ids[:used], lengths, sizes[:used]


def learn_phrases(encode: Encode, words: list[str], passes: int) -> tuple[list[str], np.ndarray, list[np.ndarray]]:
    """Find phrases: all words and phrases, their counts, and the pairs of each pass; punctuation is never joined."""
    found: list[np.ndarray] = []
    words = words.copy()
    phrases = Phrases(found)
    for _ in range(passes):
        counts, pairs = np.zeros(len(words), np.int64), PairCounts()
        for ids, lengths in encode():
            ids, lengths, _ = phrases.join(ids, lengths)
            counts += np.bincount(ids[ids >= 0], minlength=len(words))
            pairs.add(ids, lengths)
        joinable = np.array([any(map(str.isalnum, word)) for word in words], bool)
        first, second, together = pairs.all()
        distinct = np.count_nonzero(counts) + len(together)
        score = (together - DISCOUNT) / (counts[first] * counts[second]) * distinct
        chosen = np.flatnonzero((score > THRESHOLD) & joinable[first] & joinable[second])
        chosen = chosen[np.lexsort((second[chosen], first[chosen]))]
        found.append(np.stack([first[chosen], second[chosen], len(words) + np.arange(len(chosen))], 1))
        words += [f"{words[a]}_{words[b]}" for a, b, _ in found[-1].tolist()]
        phrases = Phrases(found)
    counts = np.zeros(len(words), np.int64)
    for ids, lengths in encode():
        ids, *_ = phrases.join(ids, lengths)
        counts += np.bincount(ids[ids >= 0], minlength=len(words))
    return words, counts, found


class PairCounts:
    """Counts of word pairs."""

    def __init__(self, most: int = MAX_PAIRS):
        self._most, self._used, self._floor = most, 0, 0
        self._keys, self._counts = np.full(1 << 16, -1, np.int64), np.zeros(1 << 16, np.int64)

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Count the pairs of some sentences."""
        if 2 * (self._used + len(ids)) > len(self._keys):
            self._grow(len(ids))
        self._used += _count_pairs(ids, lengths, self._keys, self._counts)

    def all(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First words, second words, and the count of each pair."""
        keys = self._keys[self._keys >= 0]
        return keys >> 32, keys & 0xFFFFFFFF, self._counts[self._keys >= 0]

    def _grow(self, more: int) -> None:
        """Make room for more pairs, if necessary by dropping the rarest."""
        while self._used > self._most:
            self._floor += 1
            rare = (self._counts <= self._floor) & (self._keys >= 0)
            self._keys[rare] = -1
            self._used = int(np.count_nonzero(self._keys >= 0))
        kept = self._keys >= 0
        keys, counts = self._keys[kept], self._counts[kept]
        size = 1 << (4 * (self._used + more)).bit_length()
        self._keys, self._counts = np.full(size, -1, np.int64), np.zeros(size, np.int64)
        _put(keys, counts, self._keys, self._counts)


@njit(cache=True, nogil=True)
def _put(keys, counts, slots, totals):
    for number in range(len(keys)):
        place = slot(slots, keys[number])
        slots[place], totals[place] = keys[number], counts[number]


@njit(cache=True, nogil=True)
def _count_pairs(ids, lengths, slots, totals):
    new = begin = 0
    for length in lengths:
        for place in range(begin, begin + length - 1):
            if ids[place] >= 0 and ids[place + 1] >= 0:
                key = np.int64(ids[place]) << 32 | np.int64(ids[place + 1])
                where = slot(slots, key)
                if slots[where] == -1:
                    slots[where] = key
                    new += 1
                totals[where] += 1
        begin += max(length, 0)
    return new


@njit(cache=True, nogil=True)
def _join(ids, lengths, sizes, keys, ranks, joined, limits):
    """Join pairs in place; returns the number of ids left."""
    used = begin = 0
    for text in range(len(lengths)):
        count = max(lengths[text], 0)
        for place in range(count):
            ids[used + place], sizes[used + place] = ids[begin + place], sizes[begin + place]
        begin += count
        for number in range(len(limits) - 1):
            kept = place = 0
            while place < count:
                ids[used + kept], sizes[used + kept] = ids[used + place], sizes[used + place]
                if place + 1 < count and ids[used + place] >= 0 and ids[used + place + 1] >= 0:
                    where = slot(keys, np.int64(ids[used + place]) << 32 | np.int64(ids[used + place + 1]))
                    if keys[where] != -1 and limits[number] <= ranks[where] < limits[number + 1]:
                        ids[used + kept] = joined[where]
                        sizes[used + kept] += sizes[used + place + 1]
                        place += 1
                place += 1
                kept += 1
            count = kept
        lengths[text] = count if lengths[text] >= 0 else -1
        used += count
    return used

"""N-grams counted, weighed and looked up, compiled by Numba.

All places of a text are sorted by the words from there on; equal beginnings then stand together, so that one walk over
the places finds the n-grams of every order, each with those that go on from it: a tree, whose nodes of one order lie
side by side, sorted. Memory holds the places of as many first words as fit; text and n-grams are on disk. Whatever the
number of threads and the memory, the tree is the same.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numba import njit

from keel.errors import UsageError


class SentenceBoundaries(NamedTuple):
    """What stands at the bounds of sentences."""

    start: int
    end: int


class SentenceSpans(NamedTuple):
    """Sentences in one long row of ids."""

    ids: np.ndarray
    begins: np.ndarray  # [sentences]
    stops: np.ndarray  # [sentences]

    def slice(self, first: int, last: int) -> Self:
        """The sentences from number `first` up to `last`."""
        return self._replace(begins=self.begins[first:last], stops=self.stops[first:last])

    def with_boundaries(self, words: np.ndarray, marks: SentenceBoundaries) -> np.ndarray:
        """[tokens] each sentence between its marks, every id as the word that `words` gives for it."""
        size = int((self.stops - self.begins).sum()) + 2 * np.count_nonzero(self.stops > self.begins)
        text = np.empty(size, np.int32)
        _fill_sentences(*self, words, *marks, text)
        return text


class NgramOrder(NamedTuple):
    """All n-grams of one order, sorted, words first to last; on disk where they are many."""

    words: np.ndarray  # [ngrams] the last word of each
    counts: np.ndarray  # [ngrams] how often it stands in the text or, below the highest order, after how many words
    sizes: np.ndarray  # [ngrams] how many n-grams of the next order begin with it
    links: np.ndarray  # [ngrams] where among those one shorter it stands without its first word


class NgramCounts(NamedTuple):
    """The n-grams of a text by their order."""

    orders: list[NgramOrder]
    parts: int
    """How many times the memory all of them together would have needed to be sorted."""

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Nobody writes into them: a copy of an objective needs none of its own."""
        return self


def count_ngrams(
    sentences: SentenceSpans,
    words: np.ndarray,
    marks: SentenceBoundaries,
    *,
    order: int,
    vocabulary: int,
    folder: Path,
    memory: float,
    threads: int,
) -> NgramCounts:
    """Count as Kneser and Ney do: below the highest order an n-gram counts once for each word that stands before it,
    but as often as it comes if it begins a sentence, where no word does.

    Sorting takes at most `memory` GiB; files are in `folder` and go with the arrays.
    """
    text = _write_text(sentences, words, marks, order, folder)
    firsts = _bincount(text[: len(text) - order], vocabulary)
    sought = firsts.copy()
    sought[marks.end] = 0  # nothing goes on from the end of a sentence
    place = np.dtype(np.int32 if len(text) < 2**31 - 1 else np.int64)
    each = 2 * place.itemsize + 12 * (order - 1)
    threads, ranges = _divide_memory(sought, each, memory, threads) if order > 1 else (1, [])
    children = np.zeros(vocabulary, np.int32)
    files = [[_file(folder) for _ in range(3)] for _ in range(1, order)]

    def build(bounds: tuple[int, int]) -> list[np.ndarray]:
        low, high = bounds
        places = np.empty(int(sought[low:high].sum()), place)
        _find_positions(text, low, high, marks.end, places)
        places = _radix_sort(text, places, np.empty_like(places), order, np.empty(vocabulary + 1, np.int64))
        ends = _count_new_ngrams(text, places, order, marks.end).cumsum()
        found = np.zeros((3, ends[-1]), np.int32)
        filled = np.concatenate([[0], ends[:-1]])
        _fill_trie(text, places, order, marks.end, children, found[0], found[1], found[2], filled)
        return np.split(found, ends[:-1], 1)[1:]

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(ranges), threads):
            for grown in pool.map(build, ranges[start : start + threads]):
                for level, arrays in zip(files, grown, strict=True):
                    for file, array in zip(level, arrays, strict=True):
                        file.write(array.data)
    levels = [(np.arange(vocabulary, dtype=np.int32), firsts, children)]
    levels += [tuple(_memory_map(file) for file in level) for level in files]
    parts = -(-int(sought.sum()) * each // int(memory * 2**30)) if order > 1 else 1  # single words need no sorting
    return NgramCounts(list(_kneser_ney_counts(levels, marks.start, folder)), parts)


def _write_text(
    sentences: SentenceSpans, words: np.ndarray, marks: SentenceBoundaries, order: int, folder: Path
) -> np.ndarray:
    """All marked text in a file, and so much more after it that every place has `order` words."""
    file = _file(folder)
    step = 10_000
    for first in range(0, len(sentences.begins), step):
        file.write(sentences.slice(first, first + step).with_boundaries(words, marks).data)
    file.write(np.full(order, marks.end, np.int32).data)
    return _memory_map(file)


def _file(folder: Path) -> IO[bytes]:
    return TemporaryFile(dir=folder)


def _memory_map(file: IO[bytes]) -> np.ndarray:
    """The int32 that a temporary file holds, which lives as long as the array."""
    with file:
        file.flush()
        return np.asarray(np.memmap(file, np.int32, "r+")) if file.seek(0, 2) else np.empty(0, np.int32)


def _divide_memory(counts: np.ndarray, each: int, memory: float, threads: int) -> tuple[int, list[tuple[int, int]]]:
    """How many threads there is memory for, and the stretches of first words that one of them sorts at a time."""
    room, most = int(memory * 2**30), max(1, int(counts.max()) * each)
    if most > room:
        need = most / 2**30
        what = f"sorting the places of the most frequent word takes {need:.2g} GiB, and memory is {memory:g}"
        raise UsageError(f"{what}: raise it (--system.memory {need * 1.01:.2g})")
    threads = min(threads, room // most)
    return threads, list(_word_ranges(counts, min(room // threads // each, 1 + int(counts.sum()) // (4 * threads))))


def _word_ranges(counts: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Stretches of words with so many places at most, or one word."""
    first, taken = 0, 0
    for word, count in enumerate(counts.tolist()):
        if taken and taken + count > most:
            yield first, word
            first, taken = word, 0
        taken += count
    yield first, len(counts)


def _kneser_ney_counts(levels: list[Any], start: int, folder: Path) -> Iterator[NgramOrder]:
    """Each order with its links, and with its counts as Kneser and Ney have them."""
    links = np.empty(0, np.int32)
    shorter = np.empty(0, np.int64)  # where those begin that go on from each n-gram one shorter
    low, high = start, start + 1  # the n-grams that begin with the start of a sentence
    for number, (words, counts, sizes) in enumerate(levels):
        if number + 1 == len(levels):
            yield NgramOrder(words, np.where(words == start, 0, counts) if number == 0 else counts, sizes, links)
            return
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        longer = after = levels[number + 1][0]
        if number > 0:
            file = _file(folder)
            file.truncate(4 * len(longer))
            after = _memory_map(file)
            _link_suffixes(starts, links, shorter, words, longer, after)
        adjusted = _bincount(after, len(words))
        adjusted[low:high] = 0 if number == 0 else counts[low:high]
        yield NgramOrder(words, adjusted, sizes, links)
        low, high, links, shorter = starts[low], starts[high], after, starts


@njit(cache=True, nogil=True)
def _bincount(numbers, most):
    """[most] how often each number comes."""
    counts = np.zeros(most, np.int32)
    for number in numbers:
        counts[number] += 1
    return counts


@njit(cache=True, nogil=True)
def _fill_sentences(ids, begins, stops, words, start, end, text):
    filled = 0
    for sentence in range(len(begins)):
        if stops[sentence] <= begins[sentence]:
            continue
        text[filled] = start
        filled += 1
        for place in range(begins[sentence], stops[sentence]):
            text[filled] = words[ids[place]]
            filled += 1
        text[filled] = end
        filled += 1


@njit(cache=True, nogil=True)
def _find_positions(text, low, high, end, places):
    """Fill in where the words from low to high stand, but not where sentences end."""
    found = 0
    for place in range(len(text)):
        word = text[place]
        if low <= word < high and word != end:
            places[found] = place
            found += 1
            if found == len(places):
                break


@njit(cache=True, nogil=True)
def _radix_sort(text, places, others, order, ends):
    """The places sorted by the words from there on: by the last, then stably by the one before it, up to the first.

    What follows the end of a sentence is compared too, which does no harm: it is never read.
    """
    for distance in range(order - 1, -1, -1):
        ends[:] = 0
        for place in places:
            ends[text[place + distance] + 1] += 1
        for word in range(1, len(ends)):
            ends[word] += ends[word - 1]
        for place in places:
            word = text[place + distance]
            others[ends[word]] = place
            ends[word] += 1
        places, others = others, places
    return places


@njit(cache=True, nogil=True, inline="always")
def _common_prefix(text, place, other, order, end):
    """How many words from both places on are the same, up to the end of the sentence; all, if that is where it ends."""
    same = 0
    while same < order:
        word = text[place + same]
        if word != text[other + same]:
            break
        same += 1
        if word == end:
            return order
    return same


@njit(cache=True, nogil=True)
def _count_new_ngrams(text, places, order, end):
    """[order] how many n-grams of each order begin at these sorted places; of the first, none is counted."""
    sizes = np.zeros(order, np.int64)
    for number in range(len(places)):
        place = places[number]
        same = _common_prefix(text, place, places[number - 1], order, end) if number else 0
        for length in range(max(1, same), order):
            if text[place + length - 1] == end:
                break
            sizes[length] += 1
    return sizes


@njit(cache=True, nogil=True)
def _fill_trie(text, places, order, end, children, words, counts, sizes, filled):
    """Fill in the n-grams that begin at these sorted places; filled[n] is where the next of n + 1 words goes."""
    for number in range(len(places)):
        place = places[number]
        same = _common_prefix(text, place, places[number - 1], order, end) if number else 0
        for length in range(1, order):
            if text[place + length - 1] == end:
                break
            if length >= same:
                words[filled[length]] = text[place + length]
                if length == 1:
                    children[text[place]] += 1
                else:
                    sizes[filled[length - 1] - 1] += 1
                filled[length] += 1
            counts[filled[length] - 1] += 1


@njit(cache=True, nogil=True)
def _binary_search(words, low, high, word):
    """Where in this sorted stretch of words one stands, or where it would."""
    while low < high:
        middle = (low + high) // 2
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _link_suffixes(starts, links, shorter_starts, words, longer, after):
    """Fill in, for each n-gram one longer than `words` end, where it stands among these without its first word.

    That is below where the n-gram without its last word stands without its first one.
    """
    for parent in range(len(links)):
        low, high = shorter_starts[links[parent]], shorter_starts[links[parent] + 1]
        for child in range(starts[parent], starts[parent + 1]):
            low = _binary_search(words, low, high, longer[child])
            after[child] = low


@njit(cache=True, nogil=True)
def estimate_unigrams(counts, discounts, never, chances):
    """Fill in log p of each word alone: what the discounts spare is shared out evenly, also to words never met."""
    total, spared, possible = 0, 0.0, 0
    for word in range(len(counts)):
        possible += not never[word]
        if counts[word]:
            total += counts[word]
            spared += discounts[min(counts[word], 3)]
    even = spared / total / possible
    for word in range(len(counts)):
        kept = (counts[word] - discounts[min(counts[word], 3)]) / total
        chances[word] = -np.inf if never[word] else np.log(kept + even)


@njit(cache=True, nogil=True)
def estimate_ngrams(low, high, starts, counts, links, discounts, chances, backoffs):
    """Fill in log p of the n-grams that go on from the nodes low to high, and log of what these spare for others.

    p(w | v..) = (c(v.. w) - D(c)) / sum of c(v.. *) + spared(v..) p(w | ..), with one word less before it.
    """
    for parent in range(low, high):
        begin, stop = starts[parent], starts[parent + 1]
        total, spared = 0, 0.0
        for child in range(begin, stop):
            count = counts[child - high]
            total += count
            spared += discounts[min(count, 3)]
        spared = spared / total if total else 1.0
        backoffs[parent] = np.log(spared)
        for child in range(begin, stop):
            count = counts[child - high]
            lower = np.exp(np.float64(chances[low + links[child - high]]))
            chances[child] = np.log((count - discounts[min(count, 3)]) / total + spared * lower)


@njit(cache=True, nogil=True)
def sum_log_probs(text, chosen, start, order, words, starts, chances, backoffs):
    """The sum of -log p over all words of marked text, and over the chosen ones; order 0 knows nothing of any."""
    total, part, held = 0.0, 0.0, 0
    nodes = np.empty(max(1, order), np.int64)  # of the last word, of the last two, ...
    for place in range(len(text)):
        word = np.int64(text[place])
        if word != start:
            known, lost, met = word, 0.0, 0
            for length in range(held, 0, -1):
                node = nodes[length - 1]
                stop = np.int64(starts[node + 1])
                child = _binary_search(words, np.int64(starts[node]), stop, word)
                if child < stop and words[child] == word:
                    if met == 0:
                        known, met = child, length
                    if length < order - 1:
                        nodes[length] = child
                elif met == 0:
                    lost += backoffs[node]
            total -= chances[known] + lost
            if chosen[place]:
                part -= chances[known] + lost
            held = met
        else:
            held = 0
        nodes[0] = word
        held = min(held + 1, order - 1)
    return total, part


@njit(cache=True, nogil=True)
def next_word_log_probs(context, order, words, starts, chances, backoffs, found):
    """Fill in log p of every word after the last words of `context`."""
    found[:] = chances[: len(found)]
    for length in range(1, min(len(context), order - 1) + 1):
        node = np.int64(context[len(context) - length])
        for place in range(len(context) - length + 1, len(context)):
            stop = np.int64(starts[node + 1])
            child = _binary_search(words, np.int64(starts[node]), stop, np.int64(context[place]))
            if child == stop or words[child] != context[place]:
                return
            node = child
        found += backoffs[node]
        for child in range(starts[node], starts[node + 1]):
            found[words[child]] = chances[child]

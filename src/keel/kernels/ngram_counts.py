"""N-gram counts, Kneser-Ney estimates and lookups in a trie, in Numba.

All positions of a text are sorted by the words that follow (a suffix array of `order` words); one pass over them then
finds the n-grams of every order and their extensions: a trie whose nodes are stored by order, sorted. Memory holds the
positions of as many first words as fit; text and n-grams are on disk. The trie does not depend on the number of threads
or the memory.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numba import njit

from keel.errors import UsageError
from keel.kernels.word_counts import TokenSpans, ranges_within


class NgramOrder(NamedTuple):
    """All n-grams of one order, sorted; memory-mapped above order 1."""

    words: np.ndarray  # [ngrams] the last word of each
    counts: np.ndarray  # [ngrams] occurrences at the highest order; number of distinct preceding words below
    sizes: np.ndarray  # [ngrams] number of n-grams of the next order that extend it
    suffixes: np.ndarray  # [ngrams] index of its suffix (without the first word) in the order below


class NgramCounts(NamedTuple):
    """The n-grams of a text, by order."""

    orders: list[NgramOrder]
    parts: int
    """How many parts of the text were sorted separately for lack of memory."""

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Read-only, so copies of an objective share it."""
        return self


def add_boundaries(sentences: TokenSpans, words: np.ndarray, start: int, end: int) -> np.ndarray:
    """[tokens] every sentence between <s> and </s> (`start` and `end`), ids mapped by `words`."""
    sizes = sentences.stops - sentences.begins
    text = np.empty(int(sizes.sum()) + 2 * np.count_nonzero(sizes > 0), np.int32)
    _fill_sentences(*sentences, words, start, end, text)
    return text


def count_ngrams(
    sentences: TokenSpans, words: np.ndarray, start: int, end: int, *, order: int, vocab_size: int, folder: Path,
    memory: float, threads: int,
) -> NgramCounts:  # fmt: skip
    """Kneser-Ney counts: the number of distinct words before an n-gram, or its occurrences if it has the highest order
    or begins with <s>.

    Sorting takes at most `memory` GiB; temporary files are in `folder` and live as long as the arrays.
    """
    text = _write_text(sentences, words, start, end, order, folder)
    unigram_counts = _bincount(text[: len(text) - order], vocab_size)
    sought = unigram_counts.copy()
    sought[end] = 0  # nothing follows the end of a sentence
    position = np.dtype(np.int32 if len(text) < 2**31 - 1 else np.int64)
    each = 2 * position.itemsize + 12 * (order - 1)
    threads, ranges = _divide_memory(sought, each, memory, threads) if order > 1 else (1, [])
    children = np.zeros(vocab_size, np.int32)
    files = [[_file(folder) for _ in range(3)] for _ in range(1, order)]

    def build(bounds: tuple[int, int]) -> list[np.ndarray]:
        low, high = bounds
        positions = np.empty(int(sought[low:high].sum()), position)
        _find_positions(text, low, high, end, positions)
        positions = _radix_sort(text, positions, np.empty_like(positions), order, np.empty(vocab_size + 1, np.int64))
        ends = _count_new_ngrams(text, positions, order, end).cumsum()
        found = np.zeros((3, ends[-1]), np.int32)
        filled = np.concatenate([[0], ends[:-1]])
        _fill_trie(text, positions, order, end, children, found[0], found[1], found[2], filled)
        return np.split(found, ends[:-1], 1)[1:]

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(ranges), threads):
            for grown in pool.map(build, ranges[first : first + threads]):
                for level, arrays in zip(files, grown, strict=True):
                    for file, array in zip(level, arrays, strict=True):
                        file.write(array.data)
    levels = [(np.arange(vocab_size, dtype=np.int32), unigram_counts, children)]
    levels += [tuple(_memory_map(file) for file in level) for level in files]
    parts = -(-int(sought.sum()) * each // int(memory * 2**30)) if order > 1 else 1  # unigrams need no sorting
    return NgramCounts(list(_kneser_ney_counts(levels, start, folder)), parts)


def _write_text(sentences: TokenSpans, words: np.ndarray, start: int, end: int, order: int, folder: Path) -> np.ndarray:
    """The text with sentence boundaries in a file, padded so that `order` words follow every position."""
    file = _file(folder)
    step = 10_000
    for first in range(0, len(sentences.begins), step):
        file.write(add_boundaries(sentences.slice(first, first + step), words, start, end).data)
    file.write(np.full(order, end, np.int32).data)
    return _memory_map(file)


def _file(folder: Path) -> IO[bytes]:
    return TemporaryFile(dir=folder)


def _memory_map(file: IO[bytes]) -> np.ndarray:
    """Memory-map the int32 of a temporary file, which lives as long as the array."""
    with file:
        file.flush()
        return np.asarray(np.memmap(file, np.int32, "r+")) if file.seek(0, 2) else np.empty(0, np.int32)


def _divide_memory(counts: np.ndarray, each: int, memory: float, threads: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the threads that fit into memory, and ranges of first words that one thread sorts at a time."""
    available, most = int(memory * 2**30), max(1, int(counts.max()) * each)
    if most > available:
        need = most / 2**30
        what = f"sorting the positions of the most frequent word takes {need:.2g} GiB, but memory is {memory:g}"
        raise UsageError(f"{what}: raise it (--system.memory {need * 1.01:.2g})")
    threads = min(threads, available // most)
    positions = min(available // threads // each, 1 + int(counts.sum()) // (4 * threads))
    return threads, list(ranges_within(counts.tolist(), positions))


def _kneser_ney_counts(levels: list[Any], start: int, folder: Path) -> Iterator[NgramOrder]:
    """Each order with its suffix links and Kneser-Ney counts."""
    suffixes = np.empty(0, np.int32)
    shorter = np.empty(0, np.int64)  # first extension of each n-gram of the order below
    low, high = start, start + 1  # the n-grams that begin with <s>
    for number, (words, counts, sizes) in enumerate(levels):
        if number + 1 == len(levels):
            yield NgramOrder(words, np.where(words == start, 0, counts) if number == 0 else counts, sizes, suffixes)
            return
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        longer = after = levels[number + 1][0]
        if number > 0:
            file = _file(folder)
            file.truncate(4 * len(longer))
            after = _memory_map(file)
            _link_suffixes(starts, suffixes, shorter, words, longer, after)
        adjusted = _bincount(after, len(words))
        adjusted[low:high] = 0 if number == 0 else counts[low:high]
        yield NgramOrder(words, adjusted, sizes, suffixes)
        low, high, suffixes, shorter = starts[low], starts[high], after, starts


@njit(cache=True, nogil=True)
def _bincount(numbers, most):
    """[most] occurrences of each number."""
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
        for position in range(begins[sentence], stops[sentence]):
            text[filled] = words[ids[position]]
            filled += 1
        text[filled] = end
        filled += 1


@njit(cache=True, nogil=True)
def _find_positions(text, low, high, end, positions):
    """Fill in the positions of words low to high, without sentence ends."""
    found = 0
    for position in range(len(text)):
        word = text[position]
        if low <= word < high and word != end:
            positions[found] = position
            found += 1
            if found == len(positions):
                break


@njit(cache=True, nogil=True)
def _radix_sort(text, positions, buffer, order, ends):
    """Sort positions by their next `order` words: radix sort from the last word to the first.

    Words after a sentence end are compared too, which is harmless: they are never read.
    """
    for distance in range(order - 1, -1, -1):
        ends[:] = 0
        for position in positions:
            ends[text[position + distance] + 1] += 1
        for word in range(1, len(ends)):
            ends[word] += ends[word - 1]
        for position in positions:
            word = text[position + distance]
            buffer[ends[word]] = position
            ends[word] += 1
        positions, buffer = buffer, positions
    return positions


@njit(cache=True, nogil=True, inline="always")
def _common_prefix(text, position, other, order, end):
    """Length of the common prefix of two positions; `order` if both sentences end before they differ."""
    same = 0
    while same < order:
        word = text[position + same]
        if word != text[other + same]:
            break
        same += 1
        if word == end:
            return order
    return same


@njit(cache=True, nogil=True)
def _count_new_ngrams(text, positions, order, end):
    """[order] number of n-grams above order 1 that begin at these sorted positions."""
    sizes = np.zeros(order, np.int64)
    for number in range(len(positions)):
        position = positions[number]
        same = _common_prefix(text, position, positions[number - 1], order, end) if number else 0
        for length in range(max(1, same), order):
            if text[position + length - 1] == end:
                break
            sizes[length] += 1
    return sizes


@njit(cache=True, nogil=True)
def _fill_trie(text, positions, order, end, children, words, counts, sizes, filled):
    """Fill in the n-grams that begin at these sorted positions; filled[n] is the next free entry of order n + 1."""
    for number in range(len(positions)):
        position = positions[number]
        same = _common_prefix(text, position, positions[number - 1], order, end) if number else 0
        for length in range(1, order):
            if text[position + length - 1] == end:
                break
            if length >= same:
                words[filled[length]] = text[position + length]
                if length == 1:
                    children[text[position]] += 1
                else:
                    sizes[filled[length - 1] - 1] += 1
                filled[length] += 1
            counts[filled[length] - 1] += 1


@njit(cache=True, nogil=True)
def _binary_search(words, low, high, word):
    """Index of a word in words[low:high], which is sorted, or where it would be inserted."""
    while low < high:
        middle = (low + high) // 2
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _link_suffixes(starts, suffixes, shorter_starts, words, longer, after):
    """Fill in the suffix link of each n-gram of the next order: its index without its first word.

    It is an extension of the suffix of its parent.
    """
    for parent in range(len(suffixes)):
        low, high = shorter_starts[suffixes[parent]], shorter_starts[suffixes[parent] + 1]
        for child in range(starts[parent], starts[parent + 1]):
            low = _binary_search(words, low, high, longer[child])
            after[child] = low


@njit(cache=True, nogil=True)
def estimate_unigrams(counts, discounts, impossible, log_probs):
    """Fill in log p(w): the discounted mass is spread evenly over the vocabulary, unseen words included."""
    total, backoff_mass, possible = 0, 0.0, 0
    for word in range(len(counts)):
        possible += not impossible[word]
        if counts[word]:
            total += counts[word]
            backoff_mass += discounts[min(counts[word], 3)]
    even = backoff_mass / total / possible
    for word in range(len(counts)):
        kept = (counts[word] - discounts[min(counts[word], 3)]) / total
        log_probs[word] = -np.inf if impossible[word] else np.log(kept + even)


@njit(cache=True, nogil=True)
def estimate_ngrams(low, high, starts, counts, suffixes, discounts, log_probs, backoffs):
    """Fill in log p of the n-grams that extend nodes low to high, and the log back-off weight of these nodes.

    p(w | v u) = (c(v u w) - D(c)) / sum over w' of c(v u w') + gamma(v u) p(w | u), where gamma is the discounted mass.
    """
    for parent in range(low, high):
        begin, stop = starts[parent], starts[parent + 1]
        total, backoff_mass = 0, 0.0
        for child in range(begin, stop):
            count = counts[child - high]
            total += count
            backoff_mass += discounts[min(count, 3)]
        backoff_mass = backoff_mass / total if total else 1.0
        backoffs[parent] = np.log(backoff_mass)
        for child in range(begin, stop):
            count = counts[child - high]
            lower = np.exp(np.float64(log_probs[low + suffixes[child - high]]))
            log_probs[child] = np.log((count - discounts[min(count, 3)]) / total + backoff_mass * lower)


@njit(cache=True, nogil=True)
def sum_log_probs(text, selected, start, order, words, starts, log_probs, backoffs):
    """Sum of -log p over all words of the text, and over the selected ones; order 0 is uniform."""
    total, part, context_size = 0.0, 0.0, 0
    nodes = np.empty(max(1, order), np.int64)  # of the last word, the last two, ...
    for position in range(len(text)):
        word = np.int64(text[position])
        if word != start:
            known, backoff, matched = word, 0.0, 0
            for length in range(context_size, 0, -1):
                node = nodes[length - 1]
                stop = np.int64(starts[node + 1])
                child = _binary_search(words, np.int64(starts[node]), stop, word)
                if child < stop and words[child] == word:
                    if matched == 0:
                        known, matched = child, length
                    if length < order - 1:
                        nodes[length] = child
                elif matched == 0:
                    backoff += backoffs[node]
            total -= log_probs[known] + backoff
            if selected[position]:
                part -= log_probs[known] + backoff
            context_size = matched
        else:
            context_size = 0
        nodes[0] = word
        context_size = min(context_size + 1, order - 1)
    return total, part


@njit(cache=True, nogil=True)
def next_word_log_probs(context, order, words, starts, log_probs, backoffs, found):
    """Fill in log p of every word after `context`."""
    found[:] = log_probs[: len(found)]
    for length in range(1, min(len(context), order - 1) + 1):
        node = np.int64(context[len(context) - length])
        for position in range(len(context) - length + 1, len(context)):
            stop = np.int64(starts[node + 1])
            child = _binary_search(words, np.int64(starts[node]), stop, np.int64(context[position]))
            if child == stop or words[child] != context[position]:
                return
            node = child
        found += backoffs[node]
        for child in range(starts[node], starts[node + 1]):
            found[words[child]] = log_probs[child]


@njit(cache=True, nogil=True)
def word_log_probs(targets, contexts, start, order, words, starts, log_probs, backoffs, found):
    """Fill in log p of each target after its context, as `next_word_log_probs` does for every word."""
    for index in range(len(targets)):
        context, word = contexts[index], np.int64(targets[index])
        first = len(context) - 1
        while first > 0 and context[first] != start:
            first -= 1
        value = np.float32(log_probs[word])
        for length in range(1, min(len(context) - first, order - 1) + 1):
            node, missing = np.int64(context[len(context) - length]), False
            for position in range(len(context) - length + 1, len(context)):
                stop = np.int64(starts[node + 1])
                child = _binary_search(words, np.int64(starts[node]), stop, np.int64(context[position]))
                missing = child == stop or words[child] != context[position]
                if missing:
                    break
                node = child
            if missing:
                break
            value = np.float32(value + backoffs[node])
            stop = np.int64(starts[node + 1])
            child = _binary_search(words, np.int64(starts[node]), stop, word)
            if child < stop and words[child] == word:
                value = np.float32(log_probs[child])
        found[index] = value

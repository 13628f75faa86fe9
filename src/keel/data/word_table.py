"""Word counts and word lookup in hash tables, compiled by Numba."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from numba import njit

from keel.data.ordered_map import ordered_map
from keel.data.tokenizer_rules import bert_rules
from keel.data.word_splitting import LONGEST, SplitTexts, WordSplitter, word_key

MAX_WORDS = 5_000_000
"""Distinct words in memory while counting, in about half a gigabyte; above it the rarest are dropped."""


class WordTable:
    """Distinct words with their counts, numbered in the order of their first occurrence."""

    def __init__(self, room: int = 1 << 12):
        self.size = 0
        self._text, self._ends = np.empty(8 * room, np.uint8), np.zeros(room + 1, np.int64)
        self._keys, self._counts = np.empty(room, np.uint64), np.zeros(room, np.int64)
        self._make_slots()

    @classmethod
    def of(cls, split: SplitTexts) -> Self:
        """Count the words of some texts."""
        table = cls()
        table._add(split.text, split.ends, split.keys, np.ones(1, np.int64))
        return table

    @property
    def counts(self) -> np.ndarray:
        """[words] counts."""
        return self._counts[: self.size]

    def words(self) -> list[str]:
        """All words."""
        text, ends = self._text.tobytes(), self._ends[: self.size + 1].tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]

    def add(self, other: "WordTable") -> None:
        """Add the words and counts of another table."""
        self._add(other._text, other._ends[1 : other.size + 1], other._keys[: other.size], other.counts)

    def find(self, split: SplitTexts) -> np.ndarray:
        """[words of the texts] the number of each; -1 for an unknown word."""
        found = np.empty(len(split.ends), np.int32)
        _find(split.text, split.ends, split.keys, self._slots, self._numbers, self._text, self._ends, found)
        return found

    def above(self, least: int) -> "WordTable":
        """The words with a count above `least`."""
        kept = np.flatnonzero(self.counts > least)
        lengths = self._ends[kept + 1] - self._ends[kept]
        ends = np.cumsum(lengths)
        table = WordTable(len(kept) + 1)
        index = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._ends[kept] - (ends - lengths), lengths)
        table._add(self._text[index], ends, self._keys[kept], self._counts[kept])
        return table

    def _add(self, text: np.ndarray, ends: np.ndarray, keys: np.ndarray, counts: np.ndarray) -> None:
        done = 0
        while done < len(ends):
            own = self._slots, self._numbers, self._text, self._ends, self._keys, self._counts
            done, self.size = _merge(text, ends, keys, counts, done, *own, self.size)
            if done < len(ends):  # full: enlarge every array
                width = int(ends[done] - (ends[done - 1] if done else 0))
                self._text = _grown(self._text, 4 * len(self._text) + width)
                self._ends = _grown(self._ends, 4 * len(self._ends))
                self._keys, self._counts = (_grown(array, len(self._ends) - 1) for array in (self._keys, self._counts))
                self._make_slots()
                _place(self._keys[: self.size], self._slots, self._numbers)

    def _make_slots(self) -> None:
        size = 1 << (len(self._keys) * 3 // 2).bit_length()  # load factor of two thirds at most
        self._slots, self._numbers = np.zeros(size, np.uint64), np.empty(size, np.int32)


class WordLookup:
    """Ids of the words of a vocabulary, for compiled code."""

    def __init__(self, inner: tokenizers.Tokenizer, unknown: str):
        ids = {word: number for word, number in inner.get_vocab(with_added_tokens=False).items() if word}
        self._splitter = WordSplitter(inner, max(len(word.encode()) for word in ids))
        self._table = table_of_words(list(ids))
        self._ids = np.array([*ids.values(), ids[unknown]], np.int32)  # an unknown word has number -1, the last

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer, rules: dict[str, Any]) -> "WordLookup | None":
        """Lookup of a tokenizer's words; None if its rules are not BERT's with a word-level model."""
        normalizer, splitter, model = bert_rules(rules), rules["pre_tokenizer"] or {}, rules["model"]
        kinds = normalizer.get("type"), splitter.get("type"), model["type"]
        if kinds != ("BertNormalizer", "BertPreTokenizer", "WordLevel") or model["unk_token"] not in inner.get_vocab():
            return None
        return cls(inner, model["unk_token"])

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts in one array, and the number of ids per text; -1 for a text left to the library."""
        split = self._splitter.split(texts)
        return self._ids[self._table.find(split)], split.lengths


class WordCounts(NamedTuple):
    """Word counts of a corpus."""

    table: WordTable
    floor: int
    """Words with this count or less were dropped while counting, to limit memory."""
    long: int
    """Number of over-long words, which are not counted."""


def count_words(
    chunks: Iterable[list[str]], prepare: Callable[[list[str]], list[str]], splitter: WordSplitter, workers: int
) -> WordCounts:
    """Count the words of preprocessed texts; the result does not depend on the number of workers."""
    table, floor, long = WordTable(), 0, 0
    for found, more in ordered_map(lambda texts: _count(splitter, prepare(texts)), chunks, workers):
        table.add(found)
        long += more
        while table.size > MAX_WORDS:
            floor += 1
            table = table.above(floor)
    return WordCounts(table, floor, long)


def _count(splitter: WordSplitter, texts: list[str]) -> tuple[WordTable, int]:
    """Words of some texts, and the number of over-long ones."""
    split = splitter.split(texts)
    table, long = WordTable.of(split), int(np.count_nonzero(split.keys == 0))
    left = [texts[number] for number in np.flatnonzero(split.lengths < 0)]
    if left:
        lines = [line for text in left for line in text.split("\n")]
        split = splitter.split(lines)
        table.add(WordTable.of(split))
        words = [word for number in np.flatnonzero(split.lengths < 0) for word in splitter.by_library(lines[number])]
        short = [word for word in words if len(word.encode()) <= LONGEST]
        table.add(table_of_words(short))
        long += int(np.count_nonzero(split.keys == 0)) + len(words) - len(short)
    return table, long


def table_of_words(words: list[str]) -> WordTable:
    """Table of these words."""
    text = [word.encode() for word in words]
    ends = np.cumsum(np.fromiter(map(len, text), np.int64, len(text)))
    characters = np.frombuffer(b"".join(text), np.uint8)
    keys = np.empty(len(text), np.uint64)
    _keys(characters, ends, keys)
    return WordTable.of(SplitTexts(characters, ends, keys, np.zeros(0, np.int64)))


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True, nogil=True)
def _keys(text, ends, keys):
    start = 0
    for word in range(len(ends)):
        keys[word] = word_key(text, start, ends[word])
        start = ends[word]


@njit(cache=True, nogil=True)
def _first(key, slots):
    """First slot to probe for a key."""
    key *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64((key ^ key >> np.uint64(32)) & np.uint64(slots - 1))


@njit(cache=True, nogil=True)
def _slot(key, characters, start, end, slots, numbers, text, ends):
    """Slot of a word, or the free slot for it; the keys of short words are the words."""
    place = _first(key, len(slots))
    while slots[place] != 0:
        if slots[place] == key:
            if key < np.uint64(1 << 63):
                break
            first = ends[numbers[place]]
            same = ends[numbers[place] + 1] - first == end - start
            step = 0
            while same and step < end - start:
                same = text[first + step] == characters[start + step]
                step += 1
            if same:
                break
        place = (place + 1) & (len(slots) - 1)
    return place


@njit(cache=True, nogil=True)
def _place(keys, slots, numbers):
    """Insert distinct words."""
    for word in range(len(keys)):
        place = _first(keys[word], len(slots))
        while slots[place] != 0:
            place = (place + 1) & (len(slots) - 1)
        slots[place], numbers[place] = keys[word], word


@njit(cache=True, nogil=True)
def _find(characters, ends, keys, slots, numbers, text, bounds, found):
    start = 0
    for word in range(len(ends)):
        place = _slot(keys[word], characters, start, ends[word], slots, numbers, text, bounds)
        found[word] = numbers[place] if slots[place] != 0 else -1
        start = ends[word]


@njit(cache=True, nogil=True)
def _merge(characters, ends, keys, weights, done, slots, numbers, text, bounds, own_keys, counts, size):
    """Add words from `done` on until the table is full; returns how many were added in all, and the table's size."""
    start = ends[done - 1] if done else 0
    for word in range(done, len(ends)):
        key, end = keys[word], ends[word]
        if key != 0:
            place = _slot(key, characters, start, end, slots, numbers, text, bounds)
            if slots[place] == 0:
                used = bounds[size]
                if size == len(own_keys) or used + end - start > len(text):
                    return word, size
                slots[place], numbers[place], own_keys[size], counts[size] = key, size, key, 0
                for step in range(end - start):
                    text[used + step] = characters[start + step]
                bounds[size + 1] = used + end - start
                size += 1
            counts[numbers[place]] += weights[word] if len(weights) > 1 else weights[0]
        start = end
    return len(ends), size

"""Words under BERT's rules, cut, counted and looked up by compiled code (Numba): the library's own, many times as fast.

What the rules make of a character is asked of the library, once for each that comes up. Texts with characters whose
neighbours matter to the rules (marks that may change places) are left to the library.
"""

import unicodedata
from collections.abc import Callable, Iterable
from itertools import pairwise
from threading import Lock, local
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from numba import njit

from keel.data.ordered_map import ordered_map

# What becomes of a character: a letter below ALONE, 0 for nothing, or one of these, with a letter or a number in it.
ALONE, SEVERAL, SPACE, STRANGE, UNASKED = 1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 25
ROOM = 4
"""Letters that one character may become: three for a Korean syllable."""

SHORT = 7
"""Bytes of words that are their own keys."""

LONGEST = 1000
"""Bytes of a word; longer runs of letters are data, and count as none."""

MOST_WORDS = 5_000_000
"""Distinct words that are held while counting, in about half a gigabyte; above it the rarest are given up."""


class Cut(NamedTuple):
    """Texts in words."""

    text: np.ndarray  # [bytes] the words in UTF-8, end to end
    ends: np.ndarray  # [words] where each ends
    keys: np.ndarray  # [words] what each is found by; 0 for one that is too long, which has no bytes
    lengths: np.ndarray  # [texts] words of each; -1 for one that is left to the library


class Rules:
    """How a tokenizer of the library cuts text into words."""

    def __init__(self, inner: tokenizers.Tokenizer, longest: int = LONGEST):
        self._normalizer, self._splitter = inner.normalizer, inner.pre_tokenizer
        self._longest = longest
        self._reorders = self._normalizer.strip_accents is not False
        self._actions = np.full(0x110000, UNASKED, np.int32)  # [all characters]
        self._several = np.zeros((0, ROOM), np.int32)
        self._asking, self._kept = Lock(), local()

    def cut(self, texts: list[str]) -> Cut:
        """Cut texts into words; what is given is good until the next cut on the same thread."""
        letters = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        self._ask(letters)
        text, ends, keys = self._scratch(len(letters) * ROOM + 1)
        lengths = np.empty(len(texts), np.int64)
        used = _cut(letters, sizes, self._actions, self._several, self._longest, text, ends, keys, lengths)
        return Cut(text, ends[:used], keys[:used], lengths)

    def _scratch(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Memory for so many letters and words, kept for each thread: to get it anew takes as long as to cut."""
        if most > getattr(self._kept, "most", 0):
            # The system gives only what is used of it, which is far less.
            self._kept.arrays = np.empty(4 * most, np.uint8), np.empty(most, np.int64), np.empty(most, np.uint64)
            self._kept.most = most
        return self._kept.arrays

    def by_library(self, text: str) -> list[str]:
        """Cut one text by the library."""
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def _ask(self, letters: np.ndarray) -> None:
        """Learn what becomes of characters that have not come before."""
        unasked = np.flatnonzero(_unasked(letters, self._actions)).tolist()
        with self._asking:
            for number in unasked:
                if self._actions[number] == UNASKED:  # what another thread is cutting by must not change
                    self._actions[number] = self._action(chr(number))

    def _action(self, letter: str) -> int:
        normal = self._normalizer.normalize_str(letter)
        if self._reorders and (
            unicodedata.category(letter) in ("Cn", "Co") or any(unicodedata.combining(part) for part in normal)
        ):
            return STRANGE
        parts = [self._part(part) for part in normal]
        if len(parts) == 3 and parts[0] == parts[2] == SPACE:  # a Chinese character, set apart
            parts = [ALONE | ord(normal[1])]
        if len(parts) <= 1:
            return parts[0] if parts else 0
        if len(parts) > ROOM:
            return STRANGE
        self._several = np.append(self._several, [parts + [0] * (ROOM - len(parts))], axis=0).astype(np.int32)
        return SEVERAL | (len(self._several) - 1)

    def _part(self, letter: str) -> int:
        """Letter, space or alone, as the library cuts it between two letters."""
        match len(self._splitter.pre_tokenize_str(f"a{letter}a")):
            case 1:
                return ord(letter)
            case 2:
                return SPACE
            case _:
                return ALONE | ord(letter)


class WordTable:
    """Distinct words with how often each came, numbered in the order of their coming."""

    def __init__(self, room: int = 1 << 12):
        self.size = 0
        self._text, self._ends = np.empty(8 * room, np.uint8), np.zeros(room + 1, np.int64)
        self._keys, self._counts = np.empty(room, np.uint64), np.zeros(room, np.int64)
        self._make_slots()

    @classmethod
    def of(cls, cut: Cut) -> Self:
        """Count the words of some texts."""
        table = cls()
        table._add(cut.text, cut.ends, cut.keys, np.ones(1, np.int64))
        return table

    @property
    def counts(self) -> np.ndarray:
        """[words] how often each came."""
        return self._counts[: self.size]

    def words(self) -> list[str]:
        """Give all words."""
        text, ends = self._text.tobytes(), self._ends[: self.size + 1].tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]

    def add(self, other: "WordTable") -> None:
        """Add the words and counts of another table."""
        self._add(other._text, other._ends[1 : other.size + 1], other._keys[: other.size], other.counts)

    def find(self, cut: Cut) -> np.ndarray:
        """[words of the texts] the number of each; -1 for one that is not here."""
        found = np.empty(len(cut.ends), np.int32)
        _find(cut.text, cut.ends, cut.keys, self._slots, self._numbers, self._text, self._ends, found)
        return found

    def above(self, least: int) -> "WordTable":
        """Keep only the words that came more than so often."""
        kept = np.flatnonzero(self.counts > least)
        lengths = self._ends[kept + 1] - self._ends[kept]
        ends = np.cumsum(lengths)
        table = WordTable(len(kept) + 1)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._ends[kept] - (ends - lengths), lengths)
        table._add(self._text[places], ends, self._keys[kept], self._counts[kept])
        return table

    def _add(self, text: np.ndarray, ends: np.ndarray, keys: np.ndarray, counts: np.ndarray) -> None:
        done = 0
        while done < len(ends):
            own = self._slots, self._numbers, self._text, self._ends, self._keys, self._counts
            done, self.size = _merge(text, ends, keys, counts, done, *own, self.size)
            if done < len(ends):  # it is full: every array gets four times the room
                width = int(ends[done] - (ends[done - 1] if done else 0))
                self._text = _grown(self._text, 4 * len(self._text) + width)
                self._ends = _grown(self._ends, 4 * len(self._ends))
                self._keys, self._counts = (_grown(array, len(self._ends) - 1) for array in (self._keys, self._counts))
                self._make_slots()
                _place(self._keys[: self.size], self._slots, self._numbers)

    def _make_slots(self) -> None:
        size = 1 << (len(self._keys) * 3 // 2).bit_length()  # at most two thirds of them are taken
        self._slots, self._numbers = np.zeros(size, np.uint64), np.empty(size, np.int32)


class WordLookup:
    """The words of a vocabulary, ready for compiled code."""

    def __init__(self, inner: tokenizers.Tokenizer, unknown: str):
        ids = {word: number for word, number in inner.get_vocab(with_added_tokens=False).items() if word}
        self._rules = Rules(inner, max(len(word.encode()) for word in ids))
        self._table = table_of_words(list(ids))
        self._ids = np.array([*ids.values(), ids[unknown]], np.int32)  # what is not found has number -1, the last

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer, rules: dict[str, Any]) -> "WordLookup | None":
        """The words of a tokenizer with these rules; none if they are not BERT's with whole words."""
        normalizer, splitter, model = rules["normalizer"] or {}, rules["pre_tokenizer"] or {}, rules["model"]
        kinds = normalizer.get("type"), splitter.get("type"), model["type"]
        if kinds != ("BertNormalizer", "BertPreTokenizer", "WordLevel") or model["unk_token"] not in inner.get_vocab():
            return None
        return cls(inner, model["unk_token"])

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts in one array, and how many each has; -1 for a text that is left to the library."""
        cut = self._rules.cut(texts)
        return self._ids[self._table.find(cut)], cut.lengths


class Counted(NamedTuple):
    """The words of a corpus."""

    table: WordTable
    floor: int
    """Words that had come no more often than this were given up on the way, to save memory."""
    long: int
    """Words above the longest, which are not counted."""


def count_words(
    chunks: Iterable[list[str]], prepare: Callable[[list[str]], list[str]], rules: Rules, workers: int
) -> Counted:
    """Count the words of texts after they were prepared; the same whatever the number of workers."""
    table, floor, long = WordTable(), 0, 0
    for found, more in ordered_map(lambda texts: _count(rules, prepare(texts)), chunks, workers):
        table.add(found)
        long += more
        while table.size > MOST_WORDS:
            floor += 1
            table = table.above(floor)
    return Counted(table, floor, long)


def _count(rules: Rules, texts: list[str]) -> tuple[WordTable, int]:
    """The words of some texts, and how many are too long."""
    cut = rules.cut(texts)
    table, long = WordTable.of(cut), int(np.count_nonzero(cut.keys == 0))
    left = [texts[number] for number in np.flatnonzero(cut.lengths < 0)]
    if left:
        lines = [line for text in left for line in text.split("\n")]
        cut = rules.cut(lines)
        table.add(WordTable.of(cut))
        words = [word for number in np.flatnonzero(cut.lengths < 0) for word in rules.by_library(lines[number])]
        short = [word for word in words if len(word.encode()) <= LONGEST]
        table.add(table_of_words(short))
        long += int(np.count_nonzero(cut.keys == 0)) + len(words) - len(short)
    return table, long


def table_of_words(words: list[str]) -> WordTable:
    """A table of words as they are."""
    text = [word.encode() for word in words]
    ends = np.cumsum(np.fromiter(map(len, text), np.int64, len(text)))
    letters = np.frombuffer(b"".join(text), np.uint8)
    keys = np.empty(len(text), np.uint64)
    _keys(letters, ends, keys)
    return WordTable.of(Cut(letters, ends, keys, np.zeros(0, np.int64)))


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True, nogil=True)
def _key(text, start, end):
    """The bytes of a short word, below their number; of a longer one a hash (FNV-1a) with the top bit set."""
    key = np.uint64(0)
    if end - start <= SHORT:
        for place in range(start, end):
            key = key << np.uint64(8) | np.uint64(text[place])
        return key | np.uint64(end - start) << np.uint64(56)
    key = np.uint64(0xCBF29CE484222325)
    for place in range(start, end):
        key = (key ^ np.uint64(text[place])) * np.uint64(0x100000001B3)
    return key | np.uint64(1 << 63)


@njit(cache=True, nogil=True)
def _keys(text, ends, keys):
    start = 0
    for word in range(len(ends)):
        keys[word] = _key(text, start, ends[word])
        start = ends[word]


@njit(cache=True, nogil=True)
def _write(text, used, letter):
    """Write a letter in UTF-8."""
    if letter < 0x80:
        text[used] = letter
        return used + 1
    if letter < 0x800:
        text[used] = 0xC0 | letter >> 6
        text[used + 1] = 0x80 | letter & 63
        return used + 2
    if letter < 0x10000:
        text[used] = 0xE0 | letter >> 12
        text[used + 1] = 0x80 | letter >> 6 & 63
        text[used + 2] = 0x80 | letter & 63
        return used + 3
    text[used] = 0xF0 | letter >> 18
    text[used + 1] = 0x80 | letter >> 12 & 63
    text[used + 2] = 0x80 | letter >> 6 & 63
    text[used + 3] = 0x80 | letter & 63
    return used + 4


@njit(cache=True, nogil=True)
def _unasked(letters, actions):
    """[characters] whether each comes up and is unknown; nothing if none is."""
    highest = 0
    for letter in letters:
        highest = max(highest, actions[letter])
    unasked = np.zeros(len(actions) if highest == UNASKED else 0, np.bool_)
    if len(unasked):
        for letter in letters:
            unasked[letter] |= actions[letter] == UNASKED
    return unasked


@njit(cache=True, nogil=True)
def _cut(letters, sizes, actions, several, longest, text, ends, keys, lengths):
    used = words = begin = 0  # bytes written, words ended, and where the text begins
    for number in range(len(sizes)):
        stop = begin + sizes[number]
        first_word, first = words, used
        start = used  # of the word
        sure = True
        for place in range(begin, stop + 1):
            action = actions[letters[place]] if place < stop else SPACE
            if 0 < action < ALONE:
                used = _write(text, used, action)
                continue
            if action == 0:
                continue
            if action >= STRANGE:
                sure = False
                break
            count = ROOM if action & SEVERAL else 1
            row = action ^ SEVERAL
            for part in range(count):
                step = several[row, part] if count > 1 else action
                if 0 < step < ALONE:
                    used = _write(text, used, step)
                elif step != 0:
                    if used > start:
                        keys[words] = _key(text, start, used)
                        if used - start > longest:
                            keys[words], used = 0, start
                        ends[words] = start = used
                        words += 1
                    if step & ALONE:
                        used = _write(text, used, step ^ ALONE)
                        keys[words] = _key(text, start, used)
                        ends[words] = start = used
                        words += 1
        if not sure:
            words, used = first_word, first
        lengths[number] = words - first_word if sure else -1
        begin = stop
    return words


@njit(cache=True, nogil=True)
def _first(key, slots):
    """Where to begin to look for a key: bits from all of it."""
    key *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64((key ^ key >> np.uint64(32)) & np.uint64(slots - 1))


@njit(cache=True, nogil=True)
def _slot(key, letters, start, end, slots, numbers, text, ends):
    """Where a word stands, or would stand; the keys of short words are the words."""
    place = _first(key, len(slots))
    while slots[place] != 0:
        if slots[place] == key:
            if key < np.uint64(1 << 63):
                break
            first = ends[numbers[place]]
            same = ends[numbers[place] + 1] - first == end - start
            step = 0
            while same and step < end - start:
                same = text[first + step] == letters[start + step]
                step += 1
            if same:
                break
        place = (place + 1) & (len(slots) - 1)
    return place


@njit(cache=True, nogil=True)
def _place(keys, slots, numbers):
    """Give every word, all of them different, a slot."""
    for word in range(len(keys)):
        place = _first(keys[word], len(slots))
        while slots[place] != 0:
            place = (place + 1) & (len(slots) - 1)
        slots[place], numbers[place] = keys[word], word


@njit(cache=True, nogil=True)
def _find(letters, ends, keys, slots, numbers, text, bounds, found):
    start = 0
    for word in range(len(ends)):
        place = _slot(keys[word], letters, start, ends[word], slots, numbers, text, bounds)
        found[word] = numbers[place] if slots[place] != 0 else -1
        start = ends[word]


@njit(cache=True, nogil=True)
def _merge(letters, ends, keys, weights, done, slots, numbers, text, bounds, own_keys, counts, size):
    """Add words from `done` on until the table is full; how many were added in all, and the table's size."""
    start = ends[done - 1] if done else 0
    for word in range(done, len(ends)):
        key, end = keys[word], ends[word]
        if key != 0:
            place = _slot(key, letters, start, end, slots, numbers, text, bounds)
            if slots[place] == 0:
                used = bounds[size]
                if size == len(own_keys) or used + end - start > len(text):
                    return word, size
                slots[place], numbers[place], own_keys[size], counts[size] = key, size, key, 0
                for step in range(end - start):
                    text[used + step] = letters[start + step]
                bounds[size + 1] = used + end - start
                size += 1
            counts[numbers[place]] += weights[word] if len(weights) > 1 else weights[0]
        start = end
    return len(ends), size

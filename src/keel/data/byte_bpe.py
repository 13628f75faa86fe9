"""Byte-level BPE of GPT-2 (Radford et al. 2019), compiled by Numba: the library's ids, several times as fast.

GPT-2 first splits a text by a pattern,
    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
then merges the bytes of each part, the pair learned first before all others. Texts with characters unknown to this
Python's Unicode tables, special tokens or very long parts are left to the library.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from keel.data.word_splitting import write_utf8

ALPHABETIC, NUMBER, SPACE, OTHER, UNKNOWN = 0, 1, 2, 3, 4
LONG = 512
"""Bytes of a part above which the library, which is not quadratic, is used."""
SPACES = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


class BytePairs:
    """Merges of a byte-level BPE vocabulary, for compiled code."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[Sequence[str]]):
        characters = _byte_characters()
        self.bytes = np.array([vocabulary[characters[byte]] for byte in range(256)], np.int64)
        self.table = pair_table([(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in merges])

    @classmethod
    def of(cls, rules: dict[str, Any]) -> "BytePairs | None":
        """Merges of a tokenizer.json that splits text as GPT-2 does; None if its model is not exactly GPT-2's."""
        model = rules["model"]
        options = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
        if model["type"] != "BPE" or any(map(model.get, options)):
            return None
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        known = model["vocab"]
        if not all(byte in known for byte in _byte_characters()) or not all(a + b in known for a, b in merges):
            return None
        return cls(known, merges)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts in one array, and the number of ids per text; -1 for a text left to the library."""
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        ids, counts = np.empty(4 * len(codes) + 1, np.int32), np.empty(len(texts), np.int64)
        used = _encode(codes, sizes, _kinds(), self.bytes, *self.table, ids, counts)
        return ids[:used], counts


@cache
def _byte_characters() -> list[str]:
    """GPT-2's character for each byte: itself if printable, else one of those from 256 on."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(spare)) for byte in range(256)]


@cache
def _kinds() -> np.ndarray:
    """[code points] category: alphabetic, number, whitespace, other, or unknown (unassigned, private, surrogate)."""
    kinds = np.full(0x110000, UNKNOWN, np.uint8)
    names = {"L": ALPHABETIC, "N": NUMBER}
    for number in range(0x32400):  # beyond it nothing but tags and variation selectors is assigned
        category = unicodedata.category(chr(number))
        if category not in ("Cn", "Co", "Cs"):
            kinds[number] = names.get(category[0], OTHER)
    kinds[SPACES] = SPACE
    return kinds


@njit(cache=True)
def slot(keys, key):
    """Slot of a key in the hash table, or the free slot for it."""
    mask = len(keys) - 1
    position = np.int64(np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask
    while keys[position] != key and keys[position] != -1:
        position = (position + 1) & mask
    return position


def pair_table(pairs: Sequence[Sequence[int]] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hash table of pairs of ids in the order of their ranks, each with the id of both joined: keys, ranks, joined."""
    size = 1 << max(4, (4 * len(pairs)).bit_length())
    table = np.full(size, -1, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    _fill(*table, np.array(pairs, np.int64).reshape(-1, 3))
    return table


@njit(cache=True)
def _fill(keys, ranks, joined, pairs):
    for rank in range(len(pairs)):
        key = pairs[rank, 0] << 32 | pairs[rank, 1]
        position = slot(keys, key)
        if keys[position] == -1:  # the first of equal pairs counts
            keys[position], ranks[position], joined[position] = key, rank, pairs[rank, 2]


@njit(cache=True)
def _short_form(codes, position, stop):
    """Length of 's, 't, 're, 've, 'm, 'll or 'd at a position; 0 if there is none."""
    if codes[position] != 39 or position + 1 >= stop:
        return 0
    a = codes[position + 1]
    if a == 115 or a == 116 or a == 109 or a == 100:
        return 2
    if position + 2 < stop:
        b = codes[position + 2]
        if (a == 114 and b == 101) or (a == 118 and b == 101) or (a == 108 and b == 108):
            return 3
    return 0


@njit(cache=True)
def _part_end(codes, kinds, position, stop):
    """End of the part that starts at a position, by GPT-2's pattern."""
    short = _short_form(codes, position, stop)
    if short > 0:
        return position + short
    start = position
    if codes[position] == 32 and position + 1 < stop and kinds[codes[position + 1]] != SPACE:
        start = position + 1  # one space belongs to the next word
    kind = kinds[codes[start]]
    end = start + 1
    while end < stop and kinds[codes[end]] == kind:
        end += 1
    if kind == SPACE and end < stop and end - start > 1:
        end -= 1  # the last space belongs to what follows
    return end


@njit(cache=True)
def _join(symbols, count, keys, ranks, joined, orders):
    """Merge pairs, the one learned first before all others, leftmost first; returns the number of symbols left."""
    none = len(keys) + 1
    for i in range(count - 1):
        position = slot(keys, symbols[i] << 32 | symbols[i + 1])
        orders[i] = ranks[position] if keys[position] != -1 else none
    while count > 1:
        best = 0
        for i in range(1, count - 1):
            if orders[i] < orders[best]:
                best = i
        if orders[best] == none:
            break
        symbols[best] = joined[slot(keys, symbols[best] << 32 | symbols[best + 1])]
        for i in range(best + 1, count - 1):
            symbols[i] = symbols[i + 1]
            orders[i] = orders[i + 1] if i + 1 < count - 1 else none
        count -= 1
        for i in range(max(0, best - 1), min(best + 1, count - 1)):
            position = slot(keys, symbols[i] << 32 | symbols[i + 1])
            orders[i] = ranks[position] if keys[position] != -1 else none
    return count


@njit(cache=True)
def _encode(codes, sizes, kinds, byte_ids, keys, ranks, joined, ids, counts):
    symbols, orders = np.empty(LONG + 4, np.int64), np.empty(LONG + 4, np.int64)
    used = begin = 0
    for text in range(len(sizes)):
        stop = begin + sizes[text]
        first, position, supported = used, begin, True
        while position < stop and supported:
            end = _part_end(codes, kinds, position, stop)
            count = 0
            for i in range(position, end):
                code = np.int64(codes[i])
                if kinds[code] == UNKNOWN or count >= LONG:
                    supported = False
                    break
                end_of_code = write_utf8(symbols, count, code)
                for byte in range(count, end_of_code):
                    symbols[byte] = byte_ids[symbols[byte]]
                count = end_of_code
            count = _join(symbols, count, keys, ranks, joined, orders)
            for i in range(count):
                ids[used] = symbols[i]
                used += 1
            position = end
        if not supported:
            used = first
        counts[text] = used - first if supported else -1
        begin = stop
    return used

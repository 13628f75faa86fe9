"""Byte-level BPE as GPT-2 has it (Radford et al. 2019), compiled by Numba: the library's ids, several times as fast.

GPT-2 first cuts a text by a pattern,
    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
then joins the bytes of each part, the pair that was learned first before all others. Texts of which this file is not
sure (characters that this Python does not know, special pieces, very long parts) are left to the library.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import njit

LETTER, NUMBER, SPACE, OTHER, STRANGE = 0, 1, 2, 3, 4
LONG = 512
"""Bytes of a part above which the library's own way, which is not quadratic, is taken."""
SPACES = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


class BytePairs:
    """The pieces of a byte-level vocabulary, and which pairs of them are joined, ready for compiled code."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[Sequence[str]]):
        letters = _byte_letters()
        self.bytes = np.array([vocabulary[letters[byte]] for byte in range(256)], np.int64)
        size = 1 << max(4, (4 * len(merges)).bit_length())
        self.keys, self.ranks = np.full(size, -1, np.int64), np.zeros(size, np.int64)
        self.joined = np.zeros(size, np.int64)
        pairs = np.array([(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in merges], np.int64).reshape(
            -1, 3
        )
        fill(self.keys, self.ranks, self.joined, pairs)

    @classmethod
    def of(cls, rules: dict[str, Any]) -> "BytePairs | None":
        """Those of a tokenizer's rules with vocabulary and merges; none if it is not GPT-2's kind to the letter."""
        model, cut = rules["model"], rules["pre_tokenizer"] or {}
        plain = not any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        plain = plain and not model.get("ignore_merges") and not model.get("byte_fallback") and not rules["normalizer"]
        whole = cut.get("type") == "ByteLevel" and not cut["add_prefix_space"] and cut.get("use_regex", True)
        if model["type"] != "BPE" or not plain or not whole:
            return None
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        known = model["vocab"]
        if not all(letter in known for letter in _byte_letters()) or not all(a + b in known for a, b in merges):
            return None
        return cls(known, merges)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts in one array, and how many each has; -1 for a text that is left to the library."""
        letters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        ids, counts = np.empty(4 * len(letters) + 1, np.int32), np.empty(len(texts), np.int64)
        used = _encode(letters, sizes, _kinds(), self.bytes, self.keys, self.ranks, self.joined, ids, counts)
        return ids[:used], counts


@cache
def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it can be printed, else one of the letters from 256 on."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(spare)) for byte in range(256)]


@cache
def _kinds() -> np.ndarray:
    """[all characters] letter, number, white space, other, or strange: unassigned, private, half of a pair."""
    kinds = np.full(0x110000, STRANGE, np.uint8)
    names = {"L": LETTER, "N": NUMBER}
    for number in range(0x32400):  # beyond it nothing but tags and variation selectors is assigned
        category = unicodedata.category(chr(number))
        if category not in ("Cn", "Co", "Cs"):
            kinds[number] = names.get(category[0], OTHER)
    kinds[SPACES] = SPACE
    return kinds


@njit(cache=True)
def slot(keys, key):
    """Where a key stands, or would stand, in the table."""
    mask = len(keys) - 1
    place = np.int64(np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask
    while keys[place] != key and keys[place] != -1:
        place = (place + 1) & mask
    return place


@njit(cache=True)
def fill(keys, ranks, joined, pairs):
    for rank in range(len(pairs)):
        key = pairs[rank, 0] << 32 | pairs[rank, 1]
        place = slot(keys, key)
        if keys[place] == -1:  # of two equal pairs the first counts
            keys[place], ranks[place], joined[place] = key, rank, pairs[rank, 2]


@njit(cache=True)
def _short_form(letters, place, stop):
    """The length of 's, 't, 're, 've, 'm, 'll or 'd at a place; 0 if there is none."""
    if letters[place] != 39 or place + 1 >= stop:
        return 0
    a = letters[place + 1]
    if a == 115 or a == 116 or a == 109 or a == 100:
        return 2
    if place + 2 < stop:
        b = letters[place + 2]
        if (a == 114 and b == 101) or (a == 118 and b == 101) or (a == 108 and b == 108):
            return 3
    return 0


@njit(cache=True)
def _part_end(letters, kinds, place, stop):
    """Where the part that starts at a place ends, by GPT-2's pattern."""
    short = _short_form(letters, place, stop)
    if short > 0:
        return place + short
    start = place
    if letters[place] == 32 and place + 1 < stop and kinds[letters[place + 1]] != SPACE:
        start = place + 1  # one space goes with the word after it
    kind = kinds[letters[start]]
    end = start + 1
    while end < stop and kinds[letters[end]] == kind:
        end += 1
    if kind == SPACE and end < stop and end - start > 1:
        end -= 1  # the last one is left for what follows
    return end


@njit(cache=True)
def _join(symbols, count, keys, ranks, joined, orders):
    """Join pairs, the one learned first before all others and of equals the leftmost; how many are left."""
    none = len(keys) + 1
    for i in range(count - 1):
        place = slot(keys, symbols[i] << 32 | symbols[i + 1])
        orders[i] = ranks[place] if keys[place] != -1 else none
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
            place = slot(keys, symbols[i] << 32 | symbols[i + 1])
            orders[i] = ranks[place] if keys[place] != -1 else none
    return count


@njit(cache=True)
def _encode(letters, sizes, kinds, byte_ids, keys, ranks, joined, ids, counts):
    symbols, orders = np.empty(LONG + 4, np.int64), np.empty(LONG + 4, np.int64)
    used = begin = 0
    for text in range(len(sizes)):
        stop = begin + sizes[text]
        first, place, sure = used, begin, True
        while place < stop and sure:
            end = _part_end(letters, kinds, place, stop)
            count = 0
            for i in range(place, end):
                letter = np.int64(letters[i])
                if kinds[letter] == STRANGE or count >= LONG:
                    sure = False
                    break
                if letter < 0x80:
                    symbols[count] = byte_ids[letter]
                    count += 1
                elif letter < 0x800:
                    symbols[count] = byte_ids[0xC0 | letter >> 6]
                    symbols[count + 1] = byte_ids[0x80 | letter & 63]
                    count += 2
                elif letter < 0x10000:
                    symbols[count] = byte_ids[0xE0 | letter >> 12]
                    symbols[count + 1] = byte_ids[0x80 | letter >> 6 & 63]
                    symbols[count + 2] = byte_ids[0x80 | letter & 63]
                    count += 3
                else:
                    symbols[count] = byte_ids[0xF0 | letter >> 18]
                    symbols[count + 1] = byte_ids[0x80 | letter >> 12 & 63]
                    symbols[count + 2] = byte_ids[0x80 | letter >> 6 & 63]
                    symbols[count + 3] = byte_ids[0x80 | letter & 63]
                    count += 4
            count = _join(symbols, count, keys, ranks, joined, orders)
            for i in range(count):
                ids[used] = symbols[i]
                used += 1
            place = end
        if not sure:
            used = first
        counts[text] = used - first if sure else -1
        begin = stop
    return used

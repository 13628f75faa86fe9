"""Splitting text into words under BERT's rules, compiled by Numba: the library's words, many times as fast.

The library is queried once for each distinct character. Texts with characters whose neighbours matter to the rules
(combining characters that may be reordered) are left to the library.
"""

import json
import unicodedata
from threading import Lock, local
from typing import NamedTuple

import numpy as np
import tokenizers
from numba import njit

from keel.data.tokenizer_rules import bert_rules

# Action for a character: a code point below ALONE, 0 to drop it, or one of these flags with a code point or an index.
ALONE, SEVERAL, SPACE, UNSUPPORTED, UNKNOWN = 1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 25
MAX_EXPANSION = 4
"""Maximum characters that one character is normalized to: three for a Korean syllable."""

SHORT = 7
"""Maximum bytes of a word that is its own key."""

LONGEST = 1000
"""Maximum bytes of a word; longer runs are data, and are not counted."""


class SplitTexts(NamedTuple):
    """Words of texts."""

    text: np.ndarray  # [bytes] the words in UTF-8, end to end
    ends: np.ndarray  # [words] where each ends
    keys: np.ndarray  # [words] hash keys; 0 for a word that is too long, which has no bytes
    lengths: np.ndarray  # [texts] words per text; -1 for a text left to the library


class WordSplitter:
    """Splits text into words by the normalizer and pre-tokenizer of a tokenizer."""

    def __init__(self, inner: tokenizers.Tokenizer, longest: int = LONGEST):
        self._normalizer, self._splitter = inner.normalizer, inner.pre_tokenizer
        self._longest = longest
        rules = bert_rules({"normalizer": json.loads(inner.normalizer.__getstate__())})
        self._reorders = rules["strip_accents"] is not False
        self._actions = np.full(0x110000, UNKNOWN, np.int32)  # [all characters]
        self._several = np.zeros((0, MAX_EXPANSION), np.int32)
        self._lock, self._local = Lock(), local()

    def split(self, texts: list[str]) -> SplitTexts:
        """Split texts into words; the result is valid until the next call on the same thread."""
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        self._query(codes)
        text, ends, keys = self._scratch(len(codes) * MAX_EXPANSION + 1)
        lengths = np.empty(len(texts), np.int64)
        used = _split(codes, sizes, self._actions, self._several, self._longest, text, ends, keys, lengths)
        return SplitTexts(text, ends[:used], keys[:used], lengths)

    def _scratch(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scratch memory, kept per thread: allocating it takes as long as splitting."""
        if most > getattr(self._local, "most", 0):
            # The system only provides the pages that are used, far fewer.
            self._local.arrays = np.empty(4 * most, np.uint8), np.empty(most, np.int64), np.empty(most, np.uint64)
            self._local.most = most
        return self._local.arrays

    def by_library(self, text: str) -> list[str]:
        """Split one text by the library."""
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def _query(self, codes: np.ndarray) -> None:
        """Query the library for characters that have not occurred before."""
        unknown = np.flatnonzero(_unknown(codes, self._actions)).tolist()
        with self._lock:
            for number in unknown:
                if self._actions[number] == UNKNOWN:  # actions in use by another thread must not change
                    self._actions[number] = self._action(chr(number))

    def _action(self, code: str) -> int:
        normal = self._normalizer.normalize_str(code)
        if self._reorders and (
            unicodedata.category(code) in ("Cn", "Co") or any(unicodedata.combining(part) for part in normal)
        ):
            return UNSUPPORTED
        parts = [self._part(part) for part in normal]
        if len(parts) == 3 and parts[0] == parts[2] == SPACE:  # a Chinese character, with spaces around it
            parts = [ALONE | ord(normal[1])]
        if len(parts) <= 1:
            return parts[0] if parts else 0
        if len(parts) > MAX_EXPANSION:
            return UNSUPPORTED
        self._several = np.append(self._several, [parts + [0] * (MAX_EXPANSION - len(parts))], axis=0).astype(np.int32)
        return SEVERAL | (len(self._several) - 1)

    def _part(self, code: str) -> int:
        """Part of a word, space or a word of its own, by how the library splits it between two characters."""
        match len(self._splitter.pre_tokenize_str(f"a{code}a")):
            case 1:
                return ord(code)
            case 2:
                return SPACE
            case _:
                return ALONE | ord(code)


@njit(cache=True, nogil=True)
def word_key(text, start, end):
    """Key of a word: the bytes of a short one below their number; a hash (FNV-1a) with the top bit set for others."""
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
def write_utf8(text, used, code):
    """Write a code point in UTF-8; returns the end."""
    if code < 0x80:
        text[used] = code
        return used + 1
    if code < 0x800:
        text[used] = 0xC0 | code >> 6
        text[used + 1] = 0x80 | code & 63
        return used + 2
    if code < 0x10000:
        text[used] = 0xE0 | code >> 12
        text[used + 1] = 0x80 | code >> 6 & 63
        text[used + 2] = 0x80 | code & 63
        return used + 3
    text[used] = 0xF0 | code >> 18
    text[used + 1] = 0x80 | code >> 12 & 63
    text[used + 2] = 0x80 | code >> 6 & 63
    text[used + 3] = 0x80 | code & 63
    return used + 4


@njit(cache=True, nogil=True)
def _unknown(codes, actions):
    """[code points] whether each occurs and is unknown; empty if none is."""
    highest = 0
    for code in codes:
        highest = max(highest, actions[code])
    unknown = np.zeros(len(actions) if highest == UNKNOWN else 0, np.bool_)
    if len(unknown):
        for code in codes:
            unknown[code] |= actions[code] == UNKNOWN
    return unknown


@njit(cache=True, nogil=True)
def _split(codes, sizes, actions, several, longest, text, ends, keys, lengths):
    used = words = begin = 0  # bytes written, words ended, and where the text begins
    for number in range(len(sizes)):
        stop = begin + sizes[number]
        first_word, first = words, used
        start = used  # of the word
        supported = True
        for place in range(begin, stop + 1):
            action = actions[codes[place]] if place < stop else SPACE
            if 0 < action < ALONE:
                used = write_utf8(text, used, action)
                continue
            if action == 0:
                continue
            if action >= UNSUPPORTED:
                supported = False
                break
            count = MAX_EXPANSION if action & SEVERAL else 1
            row = action ^ SEVERAL
            for part in range(count):
                step = several[row, part] if count > 1 else action
                if 0 < step < ALONE:
                    used = write_utf8(text, used, step)
                elif step != 0:
                    if used > start:
                        keys[words] = word_key(text, start, used)
                        if used - start > longest:
                            keys[words], used = 0, start
                        ends[words] = start = used
                        words += 1
                    if step & ALONE:
                        used = write_utf8(text, used, step ^ ALONE)
                        keys[words] = word_key(text, start, used)
                        ends[words] = start = used
                        words += 1
        if not supported:
            words, used = first_word, first
        lengths[number] = words - first_word if supported else -1
        begin = stop
    return words

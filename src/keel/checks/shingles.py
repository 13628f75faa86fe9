"""Similarity of texts by hashed n-grams of words: near-duplicates (MinHash) and overlap with a corpus.

References: Broder (1997), On the resemblance and containment of documents; Brown et al. (2020), Language Models are
Few-Shot Learners, appendix C (overlap of 13-grams).
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keel.data.corpus import Corpus
from keel.data.sentence_splitting import CJK

WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
"""A word, or a character of Chinese or Japanese."""
SHINGLE, HASHES, BANDS = 3, 32, 8
SIMILAR = 0.65
"""Estimated Jaccard similarity of the 3-grams of words from which two texts are near-duplicates."""
LEAST_WORDS = 8
"""Words below which texts are not compared: short ones are similar by chance."""
MAX_CHARACTERS = 2000
"""Characters of a text by which near-duplicates are found."""
OVERLAP = 13
AT_ONCE = 20_000
"""Texts that are hashed at once."""
MULTIPLIERS = np.random.default_rng(0).integers(1, 1 << 62, 64, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def word_hashes(text: str) -> np.ndarray:
    """[words] hashes of the words of a text in lower case."""
    words = WORD.findall(text)  # before lowering, which may change the length
    lowered = "\n".join(words).lower().encode("utf-8", "replace").split(b"\n")
    return np.fromiter(map(zlib.crc32, lowered), np.uint64, len(words))


def ngram_hashes(words: np.ndarray, n: int) -> np.ndarray:
    """[words - n + 1] 64-bit hashes of all n-grams."""
    count = max(0, len(words) - n + 1)
    total = np.zeros(count, np.uint64)
    for index in range(n):
        total += words[index : index + count] * MULTIPLIERS[index]
    total ^= total >> np.uint64(29)
    return total * MULTIPLIERS[-1]


def signatures(texts: Iterable[str]) -> np.ndarray:
    """[texts, HASHES] MinHash signatures; zeros for a text that is too short to compare."""
    parts = [np.zeros((0, HASHES), np.uint32)]
    hashed: list[np.ndarray] = []
    for text in texts:
        words = word_hashes(text[:MAX_CHARACTERS])
        hashed.append(ngram_hashes(words, SHINGLE) if len(words) >= LEAST_WORDS else np.zeros(0, np.uint64))
        if len(hashed) == AT_ONCE:
            parts.append(_minima(hashed))
            hashed = []
    return np.concatenate([*parts, _minima(hashed)] if hashed else parts)


def _minima(hashed: list[np.ndarray]) -> np.ndarray:
    """[texts, HASHES] the smallest of each text's n-gram hashes under each permutation."""
    sizes = np.array([len(each) for each in hashed])
    found = np.zeros((len(hashed), HASHES), np.uint32)
    if not sizes.any():
        return found
    long = np.flatnonzero(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes[long])[:-1]])
    shingles = np.concatenate(hashed)
    for index in range(HASHES):
        permuted = ((shingles * MULTIPLIERS[16 + index]) >> np.uint64(32)).astype(np.uint32)
        found[long, index] = np.minimum.reduceat(permuted, starts)
    return found


def near_duplicates(minhashes: np.ndarray, groups: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Pairs (earlier, later) of similar texts by their signatures, at most one for each later text.

    With `groups`, only pairs whose texts are in different ones.
    """
    earlier: dict[int, int] = {}
    known = np.flatnonzero(minhashes.any(1))
    rows = HASHES // BANDS
    for band in range(BANDS):
        keys = ngram_hashes(minhashes[known, band * rows : (band + 1) * rows].astype(np.uint64).ravel(), rows)[::rows]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]])) if len(order) else order
        firsts = np.repeat(starts, np.diff(np.append(starts, len(order))))
        first, other = known[order[firsts]], known[order]
        similar = (minhashes[first] == minhashes[other]).mean(1) >= SIMILAR
        similar &= first != other if groups is None else groups[first] != groups[other]
        for one, two in zip(first[similar].tolist(), other[similar].tolist(), strict=True):
            earlier.setdefault(two, one)
    return [(one, two) for two, one in sorted(earlier.items())]


class Overlap(NamedTuple):
    """A text that shares 13 consecutive words with a corpus."""

    text: int
    """Index of the text."""
    where: str
    """Location in the corpus."""
    words: str
    """What they share, from the corpus."""


def overlapping(texts: Sequence[str], corpus: Corpus) -> tuple[list[Overlap], int]:
    """The texts with an n-gram of 13 words that occurs in a corpus, and how many texts are too short to compare."""
    grams = [ngram_hashes(word_hashes(text), OVERLAP) for text in texts]
    owners = np.repeat(np.arange(len(texts)), [len(each) for each in grams])
    every = np.concatenate([*grams, np.zeros(0, np.uint64)])
    order = np.argsort(every, kind="stable")
    every, owners = every[order], owners[order]
    found: dict[int, Overlap] = {}
    for name, line, text in _corpus_blocks(corpus) if len(every) else ():
        hashes = ngram_hashes(word_hashes(text), OVERLAP)
        low, high = np.searchsorted(every, hashes, "left"), np.searchsorted(every, hashes, "right")
        for position in np.flatnonzero(high > low).tolist():
            new = [index for index in owners[low[position] : high[position]].tolist() if index not in found]
            if not new:
                continue
            spans = [match.span() for match in WORD.finditer(text)][position : position + OVERLAP]
            start, end = spans[0][0], spans[-1][1]
            where = f"{name}:{line + text.count(chr(10), 0, start)}"
            found |= {index: Overlap(index, where, " ".join(text[start:end].split())) for index in new}
    return [found[index] for index in sorted(found)], sum(not len(each) for each in grams)


def _corpus_blocks(corpus: Corpus) -> Iterator[tuple[str, int, str]]:
    """File, line and text of each block; texts in memory have their number instead of a line."""
    for path in corpus.files:
        column, separator = corpus.text_column, corpus.separator
        for block in Corpus(path, text_column=column, separator=separator, encoding=corpus.encoding).blocks():
            yield str(path), block.line, block.text
    if not corpus.files:
        for block in corpus.blocks():
            yield "the list", block.line, block.text

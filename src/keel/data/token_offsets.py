"""Where the tokens of many texts stand in their characters, as arrays; which tokens start words or lie in spans."""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from keel.data.language_detection import KANA
from keel.data.sentence_splitting import CHINESE, CJK
from keel.data.text_encodings import code_points
from keel.data.tokenizer import Encoding

WORD_CHARACTER = re.compile(rf"[^\W{CJK}]")
WHITESPACE = [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x3000]


class TokenOffsets:
    """The tokens of texts, by the characters of all texts together."""

    def __init__(self, texts: Sequence[str], encodings: Sequence[Encoding]):
        self.texts = texts
        self.text_starts = np.cumsum([0, *map(len, texts)])
        """[texts + 1] the first character of each text, and the end."""
        self.counts = np.fromiter((len(each.ids) for each in encodings), np.int64, len(encodings))
        """[texts] number of tokens."""
        total = int(self.counts.sum())
        flat = chain.from_iterable(chain.from_iterable(each.offsets for each in encodings))
        offsets = np.fromiter(flat, np.int64, 2 * total).reshape(-1, 2)
        offsets += np.repeat(self.text_starts[:-1], self.counts)[:, None]
        self.starts, self.ends = offsets.T.copy()
        """[tokens] first character, and the one past the last."""
        self.word_ids = np.fromiter(chain.from_iterable(each.word_ids for each in encodings), np.int64, total)

    @cached_property
    def _codes(self) -> np.ndarray:
        """[characters + 1] code points, and 0 for a token without characters at the end."""
        return np.append(code_points("".join(self.texts)), 0)

    @cached_property
    def first_visible(self) -> np.ndarray:
        """[tokens] first character that is no whitespace: in byte-level BPE, the space before a word is part of its
        first token, or a token of that word; of other tokens of whitespace, the first character."""
        visible = np.where(np.isin(self._codes, WHITESPACE), len(self._codes), np.arange(len(self._codes)))
        following = np.minimum.accumulate(visible[::-1])[::-1][self.starts]
        continued = np.append(self.word_ids[1:] == self.word_ids[:-1], False) & (following == self.ends)
        continued &= ~np.isin(following, self.text_starts)
        return np.where((following < self.ends) | continued, following, self.starts)

    def word_starts(self) -> np.ndarray:
        """[tokens] bool: whether each token starts a word; Chinese words by jieba, each character of Japanese."""
        if not len(self.starts):
            return np.zeros(0, bool)
        codes = self._codes
        distinct, index = np.unique(codes, return_inverse=True)
        characters = [*map(chr, distinct.tolist())]
        chinese, in_word = (
            np.array([pattern.match(each) is not None for each in characters])[index]
            for pattern in (CHINESE, WORD_CHARACTER)
        )
        first_tokens = (np.cumsum(self.counts) - self.counts)[self.counts > 0]
        previous_start, previous_word = np.roll(self.starts, 1), np.roll(self.word_ids, 1)
        inside = in_word[self.starts] & in_word[self.starts - 1] & ~np.isin(self.starts, self.text_starts)
        found = (self.word_ids != previous_word) & ~inside
        if chinese.any():
            found = np.where(
                chinese[self.starts], self._chinese_starts()[self.starts] & (self.starts != previous_start), found
            )
        found[first_tokens] = True
        return found

    def _chinese_starts(self) -> np.ndarray:
        """[characters + 1] whether jieba begins a word at each character of Chinese texts; True in Japanese ones."""
        from keel.data.chinese_words import ChineseWords  # imports Numba

        japanese = {number for number, text in enumerate(self.texts) if KANA.search(text)}
        chinese = [number for number, text in enumerate(self.texts) if number not in japanese and CHINESE.search(text)]
        found = np.ones(self.text_starts[-1] + 1, bool)
        if chinese:
            _, starts = ChineseWords.installed("masking whole Chinese words").starts([self.texts[n] for n in chinese])
            sizes = self.text_starts[1:] - self.text_starts[:-1]
            found[:-1][np.repeat(np.isin(np.arange(len(self.texts)), chinese), sizes)] = starts
        return found

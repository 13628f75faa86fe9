"""Encoding by remembered words: most of a text is words seen before."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from keel.text.sentences import CJK

ALONE = CJK + "、。，！？：；（）《》〈〉「」『』【】“”‘’…—·"
"""Characters that BERT's rules put apart from their neighbours on both sides."""

PARTS = re.compile(f"[{ALONE}]|[^ {ALONE}]+")
GROUP = 256


class WordCache:
    """The library's own ids, found by cutting a text where its rules never look across, and looking up the parts.

    BERT's rules never look across a space, a Chinese character or Chinese punctuation, GPT-2's never across the last
    space before a word. Where that is not certain, a text is left in one part.
    """

    most_words = 200_000
    most_characters = 16_000_000

    def __init__(self, inner: tokenizers.Tokenizer, rules: dict[str, Any]):
        self._inner = inner
        self._cut = _cutter(rules)
        self._forget()

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Give the ids of all texts in one array [ids], and how many each text has [texts]."""
        if self._cut is None:
            found = [encoding.ids for encoding in self._inner.encode_batch_fast(texts, add_special_tokens=False)]
            return np.fromiter(chain.from_iterable(found), np.int32), np.fromiter(map(len, found), np.int64, len(found))
        if len(self._numbers) > self.most_words or self._characters > self.most_characters:
            self._forget()
        parts = list(map(self._cut, texts))
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        words = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(parts)), np.int64, sizes.sum())
        self._learn()

        lengths = self._starts[words + 1] - self._starts[words]  # [words]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        # Every id's place in the store: the start of its word there, plus how far it is inside the word.
        places = np.arange(ends[-1]) + np.repeat(self._starts[words] - ends[:-1], lengths)
        bounds = ends[np.concatenate([[0], np.cumsum(sizes)])]
        return self._store[places], np.diff(bounds)

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._characters = 0
        self._store = np.empty(0, np.int32)  # the ids of all known words in a row
        self._starts = np.zeros(1, np.int64)  # where each word's ids start, and the end

    def _learn(self) -> None:
        """Let the library encode the words that are new."""
        new = self._numbers.new
        if not new:
            return
        # Words in a text said to be cut already are each encoded alone, for less than a text of its own would cost.
        groups = [new[start : start + GROUP] for start in range(0, len(new), GROUP)]
        lengths = np.zeros(len(new), np.int64)
        ids = [self._store]
        for number, found in enumerate(
            self._inner.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
        ):
            ids.append(np.array(found.ids, np.int32))
            counts = np.bincount(np.array(found.word_ids, np.int64), minlength=len(groups[number]))
            lengths[number * GROUP :][: len(counts)] = counts
        self._store = np.concatenate(ids)
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])
        self._characters += sum(map(len, new))
        new.clear()


class _Numbers(dict[str, int]):
    """Words in the order of their first coming; one not seen before gets the next number."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _cutter(rules: dict[str, Any]) -> Callable[[str], list[str]] | None:
    """Choose how text may be cut under these rules; None if that is not known."""
    normalizer, cut, added = rules["normalizer"] or {}, rules["pre_tokenizer"] or {}, rules["added_tokens"]
    if rules["model"].get("dropout") or any(
        token["normalized"] or token["single_word"] or re.search(rf"[\s{ALONE}]", token["content"]) for token in added
    ):
        return None
    if normalizer.get("type") == "BertNormalizer" and cut.get("type") == "BertPreTokenizer":
        return _at_spaces_and_chinese if normalizer["handle_chinese_chars"] else _at_spaces
    if cut.get("type") == "ByteLevel" and not normalizer and not cut["add_prefix_space"] and cut.get("use_regex", True):
        return None if any(token["lstrip"] or token["rstrip"] for token in added) else _before_spaces
    return None


def _at_spaces(text: str) -> list[str]:
    return text.split(" ")


def _at_spaces_and_chinese(text: str) -> list[str]:
    return text.split(" ") if text.isascii() else PARTS.findall(text)


def _before_spaces(text: str) -> list[str]:
    # Only where all white space is single spaces between words.
    return text.replace(" ", "\n ").split("\n") if len(text.split()) == text.count(" ") + 1 else [text]

"""Encoding with a cache of words: most words of a text were seen before."""

import json
import re
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from keel.data.sentence_splitting import CJK
from keel.data.tokenizer_rules import WHITESPACE, bert_rules

if TYPE_CHECKING:
    from keel.data.byte_bpe import BytePairs
    from keel.data.word_table import WordLookup

ALONE = CJK + "、。，！？：；（）《》〈〉「」『』【】“”‘’…—·"
"""Characters that BERT's rules separate from their neighbours on both sides."""

PARTS = re.compile(f"[{ALONE}]|[^ {ALONE}]+")
BETWEEN = re.compile(f"[^{WHITESPACE}]+")
LONG = 16
"""Average characters per part above which few are repeated (Chinese under GPT-2's rules)."""

GROUP, BATCH = 256, 16
"""Words or texts per call of the library, and groups of words: its results are large."""


class WordCache:
    """Encoder with the library's ids: splits a text where its rules never look across, and looks up the parts.

    BERT's rules never look across a space, a Chinese character or Chinese punctuation, GPT-2's never across the last
    space before a word. Where that is not certain, the text is not split.
    """

    most_words = 200_000
    most_characters = 4_000_000
    much_text = 1_000_000
    """Characters after which compiled code is worth its second of start-up time."""

    def __init__(self, inner: tokenizers.Tokenizer, rules: dict[str, Any]):
        self._inner = inner
        self._rules = rules
        self._cut = _cutter(rules)
        self._words_alone = self._cut is not None and rules["model"]["type"] == "WordLevel"
        self._added = [token["content"] for token in rules["added_tokens"]]
        self._seen = 0
        self._forget()

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts in one array [tokens], and the number of tokens of each text [texts]."""
        if self._cut is None:
            return self._whole(texts)
        if self._words_alone or self._cut is _before_spaces:
            self._seen += sum(map(len, texts))
            if self._seen > self.much_text and self._fast is not None:
                return self._compiled(self._fast, texts)
        if len(self._numbers) > self.most_words or self._characters > self.most_characters:
            self._forget()
        parts = list(map(self._cut, texts))
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        words = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(parts)), np.int64, sizes.sum())
        self._learn()

        lengths = self._starts[words + 1] - self._starts[words]  # [words]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        # Index of every id in the store: the start of its word there, plus its index in the word.
        index = np.arange(ends[-1]) + np.repeat(self._starts[words] - ends[:-1], lengths)
        bounds = ends[np.concatenate([[0], np.cumsum(sizes)])]
        return self._store[index], np.diff(bounds)

    def compile(self) -> bool:
        """Use compiled code from now on; returns whether threads can then encode in parallel."""
        self._seen = self.much_text + 1
        return self._words_alone and self._fast is not None

    @cached_property
    def _fast(self) -> "BytePairs | WordLookup | None":
        if self._words_alone:
            from keel.data.word_table import WordLookup  # imports Numba

            return WordLookup.of(self._inner, self._rules)
        from keel.data.byte_bpe import BytePairs

        return BytePairs.of(json.loads(self._inner.to_str()))

    def _compiled(self, fast: "BytePairs | WordLookup", texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode by compiled code; texts that it does not handle, or with special tokens, by the library."""
        everything = "\n".join(texts)
        added = [token for token in self._added if token in everything]
        special = {number for number, text in enumerate(texts) if any(map(text.__contains__, added))}
        ids, lengths = fast.encode(["" if number in special else text for number, text in enumerate(texts)])
        left = sorted(special.union(np.flatnonzero(lengths < 0).tolist()))
        if not left:
            return ids, lengths
        found = np.split(ids, np.cumsum(np.maximum(lengths, 0))[:-1])
        theirs, sizes = self._whole([texts[number] for number in left])
        for number, part in zip(left, np.split(theirs, np.cumsum(sizes)[:-1]), strict=True):
            found[number] = part
        return np.concatenate(found), np.fromiter(map(len, found), np.int64, len(found))

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._characters = 0
        self._store = np.empty(0, np.int32)  # the ids of all known words in a row
        self._starts = np.zeros(1, np.int64)  # where each word's ids start, and the end

    def _learn(self) -> None:
        """Let the library encode new words."""
        new = self._numbers.new
        if not new:
            return
        characters = sum(map(len, new))
        ids, lengths = (self._whole if characters > LONG * len(new) else self._grouped)(new)
        self._store = np.concatenate([self._store, ids])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])
        self._characters += characters
        new.clear()

    def _grouped(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode words by the library, in groups as pre-tokenized texts, which is faster than one text per word."""
        groups = [words[start : start + GROUP] for start in range(0, len(words), GROUP)]
        ids: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        for start in range(0, len(groups), BATCH):
            batch = groups[start : start + BATCH]
            encodings = self._inner.encode_batch(batch, is_pretokenized=True, add_special_tokens=False)
            for group, found in zip(batch, encodings, strict=True):
                ids.append(np.array(found.ids, np.int32))
                lengths.append(np.bincount(np.array(found.word_ids, np.int64), minlength=len(group)))
        return np.concatenate(ids), np.concatenate(lengths)

    def _whole(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode whole texts by the library."""
        found: list[np.ndarray] = [np.zeros(0, np.int32)]
        for start in range(0, len(texts), GROUP):
            batch = self._inner.encode_batch_fast(texts[start : start + GROUP], add_special_tokens=False)
            found += [np.array(encoding.ids, np.int32) for encoding in batch]
        return np.concatenate(found), np.fromiter(map(len, found[1:]), np.int64, len(texts))


class _Numbers(dict[str, int]):
    """Numbers of words in the order of their first occurrence; a new word gets the next number."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _cutter(rules: dict[str, Any]) -> Callable[[str], list[str]] | None:
    """How text may be split under these rules; None if unknown."""
    normalizer, cut, added = bert_rules(rules), rules["pre_tokenizer"] or {}, rules["added_tokens"]
    if rules["model"].get("dropout") or any(
        token["normalized"] or token["single_word"] or re.search(rf"[\s{ALONE}]", token["content"]) for token in added
    ):
        return None
    if normalizer.get("type") == "BertNormalizer" and cut.get("type") == "BertPreTokenizer":
        return _at_spaces_and_chinese if normalizer["handle_chinese_chars"] else methodcaller("split", " ")
    if cut.get("type") == "Split" and cut["behavior"] == "Removed" and not normalizer and not added:
        return BETWEEN.findall
    if cut.get("type") == "ByteLevel" and not normalizer and not cut["add_prefix_space"] and cut.get("use_regex", True):
        return None if any(token["lstrip"] or token["rstrip"] for token in added) else _before_spaces
    return None


def _at_spaces_and_chinese(text: str) -> list[str]:
    return text.split(" ") if text.isascii() else PARTS.findall(text)


def _before_spaces(text: str) -> list[str]:
    # Only where all white space is single spaces between words: any other is not printable.
    plain = text.isprintable() and "  " not in text and not text.endswith(" ")
    return text.replace(" ", "\n ").split("\n") if plain else [text]

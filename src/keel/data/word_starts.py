"""Tokens that begin a word, for whole-word masking."""

import re

import numpy as np

from keel.data.sentence_splitting import CHINESE, CJK
from keel.data.tokenizer import Encoding, Tokenizer

WORD_CHARACTER = re.compile(rf"[^\W{CJK}]")


def word_starts(tokenizer: Tokenizer, texts: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[tokens] bool: whether each token begins a word; Chinese words by jieba."""
    starts = ~tokenizer.continues_word[ids]
    ends = np.cumsum(lengths)
    by_offset = [number for number, text in enumerate(texts) if tokenizer.kind != "wordpiece" or CHINESE.search(text)]
    for number, encoding in zip(by_offset, tokenizer.encode_with_offsets([texts[n] for n in by_offset]), strict=True):
        starts[ends[number] - lengths[number] : ends[number]] = _starts(texts[number], encoding)
    return starts


def _starts(text: str, encoding: Encoding) -> np.ndarray:
    chinese = chinese_word_starts(text) if CHINESE.search(text) else frozenset()
    starts = np.zeros(len(encoding.ids), bool)
    previous_word = previous_start = -1
    for number, ((start, _), word) in enumerate(zip(encoding.offsets, encoding.word_ids, strict=True)):
        character = text[start : start + 1]
        if CHINESE.match(character):
            starts[number] = start in chinese and start != previous_start
        else:
            inside = start > 0 and WORD_CHARACTER.match(character) and WORD_CHARACTER.match(text[start - 1])
            starts[number] = word != previous_word and not inside
        previous_word, previous_start = word, start
    starts[:1] = True
    return starts


def chinese_word_starts(text: str) -> frozenset[int]:
    """Positions in the text where jieba begins a word."""
    from keel.data.chinese_words import ChineseWords  # imports Numba

    _, starts = ChineseWords.installed("masking whole Chinese words").starts([text])
    return frozenset(np.flatnonzero(starts).tolist())

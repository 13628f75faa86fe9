"""Which pieces begin a word, where a word may be several pieces (whole-word masking)."""

import re

import numpy as np

from keel.data.sentence_splitting import CHINESE, CJK
from keel.data.tokenizer import Encoding, Tokenizer

LETTERS = re.compile(rf"[^\W{CJK}]")


def word_starts(tokenizer: Tokenizer, texts: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Say for every id of all texts whether it begins a word, Chinese ones as jieba sees them."""
    starts = ~tokenizer.continues_word[ids]
    ends = np.cumsum(lengths)
    by_place = [number for number, text in enumerate(texts) if tokenizer.kind != "wordpiece" or CHINESE.search(text)]
    for number, pieces in zip(by_place, tokenizer.encode_with_offsets([texts[n] for n in by_place]), strict=True):
        starts[ends[number] - lengths[number] : ends[number]] = _starts(texts[number], pieces)
    return starts


def _starts(text: str, pieces: Encoding) -> np.ndarray:
    chinese = chinese_word_starts(text) if CHINESE.search(text) else frozenset()
    starts = np.zeros(len(pieces.ids), bool)
    word = place = -1
    for number, ((start, _), piece_word) in enumerate(zip(pieces.offsets, pieces.word_ids, strict=True)):
        letter = text[start : start + 1]
        if CHINESE.match(letter):
            starts[number] = start in chinese and start != place
        else:
            goes_on = start > 0 and LETTERS.match(letter) and LETTERS.match(text[start - 1])
            starts[number] = piece_word != word and not goes_on
        word, place = piece_word, start
    starts[:1] = True
    return starts


def chinese_word_starts(text: str) -> frozenset[int]:
    """Give the places in the text where jieba sees a word begin."""
    from keel.data.chinese_words import ChineseWords  # not sooner: it brings Numba

    _, starts = ChineseWords.installed("masking whole Chinese words").starts([text])
    return frozenset(np.flatnonzero(starts).tolist())

"""The tokens of a model input by name, merged into words where wanted, and the tokens of a word."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from keel.data.sentence_splitting import CHINESE, CJK
from keel.data.tagged_sentences import split_words
from keel.data.tokenizer import Encoding, Tokenizer
from keel.errors import KeelError

Merge = Literal["none", "words", "characters"]
"""Tokens; words, also of Chinese; or words, of Chinese characters."""

SPACE = "␣"
"""A token of whitespace."""
SINK = "<sink>"
"""The learned vector before the first token that a GPT with `sink` attends to."""
UNSPACED = re.compile(f"[{CJK}\u0e00-\u0eff\u3040-\u30ff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]")
"""Characters of Chinese, Japanese, Korean, Thai and Lao, which do not separate words."""


class TextToken(NamedTuple):
    """A token or word of an input sequence."""

    name: str
    positions: list[int]
    text: int = -1
    """0 for the first text, 1 for the second, -1 for a special token."""
    start: int = 0
    """First character of the text."""
    end: int = 0


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens to read; whitespace alone is visible."""
    bpe = tokenizer.kind == "bpe"
    return [SPACE if bpe and tokenizer.decode([id]).isspace() else tokenizer.word_of(id) for id in ids]


def text_tokens(
    ids: Sequence[int],
    texts: Sequence[tuple[int, Encoding, str]],
    tokenizer: Tokenizer,
    merge: Merge = "none",
    *,
    first: int = 0,
) -> list[TextToken]:
    """The tokens of an input sequence, or its words: `texts` are (position of the first token, encoding, text), the
    first of them with number `first`; special tokens around them are words of their own."""
    found: list[TextToken] = []
    for number, (start, encoding, text) in enumerate(texts, first):
        found += [_special(tokenizer, ids, position) for position in range(_end(found), start)]
        for group in _groups(encoding, text, merge):
            begin, end = encoding.offsets[group[0]][0], encoding.offsets[group[-1]][1]
            whole = text[begin:end].strip()
            token = tokenizer.token_of(ids[start + group[0]])
            by_text = merge != "none" or tokenizer.kind == "bpe"  # whose tokens are written bytes
            name = (whole or (SPACE if text[begin:end] else token)) if by_text else token
            found.append(TextToken(name, [start + position for position in group], number, begin, end))
    return [*found, *(_special(tokenizer, ids, position) for position in range(_end(found), len(ids)))]


def _end(tokens: Sequence[TextToken]) -> int:
    return tokens[-1].positions[-1] + 1 if tokens else 0


def _special(tokenizer: Tokenizer, ids: Sequence[int], position: int) -> TextToken:
    return TextToken(tokenizer.token_of(ids[position]), [position])


def _groups(encoding: Encoding, text: str, merge: Merge) -> Iterator[list[int]]:
    """Token positions of each token or word of a text."""
    if merge == "none":
        yield from ([position] for position in range(len(encoding.ids)))
        return
    if merge == "characters" or not CHINESE.search(text):
        yield from word_positions(encoding, text)
        return
    from keel.data.tokenizer_rules import chinese_words

    begins = chinese_words().starts([text])[1]
    word: list[int] = []
    for group in word_positions(encoding, text):
        start = encoding.offsets[group[0]][0]
        adjacent = bool(word) and encoding.offsets[word[-1]][1] == start < len(begins)
        if word and not (adjacent and CHINESE.match(text[start]) and not begins[start]):
            yield word
            word = []
        word = word + group
    if word:
        yield word


def word_positions(encoding: Encoding, text: str) -> Iterator[list[int]]:
    """Token positions of each word; next to a Chinese character, each token of whole characters is a word."""
    for _, word in groupby(range(len(encoding.ids)), encoding.word_ids.__getitem__):
        group: list[int] = []
        for position in word:
            start, end = encoding.offsets[position]
            before = text[encoding.offsets[group[0]][0] : encoding.offsets[group[-1]][1]] if group else ""
            whole = before.strip() and start >= encoding.offsets[group[-1]][1]
            if whole and (CHINESE.match(before[-1]) or CHINESE.match(text[start:end])):
                yield group
                group = []
            group.append(position)
        yield group


def split_text(
    text: str, offsets: Sequence[tuple[int, int]], *, chinese_words: bool = False
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The words of a text as (start, end) characters, and [tokens] the word of each token, -1 for whitespace; Chinese
    by characters, or in words by jieba. Words that share a token are one word."""
    spans: list[tuple[int, int]] = []
    for found in split_words(text, chinese_words=chinese_words):
        start = text.index(found, spans[-1][1] if spans else 0)
        spans.append((start, start + len(found)))
    owner = np.full(len(text) + 1, -1)
    for number, (start, end) in enumerate(spans):
        owner[start:end] = number
    joined = np.zeros(len(spans), bool)  # to the word before
    firsts = np.full(len(offsets), -1)
    for token, (start, end) in enumerate(offsets):
        inside = owner[start:end][owner[start:end] >= 0]
        if len(inside):
            firsts[token] = inside[0]
            joined[inside[0] + 1 : inside[-1] + 1] = True
    groups = np.cumsum(~joined) - 1  # [spans]
    words = [(spans[first][0], 0) for first in np.flatnonzero(~joined).tolist()]
    for number, (_, end) in zip(groups.tolist(), spans, strict=True):
        words[number] = words[number][0], end
    return words, np.where(firsts >= 0, groups[firsts] if len(groups) else -1, -1)


def merge_columns(weights: np.ndarray, keys: Sequence[TextToken]) -> np.ndarray:
    """[..., words] sums of weights [..., tokens] over the tokens of each word."""
    return np.add.reduceat(weights, [each.positions[0] for each in keys], -1)


def merge_rows(weights: np.ndarray, queries: Sequence[TextToken]) -> np.ndarray:
    """[..., words, keys] means of weights [..., tokens, keys] over the tokens of each word."""
    sums = np.add.reduceat(weights, [each.positions[0] for each in queries], -2)
    return sums / np.array([len(each.positions) for each in queries], np.float32)[:, None]


def word_pattern(word: str) -> re.Pattern[str]:
    """What finds a whole word, ignoring case; in languages without spaces, these characters anywhere."""
    edges = ("", "") if UNSPACED.search(word) else (r"(?<!\w)", r"(?!\w)")
    return re.compile(edges[0] + re.escape(word.strip()) + edges[1], re.IGNORECASE)


def find_word(tokens: Sequence[TextToken], texts: Sequence[str], word: str, role: str) -> list[int]:
    """Indices of the tokens of all occurrences of a word in the texts, ignoring case, or of a token by its name."""
    wanted = word.strip()
    pattern = word_pattern(wanted)
    spans = {number: [match.span() for match in pattern.finditer(text)] for number, text in enumerate(texts) if wanted}
    found = [
        index
        for index, each in enumerate(tokens)
        if any(each.start < end and each.end > start for start, end in spans.get(each.text, ()))
    ] or [index for index, each in enumerate(tokens) if each.name == wanted]
    if not found:
        known = " ".join(each.name for each in tokens)
        raise KeelError(f"--{role} {word!r}: this word is not in the text ({known:.60}): choose one that is")
    return found

"""Chinese word segmentation equal to jieba's (dictionary, most probable path, hidden Markov model), compiled by Numba.

jieba in Python processes 0.3 MB/s; its dictionary and probabilities are read from the installed package.
"""

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from keel.data.text_encodings import code_points
from keel.data.trie import Trie, child
from keel.errors import MissingExtra

FIRST, LAST = 0x4E00, 0x9FD5
"""Code points that jieba looks up; other characters are words of their own."""

IMPOSSIBLE = -3.14e100
BEGIN, MIDDLE, END, SINGLE = 0, 1, 2, 3


class ChineseWords:
    """jieba's dictionary (a trie) and HMM, for compiled code."""

    def __init__(self, frequencies: dict[str, int], total: int, hmm: Any):
        # Bit-equal to jieba's numbers, so that ties are broken the same way.
        logs = np.array([math.log(count) if count else math.nan for count in frequencies.values()])
        self._trie, self._total = Trie(list(frequencies), logs), math.log(total)
        start, transitions, emit = hmm
        self._start = np.array([start[state] for state in "BMES"])
        self._transitions = np.array([[transitions[a].get(b, IMPOSSIBLE) for b in "BMES"] for a in "BMES"])
        self._emit = np.full((4, LAST - FIRST + 1), IMPOSSIBLE)
        for row, state in enumerate("BMES"):
            known = {ord(char): log_prob for char, log_prob in emit[state].items() if FIRST <= ord(char) <= LAST}
            self._emit[row, [code - FIRST for code in known]] = list(known.values())

    @classmethod
    def installed(cls, purpose: str) -> "ChineseWords":
        """The segmenter of the installed jieba, required for a purpose."""
        try:
            return _installed()
        except ImportError:
            raise MissingExtra("jieba", "zh", purpose) from None

    def starts(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """[characters of all texts] code points, and whether jieba begins a word at each."""
        codes = code_points("".join(texts))
        starts = np.ones(len(codes), np.bool_)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        trie = self._trie
        known = trie.keys, trie.nodes, trie.values, self._total, self._start, self._transitions, self._emit
        _cut(codes, sizes, *known, starts)
        return codes, starts

    def spaced(self, texts: list[str]) -> tuple[list[str], list[np.ndarray]]:
        """Texts with a space between Chinese words, and for each the original positions of its characters."""
        codes, starts = self.starts(texts)
        split = _is_chinese(codes)
        split[1:] |= split[:-1].copy()  # the one after a Chinese character
        split &= starts
        edges = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        begins = np.concatenate([[0], edges[:-1]])
        split[begins[begins < len(codes)]] = False
        whitespace = np.isin(codes, (9, 10, 13, 32))
        split[1:] &= ~(whitespace[1:] | whitespace[:-1])
        wider = np.repeat(np.arange(len(codes)), 1 + split)  # a character with a space before it is here twice
        spaced = codes[wider]
        spaced[np.flatnonzero(split) + np.arange(np.count_nonzero(split))] = 32
        bounds = np.concatenate([[0], edges + np.cumsum(np.append(split, False))[edges - 1] * (edges > 0)])
        text = spaced.tobytes().decode("utf-32-le", "surrogatepass")
        ranges = list(zip(bounds.tolist(), bounds.tolist()[1:], begins.tolist(), strict=False))
        return [text[a:b] for a, b, _ in ranges], [wider[a:b] - begin for a, b, begin in ranges]


@cache
def _installed() -> ChineseWords:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in its source
        import jieba
        from jieba.finalseg import emit_P, start_P, trans_P
    frequencies: dict[str, int] = {}
    total = 0
    with jieba.dt.get_dict_file() as file:
        for line in file.read().decode("utf-8").splitlines():
            word, count = line.split(" ")[:2]
            frequencies[word] = int(count)
            total += int(count)
    return ChineseWords(frequencies, total, (start_P, trans_P, emit_P))


def chinese_word_starts(text: str) -> frozenset[int]:
    """Positions in the text where jieba begins a word."""
    _, starts = ChineseWords.installed("masking whole Chinese words").starts([text])
    return frozenset(np.flatnonzero(starts).tolist())


def _is_chinese(codes: np.ndarray) -> np.ndarray:
    """Whether BERT's rules treat each character as Chinese."""
    found = (codes >= 0x4E00) & (codes <= 0x9FFF)
    for first, last in ((0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F)):
        found |= (codes >= first) & (codes <= last)
    return found


@njit(cache=True, nogil=True)
def _is_alphanumeric(code):
    return (97 <= code <= 122) or (65 <= code <= 90) or (48 <= code <= 57)


@njit(cache=True, nogil=True)
def _is_known(code):
    """Whether jieba looks it up: Chinese, ASCII alphanumeric, or one of + # & . _ % -"""
    return (
        FIRST <= code <= LAST
        or _is_alphanumeric(code)
        or code == 43 or code == 35 or code == 38 or code == 46 or code == 95 or code == 37 or code == 45
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _cut(codes, sizes, keys, nodes, scores, total, start_log_probs, transitions, emit, starts):
    longest = 0
    for size in sizes:
        longest = max(longest, size)
    best, ends = np.empty(longest + 1), np.empty(longest + 1, np.int64)
    log_probs, previous = np.empty((longest + 1, 4)), np.empty((longest + 1, 4), np.int8)
    begin = 0
    for size in sizes:
        place, stop = begin, begin + size
        while place < stop:
            end = place
            while end < stop and _is_known(codes[end]):
                end += 1
            if end > place:
                _most_probable_path(codes, place, end, keys, nodes, scores, total, best, ends)
                alone = x = place  # start of a run of single-character words
                while x <= end:
                    y = ends[x - place] + place if x < end else end + 2
                    if y - x > 1:  # a word of several characters, or the end
                        if x - alone > 1 and not _is_word(codes, alone, x, keys, nodes, scores):
                            _unknown(codes, alone, x, start_log_probs, transitions, emit, log_probs, previous, starts)
                        starts[x + 1 : min(y, end)] = False
                        alone = y
                    x = y
                place = end
            else:
                if codes[place] == 10 and place > begin and codes[place - 1] == 13:
                    starts[place] = False
                place += 1
        begin = stop


@njit(cache=True, nogil=True)
def _most_probable_path(codes, begin, end, keys, nodes, scores, total, best, ends):
    """Most probable segmentation of a run: for each position the end of the word that would begin there."""
    best[end - begin] = 0.0
    for place in range(end - 1, begin - 1, -1):
        found, score, node, y = -1, 0.0, 0, place
        while y < end:
            node = child(keys, nodes, node, codes[y])
            if node == 0:
                break
            y += 1
            if scores[node] == scores[node]:
                path = scores[node] - total + best[y - begin]
                if found < 0 or path >= score:
                    found, score = y, path
        if found < 0:
            found, score = place + 1, 0.0 - total + best[place + 1 - begin]
        best[place - begin], ends[place - begin] = score, found - begin


@njit(cache=True, nogil=True)
def _is_word(codes, begin, end, keys, nodes, scores):
    node = 0
    for place in range(begin, end):
        node = child(keys, nodes, node, codes[place])
        if node == 0:
            return False
    return scores[node] == scores[node]


@njit(cache=True, nogil=True)
def _unknown(codes, begin, end, start_log_probs, transitions, emit, log_probs, previous, starts):
    """Segment what is not in the dictionary: Chinese by the HMM, the rest by the class of its characters."""
    place = begin
    while place < end:
        stop = place
        if FIRST <= codes[place] <= LAST:
            while stop < end and FIRST <= codes[stop] <= LAST:
                stop += 1
            _viterbi(codes, place, stop, start_log_probs, transitions, emit, log_probs, previous, starts)
        elif _is_alphanumeric(codes[place]):  # a word or a number such as 3.5%
            while stop < end and _is_alphanumeric(codes[stop]):
                stop += 1
            if stop + 1 < end and codes[stop] == 46 and 48 <= codes[stop + 1] <= 57:
                stop += 2
                while stop < end and 48 <= codes[stop] <= 57:
                    stop += 1
            if stop < end and codes[stop] == 37:
                stop += 1
            starts[place + 1 : stop] = False
        else:
            while stop < end and not _is_alphanumeric(codes[stop]) and not FIRST <= codes[stop] <= LAST:
                stop += 1
            starts[place + 1 : stop] = False
        place = stop


@njit(cache=True, nogil=True)
def _viterbi(codes, begin, end, start_log_probs, transitions, emit, log_probs, previous, starts):
    """Viterbi: a character begins, continues, ends or is a word (B, M, E, S); ties go to the later code."""
    for state in range(4):
        log_probs[0, state] = start_log_probs[state] + emit[state, codes[begin] - FIRST]
    for step in range(1, end - begin):
        code = codes[begin + step] - FIRST
        for state in range(4):
            if state in (BEGIN, SINGLE):
                one, other = END, SINGLE
            else:
                one, other = BEGIN, MIDDLE
            first = log_probs[step - 1, one] + transitions[one, state] + emit[state, code]
            second = log_probs[step - 1, other] + transitions[other, state] + emit[state, code]
            log_probs[step, state] = max(first, second)
            previous[step, state] = one if first > second else other
    last = end - begin - 1
    state = END if log_probs[last, END] > log_probs[last, SINGLE] else SINGLE
    for step in range(last, -1, -1):
        starts[begin + step] = state in (BEGIN, SINGLE)
        if step:
            state = previous[step, state]
    starts[begin] = True

"""Chinese words as jieba cuts them (its dictionary, the likeliest path, a hidden Markov model), by compiled code.

jieba in Python reads 0.3 MB a second; its dictionary and its probabilities are read from the installed package.
"""

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from keel.errors import MissingExtra

FIRST, LAST = 0x4E00, 0x9FD5
"""What jieba looks up; other characters are words alone."""

IMPOSSIBLE = -3.14e100
BEGIN, MIDDLE, END, SINGLE = 0, 1, 2, 3


class ChineseWords:
    """jieba's knowledge, ready for compiled code."""

    def __init__(self, frequencies: dict[str, int], total: int, chances: Any):
        words = list(frequencies)
        letters = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        # jieba's own figures to the last bit, so that ties fall as they do there.
        logs = np.array([math.log(count) if count else math.nan for count in frequencies.values()])
        slots = 1 << (2 * len(letters)).bit_length()
        self._keys, self._nodes = np.full(slots, -1, np.int64), np.zeros(slots, np.int32)
        scores = np.full(len(letters) + 1, np.nan)
        used = _grow(letters, sizes, logs, self._keys, self._nodes, scores)
        self._scores, self._total = scores[:used].copy(), math.log(total)
        start, change, emit = chances
        self._start = np.array([start[state] for state in "BMES"])
        self._change = np.array([[change[a].get(b, IMPOSSIBLE) for b in "BMES"] for a in "BMES"])
        self._emit = np.full((4, LAST - FIRST + 1), IMPOSSIBLE)
        for row, state in enumerate("BMES"):
            known = [(ord(letter), chance) for letter, chance in emit[state].items() if FIRST <= ord(letter) <= LAST]
            self._emit[row, [number - FIRST for number, _ in known]] = [chance for _, chance in known]

    @classmethod
    def installed(cls, purpose: str) -> "ChineseWords":
        """The words of the installed jieba, needed for a purpose."""
        try:
            return _installed()
        except ImportError:
            raise MissingExtra("jieba", "zh", purpose) from None

    def starts(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """[letters of all texts] the letters, and whether jieba begins a word at each."""
        letters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        starts = np.ones(len(letters), np.bool_)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        known = self._keys, self._nodes, self._scores, self._total, self._start, self._change, self._emit
        _cut(letters, sizes, *known, starts)
        return letters, starts

    def spaced(self, texts: list[str]) -> tuple[list[str], list[np.ndarray]]:
        """The texts with a space between Chinese words, and for each the places its letters had before."""
        letters, starts = self.starts(texts)
        apart = _is_chinese(letters)
        apart[1:] |= apart[:-1].copy()  # the one after a Chinese character
        apart &= starts
        edges = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        begins = np.concatenate([[0], edges[:-1]])
        apart[begins[begins < len(letters)]] = False
        blank = np.isin(letters, (9, 10, 13, 32))
        apart[1:] &= ~(blank[1:] | blank[:-1])
        wider = np.repeat(np.arange(len(letters)), 1 + apart)  # a letter with a space before it stands here twice
        spaced = letters[wider]
        spaced[np.flatnonzero(apart) + np.arange(np.count_nonzero(apart))] = 32
        bounds = np.concatenate([[0], edges + np.cumsum(np.append(apart, False))[edges - 1] * (edges > 0)])
        text = spaced.tobytes().decode("utf-32-le", "surrogatepass")
        ranges = list(zip(bounds.tolist(), bounds.tolist()[1:], begins.tolist(), strict=False))
        return [text[a:b] for a, b, _ in ranges], [wider[a:b] - begin for a, b, begin in ranges]


@cache
def _installed() -> ChineseWords:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its source has escapes that Python 3.12 warns of
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


def _is_chinese(letters: np.ndarray) -> np.ndarray:
    """Say of letters whether BERT's rules call them Chinese."""
    found = (letters >= 0x4E00) & (letters <= 0x9FFF)
    for first, last in ((0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F)):
        found |= (letters >= first) & (letters <= last)
    return found


@njit(cache=True, nogil=True)
def _child(keys, nodes, node, letter):
    """The node of the beginnings of words that a letter leads to; 0 if it leads nowhere."""
    key = np.int64(node) << 21 | np.int64(letter)
    mask = len(keys) - 1
    place = ((key * 0x9E3779B1) ^ (key >> 23)) & mask
    while keys[place] != -1:
        if keys[place] == key:
            return nodes[place]
        place = (place + 1) & mask
    return 0


@njit(cache=True, nogil=True)
def _grow(letters, sizes, logs, keys, nodes, scores):
    """Make the tree of all beginnings of words; how many there are."""
    mask = len(keys) - 1
    used, begin = 1, 0
    for word in range(len(sizes)):
        node = 0
        for place in range(begin, begin + sizes[word]):
            following = _child(keys, nodes, node, letters[place])
            if following == 0:
                key = np.int64(node) << 21 | np.int64(letters[place])
                slot = ((key * 0x9E3779B1) ^ (key >> 23)) & mask
                while keys[slot] != -1:
                    slot = (slot + 1) & mask
                keys[slot], nodes[slot] = key, used
                following = used
                used += 1
            node = following
        scores[node] = logs[word]
        begin += sizes[word]
    return used


@njit(cache=True, nogil=True)
def _is_letter(letter):
    return (97 <= letter <= 122) or (65 <= letter <= 90) or (48 <= letter <= 57)


@njit(cache=True, nogil=True)
def _is_known(letter):
    """Of a kind that jieba looks up: Chinese, Latin letters, digits and + # & . _ % -"""
    return (
        FIRST <= letter <= LAST
        or _is_letter(letter)
        or letter == 43 or letter == 35 or letter == 38 or letter == 46 or letter == 95 or letter == 37 or letter == 45
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _cut(letters, sizes, keys, nodes, scores, total, start_chances, change, emit, starts):
    longest = 0
    for size in sizes:
        longest = max(longest, size)
    best, ends = np.empty(longest + 1), np.empty(longest + 1, np.int64)
    chances, previous = np.empty((longest + 1, 4)), np.empty((longest + 1, 4), np.int8)
    begin = 0
    for size in sizes:
        place, stop = begin, begin + size
        while place < stop:
            end = place
            while end < stop and _is_known(letters[end]):
                end += 1
            if end > place:
                _likeliest(letters, place, end, keys, nodes, scores, total, best, ends)
                alone = x = place  # from where on words have been single letters
                while x <= end:
                    y = ends[x - place] + place if x < end else end + 2
                    if y - x > 1:  # a word of several letters, or the end
                        if x - alone > 1 and not _is_word(letters, alone, x, keys, nodes, scores):
                            _unknown(letters, alone, x, start_chances, change, emit, chances, previous, starts)
                        starts[x + 1 : min(y, end)] = False
                        alone = y
                    x = y
                place = end
            else:
                if letters[place] == 10 and place > begin and letters[place - 1] == 13:
                    starts[place] = False
                place += 1
        begin = stop


@njit(cache=True, nogil=True)
def _likeliest(letters, begin, end, keys, nodes, scores, total, best, ends):
    """The likeliest way through a run of letters: for each the end of the word that would begin there."""
    best[end - begin] = 0.0
    for place in range(end - 1, begin - 1, -1):
        found, score, node, y = -1, 0.0, 0, place
        while y < end:
            node = _child(keys, nodes, node, letters[y])
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
def _is_word(letters, begin, end, keys, nodes, scores):
    node = 0
    for place in range(begin, end):
        node = _child(keys, nodes, node, letters[place])
        if node == 0:
            return False
    return scores[node] == scores[node]


@njit(cache=True, nogil=True)
def _unknown(letters, begin, end, start_chances, change, emit, chances, previous, starts):
    """Cut what the dictionary does not know: Chinese by the hidden Markov model, the rest by its kind."""
    place = begin
    while place < end:
        stop = place
        if FIRST <= letters[place] <= LAST:
            while stop < end and FIRST <= letters[stop] <= LAST:
                stop += 1
            _viterbi(letters, place, stop, start_chances, change, emit, chances, previous, starts)
        elif _is_letter(letters[place]):  # a word or a number such as 3.5%
            while stop < end and _is_letter(letters[stop]):
                stop += 1
            if stop + 1 < end and letters[stop] == 46 and 48 <= letters[stop + 1] <= 57:
                stop += 2
                while stop < end and 48 <= letters[stop] <= 57:
                    stop += 1
            if stop < end and letters[stop] == 37:
                stop += 1
            starts[place + 1 : stop] = False
        else:
            while stop < end and not _is_letter(letters[stop]) and not FIRST <= letters[stop] <= LAST:
                stop += 1
            starts[place + 1 : stop] = False
        place = stop


@njit(cache=True, nogil=True)
def _viterbi(letters, begin, end, start_chances, change, emit, chances, previous, starts):
    """The likeliest states: a letter begins, goes on with, ends or is a word; of equals the later in the alphabet."""
    for state in range(4):
        chances[0, state] = start_chances[state] + emit[state, letters[begin] - FIRST]
    for step in range(1, end - begin):
        letter = letters[begin + step] - FIRST
        for state in range(4):
            if state in (BEGIN, SINGLE):
                one, other = END, SINGLE
            else:
                one, other = BEGIN, MIDDLE
            first = chances[step - 1, one] + change[one, state] + emit[state, letter]
            second = chances[step - 1, other] + change[other, state] + emit[state, letter]
            chances[step, state] = max(first, second)
            previous[step, state] = one if first > second else other
    last = end - begin - 1
    state = END if chances[last, END] > chances[last, SINGLE] else SINGLE
    for step in range(last, -1, -1):
        starts[begin + step] = state in (BEGIN, SINGLE)
        if step:
            state = previous[step, state]
    starts[begin] = True

"""Parser of text word vectors (a word, then its numbers, per line), in Numba."""

import numpy as np
from numba import njit

POWERS = 10.0 ** np.arange(23)  # the powers of ten that a double holds exactly


@njit(cache=True, nogil=True)
def parse_vectors(
    text: np.ndarray, starts: np.ndarray, stops: np.ndarray, powers: np.ndarray, vectors: np.ndarray
) -> np.ndarray:
    """Fill `vectors` from the ends of lines; return where each word ends, or -1 if the line needs a slow parse."""
    ends = np.empty(len(starts), np.int64)
    for row in range(len(starts)):
        start, at = starts[row], _skip(text, starts[row], stops[row], True)
        odd = False
        for column in range(vectors.shape[1] - 1, -1, -1):
            stop = at
            at = _skip(text, start, stop, False)
            vectors[row, column] = value = _number(text, at, stop, powers)
            odd |= np.isnan(value)
            at = _skip(text, start, at, True)
        odd |= _skip(text, start, at, False) > start or at == start  # a word with whitespace inside, or none
        ends[row] = -1 if odd else at
    return ends


@njit(cache=True, nogil=True)
def _skip(text: np.ndarray, start: int, at: int, whitespace: bool) -> int:
    """Move back over whitespace, or over anything else."""
    while at > start and (text[at - 1] == 32 or 9 <= text[at - 1] <= 13) == whitespace:
        at -= 1
    return at


@njit(cache=True, nogil=True)
def _number(text: np.ndarray, at: int, stop: int, powers: np.ndarray) -> float:
    """Digits times or over a power of ten, correctly rounded if a double holds both exactly; else NaN."""
    negative = at < stop and text[at] == ord("-")
    if negative:
        at += 1
    digits, count, power, point = 0, 0, 0, False
    while at < stop:
        code = text[at]
        if 48 <= code <= 57 and digits < 900_000_000_000_000:  # so it stays below 2 ** 53
            digits = digits * 10 + (code - 48)
            count += 1
            power -= point
        elif code == ord(".") and not point:
            point = True
        else:
            break
        at += 1
    if count and at + 1 < stop and (text[at] == ord("e") or text[at] == ord("E")):
        at += 1
        sign = -1 if text[at] == ord("-") else 1
        if text[at] == ord("-") or text[at] == ord("+"):
            at += 1
        exponent, count = 0, 0
        while at < stop and 48 <= text[at] <= 57 and count < 4:
            exponent = exponent * 10 + (text[at] - 48)
            count += 1
            at += 1
        power += sign * exponent
    if count == 0 or at < stop or abs(power) >= len(powers):
        return np.nan
    value = digits * powers[power] if power >= 0 else digits / powers[-power]
    return -value if negative else value

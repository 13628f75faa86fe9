"""A line of a file of word vectors, a word and numbers after it, read by compiled code."""

import numpy as np
from numba import njit

from keel.errors import KeelError

POWERS = 10.0 ** np.arange(23)  # the powers of ten that a double holds exactly


def parse_lines(text: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Fill `rows` from lines; give where each line's word ends, or -1 where `parse_odd_line` must look."""
    return _parse(text, starts, stops, POWERS, rows)


@njit(cache=True, nogil=True)
def _parse(text: np.ndarray, starts: np.ndarray, stops: np.ndarray, powers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Fill `rows` from the ends of lines; give where each line's word ends, or -1 for what needs a second look."""
    ends = np.empty(len(starts), np.int64)
    for row in range(len(starts)):
        start, at = starts[row], _skip(text, starts[row], stops[row], True)
        odd = False
        for column in range(rows.shape[1] - 1, -1, -1):
            stop = at
            at = _skip(text, start, stop, False)
            rows[row, column] = value = _number(text, at, stop, powers)
            odd |= np.isnan(value)
            at = _skip(text, start, at, True)
        odd |= _skip(text, start, at, False) > start or at == start  # a word of several parts, or none
        ends[row] = -1 if odd else at
    return ends


@njit(cache=True, nogil=True)
def _skip(text: np.ndarray, start: int, at: int, blanks: bool) -> int:
    """Go back over blanks, or over what is none."""
    while at > start and (text[at - 1] == 32 or 9 <= text[at - 1] <= 13) == blanks:
        at -= 1
    return at


@njit(cache=True, nogil=True)
def _number(text: np.ndarray, at: int, stop: int, powers: np.ndarray) -> float:
    """A number's digits times or over a power of ten, which is rounded right if a double holds both; else NaN."""
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


def parse_odd_line(line: bytes, row: np.ndarray, place: str) -> bytes:
    """Fill `row` from a line with long numbers or a word of several parts, and give the word; or say what is wrong."""
    width = len(row)
    fields = line.split()
    if not fields or (line[:1].isspace() and len(fields) == width):
        raise KeelError(f"{place}: the word is empty: remove the line, or get the file again")
    word, *numbers = line.rsplit(None, width)
    run = numbers_at_end(fields)
    if len(numbers) < width or run != width:
        if run < len(fields) - 1 and run < width:
            bad = fields[-1 - run].decode("utf-8", "replace")
            raise KeelError(
                f"{place}: a word and {width} numbers must stand here, but {shortened(bad)!r} is no number: "
                "correct the line, or get the file again"
            )
        raise KeelError(
            f"{place}: here stand {run} numbers, but {width} in the rest of the file (or so its first line says): "
            "get the file again if it was cut short, or else correct the line"
        )
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        row[:] = [float(number) for number in numbers]
    return word


def numbers_at_end(fields: list[bytes]) -> int:
    """How many numbers stand at the end of a line, after a word."""
    run = 0
    while run < len(fields) - 1 and is_number(fields[-1 - run]):
        run += 1
    return run


def is_number(field: bytes | str) -> bool:
    """Whether Python takes it for one."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def shortened(text: str) -> str:
    """As much of a text as a message can hold."""
    return text if len(text) <= 40 else f"{text[:40]}…"

"""Parsing of word vector lines: a word followed by numbers."""

import numpy as np

from keel.errors import KeelError


def parse_lines(text: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Fill `rows` from lines; returns the end of each line's word, or -1 where `parse_line` is needed."""
    from keel.kernels.number_parsing import POWERS, parse_vectors  # lazily: it imports Numba

    return parse_vectors(text, starts, stops, POWERS, rows)


def parse_line(line: bytes, row: np.ndarray, place: str) -> bytes:
    """Fill `row` from any valid line, also with long numbers or spaces in the word, and return the word."""
    width = len(row)
    fields = line.split()
    if not fields or (line[:1].isspace() and len(fields) == width):
        raise KeelError(f"{place}: the word is empty: remove the line, or download the file again")
    word, *numbers = line.rsplit(None, width)
    run = numbers_at_end(fields)
    if len(numbers) < width or run != width:
        if run < len(fields) - 1 and run < width:
            bad = fields[-1 - run].decode("utf-8", "replace")
            raise KeelError(
                f"{place}: expected a word and {width} numbers, but {shortened(bad)!r} is no number: "
                "correct the line, or download the file again"
            )
        raise KeelError(
            f"{place}: the line has {run} numbers, but {width} are expected by the header or the other lines: "
            "download the file again if it is truncated, or else correct the line"
        )
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        row[:] = [float(number) for number in numbers]
    return word


def numbers_at_end(fields: list[bytes]) -> int:
    """How many numbers follow the word of a line."""
    run = 0
    while run < len(fields) - 1 and is_number(fields[-1 - run]):
        run += 1
    return run


def is_number(field: bytes | str) -> bool:
    """Whether Python parses it as a float."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def shortened(text: str) -> str:
    """The beginning of a text, for messages."""
    return text if len(text) <= 40 else f"{text[:40]}…"

"""A line of a file of word vectors, a word and numbers after it."""

import numpy as np

from keel.errors import KeelError


def parse_lines(text: np.ndarray, starts: np.ndarray, stops: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Fill `rows` from lines; give where each line's word ends, or -1 where `parse_odd_line` must look."""
    from keel.kernels.number_parsing import POWERS, parse_vectors  # not sooner: it brings Numba

    return parse_vectors(text, starts, stops, POWERS, rows)


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

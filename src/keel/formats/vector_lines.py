"""Word vector files: detection of the layout by the first bytes, and parsing of lines (a word followed by numbers)."""

import re
from codecs import BOM_UTF8, getincrementaldecoder
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import numpy as np

from keel.errors import KeelError

SAMPLE = 1 << 18
"""Bytes at the start of a file that its layout is detected from."""
WIDEST = 1 << 20
"""The largest plausible number of dimensions; a header that says more is damaged."""
Layout = Literal["text", "binary", "glove"]
LAYOUTS: dict[Layout, str] = {"text": "word2vec text", "binary": "word2vec binary", "glove": "GloVe text"}
HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class VectorHeader:
    """The layout of a word vector file."""

    layout: Layout
    width: int
    start: int
    """Byte offset of the first word."""
    certain: bool
    """Whether more than the first line supports it."""
    count: int | None = None
    """Number of words by the first line; None: it is no header, as in GloVe's files."""

    @property
    def plausible(self) -> bool:
        """Whether the numbers of the first line can be true."""
        return self.count is None or (self.count > 0 and 0 < self.width <= WIDEST)


def detect_header(sample: bytes) -> VectorHeader | None:
    """The layout of a file by its first bytes; None if these are no word vectors."""
    start = len(BOM_UTF8) if sample.startswith(BOM_UTF8) else 0
    first, _, _ = sample[start:].partition(b"\n")
    if numbers := HEADER.fullmatch(first):
        start = min(start + len(first) + 1, len(sample))
        runs = _trailing_numbers(sample, start)
        is_text = (runs and 2 * sum(run > 0 for run in runs) >= len(runs)) or _is_text(sample[start:])
        count, width = map(int, numbers.groups())
        certain = not is_text or width in runs
        return VectorHeader("text" if is_text else "binary", width, start, certain, count)
    runs = _trailing_numbers(sample, start)
    ((width, times),) = Counter(runs).most_common(1) or ((0, 0),)
    if width == 0 or 2 * times < len(runs):
        return None
    return VectorHeader("glove", width, start, certain=width > 1)  # prose may end lines in a number


def not_vectors(sample: bytes) -> str:
    """Why a file with these first bytes is no word vector file, and what to do."""
    if not sample.strip():
        return "is empty: give a file of word vectors"
    layouts = "word2vec text or binary, GloVe text, fastText .vec"
    return f"is no word vector file ({layouts}): its lines are not words followed by numbers; give another file"


def _trailing_numbers(sample: bytes, start: int) -> list[int]:
    """How many numbers follow the word in each of the first lines."""
    end = sample.rfind(b"\n") if len(sample) >= SAMPLE else len(sample)  # the last line may be incomplete
    lines = sample[start : max(start, end)].split(b"\n", 100)[:100]
    return [numbers_at_end(line.split()) for line in lines if line.strip()]


def _is_text(sample: bytes) -> bool:
    """Whether these bytes are UTF-8 without control characters; the end may be cut within a character."""
    try:
        getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return not CONTROLS.search(sample)


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
            what = f"expected a word and {width} numbers, but {shortened(bad)!r} is no number"
            raise KeelError(f"{place}: {what}: correct the line, or download the file again")
        what = f"the line has {run} numbers, but {width} are expected by the header or the other lines"
        remedy = "download the file again if it is truncated, or else correct the line"
        raise KeelError(f"{place}: {what}: {remedy}")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        row[:] = [float(number) for number in numbers]
    return word


def numbers_at_end(fields: list[bytes]) -> int:
    """How many numbers follow the word of a line."""
    return sum(1 for _ in takewhile(is_number, reversed(fields[1:])))


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

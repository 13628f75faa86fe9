"""Detection of word vector files by their first bytes: word2vec text, word2vec binary or GloVe text."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from keel.formats.vector_lines import numbers_at_end

SAMPLE = 1 << 18
"""Bytes at the start of a file that its layout is detected from."""
WIDEST = 1 << 20
"""The largest plausible number of dimensions; a header that says more is damaged."""
LAYOUTS = {"text": "word2vec text", "binary": "word2vec binary", "glove": "GloVe text"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True, kw_only=True)
class VectorHeader:
    """The layout of a word vector file."""

    layout: Literal["text", "binary", "glove"]
    width: int
    start: int
    """Byte offset of the first word."""
    certain: bool
    """Whether more than the first line supports it."""
    count: int = 0
    """Number of words by the first line; 0 if it says none."""

    @property
    def counted(self) -> bool:
        """Whether the first line is a header with the number of words."""
        return self.layout != "glove"


def detect_header(sample: bytes) -> VectorHeader | None:
    """The layout of a file by its first bytes; None if these are no word vectors."""
    mark = len(BYTE_ORDER_MARK) if sample.startswith(BYTE_ORDER_MARK) else 0
    first, _, _ = sample[mark:].partition(b"\n")
    if header := HEADER.fullmatch(first):
        count, width = map(int, header.groups())
        start = min(mark + len(first) + 1, len(sample))
        runs = _trailing_numbers(sample, start)
        plausible = count > 0 and 0 < width <= WIDEST
        if (runs and 2 * sum(run > 0 for run in runs) >= len(runs)) or _is_text(sample[start:]):
            certain = plausible and width in runs
            return VectorHeader(layout="text", count=count, width=width, start=start, certain=certain)
        return VectorHeader(layout="binary", count=count, width=width, start=start, certain=plausible)
    runs = _trailing_numbers(sample, mark)
    ((width, times),) = Counter(runs).most_common(1) or ((0, 0),)
    if width == 0 or 2 * times < len(runs):
        return None
    return VectorHeader(layout="glove", width=width, start=mark, certain=width > 1)  # prose may end lines in a number


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
    if CONTROLS.search(sample):
        return False
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(sample) - 4 and error.reason == "unexpected end of data"
    return True

"""Texts as the rows that a system reads: with its marks, long ones in windows, all of them at once."""

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from keel.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelInput:
    """One text or pair with the marks that a system puts around it."""

    ids: list[int]
    segments: list[int]
    first_start: int
    """Where the first text's ids start."""


FIRST, SECOND = -1, -2
"""Where the texts stand among a row's marks."""


class BuildsInputs(Protocol):
    """Puts a text or a pair into its input template: special tokens and segment ids."""

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput: ...


class FlatTokens(NamedTuple):
    """Many texts end to end."""

    ids: np.ndarray  # [tokens] int32
    lengths: np.ndarray  # [texts]


class PackedInputs(NamedTuple):
    """Rows end to end; a text too long for one has several."""

    ids: np.ndarray  # [tokens] int32
    segments: np.ndarray  # [tokens] uint8
    starts: np.ndarray  # [rows + 1]
    window_counts: np.ndarray  # [texts] rows of each

    @classmethod
    def from_inputs(cls, rows: list[ModelInput], counts: np.ndarray) -> "PackedInputs":
        """Rows that were framed one by one."""
        ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int32)
        segments = np.fromiter(chain.from_iterable(row.segments for row in rows), np.uint8)
        return cls(ids, segments, np.cumsum([0, *(len(row.ids) for row in rows)]), counts)

    def interleave(self, other: "PackedInputs") -> "PackedInputs":
        """These rows, and after each the one that stands in its place among others."""
        sizes = np.stack([np.diff(self.starts), np.diff(other.starts)], 1).ravel()
        starts = np.append(0, np.cumsum(sizes))
        ids, segments = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint8)
        for number, rows in enumerate((self, other)):
            lengths = np.diff(rows.starts)
            places = np.arange(rows.starts[-1]) + np.repeat(starts[number:-1:2] - rows.starts[:-1], lengths)
            ids[places], segments[places] = rows.ids, rows.segments
        return PackedInputs(ids, segments, starts, self.window_counts + other.window_counts)


def build_packed_inputs(
    system: BuildsInputs, tokenizer: Tokenizer, firsts: FlatTokens, seconds: FlatTokens | None, room: int
) -> PackedInputs:
    """Each text, or pair, in the system's frame; in windows where it is longer than `room`."""
    texts = [firsts] if seconds is None else [firsts, seconds]
    total = np.sum([text.lengths for text in texts], axis=0)
    begins = [np.cumsum(text.lengths) - text.lengths for text in texts]

    def made_alone(number: int) -> list[ModelInput]:
        parts = [text.ids[begin[number] :][: text.lengths[number]] for text, begin in zip(texts, begins, strict=True)]
        first, second = [*(part.tolist() for part in parts), None][:2]
        return [system.build_inputs(tokenizer, *part) for part in windows(first, second, room)]

    # Marks are the same around all texts, but where one is empty or too long they are made for it alone.
    alone = (total > room) | np.any([text.lengths == 0 for text in texts], axis=0)
    odd = {number: made_alone(number) for number in np.flatnonzero(alone).tolist()}
    marks = system.build_inputs(tokenizer, [FIRST], None if seconds is None else [SECOND])
    counts = np.ones(len(total), np.int64)
    counts[alone] = list(map(len, odd.values()))
    rows = np.cumsum(counts) - counts  # [texts] the first row of each
    lengths = np.zeros(counts.sum(), np.int64)
    lengths[rows[~alone]] = total[~alone] + len(marks.ids) - len(texts)
    for number, framed in odd.items():
        lengths[rows[number] :][: len(framed)] = [len(row.ids) for row in framed]
    starts = np.append(0, np.cumsum(lengths))
    ids, segments = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint8)
    at = starts[rows[~alone]]
    for mark, segment in zip(marks.ids, marks.segments, strict=True):
        if mark in (FIRST, SECOND):
            text, source = texts[FIRST - mark], begins[FIRST - mark][~alone]
            sizes = text.lengths[~alone]
            inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            places, values = np.repeat(at, sizes) + inside, text.ids[np.repeat(source, sizes) + inside]
        else:
            sizes, places, values = 1, at, mark
        ids[places], segments[places] = values, segment
        at = at + sizes
    for number, framed in odd.items():
        for start, row in zip(starts[rows[number] :][: len(framed)].tolist(), framed, strict=True):
            ids[start : start + len(row.ids)], segments[start : start + len(row.ids)] = row.ids, row.segments
    return PackedInputs(ids, segments, starts, counts)


def windows(first: list[int], second: list[int] | None, room: int) -> list[tuple[list[int], list[int] | None]]:
    """The texts in parts of at most `room`, overlapping by a quarter; of a pair the shorter stays whole if possible."""
    if second is None:
        return [(part, None) for part in _cut(first, room)]
    first_room = max(room // 2, room - len(second))
    firsts = _cut(first, first_room)
    seconds = _cut(second, room - min(len(first), first_room))
    count = max(len(firsts), len(seconds))  # side by side: all of both is read, at a cost that stays linear
    return [(firsts[i * len(firsts) // count], seconds[i * len(seconds) // count]) for i in range(count)]


def _cut(ids: list[int], room: int) -> list[list[int]]:
    if len(ids) <= room:
        return [ids]
    starts = range(0, len(ids) - room // 4, room - room // 4)
    return [ids[start : start + room] for start in (min(start, len(ids) - room) for start in starts)]

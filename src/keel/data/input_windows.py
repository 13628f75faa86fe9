"""Model inputs: texts in a system's input template with its special tokens, long ones in overlapping windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

import numpy as np

from keel.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelInput:
    """One text or pair with its special tokens."""

    ids: list[int]
    segments: list[int]
    first_start: int
    """Position of the first text's first token."""
    second_start: int = 0
    """Position of the second text's first token, if there is one."""


FIRST, SECOND = -1, -2
"""Placeholders of the texts in an input template."""


class BuildsInputs(Protocol):
    """Puts a text or a pair into its input template: special tokens and segment ids."""

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput: ...


class FlatTokens(NamedTuple):
    """Concatenated token ids of many texts."""

    ids: np.ndarray  # [tokens] int32
    lengths: np.ndarray  # [texts]

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    def take(self, chosen: np.ndarray) -> "FlatTokens":
        """The texts of a boolean mask [texts]."""
        return FlatTokens(self.ids[np.repeat(chosen, self.lengths)], self.lengths[chosen])

    def truncate(self, most: int) -> "FlatTokens":
        """At most the first `most` tokens of each text."""
        positions = np.arange(len(self.ids)) - np.repeat(self.starts, self.lengths)
        return FlatTokens(self.ids[positions < most], np.minimum(self.lengths, most))


class PackedInputs(NamedTuple):
    """Concatenated model inputs; a long text has several, its windows."""

    ids: np.ndarray  # [tokens] int32
    segments: np.ndarray  # [tokens] uint8
    starts: np.ndarray  # [sequences + 1]
    window_counts: np.ndarray  # [texts] sequences of each

    @classmethod
    def from_inputs(cls, inputs: list[ModelInput], window_counts: np.ndarray) -> "PackedInputs":
        ids = np.fromiter(chain.from_iterable(each.ids for each in inputs), np.int32)
        segments = np.fromiter(chain.from_iterable(each.segments for each in inputs), np.uint8)
        return cls(ids, segments, np.cumsum([0, *(len(each.ids) for each in inputs)]), window_counts)

    def join(self, other: "PackedInputs", order: np.ndarray, window_counts: np.ndarray) -> "PackedInputs":
        """These sequences and those of `other`, in an order of all of them."""
        lengths = np.concatenate([np.diff(self.starts), np.diff(other.starts)])
        positions = concatenated_ranges((np.cumsum(lengths) - lengths)[order], lengths[order])
        ids, segments = (np.concatenate(parts)[positions] for parts in zip(self[:2], other[:2], strict=True))
        return PackedInputs(ids, segments, np.append(0, np.cumsum(lengths[order])), window_counts)

    def interleave(self, other: "PackedInputs") -> "PackedInputs":
        """The first sequence of each, then the second of each, and so on."""
        order = np.arange(2 * (len(self.starts) - 1)).reshape(2, -1).T.ravel()
        return self.join(other, order, self.window_counts + other.window_counts)


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[sum of lengths]: the positions of ranges with these starts and lengths, one after the other."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def build_packed_inputs(
    system: BuildsInputs, tokenizer: Tokenizer, first_texts: FlatTokens, second_texts: FlatTokens | None, room: int
) -> PackedInputs:
    """Each text, or pair, in the system's input template; in windows where it has more than `room` tokens."""
    texts = [first_texts] if second_texts is None else [first_texts, second_texts]
    total = np.sum([text.lengths for text in texts], axis=0)
    begins = [text.starts for text in texts]

    def build_alone(number: int) -> list[ModelInput]:
        parts = [text.ids[begin[number] :][: text.lengths[number]] for text, begin in zip(texts, begins, strict=True)]
        first, second = [*(part.tolist() for part in parts), None][:2]
        return [system.build_inputs(tokenizer, *part) for part in text_windows(first, second, room)]

    # The template is the same for all texts, except that empty and long ones are built one by one.
    alone = (total > room) | np.any([text.lengths == 0 for text in texts], axis=0)
    template = system.build_inputs(tokenizer, [FIRST], None if second_texts is None else [SECOND])
    starts = np.append(0, np.cumsum(total[~alone] + len(template.ids) - len(texts)))
    ids, segments = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint8)
    at = starts[:-1]
    for token, segment in zip(template.ids, template.segments, strict=True):
        if token in (FIRST, SECOND):
            text, begin = texts[FIRST - token], begins[FIRST - token][~alone]
            sizes = text.lengths[~alone]
            positions, values = concatenated_ranges(at, sizes), text.ids[concatenated_ranges(begin, sizes)]
        else:
            sizes, positions, values = 1, at, token
        ids[positions], segments[positions] = values, segment
        at = at + sizes
    window_counts = np.ones(len(total), np.int64)
    inputs = PackedInputs(ids, segments, starts, window_counts)
    if not alone.any():
        return inputs
    windows = list(map(build_alone, np.flatnonzero(alone).tolist()))
    window_counts[alone] = list(map(len, windows))
    built = PackedInputs.from_inputs([*chain.from_iterable(windows)], window_counts[alone])
    owners = np.concatenate([np.flatnonzero(~alone), np.repeat(np.flatnonzero(alone), window_counts[alone])])
    return inputs.join(built, np.argsort(owners, kind="stable"), window_counts)


def windows_with_context(sizes: Sequence[int] | np.ndarray, room: int) -> list[tuple[range, range]]:
    """Windows over units (words) of these sizes, and the units that have most context in each: half of each overlap."""
    spans = overlapping_windows(sizes, room)
    borders = [0, *((later.start + former.stop) // 2 for former, later in pairwise(spans)), len(sizes)]
    return [(span, range(*inner)) for span, inner in zip(spans, pairwise(borders), strict=True)]


def text_windows(first: list[int], second: list[int] | None, room: int) -> list[tuple[list[int], list[int] | None]]:
    """Windows of a text or pair; the shorter text of a pair stays whole if possible."""
    if second is None:
        return [(part, None) for part in _parts(first, room)]
    first_room = max(room // 2, room - len(second))
    one, two = _parts(first, first_room), _parts(second, room - min(len(first), first_room))
    count = max(len(one), len(two))  # side by side: both are read completely, at linear cost
    return [(one[i * len(one) // count], two[i * len(two) // count]) for i in range(count)]


def _parts(ids: list[int], room: int) -> list[list[int]]:
    if len(ids) <= room:
        return [ids]
    return [ids[span.start : span.stop] for span in overlapping_windows(np.ones(len(ids), np.int64), room, fill=True)]


def overlapping_windows(sizes: Sequence[int] | np.ndarray, room: int, *, fill: bool = False) -> list[range]:
    """Windows of at most `room` tokens over units (words) of these sizes; neighbours overlap by a quarter.

    With `fill` the last window starts earlier, so that it is as long as the others.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    begins = ends - np.asarray(sizes, np.int64)
    spans: list[range] = []
    start = 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, begins[start] + room, "right"))
        spans.append(range(start, stop))
        if stop == len(sizes):
            break
        start = max(start + 1, int(np.searchsorted(begins, ends[stop - 1] - room // 4)))
    if fill and len(spans) > 1:
        spans[-1] = range(int(np.searchsorted(begins, ends[-1] - room)), len(sizes))
    return spans or [range(0)]

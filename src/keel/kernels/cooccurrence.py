"""How often words stand near each other, counted one word after the other, compiled by Numba.

An index says where each word stands; what is around these places is summed into one row as long as the vocabulary, so
that nothing has to be sorted or merged. Memory holds the index of as many words as fit and the cells of a few of them;
the text and all other cells are on disk. Each row is summed by one thread in the order of the text: whatever the number
of threads and the memory, the file is the same.

Cells are written in tiles, some words by some others, both drawn at random, and in random order inside a tile: who
reads a stretch of the file meets few words, whose vectors stay in the processor's cache, and yet a fair sample.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import numpy as np
from numba import njit

from keel.errors import UsageError
from keel.kernels.splitmix import GAMMA, mix, random_below

CELL = np.dtype([("first", np.int32), ("second", np.int32), ("count", np.float32)])
"""Two words, each pair once, and the sum of 1 / distance over all places where one is near the other."""
ROWS, COLUMNS = 128, 256
"""Words of a tile: all that GloVe learns about them fits into a megabyte at 100 numbers a vector."""
GAP = -1
BUFFER = 1 << 20


class DocumentSpans(NamedTuple):
    """Documents in one long row of ids."""

    ids: np.ndarray
    begins: np.ndarray  # [documents]
    stops: np.ndarray  # [documents]


class _Scratch(NamedTuple):
    """What one thread works with."""

    row: np.ndarray  # [words] sums for the word at hand
    met: np.ndarray  # [words + 1] which of them are not 0
    cells: np.ndarray  # of a block of words
    tiles: np.ndarray  # the same, in the order of the file


def count_cooccurrences(
    text: DocumentSpans, counts: np.ndarray, path: Path, *, window: int, scale: float, memory: float, threads: int
) -> None:
    """Write the cells of all words with `counts` above 0, each times `scale`, in `memory` GiB.

    Other ids are passed over as if they were not there. A window goes over sentences, but not over documents.
    """
    if not counts.any():
        path.touch()
        return
    words = np.random.default_rng(0).permutation(np.flatnonzero(counts)).astype(np.int32)
    ranks = np.full(len(counts), GAP, np.int32)
    ranks[words] = np.arange(len(words))
    ends = np.concatenate([[0], counts[words].cumsum()])
    blocks = np.append(np.arange(0, len(words), ROWS), len(words))  # where each starts, and the end
    most = np.add.reduceat(np.minimum(len(words), 2 * window * counts[words]), blocks[:-1]).max()  # cells of a block
    place = np.dtype(np.int32 if ends[-1] + len(text.begins) < 2**31 - 1 else np.int64)
    sizes = np.diff(ends[blocks]) * place.itemsize
    threads, room = _divide_memory(memory, threads, 12 * len(words) + 2 * most * CELL.itemsize, sizes.max())
    passes = list(_passes(sizes, room))
    places = np.empty(max(ends[blocks[last]] - ends[blocks[first]] for first, last in passes), place)
    scratches = [
        _Scratch(np.zeros(len(words)), np.empty(len(words) + 1, np.int32), *np.empty((2, most), CELL))
        for _ in range(threads)
    ]
    with TemporaryFile(dir=path.parent) as spilled, open(path, "wb") as file, ThreadPoolExecutor(threads) as pool:
        _write_ranks(text, ranks, spilled)
        ranked = np.asarray(np.memmap(spilled, np.int32, "r"))

        def count(block: int, before: int, scratch: _Scratch) -> np.ndarray:
            low, high = blocks[block], blocks[block + 1]
            found = _count_rows(ranked, places, ends[low : high + 1] - before, low, window, scale, *scratch[:3])
            _shuffle_tiles(scratch.cells[:found], words, np.uint64(block), scratch.tiles)
            return scratch.tiles[:found]

        for first, last in passes:
            low, high = blocks[first], blocks[last]
            _index_positions(ranked, low, high, ends[low:high] - ends[low], places)
            for start in range(first, last, threads):
                group = range(start, min(start + threads, last))
                for tiles in pool.map(count, group, repeat(ends[low]), scratches):
                    file.write(tiles.data)
        file.flush()
        os.fsync(file.fileno())


def _divide_memory(memory: float, threads: int, each: int, least: int) -> tuple[int, int]:
    """How many threads there is memory for, and the bytes left for the index, which takes `least` for one block."""
    room = int(memory * 2**30)
    threads = min(threads, (room - least) // each)
    if threads < 1:
        need = (each + least) / 2**30
        raise UsageError(
            f"counting which words stand near each other takes {need:.2g} GiB at least, and memory is {memory:g}: "
            f"raise it (--system.memory {need * 1.01:.2g}) or lower the vocabulary"
        )
    return threads, room - threads * each


def _passes(sizes: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """Stretches of blocks, as long as there is room for their index."""
    first, taken = 0, 0
    for block, size in enumerate(sizes):
        if taken + size > room:
            yield first, block
            first, taken = block, 0
        taken += size
    yield first, len(sizes)


def _write_ranks(text: DocumentSpans, ranks: np.ndarray, file: IO[bytes]) -> None:
    """Write the known words as ranks, a GAP before and after each document."""
    buffer = np.empty(BUFFER, np.int32)
    file.write(np.full(1, GAP, np.int32).data)
    document, place = 0, 0
    while document < len(text.begins):
        document, place, filled = _fill_ranks(*text, ranks, document, place, buffer)
        file.write(buffer[:filled].data)
    file.flush()


@njit(cache=True, nogil=True)
def _fill_ranks(ids, begins, stops, ranks, document, place, buffer):
    """Fill the buffer from this place in this document on; where to go on, and how far it is filled."""
    filled = 0
    while document < len(begins):
        begin, stop = begins[document], stops[document]
        while begin + place < stop and filled < len(buffer):
            rank = ranks[ids[begin + place]]
            place += 1
            if rank >= 0:
                buffer[filled] = rank
                filled += 1
        if filled == len(buffer):
            break
        buffer[filled] = GAP
        filled += 1
        document += 1
        place = 0
    return document, place, filled


@njit(cache=True, nogil=True)
def _index_positions(text, low, high, starts, places):
    """Fill in where the words from low to high stand; starts[n] is where those of the n-th begin, and is moved."""
    for place in range(len(text)):
        word = text[place]
        if low <= word < high:
            places[starts[word - low]] = place
            starts[word - low] += 1


@njit(cache=True, nogil=True)
def _count_rows(text, places, starts, first, window, scale, row, met, cells):
    """Fill in the cells of the words from `first` on with words of their own rank or a higher one; how many."""
    found = 0
    weights = 1.0 / np.arange(1, window + 1)
    for number in range(len(starts) - 1):
        count = 0
        for place in places[starts[number] : starts[number + 1]]:
            for side in (-1, 1):
                other = place
                for distance in range(window):
                    other += side
                    word = text[other]
                    if word == GAP:
                        break
                    met[count] = word  # stays only if it is new: no branch, for the processor could not foretell it
                    count += row[word] == 0.0
                    row[word] += weights[distance]
        for word in met[:count]:
            if word >= first + number:
                cells[found].first = first + number
                cells[found].second = word
                cells[found].count = row[word] * scale
                found += 1
            row[word] = 0.0
    return found


@njit(cache=True, nogil=True)
def _shuffle_tiles(cells, words, seed, tiles):
    """Copy cells tile by tile, in random order inside each, and turn their ranks into words."""
    state = mix(seed)
    for place in range(len(cells) - 1, 0, -1):  # Fisher and Yates
        state += GAMMA
        other = random_below(mix(state), place + 1)
        first, second, count = cells[place].first, cells[place].second, cells[place].count
        cells[place].first, cells[place].second = cells[other].first, cells[other].second
        cells[place].count = cells[other].count
        cells[other].first, cells[other].second, cells[other].count = first, second, count
    starts = np.zeros(len(words) // COLUMNS + 2, np.int64)
    for place in range(len(cells)):
        starts[cells[place].second // COLUMNS + 1] += 1
    starts = np.cumsum(starts)
    for place in range(len(cells)):
        tile = cells[place].second // COLUMNS
        target = starts[tile]
        starts[tile] += 1
        tiles[target].first = words[cells[place].first]
        tiles[target].second = words[cells[place].second]
        tiles[target].count = cells[place].count

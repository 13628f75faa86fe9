"""Word co-occurrence counts for GloVe, one row of the matrix at a time, in Numba.

An index holds the positions of each word; the contexts of these positions are summed into one dense row, so that
nothing has to be sorted or merged. Memory holds the index of as many words as fit and the cells of a few rows; the text
and all other cells are on disk. One thread sums each row in text order: the file does not depend on the number of
threads or the memory.

Cells are written in tiles of random words by random words, shuffled inside a tile: a consecutive part of the file is a
fair sample of few words, whose vectors stay in the CPU cache.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import numpy as np
from numba import njit

from keel.errors import UsageError
from keel.kernels.splitmix import GAMMA, mix, random_below
from keel.kernels.word_counts import TokenSpans, ranges_within

CELL = np.dtype([("first", np.int32), ("second", np.int32), ("count", np.float32)])
"""A pair of words, each pair once, and the sum of 1 / distance over all their co-occurrences."""
ROWS, COLUMNS = 128, 256
"""Words of a tile: their GloVe parameters fit into a megabyte at width 100."""
GAP = -1
BUFFER = 1 << 20


class _Scratch(NamedTuple):
    """Buffers of one thread."""

    row: np.ndarray  # [words] dense sums of the current word
    nonzero: np.ndarray  # [words + 1] indices of its nonzero entries
    cells: np.ndarray  # of a block of words
    tiles: np.ndarray  # the same, in the order of the file


def count_cooccurrences(
    text: TokenSpans, counts: np.ndarray, path: Path, *, window: int, scale: float, memory: float, threads: int
) -> None:
    """Write the cells of all words with `counts` above 0, each times `scale`, in `memory` GiB.

    Other ids are skipped as if absent. A window crosses sentences, but not documents.
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
    position = np.dtype(np.int32 if ends[-1] + len(text.begins) < 2**31 - 1 else np.int64)
    sizes = np.diff(ends[blocks]) * position.itemsize
    threads, available = _divide_memory(memory, threads, 12 * len(words) + 2 * most * CELL.itemsize, sizes.max())
    passes = list(ranges_within(sizes.tolist(), available))
    positions = np.empty(max(ends[blocks[last]] - ends[blocks[first]] for first, last in passes), position)
    scratches = [
        _Scratch(np.zeros(len(words)), np.empty(len(words) + 1, np.int32), *np.empty((2, most), CELL))
        for _ in range(threads)
    ]
    with TemporaryFile(dir=path.parent) as rank_file, open(path, "wb") as file, ThreadPoolExecutor(threads) as pool:
        _write_ranks(text, ranks, rank_file)
        ranked = np.asarray(np.memmap(rank_file, np.int32, "r"))

        def count(block: int, before: int, scratch: _Scratch) -> np.ndarray:
            low, high = blocks[block], blocks[block + 1]
            found = _count_rows(ranked, positions, ends[low : high + 1] - before, low, window, scale, *scratch[:3])
            _shuffle_tiles(scratch.cells[:found], words, np.uint64(block), scratch.tiles)
            return scratch.tiles[:found]

        for first, last in passes:
            low, high = blocks[first], blocks[last]
            _index_positions(ranked, low, high, ends[low:high] - ends[low], positions)
            for start in range(first, last, threads):
                group = range(start, min(start + threads, last))
                for tiles in pool.map(count, group, repeat(ends[low]), scratches):
                    file.write(tiles.data)
        file.flush()
        os.fsync(file.fileno())


def _divide_memory(memory: float, threads: int, each: int, least: int) -> tuple[int, int]:
    """Return the threads that fit into memory and the bytes left for the index, of which one block takes `least`."""
    available = int(memory * 2**30)
    threads = min(threads, (available - least) // each)
    if threads < 1:
        need = (each + least) / 2**30
        what = f"counting co-occurrences takes at least {need:.2g} GiB, but memory is {memory:g}"
        raise UsageError(f"{what}: raise it (--system.memory {need * 1.01:.2g}) or use a smaller vocabulary")
    return threads, available - threads * each


def _write_ranks(text: TokenSpans, ranks: np.ndarray, file: IO[bytes]) -> None:
    """Write the text as ranks of words, a GAP before and after each document."""
    buffer = np.empty(BUFFER, np.int32)
    file.write(np.full(1, GAP, np.int32).data)
    document, position = 0, 0
    while document < len(text.begins):
        document, position, filled = _fill_ranks(*text, ranks, document, position, buffer)
        file.write(buffer[:filled].data)
    file.flush()


@njit(cache=True, nogil=True)
def _fill_ranks(ids, begins, stops, ranks, document, position, buffer):
    """Fill the buffer from this position on; return the next document and position, and how far it is filled."""
    filled = 0
    while document < len(begins):
        begin, stop = begins[document], stops[document]
        while begin + position < stop and filled < len(buffer):
            rank = ranks[ids[begin + position]]
            position += 1
            if rank >= 0:
                buffer[filled] = rank
                filled += 1
        if filled == len(buffer):
            break
        buffer[filled] = GAP
        filled += 1
        document += 1
        position = 0
    return document, position, filled


@njit(cache=True, nogil=True)
def _index_positions(text, low, high, starts, positions):
    """Fill in the positions of words low to high; starts[n] is where those of the n-th go, and is advanced."""
    for position in range(len(text)):
        word = text[position]
        if low <= word < high:
            positions[starts[word - low]] = position
            starts[word - low] += 1


@njit(cache=True, nogil=True)
def _count_rows(text, positions, starts, first, window, scale, row, nonzero, cells):
    """Fill in the cells of the words from `first` on, with words of equal or higher rank; return how many."""
    found = 0
    weights = 1.0 / np.arange(1, window + 1)
    for number in range(len(starts) - 1):
        count = 0
        for position in positions[starts[number] : starts[number + 1]]:
            for side in (-1, 1):
                other = position
                for distance in range(window):
                    other += side
                    word = text[other]
                    if word == GAP:
                        break
                    nonzero[count] = word  # overwritten unless new: a branch would be mispredicted
                    count += row[word] == 0.0
                    row[word] += weights[distance]
        for word in nonzero[:count]:
            if word >= first + number:
                cells[found].first = first + number
                cells[found].second = word
                cells[found].count = row[word] * scale
                found += 1
            row[word] = 0.0
    return found


@njit(cache=True, nogil=True)
def _shuffle_tiles(cells, words, seed, tiles):
    """Copy cells tile by tile, shuffled inside each, and turn ranks into word ids."""
    state = mix(seed)
    for position in range(len(cells) - 1, 0, -1):  # Fisher and Yates
        state += GAMMA
        other = random_below(mix(state), position + 1)
        first, second, count = cells[position].first, cells[position].second, cells[position].count
        cells[position].first, cells[position].second = cells[other].first, cells[other].second
        cells[position].count = cells[other].count
        cells[other].first, cells[other].second, cells[other].count = first, second, count
    starts = np.zeros(len(words) // COLUMNS + 2, np.int64)
    for position in range(len(cells)):
        starts[cells[position].second // COLUMNS + 1] += 1
    starts = np.cumsum(starts)
    for position in range(len(cells)):
        tile = cells[position].second // COLUMNS
        target = starts[tile]
        starts[tile] += 1
        tiles[target].first = words[cells[position].first]
        tiles[target].second = words[cells[position].second]
        tiles[target].count = cells[position].count

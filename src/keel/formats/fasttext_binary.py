"""fastText's binary files: .bin, and .ftz with product-quantised matrices.

All numbers are little-endian: magic number and version, settings, dictionary (words, then labels, each with its count),
input matrix (a row per word, then per n-gram bucket) and output matrix.
"""

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from keel.data.text_files import first_bytes, open_guarded
from keel.errors import KeelError

MAGIC, VERSION = 793712314, 12
BLOCK = 1 << 20
"""Bytes that are read at once."""
WIDEST = 1 << 20
"""The largest plausible number of dimensions."""
CENTROIDS = 256
"""Vectors per codebook: a code is one byte."""

LOSSES, MODELS = range(1, 5), range(1, 4)
"""Valid codes."""
SUPERVISED = 3
"""The code of a supervised model."""


class Settings(NamedTuple):
    """fastText's arguments in file order; `loss` and `model` are its codes."""

    width: int
    window: int
    epochs: int
    min_count: int
    negatives: int
    word_ngrams: int
    loss: int
    model: int
    buckets: int
    min_n: int
    max_n: int
    lr_update_rate: int
    subsample: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Dictionary:
    """The settings and the dictionary of a fastText file."""

    settings: Settings
    words: list[str]
    word_counts: np.ndarray  # [words]
    labels: list[str]
    label_counts: np.ndarray  # [labels]
    tokens: int
    """Training tokens."""
    kept_buckets: np.ndarray | None = None
    """In a pruned dictionary, the bucket of each n-gram row; all other buckets were dropped."""

    @property
    def input_rows(self) -> int:
        """Rows of the input matrix: words and n-grams."""
        return len(self.words) + (self.settings.buckets if self.kept_buckets is None else len(self.kept_buckets))

    @property
    def output_rows(self) -> int:
        """Rows of the output matrix."""
        return len(self.labels if self.settings.model == SUPERVISED else self.words)


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents(Dictionary):
    """The contents of a fastText file."""

    inputs: np.ndarray  # [words + n-grams, width]
    outputs: np.ndarray  # [labels or words, width]


def is_fasttext(path: str | Path) -> bool:
    """Whether a file, compressed or not, begins with fastText's magic number."""
    return first_bytes(path, 4) == struct.pack("<i", MAGIC)


def read_contents(path: str | Path) -> Contents:
    """Read a .bin or .ftz file; product-quantised matrices are decoded."""
    path = Path(path)
    with open_guarded(path, "use a smaller model") as file:
        return _contents(_Reader(path, file))


def read_dictionary(path: str | Path) -> Dictionary:
    """Read a .bin or .ftz file as far as its matrices."""
    path = Path(path)
    with open_guarded(path, "use a smaller model") as file:
        return _dictionary(_Reader(path, file))


def write_contents(file: IO[bytes], contents: Contents) -> None:
    """Write a .bin file; fastText does not read a pruned dictionary in one."""
    assert contents.kept_buckets is None
    file.write(struct.pack("<2i", MAGIC, VERSION) + struct.pack("<12id", *contents.settings))
    words, labels = len(contents.words), len(contents.labels)
    file.write(struct.pack("<3i2q", words + labels, words, labels, contents.tokens, -1))
    for kind, (names, counts) in enumerate(
        ((contents.words, contents.word_counts), (contents.labels, contents.label_counts))
    ):
        for name, count in zip(names, counts.tolist(), strict=True):
            file.write(name.encode("utf-8", "surrogateescape") + struct.pack("<bqb", 0, count, kind))
    for matrix in (contents.inputs, contents.outputs):
        file.write(struct.pack("<?2q", False, *matrix.shape))
        file.write(np.ascontiguousarray(matrix, "<f4").data)


class _Reader:
    """Reads numbers, words and matrices from a stream, and reports a premature end."""

    def __init__(self, path: Path, file: IO[bytes]):
        self.path, self.file = path, file
        self.rest, self.at = b"", 0
        plain = isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)
        self.most = path.stat().st_size if plain else 1 << 62
        """The file's size in bytes, if it is not compressed."""

    def truncated(self) -> KeelError:
        return KeelError(f"{self.path} is truncated: download it again")

    def damaged(self, what: str) -> KeelError:
        return KeelError(f"{self.path}: {what}; the file is damaged: download it again")

    def take(self, count: int) -> bytes:
        while len(self.rest) - self.at < count:
            block = self.file.read(max(BLOCK, count - (len(self.rest) - self.at)))
            if not block:
                raise self.truncated()
            self.rest, self.at = self.rest[self.at :] + block, 0
        self.at += count
        return self.rest[self.at - count : self.at]

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def word(self) -> bytes:
        start = self.at
        while (end := self.rest.find(b"\0", start)) < 0:
            start = len(self.rest) - self.at
            if start > BLOCK:
                raise self.damaged("a word has no end")
            self.take(start + 1)  # reads at least one more block, and moves the rest to the front
            self.at = 0
        return self.take(end + 1 - self.at)[:-1]

    def array(self, kind: str, count: int) -> np.ndarray:
        """An array of that many numbers, read block by block."""
        size = count * np.dtype(kind).itemsize
        if size > self.most:  # before memory is allocated
            raise self.truncated()
        found = np.empty(count, kind)
        view = found.view(np.uint8).data
        done = 0
        while done < size:
            block = self.take(min(size - done, len(self.rest) - self.at or BLOCK))
            view[done : done + len(block)] = block
            done += len(block)
        return found


def _dictionary(reader: _Reader) -> Dictionary:
    path = reader.path
    magic, version = reader.numbers("2i")
    if magic != MAGIC:
        raise KeelError(f"{path} is no fastText model (wrong magic number): give a .bin or .ftz file")
    if not 11 <= version <= VERSION:
        raise KeelError(f"{path} has version {version} of fastText's format; Keel reads 11 and {VERSION}")
    settings = Settings(*reader.numbers("12id"))
    if settings.model == SUPERVISED and version == 11:
        settings = settings._replace(max_n=0)  # it ignored character n-grams, whatever the setting
    sound = 0 < settings.width <= WIDEST and settings.buckets >= 0 and settings.model in MODELS
    if not (sound and settings.loss in LOSSES):
        raise reader.damaged("its settings are invalid")
    size, words, labels, tokens, pruned = reader.numbers("3i2q")
    if size != words + labels or min(words, labels) < 0 or pruned < -1 or (settings.model == SUPERVISED and labels < 1):
        raise reader.damaged(f"it says {size} entries, {words} words and {labels} labels")
    names: list[bytes] = []
    counts = np.empty(size, np.int64)
    for number in range(size):
        names.append(reader.word())
        counts[number], kind = reader.numbers("qb")
        if kind != (number >= words):
            raise reader.damaged("its words and labels are interleaved")
    kept_buckets = None
    if pruned >= 0:
        buckets, rows = reader.array("<i4", 2 * pruned).reshape(-1, 2).T
        kept_buckets = np.empty(pruned, np.int64)
        if not np.array_equal(np.sort(rows), np.arange(pruned)) or (pruned and not buckets.min() >= 0):
            raise reader.damaged("its pruned n-grams have no rows")
        kept_buckets[rows] = buckets
    return Dictionary(
        settings=settings,
        words=_names(names[:words]),
        word_counts=counts[:words],
        labels=_names(names[words:]),
        label_counts=counts[words:],
        tokens=tokens,
        kept_buckets=kept_buckets,
    )


def _contents(reader: _Reader) -> Contents:
    path, found = reader.path, _dictionary(reader)
    (quantised,) = reader.numbers("?")
    if found.kept_buckets is not None and not quantised:
        what = "is pruned but not quantised, which fastText no longer supports"
        raise KeelError(f"{path} {what}: download a newer model")
    width = found.settings.width
    inputs = _matrix(reader, quantised, found.input_rows, width)
    outputs = _matrix(reader, reader.numbers("?")[0] and quantised, found.output_rows, width)
    if reader.at < len(reader.rest) or reader.file.read(1):
        raise reader.damaged("data follows the model")
    if not (np.isfinite(inputs).all() and np.isfinite(outputs).all()):
        raise KeelError(f"{path} contains NaN or infinity: train it again")
    return Contents(**vars(found), inputs=inputs, outputs=outputs)


def _names(raw: list[bytes]) -> list[str]:
    """Distinct words: fastText finds the last of duplicates, so the others get a suffix that no token has."""
    names = [name.decode("utf-8", "surrogateescape") for name in raw]
    place: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in place:
            names[place[name]] = f"{name} {place[name]}"
        place[name] = number
    return names


def _matrix(reader: _Reader, quantised: bool, rows: int, width: int) -> np.ndarray:
    """A matrix [rows, width]; a quantised one is decoded."""
    with_norms, *shape, size = reader.numbers("?2qi") if quantised else (False, *reader.numbers("2q"), 0)
    if shape != [rows, width]:
        found = " x ".join(map(str, shape))
        raise reader.damaged(f"a matrix is {found}, but its dictionary needs {rows} x {width}")
    if not quantised:
        return reader.array("<f4", rows * width).reshape(rows, width)
    if rows and (size % rows or not 0 < size // rows <= width):
        raise reader.damaged(f"{size} codes do not fit {rows} rows")
    vectors = _decode(reader, reader.array("u1", size).reshape(rows, -1), width)
    if with_norms:
        vectors *= _decode(reader, reader.array("u1", rows).reshape(rows, 1), 1)
    return vectors


def _decode(reader: _Reader, codes: np.ndarray, width: int) -> np.ndarray:
    """Vectors [rows, width] of product-quantised codes [rows, parts], whose codebooks follow: part n by codebook n."""
    parts = codes.shape[1]
    stored_width, stored_parts, part_width, last_width = reader.numbers("4i")
    total = (parts - 1) * part_width + last_width
    if (stored_width, stored_parts, total) != (width, parts, width) or part_width < 1:
        raise reader.damaged("its codebook does not fit its codes")
    centroids = reader.array("<f4", width * CENTROIDS)
    vectors = np.empty((len(codes), width), np.float32)
    for part in range(parts):
        here = part_width if part < parts - 1 else last_width
        start = part * part_width
        book = centroids[start * CENTROIDS : (start + here) * CENTROIDS].reshape(CENTROIDS, here)
        vectors[:, start : start + here] = book[codes[:, part]]
    return vectors

"""Word vector files: word2vec text and binary, GloVe text, fastText's .vec (which is word2vec text)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from keel.data.text_files import DAMAGED, open_bytes
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.formats.model_folder import atomic_file
from keel.formats.vector_header import LAYOUTS, SAMPLE, WIDEST, VectorHeader, detect_header, not_vectors
from keel.formats.vector_lines import is_number, parse_line, parse_lines, shortened

BLOCK = 1 << 20
"""Bytes that are read at once."""
LONGEST = 1 << 26
"""Bytes of the longest plausible line."""
WHITESPACE = re.compile(r"[ \t\n\r\v\f]")  # what ends a word in these files; other Unicode spaces do not

Layout = Literal["text", "binary", "glove"]


@dataclass(frozen=True)
class Vectors:
    """Distinct words and their vectors."""

    words: list[str]
    matrix: np.ndarray
    """[words, width] float32"""

    def __post_init__(self) -> None:
        assert self.matrix.ndim == 2
        assert len(self.words) == len(self.matrix)


def read_vectors(path: str | Path, *, limit: int = 0, on_event: OnEvent = ignore) -> Vectors:
    """Read a word vector file, compressed or not: all words or the first `limit`; the layout is detected.

    The first vector of a repeated word counts. Memory: the result and a few blocks of the file.
    """
    path = Path(path)
    if limit < 0:
        raise UsageError(f"cannot read the first {limit} words of {path}: give a number, or 0 for all")
    try:
        with open_bytes(path) as file:
            sample = file.read(SAMPLE)
            header = detect_header(sample)
            if header is None:
                raise KeelError(f"{path} {not_vectors(sample)}")
            if header.counted and not (header.count > 0 and 0 < header.width <= WIDEST):
                raise KeelError(
                    f"{path}:1: the first line says {header.count} words of {header.width} numbers, "
                    "which is not plausible: download or copy the file again"
                )
            table = _Table(path, header.width, limit)
            blocks = _blocks(sample[header.start :], file)
            if header.layout == "binary":
                _read_binary(blocks, table, header)
            else:
                _read_text(blocks, table, header)
    except DAMAGED as error:
        raise KeelError(f"{path} is damaged or truncated ({error}): download or compress it again") from None
    except OSError as error:
        raise KeelError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise KeelError(f"{path} does not fit into memory: read only its first words") from None
    vectors = table.finish()
    note(on_event, f"{path}: {LAYOUTS[header.layout]}, {len(vectors.words):,} words of {header.width} dimensions")
    if table.duplicates:
        note(
            on_event, f"{path}: {counted(table.duplicates, 'duplicate word')} skipped; the first vector of each counts"
        )
    if table.replaced:
        note(on_event, f"{path}: invalid UTF-8 in {counted(table.replaced, 'word')} replaced by U+FFFD")
    return vectors


def write_vectors(path: str | Path, vectors: Vectors, *, layout: Layout) -> None:
    """Write vectors losslessly; a failed write leaves the old file."""
    path = Path(path)
    words, matrix = _checked(path, vectors, layout)
    count, width = matrix.shape
    with atomic_file(path) as file:
        if layout != "glove":
            file.write(f"{count} {width}\n".encode())
        step = max(1, BLOCK // (16 * width))
        for start in range(0, count, step):
            file.write(_encode(words[start : start + step], matrix[start : start + step], layout))


def layout_of(path: str | Path) -> Layout | None:
    """The layout of a word vector file by its first bytes; None for any other file, a folder or what is unreadable."""
    try:
        with open_bytes(Path(path)) as file:
            header = detect_header(file.read(SAMPLE))
    except (KeelError, OSError, *DAMAGED):
        return None
    return header.layout if header is not None and header.certain else None


def _blocks(sample: bytes, file: IO[bytes]) -> Iterator[bytes]:
    yield sample
    while block := file.read(BLOCK):
        yield block


class _Table:
    """The words and vectors read so far."""

    def __init__(self, path: Path, width: int, limit: int):
        self.path = path
        self.limit = limit
        self.words: list[str] = []
        self.seen: set[str] = set()
        self.matrix = np.empty((0, width), np.float32)
        self.duplicates = self.replaced = 0

    @property
    def room(self) -> int:
        """How many more words to read."""
        return self.limit - len(self.words) if self.limit else 1 << 62

    def add(self, words: list[bytes], rows: np.ndarray, place: Callable[[int], str]) -> None:
        """Add words and their vectors; `place(n)` is the position of word n in the file."""
        names = self._decode(words)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            bad = int(finite.argmin())
            what = "contains NaN, infinity or a number too large for float32"
            raise KeelError(f"{place(bad)}: the vector of {names[bad]!r} {what}: remove that word, or train again")
        if "" in names:
            raise KeelError(f"{place(names.index(''))}: the word is empty: remove it, or download the file again")
        if len(set(names)) < len(names) or not self.seen.isdisjoint(names):
            kept = {name: number for number, name in reversed([*enumerate(names)]) if name not in self.seen}
            numbers = sorted(kept.values())
            self.duplicates += len(names) - len(numbers)
            names, rows = [names[number] for number in numbers], rows[numbers]
        start, end = len(self.words), len(self.words) + len(names)
        if end > len(self.matrix):
            self._resize(end + end // 8)
        self.matrix[start:end] = rows
        self.words += names
        self.seen.update(names)

    def finish(self) -> Vectors:
        self._resize(len(self.words))
        return Vectors(self.words, self.matrix)

    def _resize(self, length: int) -> None:
        # In place, so that there are never two matrices in memory; there are no views of it.
        self.matrix.resize((length, self.matrix.shape[1]), refcheck=False)

    def _decode(self, words: list[bytes]) -> list[str]:
        try:
            return [word.decode("utf-8") for word in words]
        except UnicodeDecodeError:
            names = [word.decode("utf-8", "replace") for word in words]
            pairs = zip(names, words, strict=True)
            self.replaced += sum("\ufffd" in name and name.encode() != word for name, word in pairs)
            return names


def _read_text(blocks: Iterator[bytes], table: _Table, header: VectorHeader) -> None:
    first = 2 if header.counted else 1
    number = first  # of the next line
    for text in _whole_lines(blocks, table.path):
        codes = np.frombuffer(text, np.uint8)
        stops = np.append(np.flatnonzero(codes == ord("\n")), len(text))
        starts = np.append(0, stops[:-1] + 1)
        while len(starts) and table.room:
            now = min(len(starts), table.room)
            rows = np.empty((now, header.width), np.float32)
            ends = parse_lines(codes, starts[:now], stops[:now], rows)
            words = [text[start:end] for start, end in zip(starts[:now].tolist(), ends.tolist(), strict=True)]
            for row in np.flatnonzero(ends < 0).tolist():
                line = text[starts[row] : stops[row]]
                words[row] = parse_line(line, rows[row], f"{table.path}:{number + row}")
            table.add(words, rows, lambda row, start=number: f"{table.path}:{start + row}")
            starts, stops, number = starts[now:], stops[now:], number + now
        if not table.room:
            return
    if header.counted and number - first != header.count:
        raise KeelError(
            f"{table.path}:1: the first line says {header.count} words, but {number - first} follow: "
            "download the file again if it is truncated, or else correct that line"
        )


def _whole_lines(blocks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Blocks of whole lines, without the last line's end; empty lines at the end of the file are dropped."""
    rest = b""
    for block in blocks:
        rest += block
        whole = rest[: rest.rfind(b"\n") + 1].rstrip()
        if whole:
            cut = rest.index(b"\n", len(whole))
            yield rest[:cut]
            rest = rest[cut + 1 :]
        elif len(rest) > LONGEST:
            raise KeelError(f"{path} has a line of more than {LONGEST} bytes, so it is no word vector file")
    if rest := rest.rstrip():
        yield rest


def _read_binary(blocks: Iterator[bytes], table: _Table, header: VectorHeader) -> None:
    size = 4 * header.width
    rest = b""
    done = 0
    for block in blocks:
        rest += block
        at = 0
        while at < len(rest) and done < header.count and table.room:
            words: list[bytes] = []
            rows: list[bytes] = []
            wanted = min(header.count - done, table.room)
            while len(words) < wanted and (space := rest.find(b" ", at)) >= 0 and space + 1 + size <= len(rest):
                words.append(rest[at:space].lstrip(b"\n"))  # some writers end each vector with a newline
                at = space + 1 + size
                rows.append(rest[space + 1 : at])
            if not words:
                break
            matrix = np.frombuffer(b"".join(rows), "<f4").reshape(-1, header.width)
            table.add(words, matrix, lambda row, start=done: f"{table.path}, word {start + row + 1}")
            done += len(words)
        if not table.room:
            return
        rest = rest[at:]
        if done == header.count and rest.strip(b"\n"):
            raise KeelError(
                f"{table.path}:1: the first line says {header.count} words of {header.width} numbers, "
                "but more data follows: download the file again, or correct that line"
            )
        if len(rest) > LONGEST:
            raise KeelError(
                f"{table.path}, word {done + 1}: the word has no end; the file is damaged: download it again"
            )
    if done < header.count:
        raise KeelError(
            f"{table.path}:1: the first line says {header.count} words of {header.width} numbers, but the file ends "
            f"after {done}: it is truncated or damaged; download it again"
        )


def _checked(path: Path, vectors: Vectors, layout: str) -> tuple[list[str], np.ndarray]:
    """The words and little-endian numbers to write, if a file can represent them."""
    if layout not in LAYOUTS:
        raise UsageError(f"there is no vector file layout {layout!r}: choose one of {', '.join(LAYOUTS)}")
    if path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2"):
        raise UsageError(
            f"{path}: vectors are written uncompressed: leave out {path.suffix} and compress the file afterwards"
        )
    if not vectors.matrix.size:
        raise KeelError(f"there are no vectors to write to {path}")
    seen: set[str] = set()
    for word in vectors.words:
        if fault := _fault(word, layout):
            raise KeelError(
                f"the word {shortened(word)!r} {fault}, which {LAYOUTS[layout]} cannot represent in {path}: rename it"
            )
        if word in seen:
            raise KeelError(f"the word {shortened(word)!r} is a duplicate: give each word one vector, to write {path}")
        seen.add(word)
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(vectors.matrix, "<f4")
    if not np.isfinite(matrix).all():
        bad = vectors.words[int(np.isfinite(matrix).all(axis=1).argmin())]
        what = "contains NaN, infinity or a number too large for float32"
        raise KeelError(f"the vector of {shortened(bad)!r} {what}: {path} was not written; train again")
    return vectors.words, matrix


def _fault(word: str, layout: str) -> str:
    """Why a word could not be read back."""
    if not word:
        return "is empty"
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return "has a lone surrogate"
    # GloVe's own files have words with spaces; a word is distinct from numbers if no part looks like a number.
    parts = word.split(" ")
    if layout == "glove" and len(parts) > 1 and all(parts) and not is_number(parts[-1]):
        word = "".join(parts)
    return "contains whitespace" if WHITESPACE.search(word) else ""


def _encode(words: list[str], rows: np.ndarray, layout: str) -> bytes:
    if layout == "binary":
        return b"".join(
            b"%b %b\n" % (word.encode("utf-8"), row.tobytes()) for word, row in zip(words, rows, strict=True)
        )
    line = "%s" + " %.9g" * rows.shape[1] + "\n"  # nine digits represent a float32 exactly
    pairs = zip(words, rows.tolist(), strict=True)
    return "".join([line % (word, *row) for word, row in pairs]).encode("utf-8")

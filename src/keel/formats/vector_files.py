"""Word vector files and their formats: word2vec text and binary, GloVe text, fastText's .vec (word2vec text)."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from keel.data.text_files import first_bytes, open_guarded
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.formats.stored_model import Format, StoredModel, Vectors
from keel.formats.vector_lines import (
    LAYOUTS,
    SAMPLE,
    Layout,
    VectorHeader,
    detect_header,
    is_number,
    not_vectors,
    parse_line,
    shortened,
)
from keel.systems.word2vec import Word2vec
from keel.training.checkpoint import atomic_file

BLOCK = 1 << 20
"""Bytes that are read at once."""
FIRST_WORDS = 1 << 22
"""Bytes whose words are read for an outline."""
LONGEST = 1 << 26
"""Bytes of the longest plausible line."""
WHITESPACE = re.compile(r"[ \t\n\r\v\f]")  # what ends a word in these files; other Unicode spaces do not
NOT_FINITE = "contains NaN, infinity or a number too large for float32"


def read_vectors(path: str | Path, on_event: OnEvent = ignore) -> Vectors:
    """Read a word vector file of any layout, compressed or not; the first vector of a repeated word counts.

    Memory: the result and a few blocks of the file.
    """
    path = Path(path)
    with open_guarded(path, "use a file with fewer words") as file:
        sample = file.read(SAMPLE)
        header = _header(path, sample)
        table = _Table(path, header.width)
        blocks = chain([sample[header.start :]], iter(lambda: file.read(BLOCK), b""))
        (_read_binary if header.layout == "binary" else _read_text)(blocks, table, header)
    vectors = table.finish()
    note(on_event, f"{path}: {LAYOUTS[header.layout]}, {len(vectors.words):,} words of {header.width} dimensions")
    if table.duplicates:
        skipped = pluralize(table.duplicates, "duplicate word")
        note(on_event, f"{path}: {skipped} skipped; the first vector of each counts")
    if table.replaced:
        note(on_event, f"{path}: invalid UTF-8 in {pluralize(table.replaced, 'word')} replaced by U+FFFD")
    return vectors


def write_vectors(path: str | Path, vectors: Vectors, *, layout: Layout) -> None:
    """Write vectors losslessly and compare what is read back; a failed write leaves the old file."""
    path = Path(path)
    _check_writable(path, vectors, layout)
    words, matrix = vectors.words, np.ascontiguousarray(vectors.matrix, "<f4")
    count, width = matrix.shape
    with atomic_file(path) as file:
        if layout != "glove":
            file.write(f"{count} {width}\n".encode())
        step = max(1, BLOCK // (16 * width))
        for start in range(0, count, step):
            file.write(_encode(words[start : start + step], matrix[start : start + step], layout))
        file.flush()
        copy = read_vectors(file.name)
        if copy.words != words or not np.array_equal(copy.matrix, matrix):
            raise KeelError(f"{path} was not written: the vectors differ when they are read back: use another format")


def layout_of(path: str | Path) -> Layout | None:
    """The layout of a word vector file by its first bytes; None for any other file, a folder or what is unreadable."""
    header = detect_header(first_bytes(path, SAMPLE))
    return header.layout if header is not None and header.certain and header.plausible else None


def _header(path: Path, sample: bytes) -> VectorHeader:
    """The layout and the sizes of a file that begins with this sample."""
    header = detect_header(sample)
    if header is None:
        raise KeelError(f"{path} {not_vectors(sample)}")
    if not header.plausible:
        what = f"the first line says {header.count} words of {header.width} numbers, which is not plausible"
        raise KeelError(f"{path}:1: {what}: download or copy the file again")
    return header


class _Table:
    """The words and vectors read so far."""

    def __init__(self, path: Path, width: int):
        self.path = path
        self.words: dict[str, None] = {}
        self.matrix = np.empty((0, width), np.float32)
        self.duplicates = self.replaced = 0

    def add(self, words: list[bytes], rows: np.ndarray, place: Callable[[int], str]) -> None:
        """Add words and their vectors; `place(n)` is the position of word n in the file."""
        names = self._decode(words)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            bad = int(finite.argmin())
            what = f"the vector of {names[bad]!r} {NOT_FINITE}"
            raise KeelError(f"{place(bad)}: {what}: remove that word, or train again")
        if "" in names:
            raise KeelError(f"{place(names.index(''))}: the word is empty: remove it, or download the file again")
        if len(set(names)) < len(names) or not self.words.keys().isdisjoint(names):
            kept = {name: number for number, name in reversed([*enumerate(names)]) if name not in self.words}
            numbers = sorted(kept.values())
            self.duplicates += len(names) - len(numbers)
            names, rows = [names[number] for number in numbers], rows[numbers]
        start, end = len(self.words), len(self.words) + len(names)
        if end > len(self.matrix):
            self._resize(end + end // 8)
        self.matrix[start:end] = rows
        self.words |= dict.fromkeys(names)

    def finish(self) -> Vectors:
        self._resize(len(self.words))
        return Vectors([*self.words], self.matrix)

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


def _read_text(blocks: Iterable[bytes], table: _Table, header: VectorHeader) -> None:
    from keel.kernels.number_parsing import POWERS, parse_vectors  # lazily: it imports Numba

    first = 2 if header.count is not None else 1
    number = first  # of the next line
    for text in _whole_lines(blocks, table.path):
        codes = np.frombuffer(text, np.uint8)
        stops = np.append(np.flatnonzero(codes == ord("\n")), len(text))
        starts = np.append(0, stops[:-1] + 1)
        rows = np.empty((len(starts), header.width), np.float32)
        ends = parse_vectors(codes, starts, stops, POWERS, rows)  # -1 where the slower parser is needed
        words = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        for row in np.flatnonzero(ends < 0).tolist():
            words[row] = parse_line(text[starts[row] : stops[row]], rows[row], f"{table.path}:{number + row}")
        table.add(words, rows, lambda row, start=number: f"{table.path}:{start + row}")
        number += len(starts)
    if header.count not in (None, number - first):
        what = f"the first line says {header.count} words, but {number - first} follow"
        remedy = "download the file again if it is truncated, or else correct that line"
        raise KeelError(f"{table.path}:1: {what}: {remedy}")


def _whole_lines(blocks: Iterable[bytes], path: Path) -> Iterator[bytes]:
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


def _read_binary(blocks: Iterable[bytes], table: _Table, header: VectorHeader) -> None:
    size = 4 * header.width
    assert header.count is not None
    stated = f"{table.path}:1: the first line says {header.count} words of {header.width} numbers"
    rest = b""
    done = at = 0
    for block in blocks:
        rest, at = rest[at:] + block, 0
        words: list[bytes] = []
        rows: list[bytes] = []
        while done + len(words) < header.count and 0 <= (space := rest.find(b" ", at)) <= len(rest) - 1 - size:
            words.append(rest[at:space].lstrip(b"\n"))  # some writers end each vector with a newline
            at = space + 1 + size
            rows.append(rest[space + 1 : at])
        if words:
            matrix = np.frombuffer(b"".join(rows), "<f4").reshape(-1, header.width)
            table.add(words, matrix, lambda row, start=done: f"{table.path}, word {start + row + 1}")
            done += len(words)
        if done == header.count and rest[at:].strip(b"\n"):
            raise KeelError(f"{stated}, but more data follows: download the file again, or correct that line")
        if len(rest) - at > LONGEST:
            what = f"word {done + 1}: the word has no end"
            raise KeelError(f"{table.path}, {what}; the file is damaged: download it again")
    if done < header.count:
        raise KeelError(f"{stated}, but the file ends after {done}: it is truncated or damaged; download it again")


def _check_writable(path: Path, vectors: Vectors, layout: Layout) -> None:
    """Refuse words and vectors that a file cannot represent."""
    if path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2"):
        what = f"vectors are written uncompressed: leave out {path.suffix} and compress the file afterwards"
        raise UsageError(f"{path}: {what}")
    if not vectors.matrix.size:
        raise KeelError(f"there are no vectors to write to {path}")
    seen: set[str] = set()
    for word in vectors.words:
        if fault := _fault(word, layout):
            what = f"the word {shortened(word)!r} {fault}, which {LAYOUTS[layout]} cannot represent in {path}"
            raise KeelError(f"{what}: rename it")
        if word in seen:
            raise KeelError(f"the word {shortened(word)!r} is a duplicate: give each word one vector, to write {path}")
        seen.add(word)
    finite = np.isfinite(vectors.matrix).all(axis=1)
    if not finite.all():
        bad = shortened(vectors.words[int(finite.argmin())])
        raise KeelError(f"the vector of {bad!r} {NOT_FINITE}: {path} was not written; train again")


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


def stored_vectors(vectors: Vectors) -> StoredModel:
    """Word vectors as a model without context."""
    tokenizer = Tokenizer.from_words(vectors.words)
    weights = torch.zeros(len(tokenizer), vectors.matrix.shape[1])  # special tokens stay zero
    weights[[tokenizer.id_of(word) for word in vectors.words]] = torch.from_numpy(vectors.matrix)
    return StoredModel(
        system=Word2vec(width=vectors.matrix.shape[1]),
        tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        tensors={"encoder.words.weight": weights},
    )


def read_as_model(path: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> StoredModel:
    """Read a word vector file as a model."""
    return stored_vectors(read_vectors(path, on_event))


def read_outline(path: Path) -> StoredModel:
    """The sizes of a word vector file and its first words. Files of GloVe do not say how many words they have: their
    lines are counted."""
    with open_guarded(path, "use a file with fewer words") as file:
        sample = file.read(FIRST_WORDS)
        header = _header(path, sample[:SAMPLE])
        tokenizer = Tokenizer.from_words(_first_words(sample, header))
        count = header.count
        if count is None:
            count = sample.count(b"\n") + sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
    vocab_size = max(count + len(tokenizer.special_ids), len(tokenizer))
    return StoredModel(
        system=Word2vec(width=header.width),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        tensors={"encoder.words.weight": torch.empty(vocab_size, header.width, device="meta")},
    )


def _first_words(sample: bytes, header: VectorHeader) -> list[str]:
    """The distinct words whose vectors are whole in the first bytes of a file."""
    words: list[bytes] = []
    if header.layout == "binary":
        at = header.start
        while 0 <= (space := sample.find(b" ", at)) < len(sample) - 4 * header.width:
            words.append(sample[at:space].lstrip(b"\n"))
            at = space + 1 + 4 * header.width
    else:
        lines = sample[header.start :].split(b"\n")
        words = [parts[0] for line in lines if len(parts := line.rsplit(None, header.width)) > header.width]
    return [*dict.fromkeys(word.decode("utf-8", "replace") for word in words if word)]


def _write(layout: Layout, path: Path, stored: StoredModel, overwrite: bool = False) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists: choose another file, or pass --overwrite to replace it")
    write_vectors(path, stored.word_vectors(), layout=layout)


def _format(layout: Layout, *suffixes: str) -> Format:
    return Format(
        name=LAYOUTS[layout],
        detect=lambda path: layout_of(path) == layout,
        read=read_as_model,
        outline=read_outline,
        write=partial(_write, layout),
        system=lambda path: Word2vec,
        suffixes=suffixes,
        read_vectors=read_vectors,
    )


WORD2VEC_TEXT = _format("text", ".txt", ".vec")
WORD2VEC_BINARY = _format("binary", ".bin")
GLOVE_TEXT = _format("glove", ".glove")

"""Files of word vectors, both ways: word2vec text and binary, GloVe text, fastText's .vec (which is word2vec text)."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from keel.data.text_files import DAMAGED, open_bytes
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.formats.model_folder import written
from keel.formats.vector_lines import is_number, numbers_at_end, parse_lines, parse_odd_line, shortened

SAMPLE = 1 << 18
"""How many bytes are looked at to find out the form."""
BLOCK = 1 << 20
"""How many bytes are read at once."""
LONGEST = 1 << 26
"""No line is longer, in bytes; what has none shorter is not text."""
WIDEST = 1 << 20
"""No vector is wider; a header that says so is damage."""

FORMS = {"text": "word2vec text", "binary": "word2vec binary", "glove": "GloVe text"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")
BLANKS = re.compile(r"[ \t\n\r\v\f]")  # what ends a word in these files; other scripts' spaces do not


@dataclass(frozen=True)
class Vectors:
    """Words, each once, and the vector of each."""

    words: list[str]
    matrix: np.ndarray
    """[words, width] float32"""

    def __post_init__(self) -> None:
        assert self.matrix.ndim == 2
        assert len(self.words) == len(self.matrix)


def read_vectors(path: str | Path, *, most: int = 0, on_event: OnEvent = ignore) -> Vectors:
    """Read a file of vectors, compressed or not, all of it or the first `most` words; its form is found out and said.

    Of a word that comes twice the first vector is kept. Memory is what is returned and a few blocks of the file.
    """
    path = Path(path)
    if most < 0:
        raise UsageError(f"cannot read the first {most} words of {path}: say how many, or 0 for all")
    try:
        with open_bytes(path) as file:
            sample = file.read(SAMPLE)
            form = _sniff(sample)
            if form is None:
                raise KeelError(f"{path} {_no_vectors(sample)}")
            if form.header and not (form.count > 0 and 0 < form.width <= WIDEST):
                raise KeelError(
                    f"{path}:1: the first line says {form.count} words of {form.width} numbers, "
                    "which no vectors are: get the file again"
                )
            table = _Table(path, form.width, most)
            blocks = _blocks(sample[form.start :], file)
            if form.kind == "binary":
                _read_binary(blocks, table, form)
            else:
                _read_text(blocks, table, form)
    except DAMAGED as error:
        raise KeelError(f"{path} is damaged or cut short ({error}): fetch or compress it again") from None
    except OSError as error:
        raise KeelError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise KeelError(f"{path} does not fit into memory: read only its first words") from None
    vectors = table.finish()
    note(on_event, f"{path} is {FORMS[form.kind]}: {len(vectors.words)} words of {form.width} numbers")
    if table.duplicates:
        note(on_event, f"{path}: {counted(table.duplicates, 'word')} came again; the first vector of each was kept")
    if table.replaced:
        what = f"{counted(table.replaced, 'word is', 'words are')} not UTF-8"
        note(on_event, f"{path}: {what}; what was wrong in them became U+FFFD")
    return vectors


def write_vectors(path: str | Path, vectors: Vectors, *, form: Literal["text", "binary", "glove"]) -> None:
    """Write vectors so that reading gives them back to the bit; a write that fails leaves what was there."""
    path = Path(path)
    words, matrix = _checked(path, vectors, form)
    count, width = matrix.shape
    with written(path) as file:
        if form != "glove":
            file.write(f"{count} {width}\n".encode())
        step = max(1, BLOCK // (16 * width))
        for start in range(0, count, step):
            file.write(_encode(words[start : start + step], matrix[start : start + step], form))


def looks_like_vectors(path: str | Path) -> bool:
    """Whether the first bytes are those of a file of vectors; a folder or what cannot be read is none."""
    return bool(form_of(path))


def form_of(path: str | Path) -> str:
    """The name of a file's form by its first bytes, empty if it is no file of vectors."""
    try:
        with open_bytes(Path(path)) as file:
            form = _sniff(file.read(SAMPLE))
    except (KeelError, OSError, *DAMAGED):
        return ""
    return FORMS[form.kind] if form is not None and form.sure else ""


@dataclass(frozen=True, kw_only=True)
class _Form:
    kind: Literal["text", "binary", "glove"]
    width: int
    start: int
    """Where the first word begins, in bytes."""
    sure: bool
    """Whether more than the first line speaks for it."""
    count: int = 0
    """How many words the header says there are."""

    @property
    def header(self) -> bool:
        return self.kind != "glove"


def _sniff(sample: bytes) -> _Form | None:
    """Find out the form by a file's first bytes; none if they are no vectors."""
    mark = len(BYTE_ORDER_MARK) if sample.startswith(BYTE_ORDER_MARK) else 0
    first, _, _ = sample[mark:].partition(b"\n")
    if header := HEADER.fullmatch(first):
        count, width = map(int, header.groups())
        start = min(mark + len(first) + 1, len(sample))
        runs = _runs(sample, start)
        plausible = count > 0 and 0 < width <= WIDEST
        if (runs and 2 * sum(run > 0 for run in runs) >= len(runs)) or _is_text(sample[start:]):
            return _Form(kind="text", count=count, width=width, start=start, sure=plausible and width in runs)
        return _Form(kind="binary", count=count, width=width, start=start, sure=plausible)
    runs = _runs(sample, mark)
    ((width, times),) = Counter(runs).most_common(1) or ((0, 0),)
    if width == 0 or 2 * times < len(runs):
        return None
    return _Form(kind="glove", width=width, start=mark, sure=width > 1)  # prose may well have lines that end in numbers


def _runs(sample: bytes, start: int) -> list[int]:
    """How many numbers stand at the end of each of the first lines, after a word."""
    end = sample.rfind(b"\n") if len(sample) >= SAMPLE else len(sample)  # the last line may be cut off
    lines = sample[start : max(start, end)].split(b"\n", 100)[:100]
    return [numbers_at_end(line.split()) for line in lines if line.strip()]


def _is_text(sample: bytes) -> bool:
    """Whether there is nothing that only a binary file holds; the end may be cut within a letter."""
    if CONTROLS.search(sample):
        return False
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(sample) - 4 and error.reason == "unexpected end of data"
    return True


def _no_vectors(sample: bytes) -> str:
    if not sample.strip():
        return "is empty: give a file of word vectors"
    forms = "word2vec text or binary, GloVe text, fastText .vec"
    return f"is no file of word vectors ({forms}): its lines are no words with numbers after them; give another file"


def _blocks(sample: bytes, file: IO[bytes]) -> Iterator[bytes]:
    yield sample
    while block := file.read(BLOCK):
        yield block


class _Table:
    """The words and vectors read so far."""

    def __init__(self, path: Path, width: int, most: int):
        self.path = path
        self.most = most
        self.words: list[str] = []
        self.seen: set[str] = set()
        self.matrix = np.empty((0, width), np.float32)
        self.duplicates = self.replaced = 0

    @property
    def room(self) -> int:
        """How many more words are wanted."""
        return self.most - len(self.words) if self.most else 1 << 62

    def add(self, words: list[bytes], rows: np.ndarray, place: Callable[[int], str]) -> None:
        """Take words with their rows; `place` says where the one of that number stands."""
        names = self._decode(words)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            bad = int(finite.argmin())
            what = "holds a number that is NaN, infinite or too large"
            raise KeelError(f"{place(bad)}: the vector of {names[bad]!r} {what}: remove that word, or train again")
        if "" in names:
            raise KeelError(f"{place(names.index(''))}: the word is empty: remove it, or get the file again")
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
        # In place: the system moves pages, not bytes, so there are never two matrices. Nobody holds a view of it.
        self.matrix.resize((length, self.matrix.shape[1]), refcheck=False)

    def _decode(self, words: list[bytes]) -> list[str]:
        try:
            return [word.decode("utf-8") for word in words]
        except UnicodeDecodeError:
            names = [word.decode("utf-8", "replace") for word in words]
            pairs = zip(names, words, strict=True)
            self.replaced += sum("\ufffd" in name and name.encode() != word for name, word in pairs)
            return names


def _read_text(blocks: Iterator[bytes], table: _Table, form: _Form) -> None:
    first = 2 if form.header else 1
    number = first  # of the next line
    for text in _whole_lines(blocks, table.path):
        codes = np.frombuffer(text, np.uint8)
        stops = np.append(np.flatnonzero(codes == ord("\n")), len(text))
        starts = np.append(0, stops[:-1] + 1)
        while len(starts) and table.room:
            now = min(len(starts), table.room)
            rows = np.empty((now, form.width), np.float32)
            ends = parse_lines(codes, starts[:now], stops[:now], rows)
            words = [text[start:end] for start, end in zip(starts[:now].tolist(), ends.tolist(), strict=True)]
            for odd in np.flatnonzero(ends < 0).tolist():
                line = text[starts[odd] : stops[odd]]
                words[odd] = parse_odd_line(line, rows[odd], f"{table.path}:{number + odd}")
            table.add(words, rows, lambda row, start=number: f"{table.path}:{start + row}")
            starts, stops, number = starts[now:], stops[now:], number + now
        if not table.room:
            return
    if form.header and number - first != form.count:
        raise KeelError(
            f"{table.path}:1: the first line says {form.count} words, but {number - first} follow: "
            "get the file again if it was cut short, or else correct that line"
        )


def _whole_lines(blocks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The text in pieces that end with a line, without that line's end; blank lines at the end are dropped."""
    rest = b""
    for block in blocks:
        rest += block
        whole = rest[: rest.rfind(b"\n") + 1].rstrip()
        if whole:
            cut = rest.index(b"\n", len(whole))
            yield rest[:cut]
            rest = rest[cut + 1 :]
        elif len(rest) > LONGEST:
            raise KeelError(f"{path} has a line of more than {LONGEST} bytes, as no file of vectors has: get it again")
    if rest := rest.rstrip():
        yield rest


def _read_binary(blocks: Iterator[bytes], table: _Table, form: _Form) -> None:
    size = 4 * form.width
    rest = b""
    done = 0
    for block in blocks:
        rest += block
        at = 0
        while at < len(rest) and done < form.count and table.room:
            words: list[bytes] = []
            rows: list[bytes] = []
            wanted = min(form.count - done, table.room)
            while len(words) < wanted and (space := rest.find(b" ", at)) >= 0 and space + 1 + size <= len(rest):
                words.append(rest[at:space].lstrip(b"\n"))  # some writers end each vector with a newline
                at = space + 1 + size
                rows.append(rest[space + 1 : at])
            if not words:
                break
            matrix = np.frombuffer(b"".join(rows), "<f4").reshape(-1, form.width)
            table.add(words, matrix, lambda row, start=done: f"{table.path}, word {start + row + 1}")
            done += len(words)
        if not table.room:
            return
        rest = rest[at:]
        if done == form.count and rest.strip(b"\n"):
            raise KeelError(
                f"{table.path}:1: the first line says {form.count} words of {form.width} numbers, "
                "but more follows them: get the file again, or correct that line"
            )
        if len(rest) > LONGEST:
            raise KeelError(f"{table.path}, word {done + 1}: the word has no end; the file is damaged: get it again")
    if done < form.count:
        raise KeelError(
            f"{table.path}:1: the first line says {form.count} words of {form.width} numbers, but the file ends "
            f"after {done}: it was cut short or damaged; get it again"
        )


def _checked(path: Path, vectors: Vectors, form: str) -> tuple[list[str], np.ndarray]:
    """The words and little-endian numbers to write, if a file can hold them."""
    if form not in FORMS:
        raise UsageError(f"there is no form {form!r} of vector files: choose one of {', '.join(FORMS)}")
    if path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2"):
        raise UsageError(f"{path}: vectors are written plain: leave out {path.suffix} and compress the file afterwards")
    if not vectors.matrix.size:
        raise KeelError(f"there are no vectors to write to {path}")
    seen: set[str] = set()
    for word in vectors.words:
        if fault := _fault(word, form):
            raise KeelError(
                f"the word {shortened(word)!r} {fault}, which {path} cannot hold as {FORMS[form]}: rename it"
            )
        if word in seen:
            raise KeelError(f"the word {shortened(word)!r} is there twice: give each word one vector, to write {path}")
        seen.add(word)
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(vectors.matrix, "<f4")
    if not np.isfinite(matrix).all():
        bad = vectors.words[int(np.isfinite(matrix).all(axis=1).argmin())]
        what = "holds a number that is NaN, infinite or too large"
        raise KeelError(f"the vector of {shortened(bad)!r} {what}: {path} was not written; train again")
    return vectors.words, matrix


def _fault(word: str, form: str) -> str:
    """What hinders a word from being read again."""
    if not word:
        return "is empty"
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return "has half a letter (a lone surrogate)"
    # GloVe's own files have words with spaces; they can be told from numbers as long as no part looks like one.
    parts = word.split(" ")
    if form == "glove" and len(parts) > 1 and all(parts) and not is_number(parts[-1]):
        word = "".join(parts)
    return "has a space or line end in it" if BLANKS.search(word) else ""


def _encode(words: list[str], rows: np.ndarray, form: str) -> bytes:
    if form == "binary":
        return b"".join(
            b"%b %b\n" % (word.encode("utf-8"), row.tobytes()) for word, row in zip(words, rows, strict=True)
        )
    line = "%s" + " %.9g" * rows.shape[1] + "\n"  # nine figures give a float32 back to the bit
    pairs = zip(words, rows.tolist(), strict=True)
    return "".join([line % (word, *row) for word, row in pairs]).encode("utf-8")

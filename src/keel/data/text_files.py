"""Text files as a stream: compression, encodings, invalid bytes."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from keel.errors import KeelError, MissingExtra
from keel.events import OnEvent, ignore, note, pluralize

File = TypeVar("File", bound=IO[Any])

SAMPLE = 1 << 22
"""Bytes to detect the encoding from."""

MOST_FAULTS = 0.2
"""Maximum share of invalid characters: French in Latin-1 has a twentieth, random bytes half."""

TABLES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
DAMAGED = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)

SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """The text without lone surrogates, which no encoding can represent: pairs are joined, others become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def replace_all_surrogates(texts: list[str]) -> list[str]:
    """The texts without lone surrogates; the same list if there are none, which is fast to check."""
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        return list(map(replace_surrogates, texts))
    return texts


def file_kind(path: Path) -> str:
    """Kind of a file by its name: csv, tsv, jsonl, parquet or txt, compressed or not."""
    suffixes = [suffix for suffix in path.suffixes if suffix.lower() not in (".gz", ".xz", ".zst", ".bz2")]
    return TABLES.get(suffixes[-1].lower(), "txt") if suffixes else "txt"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a plain, gz, xz, zst or bz2 file, detected by its first bytes."""
    if path.is_dir():
        raise KeelError(f"{path} is a folder: name the files in it, for example '{path}/*.txt'")
    try:
        with open(path, "rb") as file:
            magic = file.read(6)
    except FileNotFoundError:
        raise KeelError(f"there is no file {path}: check the name and the current folder") from None
    except OSError as error:
        raise KeelError(f"{path} cannot be read ({error.strerror}): check its name, and that you may read it") from None
    if magic[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic == b"\xfd7zXZ\x00":
        return lzma.open(path, "rb")
    if magic[:3] == b"BZh":
        return bz2.open(path, "rb")
    if magic[:4] == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("zstandard", "data", f"reading {path}") from None
        return io.BufferedReader(_Zstandard(path, zstandard.ZstdDecompressor().decompressobj), 1 << 20)
    return open(path, "rb", buffering=1 << 20)


@contextmanager
def open_guarded(path: Path, too_large: str) -> Iterator[IO[bytes]]:
    """`open_bytes` that reports errors of reading; `too_large` is the remedy if the file does not fit into memory."""
    try:
        with open_bytes(path) as file:
            yield file
    except DAMAGED as error:
        raise KeelError(f"{path} is damaged or truncated ({error}): download or compress it again") from None
    except OSError as error:
        raise KeelError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise KeelError(f"{path} does not fit into memory: {too_large}") from None


def first_bytes(path: str | Path, count: int) -> bytes:
    """The first bytes of a file, compressed or not; none of a folder or of what is unreadable."""
    try:
        with open_bytes(Path(path)) as file:
            return file.read(count)
    except (KeelError, OSError, *DAMAGED):
        return b""


class _Zstandard(io.RawIOBase):
    """A zst file as bytes; unlike the library's own reader it notices when the file ends inside a frame."""

    def __init__(self, path: Path, new_frame: Callable[[], Any]):
        self.file = open(path, "rb")  # noqa: SIM115 (closed below)
        self.new_frame = new_frame
        self.frame: Any = None
        self.ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            compressed = self.file.read(1 << 17)
            if not compressed:
                if self.frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            self.frame = self.frame or self.new_frame()
            self.ready = self.frame.decompress(compressed)
            if self.frame.eof:
                self.file.seek(-len(self.frame.unused_data), io.SEEK_CUR)  # there the next frame starts
                self.frame = None
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def detect_encoding(sample: bytes) -> str:
    """Detect the encoding: by the byte order mark, else UTF-8, else GB18030 if it looks like Chinese."""
    for bom, encoding in BOMS.items():
        if sample.startswith(bom):
            return encoding
    high = len(sample) - len(sample.translate(None, bytes(range(128, 256))))
    faults = sample.decode("utf-8", "replace").count("\ufffd") - sample.count(b"\xef\xbf\xbd")
    if faults * 10 <= high:
        return "utf-8"
    # Latin-1 and its like also fail as UTF-8, but there a high byte seldom follows another.
    pairs = len(re.findall(rb"[\xa1-\xf7][\xa1-\xfe]", sample))
    return "gb18030" if pairs * 4 >= high else "utf-8"


class TextFile:
    """A text file as a stream of lines; invalid bytes are replaced, counted, and reported at the end."""

    def __init__(self, path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, name: str = ""):
        self.path = Path(path)
        self.name = name or str(path)
        self.on_event = on_event
        with self._reading(open_bytes(self.path)) as file:
            sample = file.read(SAMPLE)
        self.has_bom = sample.startswith(b"\xef\xbb\xbf")
        self.encoding = detect_encoding(sample) if encoding == "auto" else encoding
        try:
            sample[:4].decode(self.encoding, "replace")
        except LookupError:
            raise KeelError(f"there is no encoding {encoding!r}: try utf-8, gb18030, utf-16 or latin-1") from None
        wide = self.encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32"))
        if not wide and sample.count(0) * 20 > len(sample):
            what = "is full of" if sample.count(0) * 2 > len(sample) else "holds"
            raise KeelError(f"{self.name} is not text (it {what} NUL bytes): give text, or say --encoding utf-16")
        self._errors = "replace" if wide else "surrogateescape"
        text = sample.decode(self.encoding, self._errors)
        sound = not wide and replace_surrogates(text) is text  # which is seen at once
        faults = 0 if sound else text.count("\ufffd") if wide else len(SURROGATES.findall(text))
        if faults > MOST_FAULTS * len(text):
            share = f"{faults / len(text):.0%} of it is not {self.encoding}"
            raise KeelError(f"{self.name} is not text, or in another encoding ({share}): give text, or say --encoding")
        if encoding == "auto" and self.encoding != "utf-8":
            note(on_event, f"{self.name} is read as {self.encoding} (say --encoding to change that)")

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Every line with its number, from 1."""
        for number, line in self.line_chunks(-1):
            yield number, line.removesuffix("\n")

    def lines(self) -> list[str]:
        """All lines at once, much faster."""
        with self._reading(self._open()) as text:
            whole = text.read()
        if "\0" in whole or replace_surrogates(whole) is not whole:
            return [line for _, line in self]  # which counts the faults and says where they are
        return whole.removesuffix("\n").split("\n") if whole else []

    def _open(self) -> io.TextIOWrapper:
        raw = open_bytes(self.path)
        if self.has_bom:
            raw.read(3)
        return io.TextIOWrapper(raw, encoding=self.encoding, errors=self._errors)

    def line_chunks(self, limit: int) -> Iterator[tuple[int, str]]:
        """Every line with its number and line end, in chunks of at most `limit` characters."""
        number = 1
        faults = nulls = 0
        first_fault = first_null = 0
        with self._reading(self._open()) as text:
            while line := text.readline(limit):
                if not line.isascii() and SURROGATES.search(line):
                    first_fault = first_fault or number
                    line, count = SURROGATES.subn("\ufffd", line)
                    faults += count
                if "\0" in line:
                    first_null = first_null or number
                    nulls += line.count("\0")
                    line = line.replace("\0", "")
                ends = line.endswith("\n")
                yield number, line
                number += ends
        if faults:
            what = f"{pluralize(faults, 'byte is', 'bytes are')} not {self.encoding}, replaced by U+FFFD, first here"
            note(self.on_event, f"{self.name}:{first_fault}: {what} (is it another encoding? say --encoding)")
        if nulls:
            what = pluralize(nulls, "NUL character was", "NUL characters were")
            note(self.on_event, f"{self.name}:{first_null}: {what} dropped, the first here")

    @contextmanager
    def _reading(self, file: File) -> Iterator[File]:
        try:
            with file:
                yield file
        except DAMAGED as error:
            what = f"{self.name} is damaged or cut short ({error})"
            raise KeelError(f"{what}: fetch or compress it again") from None


def open_text(path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore) -> TextFile:
    """Open any plain or compressed text file; iterating gives (line number, line)."""
    return TextFile(path, encoding, on_event)

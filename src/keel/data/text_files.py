"""Text files as a stream: compression, encodings, invalid bytes."""

import bz2
import gzip
import io
import lzma
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from keel.data.text_encodings import (
    SURROGATES,
    better_east_asian,
    declared_encoding,
    detect_encoding,
    evident_encoding,
    is_wide,
    likely_encoding,
    replace_surrogates,
)
from keel.errors import KeelError, MissingExtra
from keel.events import OnEvent, ignore, note, pluralize
from keel.localization import gettext_noop

File = TypeVar("File", bound=IO[Any])

SAMPLE = 1 << 22
"""Bytes to detect the encoding from."""

MOST_FAULTS = 0.2
"""Maximum share of invalid characters: French in Latin-1 has a twentieth, random bytes half."""

TABLES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
          ".xlsx": "xlsx"}  # fmt: skip
DAMAGED = (EOFError, lzma.LZMAError, zlib.error, OSError)
"""Errors of reading a file that is damaged or truncated; bz2 and gzip raise a plain OSError."""

MAX_LINE = 5_000_000
"""Characters of a line or field that are read at once: more than the Bible has. Raw text has no such limit."""

MAX_DOCUMENT = 200_000_000
"""Characters of a document that is read as a whole."""

MAX_EXPANSION, LEAST_EXPANDED = 200, 100_000_000
"""A compressed file is refused if it has more characters than both this multiple of its size and this number.
Text compresses to a third or a tenth of its size."""

PER_LINE = 60
"""What a line that is held takes beside its characters, counted in characters."""


def file_kind(path: Path) -> str:
    """Kind of a file by its name: csv, tsv, jsonl, parquet, xlsx or txt, compressed or not."""
    return TABLES.get(file_suffix(path), "txt")


def file_suffix(path: Path) -> str:
    """The suffix of a file in lower case, without that of compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in (".gz", ".xz", ".zst", ".bz2")), "")


def unreadable(name: str | Path, error: Exception) -> KeelError:
    """The error for a file that cannot be read: by an error of the system, or because its contents are damaged."""
    if isinstance(error, OSError) and error.errno:
        return KeelError(f"{name} cannot be read ({error.strerror}): check its name, and that you may read it")
    return KeelError(f"{name} is damaged or truncated ({error}): download or compress it again")


def no_such_encoding(name: str) -> KeelError:
    """The error for an unknown encoding."""
    return KeelError(f"there is no encoding {name!r}: try utf-8, gb18030, cp1252 or utf-16")


def invalid_text(location: str, encoding: str, line: str = "") -> KeelError:
    """The error for text that is not in the expected encoding; invalid bytes of the line are surrogate escapes."""
    likely = likely_encoding(line.encode("utf-8", "surrogateescape")) if encoding == "utf-8" else ""
    what = f"this text is not valid {encoding}" + (f" but probably {likely}" if likely else "")
    remedy = f"use --encoding {likely}" if likely else "use --encoding NAME"
    return KeelError(f"{location}: {what}: {remedy} (--encoding {encoding} replaces invalid bytes)")


def long_field(location: str, kind: str = "line") -> KeelError:
    """The error for a line or field above MAX_LINE."""
    what = f"this {gettext_noop(kind)} has more than {MAX_LINE:,} characters"
    return KeelError(f"{location}: {what}: split it, or check whether line breaks were lost")


def refuse_special_file(path: Path) -> None:
    """Refuse a folder, and a pipe or device: files are read more than once."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # reported when it is opened
    if stat.S_ISDIR(mode):
        raise KeelError(f"{path} is a folder: name the files in it, for example '{path}/*.txt'")
    if not stat.S_ISREG(mode):
        raise KeelError(f"{path} is a pipe or a device, not a file: save its text to a file, or give - for stdin")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a plain, gz, xz, zst or bz2 file, detected by its first bytes."""
    refuse_special_file(path)
    try:
        with open(path, "rb") as file:
            magic = file.read(6)
    except FileNotFoundError:
        raise KeelError(f"there is no file {path}: check the name and the current folder") from None
    except ValueError:
        raise KeelError(f"{str(path)!r} is no file name (it contains a NUL): check the name") from None
    except OSError as error:
        raise unreadable(path, error) from None
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
        new_frame = zstandard.ZstdDecompressor().decompressobj
        return io.BufferedReader(_Zstandard(path, new_frame, zstandard.ZstdError), 1 << 20)
    return open(path, "rb", buffering=1 << 20)


@contextmanager
def open_guarded(path: Path, too_large: str) -> Iterator[IO[bytes]]:
    """`open_bytes` that reports errors of reading; `too_large` is the remedy if the file does not fit into memory."""
    try:
        with open_bytes(path) as file:
            yield file
    except DAMAGED as error:
        raise unreadable(path, error) from None
    except MemoryError:
        raise KeelError(f"{path} does not fit into memory: {too_large}") from None


def first_bytes(path: str | Path, count: int) -> bytes:
    """The first bytes of a file, compressed or not; none of a folder or of what is unreadable."""
    try:
        with open_bytes(Path(path)) as file:
            return file.read(count)
    except (KeelError, *DAMAGED):
        return b""


class _Zstandard(io.RawIOBase):
    """A zst file as bytes; unlike the library's own reader it notices when the file ends inside a frame."""

    def __init__(self, path: Path, new_frame: Callable[[], Any], error: type[Exception]):
        self.file = open(path, "rb")  # noqa: SIM115 (closed below)
        self.new_frame, self.error = new_frame, error
        self.frame: Any = None
        self.ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            compressed = self.file.read(1 << 12)  # which may become 32,768 times as much
            if not compressed:
                if self.frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            self.frame = self.frame or self.new_frame()
            try:
                self.ready = memoryview(self.frame.decompress(compressed))
            except self.error as error:
                raise EOFError(str(error)) from None
            if self.frame.eof:
                self.file.seek(-len(self.frame.unused_data), io.SEEK_CUR)  # there the next frame starts
                self.frame = None
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class TextFile:
    """A text file as a stream of lines.

    Without a given encoding, text that is not valid is refused; with one, invalid bytes are replaced, counted, and
    reported at the end.
    """

    def __init__(self, path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, name: str = ""):
        self.path = Path(path)
        self.name = name or str(path)
        self.on_event = on_event
        self.strict = encoding == "auto"
        with self._reading(open_bytes(self.path)) as file:
            sample = file.read(SAMPLE)
        self.has_bom = sample.startswith(b"\xef\xbb\xbf")
        try:
            self.encoding = detect_encoding(sample) if self.strict else declared_encoding(encoding)
            wide = is_wide(self.encoding)
            sample[:4].decode(self.encoding, "replace")
        except LookupError:
            raise no_such_encoding(encoding) from None
        if not self.strict and (evident := evident_encoding(sample, self.encoding)):
            raise KeelError(f"{self.name} is {evident}, not {encoding}: leave out --encoding")
        if not wide and sample.count(0) * 20 > len(sample):
            what = "is full of" if sample.count(0) * 2 > len(sample) else "holds"
            likely = likely_encoding(sample) or "utf-16"
            raise KeelError(f"{self.name} is not text (it {what} NUL bytes): give text, or use --encoding {likely}")
        self._errors = "surrogateescape" if not wide else "strict" if self.strict else "replace"
        text = sample.decode(self.encoding, "replace" if wide else self._errors)
        sound = not wide and replace_surrogates(text) is text  # which is seen at once
        faults = 0 if sound else text.count("\ufffd") if wide else len(SURROGATES.findall(text))
        if faults > MOST_FAULTS * len(text):
            share = f"{faults / len(text):.0%} of it is not {self.encoding}"
            likely = "" if wide else likely_encoding(sample)
            what = f"{self.name} is not text, or in another encoding{f', probably {likely}' if likely else ''}"
            raise KeelError(f"{what} ({share}): give text, or use --encoding {likely or 'NAME'}")
        if self.strict and self.encoding != "utf-8":
            note(on_event, f"{self.name} is read as {self.encoding} (change with --encoding)")
        elif not self.strict and (better := better_east_asian(sample, self.encoding)):
            note(
                on_event, f"{self.name} looks like {better}, not {encoding}: if it is garbled, use --encoding {better}"
            )

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Every line with its number, from 1; a line above MAX_LINE is refused."""
        return self.numbered_lines()

    def numbered_lines(self, *, cut: bool = False, streamed: bool = False) -> Iterator[tuple[int, str]]:
        """Every line with its number; a line above MAX_LINE is refused or, with `cut`, ends there with a note.

        A caller that does not hold the lines says so by `streamed`: then a compressed file may expand to any size.
        """
        cuts: list[int] = []
        size = 0
        for number, line, complete in self._chunks(MAX_LINE + 1):
            if cuts and cuts[-1] == number:
                continue  # the rest of a line that is cut
            if not complete:
                cuts.append(number)
                if not cut:
                    raise long_field(f"{self.name}:{number}")
            size += len(line) + PER_LINE
            if size > LEAST_EXPANDED and not streamed:
                self._refuse_expansion(size)
            yield number, line[:MAX_LINE].removesuffix("\n")
        if cuts:
            what = pluralize(len(cuts), "line has", "lines have")
            what += f" more than {MAX_LINE:,} characters, first here; the rest of such a line is left out"
            note(self.on_event, f"{self.name}:{cuts[0]}: {what}")

    def lines(self, *, cut: bool = False) -> list[str]:
        """All lines at once, much faster; a line above MAX_LINE as in `numbered_lines`."""
        lines = [""]
        size = 0
        with self._reading(self._open()) as text:
            while block := self._decoded(text.read, SAMPLE, len(lines)):
                parts = (lines.pop() + block).split("\n")
                lines += parts
                size += len(block) + PER_LINE * len(parts)
                self._refuse_expansion(size)
                odd = "\0" in block or "\ufeff" in block or replace_surrogates(block) is not block
                if odd or max(map(len, parts)) > MAX_LINE:
                    break
            else:
                return lines if lines[-1] else lines[:-1]
        return [line for _, line in self.numbered_lines(cut=cut)]  # which counts the faults and says where they are

    def _refuse_expansion(self, size: int) -> None:
        compressed = self.path.stat().st_size
        if size > max(LEAST_EXPANDED, MAX_EXPANSION * compressed):
            what = f"{compressed:,} bytes expand to more than {size // 10**6:,} MB in memory"
            raise KeelError(f"{self.name}: {what}, {MAX_EXPANSION} times as much: if you trust it, decompress it first")

    def document(self) -> str:
        """The whole text, for a format that cannot be read in parts."""
        parts: list[str] = []
        size = 0
        for _, chunk in self.line_chunks(SAMPLE):
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_DOCUMENT:
                raise KeelError(f"{self.name} has more than {MAX_DOCUMENT:,} characters: split it into several files")
        return "".join(parts)

    def line_chunks(self, limit: int) -> Iterator[tuple[int, str]]:
        """Every line with its number and line end, in chunks of at most `limit` characters."""
        return ((number, chunk) for number, chunk, _ in self._chunks(limit))

    def _open(self) -> io.TextIOWrapper:
        raw = open_bytes(self.path)
        if self.has_bom:
            raw.read(3)
        return io.TextIOWrapper(raw, encoding=self.encoding, errors=self._errors)

    def _chunks(self, limit: int) -> Iterator[tuple[int, str, bool]]:
        """Chunks of lines as in `line_chunks`, each with whether its line ends with it."""
        number = 1
        faults = nulls = 0
        first_fault = first_null = 0
        begins = True
        with self._reading(self._open()) as text:
            while line := self._decoded(text.readline, limit, number):
                ends = line.endswith("\n")
                complete = ends or len(line) < limit
                if begins and line[0] == "\ufeff":  # a byte order mark, in the middle where files were concatenated
                    line = line.lstrip("\ufeff")
                begins = ends
                if not line.isascii() and SURROGATES.search(line):
                    if self.strict:
                        raise invalid_text(f"{self.name}:{number}", self.encoding, line)
                    first_fault = first_fault or number
                    line, count = SURROGATES.subn("\ufffd", line)
                    faults += count
                if "\0" in line:
                    first_null = first_null or number
                    nulls += line.count("\0")
                    line = line.replace("\0", "")
                yield number, line, complete
                number += ends
        if faults:
            what = f"{pluralize(faults, 'byte is', 'bytes are')} not {self.encoding}, replaced by U+FFFD, first here"
            note(self.on_event, f"{self.name}:{first_fault}: {what} (if it is in another encoding, use --encoding)")
        if nulls:
            what = pluralize(nulls, "NUL character was", "NUL characters were")
            note(self.on_event, f"{self.name}:{first_null}: {what} dropped, the first here")

    def _decoded(self, read: Callable[[int], str], size: int, number: int) -> str:
        try:
            return read(size)
        except UnicodeDecodeError:  # only with UTF-16 and UTF-32, and it is found a few lines ahead
            raise invalid_text(f"{self.name}:{number}", self.encoding) from None

    @contextmanager
    def _reading(self, file: File) -> Iterator[File]:
        try:
            with file:
                yield file
        except DAMAGED as error:
            raise unreadable(self.name, error) from None


def stdin_lines(encoding: str = "auto") -> Iterator[str]:
    """The lines of standard input as they come; auto is UTF-8, and invalid bytes are refused as in files."""
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:
        yield from (line.removesuffix("\n") for line in sys.stdin)
        return
    try:
        stream = io.TextIOWrapper(
            buffer, "utf-8-sig" if encoding == "auto" else declared_encoding(encoding), "surrogateescape"
        )
    except LookupError:
        raise no_such_encoding(encoding) from None
    try:
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), ""), 1):
            if not line.isascii() and SURROGATES.search(line):
                raise invalid_text(f"stdin:{number}", "utf-8" if encoding == "auto" else encoding, line)
            if len(line) > MAX_LINE and not line.endswith("\n"):
                raise long_field(f"stdin:{number}")
            yield line.removesuffix("\n")
    finally:
        stream.detach()


def open_text(path: str | Path, encoding: str = "auto", on_event: OnEvent = ignore, name: str = "") -> TextFile:
    """Open any plain or compressed text file, with its `name` in messages; iterating gives (line number, line)."""
    return TextFile(path, encoding, on_event, name)

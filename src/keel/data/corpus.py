"""Text files as a stream of documents."""

import glob
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from keel.data.language_detection import Language, detect_language
from keel.data.language_mix import sources_by_language
from keel.data.markup import note_tag_lines, refuse_markup
from keel.data.memory_sources import Frame, is_records, plain_source, source_items
from keel.data.sentence_splitting import Sentences
from keel.data.separators import check_separator, choose_separator, is_consistent
from keel.data.table_files import read_rows, read_table
from keel.data.text_encodings import replace_all_surrogates, replace_surrogates
from keel.data.text_files import TextFile, file_kind, refuse_special_file, unreadable
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize

Source = Any
"""A file or pattern (str, Path, "-"), a list of texts or of Paths, a DataFrame with a text column; a dict of these by
language, or files with their language, as de:multi_de.txt."""
Dedup = Literal["none", "lines", "documents"]

BLOCK = 1 << 20
"""Characters of text that are handled at once: no line and no document has to fit in memory."""

LONGEST_COMPARED = 64
"""Blocks of a document that are held to compare it with others; a longer one is never called a duplicate."""

LANGUAGES_SHOWN = 8
"""Languages whose files a description names."""

LONGEST_SHOWN = 200
"""Characters of a name that no file has; a longer one is a text."""


class Block(NamedTuple):
    """A document or a part of one."""

    begins: bool
    """Whether a document begins here."""
    text: str
    line: int
    """Where it begins in its file; the whole row's in a table, the document's number in memory."""


class Corpus:
    """Text as a stream of documents: separated by blank lines in plain text, one per row in a table."""

    def __init__(
        self,
        source: Source,
        *,
        text_column: str = "text",
        separator: str = "auto",
        encoding: str = "auto",
        dedup: Dedup = "none",
        sentences: Sentences | Literal["auto"] = "auto",
        on_event: OnEvent = ignore,
    ):
        self._configure(text_column, encoding, dedup, sentences, on_event)
        check_separator(separator)
        self.separator = separator
        if named := sources_by_language(source, text_column):
            for language, part in named.items():
                self.languages[language] = Corpus(
                    part, text_column=text_column, separator=separator, encoding=encoding, dedup=dedup,
                    sentences=sentences, on_event=on_event,
                )  # fmt: skip
            self.files = [path for part in self.languages.values() for path in part.files]
            return
        source = plain_source(source)
        if isinstance(source, Frame) or is_records(source if isinstance(source, list) else [source]):
            frame = source if isinstance(source, Frame) else Frame.of_records(source_items(source))
            if text_column not in frame.names:
                known = ", ".join(map(repr, frame.names))
                raise UsageError(f"the table has no column {text_column!r}: it has {known}; set --text-column")
            self._texts = _checked_texts(frame.cells[frame.names.index(text_column)], "row {} of the table")
            return
        items = [source] if isinstance(source, str | Path) else source_items(source)
        if not isinstance(source, str) and not all(isinstance(item, Path) for item in items):
            self._texts = _checked_texts(items)
            return
        for item in items:
            self.files += [self._spooled()] if str(item) == "-" else _matching(str(item))
        if not self.files:
            raise KeelError("no text files were named: give files, a pattern such as 'data/*.txt', or -")

    @classmethod
    def of(
        cls,
        documents: Iterable[str],
        *,
        dedup: Dedup = "none",
        sentences: Sentences | Literal["auto"] = "auto",
        on_event: OnEvent = ignore,
    ) -> "Corpus":
        """Make a corpus of documents in memory: a list, or a column of a DataFrame."""
        corpus = cls.__new__(cls)
        corpus._configure("text", "auto", dedup, sentences, on_event)
        corpus._texts = _checked_texts([documents] if isinstance(documents, str) else list(documents))
        return corpus

    def _configure(
        self, text_column: str, encoding: str, dedup: Dedup, sentences: Sentences | Literal["auto"], on_event: OnEvent
    ) -> None:
        self.text_column, self.encoding, self.on_event = text_column, encoding, on_event
        self.dedup: Dedup = dedup
        self.sentences: Sentences = "split" if sentences == "auto" else sentences
        self._sentences_given = sentences != "auto"
        self.files: list[Path] = []
        self.languages: dict[str, Corpus] = {}
        """The text of each language, where languages are named; it comes in this order."""
        self.separator = "auto"
        self._separators: dict[Path, str] = {}
        self._texts: list[str] = []
        self._spool = None

    def with_sentences(self, sentences: Sentences) -> "Corpus":
        """The same text with this sentence splitting, unless it was set explicitly."""
        corpus = copy(self)
        corpus.sentences = self.sentences if self._sentences_given else sentences
        corpus.languages = {name: part.with_sentences(sentences) for name, part in self.languages.items()}
        return corpus

    def documents(self) -> Iterator[str]:
        """Every document as one string."""
        parts: list[str] = []
        for block in self.blocks():
            if block.begins and parts:
                yield "".join(parts).strip("\n")
                parts.clear()
            parts.append(block.text)
        if parts:
            yield "".join(parts).strip("\n")

    def blocks(self) -> Iterator[Block]:
        """The text in blocks of about a megabyte at most."""
        if self.languages:
            return chain.from_iterable(part.blocks() for part in self.languages.values())
        read = {"none": self._blocks, "lines": self._distinct_lines, "documents": self._distinct_documents}
        return read[self.dedup]()

    def chunks(self, size: int = BLOCK // 2) -> Iterator[list[Block]]:
        """Blocks in chunks of about `size` characters; deterministic. A chunk has one language."""
        return (chunk for _, chunk in self.chunks_by_language(size))

    def chunks_by_language(self, size: int = BLOCK // 2) -> Iterator[tuple[str, list[Block]]]:
        """The same chunks, each with its language; empty where languages are not named."""
        for language, part in (self.languages or {"": self}).items():
            yield from ((language, chunk) for chunk in part._chunks(size))

    def _chunks(self, size: int) -> Iterator[list[Block]]:
        chunk: list[Block] = []
        held = 0
        for block in self.blocks():
            chunk.append(block)
            held += len(block.text)
            if held >= size:
                yield chunk
                chunk, held = [], 0
        if chunk:
            yield chunk

    def texts(self) -> Iterator[list[str]]:
        """The texts of the same chunks."""
        return ([block.text for block in chunk] for chunk in self.chunks())

    def language(self) -> Language:
        """Language of the beginning of the text; "other" for text of several languages."""
        if len(self.languages) > 1:
            return "other"
        return detect_language("\n".join(block.text[:1000] for block in islice(self.blocks(), 100)))

    def fingerprint(self) -> str:
        """Hash of the contents and the settings; equal hashes mean equal documents."""
        read = (self.text_column, self.encoding, self.dedup, *([] if self.sentences == "split" else [self.sentences]))
        read += () if self.separator == "auto" else (f"separator {self.separator}",)
        digest = hashlib.blake2b(repr(read).encode(), digest_size=16)
        for language, part in self.languages.items():
            digest.update(f"\0{language}:{part.fingerprint()}".encode())
        if self.languages:
            return digest.hexdigest()
        for path in self.files:
            digest.update(f"\0{file_kind(path)}\0".encode())
            try:
                with open(path, "rb") as file:
                    while block := file.read(1 << 22):
                        digest.update(block)
            except OSError as error:
                raise unreadable(self._name(path), error) from None
        for text in self._texts:
            digest.update(text.encode() + b"\xff")
        return digest.hexdigest()

    @property
    def stable_files(self) -> list[Path]:
        """Its files, apart from the copy of standard input, which nobody else writes to."""
        if self.languages:
            return [path for part in self.languages.values() for path in part.stable_files]
        return [path for path in self.files if not (self._spool and str(path) == self._spool.name)]

    def __str__(self) -> str:
        if self.languages:
            return self._by_language([f"{language} ({part})" for language, part in self.languages.items()])
        return self._listed([Path(self._name(path)).name for path in self.files[:3]])

    @property
    def paths(self) -> str:
        """Its files with their paths, where `str` gives only file names."""
        if self.languages:
            return self._by_language([part.paths for part in self.languages.values()])
        return self._listed([self._name(path) for path in self.files[:3]])

    def _by_language(self, names: list[str]) -> str:
        more = len(names) - LANGUAGES_SHOWN
        return ", ".join(names[:LANGUAGES_SHOWN]) + (f" and {pluralize(more, 'more language')}" if more > 0 else "")

    def _listed(self, names: list[str]) -> str:
        names = names or [f"{pluralize(len(self._texts), 'document')} in memory"]
        return ", ".join(names) + (f" and {len(self.files) - 3} more" if len(self.files) > 3 else "")

    def _blocks(self) -> Iterator[Block]:
        for path in self.files:
            if file_kind(path) == "txt":
                refuse_markup(path, self._name(path), self.encoding)
                note_tag_lines(path, self._name(path), self.encoding, self.on_event)
                yield from _paragraphs(TextFile(path, self.encoding, self.on_event, self._name(path)))
            else:
                for number, text in self._column(path):
                    yield from (Block(begins, part, number) for begins, part in cut_text(text))
        for number, text in enumerate(self._texts, 1):
            yield from (Block(begins, part, number) for begins, part in cut_text(text))

    def _column(self, path: Path) -> Iterator[tuple[int, str]]:
        empty = 0
        if path not in self._separators:
            self._separators[path] = self._separator(path)
        for number, row in read_table(path, self.encoding, self.on_event, self._separators[path]):
            if number <= 2 and self.text_column not in row:
                what = f"no column {self.text_column!r} among {list(row)}"
                raise KeelError(f"{path}:{number}: {what}: name one with --text-column, or the --separator")
            text = row.get(self.text_column)
            if text is None:
                empty += 1
            elif isinstance(text, str):
                yield number, replace_surrogates(text)
            else:
                raise KeelError(f"{path}:{number}: {self.text_column!r} is a {type(text).__name__}, not text")
        if empty:
            note(self.on_event, f"{path}: {pluralize(empty, 'row')} without {self.text_column!r} passed over")

    def _separator(self, path: Path) -> str:
        def is_table(separator: str, _: bool) -> bool:
            return is_consistent(read_rows(path, self.encoding, separator=separator), self.text_column)

        return choose_separator(path, str(path), self.separator, self.encoding, is_table, self.on_event)

    def _distinct_lines(self) -> Iterator[Block]:
        seen = _Seen()
        begins, dropped = False, 0
        for block in self._blocks():
            begins |= block.begins
            lines = block.text.split("\n")
            kept = [line for line in lines if not line.strip() or seen.add(line.strip())]
            dropped += len(lines) - len(kept)
            if any(kept):
                yield Block(begins, "\n".join(kept), block.line)
                begins = False
        note(self.on_event, f"{pluralize(dropped, 'line')} seen before and dropped")

    def _distinct_documents(self) -> Iterator[Block]:
        seen = _Seen()
        dropped = 0
        held: list[Block] = []
        for block in chain(self._blocks(), [Block(True, "", 0)]):
            if block.begins and held:
                if len(held) > LONGEST_COMPARED or seen.add("".join(part.text for part in held).strip()):
                    yield from held
                else:
                    dropped += 1
                held = []
            held.append(block)
        note(self.on_event, f"{pluralize(dropped, 'document')} seen before and dropped")

    def _spooled(self) -> Path:
        self._spool = tempfile.NamedTemporaryFile(prefix="keel-stdin-")  # noqa: SIM115 (goes with the corpus)
        shutil.copyfileobj(sys.stdin.buffer, self._spool)
        self._spool.flush()
        return Path(self._spool.name)

    def _name(self, path: Path) -> str:
        return "<stdin>" if self._spool and str(path) == self._spool.name else str(path)


class _Seen:
    """Which texts came before, by 64-bit hash: 8 bytes for each distinct one."""

    def __init__(self) -> None:
        self.recent: set[int] = set()
        self.old = np.empty(0, np.uint64)

    def add(self, text: str) -> bool:
        """Say whether this text is new, and remember it."""
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        if key in self.recent:
            return False
        place = np.searchsorted(self.old, np.uint64(key))
        if place < len(self.old) and int(self.old[place]) == key:
            return False
        self.recent.add(key)
        if len(self.recent) >= 1_000_000:
            self.old = np.union1d(self.old, np.fromiter(self.recent, np.uint64, len(self.recent)))
            self.recent.clear()
        return True


def _checked_texts(texts: list[Any], location: str = "document {} of the list") -> list[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            what = f"a {type(text).__name__} ({text!r:.60})"
            raise KeelError(f"{location.format(number)} is {what}: give strings only")
    return replace_all_surrogates(texts)


def _matching(pattern: str) -> list[Path]:
    if not pattern:
        raise KeelError("the name of a text file is empty: give files, a pattern such as 'data/*.txt', or -")
    if os.path.exists(pattern):  # which finds no fault with a name that is too long
        refuse_special_file(Path(pattern))
        return [Path(pattern)]
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file()]
    if not found:
        raise KeelError(f"there is no file {pattern[:LONGEST_SHOWN]}: check the name and the current folder")
    return found


def _paragraphs(file: TextFile) -> Iterator[Block]:
    """Split plain text at blank lines, and longer documents between lines."""
    begins, lines, size, continued, start = True, [], 0, False, 1
    for number, line in file.line_chunks(BLOCK):
        if line.isspace() and not continued:
            if any(lines):
                yield Block(begins, "".join(lines), start)
            begins, lines, size = True, [], 0
            continue
        start = start if lines else number
        continued = not line.endswith("\n")
        lines.append(line)
        size += len(line)
        if size >= BLOCK:
            text = "".join(lines)
            end = _good_end(text) if continued else len(text)
            yield Block(begins, text[:end], start)
            begins, lines, size, start = False, [text[end:]], len(text) - end, start + text.count("\n", 0, end)
    if any(lines):
        yield Block(begins, "".join(lines), start)


def cut_text(text: str, size: int = BLOCK) -> Iterator[tuple[bool, str]]:
    """Split a document into parts of at most `size` characters, each with whether it is the first."""
    start = 0
    while len(text) - start > size:
        end = start + _good_end(text[start : start + size])
        yield start == 0, text[start:end]
        start = end
    if text[start:].strip():
        yield start == 0, text[start:]


def _good_end(text: str) -> int:
    """Find a place near the end of a text where a cut does least harm: a sentence end, else a space, else anywhere."""
    least = len(text) - len(text) // 16
    for end in ("\n", ". ", "。", " "):
        place = text.rfind(end, least)
        if place >= 0:
            return place + len(end)
    return len(text)

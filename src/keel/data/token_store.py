"""Token ids of a corpus on disk: encoded once, in parallel, resumable, checksummed, memory-mapped.

ids.bin      2 bytes per id (4 for a vocabulary above 65,536)
bounds.bin   8 bytes per sentence: position << 1 | begins a document
words.bin    1 bit per id: begins a word (only with words=True)
units.bin    1 byte per id: the levels of which a masking unit begins there, as bits (only with units)
index.json   counts, settings and checksums; written last, so a folder that has it is complete
"""

import errno
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from keel.config import cache_folder
from keel.data.corpus import Block, Corpus
from keel.data.corpus_snapshot import CorpusSnapshot
from keel.data.encoding_worker import Encoded, encode_chunks, id_type
from keel.data.masking_units import MaskingUnits
from keel.data.ordered_map import default_workers
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note

FORMAT = 1
CHUNK = 1 << 19
"""Characters of text that a worker encodes at a time."""

BLOCK = 1 << 22
"""Bytes per checksum."""

COMMIT_SECONDS = 2.0
"""Seconds of work that a kill may lose."""

MOST_SHOWN = 5
"""Entities that do not occur whose names are kept."""

NAMES_FOUND = "names.bin"
"""File of a build with one byte per listed entity: whether it has occurred."""


class DamagedError(KeelError):
    """Token files that have changed since they were written."""

    def __init__(self, damage: str, folder: Path):
        super().__init__(f"{damage}: delete {folder} and build it again")
        self.damage = damage


class Tokens:
    """Memory-mapped token ids, with sentence and document bounds."""

    ids: np.ndarray
    """[ids] uint16 or uint32."""
    word_starts: np.ndarray | None
    """[ids / 8] packed bits, lowest first: 1 where an id begins a word; only if built with words=True."""
    units: np.ndarray | None
    """[ids] uint8: where masking units of each level begin (see `MaskingUnits`); only if built with units."""

    def __init__(self, folder: Path, index: dict[str, Any]):
        self.folder = folder
        self.index = index
        # Copy-on-write, so that torch wraps the array without a warning and nothing can change the file.
        self.ids = np.memmap(folder / "ids.bin", index["type"], mode="c")
        self._bounds = np.memmap(folder / "bounds.bin", np.int64, mode="r")
        self.word_starts = np.memmap(folder / "words.bin", np.uint8, mode="c") if index["settings"]["words"] else None
        self.units = np.memmap(folder / "units.bin", np.uint8, mode="c") if "units" in index["settings"] else None

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        tokenizer: Tokenizer,
        folder: str | Path | None = None,
        *,
        words: bool = False,
        units: MaskingUnits | None = None,
        workers: int = 0,
        on_event: OnEvent = ignore,
    ) -> "Tokens":
        """Encode a corpus (resuming a killed run), or open it if it is complete; without a folder, in the cache."""
        snapshot = CorpusSnapshot.of(corpus)
        settings = {
            "format": FORMAT,
            "corpus": snapshot.fingerprint,
            "tokenizer": tokenizer.fingerprint(),
            "words": words,
            **({"units": units.fingerprint()} if units else {}),
        }
        folder = Path(folder) if folder else cache_folder() / "tokens" / _digest(settings)
        with disk_errors(folder), _lock(folder, on_event):
            if (folder / "index.json").exists():
                if _read_index(folder)["settings"] != settings:
                    raise KeelError(f"{folder} holds tokens of another corpus or tokenizer: name another folder")
                try:
                    tokens = cls.open(folder)
                    tokens.verify()
                    return tokens
                except DamagedError as error:
                    note(on_event, f"{error.damage}: encoding the text again")
                    _remove(folder)
            _build(snapshot, tokenizer, folder, settings, units, workers or default_workers(), on_event)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Tokens":
        """Open finished tokens, reading almost nothing."""
        folder = Path(folder)
        index = _read_index(folder)
        for name, file in index["files"].items():
            path = folder / name
            size = path.stat().st_size if path.exists() else 0
            if size != file["bytes"]:
                raise DamagedError(f"{path} has {size} bytes, not {file['bytes']}", folder)
        return cls(folder, index)

    @cached_property
    def starts(self) -> np.ndarray:
        """[sentences + 1] int64: where each sentence starts in `ids`, and the end."""
        starts = np.empty(len(self._bounds) + 1, np.int64)
        np.right_shift(self._bounds, 1, out=starts[:-1])
        starts[-1] = len(self.ids)
        return starts

    @cached_property
    def documents(self) -> np.ndarray:
        """[documents + 1] int64: index of the first sentence of each document, and the end."""
        lowest_bytes = self._bounds.view(np.uint8)[::8]
        return np.append(np.flatnonzero(lowest_bytes & 1), len(self._bounds))

    def levels_equal(self, first: int, second: int) -> bool:
        """Whether one level (0 words, 1 phrases, 2 entities) has the same masking units as another."""
        assert self.units is not None
        counts = np.bincount(self.units, minlength=8)
        return not any(counts[code] for code in range(8) if code >> first & 1 != code >> second & 1)

    def unit_lengths(self) -> list[float]:
        """Mean number of tokens of a masking unit, for each level."""
        assert self.units is not None
        starts = np.bincount(self.units, minlength=8).reshape(2, 2, 2)  # by entity, phrase and word bit
        return [len(self.units) / int(starts.take(1, axis=2 - level).sum()) for level in range(3)]

    @property
    def missing_names(self) -> tuple[int, list[str]]:
        """How many listed entities do not occur in the text, and the first of them."""
        missing = self.index.get("missing_names", {"count": 0, "first": []})
        return missing["count"], missing["first"]

    @property
    def languages(self) -> dict[str, dict[str, int]]:
        """Documents and bytes of text of each language, in the order of the documents, where languages are named."""
        return self.index.get("languages", {})

    @property
    def unknown_share(self) -> float:
        """Share of [UNK] among the ids."""
        return self.index["unknown"] / len(self.ids)

    def verify(self) -> None:
        """Compare all files with their checksums."""
        for name, file in self.index["files"].items():
            for number, checksum in enumerate(_checksums(self.folder / name)):
                if checksum != file["crc32"][number]:
                    place = f"{self.folder / name}: block {number} (from byte {number * BLOCK:,})"
                    raise DamagedError(f"{place} has changed since it was written", self.folder)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class _Progress:
    """Progress of a build; everything before it in the files is on disk."""

    chunks: int = 0
    ids: int = 0
    sentences: int = 0
    documents: int = 0
    unknown: int = 0
    open_document: bool = False
    languages: dict[str, dict[str, int]] = field(default_factory=dict)
    """Documents and bytes of each language so far."""


def _build(
    snapshot: CorpusSnapshot,
    tokenizer: Tokenizer,
    folder: Path,
    settings: dict[str, Any],
    units: MaskingUnits | None,
    workers: int,
    on_event: OnEvent,
) -> None:
    corpus = snapshot.corpus
    source = {"settings": settings, "files": snapshot.versions}
    progress = _read_progress(folder, source)
    if progress.chunks:
        note(on_event, f"resuming encoding after {progress.ids:,} tokens in {folder}")
    unknown = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    chunk_sources: list[tuple[str, int]] = []  # language and bytes of each chunk, which are encoded in order
    chunks = islice(_listed_chunks(corpus, chunk_sources), progress.chunks, None)
    names = units.entities.terms if units and units.entities else []
    options: dict[str, Any] = {"words": settings["words"], "units": units, "sentences": corpus.sentences}
    with _Files(folder, progress, id_type(tokenizer), settings, len(names)) as files:
        last = time.monotonic()
        for encoded in encode_chunks(tokenizer, chunks, **options, workers=workers):
            documents = progress.documents
            files.append(encoded)
            language, size = chunk_sources[progress.chunks - 1]
            if language:
                of = progress.languages.setdefault(language, {"documents": 0, "bytes": 0})
                of["documents"] += progress.documents - documents
                of["bytes"] += size
            progress.unknown += int(np.count_nonzero(encoded.ids == unknown))
            if time.monotonic() - last >= COMMIT_SECONDS:
                files.sync()
                _write_json(folder / "progress.json", source | {"progress": asdict(progress)})
                on_event({"event": "tokens", "ids": progress.ids, "documents": progress.documents})
                last = time.monotonic()
        files.sync()
    try:
        snapshot.require_unchanged()
    except KeelError:
        _remove(folder)
        raise
    written = ["ids.bin", "bounds.bin"] + ["words.bin"] * settings["words"] + ["units.bin"] * (units is not None)
    if not progress.ids:
        _remove(folder)
        raise KeelError(f"{corpus.paths} holds no text to encode: give it more text")
    index = {
        "settings": settings,
        "type": np.dtype(id_type(tokenizer)).name,
        "pieces": len(tokenizer),
        **{
            name: value
            for name, value in asdict(progress).items()
            if name not in ("chunks", "open_document") and value != {}
        },
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "crc32": list(_checksums(folder / name))}
            for name in written
        },
    }
    if names:
        found = np.fromfile(folder / NAMES_FOUND, np.uint8)
        missing = [name for name, there in zip(names, found.tolist(), strict=True) if not there]
        index["missing_names"] = {"count": len(missing), "first": missing[:MOST_SHOWN]}
    _write_json(folder / "index.json", index | {"checksum": _digest(index)})
    for name in ("progress.json", NAMES_FOUND):
        (folder / name).unlink(missing_ok=True)
    on_event({"event": "tokens", "ids": progress.ids, "documents": progress.documents})
    if progress.documents == 1 and progress.sentences > 100:
        note(on_event, f"{corpus} is a single document: separate documents by a blank line")


def _listed_chunks(corpus: Corpus, chunk_sources: list[tuple[str, int]]) -> Iterator[list[Block]]:
    """The chunks of a corpus; the language and the bytes of each are added to `chunk_sources`."""
    for language, chunk in corpus.chunks_by_language(CHUNK):
        chunk_sources.append((language, sum(len(block.text.encode()) for block in chunk) if language else 0))
        yield chunk


class _Files:
    """The files of a build, truncated to the committed progress and then appended to."""

    def __init__(self, folder: Path, progress: _Progress, id_type: type, settings: dict[str, Any], names: int):
        self.progress = progress
        width = np.dtype(id_type).itemsize
        self.ids = _open_at(folder / "ids.bin", progress.ids * width)
        self.bounds = _open_at(folder / "bounds.bin", progress.sentences * 8)
        self.words = _open_at(folder / "words.bin", -(-progress.ids // 8)) if settings["words"] else None
        self.units = _open_at(folder / "units.bin", progress.ids) if "units" in settings else None
        self.names = _open_at(folder / NAMES_FOUND, names if progress.chunks else 0) if names else None
        if self.names:
            self.names.truncate(names)  # filled with zeros
        self.begun_byte = np.zeros(0, bool)
        if self.words:
            self.words.seek(progress.ids // 8)
            byte = np.frombuffer(self.words.read(1), np.uint8)
            self.begun_byte = np.unpackbits(byte, bitorder="little")[: progress.ids % 8].astype(bool)

    def append(self, encoded: Encoded) -> None:
        progress, bounds = self.progress, encoded.bounds
        if progress.open_document and len(bounds):
            bounds[0] |= 1
        if encoded.words is not None and self.words:
            # The last byte may be partial: it is written again, with the bits that follow.
            bits = np.concatenate([self.begun_byte, encoded.words])
            self.words.seek(progress.ids // 8)
            self.words.write(np.packbits(bits, bitorder="little"))
            self.begun_byte = bits[len(bits) // 8 * 8 :]
        if encoded.units is not None and self.units:
            self.units.write(encoded.units.codes)
        if encoded.units is not None and self.names:
            for number in encoded.units.names.tolist():
                self.names.seek(number)
                self.names.write(b"\x01")
        self.ids.write(encoded.ids)
        self.bounds.write(bounds + (progress.ids << 1))
        progress.chunks += 1
        progress.ids += len(encoded.ids)
        progress.sentences += len(bounds)
        progress.documents += int(np.count_nonzero(bounds & 1))
        progress.open_document = encoded.open_document or (progress.open_document and not len(bounds))

    def sync(self) -> None:
        for file in self._all():
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._all():
            with suppress(OSError):  # the failed write has reported a full disk already
                file.close()

    def _all(self) -> list[Any]:
        return [file for file in (self.ids, self.bounds, self.words, self.units, self.names) if file]


def _open_at(path: Path, size: int) -> Any:
    """Open a file for appending after `size` bytes; what follows them was interrupted by a kill."""
    path.touch()
    file = open(path, "r+b")  # noqa: SIM115 (closed by _Files)
    file.truncate(size)
    file.seek(size)
    return file


def _remove(folder: Path) -> None:
    """Remove all files of a build, its progress first."""
    for name in ("progress.json", "index.json", "ids.bin", "bounds.bin", "words.bin", "units.bin", NAMES_FOUND):
        (folder / name).unlink(missing_ok=True)


def _read_progress(folder: Path, source: dict[str, Any]) -> _Progress:
    """The progress of a build from the same source: the settings and the state of the files."""
    try:
        stored = json.loads((folder / "progress.json").read_text())
        same = all(stored[name] == value for name, value in source.items())
        return _Progress(**stored["progress"]) if same else _Progress()
    except (OSError, ValueError, KeyError, TypeError):
        return _Progress()


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / "index.json").read_text())
        checksum = index.pop("checksum")
    except OSError:
        raise KeelError(f"{folder} has no complete tokens: build them with the same corpus and tokenizer") from None
    except (ValueError, KeyError, AttributeError):
        checksum, index = None, {}
    if checksum != _digest(index):
        raise DamagedError(f"{folder / 'index.json'} has changed since it was written", folder)
    return index


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write atomically, so that a kill leaves the old file or the new one."""
    beside = path.with_suffix(".new")
    with open(beside, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _checksums(path: Path) -> Iterator[int]:
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            yield zlib.crc32(block)


def _digest(value: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextmanager
def _lock(folder: Path, on_event: OnEvent) -> Iterator[None]:
    """Let one process at a time build here; the system releases the lock of a killed process."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        note(on_event, f"another process is encoding into {folder}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise KeelError(f"the disk of {folder} is full: free some space and rerun the command to resume") from None
        raise KeelError(f"{folder} cannot be written ({error.strerror}): name another or set KEEL_CACHE") from None

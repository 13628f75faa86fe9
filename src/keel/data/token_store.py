"""A corpus as ids on disk: built once, in parallel, resumable, checksummed, memory-mapped.

ids.bin      2 bytes for each id (4 above 65,536 pieces)
bounds.bin   8 bytes for each sentence: place << 1 | begins a document
words.bin    1 bit for each id: begins a word (only if asked for)
index.json   counts, settings and checksums; written last, so a folder that has it is complete
"""

import errno
import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keel.config import cache_folder
from keel.data.corpus import Corpus
from keel.data.encoding_worker import Encoded, encode_chunks, id_type
from keel.data.ordered_map import default_workers
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note

FORMAT = 1
CHUNK = 1 << 19
"""Characters of text that one worker encodes at a time."""

BLOCK = 1 << 22
"""Bytes under one checksum."""

COMMIT_SECONDS = 2.0
"""How much work a kill may cost."""


class DamagedError(KeelError):
    """Finished tokens that are not as they were written."""

    def __init__(self, damage: str, folder: Path):
        super().__init__(f"{damage}: delete {folder} and build it again")
        self.damage = damage


class Tokens:
    """Ids on disk, memory-mapped, with the bounds of sentences and documents."""

    ids: np.ndarray
    """[ids] uint16 or uint32."""
    word_starts: np.ndarray | None
    """[ids / 8] packed bits, lowest first: 1 where an id begins a word; only if built with words=True."""

    def __init__(self, folder: Path, index: dict[str, Any]):
        self.folder = folder
        self.index = index
        # Copy-on-write, so that torch can wrap the array without a warning and no one can change the file.
        self.ids = np.memmap(folder / "ids.bin", index["type"], mode="c")
        self._bounds = np.memmap(folder / "bounds.bin", np.int64, mode="r")
        self.word_starts = np.memmap(folder / "words.bin", np.uint8, mode="c") if index["settings"]["words"] else None

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        tokenizer: Tokenizer,
        folder: str | Path | None = None,
        *,
        words: bool = False,
        workers: int = 0,
        on_event: OnEvent = ignore,
    ) -> "Tokens":
        """Encode a corpus, go on where a killed run stopped, or open what is whole; without a folder, in the cache."""
        settings = {
            "format": FORMAT,
            "corpus": corpus.fingerprint(),
            "tokenizer": tokenizer.fingerprint(),
            "words": words,
        }
        folder = Path(folder) if folder else cache_folder() / "tokens" / _digest(settings)
        with disk_errors(folder), _lock(folder, on_event):
            if (folder / "index.json").exists():
                if _read_index(folder)["settings"] != settings:
                    raise KeelError(f"{folder} holds tokens of other text or another tokenizer: name another")
                try:
                    tokens = cls.open(folder)
                    tokens.verify()
                    return tokens
                except DamagedError as error:
                    note(on_event, f"{error.damage}: the text is encoded anew")
                    _remove(folder)
            _build(corpus, tokenizer, folder, settings, workers or default_workers(), on_event)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Tokens":
        """Open tokens that were built; reads almost nothing."""
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
        """[sentences + 1] int64: the place in `ids` where each sentence starts, and the end."""
        starts = np.empty(len(self._bounds) + 1, np.int64)
        np.right_shift(self._bounds, 1, out=starts[:-1])
        starts[-1] = len(self.ids)
        return starts

    @cached_property
    def documents(self) -> np.ndarray:
        """[documents + 1] int64: the number of the sentence where each document starts, and the end."""
        lowest_bytes = self._bounds.view(np.uint8)[::8]
        return np.append(np.flatnonzero(lowest_bytes & 1), len(self._bounds))

    @property
    def unknown_share(self) -> float:
        """The share of ids that stand for what the vocabulary cannot spell."""
        return self.index["unknown"] / len(self.ids)

    def verify(self) -> None:
        """Read everything and compare it with the checksums."""
        for name, file in self.index["files"].items():
            for number, checksum in enumerate(_checksums(self.folder / name)):
                if checksum != file["crc32"][number]:
                    place = f"{self.folder / name}: block {number} (from byte {number * BLOCK:,})"
                    raise DamagedError(f"{place} has changed since it was written", self.folder)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class _Progress:
    """How far a build has come; all that is behind it in the files is safe."""

    chunks: int = 0
    ids: int = 0
    sentences: int = 0
    documents: int = 0
    unknown: int = 0
    open_document: bool = False


def _build(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, settings: dict[str, Any], workers: int, on_event: OnEvent
) -> None:
    progress = _read_progress(folder, settings)
    if progress.chunks:
        note(on_event, f"encoding goes on after {progress.ids:,} ids in {folder}")
    unknown = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    chunks = (
        [(block.begins, block.text) for block in blocks]
        for blocks in islice(corpus.chunks(CHUNK), progress.chunks, None)
    )
    with _Files(folder, progress, id_type(tokenizer), settings["words"]) as files:
        last = time.monotonic()
        cut = corpus.sentences
        for encoded in encode_chunks(tokenizer, chunks, words=settings["words"], sentences=cut, workers=workers):
            files.append(encoded)
            progress.unknown += int(np.count_nonzero(encoded.ids == unknown))
            if time.monotonic() - last >= COMMIT_SECONDS:
                files.sync()
                _write_json(folder / "progress.json", {"settings": settings, "progress": asdict(progress)})
                on_event({"event": "tokens", "ids": progress.ids, "documents": progress.documents})
                last = time.monotonic()
        files.sync()
    names = ["ids.bin", "bounds.bin"] + ["words.bin"] * settings["words"]
    if not progress.ids:
        _remove(folder)
        raise KeelError(f"{corpus.paths} holds no text: there is nothing to encode")
    index = {
        "settings": settings,
        "type": np.dtype(id_type(tokenizer)).name,
        "pieces": len(tokenizer),
        **{name: value for name, value in asdict(progress).items() if name not in ("chunks", "open_document")},
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "crc32": list(_checksums(folder / name))} for name in names
        },
    }
    _write_json(folder / "index.json", index | {"checksum": _digest(index)})
    (folder / "progress.json").unlink(missing_ok=True)
    on_event({"event": "tokens", "ids": progress.ids, "documents": progress.documents})
    if progress.documents == 1 and progress.sentences > 100:
        note(on_event, f"{corpus} is one single document: a blank line between documents would tell them apart")


class _Files:
    """The files of a build, cut back to what is safe and then appended to."""

    def __init__(self, folder: Path, progress: _Progress, id_type: type, words: bool):
        self.progress = progress
        width = np.dtype(id_type).itemsize
        self.ids = _open_at(folder / "ids.bin", progress.ids * width)
        self.bounds = _open_at(folder / "bounds.bin", progress.sentences * 8)
        self.words = _open_at(folder / "words.bin", -(-progress.ids // 8)) if words else None
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
            # The last byte may have been begun only: it is written again, with the bits that follow.
            bits = np.concatenate([self.begun_byte, encoded.words])
            self.words.seek(progress.ids // 8)
            self.words.write(np.packbits(bits, bitorder="little"))
            self.begun_byte = bits[len(bits) // 8 * 8 :]
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
            with suppress(OSError):  # a full disk has been reported already, by the write that met it
                file.close()

    def _all(self) -> list[Any]:
        return [file for file in (self.ids, self.bounds, self.words) if file]


def _open_at(path: Path, size: int) -> Any:
    """Open a file for appending after `size` bytes; whatever lies behind was torn by a kill."""
    path.touch()
    file = open(path, "r+b")  # noqa: SIM115 (closed by _Files)
    file.truncate(size)
    file.seek(size)
    return file


def _remove(folder: Path) -> None:
    """Remove all that a build writes: what says how far it came goes before what it speaks of."""
    for name in ("progress.json", "index.json", "ids.bin", "bounds.bin", "words.bin"):
        (folder / name).unlink(missing_ok=True)


def _read_progress(folder: Path, settings: dict[str, Any]) -> _Progress:
    try:
        stored = json.loads((folder / "progress.json").read_text())
        return _Progress(**stored["progress"]) if stored["settings"] == settings else _Progress()
    except (OSError, ValueError, KeyError, TypeError):
        return _Progress()


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / "index.json").read_text())
        checksum = index.pop("checksum")
    except OSError:
        raise KeelError(f"{folder} holds no finished tokens: build them with the same corpus and tokenizer") from None
    except (ValueError, KeyError, AttributeError):
        checksum, index = None, {}
    if checksum != _digest(index):
        raise DamagedError(f"{folder / 'index.json'} has changed since it was written", folder)
    return index


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write beside and rename, so that a kill leaves the old file or the new one."""
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
    """Let one process at a time build here; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(on_event, f"another process is encoding into {folder}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Say in one sentence what the disk refuses."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise KeelError(f"the disk of {folder} is full: free some and run again, it goes on from there") from None
        raise KeelError(f"{folder} cannot be written ({error.strerror}): name another or set KEEL_CACHE") from None

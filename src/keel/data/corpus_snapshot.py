"""A corpus at one moment: what is computed from its text must not be stored under the hash of another text."""

from dataclasses import dataclass
from pathlib import Path

from keel.data.corpus import Corpus
from keel.errors import KeelError


@dataclass(frozen=True)
class CorpusSnapshot:
    """The hash of a corpus, and the state of its files before it was computed."""

    corpus: Corpus
    versions: list[list[int]]
    """Size, time of the last change and inode of each file."""
    fingerprint: str

    @classmethod
    def of(cls, corpus: Corpus) -> "CorpusSnapshot":
        return cls(corpus, list(map(_version, corpus.stable_files)), corpus.fingerprint())

    def require_unchanged(self) -> None:
        """Refuse files that have changed since, also back and forth; called after the text has been read."""
        for path, before in zip(self.corpus.stable_files, self.versions, strict=True):
            if _version(path) != before:
                raise _changed(str(path))
        if self.corpus.fingerprint() != self.fingerprint:
            raise _changed(self.corpus.paths)


def _version(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _changed(name: str) -> KeelError:
    return KeelError(f"{name} changed while it was read: rerun the command when nothing writes to it, or on a copy")

"""The models, runs, comparisons and data files in the folders that the studio was given.

Requests name them by the ids of these listings, so that nothing outside the folders can be read.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from keel.api.comparison_run import SETTINGS
from keel.errors import KeelError, UsageError
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.bundled_models import bundled_models
from keel.formats.registry import find_format
from keel.model import Model
from keel.studio.model_listing import describe

T = TypeVar("T")

KEPT = 3
"""Models that stay in memory."""
MAX_DEPTH = 5
"""Levels of folders that are searched."""
MAX_PATHS = 20_000
"""Files and folders that are looked at."""
SKIPPED = {"run", "node_modules", "__pycache__", "site-packages"}
"""Folders without models and data of the user; those that begin with a dot are skipped too."""
VECTOR_SUFFIXES = {".vec", ".bin", ".ftz"}
DATA_SUFFIXES = {".tsv", ".csv", ".jsonl", ".json", ".txt", ".conll", ".conllu", ".parquet", ".xlsx"}


class NotFound(UsageError):  # noqa: N818
    """There is nothing with this id."""


class Entry(NamedTuple):
    """A file or folder with its id."""

    id: str
    path: Path
    bundled: bool = False


@dataclass(frozen=True)
class Listings:
    """What the folders hold, by id."""

    models: dict[str, Entry] = field(default_factory=dict)
    runs: dict[str, Entry] = field(default_factory=dict)
    comparisons: dict[str, Entry] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    own_folders: set[Path] = field(default_factory=set)
    """Folders of models and comparisons, whose files are not data."""

    def add(self, entry: Entry) -> None:
        """Add a file or folder to the listings where it belongs; a folder comes before what is in it."""
        path = entry.path
        if path.is_dir():
            if any((path / name).is_file() for name in ("config.json", SETTINGS)):
                self.own_folders.add(path)
            if (path / "config.json").is_file() and find_format(path):
                self.models.setdefault(entry.id, entry)
            if (path / "run" / "log.jsonl").is_file():
                self.runs.setdefault(entry.id, entry)
            if (path / SETTINGS).is_file():
                self.comparisons.setdefault(entry.id, entry)
        elif path.suffix in VECTOR_SUFFIXES and find_format(path):
            self.models.setdefault(entry.id, entry)
        elif path.suffix in DATA_SUFFIXES and self.own_folders.isdisjoint(path.parents):
            self.files.setdefault(entry.id, entry)


class Workspace:
    """The given folders, and the models that were loaded from them."""

    def __init__(self, folders: Sequence[str | Path] = (), *, device: str = "auto"):
        roots = [Path(folder) for folder in folders]
        for root in roots:
            if not root.exists():
                raise UsageError(f"there is no folder {root}: give folders with models, runs or data")
        self.roots, self.device = _named(roots), device
        self._lock = RLock()
        self._models: OrderedDict[Entry, tuple[int, Model]] = OrderedDict()
        self._spaces: OrderedDict[Entry, tuple[int, VectorSpace]] = OrderedDict()
        self._facts: dict[Entry, tuple[int, dict[str, Any]]] = {}

    def listings(self) -> Listings:
        """What the folders hold now."""
        found = Listings({name: Entry(name, path, bundled=True) for name, path in bundled_models().items()})
        for name, root in self.roots.items():
            for path in _walk(root):
                found.add(Entry("/".join((name, *path.relative_to(root).parts)), path))
        return found

    def models(self) -> list[dict[str, Any]]:
        """The facts of all models; one that cannot be read has the reason as its "error"."""
        return [
            {"id": entry.id, "name": entry.path.name, "bundled": entry.bundled, **self._describe(entry)}
            for entry in self.listings().models.values()
        ]

    def model(self, id: str) -> Model:
        """The model with this id."""
        return self._model(find(self.listings().models, id, "model"))

    def vectors(self, id: str) -> VectorSpace:
        """The word vectors of the model with this id."""
        entry = find(self.listings().models, id, "model")

        def build(path: Path) -> VectorSpace:
            model = self._model(entry)
            found = model.vector_space()
            return VectorSpace(found.words, found.matrix, model.encode if model.system.uses_subwords else None)

        with self._lock:
            return _recent(self._spaces, entry, build)

    def without_paths(self, answer: Any) -> Any:
        """An answer in which files of the folders are named by their ids instead of their places on this machine."""
        for name, root in self.roots.items():
            if root.name:  # not the whole disk
                answer = renamed(answer, str(root), name)
        return answer

    def _model(self, entry: Entry) -> Model:
        with self._lock:
            return _recent(self._models, entry, lambda path: Model.load(path, device=self.device))

    def _describe(self, entry: Entry) -> dict[str, Any]:
        with self._lock:
            known = self._facts.get(entry)
            if known is None or known[0] != _changed(entry.path):
                try:
                    facts = {**describe(self._model(entry)), "error": ""}
                except (KeelError, OSError) as error:
                    facts = {"can": [], "error": self.without_paths(str(error))}
                known = self._facts[entry] = _changed(entry.path), facts
            return known[1]


def _named(roots: Sequence[Path]) -> dict[str, Path]:
    """The roots by the first part of their ids: the name of the folder, with a number where two have the same."""
    found: dict[str, Path] = {}
    for root in dict.fromkeys(path.resolve() for path in roots):
        count = sum(known.name == root.name for known in found.values())
        found[f"{root.name}-{count + 1}" if count else root.name] = root
    return found


def renamed(value: Any, old: str, new: str) -> Any:
    """Plain data with a part of its texts and names replaced."""
    match value:
        case str():
            return value.replace(old, new)
        case dict():
            return {renamed(name, old, new): renamed(each, old, new) for name, each in value.items()}
        case list() | tuple():
            return [renamed(each, old, new) for each in value]
        case _:
            return value


def find(entries: Mapping[str, Entry], id: str, what: str) -> Entry:
    """The entry with this id."""
    if id not in entries:
        raise NotFound(f"there is no {what} {id!r:.100} in the folders of this studio: reload the page")
    return entries[id]


def _walk(root: Path) -> Iterator[Path]:
    """The root and all below it, to a limited depth and number, without links to elsewhere."""
    yield root
    count = 0
    for folder, folders, files in os.walk(root):
        path = Path(folder)
        deep = len(path.relative_to(root).parts) >= MAX_DEPTH
        kept = (name for name in folders if not deep and not name.startswith(".") and name not in SKIPPED)
        folders[:] = sorted(name for name in kept if not (path / name).is_symlink())
        for name in [*folders, *sorted(files)]:
            count += 1
            if count > MAX_PATHS:
                return
            if not (path / name).is_symlink():
                yield path / name


def _changed(path: Path) -> int:
    """When a model was last written, in nanoseconds."""
    return (path / "config.json" if path.is_dir() else path).stat().st_mtime_ns


def _recent(cache: OrderedDict[Entry, tuple[int, T]], entry: Entry, build: Callable[[Path], T]) -> T:
    """The cached object of an unchanged file or folder, or a new one; the least recently used one is dropped."""
    known = cache.pop(entry, None)
    changed = _changed(entry.path)
    if known is None or known[0] != changed:
        known = changed, build(entry.path)
    cache[entry] = known
    if len(cache) > KEPT:
        cache.popitem(last=False)
    return known[1]

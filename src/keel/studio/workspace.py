"""The folders that the studio was given, and the models that were loaded from them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any, TypeVar

from keel.api.model_loading import load_vectors
from keel.errors import KeelError, UsageError
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.bundled_models import bundled_models
from keel.formats.registry import find_format
from keel.model import Model
from keel.studio.listings import Entry, Kind, Listings, NotFound, name_roots, path_entries, walk
from keel.studio.model_listing import describe

T = TypeVar("T")

KEPT = 3
"""Models that stay in memory."""
OUTSIDE = "skipped: a link to a folder outside those of this studio; start keel studio with that folder too"
FRESH = 1.0
"""Seconds for which a listing of all folders is used again."""


class Workspace:
    """The given folders, and the models that were loaded from them."""

    def __init__(self, folders: Sequence[str | Path] = (), *, device: str = "auto"):
        roots = [Path(folder) for folder in folders]
        for root in roots:
            if not root.exists():
                raise UsageError(f"there is no folder {root}: give folders with models, runs or data")
        self.roots, self.device = name_roots(roots, bundled_models()), device
        self._models: OrderedDict[Entry, tuple[int, Model]] = OrderedDict()
        self._spaces: OrderedDict[Entry, tuple[int, VectorSpace]] = OrderedDict()
        self._loading = RLock()
        self._listings: tuple[float, Listings] | None = None
        self._facts: dict[Entry, tuple[int, dict[str, Any]]] = {}
        self._formats: dict[Path, tuple[int, bool]] = {}
        self._listing = RLock()  # another lock: the folders can be listed while a model is loaded

    def entries(self, kind: Kind) -> Sequence[Entry]:
        """All files and folders of a kind."""
        with self._listing:
            if self._listings is None or monotonic() > self._listings[0] + FRESH:
                found = self._bundled()
                for name in self.roots:
                    for entry in walk(name, self.roots):
                        found.add(entry)
                self._listings = monotonic(), found
            return [*self._listings[1].entries[kind].values()]

    def find(self, kind: Kind, id: str) -> Entry:
        """The file or folder with this id, without a listing of all folders."""
        found = self._bundled()
        for entry in path_entries(id, self.roots):
            found.add(entry)
        return found.find(kind, id)

    def models(self) -> list[dict[str, Any]]:
        """The facts of all models; one that is skipped or cannot be read has the reason as its "error"."""
        found = [(entry, self._describe(entry)) for entry in self.entries("model")]
        assert self._listings is not None
        found += [(entry, {"can": [], "error": OUTSIDE}) for entry in self._listings[1].outside]
        return [{"id": entry.id, "name": entry.path.name, "bundled": entry.bundled, **facts} for entry, facts in found]

    def model(self, id: str) -> Model:
        """The model with this id."""
        return self._model(self.find("model", id))

    def vectors(self, id: str) -> VectorSpace:
        """The word vectors of the model with this id."""
        entry = self.find("model", id)
        with self._loading:
            return _recent(self._spaces, entry, lambda path: load_vectors(self._model(entry)))

    def without_paths(self, answer: Any) -> Any:
        """An answer in which files of the folders are named by their ids instead of their places on this machine."""
        for name, root in self.roots.items():
            if root.name:  # not the whole disk
                answer = renamed(answer, str(root), name)
        return answer

    def _model(self, entry: Entry) -> Model:
        with self._loading:
            return _recent(self._models, entry, lambda path: Model.load(path, device=self.device))

    def _describe(self, entry: Entry) -> dict[str, Any]:
        with self._listing:
            known = self._facts.get(entry)
            try:
                changed = _changed(entry.path)
                if known is None or known[0] != changed:
                    known = self._facts[entry] = changed, {**describe(Model.outline(entry.path)), "error": ""}
            except (KeelError, OSError) as error:
                return {"can": [], "error": self.without_paths(str(error))}
            return known[1]

    def _bundled(self) -> Listings:
        found = Listings(self._has_format)
        found.entries["model"].update({name: Entry(name, path, True) for name, path in bundled_models().items()})
        return found

    def _has_format(self, path: Path) -> bool:
        """Whether a file or folder has the format of a model; it is opened again only when it has changed."""
        try:
            changed = _changed(path)
        except NotFound:
            return False
        with self._listing:
            known = self._formats.get(path)
            if known is None or known[0] != changed:
                known = self._formats[path] = changed, find_format(path) is not None
            return known[1]


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


def _changed(path: Path) -> int:
    """When a model was last written, in nanoseconds."""
    try:
        return (path / "config.json" if path.is_dir() else path).stat().st_mtime_ns
    except OSError as error:
        raise NotFound(f"{path} cannot be read ({error.strerror}): reload the page") from None


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

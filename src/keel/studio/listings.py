"""What the folders of the studio hold: models, runs, comparisons and data files, by ids that requests name them by.

An id is the name of a folder that the studio was given and the path below it. Nothing outside these folders has one.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from keel.api.comparison_run import SETTINGS
from keel.data.text_files import TABLES, file_suffix
from keel.errors import UsageError
from keel.formats.registry import FORMATS

Kind = Literal["model", "run", "comparison", "file"]
MAX_DEPTH = 5
"""Levels of folders that are searched."""
MAX_PATHS = 20_000
"""Files and folders that are looked at."""
SKIPPED = {"run", "node_modules", "__pycache__", "site-packages"}
"""Folders without models and data of the user; those that begin with a dot are skipped too."""
MODULE = re.compile(r"\d+_")
"""How names of folders begin that hold a part of a sentence-transformers model."""
MODEL_SUFFIXES = {suffix for each in FORMATS for suffix in each.suffixes} | {".ftz"}
"""Suffixes of files that may be models; .txt may be word vectors or data."""
DATA_SUFFIXES = {*TABLES, ".txt", ".json", ".conll", ".conllu"}


class NotFound(UsageError):  # noqa: N818
    """There is nothing with this id."""


class Entry(NamedTuple):
    """A file or folder with its id."""

    id: str
    path: Path
    bundled: bool = False
    outside: bool = False
    """Whether it is a link to a folder that is in none of those of the studio."""


@dataclass(frozen=True)
class Listings:
    """Files and folders by their id, in those of the four listings where they belong."""

    has_model_format: Callable[[Path], bool]
    """Whether a file or folder has the format of a model."""
    entries: dict[Kind, dict[str, Entry]] = field(
        default_factory=lambda: {"model": {}, "run": {}, "comparison": {}, "file": {}}
    )
    own_folders: set[Path] = field(default_factory=set)
    """Folders of models and comparisons, whose files are not data."""
    outside: list[Entry] = field(default_factory=list)
    """Links to folders of models elsewhere, which are skipped."""

    def add(self, entry: Entry) -> None:
        """Add a file or folder to the listings where it belongs; a folder comes before what is in it."""
        if entry.outside:
            if (entry.path / "config.json").is_file():
                self.outside.append(entry)
            return
        for kind in self._kinds(entry.path):
            self.entries[kind][entry.id] = entry

    def find(self, kind: Kind, id: str) -> Entry:
        """The entry with this id."""
        if id not in self.entries[kind]:
            raise NotFound(f"there is no {kind} {id!r:.100} in the folders of this studio: reload the page")
        return self.entries[kind][id]

    def _kinds(self, path: Path) -> Iterator[Kind]:
        if path.is_dir():
            if any((path / name).is_file() for name in ("config.json", SETTINGS)):
                self.own_folders.add(path)
            if (path / "config.json").is_file() and not _is_module(path) and self.has_model_format(path):
                yield "model"
            if (path / "run" / "log.jsonl").is_file():
                yield "run"
            if (path / SETTINGS).is_file():
                yield "comparison"
            return
        suffix, inside = file_suffix(path), not self.own_folders.isdisjoint(path.parents)
        if suffix in MODEL_SUFFIXES and not inside and self.has_model_format(path):
            yield "model"
        elif suffix in DATA_SUFFIXES and not inside:
            yield "file"


def name_roots(roots: Sequence[Path], reserved: Collection[str] = ()) -> dict[str, Path]:
    """The roots by the first part of their ids: the name of the folder, with a number where it is taken."""
    found: dict[str, Path] = {}
    for root in dict.fromkeys(path.resolve() for path in roots):
        name, number = root.name, 2
        while name in found or name in reserved:
            name, number = f"{root.name}-{number}", number + 1
        found[name] = root
    return found


def walk(name: str, roots: Mapping[str, Path]) -> Iterator[Entry]:
    """A root and all below it, to a limited depth and number; what is below a linked folder is left out."""
    root = roots[name]
    yield Entry(name, root)
    count = 0
    for folder, folders, files in os.walk(root):
        path = Path(folder)
        parts = path.relative_to(root).parts
        deep = len(parts) >= MAX_DEPTH
        linked = [] if deep else sorted(each for each in folders if _is_linked(path / each))
        for each in linked:
            outside = not _is_inside(path / each, roots)
            yield Entry("/".join((name, *parts, each)), path / each, outside=outside)
        folders[:] = sorted(each for each in folders if not deep and _is_searched(path / each))
        for each in [*folders, *sorted(files)]:
            count += 1
            if count > MAX_PATHS:
                return
            if not (path / each).is_symlink():
                yield Entry("/".join((name, *parts, each)), path / each)


def path_entries(id: str, roots: Mapping[str, Path]) -> list[Entry]:
    """The file or folder with this id, after the folders that it is in; empty if `walk` would not come to it."""
    name, *parts = id.split("/")
    if name not in roots or len(parts) > MAX_DEPTH + 1 or not {"", ".", ".."}.isdisjoint(parts):
        return []
    found = [Entry(name, roots[name])]
    try:
        for part in parts:
            path = found[-1].path / part
            if part != path.name or not found[-1].path.is_dir() or found[-1].path.is_symlink() or not path.exists():
                return []
            if path.is_symlink() and not (_is_linked(path) and _is_inside(path, roots)):
                return []
            if path.is_dir() and (len(found) > MAX_DEPTH or not (path.is_symlink() or _is_searched(path))):
                return []
            found.append(Entry(f"{found[-1].id}/{part}", path))
    except (OSError, ValueError):  # no file can have such a name
        return []
    return found


def _is_module(folder: Path) -> bool:
    """Whether a folder is a part of the sentence-transformers model that it is in, such as 1_Pooling."""
    whole = all((folder.parent / name).is_file() for name in ("modules.json", "config.json"))
    return whole and MODULE.match(folder.name) is not None


def _is_searched(folder: Path) -> bool:
    return not (folder.name.startswith(".") or folder.name in SKIPPED or folder.is_symlink())


def _is_linked(folder: Path) -> bool:
    """Whether a path is a link to a folder that would be searched."""
    return folder.is_symlink() and folder.is_dir() and not (folder.name.startswith(".") or folder.name in SKIPPED)


def _is_inside(link: Path, roots: Mapping[str, Path]) -> bool:
    """Whether the target of a link lies in one of the folders of the studio."""
    target = Path(os.path.realpath(link))
    return any(target.is_relative_to(root) for root in roots.values())

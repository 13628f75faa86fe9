"""Models that come with Keel: folders in the package, found by name wherever a model is expected."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "assets" / "models"


@cache
def bundled_models() -> Mapping[str, Path]:
    """The folders of all bundled models, by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.json"))}


def locate(model: str | Path) -> Path:
    """The folder of a bundled model if this is its name, unless there is such a file or folder; else the path."""
    path = Path(model)
    return path if path.exists() else bundled_models().get(str(model), path)

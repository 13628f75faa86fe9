"""JSON files of model folders, read defensively: what is wrong is reported with the file and the key."""

import json
from pathlib import Path
from typing import Any

from keel.errors import KeelError


def read_json(path: Path, kind: type) -> Any:
    """The contents of a JSON file, an object or a list (`kind` is dict or list)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise KeelError(f"{path} is nested too deeply for a file of a model: download or copy it again") from None
    except (OSError, ValueError) as error:
        raise KeelError(f"{path} cannot be read ({error}): download or copy it again") from None
    if not isinstance(found, kind):
        expected = "an object" if kind is dict else "a list"
        raise KeelError(f"{path} is not {expected}, as such a file is in a model folder: download or copy it again")
    return found

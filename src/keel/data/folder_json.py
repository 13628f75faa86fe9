"""JSON files of model folders: read and checked against a schema, so that what is wrong has a file and a key."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any

from keel.errors import KeelError

Schema = type | tuple[Any, ...] | list[Any] | Mapping[str | EllipsisType, Any]
"""A type, a tuple of alternatives, a list of one schema for all items, or an object: schemas by key, `...` for any."""
NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
NUMBER = (int, float)
AGAIN = "download or copy it again"


def read_json(path: Path, schema: Schema = dict) -> Any:
    """The contents of a JSON file, as the schema describes them; a key may be missing, and others may be there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise KeelError(f"{path} is nested too deeply for a file of a model folder: {AGAIN}") from None
    except (OSError, ValueError) as error:
        raise KeelError(f"{path} cannot be read ({error}): {AGAIN}") from None
    check_schema(found, schema, path)
    return found


def check_schema(value: Any, schema: Schema, path: Path, key: str = "") -> None:
    """Refuse a value that the schema does not describe; `key` is its place in the file."""
    if not _has_type(value, schema):
        what = f"{key} must be" if key else "the file must hold"
        raise KeelError(f"{path}: {what} {_describe(schema)}, not {value!r:.60}: {AGAIN}")
    for each in schema if isinstance(schema, tuple) else (schema,):
        if isinstance(each, list) and isinstance(value, list):
            for number, item in enumerate(value):
                check_schema(item, each[0], path, f"{key}[{number}]")
        elif isinstance(each, Mapping) and isinstance(value, dict):
            for name, item in value.items():
                if (inner := each.get(name, each.get(...))) is not None:
                    check_schema(item, inner, path, f"{key}.{name}" if key else name)


def _has_type(value: Any, schema: Schema) -> bool:
    if isinstance(schema, tuple):
        return any(_has_type(value, each) for each in schema)
    kind = _type(schema)
    return kind is object or (isinstance(value, kind) and not (isinstance(value, bool) and kind in NUMBER))


def _type(schema: Schema) -> Any:
    return schema if isinstance(schema, type) else list if isinstance(schema, list) else dict


def _describe(schema: Schema) -> str:
    kinds = [_type(each) for each in (schema if isinstance(schema, tuple) else (schema,))]
    return " or ".join(NAMES[kind] for kind in kinds if kind is not NoneType)

"""TOML files of settings, such as recipes: reading with the place of an error, and writing."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keel.errors import KeelError

LONGEST_TOML, DEEPEST_KEY = 1_000_000, 100
"""Characters of a TOML file, and dots in a key."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """The contents of a TOML file."""
    try:
        if "\0" in str(path) or (not Path(path).is_file() and Path(path).exists()):
            raise KeelError(f"{path}: not a file; give the path of a TOML file")
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(LONGEST_TOML + 1)
        if len(text) > LONGEST_TOML:
            raise KeelError(f"{path}: more than {LONGEST_TOML:,} characters; give the path of a TOML file")
        for number, line in enumerate(text.split("\n"), 1):
            if line.partition("=")[0].count(".") > DEEPEST_KEY:  # memory grows with the square of the depth
                raise KeelError(f"{path}:{number}: nested too deeply; fix that line")
        return tomllib.loads(text)
    except RecursionError:
        raise KeelError(f"{path}: nested too deeply; give the path of a TOML file with settings") from None
    except OSError as error:
        raise KeelError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except UnicodeDecodeError:
        raise KeelError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        line = f":{place[1]}" if place else ""
        reason = str(error).replace(place[0], "") if place else str(error)
        raise KeelError(f"{path}{line}: invalid TOML ({reason}); fix that line") from None


def write_toml(values: Mapping[str, Any]) -> str:
    """TOML text of plain data, the inverse of `read_toml`; None, which TOML lacks, becomes "none"."""
    return "\n\n".join(_toml_tables(values, ())) + "\n"


def _toml_tables(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(map(_toml_key, path))}]"] if path else []
    lines += [f"{_toml_key(key)} = {_toml(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    tables = ["\n".join(lines)] if lines else []
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables += _toml_tables(value, (*path, key))
    return tables


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(key)} = {_toml(item)}' for key, item in value.items())}}}"
    assert isinstance(value, str), f"{value!r} cannot be written as TOML"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Files of a decoding trace: how each token was chosen, as JSON and as an HTML page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keel.config import Doc
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.report.decoding_page import decoding_page
from keel.report.html_page import write_text

TRACE = Doc("Write how each token was chosen: a folder, or an .html or .json file.")


def trace_files(path: str | Path) -> list[Path]:
    """The files of a trace: an .html or a .json file in an existing folder, or both in a folder."""
    path = Path(path)
    if path.is_dir() or not path.suffix:
        return [path / "trace.json", path / "trace.html"]
    if path.suffix.lower() not in (".html", ".json"):
        raise UsageError(f"--trace {path} must end in .html or .json, or be a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    return [path]


def trace_writer(path: str | Path | None, on_event: OnEvent) -> Callable[[dict[str, Any]], None] | None:
    """What writes a trace to these files, which are refused at once if they cannot be; None without a path."""
    if path is None:
        return None
    trace_files(path)
    return lambda trace: write_trace(path, trace, on_event)


def write_trace(path: str | Path, trace: dict[str, Any], on_event: OnEvent = ignore) -> None:
    """Write a trace."""
    path, names = Path(path), trace_files(path)
    if path not in names:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KeelError(f"{path} cannot be written: {error.strerror}") from None
    for name in names:
        if name.suffix.lower() == ".html":
            decoding_page(trace).write(name)
        else:
            write_text(name, json.dumps(trace, ensure_ascii=False, indent=1) + "\n")
    note(on_event, f"trace: {', '.join(map(str, names))}")

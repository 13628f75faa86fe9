"""What a command says in the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes to stdout: `lines` for a person or, with --json, `data` for a machine (none: lines that are JSON)."""

    lines: Iterable[str] = ()
    data: Any = None
    code: int = 0

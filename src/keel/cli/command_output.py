"""A command and its output."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from keel.cli.flags import Flags


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output on stdout: `lines`, or with --json `data` (None: the lines are JSON already)."""

    lines: Iterable[str] = ()
    data: Any = None
    code: int = 0


class Command(NamedTuple):
    """A verb on the command line: its flags and what it runs."""

    add_flags: Callable[[Flags], None]
    run: Callable[[Namespace], Answer]

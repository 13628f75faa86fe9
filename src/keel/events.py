"""The one way out: long work tells `on_event` what happens; terminal, log and page listen to the same events."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
"""{"event": kind, ...}: note, act, row, tokens, plan, step, evaluation, checkpoint, scores."""
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An `on_event` for those who do not listen."""


def note(on_event: OnEvent, text: str) -> None:
    """Tell the user something that is no error."""
    on_event({"event": "note", "text": text})


def counted(count: int, one: str, several: str = "") -> str:
    """A number and what it counts, "1 step" or "2,000 steps"; a plural that takes more than an s is given."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"

"""Progress events: long work calls `on_event`; terminal, log file and web page show the same events."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
"""{"event": kind, ...}: note, act, row, tokens, plan, step, evaluation, checkpoint, scores."""
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An `on_event` that does nothing."""


def note(on_event: OnEvent, text: str) -> None:
    """Send the user a note."""
    on_event({"event": "note", "text": text})


def counted(count: int, one: str, several: str = "") -> str:
    """Number with its noun in singular or plural: "1 step", "2,000 steps"."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"

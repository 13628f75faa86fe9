"""Events: long-running work reports progress to `on_event`; terminal, log file and web page receive the same events."""

from collections.abc import Callable
from typing import Any

from keel.errors import for_caller

Event = dict[str, Any]
"""{"event": kind, ...}: note, act, row, prompt, tokens, start, plan, step, evaluation, checkpoint, finished,
scores, cells."""
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An `on_event` that drops all events."""


def note(on_event: OnEvent, text: str) -> None:
    """Send a message that is no error; settings in it are named as in `KeelError`."""
    on_event({"event": "note", "text": for_caller(text)})


def pluralize(count: int, one: str, several: str = "") -> str:
    """A number with its noun: "1 step", "2,000 steps"; an irregular plural is passed as `several`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"

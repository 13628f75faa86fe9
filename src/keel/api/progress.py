"""Training verbs: their progress, shown by default, and the command or call that repeats them."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from keel.config import Validated
from keel.errors import command_line, flags_are_named
from keel.events import ignore
from keel.report.console import Console
from keel.training.distributed import is_main_process

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


MAX_ARGUMENT = 200
"""Characters of an argument in a recorded call; a longer one, such as a list of texts, is abbreviated."""
_call: ContextVar[str] = ContextVar("call", default="")


def repeating_command() -> str:
    """The command line, or in Python the call, of the verb that runs, for the model card."""
    return command_line() or _call.get()


def _call_text(verb: Callable[..., object], positional: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    shown = {name: value for name, value in keywords.items() if name not in ("progress", "on_event", "overwrite")}
    parts = [*map(_argument, positional), *(f"{name}={_argument(value)}" for name, value in shown.items())]
    return f"keel.{verb.__name__}({', '.join(parts)})"


def _argument(value: Any) -> str:
    """An argument in a call; "..." for data in memory."""
    if isinstance(value, Validated):
        settings = ", ".join(f"{name}={_argument(each)}" for name, each in value.non_default().items())
        return f"keel.{type(value).__name__}({settings})"
    if isinstance(value, list | tuple) and value and all(isinstance(each, Path) for each in value):
        files = ", ".join(f"pathlib.Path({str(each)!r})" for each in value)  # a str in a list is a text
        return (f"[{files}]" if isinstance(value, list) else f"({files})") if len(files) <= MAX_ARGUMENT else "..."
    text = repr(str(value) if isinstance(value, Path) else value)
    plain = isinstance(value, str | Path | int | float | None) and len(text) <= MAX_ARGUMENT
    return text if plain else "..."


def shows_progress(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a verb with arguments `progress` and `on_event` write its events to a console, unless `progress` is False or
    an `on_event` is given; on the command line, the console of the command is given where events are to be shown."""

    @wraps(verb)
    def with_console(*positional: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        if not _call.get():  # a verb that another calls belongs to that one
            token = _call.set(_call_text(verb, positional, keywords))
            try:
                return with_console(*positional, **keywords)
            finally:
                _call.reset(token)
        silent = not keywords.get("progress", True) or flags_are_named() or not is_main_process()
        if silent or keywords.get("on_event", ignore) is not ignore:
            return verb(*positional, **keywords)
        with Console() as console:
            keywords["on_event"] = console
            return verb(*positional, **keywords)

    return with_console

"""Progress of long verbs in Python: shown by default, on a terminal, in a notebook or as log lines."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from keel.errors import flags_are_named
from keel.events import ignore
from keel.report.console import Console
from keel.training.distributed import is_main_process

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def shows_progress(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a verb with arguments `progress` and `on_event` write its events to a console, unless `progress` is False or
    an `on_event` is given; on the command line, the console of the command is given where events are to be shown."""

    @wraps(verb)
    def with_console(*positional: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        silent = not keywords.get("progress", True) or flags_are_named() or not is_main_process()
        if silent or keywords.get("on_event", ignore) is not ignore:
            return verb(*positional, **keywords)
        with Console() as console:
            keywords["on_event"] = console
            return verb(*positional, **keywords)

    return with_console

"""The command line. Heavy modules are imported only for the verb that runs: `keel --help` is instant."""

import ast
import atexit
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keel.errors import Interrupted, KeelError, UsageError, naming_flags
from keel.localization import gettext_noop, translate, using_language

if TYPE_CHECKING:
    from keel.cli.command import Command


GROUPS = tuple(map(gettext_noop, ("train", "use", "inspect", "manage", "learn")))
NO_MEMORY = ("OutOfMemoryError", "can't allocate memory")
EXAMPLE = """\
  keel pretrain bert wiki.txt --size mini --minutes 20 --out models/wiki
  keel finetune models/wiki train.tsv --task classify --out models/reviews
  keel predict models/reviews new.txt"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Without `arguments` it is the program itself: interrupted, it ends the process instead of returning.
    """
    words, language = _split_language(sys.argv[1:] if arguments is None else arguments)
    try:
        with using_language(language), naming_flags(words):
            code = _main(words)
    except UsageError as error:  # of --lang itself
        sys.stderr.write(f"keel: {error}\n")
        return error.exit_code
    if arguments is None and code == Interrupted.exit_code:
        _exit_now(code)
    return code


def _split_language(words: Sequence[str]) -> tuple[list[str], str]:
    """The line without --lang, which goes anywhere, and its value."""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word == "--":
            break
        if flag == "--lang":
            after = index + (1 if equals else 2)
            named = value if equals else " ".join(words[index + 1 : after])
            return [*words[:index], *words[after:]], named or "(empty)"
    return [*words], ""


def _exit_now(code: int) -> None:
    """End the process without the interpreter's finalization, after functions registered with atexit.

    Finalization takes half a second of CPU time where torch is imported, and ends the process by SIGINT instead of
    this code if the interrupted code was run by `exec`.
    """
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except (OSError, ValueError):  # closed, which finalization reports
        return
    os._exit(code)


def _main(words: list[str]) -> int:
    try:
        with _sigterm_as_interrupt():
            code = _run(words)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            from traceback import print_exc

            print_exc()
        sentence, code = _explain(error)
        if _is_main_process():
            sys.stderr.write(f"keel: {translate(sentence)}\n")
        return code


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that partial results are printed; an existing handler stays."""
    # One of several processes may wait in a barrier, where no Python handler is ever called.
    handled = threading.current_thread() is threading.main_thread() and int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not handled or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        return 0
    if words[0] == "--version":
        from keel import __version__

        sys.stdout.write(f"keel {__version__}\n")
        return 0
    name = words[0]
    if name not in declared_commands():
        from difflib import get_close_matches

        near = get_close_matches(name, declared_commands(), n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "keel --help lists all commands"
        raise UsageError(f"there is no command {name!r}: {remedy}")
    from keel.report.console import Console

    command = load_command(name)
    flags = command.flags(name, words[1:])
    options = flags.read(flags.line)
    options.quiet |= not _is_main_process()
    with Console(quiet=options.quiet) as console:
        answer = command.run(options, console)
        if not _is_main_process():
            return answer.code
        as_json = options.json and answer.data is not None
        for line in [json.dumps(answer.data, ensure_ascii=False)] if as_json else answer.lines:
            sys.stdout.write(f"{translate(line) if answer.sentences and not as_json else line}\n")
    return answer.code


class Declared(NamedTuple):
    """Where a command is declared, its group in the overview, and what it does."""

    module: str
    group: str
    summary: str


@cache
def declared_commands() -> dict[str, Declared]:
    """All commands by verb, read from the sources of their modules: importing them would load torch."""
    found: dict[str, Declared] = {}
    for path in sorted(Path(__file__).parent.glob("*_commands.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            match statement:
                case ast.FunctionDef(
                    name=name,
                    decorator_list=[ast.Call(func=ast.Name(id="command"), args=[ast.Constant(value=str(group)), *_])],
                ):
                    summary, *_ = (ast.get_docstring(statement) or "").splitlines() or [""]
                    found[name.rstrip("_")] = Declared(path.stem, group, summary)
    return {verb: each for group in GROUPS for verb, each in found.items() if each.group == group}


def load_command(verb: str) -> "Command":
    """The command of a verb."""
    import_module(f"keel.cli.{declared_commands()[verb].module}")
    from keel.cli.command import COMMANDS

    return COMMANDS[verb]


def _is_main_process() -> bool:
    """Whether this process prints for all that torchrun started; torch is not imported to find out."""
    parallel = sys.modules.get("keel.training.distributed")
    return parallel is None or parallel.is_main_process()


def _explain(error: BaseException) -> tuple[str, int]:
    """One sentence for the user, and the exit code."""
    match error:
        case KeelError():
            return str(error), error.exit_code
        case KeyboardInterrupt():
            return "interrupted", Interrupted.exit_code
        case OSError(filename=str(path), strerror=str(reason)):
            return f"{path}: {reason}", 1
        case OSError(errno=errno.ENOSPC):
            return "no space left on the disk: free some, or write elsewhere", 1
        case _ if isinstance(error, MemoryError) or any(sign in repr(error) for sign in NO_MEMORY):
            return "out of memory: lower --batch, or use gradient accumulation with --train.accumulate", 1
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug in Keel: {what} (run it with --debug and report the output)", 1


def _overview() -> str:
    lines = [translate("usage: keel COMMAND ...     (keel COMMAND --help shows its flags)")]
    for group, commands in groupby(declared_commands().items(), lambda item: item[1].group):
        lines += ["", translate(group), *(f"  {verb:11}{translate(each.summary)}" for verb, each in commands)]
    lines += [
        "",
        translate("Results go to stdout, messages to stderr. --json prints JSON, - reads stdin."),
        "",
        EXAMPLE,
    ]
    return "\n".join(lines) + "\n"

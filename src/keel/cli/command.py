"""Commands: their declaration, their output, and the arguments that many share: the model, the device, the text."""

import os
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from keel.api.model_loading import Kind, default_model
from keel.cli import GROUPS
from keel.cli.flags import Flags
from keel.data.text_files import open_text, refuse_special_file, stdin_lines
from keel.errors import KeelError, UsageError
from keel.events import note
from keel.model import Model
from keel.report.console import Console
from keel.training.plan import Precision

FILE_SUFFIXES = (".txt", ".md", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".bz2", ".xz", ".zst")
"""An argument with such an ending is a file name, not a text."""
MAX_PROMPT = 1_000_000
"""Characters of a prompt."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output on stdout: `lines`, or with --json `data` (None: the lines are JSON already)."""

    lines: Iterable[str] = ()
    data: Any = None
    code: int = 0
    sentences: bool = False
    """Whether the lines are sentences of Keel, which are translated, and not texts or data of users."""


Declaration = Callable[[Flags], object]
"""Adds flags to those of a command."""
Run = Callable[[Namespace, Console], Answer]


class Command(NamedTuple):
    """A verb on the command line: its usage, its flags and what it runs."""

    usage: str
    declarations: Sequence[Declaration]
    run: Run

    def flags(self, verb: str, line: Sequence[str] = ()) -> Flags:
        """The flags of the command, for this line."""
        flags = Flags(verb, self.usage, self.run.__doc__ or "", line)
        for declare in self.declarations:
            declare(flags)
        return flags


COMMANDS: dict[str, Command] = {}
"""The declared commands by verb."""


def command(group: str, usage: str, *declarations: Declaration) -> Callable[[Run], Run]:
    """Declare the function below as the command of its name; its docstring stands in the overview, under `group`."""

    def declare(run: Run) -> Run:
        assert group in GROUPS
        COMMANDS[run.__name__.rstrip("_")] = Command(usage, declarations, run)
        return run

    return declare


def argument(name: str, metavar: str, help: str, **options: Any) -> Declaration:
    """Declares an argument or a flag as argparse does."""
    return lambda flags: flags.add_argument(name, metavar=metavar, help=help, **options)


def arguments_of(verb: Callable[..., Any], **metavars: str) -> Declaration:
    """Declares the arguments of a verb: see `Flags.arguments`."""
    return lambda flags: flags.arguments(verb, **metavars)


def optional_value(flag: str, value: str) -> Declaration:
    """Declares that a flag stands for this value if none follows it."""

    def declare(flags: Flags) -> None:
        action = next(each for each in flags._actions if flag in each.option_strings)
        action.nargs, action.const = "?", value

    return declare


def section(name: str, *settings: Any, only: Collection[str] | None = None, defaults: bool = True) -> Declaration:
    """Declares the fields of settings: see `Flags.section`."""
    return lambda flags: flags.section(name, *settings, only=only, defaults=defaults)


def model_flag(what: str = "A model folder, a word vector file, or the name of a bundled model.") -> Declaration:
    return argument("--model", "MODEL", what)


def device_flags(flags: Flags) -> None:
    help = "Device: cpu, cuda, cuda:1; auto: the GPU if there is one. [auto]"
    flags.add_argument("--device", default="auto", help=help)
    flags.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: torch's default. [0]")


PRECISION = (
    "Precision of matrix products: fp32, or bf16 (nearly twice as fast on a CPU with bf16 instructions); auto: bf16 "
    "for the predictions of a task on a GPU, else fp32. [auto]"
)
precision_flag = argument("--precision", "NAME", PRECISION, default="auto")


ENCODING = "Character encoding of a file; auto: byte order mark, UTF-8, else GB18030; invalid text is refused. [auto]"
encoding_flag = argument("--encoding", "NAME", ENCODING, default="auto")


def load(options: Namespace, console: Console, text: str = "", kind: Kind = "causal language model") -> Model:
    """The model that was named, or else the bundled one of that kind for the language of a text."""
    path = options.model or default_model(kind, text, console)
    if options.threads:
        torch.set_num_threads(options.threads)
    precision: Precision = options.precision if "precision" in options else "auto"
    return Model.load(path, device=options.device, precision=precision, on_event=console)


def note_figure(options: Namespace, console: Console) -> None:
    """Say where a figure was written, if `--out` is given."""
    if "out" in options.settings:
        note(console, f"figure: {options.settings['out']}")


def file_of(given: str) -> Path | None:
    """The file that an argument names, None if it is a text; the name of a missing file is refused."""
    try:
        if Path(given).is_file():
            return Path(given)
        if os.sep in given:  # a folder or a pipe; without a separator it may well be a word
            refuse_special_file(Path(given))
    except KeelError:
        raise
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return None
    if given.lower().endswith(FILE_SUFFIXES) and not any(map(str.isspace, given)):
        raise UsageError(f"there is no file {given}: give an existing file, or a text")
    return None


def lines_of(options: Namespace, console: Console) -> Iterable[str]:
    """The text itself, or the lines of the file that it names, or of stdin for "-"."""
    if options.text == "-":
        return stdin_lines(options.encoding)
    path = file_of(options.text)
    if path is None:
        return [options.text]
    return (line for _, line in open_text(path, options.encoding, console).numbered_lines(cut=True))


def prompt_of(options: Namespace, console: Console) -> str:
    """The text itself, or all text of a file or of stdin."""
    parts: list[str] = []
    size = 0
    for line in lines_of(options, console):
        parts.append(line)
        size += len(line) + 1
        if size > MAX_PROMPT + 1:
            name = "stdin" if options.text == "-" else options.text[:60]
            raise KeelError(f"{name} has more than {MAX_PROMPT:,} characters: give a shorter text")
    return "\n".join(parts)

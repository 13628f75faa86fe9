"""Arguments that many commands share: the model, the device, and the text."""

import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import torch

from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.data.text_files import open_text
from keel.errors import UsageError
from keel.model import Model

FILE_SUFFIXES = (".txt", ".md", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".bz2", ".xz", ".zst")
"""An argument with such an ending is a file name, not a text."""


def model_flag(flags: Flags, what: str = "A model folder, or a word vector file.") -> None:
    flags.add_argument("--model", metavar="MODEL", help=what)


def device_flags(flags: Flags) -> None:
    help = "Device: cpu, cuda, cuda:1; auto: the GPU if there is one. [auto]"
    flags.add_argument("--device", default="auto", help=help)
    flags.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: torch's default. [0]")


def encoding_flag(flags: Flags) -> None:
    help = "Character encoding of a file; auto: UTF-8, else GB18030. [auto]"
    flags.add_argument("--encoding", default="auto", metavar="NAME", help=help)


def model_of(options: Namespace) -> str:
    if not options.model:
        raise UsageError("no default model ships with Keel yet: choose one with --model FOLDER")
    return options.model


def load(options: Namespace, console: Console) -> Model:
    path = model_of(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    return Model.load(path, device=options.device, on_event=console)


def file_of(given: str) -> Path | None:
    """The file that an argument names, None if it is a text; the name of a missing file is refused."""
    try:
        if Path(given).is_file():
            return Path(given)
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return None
    if given.lower().endswith(FILE_SUFFIXES) and not any(map(str.isspace, given)):
        raise UsageError(f"there is no file {given}: give an existing file, or a text")
    return None


def lines_of(options: Namespace, console: Console) -> Iterable[str]:
    """The text itself, or the lines of the file that it names, or of stdin for "-"."""
    if options.text == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    path = file_of(options.text)
    return [options.text] if path is None else (line for _, line in open_text(path, options.encoding, console))

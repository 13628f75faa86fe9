"""The model that a command names, where it runs, and what it reads."""

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

NAMES = (".txt", ".md", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".bz2", ".xz", ".zst")
"""A word that ends so is the name of a file, not a text."""


def device_flags(flags: Flags) -> None:
    flags.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; auto takes the GPU if there is one [auto]")
    flags.add_argument(
        "--threads", type=int, default=0, metavar="N", help="CPU threads; 0 leaves torch's own number [0]"
    )


def load(options: Namespace, console: Console) -> Model:
    if not options.model:
        raise UsageError("no default model ships with Keel yet: say which one by --model FOLDER")
    if options.threads:
        torch.set_num_threads(options.threads)
    return Model.load(options.model, device=options.device, on_event=console)


def encoding_flag(flags: Flags) -> None:
    flags.add_argument("--encoding", default="auto", metavar="NAME", help="of a file: utf-8, gb18030, ... [auto]")


def file_of(given: str) -> Path | None:
    """The file that is meant, if it is no text itself; the name of one that is not there is refused."""
    try:
        if Path(given).is_file():
            return Path(given)
    except (OSError, ValueError):  # too long for a path, or with a zero in it
        return None
    if given.lower().endswith(NAMES) and not any(map(str.isspace, given)):
        raise UsageError(f"there is no file {given}: name one that exists, or give a text")
    return None


def lines_of(options: Namespace, console: Console) -> Iterable[str]:
    """A text, or the lines of a file or, as "-", of stdin."""
    if options.text == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    path = file_of(options.text)
    return [options.text] if path is None else (line for _, line in open_text(path, options.encoding, console))

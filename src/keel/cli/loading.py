"""The model that a command names, where it runs, and what it reads."""

import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import torch

from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.errors import UsageError
from keel.model import Model
from keel.text.files import open_text

NAMES = (".txt", ".md", ".tsv", ".csv", ".json", ".jsonl", ".gz", ".bz2", ".xz", ".zst")
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


def lines_of(given: str, console: Console) -> Iterable[str]:
    """A text, or the lines of a file or, as "-", of stdin; the name of a file that is not there is refused."""
    if given == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    try:
        there = Path(given).is_file()
    except (OSError, ValueError):  # too long for a path, or with a zero in it
        there = False
    if there:
        return (line for _, line in open_text(given, "auto", console))
    if given.lower().endswith(NAMES) and not any(map(str.isspace, given)):
        raise UsageError(f"there is no file {given}: name one that exists, or give a text")
    return [given]

"""The model that a command names, and where it runs."""

from argparse import Namespace

import torch

from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.errors import UsageError
from keel.model import Model


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

"""Command that shows every tensor of a text: trace."""

from argparse import Namespace
from operator import methodcaller

from keel.api import tensor_tracing
from keel.cli.command import (
    Answer,
    argument,
    arguments_of,
    command,
    device_flags,
    encoding_flag,
    load,
    model_flag,
    note_figure,
    prompt_of,
)
from keel.report.console import Console


@command(
    "inspect",
    "TEXT [SECOND] [--model M]",
    argument("text", "TEXT|FILE|-", "A text; [MASK] or ___ is a masked word to predict."),
    argument("second", "SECOND", "Second text of a pair, or the target of an encoder-decoder.", nargs="?", default=""),
    model_flag(
        "A model of bert, ernie, electra, modernbert, gpt, elmo, rnn, ulmfit, seq2seq, transformer or cnn, "
        "or word vectors."
    ),
    argument("--layer", "N", "Print one layer, with the meaning of each tensor.", type=int, default=0),
    methodcaller("add_argument", "--all", action="store_true", help="Print the tensors of all layers and steps."),
    arguments_of(tensor_tracing.trace, also="TEXT", tokens="N", out="FILE"),
    encoding_flag,
    device_flags,
)
def trace(options: Namespace, console: Console) -> Answer:
    """Every tensor of a text from token ids to output, as a table or a page to step through."""
    text = prompt_of(options, console)
    model = load(options, console, f"{text} {options.second}", "encoder")
    found = tensor_tracing.trace(text, options.second, model=model, on_event=console, **options.settings)
    lines = found.lines(layer=options.layer, everything=options.all)
    note_figure(options, console)
    return Answer(sentences=True, lines=lines, data=found.to_dict() if options.json else None)

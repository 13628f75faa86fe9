"""Command of pronouns and occupations: bias."""

from argparse import Namespace

from keel.api import bias as bias_verb
from keel.cli.command import Answer, arguments_of, command, model_flag, note_figure
from keel.report.console import Console


@command(
    "inspect",
    "[--model M] [--out FILE]",
    model_flag("A language model (bert, gpt, ...), any model with attention, or a word vector file."),
    arguments_of(bias_verb.bias, pronouns="A:B", occupations="FILE", templates="FILE", out="FILE"),
)
def bias(options: Namespace, console: Console) -> Answer:
    """Pronouns and occupations: log-odds, association tests and attention."""
    found = bias_verb.bias(options.model, on_event=console, **options.settings)
    note_figure(options, console)
    return Answer(sentences=True, lines=found.lines(), data=found.to_dict())

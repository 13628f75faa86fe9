"""Command of figures: figure."""

from argparse import Namespace

from keel.api import figures
from keel.cli.command import Answer, argument, arguments_of, command, model_flag, note_figure
from keel.localization import translate
from keel.report.console import Console


@command(
    "inspect",
    "[NAME] [--out FILE] [--model M]",
    argument("name", "NAME", "Name of the figure; without it, list all.", nargs="?"),
    model_flag("Show the layers, width and heads of this model instead of published ones."),
    arguments_of(
        figures.figure, out="FILE", text="TEXT", second="TEXT", phrases="FILE", entities="FILE", entity_model="FOLDER"
    ),
)
def figure(options: Namespace, console: Console) -> Answer:
    """Diagrams of networks, tasks and inputs, from the configuration; without NAME, list all."""
    if options.name is None:
        summaries = {name: kind.summary for name, kind in figures.FIGURES.items()}
        lines = [f"{name:11} {translate(summary)}" for name, summary in summaries.items()]
        return Answer(lines=lines, data=summaries)
    found = figures.figure(options.name, model=options.model, on_event=console, **options.settings)
    note_figure(options, console)
    return Answer(sentences=True, lines=found.lines(), data=found.to_dict())

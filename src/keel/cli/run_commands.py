"""Commands that compare trainings."""

from argparse import Namespace

from keel.api import training_runs
from keel.cli.command import Answer, argument, arguments_of, command
from keel.cli.score_lines import aligned_lines
from keel.events import note
from keel.report.console import Console


@command(
    "inspect",
    "DIR...",
    argument("folders", "DIR", "Folders of trained models or unfinished runs, or one that contains them.", nargs="+"),
    arguments_of(training_runs.runs, out="FILE.html", tensorboard="DIR"),
)
def runs(options: Namespace, console: Console) -> Answer:
    """Compare trainings: curves, settings that differ, final scores."""
    found = training_runs.runs(options.folders, **options.settings)
    if "out" in options.settings:
        note(console, f"page: {options.settings['out']}")
    if "tensorboard" in options.settings:
        note(console, f"event files: tensorboard --logdir {options.settings['tensorboard']}")
    head, rows = found.result_table()
    lines = [*aligned_lines([["", *head[1:]], *rows])]
    head, rows = found.settings_table()
    if rows:
        lines += ["", "settings that differ", *aligned_lines([["", *head[1:]], *rows])]
    return Answer(lines=lines, data=found.to_dict())

"""Commands of many trainings: their comparison, and the GLUE benchmark."""

from argparse import Namespace
from shutil import get_terminal_size

from rich.cells import cell_len

from keel.api import glue_benchmark, training_runs
from keel.cli.command import Answer, argument, arguments_of, command, device_flags
from keel.events import note
from keel.localization import translated
from keel.report.console import Console
from keel.text_table import aligned_lines, wrapped_lines


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
    return Answer(sentences=True, lines=_run_lines(found, get_terminal_size().columns), data=found.to_dict())


def _run_lines(found: training_runs.RunComparison, width: int) -> list[str]:
    """Results and settings that differ; if the names of the runs make the tables too wide, they are numbered."""
    results, settings = found.result_table(), found.settings_table()
    tables = [[["", *translated(head[1:])], *rows] for head, rows in (results, settings)]
    lines: list[str] = []
    if any(cell_len(line) > width for table in tables for line in aligned_lines(table, left=1)):
        names = [run.name for run in found.runs]
        numbers = [str(number) for number in range(1, len(names) + 1)]
        lines = [*aligned_lines([*zip(numbers, names, strict=True)], left=2), ""]
        tables[0] = [tables[0][0], *([number, *row[1:]] for number, row in zip(numbers, results[1], strict=True))]
        tables[1][0] = ["run", *numbers]
    lines += wrapped_lines(tables[0], width)
    if settings[1]:
        lines += ["", "settings that differ", *wrapped_lines(tables[1], width)]
    return lines


@command(
    "train",
    "MODEL --data DIR --out DIR",
    argument("model", "MODEL", "A pre-trained model (folder or file), or a system to train from scratch."),
    argument("--data", "DIR", "GLUE's folder, with CoLA, SST-2, MRPC and so on inside.", required=True),
    argument("--out", "DIR", "Folder for the runs, glue.json and submission/.", required=True),
    arguments_of(glue_benchmark.glue, lr="X,X", tasks="NAME,NAME"),
    device_flags,
)
def glue(options: Namespace, console: Console) -> Answer:
    """Fine-tune on all GLUE tasks: learning rates, seeds, dev scores, submission files."""
    where = {"out": options.out, "device": options.device, "threads": options.threads}
    found = glue_benchmark.glue(options.model, options.data, on_event=console, **where, **options.settings)
    head, rows = found.table()
    lines = [*aligned_lines([["", *translated(head[1:])], *rows])]
    lines += [f"{name} is left out: {reason}" for name, reason in found.left_out.items()]
    return Answer(sentences=True, lines=lines, data=found.to_dict())

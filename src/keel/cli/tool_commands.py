"""Commands around models and data: check, convert, info, demo, claim."""

from argparse import Namespace
from pathlib import Path

from keel.api import conversion
from keel.api.settings import TextSettings
from keel.checks import check as check_files
from keel.cli.command import Answer, argument, arguments_of, command, device_flags, load, section
from keel.cli.model_info import describe
from keel.cli.training_commands import comma_separated
from keel.data.examples import Columns
from keel.events import note
from keel.formats.registry import FORMATS
from keel.localization import translate
from keel.report.console import Console
from keel.tasks import TASKS
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.text_table import pad_right

FILES = (
    "Text for pre-training, of several languages as de:FILE en:FILE; or labelled files: training, then test; for "
    "seq2seq pairs of parallel files."
)
FIX = "Write a cleaned copy (csv, tsv, jsonl): labels merged by case, spaces and .0, no empty or duplicate rows."
SOURCE = "A Hugging Face folder (pickled weights too), a fastText or ELMo model, or a word vector file."
SUFFIXES = ", ".join(sorted({suffix for each in FORMATS for suffix in each.suffixes}))
NAMES_OF_SETTINGS = ("shape", "not default", "recipe")
"""Facts whose values are settings, by the names that flags have."""
FOLDER = "A folder of a model, a run or tokens, or a word vector file; without it, this machine."


@command(
    "train",
    "FILE...",
    argument("files", "FILE", FILES, nargs="+"),
    argument("--task", "|".join(TASKS), "Task of labelled files; default: detected.", default=""),
    argument("--model", "FOLDER", "Count lengths in this model's tokens."),
    argument("--fix", "FILE", FIX),
    argument(
        "--against", "FILE", "Corpus to compare test files with: count texts that share 13 words in a row with it."
    ),
    argument("--minutes", "X", "Recommend a model size for this device and time.", type=float, default=0),
    section("columns", Columns()),
    section("text", TextSettings(), only=("vocabulary", "language_smoothing")),
    device_flags,
)
def check(options: Namespace, console: Console) -> Answer:
    """Check data before training: encoding, labels, overlap, duplicates, lengths."""
    model = load(options, console) if options.model else None
    settings = {"task": options.task, "minutes": options.minutes, "device": options.device, "fix": options.fix}
    settings["against"] = options.against
    parallel = options.task == SequenceToSequence.name
    files = [path for name in options.files for path in (parallel and comma_separated(name)) or (Path(name),)]
    report = check_files(files, model=model, on_event=console, **settings, **options.settings)
    return Answer(sentences=True, lines=report.lines(), data=report.to_dict(), code=1 if report.errors else 0)


@command(
    "manage",
    "IN OUT",
    argument("source", "IN", SOURCE),
    argument("out", "OUT", f"The folder to write; {SUFFIXES} for word vectors alone."),
    arguments_of(conversion.convert),
)
def convert(options: Namespace, console: Console) -> Answer:
    """Convert another format to a Keel folder, without loss."""
    conversion.convert(options.source, options.out, on_event=console, **options.settings)
    return Answer(
        sentences=True,
        lines=[f"{options.out} is ready: all numbers are equal when read back"],
        data={"model": options.out},
    )


@command("manage", "[FOLDER]", argument("folder", "FOLDER", FOLDER, nargs="?"))
def info(options: Namespace, console: Console) -> Answer:
    """Describe a model, a run, tokens, a word vector file or this machine."""
    facts = describe(options.folder)
    lines: list[str] = []
    for name, value in facts.items():
        shown = str(value) if name.startswith(NAMES_OF_SETTINGS) else translate(str(value))
        lines.append(f"{pad_right(f'{translate(name)}:', 15)} {shown}")
    return Answer(lines=lines, data=facts)


@command("learn", "[--out DIR]", argument("--out", "DIR", "The folder for all files. [keel-demo]", default="keel-demo"))
def demo(options: Namespace, console: Console) -> Answer:
    """The tour: from raw text to a BERT and a ranking of six systems, in five minutes."""
    from keel import demo

    page = demo.run(out=options.out, on_event=console)
    return Answer(lines=[str(page)], data={"page": str(page)})


@command(
    "learn",
    "[N]",
    argument("number", "N", "Number of the claim; without it, list all.", nargs="?", type=int),
    argument("--model", "FOLDER", "Test the claim on this model, as its page describes."),
    argument("--data", "FOLDER", "Data for --model."),
    argument("--out", "PAGE", "Write a page (.html): the result; without N, an index with the results beside it."),
)
def claim(options: Namespace, console: Console) -> Answer:
    """Run the experiment behind a claim; without N, list all claims."""
    from keel import claims
    from keel.claims.html_pages import page_file, write_index, write_verdict

    if options.out:
        page_file(options.out)  # refuses other files before the experiment runs
    if options.number is None:
        listed: list[str] = []
        claims.run(on_event=lambda event: listed.append(event["text"]))
        if options.out:
            listed.append(str(write_index(options.out)))
        return Answer(lines=listed, data={number: claim.title for number, claim in claims.CLAIMS.items()})
    finding = claims.run(options.number, model=options.model, data=options.data, on_event=console)
    assert finding is not None
    if options.out:
        note(console, f"page: {write_verdict(options.out, options.number, finding)}")
    elif finding.pictures:
        note(console, f"pictures: {len(finding.pictures)}; to see them, use --out PAGE.html")
    return Answer(lines=finding.lines(), data={"claim": options.number, **finding.to_dict()})

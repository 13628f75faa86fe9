"""Commands around models and data: check, layers, convert, info, demo, claim."""

from argparse import Namespace
from dataclasses import asdict

from keel.api import conversion, inspection
from keel.checks import check as check_files
from keel.cli.command_output import Answer, Command
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, load
from keel.cli.model_info import describe
from keel.data.examples import Columns
from keel.tasks import TASKS


def _check_flags(flags: Flags) -> None:
    help = "Text for pre-training, or labelled files: training, then test; for seq2seq pairs of parallel files."
    flags.add_argument("files", nargs="+", metavar="FILE", help=help)
    flags.add_argument("--task", default="", metavar="|".join(TASKS), help="Task of labelled files; default: detected.")
    flags.add_argument("--model", metavar="FOLDER", help="Count lengths in this model's tokens.")
    help = "Recommend a model size for this device and time."
    flags.add_argument("--minutes", type=float, default=0, metavar="X", help=help)
    flags.section("columns", Columns())
    device_flags(flags)


def check(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        report = check_files(
            options.files,
            model=load(options, console) if options.model else None,
            task=options.task,
            minutes=options.minutes,
            device=options.device,
            on_event=console,
            **options.settings,
        )
    return Answer(lines=report.lines(), data=report.to_dict(), code=1 if report.errors else 0)


def _layers_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="The folder of a model that was fine-tuned with --mix.")
    device_flags(flags)


def layers(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = inspection.layers(load(options, console), on_event=console)
    return Answer(lines=found.lines(), data=found.to_dict())


def _convert_flags(flags: Flags) -> None:
    help = "A Hugging Face folder (pickled weights too), a fastText or ELMo model, or a word vector file."
    flags.add_argument("source", metavar="IN", help=help)
    flags.add_argument("out", metavar="OUT", help="The folder to write; .txt, .vec or .bin for word vectors alone.")
    flags.arguments(conversion.convert)


def convert(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        conversion.convert(options.source, options.out, on_event=console, **options.settings)
    return Answer(lines=[f"{options.out} is ready: all numbers are equal when read back"], data={"model": options.out})


def _info_flags(flags: Flags) -> None:
    help = "A folder of a model, a run or tokens, or a word vector file; without it, this machine."
    flags.add_argument("folder", nargs="?", metavar="FOLDER", help=help)


def info(options: Namespace) -> Answer:
    facts = describe(options.folder)
    return Answer(lines=[f"{name + ':':16}{value}" for name, value in facts.items()], data=facts)


def _demo_flags(flags: Flags) -> None:
    flags.add_argument("--out", default="keel-demo", metavar="DIR", help="The folder for all files. [keel-demo]")


def demo(options: Namespace) -> Answer:
    from keel import demo

    with Console(quiet=options.quiet) as console:
        page = demo.run(out=options.out, on_event=console)
    return Answer(lines=[str(page)], data={"page": str(page)})


def _claim_flags(flags: Flags) -> None:
    flags.add_argument("number", nargs="?", type=int, metavar="N", help="Number of the claim; without it, list all.")
    flags.add_argument("--model", metavar="FOLDER", help="Test the claim on this model, as its page describes.")
    flags.add_argument("--data", metavar="FOLDER", help="Data for --model.")


def claim(options: Namespace) -> Answer:
    from keel import claims

    if options.number is None:
        listed: list[str] = []
        claims.run(on_event=lambda event: listed.append(event["text"]))
        return Answer(lines=listed, data={number: claim.title for number, claim in claims.CLAIMS.items()})
    with Console(quiet=options.quiet) as console:
        finding = claims.run(options.number, model=options.model, data=options.data, on_event=console)
    assert finding is not None
    return Answer(lines=finding.lines(), data={"claim": options.number, **asdict(finding)})


COMMANDS = {
    "check": Command(_check_flags, check),
    "layers": Command(_layers_flags, layers),
    "convert": Command(_convert_flags, convert),
    "info": Command(_info_flags, info),
    "demo": Command(_demo_flags, demo),
    "claim": Command(_claim_flags, claim),
}

"""What each command takes, does and prints."""

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from keel import verbs
from keel.check import check as check_files
from keel.cli.console import Console, clock, losses, score_line
from keel.cli.flags import LENGTHS, Flags
from keel.cli.info import describe
from keel.errors import UsageError
from keel.model import Model
from keel.systems import SYSTEMS
from keel.tasks import TASKS
from keel.tasks.examples import read_examples
from keel.text.files import kind_of, open_text
from keel.verbs import Columns, Text

FIRST_SYSTEM = next(iter(SYSTEMS.values()))()


def _pretrain_flags(flags: Flags) -> None:
    systems = [kind() for kind in SYSTEMS.values()]
    flags.add_argument("words", nargs="*", metavar="SYSTEM|FOLDER CORPUS...", help=f"what to train ({', '.join(SYSTEMS)}, or a model folder to go on with), and text files, patterns or -")  # fmt: skip
    flags.add_argument("--out", help="the model folder to write; the same command again goes on where it stopped")
    flags.add_argument("--recipe", metavar="FILE.toml", help="settings from a file; flags override them")
    flags.add_argument("--size", "--system.size", help=f"a published shape: {', '.join(systems[0].sizes)}")
    flags.add_argument("--overwrite", action="store_true", help="delete what --out holds and start anew")
    flags.section("train", systems[0].train)
    flags.section("text", Text())
    flags.section("system", *systems)
    flags.set_defaults(flags=flags)


def pretrain(options: Namespace) -> None:
    system, corpus, settings = "", options.words, options.settings
    if options.recipe:
        recipe = options.flags.read_recipe(options.recipe)
        system = recipe.system
        if any(name in settings for name in options.flags.LENGTHS):  # another way to say how long
            recipe.settings = {name: value for name, value in recipe.settings.items() if name not in options.flags.LENGTHS}
        settings = recipe.settings | settings
        options.out, options.size = options.out or recipe.out, options.size or recipe.size
    if corpus and (not system or corpus[0] in SYSTEMS or Path(corpus[0]).is_dir()):
        system, *corpus = corpus
    corpus = corpus or (recipe.corpus if options.recipe else [])
    if not system or not corpus:
        raise UsageError("say what to train and on which text, as in: keel pretrain bert corpus.txt --out models/mine")
    if system not in SYSTEMS and not Path(system).exists():
        raise UsageError(f"{system!r} is neither a system ({', '.join(SYSTEMS)}) nor a model folder")
    if options.size:
        settings["size"] = options.size
    out = _needed(options.out, "--out")
    with _console(options) as console:
        model = verbs.pretrain(
            system, corpus, out=out, overwrite=options.overwrite, on_event=console, **_by_field(settings)
        )
    if not _leads():
        return
    evaluations = _evaluations(Path(out))
    result = {"model": out, "steps": model.card.steps, "seconds": model.card.seconds, "evaluations": evaluations}
    if options.json:
        return _print_json(result)

    print(f"{out} is ready: {model.card.steps:,} steps in {clock(model.card.seconds)}")
    if len(evaluations) > 1:
        first, last = evaluations[0], evaluations[-1]
        print(f"held-out loss: {losses(first)} before, {losses(last)} after")
    print(f'next: keel fill "... [MASK] ..." --model {out}')
    print(f"      keel finetune {out} TRAIN.tsv --task classify --out NEW_FOLDER")


def _finetune_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="the folder of a pre-trained model")
    flags.add_argument("file", metavar="FILE", help="labelled examples: tsv, csv, jsonl, parquet, fastText's; or -")
    flags.add_argument("--task", default="classify", metavar="|".join(TASKS), help="one text, or two, to a label [classify]")
    flags.add_argument("--out", required=True, help="the model folder to write")
    flags.add_argument("--dev", default="10%", metavar="FILE|10%|none".replace("%", "%%"), help="what to watch: a file, a share of FILE, or none [10%%]")
    flags.add_argument("--test", metavar="FILE", help="scored once, at the end")
    flags.add_argument("--folds", type=int, default=0, metavar="K", help="also score every example by a model that has not seen it")
    flags.add_argument("--seeds", type=int, default=1, metavar="N", help="runs; the best on dev is kept")
    flags.add_argument("--freeze", action="store_true", help="leave the encoder as it is and teach the head alone")
    flags.add_argument("--from-scratch", action="store_true", help="forget the weights, to see what pre-training brings")
    flags.add_argument("--overwrite", action="store_true", help="delete what --out holds and start anew")
    flags.section("columns", Columns())
    flags.section("train", next(iter(SYSTEMS.values()))().tuning(False))


def finetune(options: Namespace) -> None:
    with _console(options) as console:
        model = verbs.finetune(
            options.model,
            options.file,
            task=options.task,
            out=options.out,
            dev=options.dev,
            test=options.test,
            folds=options.folds,
            seeds=options.seeds,
            freeze=options.freeze,
            from_scratch=options.from_scratch,
            overwrite=options.overwrite,
            on_event=console,
            **_by_field(options.settings),
        )
    if not _leads():
        return
    if options.json:
        return _print_json({"model": options.out, "scores": model.card.scores})

    print(f"{options.out} is ready")
    for name, scores in model.card.scores.items():
        if "mean" in scores:
            print(f"{name}: {scores['main']} {scores['mean']:.3f} on average of {len(scores['values'])}")
        else:
            print(f"{name}: {score_line(scores)}")
    print(f"next: keel predict {options.out} NEW.txt")
    print(f"      keel evaluate {options.out} TEST.tsv")


def _task_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="the folder of a fine-tuned model")
    flags.add_argument("file", metavar="FILE", help="a file of texts or examples, or -")
    flags.section("columns", Columns())
    _device_flags(flags)


def _evaluate_flags(flags: Flags) -> None:
    flags.add_argument("--out", metavar="DIR", help="also write confusion.tsv and errors.tsv there")
    _task_flags(flags)


def evaluate(options: Namespace) -> None:
    with _console(options) as console:
        model = _load(options, console)
        scores = verbs.evaluate(model, options.file, out=options.out, on_event=console, **_by_field(options.settings))
    if options.json:
        return _print_json(scores.to_dict())
    print(scores)
    if scores.confusion and len(scores.names) <= 12:
        print("\nrows are the true labels, columns the predicted ones")
        cells = [["", *scores.names], *([name, *map(str, row)] for name, row in zip(scores.names, scores.confusion, strict=True))]
        width = max(len(cell) for row in cells for cell in row) + 2
        for row in cells:
            print("".join(cell.rjust(width) for cell in row))
    if scores.errors:
        print("\nthe surest errors")
        for error in scores.errors[:5]:
            texts = error.text if error.second is None else f"{error.text} | {error.second}"
            print(f"{error.where}: {error.label} taken for {error.predicted} ({error.sureness:.2f}): {texts[:100]}")


def predict(options: Namespace) -> None:
    with _console(options) as console:
        model = _load(options, console)
        for record in verbs.predict(model, options.file, on_event=console, **_by_field(options.settings)):
            print(json.dumps(record, ensure_ascii=False))


def _fill_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT", help="with [MASK] or ___ where a word is missing; or -")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a pre-trained model")
    flags.add_argument("--top", type=int, default=5, metavar="N", help="words for each blank [5]")
    _device_flags(flags)


def fill(options: Namespace) -> None:
    text = sys.stdin.read().strip() if options.text == "-" else options.text
    with _console(options) as console:
        blanks = verbs.fill(text, model=_load(options, console), top=options.top, on_event=console)
    if options.json:
        return _print_json([[{"word": word, "probability": share} for word, share in blank] for blank in blanks])
    for number, blank in enumerate(blanks, 1):
        if len(blanks) > 1:
            print(f"blank {number}")
        for word, probability in blank:
            print(f"{probability:7.1%}  {word}")


def _embed_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="a text; or a file or stdin, with a text in each line")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a model")
    flags.add_argument("--layer", type=int, default=-1, metavar="N", help="0 is the embeddings, -1 the top [-1]")
    flags.add_argument("--pool", default="mean", choices=("mean", "cls", "none"), help="one vector for a text, or (none) for each piece [mean]")
    flags.add_argument("--text-column", default="", metavar="NAME", help="of a csv, tsv, jsonl or parquet file")
    flags.add_argument("--out", metavar="FILE.npy", help="write an array there instead of JSON lines to stdout")
    _device_flags(flags)


def embed(options: Namespace) -> None:
    if options.out and options.pool == "none":
        raise UsageError("--pool none gives texts different numbers of vectors, which no .npy holds: leave out --out")
    with _console(options) as console:
        texts = _texts(options, console)
        found = verbs.embed(texts, model=_load(options, console), layer=options.layer, pool=options.pool, on_event=console)
    if options.out:

        beside = Path(f"{options.out}.part")
        with open(beside, "wb") as file:
            np.save(file, found)
        beside.replace(options.out)
        return
    for text, vectors in zip(texts, found, strict=True):
        if options.pool == "none":
            record = {"pieces": vectors.pieces, "offsets": vectors.offsets, "vectors": vectors.vectors.tolist()}
        else:
            record = {"vector": vectors.tolist()}
        print(json.dumps({"text": text, **record}, ensure_ascii=False))


def _texts(options: Namespace, console: Console) -> list[str]:
    """The text itself, or the lines of the file that it names, or of stdin."""
    if options.text == "-":
        return [line.rstrip("\n") for line in sys.stdin if line.strip()]
    path = Path(options.text)
    with contextlib.suppress(OSError):  # too long a text is no path
        if path.is_file():
            return list(_lines(path, options.text_column, console))
    return [options.text]


def _lines(path: Path, column: str, console: Console) -> Iterator[str]:
    if kind_of(path) == "txt":
        return (line for _, line in open_text(path, "auto", console) if line.strip())
    return (example.text for example in read_examples(path, pair=False, text=column, on_event=console))


def _convert_flags(flags: Flags) -> None:
    flags.add_argument("source", metavar="IN", help="a model folder of Hugging Face's, pickled weights too")
    flags.add_argument("out", metavar="OUT", help="the folder to write")
    flags.add_argument("--overwrite", action="store_true", help="replace what OUT holds")


def convert(options: Namespace) -> None:
    with _console(options) as console:
        verbs.convert(options.source, options.out, overwrite=options.overwrite, on_event=console)
    if options.json:
        return _print_json({"model": options.out})
    print(f"{options.out} is ready: read back, every weight is equal")


def _info_flags(flags: Flags) -> None:
    flags.add_argument("folder", nargs="?", metavar="FOLDER", help="a model, tokens; without it, this machine")


def info(options: Namespace) -> None:
    facts = describe(options.folder)
    if options.json:
        return _print_json(facts)
    for name, value in facts.items():
        print(f"{name + ':':14}{value}")


def _check_flags(flags: Flags) -> None:
    flags.add_argument("files", nargs="+", metavar="FILE", help="text to pre-train on, or labelled files: train, then test")
    flags.add_argument("--task", default="", metavar="|".join(TASKS), help="what labelled files are for; found out if not said")
    flags.add_argument("--model", metavar="FOLDER", help="count in this model's tokens")
    flags.add_argument("--minutes", type=float, default=0.0, metavar="X", help="measure this device and recommend a size")
    flags.section("columns", Columns())
    _device_flags(flags)


def check(options: Namespace) -> int:
    with _console(options) as console:
        model = _load(options, console) if options.model else None
        report = check(
            options.files,
            task=options.task,
            model=model,
            minutes=options.minutes,
            device=options.device,
            on_event=console,
            **_by_field(options.settings),
        )
    if options.json:
        _print_json(report.to_dict())
    else:
        print(report)
    return 1 if report.errors else 0


def _demo_flags(flags: Flags) -> None:
    flags.add_argument("--out", default="keel-demo", metavar="DIR", help="where everything goes [keel-demo]")


def demo(options: Namespace) -> None:
    from keel import demo

    with _console(options) as console:
        demo.run(out=options.out, on_event=console)


def _claim_flags(flags: Flags) -> None:
    flags.add_argument("number", nargs="?", type=int, metavar="N", help="of the claim; without it, all are listed")


def claim(options: Namespace) -> None:
    from keel import claims

    with _console(options) as console:
        claims.run(options.number, on_event=console)


def _device_flags(flags: Flags) -> None:
    flags.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; auto takes the GPU if there is one [auto]")
    flags.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0 leaves torch's own number [0]")


def _console(options: Namespace) -> Console:
    return Console(quiet=options.quiet)


def _load(options: Namespace, console: Console) -> Model:
    if not options.model:
        raise UsageError("no default model ships with Keel yet: say which one by --model FOLDER")
    if options.threads:

        torch.set_num_threads(options.threads)
    return Model.load(options.model, device=options.device, on_event=console)


def _by_field(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by the name of their field alone, as the verbs take them; with the section where two have that name."""
    names = [place.rpartition(".")[2] for place in settings]
    return {name if names.count(name) == 1 else place: settings[place] for place, name in zip(settings, names, strict=True)}


def _needed(value: str | None, flag: str) -> str:
    if not value:
        raise UsageError(f"{flag} is missing: it names the folder to write to")
    return value


def _evaluations(out: Path) -> list[dict[str, Any]]:
    """All held-out evaluations of a run, those before it was taken up again too."""
    with open(out / "run" / "log.jsonl", encoding="utf-8") as log:
        return [event for event in map(json.loads, log) if event.get("event") == "evaluation"]


def _leads() -> bool:
    """Whether this is the only process or, under torchrun, the first."""
    return os.environ.get("RANK", "0") == "0"


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


class Command(NamedTuple):
    """How a command is spelled, and what it does; it gives an exit code, or none for 0."""

    add_flags: Callable[[Flags], None]
    run: Callable[[Namespace], int | None]


COMMANDS = {
    "check": Command(_check_flags, check),
    "pretrain": Command(_pretrain_flags, pretrain),
    "finetune": Command(_finetune_flags, finetune),
    "evaluate": Command(_evaluate_flags, evaluate),
    "predict": Command(_task_flags, predict),
    "fill": Command(_fill_flags, fill),
    "embed": Command(_embed_flags, embed),
    "convert": Command(_convert_flags, convert),
    "claim": Command(_claim_flags, claim),
    "info": Command(_info_flags, info),
    "demo": Command(_demo_flags, demo),
}

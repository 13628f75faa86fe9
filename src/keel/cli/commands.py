"""What each command takes, and what it answers."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keel.api import conversion, evaluation, inference, inspection
from keel.checks import check as check_files
from keel.cli import generation_commands, prompting_commands, training_commands, vector_commands
from keel.cli.command_output import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, encoding_flag, file_of, lines_of, load
from keel.cli.model_info import describe
from keel.cli.training_commands import source_of
from keel.data.examples import Columns, read_examples
from keel.data.tag_schemes import detect_scheme, extract_entities, write_tags
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import note
from keel.explain.vector_benchmarks import Analogies
from keel.generation.beam_search import BeamSearch
from keel.metrics.scores import Scores, format_score
from keel.tasks import TASKS


def _predict_flags(flags: Flags) -> None:
    _read_flags(flags, "fine-tuned", "texts, one in each line or in a column; or -; for seq2seq also two files")
    what = "write a word in each line with its tag, if the file has one, and the predicted tag: what conlleval reads"
    flags.add_argument("--conll", action="store_true", help=what)


def _read_flags(flags: Flags, model: str, file: str) -> None:
    flags.add_argument("model", metavar="MODEL", help=f"the folder of a model, {model}")
    flags.add_argument("file", nargs="+", metavar="FILE", help=file)
    flags.section("columns", Columns())
    flags.section("search", BeamSearch())
    device_flags(flags)


def predict(options: Namespace) -> Answer:
    first = options.file[0]
    if first != "-" and not any(map(os.path.exists, [*options.file, *first.split(",")])):  # often the text itself
        raise KeelError(f"there is no file {first[:60]}: give a file with a text in each line, or - for stdin")
    console = Console(quiet=options.quiet)
    records = inference.predict(load(options, console), source_of(options.file), on_event=console, **options.settings)
    return Answer(lines=_columns(records) if options.conll else _json_lines(records))


def _columns(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Words and tags in columns, a blank line after each sentence."""
    for record in records:
        if "tags" not in record:
            raise UsageError("--conll writes tags of words, and this model's task has none: leave it out")
        tags = [_as_bio(record[name]) for name in ("gold", "tags") if name in record]
        yield from map(" ".join, zip(record["words"], *tags, strict=True))
        yield ""


def _as_bio(tags: list[str]) -> list[str]:
    """conlleval knows no S, no L and no U: what entities have of another scheme is written as BIO."""
    typed = any("-" in tag for tag in tags)
    return (
        write_tags(extract_entities(tags), len(tags), "BIO")
        if typed and detect_scheme([tags]) in ("BIOES", "BMES")
        else tags
    )


def _evaluate_flags(flags: Flags) -> None:
    data = "labelled examples, for seq2seq also two files; for word vectors pairs or analogies; for others text"
    _read_flags(flags, "fine-tuned; or word vectors, or a language model", data)
    flags.add_argument("--out", metavar="DIR", help="also write confusion.tsv and errors.tsv there")
    what = "tokens by which a GPT's window over a text moves on [half the context]"
    flags.add_argument("--stride", type=int, metavar="N", help=what)
    next_token_loss = "of a language model: foretell the last word of each text, or take the likeliest of its choices"
    flags.add_argument("--by", choices=("last-word", "choices"), default="", help=next_token_loss)


def evaluate(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        model = load(options, console)
        settings = options.settings | ({} if options.stride is None else {"stride": options.stride})
        source = source_of(options.file)
        scores = evaluation.evaluate(model, source, out=options.out, by=options.by, on_event=console, **settings)
    return Answer(lines=_score_lines(scores), data=scores.to_dict())


def _score_lines(scores: Scores) -> Iterator[str]:
    if isinstance(scores, Analogies):
        yield from map(str, scores.sections)
    yield str(scores)
    width = max(map(len, scores.types), default=0)
    for kind, figures in scores.types.items():
        yield f"{kind.rjust(width)}: {', '.join(format_score(name, vars(score)) for name, score in figures.items())}"
    if scores.confusion and len(scores.names) <= 12:
        yield "\nconfusion (a row for each true label, a column for each predicted one)"
        rows = [[name, *map(str, counts)] for name, counts in zip(scores.names, scores.confusion, strict=True)]
        width = max(len(cell) for row in rows for cell in row) + 2
        yield from ("".join(cell.rjust(width) for cell in row) for row in [["", *scores.names], *rows])
    if scores.errors:
        yield "\nthe surest errors"
    for error in scores.errors[:5]:
        texts = error.text if error.second is None else f"{error.text} | {error.second}"
        found = error.predicted or "an empty text"
        yield f"{error.where}: {error.label} taken for {found} ({error.confidence:.2f}): {texts[:100]}"


def _fill_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT", help="with [MASK] or ___ where a word is missing; or -")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a pre-trained model")
    flags.add_argument("--top", type=int, default=5, metavar="N", help="words for each blank [5]")
    device_flags(flags)


def fill(options: Namespace) -> Answer:
    text = sys.stdin.read().strip() if options.text == "-" else options.text
    with Console(quiet=options.quiet) as console:
        blanks = inference.fill(text, model=load(options, console), top=options.top, on_event=console)
    lines: list[str] = []
    for number, words in enumerate(blanks, 1):
        lines += [f"blank {number}"] * (len(blanks) > 1)
        lines += [f"{probability:7.1%}  {word}" for word, probability in words]
    return Answer(lines=lines, data=[[word._asdict() for word in words] for words in blanks])


def _embed_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="a text; or a file or stdin, with a text in each line")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a model")
    flags.add_argument("--layer", type=int, default=-1, metavar="N", help="0 is the embeddings, -1 the top [-1]")
    flags.add_argument(
        "--pool", default="mean", choices=("mean", "cls", "none"), help="none: a vector for each piece [mean]"
    )
    flags.add_argument("--text-column", default="", metavar="NAME", help="of a csv, tsv, jsonl or parquet file")
    encoding_flag(flags)
    flags.add_argument("--out", metavar="FILE.npy", help="write one array there instead of JSON lines to stdout")
    device_flags(flags)


def embed(options: Namespace) -> Answer:
    if options.out and options.pool == "none":
        raise UsageError("--pool none gives texts different numbers of vectors, which no .npy holds: leave out --out")
    with Console(quiet=options.quiet) as console:
        texts = _texts(options, console)
        vectors = inference.embed(
            texts, model=load(options, console), layer=options.layer, pool=options.pool, on_event=console
        )
    if options.out:
        beside = Path(f"{options.out}.part")
        with open(beside, "wb") as file:
            np.save(file, vectors)
        beside.replace(options.out)
        shape = " x ".join(map(str, vectors.shape))
        return Answer(lines=[f"{options.out}: {shape}"], data={"file": options.out, "shape": vectors.shape})
    if options.pool == "none":
        found = [{"pieces": it.pieces, "offsets": it.offsets, "vectors": it.vectors.tolist()} for it in vectors]
    else:
        found = [{"vector": vector.tolist()} for vector in vectors]
    records = [{"text": text, **record} for text, record in zip(texts, found, strict=True)]
    return Answer(lines=_json_lines(records), data=records)


def _texts(options: Namespace, console: Console) -> list[str]:
    """The text itself, or those of the file that it names, or of stdin."""
    path = None if options.text == "-" else file_of(options.text)
    if path is None or file_kind(path) == "txt":
        lines = list(lines_of(options, console))
        texts = [line for line in lines if line.strip()]
        if not texts:
            where = "stdin" if options.text == "-" else path or repr(options.text)
            raise KeelError(f"{where} holds no text: give one that is not blank")
        if blank := len(lines) - len(texts):
            note(console, f"{blank:,} of {len(lines):,} lines are blank and get no vector")
        return texts
    columns = Columns(text_column=options.text_column, encoding=options.encoding)
    return [each.text for each in read_examples(path, pair=False, columns=columns, on_event=console)]


def _layers_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="the folder of a model, fine-tuned with --mix")
    device_flags(flags)


def layers(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = inspection.layers(load(options, console), on_event=console)
    return Answer(lines=found.lines(), data=found.to_dict())


def _convert_flags(flags: Flags) -> None:
    flags.add_argument(
        "source",
        metavar="IN",
        help="another's model folder, pickled weights too, or a file of vectors or of fastText's",
    )
    flags.add_argument("out", metavar="OUT", help="the folder to write; named .txt, .vec or .bin, the words' vectors")
    flags.add_argument("--overwrite", action="store_true", help="replace what OUT holds")


def convert(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        conversion.convert(options.source, options.out, overwrite=options.overwrite, on_event=console)
    return Answer(lines=[f"{options.out} is ready: read back, every number is the same"], data={"model": options.out})


def _info_flags(flags: Flags) -> None:
    what = "of a model or of tokens, or a file of word vectors; without it, this machine"
    flags.add_argument("folder", nargs="?", metavar="FOLDER", help=what)


def info(options: Namespace) -> Answer:
    facts = describe(options.folder)
    return Answer(lines=[f"{name + ':':16}{value}" for name, value in facts.items()], data=facts)


def _check_flags(flags: Flags) -> None:
    flags.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="text to pre-train on, or labelled files: train, then test; for seq2seq two and two, side by side",
    )
    flags.add_argument(
        "--task", default="", metavar="|".join(TASKS), help="what labelled files are for; found out if not said"
    )
    flags.add_argument("--model", metavar="FOLDER", help="count in this model's tokens")
    flags.add_argument(
        "--minutes", type=float, default=0, metavar="X", help="recommend a size for this device and time"
    )
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


def _demo_flags(flags: Flags) -> None:
    flags.add_argument("--out", default="keel-demo", metavar="DIR", help="where everything goes [keel-demo]")


def demo(options: Namespace) -> Answer:
    from keel import demo

    with Console(quiet=options.quiet) as console:
        page = demo.run(out=options.out, on_event=console)
    return Answer(lines=[str(page)], data={"page": str(page)})


def _claim_flags(flags: Flags) -> None:
    flags.add_argument("number", nargs="?", type=int, metavar="N", help="of the claim; without it, all are listed")
    flags.add_argument("--model", metavar="FOLDER", help="ask it of this model, where its page says how")
    flags.add_argument("--data", metavar="FOLDER", help="what the model is asked about")


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


def _json_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(record, ensure_ascii=False) for record in records)


class Command(NamedTuple):
    """How a command is spelled, and what it does."""

    add_flags: Callable[[Flags], None]
    run: Callable[[Namespace], Answer]


COMMANDS = {
    "check": Command(_check_flags, check),
    "pretrain": Command(training_commands.pretrain_flags, training_commands.pretrain),
    "finetune": Command(training_commands.finetune_flags, training_commands.finetune),
    "evaluate": Command(_evaluate_flags, evaluate),
    "predict": Command(_predict_flags, predict),
    "fill": Command(_fill_flags, fill),
    "translate": Command(generation_commands.translate_flags, generation_commands.translate),
    "generate": Command(generation_commands.generate_flags, generation_commands.generate),
    "ask": Command(prompting_commands.ask_flags, prompting_commands.ask),
    "summarize": Command(prompting_commands.summarize_flags, prompting_commands.summarize),
    "embed": Command(_embed_flags, embed),
    "nearest": Command(vector_commands.nearest_flags, vector_commands.nearest),
    "analogy": Command(vector_commands.analogy_flags, vector_commands.analogy),
    "map": Command(vector_commands.map_flags, vector_commands.draw),
    "odd": Command(vector_commands.odd_flags, vector_commands.odd),
    "senses": Command(vector_commands.senses_flags, vector_commands.senses),
    "similarity": Command(vector_commands.similarity_flags, vector_commands.similarity),
    "layers": Command(_layers_flags, layers),
    "convert": Command(_convert_flags, convert),
    "claim": Command(_claim_flags, claim),
    "info": Command(_info_flags, info),
    "demo": Command(_demo_flags, demo),
}

"""The verbs of word vectors as commands."""

from argparse import Namespace

from keel import verbs
from keel.cli.answer import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.errors import UsageError
from keel.explain.neighbours import Analogies, Neighbour


def nearest_flags(flags: Flags) -> None:
    flags.add_argument("query", metavar="WORD|TEXT", help="a word; with --in a text")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--in", dest="among", metavar="FILE", help="search the texts of this file instead of words")
    flags.add_argument("--text-column", default="", metavar="NAME", help="of a csv, tsv, jsonl or parquet file")
    flags.add_argument("--top", type=int, default=10, metavar="N", help="how many to show [10]")


def nearest(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        columns = {"text_column": options.text_column} if options.among else {}
        found = verbs.nearest(
            options.query, model=_model(options), among=options.among, top=options.top, on_event=console, **columns
        )
    return _listed(found)


def analogy_flags(flags: Flags) -> None:
    flags.add_argument("expression", metavar='"A - B + C"', help="words with signs between them")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--by", default="add", choices=("add", "multiply"), help="3CosAdd or 3CosMul [add]")
    flags.add_argument("--top", type=int, default=5, metavar="N", help="how many to show [5]")


def analogy(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = verbs.analogy(
            options.expression, model=_model(options), top=options.top, by=options.by, on_event=console
        )
    return _listed(found)


def similarity_flags(flags: Flags) -> None:
    flags.add_argument("texts", nargs="*", metavar="A B", help="two words or texts")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--file", metavar="FILE", help="judge the vectors by published pairs or analogy questions")


def similarity(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        if options.file:
            found = verbs.judge(_model(options), options.file, on_event=console)
            sections = [str(section) for section in found.sections] if isinstance(found, Analogies) else []
            return Answer(lines=[*sections, str(found)], data={"file": options.file, "result": str(found)})
        if len(options.texts) != 2:
            raise UsageError(
                "give two words or texts, or --file with published pairs: keel similarity cat dog --model M"
            )
        cosine = verbs.similarity(*options.texts, model=_model(options), on_event=console)
    return Answer(lines=[f"{cosine:.4f}"], data={"similarity": cosine})


def _model(options: Namespace) -> str:
    if not options.model:
        raise UsageError("no default model ships with Keel yet: say which one by --model")
    return options.model


def _listed(found: list[Neighbour]) -> Answer:
    lines = [f"{neighbour.score:.4f}  {neighbour.word}" for neighbour in found]
    return Answer(lines=lines, data=[{"word": neighbour.word, "score": neighbour.score} for neighbour in found])

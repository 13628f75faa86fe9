"""The verbs of word vectors as commands."""

from argparse import Namespace

from keel.api import vectors
from keel.cli.command_output import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.errors import KeelError, UsageError
from keel.explain.nearest_neighbors import Neighbor


def nearest_flags(flags: Flags) -> None:
    flags.add_argument("query", metavar="WORD|TEXT", help="a word; with --in a text")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--in", dest="among", metavar="FILE", help="search the texts of this file instead of words")
    flags.add_argument("--text-column", default="", metavar="NAME", help="of a csv, tsv, jsonl or parquet file")
    flags.add_argument("--top", type=int, default=10, metavar="N", help="how many to show [10]")
    flags.add_argument("--approximate", action="store_true", help="by an index of the words, made once and kept")


def nearest(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        columns = {"text_column": options.text_column} if options.among else {}
        found = vectors.nearest(
            options.query,
            model=_model(options),
            among=options.among,
            top=options.top,
            approximate=options.approximate,
            on_event=console,
            **columns,
        )
    return _listed(found)


def analogy_flags(flags: Flags) -> None:
    flags.add_argument("expression", metavar='"A - B + C"', help="words with signs between them")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--by", default="add", choices=("add", "multiply"), help="3CosAdd or 3CosMul [add]")
    flags.add_argument("--top", type=int, default=5, metavar="N", help="how many to show [5]")


def analogy(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = vectors.analogy(
            options.expression, model=_model(options), top=options.top, by=options.by, on_event=console
        )
    return _listed(found)


def odd_flags(flags: Flags) -> None:
    flags.add_argument("words", nargs="+", metavar="WORD", help="three or more, of which one does not belong")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")


def odd(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        return _listed(vectors.odd(" ".join(options.words), model=_model(options), on_event=console))


def similarity_flags(flags: Flags) -> None:
    flags.add_argument("texts", nargs="*", metavar="A B", help="two words or texts")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")


def similarity(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        if len(options.texts) != 2:
            raise UsageError("give two words or texts: keel similarity cat dog --model M")
        cosine = vectors.similarity(*options.texts, model=_model(options), on_event=console)
    return Answer(lines=[f"{cosine:.4f}"], data={"similarity": cosine})


def senses_flags(flags: Flags) -> None:
    flags.add_argument("word", metavar="WORD", help="the word whose uses are compared")
    flags.add_argument("--in", dest="among", metavar="FILE", required=True, help="sentences, one in each line; or -")
    flags.add_argument("--model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--beside", metavar="MODEL", help="another one, to show side by side")
    flags.add_argument("--layer", type=int, default=-1, metavar="N", help="0 is the embeddings, -1 the top [-1]")
    flags.add_argument("--groups", type=int, default=0, metavar="N", help="how many groups; 0 leaves it open [0]")
    flags.add_argument("--text-column", default="", metavar="NAME", help="of a csv, tsv, jsonl or parquet file")


def senses(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        lacks: list[str] = []
        asked = {"groups": options.groups, "text_column": options.text_column, "on_event": console}
        found = [vectors.senses(options.word, options.among, model=_model(options), layer=options.layer, **asked)]
        if options.beside:
            other = vectors.load_model(options.beside, console)
            try:
                found.append(vectors.senses(options.word, options.among, model=other, **asked))
            except KeelError as error:  # the first has answered what the second cannot
                lacks = [str(error)]
    tables = [each.lines() for each in found] + [lacks] * bool(lacks)
    lines = [line for number, each in enumerate(tables) for line in ([""] * (number > 0) + each)]
    data = [each.to_dict() for each in found] + [{"word": options.word, "note": each} for each in lacks]
    return Answer(lines=lines, data=data)


def map_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="a model folder, or a file of word vectors")
    flags.add_argument("--words", default="", metavar='"A B C"', help="the words to show")
    flags.add_argument(
        "--pairs", default="", metavar='"A:B C:D"', help="words to show with an arrow from each A to its B"
    )
    flags.add_argument(
        "--top", type=int, default=0, metavar="N", help="also the N most frequent [200 if none is named]"
    )
    flags.add_argument("--by", default="pca", choices=("pca", "tsne"), help="t-SNE keeps neighbours together [pca]")
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="of t-SNE [0]")
    flags.add_argument("--out", default="map.html", metavar="FILE", help="an .svg or .html file [map.html]")


def draw(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        path = vectors.word_map(
            options.model,
            out=options.out,
            words=options.words,
            pairs=options.pairs,
            top=options.top,
            by=options.by,
            seed=options.seed,
            on_event=console,
        )
    return Answer(lines=[str(path)], data={"map": str(path)})


def _model(options: Namespace) -> str:
    if not options.model:
        raise UsageError("no default model ships with Keel yet: say which one by --model")
    return options.model


def _listed(found: list[Neighbor]) -> Answer:
    lines = [f"{neighbour.score:.4f}  {neighbour.word}" for neighbour in found]
    return Answer(lines=lines, data=[{"word": neighbour.word, "score": neighbour.score} for neighbour in found])

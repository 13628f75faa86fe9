"""Commands of word vectors: nearest, analogy, odd, similarity, senses, map."""

from argparse import Namespace

from keel.api import vectors
from keel.cli.command_output import Answer, Command
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import model_flag, model_of
from keel.data.examples import Columns
from keel.errors import KeelError, UsageError
from keel.explain.nearest_neighbors import Neighbor


def _nearest_flags(flags: Flags) -> None:
    flags.add_argument("query", metavar="WORD|TEXT", help="A word; with --in, a text.")
    model_flag(flags)
    flags.add_argument("--in", dest="among", metavar="FILE", help="Search the texts of this file instead of words.")
    flags.arguments(vectors.nearest)
    flags.section("columns", Columns(), only=("text_column", "encoding"))


def nearest(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = vectors.nearest(
            options.query, model=model_of(options), among=options.among, on_event=console, **options.settings
        )
    return _neighbors(found)


def _analogy_flags(flags: Flags) -> None:
    flags.add_argument("expression", metavar='"A - B + C"', help="Words with plus and minus signs between them.")
    model_flag(flags)
    flags.arguments(vectors.analogy)


def analogy(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        found = vectors.analogy(options.expression, model=model_of(options), on_event=console, **options.settings)
    return _neighbors(found)


def _odd_flags(flags: Flags) -> None:
    flags.add_argument("words", nargs="+", metavar="WORD", help="Three or more words, one of which does not belong.")
    model_flag(flags)


def odd(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        return _neighbors(vectors.odd(" ".join(options.words), model=model_of(options), on_event=console))


def _similarity_flags(flags: Flags) -> None:
    flags.add_argument("texts", nargs="*", metavar="A B", help="Two words or texts.")
    model_flag(flags)


def similarity(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        if len(options.texts) != 2:
            raise UsageError("give two words or texts: keel similarity cat dog --model M")
        cosine = vectors.similarity(*options.texts, model=model_of(options), on_event=console)
    return Answer(lines=[f"{cosine:.4f}"], data={"similarity": cosine})


def _senses_flags(flags: Flags) -> None:
    flags.add_argument("word", metavar="WORD", help="The word whose uses are compared.")
    flags.add_argument(
        "--in", dest="among", metavar="FILE", required=True, help="Sentences, one per line; - for stdin."
    )
    model_flag(flags)
    flags.add_argument("--beside", metavar="MODEL", help="Another model, to compare.")
    flags.arguments(vectors.senses)
    flags.section("columns", Columns(), only=("text_column", "encoding"))


def senses(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        failed: list[str] = []
        found = [
            vectors.senses(options.word, options.among, model=model_of(options), on_event=console, **options.settings)
        ]
        if options.beside:
            settings = {name: value for name, value in options.settings.items() if name != "layer"}
            other = vectors.load_model(options.beside, console)
            try:
                found.append(vectors.senses(options.word, options.among, model=other, on_event=console, **settings))
            except KeelError as error:  # the first model's result still counts
                failed = [str(error)]
    tables = [each.lines() for each in found] + [failed] * bool(failed)
    lines = [line for number, each in enumerate(tables) for line in ([""] * (number > 0) + each)]
    data = [each.to_dict() for each in found] + [{"word": options.word, "error": each} for each in failed]
    return Answer(lines=lines, data=data)


def _map_flags(flags: Flags) -> None:
    flags.add_argument("model", metavar="MODEL", help="A model folder, or a word vector file.")
    flags.arguments(vectors.word_map, words='"A B C"', pairs='"A:B C:D"')
    flags.add_argument("--out", default="map.html", metavar="FILE", help="The .svg or .html file. [map.html]")


def draw_map(options: Namespace) -> Answer:
    with Console(quiet=options.quiet) as console:
        path = vectors.word_map(options.model, out=options.out, on_event=console, **options.settings)
    return Answer(lines=[str(path)], data={"map": str(path)})


def _neighbors(found: list[Neighbor]) -> Answer:
    lines = [f"{neighbor.score:.4f}  {neighbor.word}" for neighbor in found]
    return Answer(lines=lines, data=[{"word": neighbor.word, "score": neighbor.score} for neighbor in found])


COMMANDS = {
    "nearest": Command(_nearest_flags, nearest),
    "analogy": Command(_analogy_flags, analogy),
    "odd": Command(_odd_flags, odd),
    "similarity": Command(_similarity_flags, similarity),
    "senses": Command(_senses_flags, senses),
    "map": Command(_map_flags, draw_map),
}

"""Commands of word vectors: nearest, analogy, odd, similarity, senses."""

from argparse import Namespace

from keel.api import vectors
from keel.cli.command import Answer, argument, arguments_of, command, model_flag, note_figure, section
from keel.data.examples import Columns
from keel.errors import KeelError, UsageError
from keel.events import note
from keel.explain.nearest_neighbors import Neighbor
from keel.report.console import Console
from keel.report.html_page import picture_file

TEXT_COLUMNS = section("columns", Columns(), only=("text_column", "encoding"))


@command(
    "use",
    "WORD|TEXT [--model M] [--in FILE]",
    argument("query", "WORD|TEXT", "A word; with --in, a text."),
    model_flag(),
    argument("--in", "FILE", "Search the texts of this file instead of words.", dest="among"),
    arguments_of(vectors.nearest, out="FILE"),
    TEXT_COLUMNS,
)
def nearest(options: Namespace, console: Console) -> Answer:
    """Nearest neighbours of a word or a text."""
    model, among = options.model, options.among
    found = vectors.nearest(options.query, model=model, among=among, on_event=console, **options.settings)
    note_figure(options, console)
    return _neighbors(found)


@command(
    "use",
    '"A - B + C" [--model M]',
    argument("expression", '"A - B + C"', "Words with plus and minus signs between them."),
    model_flag(),
    arguments_of(vectors.analogy),
)
def analogy(options: Namespace, console: Console) -> Answer:
    """Word analogies by vector arithmetic."""
    return _neighbors(vectors.analogy(options.expression, model=options.model, on_event=console, **options.settings))


@command(
    "use",
    "WORD WORD WORD... [--model M]",
    argument("words", "WORD", "Three or more words, one of which does not belong.", nargs="+"),
    model_flag(),
)
def odd(options: Namespace, console: Console) -> Answer:
    """The odd one out of several words."""
    return _neighbors(vectors.odd(" ".join(options.words), model=options.model, on_event=console))


@command("use", "A B [--model M]", argument("texts", "A B", "Two words or texts.", nargs="*"), model_flag())
def similarity(options: Namespace, console: Console) -> Answer:
    """Cosine similarity of two words or texts."""
    if len(options.texts) != 2:
        raise UsageError("give two words or texts: keel similarity cat dog")
    cosine = vectors.similarity(*options.texts, model=options.model, on_event=console)
    return Answer(lines=[f"{cosine:.4f}"], data={"similarity": cosine})


@command(
    "use",
    "WORD --in FILE [--model M]",
    argument("word", "WORD", "The word whose uses are compared."),
    argument("--in", "FILE", "Sentences, one per line; - for stdin.", dest="among", required=True),
    model_flag(),
    argument("--beside", "MODEL", "Another model, to compare."),
    arguments_of(vectors.senses, out="FILE"),
    TEXT_COLUMNS,
)
def senses(options: Namespace, console: Console) -> Answer:
    """Word senses: clusters of a word's contextual vectors."""
    word, sentences, settings = options.word, options.among, options.settings
    out = picture_file(settings.pop("out")) if "out" in settings else None
    found = vectors.senses(word, sentences, model=options.model, on_event=console, **settings)
    lines, data, results = found.lines(), [found.to_dict()], [found]
    if options.beside:
        settings.pop("layer", None)
        other = vectors.load_model(options.beside, console)
        try:
            beside = vectors.senses(word, sentences, model=other, on_event=console, **settings)
            lines += ["", *beside.lines()]
            data.append(beside.to_dict())
            results.append(beside)
        except KeelError as error:  # the first model's result still counts
            lines += ["", str(error)]
            data.append({"word": word, "error": str(error)})
    if out is not None:
        note(console, f"figure: {vectors.write_senses(out, results)}")
    return Answer(lines=lines, data=data)


def _neighbors(found: list[Neighbor]) -> Answer:
    lines = [f"{neighbor.score:.4f}  {neighbor.word}" for neighbor in found]
    return Answer(lines=lines, data=[{"word": neighbor.word, "score": neighbor.score} for neighbor in found])

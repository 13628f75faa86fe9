"""Commands of maps and clusters: map, clusters."""

from argparse import Namespace

from keel.api import maps
from keel.cli.command import Answer, argument, arguments_of, command, model_flag, section
from keel.data.examples import Columns
from keel.errors import UsageError
from keel.events import note
from keel.report.console import Console

TEXT_COLUMNS = section("columns", Columns(), only=("text_column", "encoding"))


@command(
    "use",
    '[MODEL] [--words "A B C"] [--in FILE] [--out FILE]',
    argument("model", "MODEL", "A model folder, or a word vector file; default: the bundled one.", nargs="?"),
    argument("--in", "FILE", "Map the texts of this file instead of words.", dest="among"),
    arguments_of(maps.word_map, words='"A B C"', pairs='"A:B C:D"', clusters="N|auto"),
    argument("--out", "FILE", "Write the map to this file: .svg, .pdf, .png or .html. [map.html]", default="map.html"),
    TEXT_COLUMNS,
)
def map_(options: Namespace, console: Console) -> Answer:
    """2D map of word vectors or of the texts of a file."""
    path = maps.word_map(options.model, among=options.among, out=options.out, on_event=console, **options.settings)
    return Answer(lines=[str(path)], data={"map": str(path)})


@command(
    "use",
    "FILE [--model M] [--clusters N] [--out FILE]",
    argument("file", "FILE", "Texts, one per line, or a table; - for stdin."),
    model_flag(),
    arguments_of(maps.clusters, clusters="N|auto", out="FILE"),
    TEXT_COLUMNS,
)
def clusters(options: Namespace, console: Console) -> Answer:
    """Clusters of texts with their typical words."""
    if not options.file.strip():
        raise UsageError("the file name is empty: name a file of texts")
    found = maps.clusters(options.file, model=options.model, on_event=console, **options.settings)
    if "out" in options.settings:
        note(console, f"written: {options.settings['out']}")
    return Answer(sentences=True, lines=found.lines(), data=found.to_dict())

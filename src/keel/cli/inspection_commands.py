"""Commands that look inside a model: attention, retrieval, explain, layers."""

import os
import sys
from argparse import Namespace

from keel.api import inspection
from keel.api import layers as layers_api
from keel.cli.command import (
    Answer,
    argument,
    arguments_of,
    command,
    device_flags,
    encoding_flag,
    load,
    model_flag,
    note_figure,
    optional_value,
    prompt_of,
    section,
)
from keel.cli.training_commands import labelled_source
from keel.data.examples import Columns
from keel.errors import UsageError, flag_of
from keel.report.attribution_figure import largest_value, terminal_text
from keel.report.console import Console

MAX_JSON = 4_000_000
"""Weights that --json prints."""


@command(
    "inspect",
    "TEXT [SECOND] [--model M]",
    argument("text", "TEXT|FILE|-", "A text."),
    argument("second", "SECOND", "Second text of a pair, or the target of an encoder-decoder.", nargs="?", default=""),
    model_flag("A folder of a Transformer (bert, ernie, electra, modernbert, gpt) or of a seq2seq model."),
    arguments_of(inspection.attention, from_word="WORD", to_word="WORD", layer="N", head="N", out="FILE"),
    optional_value("--merge", "words"),
    encoding_flag,
    device_flags,
)
def attention(options: Namespace, console: Console) -> Answer:
    """Attention weights of a text in all layers and heads."""
    text, settings = prompt_of(options, console), options.settings
    model = load(options, console, f"{text} {options.second}", "encoder")
    found = inspection.attention(text, options.second, model=model, on_event=console, **settings)
    note_figure(options, console)
    if options.json and found.weights.size > MAX_JSON:
        what = f"--json would print {found.weights.size:,} weights"
        raise UsageError(f"{what}: choose some with --layer and --head, or use keel.attention in Python")
    return Answer(sentences=True, lines=found.lines(), data=found.to_dict() if options.json else None)


@command(
    "inspect",
    "MODEL FILE [FILE]",
    argument("model", "MODEL", "A model, or its folder."),
    argument("files", "FILE", "Sentences with their translations: a table, or two parallel files.", nargs="+"),
    arguments_of(inspection.retrieval, out="FILE", sample="N"),
    section("columns", Columns(), only=("text_column", "label_column", "encoding", "separator")),
    device_flags,
)
def retrieval(options: Namespace, console: Console) -> Answer:
    """How often a sentence's nearest neighbour in another language is its translation, in every layer."""
    found = inspection.retrieval(
        load(options, console), labelled_source(options.files), on_event=console, **options.settings
    )
    note_figure(options, console)
    return Answer(sentences=True, lines=found.lines(), data=found.to_dict())


@command(
    "inspect",
    "TEXT [SECOND] --model FOLDER",
    argument("text", "TEXT", "A text; the first of a pair; for answers the passage; - for stdin."),
    argument("second", "SECOND", "The second text of a pair; for answers the question.", nargs="?"),
    model_flag("The folder of a model that was fine-tuned to classify, tag or answer."),
    arguments_of(inspection.explain_prediction, out="FILE"),
    device_flags,
)
def explain(options: Namespace, console: Console) -> Answer:
    """Which words made a prediction: integrated gradients, or occlusion."""
    if not options.model:
        raise UsageError("explain needs a fine-tuned model: choose one with --model FOLDER")
    options.encoding = "auto"
    text = prompt_of(options, console).strip() if options.text == "-" else options.text
    model = load(options, console)
    found = inspection.explain_prediction(text, options.second, model=model, on_event=console, **options.settings)
    note_figure(options, console)
    lines = found.lines()
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        texts = inspection.coloured_texts(found)
        lines = [*(terminal_text(each, largest_value(texts)) for each in texts), *lines]
    return Answer(sentences=True, lines=lines, data=found.to_dict())


@command(
    "inspect",
    "MODEL... [--train FILE --test FILE --probe TASKS]",
    argument(
        "models",
        "MODEL",
        "Folders of models that were fine-tuned with --mix, such as one per task; with --train, one model to probe.",
        nargs="+",
    ),
    arguments_of(layers_api.probe_layers, train="FILE", test="FILE", probe="TASKS", out="FILE"),
    device_flags,
)
def layers(options: Namespace, console: Console) -> Answer:
    """What each layer knows: probing curves, or the layer weights of scalar mixes."""
    settings = options.settings
    loaded = (load(Namespace(**{**vars(options), "model": each}), console) for each in options.models)
    if "train" in settings:
        if len(options.models) > 1:
            raise UsageError(f"--train probes one model: choose one of {', '.join(options.models)}")
        found = layers_api.probe_layers(next(loaded), on_event=console, **settings)
    elif unused := [flag_of(name) for name in settings if name != "out"]:
        raise UsageError(f"{unused[0]} is for probing: give labelled data with --train FILE")
    else:
        mixes = next(loaded) if len(options.models) == 1 else loaded
        found = layers_api.layers(mixes, on_event=console, **settings)
    note_figure(options, console)
    return Answer(lines=found.lines(), data=found.to_dict())

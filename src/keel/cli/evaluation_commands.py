"""Commands of trained models: evaluate, predict, fill, embed."""

import json
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import takewhile
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from keel.api import evaluation, inference, text_generation
from keel.cli.command import (
    Answer,
    Declaration,
    argument,
    arguments_of,
    command,
    device_flags,
    file_of,
    lines_of,
    load,
    model_flag,
    optional_value,
    precision_flag,
    prompt_of,
    section,
)
from keel.cli.score_lines import score_lines
from keel.cli.training_commands import labelled_source
from keel.data.examples import Columns, read_examples
from keel.data.language_mix import split_language
from keel.data.tag_schemes import detect_scheme, extract_entities, write_tags
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import note
from keel.formats.bundled_models import locate
from keel.generation.beam_search import BeamSearch
from keel.model import Model
from keel.report.console import Console

CONLL = "CoNLL output: a line per word with its true tag, if the file has one, and its predicted tag (for conlleval)."


def _dataset(model: str, file: str) -> tuple[Declaration, ...]:
    """The arguments of a model and a dataset."""
    given = argument("model", "MODEL", model), argument("file", "FILE", file, nargs="+")
    return *given, section("columns", Columns()), section("search", BeamSearch()), device_flags, precision_flag


def _models_and_files(options: Namespace, console: Console) -> tuple[list[Model], list[str]]:
    """The model and the model folders right after it, which make an ensemble; and the files of the dataset."""
    folders = list(takewhile(lambda word: (locate(word) / "config.json").is_file(), options.file))
    files = options.file[len(folders) :]
    if not files:
        raise UsageError(f"{folders[-1]} is a model folder: give a FILE after it")
    for word in files[:-1]:
        if split_language(word)[0] or word == "-":
            continue
        if os.path.isdir(word):
            raise KeelError(f"{word} is not a model folder: it has no config.json")
        if not os.path.exists(word):
            raise KeelError(f"there is no file or model folder {word}: check the name and the current folder")
    models = [load(Namespace(**{**vars(options), "model": each}), console) for each in (options.model, *folders)]
    return models, files


@command(
    "use",
    "MODEL [MODEL...] FILE",
    *_dataset(
        "The folder of a fine-tuned model; of several, the mean of their predictions (ensemble).",
        "Texts, one per line or in a column; - for stdin; for seq2seq also two parallel files.",
    ),
    arguments_of(inference.predict, out="FILE"),
    methodcaller("add_argument", "--conll", action="store_true", help=CONLL),
)
def predict(options: Namespace, console: Console) -> Answer:
    """Predictions for each text, as JSON lines."""
    first = options.file[0]
    if first != "-" and not any(map(os.path.exists, [*options.file, *first.split(",")])):  # often a text
        raise KeelError(f"there is no file {first[:60]}: give a file with a text per line, or - for stdin")
    if options.conll and "out" in options.settings:
        raise UsageError("--conll prints tags, and --out writes a table of texts: leave one of them out")
    models, files = _models_and_files(options, console)
    records = inference.predict(models, labelled_source(files), on_event=console, **options.settings)
    if "out" in options.settings:
        return Answer(lines=[options.settings["out"]], data={"file": options.settings["out"]})
    return Answer(lines=_conll_lines(records) if options.conll else _json_lines(records))


def _conll_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        if "tags" not in record:
            raise UsageError("--conll is for models that tag words: leave it out")
        tags = [_as_bio(record[name]) for name in ("gold", "tags") if name in record]
        yield from map(" ".join, zip(record["words"], *tags, strict=True))
        yield ""


def _as_bio(tags: list[str]) -> list[str]:
    """Entity tags in BIO, the only scheme that conlleval knows."""
    typed = any("-" in tag for tag in tags)
    return (
        write_tags(extract_entities(tags), len(tags), "BIO")
        if typed and detect_scheme([tags]) in ("BIOES", "BMES")
        else tags
    )


@command(
    "use",
    "MODEL [MODEL...] FILE [FILE]",
    *_dataset(
        "A fine-tuned model (of several the ensemble, their mean prediction), word vectors, or a language model.",
        "Labelled examples; for word vectors a similarity or analogy benchmark; for a language model a text.",
    ),
    arguments_of(evaluation.evaluate, out="DIR"),
    optional_value("--suspects", "20"),
    arguments_of(text_generation.perplexity),
)
def evaluate(options: Namespace, console: Console) -> Answer:
    """Scores with confidence intervals, by label, confusions, errors; perplexity of a language model."""
    models, files = _models_and_files(options, console)
    if options.precision != "auto" and models[0].task is None:
        raise UsageError("--precision is for fine-tuned models, and this model has no task: leave it out")
    scores = evaluation.evaluate(models, labelled_source(files), on_event=console, **options.settings)
    return Answer(sentences=True, lines=score_lines(scores), data=scores.to_dict())


@command(
    "use",
    "TEXT [--model FOLDER]",
    argument("text", "TEXT", "A text with [MASK] or ___ where a word is missing; - for stdin."),
    model_flag("A pre-trained masked language model; default: the bundled one for the language of the text."),
    arguments_of(inference.fill),
    device_flags,
)
def fill(options: Namespace, console: Console) -> Answer:
    """The most probable words for each [MASK] of a text."""
    options.encoding = "auto"
    text = prompt_of(options, console).strip() if options.text == "-" else options.text
    masks = inference.fill(text, model=load(options, console, text, "encoder"), on_event=console, **options.settings)
    lines: list[str] = []
    for number, words in enumerate(masks, 1):
        lines += [f"mask {number}"] * (len(masks) > 1)
        lines += [f"{probability:7.1%}  {word}" for word, probability in words]
    return Answer(lines=lines, data=[[word._asdict() for word in words] for words in masks])


@command(
    "use",
    "TEXT|FILE|- [--model FOLDER]",
    argument("text", "TEXT|FILE|-", "A text; or a file or stdin with a text per line."),
    model_flag("A model; default: the bundled encoder (else word vectors) for the language of the text."),
    arguments_of(inference.embed),
    section("columns", Columns(), only=("text_column", "encoding")),
    argument("--out", "FILE.npy", "Write one array to this file instead of JSON lines."),
    device_flags,
    precision_flag,
)
def embed(options: Namespace, console: Console) -> Answer:
    """Embeddings of texts, or of tokens in context."""
    settings = dict(options.settings)
    columns = Columns(**{name: settings.pop(name) for name in ("text_column", "encoding") if name in settings})
    per_token = settings.get("pool") == "none"
    if options.out and per_token:
        raise UsageError("--pool none gives different numbers of vectors per text, which no .npy holds: omit --out")
    texts = _texts(options, columns, console)
    model = load(options, console, " ".join(texts[: inference.LANGUAGE_SAMPLE]), "sentence embeddings")
    vectors: Any = inference.embed(texts, model=model, on_event=console, **settings)
    if options.out:
        part = Path(f"{options.out}.part")
        with open(part, "wb") as file:
            np.save(file, vectors)
        part.replace(options.out)
        shape = " x ".join(map(str, vectors.shape))
        return Answer(lines=[f"{options.out}: {shape}"], data={"file": options.out, "shape": vectors.shape})
    if per_token:
        found = [{"tokens": it.tokens, "offsets": it.offsets, "vectors": it.vectors.tolist()} for it in vectors]
    else:
        found = [{"vector": vector.tolist()} for vector in vectors]
    records = [{"text": text, **record} for text, record in zip(texts, found, strict=True)]
    return Answer(lines=_json_lines(records), data=records)


def _texts(options: Namespace, columns: Columns, console: Console) -> list[str]:
    """The text itself, or the texts of a file or of stdin."""
    path = None if options.text == "-" else file_of(options.text)
    if path is None or file_kind(path) == "txt":
        options.encoding = columns.encoding
        lines = list(lines_of(options, console))
        texts = [line for line in lines if line.strip()]
        if not texts:
            where = "stdin" if options.text == "-" else path or repr(options.text)
            raise KeelError(f"{where} contains no text: give one that is not empty")
        if empty := len(lines) - len(texts):
            note(console, f"{empty:,} of {len(lines):,} lines are empty and skipped")
        return texts
    return [each.text for each in read_examples(path, pair=False, columns=columns, on_event=console)]


def _json_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(record, ensure_ascii=False) for record in records)

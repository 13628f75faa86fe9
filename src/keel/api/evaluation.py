"""Evaluation: scores of a task, of word vectors or of a language model."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Unpack

from keel.api.inference import ensemble_of, refuse_unused
from keel.api.keywords import EvaluateKeywords
from keel.api.model_loading import ModelSource, load_models, load_vectors
from keel.api.settings import Source, merge_settings, route_settings
from keel.api.text_generation import perplexity
from keel.config import Doc, Ge, enforces_bounds
from keel.data.examples import Columns, Examples, read_examples, skip_unlabelled, table_examples
from keel.data.language_mix import sources_by_language
from keel.data.multiple_choice_files import read_choices
from keel.data.table_sources import load_table
from keel.data.tables import choose_columns, describe_columns
from keel.data.word_benchmarks import published_form
from keel.errors import UsageError, flag_of
from keel.events import OnEvent, ignore, note
from keel.explain.vector_benchmarks import evaluate_vectors
from keel.explain.zero_shot import choose_most_probable, next_token_model, predict_last_words
from keel.generation.beam_search import BeamSearch
from keel.metrics.label_errors import find_label_errors, supports_label_errors
from keel.metrics.scores import Scores
from keel.metrics.slices import Slices, score_slices, slice_by_label, slice_by_length, slice_by_values
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks import Task
from keel.tasks.classify import TextClassification

__all__ = ["evaluate"]

SLICES = {"length": slice_by_length, "label": slice_by_label}
"""Slices by what every labelled dataset has."""


@enforces_bounds
def evaluate(
    model: ModelSource | Sequence[ModelSource],
    data: Source,
    *,
    out: Annotated[
        str | Path | None, Doc("Folder for scores.json and tables of labels, confusions, errors and suspects.")
    ] = None,
    suspects: Annotated[int, Ge(0), Doc("Likely label errors to list, the most likely first; 0: none.")] = 0,
    slice: Annotated[
        str, Doc("Scores by text length (quartiles), by true label, or by the values of a COLUMN of the table.")
    ] = "",
    by: Annotated[Literal["", "last-word", "choices"], Doc("Zero-shot score of a language model.")] = "",
    columns: Columns | None = None,
    search: BeamSearch | None = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[EvaluateKeywords],
) -> Scores:
    """Scores on a labelled dataset, with confidence intervals; `out` gets scores.json and tables (labels.tsv,
    confusion.tsv, errors.tsv, suspects.csv). Several models are scored as an ensemble, by their mean predictions.

    Word vectors are scored on published benchmark files of word similarity (WordSim-353, SimLex-999, MEN, wordsim-240)
    and analogies (Google's, CA8), detected by their contents. A language model without a task gets the perplexity of a
    text, or a zero-shot score: `by` "last-word" (LAMBADA) or "choices" (multiple choice). `suspects` lists likely label
    errors by confident learning, in `Scores.suspects`. `slice` ("length", "label" or the name of a column) adds scores
    with intervals for parts of the dataset, in `Scores.slices`. Files of several languages, {"en": "test_en.tsv"} or
    Paths such as en:test_en.tsv, add the scores of each there, and their mean to the note.
    """
    known, *others = models = load_models(model, on_event)
    values = merge_settings(settings, columns=columns, search=search)
    refuse_unused(known, values, by)
    if suspects and (by or known.task is None or not supports_label_errors(known.task.labels.kind)):
        raise UsageError("--suspects needs a model that was fine-tuned for classes or tags: leave it out")
    if others and (by or known.task is None):
        raise UsageError("an ensemble needs models that were fine-tuned for a task: give one model")
    if slice and (by or known.task is None):
        raise UsageError("--slice needs a model that was fine-tuned for a task: leave it out")
    encoding = values.get("encoding", "auto")
    if known.task is None and sources_by_language(data, values.get("text_column") or "text"):
        raise UsageError("scores by language need a model that was fine-tuned for a task: evaluate one file at a time")
    in_file = known.task is None and isinstance(data, str | Path) and os.path.isfile(data)
    benchmark = in_file and published_form(data, encoding)
    if by:
        next_token_model(known)  # refuses other models before the data is read
        (roles,) = route_settings(values, Columns())
        if by == "last-word":
            texts = read_examples(data, pair=False, columns=roles.for_texts(), on_event=on_event)
            scores = predict_last_words(known, texts, on_event=on_event)
        else:
            scores = choose_most_probable(known, read_choices(data, roles, on_event), on_event=on_event)
    elif benchmark and known.encoder.width:
        if unused := values.keys() - {"encoding"}:
            what = f"{flag_of(min(unused))} is for labelled examples; {data} is a benchmark of word vectors"
            raise UsageError(f"{what}, whose columns are detected by their contents: leave it out")
        scores = evaluate_vectors(load_vectors(known), data, encoding=encoding, on_event=on_event)
    elif known.task is None and isinstance(known.system, LanguageModelSystem):
        scores = perplexity(known, data, on_event=on_event, **values)
    else:
        ensemble, roles = ensemble_of(models, values)
        task = ensemble.task
        examples, parts = _read_sliced(task, data, roles, slice, on_event)
        task.check_scorable(examples, task.labels)
        if unseen := task.labels.describe_unseen(examples):
            note(on_event, unseen)
        predictions = ensemble.predict(examples, on_event=on_event)
        scores = task.score(examples, predictions) if slice else task.score_languages(examples, predictions)
        if slice:
            scores = replace(scores, slices=score_slices(parts, examples, predictions, task.score))
        if suspects:
            among_all = predictions.with_labels(task.labels.including(examples))
            if any(each.card.was_trained_on(examples) for each in models):
                seen = "the model has seen these examples in training, and may have learned their label errors"
                note(on_event, f"{seen}: a model that was trained on other examples finds more")
            scores = replace(scores, suspects=find_label_errors(examples, among_all, suspects))
        if scores.warning:
            note(on_event, scores.warning)
    if out is not None:
        scores.write(Path(out))
    return scores


def _read_sliced(task: Task, data: Source, columns: Columns, by: str, on_event: OnEvent) -> tuple[Examples, Slices]:
    """Labelled examples, and the slices of them by length, label or another column of their table."""
    if by in ("", *SLICES):
        examples = task.read_labelled(data, columns, on_event)
        return examples, SLICES[by](examples) if by else {}
    if sources_by_language(data, columns.text_column or "text"):
        raise UsageError(f"--slice {by}: the slices are languages here: use --slice {' or --slice '.join(SLICES)}")
    if not (isinstance(task, TextClassification) and task.labels_texts):
        what = f"--slice {by}: files of --task {task.name} have no further columns"
        raise UsageError(f"{what}: use --slice {' or --slice '.join(SLICES)}")
    table = load_table(data, columns, on_event, pair=task.pair)
    if by not in table.columns:
        known = ", ".join(map(repr, table.columns))
        raise UsageError(f"--slice {by}: {table.source} has no such column: use length, label, or one of {known}")
    chosen = choose_columns(table, columns, pair=task.pair)
    note(on_event, describe_columns(table, *chosen))
    examples = table_examples(table, chosen, columns, on_event)
    cells = table.cells[table.columns.index(by)]
    labelled = examples.kind is not None
    kept = [cell for cell, value in zip(cells, examples.values, strict=True) if value is not None or not labelled]
    return skip_unlabelled(examples, on_event), slice_by_values(kept)

"""Inference: predictions for a dataset, masked words, embeddings, Chinese words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Unpack, overload

import numpy as np
import torch

from keel.api.answer_outputs import check_answers_folder, question_ids, write_answers
from keel.api.keywords import PredictKeywords
from keel.api.model_loading import ModelSource, default_model, load_model, load_models
from keel.api.scored_tables import write_scored
from keel.api.settings import Source, merge_settings, route_settings
from keel.config import Doc, enforces_bounds
from keel.data.examples import Columns, Examples
from keel.data.label_kinds import TextTarget
from keel.data.predictions import AnswerPredictions, is_segmentation
from keel.data.tagged_sentences import split_words
from keel.data.text_inputs import Texts, require_text, text_inputs
from keel.data.text_streams import plain_text_parts, split_examples
from keel.data.token_batch import TokenBatch
from keel.errors import KeelError, UsageError, flag_of
from keel.events import OnEvent, ignore
from keel.formats.folder_architecture import NEXT_HEAD
from keel.generation.beam_search import BeamSearch
from keel.model import Candidate, Model
from keel.nn.inference_loop import eval_mode
from keel.systems.bert import BertPretraining
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks import Task
from keel.tasks.answer import SpanAnswering
from keel.tasks.classify import TextClassification
from keel.tasks.ensemble import Ensemble
from keel.text_vectors import Pool, PooledOutput, TokenVectors

LANGUAGE_SAMPLE = 100
"""Texts by which the language is detected."""
OUT = (
    "Write the rows of FILE with predictions as a .csv, .tsv or .jsonl; for answers, a folder of the files that the "
    "official scorers read."
)
POOL = Doc(
    "Pooling over tokens; sif: the mean of word vectors, frequent words weighted less; cls: the first token; none: a "
    "vector per token; default: that of a sentence-transformers folder, sif for word vectors, else mean."
)

__all__ = ["embed", "fill", "next_sentence", "predict", "segment"]


def predict(
    model: ModelSource | Sequence[ModelSource],
    data: Source,
    *,
    out: Annotated[str | Path | None, Doc(OUT)] = None,
    columns: Columns | None = None,
    search: BeamSearch | None = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[PredictKeywords],
) -> Iterator[dict[str, Any]]:
    """Predictions for a dataset: an iterator of records, each with the position and text of an example.

    Several models are an ensemble: the mean of their probabilities or numbers, or of the logits of their answers.

    Model and dataset are read at once, and predictions are made on iteration. With `out`, the table is written to this
    file with further columns (prediction, confidence, probabilities of all labels), and the records are its rows; for
    answers, `out` is a folder of predictions.json, nbest_predictions.json and null_odds.json.
    """
    known = load_models(model, on_event)
    values = merge_settings(settings, columns=columns, search=search)
    refuse_unused(known[0], values)
    ensemble, roles = ensemble_of(known, values)
    task = ensemble.task
    if isinstance(task, TextClassification):
        roles = roles.for_texts()
    if out is not None and isinstance(task, SpanAnswering):
        check_answers_folder(Path(out))
        return iter(_written_answers(ensemble, task.read_examples(data, roles, on_event), Path(out), on_event))
    if out is not None:
        return iter(write_scored(ensemble, data, roles, Path(out), on_event))
    # Pairs, choices and tagged words are in files of other formats.
    parts = plain_text_parts(data, roles, on_event) if type(task) is TextClassification else None
    return _records(ensemble, parts or split_examples(task.read_examples(data, roles, on_event)), on_event)


def _written_answers(ensemble: Ensemble, examples: Examples, out: Path, on_event: OnEvent) -> list[dict[str, Any]]:
    ids = question_ids(examples)  # refused before anything is predicted
    predictions = ensemble.predict(examples, on_event=on_event)
    assert isinstance(predictions, AnswerPredictions)
    write_answers(out, ids, predictions, on_event)
    return [
        {"where": example.location, **ensemble.task.describe_example(example), **answer.to_dict()}
        for example, answer in zip(examples, predictions.answers, strict=True)
    ]


def _records(ensemble: Ensemble, parts: Iterator[Examples], on_event: OnEvent) -> Iterator[dict[str, Any]]:
    for part in parts:
        for example, record in zip(part, ensemble.predict(part, on_event=on_event).to_dicts(), strict=True):
            # True tags next to the predicted ones, for other scorers.
            gold = {"gold": list(example.names)} if example.words and example.label else {}
            yield {"where": example.location, **ensemble.task.describe_example(example), **record, **gold}


def fill(
    text: str,
    *,
    model: ModelSource | None = None,
    top: Annotated[int, Doc("Words per mask.")] = 5,
    on_event: OnEvent = ignore,
) -> list[list[Candidate]]:
    """The most probable words for every [MASK] (or ___) of a text; by default, those of the bundled encoder."""
    require_text(text, "the text")
    return load_model(model or default_model("encoder", text, on_event), on_event).fill(text, top=top)


def predicts_next_sentence(model: Model) -> bool:
    """Whether a model has learned next sentence prediction, and has not lost that head."""
    objective = model.objective
    if not isinstance(objective, BertPretraining) or NEXT_HEAD in model.missing:
        return False
    return objective.system.pair_objective == "nsp"


def next_sentence(first: str, second: str, *, model: ModelSource, on_event: OnEvent = ignore) -> float:
    """The probability that the second text follows the first one, by a BERT with next sentence prediction."""
    require_text(first, "the first text")
    require_text(second, "the second text")
    known = load_model(model, on_event)
    if not predicts_next_sentence(known):
        title = known.card.title or known.system.name
        raise UsageError(f"{title} has no next sentence prediction: use a bert with --system.pair_objective nsp")
    assert isinstance(known.objective, BertPretraining)
    ids = [known.tokenizer.encode(text).ids for text in (first, second)]
    inputs = known.system.build_inputs(known.tokenizer, *ids)
    if len(inputs.ids) > known.system.max_length:
        what = f"the texts have {len(inputs.ids)} tokens, and this model reads at most {known.system.max_length}"
        raise KeelError(f"{what}: give shorter ones")
    batch = TokenBatch.pad([inputs.ids], [inputs.segments]).to(known.device)
    with torch.inference_mode(), eval_mode(known.objective):
        pooled = known.encoder.pool(known.encoder(batch), batch)
        return float(known.objective.predict_next(pooled).float().softmax(-1)[0, 0])


@overload
def embed(
    texts: Texts, *, model: ModelSource | None = None, layer: int = -1, pool: PooledOutput = "default",
    text_column: str = "", on_event: OnEvent = ignore,
) -> np.ndarray: ...  # fmt: skip
@overload
def embed(
    texts: Texts, *, model: ModelSource | None = None, layer: int = -1, pool: Pool, text_column: str = "",
    on_event: OnEvent = ignore,
) -> np.ndarray | TokenVectors | list[TokenVectors]: ...  # fmt: skip
@enforces_bounds
def embed(
    texts: Texts,
    *,
    model: ModelSource | None = None,
    layer: Annotated[int, Doc("Layer of the encoder: 0 for the embeddings, -1 for the top.")] = -1,
    pool: Annotated[Pool, POOL] = "default",
    text_column: str = "",
    on_event: OnEvent = ignore,
) -> np.ndarray | TokenVectors | list[TokenVectors]:
    """Embeddings of texts: a vector per text, or with pool="none" a vector per token in context; by default, those of
    the bundled encoder in Chinese, and of the bundled word vectors in English."""
    given, one = text_inputs(texts, text_column=text_column, on_event=on_event)
    sample = " ".join(given[:LANGUAGE_SAMPLE])
    known = load_model(model or default_model("sentence embeddings", sample, on_event), on_event)
    return known.encode(given[0] if one else given, layer=layer, pool=pool, on_event=on_event)


def segment(
    texts: Texts,
    *,
    model: Annotated[
        ModelSource | None, Doc("A model fine-tuned to segment (--task tag); default: a dictionary.")
    ] = None,
    text_column: str = "",
    on_event: OnEvent = ignore,
) -> list[Any]:
    """The words of a Chinese text, or a list of them for several: by jieba's dictionary, or by a trained `model`."""
    given, one = text_inputs(texts, text_column=text_column, on_event=on_event)
    if model is None:
        found = [split_words(text, chinese_words=True) for text in given]
    else:
        known = load_model(model, on_event)
        if known.task is None or not is_segmentation(known.task.labels):
            what = f"{known.card.title or 'the model'} does not segment text"
            raise UsageError(f"{what}: fine-tune one on segmented text (keel finetune MODEL FILE --task tag)")
        found = [tagged.segmented_words for tagged in known.predict(given, on_event=on_event)]
    return found[0] if one else found


def task_with_decoding(model: Model, settings: Mapping[str, Any]) -> tuple[Task, Columns]:
    """The model's task with the decoding settings, and the columns of the dataset."""
    if model.task is None:
        raise UsageError(f"{model.card.title or 'the model'} has no task: fine-tune it first (keel finetune)")
    columns, search = route_settings(settings, Columns(), model.task.decoding)
    return model.task.with_decoding(search), columns


def ensemble_of(models: Sequence[Model], settings: Mapping[str, Any]) -> tuple[Ensemble, Columns]:
    """The ensemble of the models' tasks, each with the decoding settings, and the columns of the dataset."""
    found = [task_with_decoding(model, settings) for model in models]
    names = [model.card.title or f"model {number}" for number, model in enumerate(models, 1)]
    return Ensemble.of([task for task, _ in found], names), found[0][1]


def refuse_unused(model: Model, settings: Mapping[str, Any], by: str = "") -> None:
    """Refuse beam search settings for a model without a decoder, and a stride where no perplexity is computed."""
    searches = model.task is not None and isinstance(model.task.labels.kind, TextTarget)
    has_perplexity = model.task is None and isinstance(model.system, LanguageModelSystem) and not by
    is_what = f"is a {model.system.name} without a task"
    if model.task is not None:
        is_what = f"was fine-tuned for {model.task.name}"
    elif isinstance(model.system, LanguageModelSystem):
        is_what = f"is a language model{f', scored by {by}' if by else ''}"
    name = model.card.title or "this model"
    for field in fields(BeamSearch):
        if field.name in settings and not searches:
            raise UsageError(f"{flag_of(field.name)} is for seq2seq models; {name} {is_what}: leave it out")
    if "stride" in settings and not has_perplexity:
        raise UsageError(f"--stride is for the perplexity of a language model; {name} {is_what}: leave it out")

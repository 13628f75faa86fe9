"""Tensors of a fine-tuned model's prediction: those of its encoder, and those of its head."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.collation import TokenSelection
from keel.data.examples import Examples
from keel.data.label_kinds import Regression
from keel.data.predictions import SpanAnswer, TaggedText
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.text_tokens import token_names
from keel.explain.trace.encoder_recording import watch_encoder
from keel.explain.trace.encoder_tracing import top_candidates
from keel.explain.trace.head_kinds import (
    LABELS,
    MEAN_FEATURES,
    MIX_SCALE,
    MIX_WEIGHTS,
    POOLED_FEATURES,
    classifier_kinds,
    mixed_kinds,
    network_kind,
)
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TOP, TraceStep
from keel.explain.trace.trace_inputs import PAD, check_size, sequence_labels, vocabulary_ids
from keel.model import Candidate, Model
from keel.systems.bert import BertEncoder
from keel.systems.modernbert import ModernBertEncoder
from keel.tasks.answer import SpanAnswering
from keel.tasks.answer_windows import QUESTION
from keel.tasks.choose import MultipleChoice
from keel.tasks.classify import TextClassification
from keel.tasks.tag import TokenClassification
from keel.tasks.task import Task


def trace_task(model: Model, task: Task, text: str, second: str) -> list[TraceStep]:
    """The prediction of a fine-tuned model, through its encoder and its head."""
    kinds = TextClassification | TokenClassification | SpanAnswering
    if isinstance(task, MultipleChoice) or not isinstance(task, kinds):
        raise UsageError(
            f"{model.title} was fine-tuned for {task.name}: keel trace shows classify, pair, tag, answer, seq2seq"
        )
    if task.pair != bool(second):
        wanted = "a passage and a question" if task.name == "answer" else "two texts" if task.pair else "one text"
        raise UsageError(f"{model.title} was fine-tuned for {task.name}: give {wanted}")
    item = (text, second) if task.pair else text
    examples = Examples.of([task.make_example(item, 0)], None, "the text")
    data = task.encode_examples(examples, labelled=False)
    sequences = np.arange(len(data.example_indices))
    if len(sequences) > task.sequences_per_window:
        what = f"the text does not fit into one sequence of {model.system.max_length:,} tokens"
        raise UsageError(f"{what}: give a shorter one")
    batch = data.padded_batch(sequences)
    check_size(batch.ids.numel())
    selection, _ = data.select_tokens(sequences, batch)
    members = None if data.group_starts is None else data.expand_groups(np.arange(1))[1]
    names = _batch_names(task.tokenizer, batch)
    labels = sequence_labels(task.encoder, names)
    labels[LABELS] = [["start", "end"] if isinstance(task, SpanAnswering) else list(task.labels.names)]
    units = "texts"
    if isinstance(task, TokenClassification):
        units = "words"
        labels[units] = [list(task.split_into_words(examples[0]))]
    elif isinstance(task, SpanAnswering):
        assert selection is not None
        units, flat = "candidates", [name for row in names for name in row]
        labels[units] = [[flat[position] for position in selection.positions[0].tolist()]]
    device = model.device
    with TensorRecorder() as recorder:
        tensors = watch_encoder(recorder, task.encoder)
        _watch_head(recorder, task)
        logits = task.batch_logits(
            batch.to(device),
            None if selection is None else selection.to(device),
            None if members is None else members.to(device),
        )
        _, scores, probabilities = classifier_kinds(logits.dim(), units)
        recorder.add(scores, logits)
        shares = _probabilities(task, logits, selection)
        if not isinstance(task.labels.kind, Regression):
            recorder.add(probabilities, shares)
    step = TraceStep(
        title=f"forward pass and head ({task.name})",
        tensors=[],
        labels=labels,
        read=names[0],
        predictions=_predictions(model, task, item, shares),
    )
    return tensors.steps(step)


def _batch_names(tokenizer: Tokenizer, batch: TokenBatch) -> list[list[str]]:
    """The tokens of each sequence, padding included."""
    rows: list[list[str]] = []
    for row, length in zip(vocabulary_ids(batch).tolist(), batch.lengths.tolist(), strict=True):
        known = [tokenizer.unknown_id if id < 0 else id for id in row[:length]]
        rows.append([*token_names(tokenizer, known), *[PAD] * (len(row) - length)])
    return rows


def _watch_head(recorder: TensorRecorder, task: Task) -> None:
    """Record what is between the encoder and the logits."""
    mix, encoder = task.mix, task.encoder
    if mix is not None:

        def record_layers(layers: Tensor) -> None:
            recorder.add(MIX_WEIGHTS, mix.weights)
            recorder.add(MIX_SCALE, mix.gamma)
            recorder.add(mixed_kinds(layers.dim())[0], layers)

        recorder.watch(
            mix, before=record_layers, after=lambda mixed: recorder.add(mixed_kinds(mixed.dim() + 1)[1], mixed)
        )
    pooled = isinstance(task, TextClassification) and task.pool == "default" and task.network is None
    if isinstance(encoder, BertEncoder) and pooled:
        is_mean = isinstance(encoder, ModernBertEncoder) and encoder.classifier_pooling == "mean"
        recorder.watch(encoder.pooler, before=MEAN_FEATURES if is_mean else POOLED_FEATURES)
    if task.network is not None:
        for number, layer in enumerate(task.network.layers, 1):
            recorder.watch(layer, after=lambda output, number=number: _record_network(recorder, number, output))
    classifier = getattr(task, "classifier", None)
    assert isinstance(classifier, nn.Linear)
    units = "words" if isinstance(task, TokenClassification) else "candidates"
    source = "scalar mix" if mix is not None else "stream"
    if pooled:
        source = "pooled features" if isinstance(encoder, BertEncoder) else source
    recorder.watch(classifier, before=lambda read: recorder.add(classifier_kinds(read.dim(), units, source)[0], read))


def _record_network(recorder: TensorRecorder, number: int, output: Any) -> None:
    recorder.add(network_kind(number), output if isinstance(output, Tensor) else output[0][-1])


def _probabilities(task: Task, logits: Tensor, selection: TokenSelection | None) -> Tensor:
    """Probabilities of the logits; of an answer, of its start and of its end over all tokens but the question's."""
    logits = logits.detach().float().cpu()
    if isinstance(task, TextClassification):
        return torch.from_numpy(task.label_probabilities(logits))
    if isinstance(task, SpanAnswering):
        assert selection is not None
        assert selection.roles is not None
        return logits.masked_fill((selection.roles == QUESTION)[..., None], -torch.inf).softmax(1)
    return logits.softmax(-1)


def _predictions(model: Model, task: Task, item: Any, probabilities: Tensor) -> dict[str, list[Candidate]]:
    """The model's own prediction: labels, the tag of each word, or answers."""
    if isinstance(task, TextClassification):
        if not task.labels.kind.has_classes:
            return {}
        return {"label": top_candidates(probabilities[0], lambda number: task.labels.names[number])}
    found = model.predict(item)
    if isinstance(found, TaggedText):
        tags = zip(found.words, found.tags, found.probabilities, strict=True)
        return {f"{number}. {word}": [Candidate(tag, share)] for number, (word, tag, share) in enumerate(tags, 1)}
    if isinstance(found, SpanAnswer):
        best = [found, *(each for each in found.alternatives if each.text != found.text)]
        return {"answer": [Candidate(each.text or "(no answer)", each.probability) for each in best[:TOP]]}
    return {}

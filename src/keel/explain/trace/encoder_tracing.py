"""Tensors of an encoder's forward pass: input embeddings, layers, pooling and the heads of pre-training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.explain.text_tokens import SINK, token_names
from keel.explain.trace.head_kinds import (
    DETECTION_LOGITS,
    DETECTION_PROBABILITIES,
    LABELS,
    MASK_FEATURES,
    MASK_LOGITS,
    MASK_PROBABILITIES,
    MASKED_VECTORS,
    MASKS,
    NEXT_SENTENCE_LOGITS,
    NEXT_SENTENCE_PROBABILITIES,
    POOLED_OUTPUT,
    TEXT_VECTOR,
)
from keel.explain.trace.recurrent_recording import CellRun, split_time_steps, watch_recurrent
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TOP, TensorKind, TraceStep
from keel.explain.trace.transformer_kinds import BATCH, PADDING_MASK, TOKEN_EMBEDDINGS, TOKEN_IDS, TOKENS, VECTORS
from keel.explain.trace.transformer_recording import watch_transformer
from keel.formats.folder_architecture import DETECTION_HEAD, NEXT_HEAD, WORD_HEAD
from keel.model import MASK, Candidate, Model
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.pooling import pool_tokens
from keel.nn.transformer_blocks import ACTIVATIONS
from keel.systems.bert import Bert, BertEncoder, BertPretraining
from keel.systems.cnn import CnnEncoder
from keel.systems.electra import ElectraPretraining
from keel.text_vectors import MEAN

MAX_TOKENS = 128
"""Tokens of all sequences of a trace, padding included."""
PAD = "[PAD]"
MAX_ATTENDED = 3
"""Tokens that an explanation names for a layer."""

STATIC_VECTORS = TensorKind(
    name="word vectors",
    axes=VECTORS,
    meaning="One vector per word, the same in every sentence.",
    formula="E[id]",
    sources=("token ids",),
    stream=True,
)
FILTER_ACTIVATIONS = TensorKind(
    name="filter activations",
    axes=(BATCH, TOKENS, "filters"),
    meaning="All filters at every position, negative numbers cut off; pooling then takes the maximum of each filter.",
    formula="max(0, W x[t..t+k] + b)",
    part="convolution",
    sources=("stream",),
    stream=True,
)


class EncoderInput(NamedTuple):
    """A batch as an encoder reads it, and the names of its tokens."""

    batch: TokenBatch
    names: list[list[str]]


class PassTensors(NamedTuple):
    """What was recorded of a forward pass."""

    recorder: TensorRecorder
    runs: list[CellRun] | None = None
    """The recurrent layers of a single sequence: their time steps become steps of the trace."""

    def steps(self, step: TraceStep) -> list[TraceStep]:
        """The step, with its tensors; with recurrent layers the time steps between input and output."""
        step = replace(step, tensors=self.recorder.collect())
        alone = len(step.labels[TOKENS]) == 1
        return split_time_steps(self.recorder, self.runs, step) if self.runs and alone else [step]


def check_size(count: int) -> None:
    """Refuse an input of too many tokens."""
    if count > MAX_TOKENS:
        what = f"there are {count:,} tokens with special tokens and padding, and a trace shows at most {MAX_TOKENS}"
        raise UsageError(f"{what}: give a shorter text")


def top_candidates(probabilities: Tensor, name: Callable[[int], str], left_out: Sequence[int] = ()) -> list[Candidate]:
    """The most probable entries of a distribution [classes], without those that are `left_out`."""
    if left_out:
        probabilities = probabilities.clone()
        probabilities[[*left_out]] = -1
    best = probabilities.topk(min(TOP, len(probabilities) - len(left_out)))
    return [Candidate(name(number), value) for value, number in zip(*map(Tensor.tolist, best), strict=True)]


def plain_input(model: Model, texts: Sequence[str], second: str) -> EncoderInput:
    """Texts in the input template of the system."""
    system, tokenizer = model.system, model.tokenizer
    if second and not isinstance(system, Bert):
        raise UsageError(f"{system.name} reads one text: leave out the second one")
    if model.sentence_pooling is not None and model.sentence_pooling.lowercase:
        texts, second = [text.lower() for text in texts], second.lower()
    *first, other = tokenizer.encode_many([*texts, second], oov_ids=system.uses_subwords)
    inputs = [system.build_inputs(tokenizer, ids, other if second else None) for ids in first]
    if not all(each.ids for each in inputs):
        raise UsageError("the text has no tokens: give a text with words")
    longest = max(len(each.ids) for each in inputs)
    if longest > system.max_length:
        what = (
            f"the text has {longest:,} tokens with special tokens, and this model reads at most {system.max_length:,}"
        )
        raise UsageError(f"{what}: give a shorter one")
    check_size(longest * len(inputs))
    names = [[*token_names(tokenizer, each.ids), *[PAD] * (longest - len(each.ids))] for each in inputs]
    batch = TokenBatch.pad([each.ids for each in inputs], [each.segments for each in inputs])
    return EncoderInput(system.with_subword_units(batch, tokenizer).to(model.device), names)


def sequence_labels(encoder: nn.Module, names: list[list[str]]) -> dict[str, list[list[str]]]:
    """Names along the axes of tokens; those of a GPT with a sink begin with it."""
    sink = [SINK] if getattr(encoder, "sink", None) is not None else []
    rows = [[*sink, *each] for each in names]
    attends = any(isinstance(module, MultiHeadAttention) for module in encoder.modules())
    return dict.fromkeys((TOKENS, "queries", "keys") if attends else (TOKENS,), rows)


def watch_encoder(recorder: TensorRecorder, encoder: Encoder) -> PassTensors:
    """Record what an encoder computes."""
    if watch_transformer(recorder, encoder):
        if isinstance(encoder, BertEncoder):
            recorder.watch_arguments(encoder.stack, lambda args: _record_mask(recorder, args[1]))
        return PassTensors(recorder)
    if (runs := watch_recurrent(recorder, encoder)) is not None:
        return PassTensors(recorder, runs)
    if isinstance(encoder, CnnEncoder):
        recorder.watch(encoder.words, before=TOKEN_IDS, after=replace(TOKEN_EMBEDDINGS, stream=True))
        for size, window in zip(encoder.filters.sizes, encoder.filters.windows, strict=True):
            kind = _filter_kind(size)
            recorder.watch(window, after=lambda value, kind=kind: recorder.add(kind, value.transpose(1, 2)))
        recorder.watch(encoder, after=lambda output: recorder.add(FILTER_ACTIVATIONS, output.top))
    else:
        recorder.watch_arguments(encoder, lambda args: recorder.add(TOKEN_IDS, vocabulary_ids(args[0])))
        recorder.watch(encoder, after=lambda output: recorder.add(STATIC_VECTORS, output.top))
    return PassTensors(recorder)


def vocabulary_ids(batch: TokenBatch) -> Tensor:
    """The ids of a batch, which may index into the words with subword units; -1 for a word beyond the vocabulary."""
    return batch.ids if batch.subword_units is None else batch.subword_units.word_ids[batch.ids]


def _record_mask(recorder: TensorRecorder, mask: Tensor | None) -> None:
    if mask is not None:
        recorder.add(PADDING_MASK, mask.float())


def _filter_kind(size: int) -> TensorKind:
    return TensorKind(
        name=f"filters over {size} tokens",
        axes=(BATCH, TOKENS, "filters"),
        meaning=f"Every filter at every window of {size} neighbouring vectors: one number each.",
        formula=f"W x[t..t+{size - 1}] + b",
        part="convolution",
        sources=("token embeddings",),
    )


def trace_encoder(model: Model, texts: Sequence[str], second: str) -> tuple[list[TraceStep], list[str]]:
    """A forward pass of texts in one batch, or of a pair, and explanations of it."""
    objective, tokenizer = model.objective, model.tokenizer
    fills = isinstance(objective, BertPretraining) and WORD_HEAD not in model.missing and len(texts) == 1
    mask_id = tokenizer.mask_id if fills and tokenizer.has_special_token("mask") else -1
    if mask_id >= 0:
        texts = [MASK.sub(tokenizer.token_of(mask_id), text) for text in texts]
    given = plain_input(model, texts, second)
    masks = (given.batch.ids[0] == mask_id).nonzero()[:, 0].tolist()
    labels = sequence_labels(model.encoder, given.names)
    with TensorRecorder() as recorder:
        tensors = watch_encoder(recorder, model.encoder)
        if masks and isinstance(objective, BertPretraining):
            predictions = _predict_masked(recorder, model, objective, given, masks)
            labels[MASKS] = [[*predictions]]
        else:
            predictions = _finish_pass(recorder, model, given.batch, model.encoder(given.batch), paired=bool(second))
        if "next sentence" in predictions:
            labels[LABELS] = [[each.word for each in predictions["next sentence"]]]
    step = TraceStep(title="forward pass", tensors=[], labels=labels, read=given.names[0], predictions=predictions)
    steps = tensors.steps(step)
    return steps, [sentence for position in masks for sentence in explain_mask(steps[0], position)]


def _predict_masked(
    recorder: TensorRecorder, model: Model, objective: BertPretraining, given: EncoderInput, masks: list[int]
) -> dict[str, list[Candidate]]:
    """The prediction at each mask, as `Model.fill` makes it."""
    tokenizer = model.tokenizer
    recorder.watch(objective.transform, before=MASKED_VECTORS)
    recorder.watch(objective.norm, after=MASK_FEATURES)
    logits = objective.masked_logits(given.batch, torch.tensor([masks], device=model.device))[..., : len(tokenizer)]
    recorder.add(MASK_LOGITS, logits)
    probabilities = logits.float().softmax(-1)
    recorder.add(MASK_PROBABILITIES, probabilities)
    return {
        mask_name(given.names[0], position): top_candidates(row, tokenizer.word_of, tokenizer.special_ids)
        for position, row in zip(masks, probabilities[0], strict=True)
    }


def _finish_pass(
    recorder: TensorRecorder, model: Model, batch: TokenBatch, output: EncoderOutput, *, paired: bool
) -> dict[str, list[Candidate]]:
    """What a model without a task makes of an encoder's output: whether B follows A, which tokens were replaced, or the
    vector of the text."""
    objective = model.objective
    if isinstance(objective, ElectraPretraining) and DETECTION_HEAD not in model.missing:
        hidden = ACTIVATIONS[objective.system.activation](objective.transform(output.top))
        logits = objective.detector(hidden).squeeze(-1)
        recorder.add(DETECTION_LOGITS, logits)
        recorder.add(DETECTION_PROBABILITIES, logits.sigmoid())
    elif not paired:
        pooling = model.sentence_pooling or MEAN
        vector = pool_tokens(output.top, batch, pooling.pool)
        recorder.add(TEXT_VECTOR, F.normalize(vector) if pooling.normalize else vector)
    elif _predicts_next(model):
        assert isinstance(objective, BertPretraining)
        pooled = model.encoder.pool(output, batch)
        recorder.add(POOLED_OUTPUT, pooled)
        logits = objective.predict_next(pooled)
        recorder.add(NEXT_SENTENCE_LOGITS, logits)
        probabilities = logits.float().softmax(-1)
        recorder.add(NEXT_SENTENCE_PROBABILITIES, probabilities)
        names = "B follows A", "B does not follow A"
        return {"next sentence": [Candidate(*each) for each in zip(names, probabilities[0].tolist(), strict=True)]}
    return {}


def _predicts_next(model: Model) -> bool:
    if not isinstance(model.objective, BertPretraining) or NEXT_HEAD in model.missing:
        return False
    return model.objective.system.pair_objective == "nsp"


def mask_name(names: Sequence[str], position: int) -> str:
    """A mask with its position, from 1."""
    return f"{names[position]} at {position + 1}"


def explain_mask(step: TraceStep, position: int) -> list[str]:
    """What Q, K and V are when a masked word is predicted, with the numbers of this text."""
    names = step.labels[TOKENS][0]
    mask = names[position]
    found = [
        f"{mask_name(names, position)}: in every layer, row {position + 1} of Q is its query. In layer 1 it is made of "
        f"the embeddings of {mask}, of its position and of its segment, as the word itself is hidden. K and V have a "
        f"row for each of the {len(names)} tokens, {mask} included; the attention weights say how much of each value "
        f"is added to the vector of {mask}, so that from layer 2 on its query depends on the other words."
    ]
    for tensor in step.tensors:
        if tensor.kind.name == "attention weights":
            shares = tensor.values[0, :, position].mean(0)
            order = np.argsort(-shares, kind="stable")[:MAX_ATTENDED]
            top = ", ".join(f"{names[index]} {shares[index]:.2f}" for index in order)
            if tensor.layer == 1:
                found.append(f"{mask} attends most to (mean of {tensor.shape[1]} heads):")
            found.append(f"layer {tensor.layer}: {top}")
    best = step.predictions[mask_name(names, position)]
    words = ", ".join(f"{each.word} {each.probability:.2f}" for each in best[:MAX_ATTENDED])
    return [*found, f"Its output vector is compared with the embeddings of all tokens: {words}."]

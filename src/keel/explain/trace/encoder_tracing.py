"""The forward pass of an encoder without a task, with its heads of pre-training: masked words, the next sentence,
replaced tokens; else the vector of the text."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.explain.trace.encoder_recording import watch_encoder
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
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TOP, TraceStep
from keel.explain.trace.trace_inputs import EncoderInput, plain_input, sequence_labels, vocabulary_ids
from keel.explain.trace.transformer_kinds import TOKENS
from keel.formats.folder_architecture import DETECTION_HEAD, NEXT_HEAD, WORD_HEAD
from keel.model import MASK, Candidate, Model
from keel.nn.encoder import EncoderOutput
from keel.nn.pooling import pool_tokens, sif_weights
from keel.nn.transformer_blocks import ACTIVATIONS
from keel.systems.bert import BertPretraining
from keel.systems.electra import ElectraPretraining

MAX_ATTENDED = 3
"""Tokens that an explanation names for a layer."""


def top_candidates(probabilities: Tensor, name: Callable[[int], str], left_out: Sequence[int] = ()) -> list[Candidate]:
    """The most probable entries of a distribution [classes], without those that are `left_out`."""
    if left_out:
        probabilities = probabilities.clone()
        probabilities[[*left_out]] = -1
    best = probabilities.topk(min(TOP, len(probabilities) - len(left_out)))
    return [Candidate(name(number), value) for value, number in zip(*map(Tensor.tolist, best), strict=True)]


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
    first, last = objective.mlm_layers
    recorder.watch(first, before=MASKED_VECTORS)
    recorder.watch(last, after=MASK_FEATURES)
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
        pooling = model.default_pooling
        if pooling.sif:
            known = sif_weights(model.encoder.vocab_size, model.tokenizer.special_ids).to(model.device)
            weights = known[vocabulary_ids(batch), None]  # the last one for a word beyond the vocabulary, -1
            vector = (weights * output.top).sum(1) / weights.sum(1)
        else:
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
    is_rotary = all(tensor.kind.name != "position embeddings" for tensor in step.tensors)
    embedded = f"{mask} alone" if is_rotary else f"{mask}, of its position and of its segment"
    found = [
        f"{mask_name(names, position)}: in every layer, row {position + 1} of Q is its query. In layer 1 it is made of "
        f"the embeddings of {embedded}, as the word itself is hidden. K and V have a "
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

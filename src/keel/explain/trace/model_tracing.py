"""The tensor trace of a text: which of the ways through a network is recorded, by the kind of model."""

from collections.abc import Sequence

import torch

from keel.errors import UsageError
from keel.events import OnEvent, ignore, pluralize
from keel.explain.trace.decoding_tracing import (
    NEW_TARGET_TOKENS,
    NEW_TOKENS,
    trace_encoder_decoder,
    trace_language_model,
)
from keel.explain.trace.encoder_tracing import trace_encoder
from keel.explain.trace.task_tracing import trace_task
from keel.explain.trace.tensor_trace import TensorTrace
from keel.model import Model
from keel.nn.inference_loop import eval_mode
from keel.nn.multihead_attention import MultiHeadAttention
from keel.systems.bert import BertEncoder
from keel.systems.cnn import CnnEncoder
from keel.systems.elmo import ElmoEncoder
from keel.systems.gpt import GptEncoder, GptPretraining
from keel.systems.rnn import RnnEncoder, RnnPretraining
from keel.systems.seq2seq import Seq2seqEncoder
from keel.systems.static_vectors import StaticEncoder
from keel.systems.transformer import TransformerEncoder
from keel.tasks.sequence_to_sequence import SequenceToSequence

ENCODERS = (
    BertEncoder,
    GptEncoder,
    TransformerEncoder,
    RnnEncoder,
    ElmoEncoder,
    Seq2seqEncoder,
    CnnEncoder,
    StaticEncoder,
)
"""Encoders whose tensors can be recorded."""


def supports_trace(model: Model) -> bool:
    """Whether a model has tensors between token ids and output that can be recorded."""
    return isinstance(model.encoder, ENCODERS) and not model.encoder.bag_of_words


def trace_tensors(
    model: Model,
    text: str,
    second: str = "",
    *,
    also: Sequence[str] = (),
    tokens: int | None = None,
    on_event: OnEvent = ignore,
) -> TensorTrace:
    """Every tensor of a text or pair on its way through a model, in fp32; `also` are further texts of the same batch.

    A language model without a task decodes `tokens` tokens after the text, greedily; of an encoder-decoder, `second` is
    the target, by default the most probable tokens, at most `tokens`.
    """
    if not supports_trace(model):
        what = f"{model.title} ({model.system.name}) counts words: it has no tensors between token ids and output"
        raise UsageError(f"{what} to trace; use a network such as bert, gpt, elmo, transformer, cnn or word2vec")
    texts = [text, *also]
    if not all(each.strip() for each in texts):
        raise UsageError("the text is empty: give a text")
    task, objective = model.task, model.objective
    generates = task is None and isinstance(objective, GptPretraining | RnnPretraining) and objective.is_causal
    if also and (second or task is not None or generates):
        raise UsageError("--also is for encoders without a task, which read single texts: leave it out")
    if tokens is not None and not (generates or isinstance(task, SequenceToSequence)):
        raise UsageError(f"{model.title} does not generate text: leave out --tokens")
    explanations: list[str] = []
    with torch.inference_mode(), eval_mode(model.encoder), eval_mode(objective), eval_mode(task):
        if isinstance(task, SequenceToSequence):
            most = NEW_TARGET_TOKENS if tokens is None else tokens
            steps = trace_encoder_decoder(model, task, text, second, most, on_event)
        elif task is not None:
            steps = trace_task(model, task, text, second)
        elif generates and isinstance(objective, GptPretraining | RnnPretraining):
            if second:
                raise UsageError(
                    f"{model.title} is a causal language model, which reads one text: leave out the second one"
                )
            steps = trace_language_model(model, objective, text, NEW_TOKENS if tokens is None else tokens, on_event)
        else:
            steps, explanations = trace_encoder(model, texts, second)
    return TensorTrace(
        model=model.title,
        system=model.system.name,
        summary=_summary(model),
        text=text,
        second=second,
        steps=steps,
        explanations=explanations,
    )


def _summary(model: Model) -> str:
    """The shape of the network in words."""
    encoder = model.encoder
    parts = [model.system.name]
    decoder = model.task.decoder if isinstance(model.task, SequenceToSequence) else None
    if blocks := len(encoder.blocks()):
        both = decoder is not None and decoder.blocks()
        parts.append(f"{blocks} + {len(both)} layers" if both else pluralize(blocks, "layer"))
    attention = [module for module in encoder.modules() if isinstance(module, MultiHeadAttention)]
    if attention:
        parts.append(f"{pluralize(attention[0].heads, 'head')} of {attention[0].head_dim}")
    return ", ".join([*parts, f"width {encoder.width:,}"])

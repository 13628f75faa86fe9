"""Tensors of the recurrent decoder with attention (Bahdanau et al. 2014), by the notation of systems/seq2seq.py."""

import torch
from torch import Tensor

from keel.explain.trace.recurrent_kinds import GATES
from keel.explain.trace.recurrent_recording import gate_values
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TensorKind
from keel.explain.trace.transformer_kinds import BATCH, SOURCE, WIDTH
from keel.systems.seq2seq import AttentionSource, Seq2seqDecoder, Seq2seqState, scaled_embeddings

ATTENTION = "attention"

SOURCE_KEYS = TensorKind(
    name="source keys",
    axes=(BATCH, SOURCE, "attention dim"),
    meaning="The encoder's states, projected for the attention scores: computed once per source.",
    formula="W_k h_j",
    part="encoder output",
    sources=("stream",),
)
FIRST_STATE = TensorKind(
    name="first decoder state",
    axes=(BATCH, WIDTH),
    meaning="The decoder starts from the last state of the backward network, which has read the whole source.",
    formula="s_0 = tanh(W h_1 + b)",
    part="encoder output",
    sources=("stream",),
)
TARGET_EMBEDDING = TensorKind(
    name="target embedding",
    axes=(BATCH, WIDTH),
    meaning="The embedding of the target token before, times the root of the width.",
    formula="y_{i-1} = √d E[id]",
    sources=("token ids",),
)
DECODER_QUERY = TensorKind(
    name="query",
    axes=(BATCH, "attention dim"),
    meaning="What the decoder looks for in the source, from its state before this step.",
    formula="W_q s_{i-1}",
    part=ATTENTION,
    sources=("decoder state", "first decoder state"),
)
ENERGIES = TensorKind(
    name="attention scores",
    axes=(BATCH, SOURCE),
    meaning="How well the query matches each source token; every step scans all of them.",
    formula="e_ij = w · tanh(W_q s_{i-1} + W_k h_j), or q · k / √d",
    part=ATTENTION,
    sources=("query", "source keys"),
)
ALIGNMENT = TensorKind(
    name="attention weights",
    axes=(BATCH, SOURCE),
    meaning="The share of attention that each source token gets: a soft alignment, which sums to 1.",
    formula="α_i = softmax over j of e_ij",
    part=ATTENTION,
    sources=("attention scores",),
)
CONTEXT = TensorKind(
    name="context",
    axes=(BATCH, "encoder width"),
    meaning="The encoder's states, weighted by attention: another one at every step.",
    formula="c_i = Σ_j α_ij h_j",
    part=ATTENTION,
    sources=("attention weights", "output vectors"),
)
DECODER_STATE = TensorKind(
    name="decoder state",
    axes=(BATCH, WIDTH),
    meaning="The new state, from the old one, the token before and the context: it is passed on to the next step.",
    formula="s_i = f(s_{i-1}, y_{i-1}, c_i)",
    part="recurrent layer",
    sources=("decoder state", "target embedding", "context"),
    stream=True,
)
READOUT = TensorKind(
    name="read-out",
    axes=(BATCH, WIDTH),
    meaning="What the softmax reads: state, token before and context together.",
    formula="tanh(W_s s_i + W_y y_{i-1} + W_c c_i + b)",
    part="output",
    sources=("decoder state", "target embedding", "context"),
    stream=True,
)


def record_source(recorder: TensorRecorder, source: AttentionSource) -> None:
    """Record what is computed once per source."""
    recorder.add(SOURCE_KEYS, source.keys)
    recorder.add(FIRST_STATE, source.first)


def record_decoder_step(
    recorder: TensorRecorder,
    decoder: Seq2seqDecoder,
    source: AttentionSource,
    top: Tensor,
    ids: Tensor,
    states: tuple[Seq2seqState, Seq2seqState],
    found: tuple[Tensor, Tensor],
) -> None:
    """Record one decoding step from what is known of it: the encoder's output `top`, the ids [1, 1] that are read, the
    states before and after, and `found`, the attention weights and the read-out [1, 1, width]."""
    before, after = states
    weights, readout = found
    embedding = scaled_embeddings(decoder.word_embeddings(), ids)[:, 0]
    recorder.add(TARGET_EMBEDDING, embedding)
    query = before.hidden if decoder.query is None else decoder.query(before.hidden)
    recorder.add(DECODER_QUERY, query)
    recorder.add(ENERGIES, decoder.energies(query[:, None], source)[:, 0] + source.mask[:, 0])
    recorder.add(ALIGNMENT, weights[:, -1])
    context = (weights[:, -1:] @ top)[:, 0]
    recorder.add(CONTEXT, context)
    cells = None if before.cells is None else before.cells[0]
    gates, *_ = gate_values(decoder.cell, 0, torch.cat([embedding, context], 1)[0], before.hidden[0], cells)
    for name, value in gates.items():
        recorder.add(GATES[name], value[None, None])
    recorder.add(DECODER_STATE, after.hidden)
    recorder.add(READOUT, readout[:, -1])

"""The tensors of multi-head attention, by name: self-attention and cross-attention."""

from dataclasses import replace
from typing import NamedTuple

from keel.explain.trace.tensor_trace import TensorKind
from keel.explain.trace.transformer_kinds import BATCH, HEAD_DIM, HEADS, KEYS, QUERIES, SOURCE, VECTORS


class AttentionKinds(NamedTuple):
    """The tensors of an attention layer."""

    query: TensorKind
    key: TensorKind
    value: TensorKind
    scores: TensorKind
    weights: TensorKind
    heads: TensorKind
    output: TensorKind


def self_attention_kinds(*, causal: bool, source: str, cached: bool = False) -> AttentionKinds:
    """Self-attention, of a decoder (`causal`), over a KV cache or not; `source` is the name of what it reads."""
    part = "masked self-attention" if causal else "self-attention"
    earlier = " Those of earlier positions come from the KV cache; only the last one is new." if cached else ""
    mask = " Minus infinity for later positions, which a token must not see." if causal and not cached else ""
    return AttentionKinds(
        query=TensorKind(
            name="query",
            axes=(BATCH, HEADS, QUERIES, HEAD_DIM),
            meaning="What each token looks for: its vector times W_Q, cut into heads.",
            formula="Q = X W_Q + b_Q",
            part=part,
            sources=(source,),
        ),
        key=TensorKind(
            name="key",
            axes=(BATCH, HEADS, KEYS, HEAD_DIM),
            meaning=f"What each token is found by: its vector times W_K, cut into heads.{earlier}",
            formula="K = [K_cache; X W_K + b_K]" if cached else "K = X W_K + b_K",
            part=part,
            sources=(source,),
        ),
        value=TensorKind(
            name="value",
            axes=(BATCH, HEADS, KEYS, HEAD_DIM),
            meaning=f"What each token passes to those that attend to it: its vector times W_V.{earlier}",
            formula="V = [V_cache; X W_V + b_V]" if cached else "V = X W_V + b_V",
            part=part,
            sources=(source,),
        ),
        scores=TensorKind(
            name="attention scores",
            axes=(BATCH, HEADS, QUERIES, KEYS),
            meaning="How well each query matches each key; divided by √d, so that their variance does not grow with "
            f"the head dimension d.{mask or ' Minus infinity at padding.' * (not causal)}",
            formula="S = Q Kᵀ / √d",
            part=part,
            sources=("query", "key"),
        ),
        weights=TensorKind(
            name="attention weights",
            axes=(BATCH, HEADS, QUERIES, KEYS),
            meaning="The share of its attention that each query gives to each key: every row sums to 1.",
            formula="A = softmax(S)",
            part=part,
            sources=("attention scores",),
        ),
        heads=TensorKind(
            name="concatenated heads",
            axes=VECTORS,
            meaning="The means of the values, weighted by attention, all heads side by side.",
            formula="Z = [A₁V₁; ...; AₕVₕ]",
            part=part,
            sources=("attention weights", "value"),
        ),
        output=TensorKind(
            name="attention output",
            axes=VECTORS,
            meaning="The heads, mixed by one matrix.",
            formula="O = Z W_O + b_O",
            part=part,
            sources=("concatenated heads",),
        ),
    )


def rotary_kinds(kinds: AttentionKinds, window: int) -> AttentionKinds:
    """The same with rotary positions and without biases; a `window` of tokens limits what a token attends to."""
    turned = " Each pair of its numbers is then turned by an angle that grows with the position (RoPE)."
    beyond = f" Minus infinity also beyond a window of {window:,} tokens around the query." if window else ""
    return kinds._replace(
        query=replace(kinds.query, meaning=kinds.query.meaning + turned, formula="Q = RoPE(X W_Q)"),
        key=replace(kinds.key, meaning=kinds.key.meaning + turned, formula="K = RoPE(X W_K)"),
        value=replace(kinds.value, formula="V = X W_V"),
        scores=replace(kinds.scores, meaning=kinds.scores.meaning + beyond),
        output=replace(kinds.output, formula="O = Z W_O"),
    )


MEMORY_KEY = TensorKind(
    name="cross-attention key",
    axes=(BATCH, HEADS, SOURCE, HEAD_DIM),
    meaning="Keys of the encoder's output for this layer of the decoder: computed once, used by every decoding step.",
    formula="K = H W_K + b_K",
    part="encoder output",
    sources=("stream",),
)
MEMORY_VALUE = TensorKind(
    name="cross-attention value",
    axes=(BATCH, HEADS, SOURCE, HEAD_DIM),
    meaning="Values of the encoder's output for this layer of the decoder: computed once, used by every decoding step.",
    formula="V = H W_V + b_V",
    part="encoder output",
    sources=("stream",),
)


def cross_attention_kinds(source: str) -> AttentionKinds:
    """Attention of the decoder to the encoder's output; `source` is the name of what the queries are made of."""
    part = "cross-attention"
    return AttentionKinds(
        query=TensorKind(
            name="cross-attention query",
            axes=(BATCH, HEADS, QUERIES, HEAD_DIM),
            meaning="What the target token looks for in the source.",
            formula="Q = Y W_Q + b_Q",
            part=part,
            sources=(source,),
        ),
        key=MEMORY_KEY,
        value=MEMORY_VALUE,
        scores=TensorKind(
            name="cross-attention scores",
            axes=(BATCH, HEADS, QUERIES, SOURCE),
            meaning="How well the query matches the key of each source token, computed in the first step.",
            formula="S = Q Kᵀ / √d",
            part=part,
            sources=("cross-attention query", "cross-attention key"),
        ),
        weights=TensorKind(
            name="cross-attention weights",
            axes=(BATCH, HEADS, QUERIES, SOURCE),
            meaning="The share of its attention that the target token gives to each source token: an alignment.",
            formula="A = softmax(S)",
            part=part,
            sources=("cross-attention scores",),
        ),
        heads=TensorKind(
            name="cross-attention heads",
            axes=VECTORS,
            meaning="The means of the source's values, weighted by attention, all heads side by side.",
            formula="Z = [A₁V₁; ...; AₕVₕ]",
            part=part,
            sources=("cross-attention weights", "cross-attention value"),
        ),
        output=TensorKind(
            name="cross-attention output",
            axes=VECTORS,
            meaning="The heads, mixed by one matrix.",
            formula="O = Z W_O + b_O",
            part=part,
            sources=("cross-attention heads",),
        ),
    )

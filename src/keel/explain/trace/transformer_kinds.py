"""The tensors of Transformers, by name: embeddings, norms, residual connections, feed-forward network, output.

Those of attention are in `attention_kinds`.
"""

from typing import NamedTuple

from keel.explain.trace.tensor_trace import TensorKind
from keel.localization import gettext_noop
from keel.nn.transformer_blocks import TransformerBlock
from keel.systems.modernbert import ModernBertBlock

BATCH, TOKENS, WIDTH, VOCABULARY = "batch", "tokens", "width", "vocabulary"
HEADS, QUERIES, KEYS, HEAD_DIM, SOURCE = "heads", "queries", "keys", "head dim", "source"
VECTORS = (BATCH, TOKENS, WIDTH)

TOKEN_IDS = TensorKind(
    name="token ids",
    axes=(BATCH, TOKENS),
    meaning="The number of each token in the vocabulary; shorter sequences of a batch are padded.",
)
TOKEN_EMBEDDINGS = TensorKind(
    name="token embeddings",
    axes=VECTORS,
    meaning="The row of the embedding table of each token: the same vector wherever the token occurs.",
    formula="E[id]",
    sources=("token ids",),
)
SEGMENT_IDS = TensorKind(
    name="segment ids", axes=(BATCH, TOKENS), meaning="0 for tokens of the first text, 1 for those of the second."
)
SEGMENT_EMBEDDINGS = TensorKind(
    name="segment embeddings",
    axes=VECTORS,
    meaning="One learned vector for the first text (A) and one for the second (B).",
    formula="S[segment]",
    sources=("segment ids",),
)
POSITION_EMBEDDINGS = TensorKind(
    name="position embeddings",
    axes=(TOKENS, WIDTH),
    meaning="One learned vector per position, the same for every text of the batch.",
    formula="P[0], P[1], P[2], ...",
)
SINUSOIDAL_POSITIONS = TensorKind(
    name="position encoding",
    axes=(TOKENS, WIDTH),
    meaning="Sines and cosines of many wavelengths: a fixed vector per position.",
    formula="PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))",
)
EMBEDDING_SUM = TensorKind(
    name="embedding sum",
    axes=VECTORS,
    meaning="Token, segment and position embeddings, added.",
    formula="E + S + P",
    sources=("token embeddings", "segment embeddings", "position embeddings"),
)
NORMED_EMBEDDINGS = TensorKind(
    name="input embeddings",
    axes=VECTORS,
    meaning="The sum after layer norm: the vectors that the first layer reads.",
    formula="LayerNorm(E + S + P)",
    sources=("embedding sum",),
    stream=True,
)
NORMED_TOKENS = TensorKind(
    name="input embeddings",
    axes=VECTORS,
    meaning="Token embeddings after layer norm: what the first layer reads. Positions come in by attention.",
    formula="LayerNorm(E)",
    sources=("token embeddings",),
    stream=True,
)
PROJECTED_EMBEDDINGS = TensorKind(
    name="projected embeddings",
    axes=VECTORS,
    meaning="The narrower embeddings of ELECTRA, projected to the width of the layers.",
    formula="X W + b",
    sources=("input embeddings",),
    stream=True,
)
SUMMED_EMBEDDINGS = TensorKind(
    name="input embeddings",
    axes=VECTORS,
    meaning="Token and position embeddings, added: the vectors that the first layer reads.",
    formula="E + P",
    sources=("token embeddings", "position embeddings"),
    stream=True,
)
SCALED_EMBEDDINGS = TensorKind(
    name="scaled embeddings",
    axes=VECTORS,
    meaning="Token embeddings times the root of the width, as large as the position encoding beside them.",
    formula="√d E[id]",
    sources=("token embeddings",),
)
SCALED_SUM = TensorKind(
    name="input embeddings",
    axes=VECTORS,
    meaning="Scaled token embeddings plus the position encoding: the vectors that the first layer reads.",
    formula="√d E + P",
    sources=("scaled embeddings", "position encoding", "position embeddings"),
    stream=True,
)
PADDING_MASK = TensorKind(
    name="padding mask",
    axes=(BATCH, "1", "1", KEYS),
    meaning="1 at tokens, 0 at the padding of shorter sequences, which no token attends to; the same for all heads "
    "and queries.",
    sources=("token ids",),
)
FINAL_NORM = TensorKind(
    name="final layer norm",
    axes=VECTORS,
    meaning="The norm above the last layer, which pre-norm blocks need: each vector gets mean 0 and variance 1, then a "
    "learned scale and shift.",
    formula="LayerNorm(X)",
    part="output",
    sources=("stream",),
    stream=True,
)
NEXT_LOGITS = TensorKind(
    name="logits",
    axes=(BATCH, VOCABULARY),
    meaning="A score for every token of the vocabulary as the next one: products of the last vector with the output "
    "embeddings.",
    formula="x Eᵀ",
    part="output",
    sources=("stream",),
)
PROBABILITIES = TensorKind(
    name="probabilities",
    axes=(BATCH, VOCABULARY),
    meaning="The distribution of the next token; only the id of the chosen one is fed into the next step.",
    formula="softmax(logits)",
    part="output",
    sources=("logits",),
)


class SublayerKinds(NamedTuple):
    """What is around a sub-layer: its norm, and the sum with its input."""

    norm: TensorKind
    residual: TensorKind


def sublayer_kinds(number: int, name: str, output: str, before: str, *, pre_norm: bool, last: bool) -> SublayerKinds:
    """Residual connection and norm of the `number`-th sub-layer; `output` is its output, `before` what it is added
    to."""
    stream = ["The output of the layer, which the next one reads."] if last else []
    normed = "The sum: each vector gets mean 0, variance 1, a learned scale and shift."
    if pre_norm:
        return SublayerKinds(
            norm=TensorKind(
                name=f"{gettext_noop(name)} norm",
                axes=VECTORS,
                meaning="Each vector gets mean 0, variance 1, a learned scale and shift.",
                formula="LayerNorm(X)",
                part=f"layer norm {number}",
                sources=(before,),
            ),
            residual=TensorKind(
                name="layer output" if last else f"{gettext_noop(name)} residual",
                axes=VECTORS,
                meaning=" ".join([f"The residual stream: what came in, plus what {gettext_noop(name)} adds.", *stream]),
                formula="X + Sublayer(LayerNorm(X))",
                part=f"add {number}",
                sources=(before, output),
                stream=last,
            ),
        )
    return SublayerKinds(
        residual=TensorKind(
            name=f"{gettext_noop(name)} residual",
            axes=VECTORS,
            meaning=f"The input of {gettext_noop(name)} plus its output (residual connection).",
            formula="X + Sublayer(X)",
            part=f"add & norm {number}",
            sources=(before, output),
        ),
        norm=TensorKind(
            name="layer output" if last else f"{gettext_noop(name)} norm",
            axes=VECTORS,
            meaning=" ".join([normed, *stream]),
            formula="LayerNorm(X + Sublayer(X))",
            part=f"add & norm {number}",
            sources=(f"{gettext_noop(name)} residual",),
            stream=last,
        ),
    )


class FeedForwardKinds(NamedTuple):
    """The tensors of a feed-forward network."""

    hidden: TensorKind
    activated: TensorKind
    output: TensorKind


ACTIVATION_FORMULAS = {"relu": "max(0, H)", "gelu": "GELU(H)", "gelu_tanh": "GELU(H)", "silu": "SiLU(H)"}


def feed_forward_kinds(block: TransformerBlock, source: str) -> FeedForwardKinds:
    """The feed-forward network of a block; `source` is the name of what it reads."""
    activation = ACTIVATION_FORMULAS[block.activation_name]
    part, hidden = "feed-forward", (BATCH, TOKENS, "hidden")
    if isinstance(block, ModernBertBlock):
        return _gated_feed_forward_kinds(activation, source)
    return FeedForwardKinds(
        hidden=TensorKind(
            name="feed-forward hidden",
            axes=hidden,
            meaning="Each vector by itself, projected to a wider layer.",
            formula="H = X W₁ + b₁",
            part=part,
            sources=(source,),
        ),
        activated=TensorKind(
            name="feed-forward activation",
            axes=hidden,
            meaning="The activation function of every number: without it, the two matrices would be one.",
            formula=activation,
            part=part,
            sources=("feed-forward hidden",),
        ),
        output=TensorKind(
            name="feed-forward output",
            axes=VECTORS,
            meaning="Projected back to the width of the layer.",
            formula=f"{activation} W₂ + b₂",
            part=part,
            sources=("feed-forward activation",),
        ),
    )


def sandwich_kind(name: str) -> TensorKind:
    """The norm after a sub-layer, before the sum."""
    return TensorKind(
        name=f"{name} output norm",
        axes=VECTORS,
        meaning="What the sub-layer adds, normalised: each vector gets mean 0, variance 1, a learned scale.",
        formula="LayerNorm(Sublayer(X))",
        part=name if name == "feed-forward" else "self-attention",
        sources=(f"{name} output",),
    )


def _gated_feed_forward_kinds(activation: str, source: str) -> FeedForwardKinds:
    part, gated = "feed-forward", activation.replace("H", "H₁")
    return FeedForwardKinds(
        hidden=TensorKind(
            name="feed-forward hidden",
            axes=(BATCH, TOKENS, "hidden and gate"),
            meaning="Each vector by itself, projected to two wider layers side by side; the second one is a gate.",
            formula="[H₁; H₂] = X W₁",
            part=part,
            sources=(source,),
        ),
        activated=TensorKind(
            name="feed-forward activation",
            axes=(BATCH, TOKENS, "hidden"),
            meaning="The activation function of the first half, number by number times the second half.",
            formula=f"{gated} ⊙ H₂",
            part=part,
            sources=("feed-forward hidden",),
        ),
        output=TensorKind(
            name="feed-forward output",
            axes=VECTORS,
            meaning="Projected back to the width of the layer.",
            formula=f"({gated} ⊙ H₂) W₂",
            part=part,
            sources=("feed-forward activation",),
        ),
    )

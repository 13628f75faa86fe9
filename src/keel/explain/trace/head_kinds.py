"""The tensors above an encoder, by name: pooling, heads of pre-training, heads of tasks."""

from dataclasses import replace

from keel.explain.trace.tensor_trace import TensorKind
from keel.explain.trace.transformer_kinds import BATCH, TOKENS, VOCABULARY

MASKS, LABELS = "masks", "labels"
MLM, NSP, RTD, HEAD = "masked language model", "next sentence prediction", "replaced token detection", "task head"

MASKED_VECTORS = TensorKind(
    name="vectors of the masks",
    axes=(BATCH, MASKS, "width"),
    meaning="The output vectors at the positions of [MASK]: all that the prediction is made of.",
    part=MLM,
    sources=("stream",),
)
MASK_FEATURES = TensorKind(
    name="transformed vectors",
    axes=(BATCH, MASKS, "width"),
    meaning="One more layer with an activation and a layer norm, of the masked language model alone.",
    formula="LayerNorm(GELU(x W + b))",
    part=MLM,
    sources=("vectors of the masks",),
)
MASK_LOGITS = TensorKind(
    name="logits",
    axes=(BATCH, MASKS, VOCABULARY),
    meaning="A score for every token of the vocabulary at each mask: products with the token embeddings, plus a bias.",
    formula="y Eᵀ + b",
    part=MLM,
    sources=("transformed vectors",),
)
MASK_PROBABILITIES = TensorKind(
    name="probabilities",
    axes=(BATCH, MASKS, VOCABULARY),
    meaning="The distribution of the masked token over the vocabulary.",
    formula="softmax(logits)",
    part=MLM,
    sources=("logits",),
)
TEXT_VECTOR = TensorKind(
    name="text vector",
    axes=(BATCH, "width"),
    meaning="One vector per text, as Model.encode gives it: the token vectors, pooled.",
    formula="pool(H)",
    part="output",
    sources=("stream",),
)
POOLED_OUTPUT = TensorKind(
    name="pooled output",
    axes=(BATCH, "width"),
    meaning="The vector of [CLS] after the pooler, a layer with tanh: it stands for the whole input.",
    formula="tanh(h[CLS] W + b)",
    part=NSP,
    sources=("stream",),
)
NEXT_SENTENCE_LOGITS = TensorKind(
    name="next sentence logits",
    axes=(BATCH, LABELS),
    meaning='Scores of "B follows A" and "B does not follow A".',
    formula="pooled W + b",
    part=NSP,
    sources=("pooled output",),
)
NEXT_SENTENCE_PROBABILITIES = TensorKind(
    name="next sentence probabilities",
    axes=(BATCH, LABELS),
    meaning='Probabilities of "B follows A" and "B does not follow A".',
    formula="softmax(logits)",
    part=NSP,
    sources=("next sentence logits",),
)
DETECTION_LOGITS = TensorKind(
    name="replacement logits",
    axes=(BATCH, TOKENS),
    meaning="One score per token: whether it was replaced by a sample of the generator.",
    formula="w · GELU(h W + b) + b",
    part=RTD,
    sources=("stream",),
)
DETECTION_PROBABILITIES = TensorKind(
    name="replacement probabilities",
    axes=(BATCH, TOKENS),
    meaning="The probability that each token was replaced.",
    formula="sigmoid(logits)",
    part=RTD,
    sources=("replacement logits",),
)
POOLED_FEATURES = TensorKind(
    name="pooled features",
    axes=("sequences", "width"),
    meaning="The vector of [CLS], which the pooler reads: one per sequence.",
    formula="h[CLS]",
    part=HEAD,
    sources=("stream",),
)
MEAN_FEATURES = replace(
    POOLED_FEATURES,
    meaning="The mean of the vectors of all tokens, which the pooler reads: one per sequence.",
    formula="mean(h)",
)
MIX_WEIGHTS = TensorKind(
    name="mix weights",
    axes=("layers",),
    meaning="The learned weight of each layer, from the embeddings upwards; they sum to 1.",
    formula="s = softmax(w)",
    part=HEAD,
)

MIX_SCALE = TensorKind(
    name="mix scale",
    axes=("1",),
    meaning="The learned scale of the mixed vector.",
    formula="γ",
    part=HEAD,
)


def mixed_kinds(dimensions: int) -> tuple[TensorKind, TensorKind]:
    """Input and output of a scalar mix; its input has as many dimensions."""
    axes = ("sequences", "tokens", "layers", "width") if dimensions == 4 else ("sequences", "layers", "width")
    return (
        TensorKind(
            name="all layers",
            axes=axes,
            meaning="The vectors of every layer, which the scalar mix weighs.",
            formula="h_0, ..., h_L",
            part=HEAD,
            sources=("stream",),
        ),
        TensorKind(
            name="scalar mix",
            axes=tuple(axis for axis in axes if axis != "layers"),
            meaning="The learned weighted sum of all layers that the head reads.",
            formula="γ Σ s_j h_j",
            part=HEAD,
            sources=("all layers", "mix weights", "mix scale"),
        ),
    )


def network_kind(layer: int) -> TensorKind:
    """The output of a layer of the head's own network."""
    return TensorKind(
        name=f"head network {layer}",
        axes=("sequences", TOKENS, "width"),
        meaning="The output of the task's own network over the vectors of the encoder.",
        part=HEAD,
        sources=("stream",),
    )


def classifier_kinds(dimensions: int, units: str, source: str = "stream") -> tuple[TensorKind, TensorKind, TensorKind]:
    """Input of the last linear layer, made of `source`, its logits and their probabilities; `units` are what is
    classified."""
    texts = dimensions == 2
    axes = ("sequences",) if texts else ("sequences", units)
    each = "each sequence" if texts else f"each of the {units}"
    over = {"candidates": "over the tokens, for start and end each", "words": "over the tags of each word"}
    return (
        TensorKind(
            name="classifier input",
            axes=(*axes, "features"),
            meaning=f"What the last linear layer reads for {each}.",
            part=HEAD,
            sources=(source,),
        ),
        TensorKind(
            name="logits",
            axes=(*axes, LABELS),
            meaning=f"One score per label for {each}: one linear layer is all that fine-tuning adds.",
            formula="x W + b",
            part=HEAD,
            sources=("classifier input",),
        ),
        TensorKind(
            name="probabilities",
            axes=(*axes, LABELS),
            meaning=f"The distribution {over.get(units, 'over the labels')}.",
            formula="softmax(logits), or sigmoid(logits) for several labels per text" if texts else "softmax(logits)",
            part=HEAD,
            sources=("logits",),
        ),
    )

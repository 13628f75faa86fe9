"""The tensors of recurrent networks, by name: gates, states, the character CNN of ELMo."""

from dataclasses import replace

from keel.explain.trace.tensor_trace import TensorKind
from keel.explain.trace.transformer_kinds import BATCH, TOKEN_EMBEDDINGS, TOKENS, VECTORS

DIRECTIONS = "directions"
CELL = (BATCH, DIRECTIONS, "width")


def _kind(name: str, meaning: str, formula: str, *sources: str, stream: bool = False) -> TensorKind:
    return TensorKind(
        name=name, axes=CELL, meaning=meaning, formula=formula, part="recurrent layer", sources=sources, stream=stream
    )


CELL_INPUT = _kind(
    "layer input",
    "What the layer reads at this step: the embedding of the token, or the hidden state of the layer below.",
    "x_t",
    "token embeddings",
    "word vectors",
)
STATE_BEFORE = _kind(
    "previous hidden state",
    "The hidden state after the step before, the only thing that is passed on (with the cell state of an LSTM).",
    "h_{t-1}",
    "hidden state",
)
GATES = {
    "input gate": _kind(
        "input gate",
        "How much of the candidate is added to the cell state: from 0, nothing, to 1.",
        "i = σ(x_t W_xi + h_{t-1} W_hi + b_i)",
        "layer input",
        "previous hidden state",
    ),
    "forget gate": _kind(
        "forget gate",
        "How much of the old cell state stays: from 0, nothing, to 1, all.",
        "f = σ(x_t W_xf + h_{t-1} W_hf + b_f)",
        "layer input",
        "previous hidden state",
    ),
    "output gate": _kind(
        "output gate",
        "How much of the cell state is shown as the hidden state.",
        "o = σ(x_t W_xo + h_{t-1} W_ho + b_o)",
        "layer input",
        "previous hidden state",
    ),
    "reset gate": _kind(
        "reset gate",
        "How much of the old hidden state the candidate sees.",
        "r = σ(x_t W_xr + h_{t-1} W_hr + b_r)",
        "layer input",
        "previous hidden state",
    ),
    "update gate": _kind(
        "update gate",
        "How much of the old hidden state stays; the candidate fills the rest.",
        "z = σ(x_t W_xz + h_{t-1} W_hz + b_z)",
        "layer input",
        "previous hidden state",
    ),
    "candidate": _kind(
        "candidate",
        "What may be written into the state at this step.",
        "g = tanh(x_t W_xg + h_{t-1} W_hg + b_g), with r * (h_{t-1} W_hg + b_hg) in a GRU",
        "layer input",
        "previous hidden state",
    ),
    "cell state": _kind(
        "cell state",
        "The memory of an LSTM: part of the old one, plus part of the candidate.",
        "c_t = f * c_{t-1} + i * g",
        "input gate",
        "forget gate",
        "candidate",
        "cell state",
    ),
}
HIDDEN_STATE = _kind(
    "hidden state",
    "What the layer passes to the layer above and to the next step: all that it knows of the words so far.",
    "h_t = o * tanh(c_t) (LSTM), (1 - z) * g + z * h_{t-1} (GRU), tanh(x_t W_xh + h_{t-1} W_hh + b_h) (RNN)",
    "output gate",
    "cell state",
    "update gate",
    "candidate",
    "layer input",
    "previous hidden state",
    stream=True,
)
OUTPUT_VECTORS = TensorKind(
    name="output vectors",
    axes=VECTORS,
    meaning="The top hidden states of all steps; with two directions, both concatenated.",
    formula="[h_1, ..., h_T]",
    part="output",
    stream=True,
)
SCALED_WORDS = replace(
    TOKEN_EMBEDDINGS,
    meaning="The row of the embedding table of each token, times the root of the width.",
    formula="√d E[id]",
    stream=True,
)
CHARACTERS = TensorKind(
    name="characters",
    axes=(BATCH, TOKENS, "characters"),
    meaning="The bytes of each word between its begin (258) and its end (259); 260 is padding.",
)
CHARACTER_FEATURES = TensorKind(
    name="character features",
    axes=(BATCH, TOKENS, "filters"),
    meaning="The maximum of each CNN filter over the characters of the word: whether its pattern occurs anywhere.",
    formula="max over t of f(W c[t..t+k] + b)",
    sources=("characters",),
)
WORD_VECTORS = TensorKind(
    name="word vectors",
    axes=VECTORS,
    meaning="One vector per word from its characters alone: the layer 0 of ELMo, without context.",
    formula="y W + b",
    sources=("character features",),
    stream=True,
)


def highway_kind(number: int) -> TensorKind:
    """The input of a highway layer of the character CNN, from 1."""
    return TensorKind(
        name=f"highway {number}",
        axes=(BATCH, TOKENS, "filters"),
        meaning="A highway layer: a gate lets part of its input pass unchanged.",
        formula="y = t * max(0, x W_H + b_H) + (1 - t) * x, t = σ(x W_T + b_T)",
        sources=("character features" if number == 1 else f"highway {number - 1}",),
    )

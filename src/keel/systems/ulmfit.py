"""ULMFiT (Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", 2018), on the AWD-LSTM
(Merity, Keskar and Socher, "Regularizing and Optimizing LSTM Language Models", 2017).

New then: a general language model is fine-tuned on the task's text and then on its labels, layer by layer, so that it
does not forget; and dropout on all weights and vectors lets a large LSTM learn from little text.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout, Ge, LayerCount
from keel.data.tokenizer import Tokenizer
from keel.nn.recurrent import zero_state
from keel.systems.rnn import RecurrentLMSystem, RnnBatch, RnnEncoder, RnnPretraining
from keel.training.objective import Tensors
from keel.training.plan import Train

DROPOUTS = ("dropout", "input_dropout", "layer_dropout", "word_dropout", "weight_dropout")


@dataclass(frozen=True, kw_only=True)
class Ulmfit(RecurrentLMSystem):
    """The hyper-parameters of ULMFiT, as published but for `hidden_size`, a multiple of a GPU's tile size.

    Its classifier is one linear layer over the concat pooling; the paper has two, each after a batch norm.
    """

    width: Count = 400
    """Width of the word embeddings and of the last layer, which is tied to them."""
    hidden_size: Count = 1152
    """Hidden size of the layers before the last (1150 in the paper)."""
    layers: LayerCount = 3
    """Number of stacked LSTM layers."""
    bptt: Annotated[int, Ge(2)] = 70
    """Truncated BPTT length, in tokens; the hidden state is carried on."""
    dropout: Dropout = 0.4
    """Dropout probability of the last layer's output; as input and layer dropout, one mask for all positions."""
    input_dropout: Dropout = 0.4
    """Dropout probability of the word embeddings."""
    layer_dropout: Dropout = 0.3
    """Dropout probability between layers."""
    word_dropout: Dropout = 0.05
    """Embedding dropout: probability that a word is dropped at all its positions in a step."""
    weight_dropout: Dropout = 0.5
    """DropConnect: dropout probability of the hidden-to-hidden weights."""
    ar: Annotated[float, Ge(0)] = 2.0
    """Activation regularization (AR): weight of the squared output of the last layer."""
    tar: Annotated[float, Ge(0)] = 1.0
    """Temporal activation regularization (TAR): weight of its squared change from position to position."""

    name = "ulmfit"
    year = 2018
    epoch_rule = None  # gradual unfreezing has a length of its own
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"width": 64, "hidden_size": 128, "layers": 2},
        "mini": {"width": 128, "hidden_size": 256, "layers": 2},
        "small": {"width": 256, "hidden_size": 640},
        "base": {"width": 400, "hidden_size": 1152},
        "published": {"width": 400, "hidden_size": 1150},
    }
    pretraining_defaults = Train(
        epochs=10, batch=64, lr=5e-3, schedule="trapezoid", cooldown=0.5, beta1=0.7, beta2=0.99, epsilon=1e-8, clip=0.12
    )
    tunable = (*DROPOUTS, "bptt", "ar", "tar")
    default_pool = "concat"
    bidirectional = False
    tie_embeddings = True

    @property
    def continued_pretraining_defaults(self) -> Train:
        """The second stage: discriminative fine-tuning with slanted triangular learning rates."""
        return Train(
            epochs=5, batch=64, lr=4e-3, schedule="slanted", layer_decay=0.38, beta1=0.7, beta2=0.99, clip=0.12
        )

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return DROPOUTS

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The third stage: the same with gradual unfreezing."""
        if frozen:
            return Train(epochs=20, batch=32, lr=3e-3)
        return replace(self.continued_pretraining_defaults, epochs=10, lr=1e-2, unfreeze="gradual", clip=Train.clip)

    def build_encoder(self, vocab_size: int) -> "UlmfitEncoder":
        return UlmfitEncoder(self, vocab_size)

    def build_objective(self, encoder: "UlmfitEncoder", tokenizer: Tokenizer) -> "UlmfitPretraining":
        return UlmfitPretraining(self, encoder, tokenizer)


def variational_dropout(vectors: Tensor, p: float, training: bool) -> Tensor:
    """Variational ("locked") dropout of [batch, time, width]: one mask per sequence for all its positions."""
    if not (training and p):
        return vectors
    return vectors * F.dropout(vectors.new_ones(len(vectors), 1, vectors.shape[2]), p)


class WeightDropLstm(nn.Module):
    """An LSTM layer (formulas in nn/recurrent.py) with DropConnect on its hidden-to-hidden weights."""

    parts = 4
    """Its gates, stacked in each matrix."""

    def __init__(self, inputs: int, width: int, drop: float):
        super().__init__()
        self.width, self.drop = width, drop
        self.from_input = nn.Parameter(torch.empty(4 * width, inputs))
        self.from_state = nn.Parameter(torch.empty(4 * width, width))
        self.input_bias = nn.Parameter(torch.empty(4 * width))
        self.state_bias = nn.Parameter(torch.empty(4 * width))
        for weight in self.parameters():
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)

    def forward(self, vectors: Tensor, hidden: Tensor, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[batch, time, width] outputs, and the last hidden and cell states [batch, width]."""
        from_state = F.dropout(self.from_state, self.drop, self.training)
        weights = [self.from_input, from_state, self.input_bias, self.state_bias]
        if vectors.is_cuda:  # cuDNN warns and copies unless they are contiguous in one buffer
            flat = torch.cat([weight.flatten() for weight in weights])
            parts = flat.split([weight.numel() for weight in weights])
            weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        state = [hidden[None].contiguous(), cells[None].contiguous()]
        outputs, hidden, cells = torch.lstm(vectors, state, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, hidden[0], cells[0]


@dataclass(frozen=True, kw_only=True)
class UlmfitState(Tensors):
    """The states of all layers, side by side."""

    hidden: Tensor  # [batch, all widths]
    cells: Tensor  # as hidden


class AwdLstm(nn.Module):
    """Stacked weight-dropped LSTM layers; the last has the width of the word embeddings."""

    def __init__(self, system: Ulmfit):
        super().__init__()
        widths = [system.width, *[system.hidden_size] * (system.layers - 1), system.width]
        self.dropout, self.widths = system.layer_dropout, widths[1:]
        self.layers = nn.ModuleList(WeightDropLstm(*shape, system.weight_dropout) for shape in pairwise(widths))

    def new_state(self, batch_size: int) -> UlmfitState:
        zeros = zero_state(next(self.parameters()), batch_size, sum(self.widths))
        return UlmfitState(hidden=zeros, cells=zeros.clone())

    def forward(
        self, vectors: Tensor, lengths: Tensor | None = None, state: UlmfitState | None = None
    ) -> tuple[list[Tensor], UlmfitState]:
        """[batch, time, width] of each layer, and the state after the last position, which is undefined for padded
        sequences."""
        state = state or self.new_state(len(vectors))
        outputs: list[Tensor] = []
        after: list[tuple[Tensor, Tensor]] = []
        with torch.autocast(vectors.device.type, enabled=False):  # as in RecurrentLayers
            x = vectors.to(state.hidden.dtype)
            states = zip(state.hidden.split(self.widths, 1), state.cells.split(self.widths, 1), strict=True)
            for number, (layer, before) in enumerate(zip(self.layers, states, strict=True)):
                x, *last = layer(variational_dropout(x, self.dropout, self.training) if number else x, *before)
                outputs.append(x)
                after.append((last[0], last[1]))
        hidden, cells = (torch.cat(parts, 1) for parts in zip(*after, strict=True))
        return outputs, UlmfitState(hidden=hidden, cells=cells)


class UlmfitEncoder(RnnEncoder):
    """Word embeddings and the hidden states of the last layer; layers of another width are internal."""

    system: Ulmfit  # pyright: ignore[reportIncompatibleVariableOverride]

    def build_layers(self) -> AwdLstm:
        return AwdLstm(self.system)

    def embed_ids(self, ids: Tensor) -> Tensor:
        """With embedding dropout and input dropout."""
        vectors = self.words(ids)
        if self.training and self.system.word_dropout:
            present = F.dropout(vectors.new_ones(self.words.num_embeddings), self.system.word_dropout)
            vectors = vectors * present[ids][..., None]
        return variational_dropout(vectors, self.system.input_dropout, self.training)

    def drop_states(self, top: Tensor) -> Tensor:
        return variational_dropout(top, self.system.dropout, self.training)

    @property
    def layer_numbers(self) -> list[int]:
        return [0, *(number for number, width in enumerate(self.forwards.widths, 1) if width == self.width)]

    def blocks(self) -> list[nn.Module]:
        return list(self.forwards.layers)


class UlmfitPretraining(RnnPretraining):
    """The sum of -log p(x_t | x_<t) over all words ("next") and, in training, of the regularizers ("ar_tar")

    alpha L2(m * h_t) + beta L2(h_t - h_{t+1}), with dropout mask m, alpha = ar and beta = tar; L2 is a mean of squares.
    """

    system: Ulmfit  # pyright: ignore[reportIncompatibleVariableOverride]

    def counts(self, batch: RnnBatch) -> dict[str, Tensor]:
        counts = super().counts(batch)
        return {**counts, "ar_tar": counts["next"]}

    def losses(self, name: str, top: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        dropped = self.encoder.drop_states(top)
        losses = {name: self.softmax_nll(dropped, targets, weights)}
        if self.training:
            changes = top.diff(dim=1)
            share = top.shape[1] / changes.shape[1]  # one position fewer weighs as much as all
            squares = self.system.ar * dropped.square().mean(-1).sum()
            losses["ar_tar"] = squares + self.system.tar * share * changes.square().mean(-1).sum()
        return losses

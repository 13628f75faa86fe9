"""ULMFiT (Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", 2018), on the AWD-LSTM
(Merity, Keskar and Socher, "Regularizing and Optimizing LSTM Language Models", 2017).

New then: a language model of any text goes on with a task's own text and then learns its labels, layer by layer, so
that it does not forget; and an LSTM that may be large on little text, for all its weights and vectors are dropped out.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.nn.recurrent import zero_state
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.systems.rnn import RecurrentSystem, RnnBatch, RnnPretraining, RnnState
from keel.training.objective import State, Tensors
from keel.training.plan import Train

DROPOUTS = ("dropout", "input_dropout", "layer_dropout", "word_dropout", "weight_dropout")


@dataclass(frozen=True, kw_only=True)
class Ulmfit(RecurrentSystem):
    """The hyper-parameters of ULMFiT, as published but for `hidden`, which fills a GPU's tiles.

    A classifier on it is one linear layer over the concat pool, where the paper has two, each after a batch norm.
    """

    width: int = 400
    """Of the words' vectors and of the last layer, which is compared with them."""
    hidden_size: int = 1152
    """Of the layers before the last (1150 as published)."""
    layers: int = 3
    """LSTMs, each reading the output of the one before."""
    bptt: int = 70
    """Words through which an error goes back; the state goes on."""
    dropout: float = 0.4
    """On what the last layer gives, the same numbers at every place of a row, as for all of these but the last two."""
    input_dropout: float = 0.4
    """On the words' vectors."""
    layer_dropout: float = 0.3
    """Between layers."""
    word_dropout: float = 0.05
    """Share of the words that are left out of a step wherever they stand."""
    weight_dropout: float = 0.5
    """Share of the weights from state to state that are left out of a step (DropConnect)."""
    ar: float = 2.0
    """Weight of the squares of what the last layer gives (AR)."""
    tar: float = 1.0
    """Weight of the squares of its changes from place to place (TAR)."""

    name: ClassVar[str] = "ulmfit"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"width": 64, "hidden_size": 128, "layers": 2},
        "mini": {"width": 128, "hidden_size": 256, "layers": 2},
        "small": {"width": 256, "hidden_size": 640},
        "base": {"width": 400, "hidden_size": 1152},
        "published": {"width": 400, "hidden_size": 1150},
    }
    pretraining_defaults: ClassVar[Train] = Train(
        epochs=10, batch=64, lr=5e-3, schedule="trapezoid", cooldown=0.5, beta1=0.7, beta2=0.99, epsilon=1e-8, clip=0.12
    )
    is_causal_lm: ClassVar[bool] = True
    tunable: ClassVar[tuple[str, ...]] = (*DROPOUTS, "bptt", "ar", "tar")
    default_pool: ClassVar[Literal["default", "concat"]] = "concat"
    bidirectional: ClassVar[bool] = False
    tie_embeddings: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("width", "hidden_size", "layers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.bptt < 2:
            raise UsageError(f"length must be 2 or more, not {self.bptt}: a change takes two places")
        for name in DROPOUTS:
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        if self.ar < 0 or self.tar < 0:
            raise UsageError("activation and slowness must not be below 0")

    @property
    def continued_pretraining_defaults(self) -> Train:
        """The second stage: discriminative and slanted triangular rates."""
        return Train(
            epochs=5, batch=64, lr=4e-3, schedule="slanted", layer_decay=0.38, beta1=0.7, beta2=0.99, clip=0.12
        )

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        return FineTuningPolicy(self, DROPOUTS)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The third stage: the same, and unfrozen layer by layer."""
        if frozen:
            return Train(epochs=20, batch=32, lr=3e-3)
        return Train(
            epochs=10,
            batch=64,
            lr=1e-2,
            schedule="slanted",
            layer_decay=0.38,
            unfreeze="gradual",
            beta1=0.7,
            beta2=0.99,
        )

    def build_encoder(self, vocab_size: int) -> "UlmfitEncoder":
        return UlmfitEncoder(self, vocab_size)

    def build_objective(self, encoder: "UlmfitEncoder", tokenizer: Tokenizer) -> "UlmfitPretraining":
        return UlmfitPretraining(self, encoder, tokenizer)


def locked(vectors: Tensor, share: float, training: bool) -> Tensor:
    """[batch, time, width] with a share of each row's numbers at zero, the same ones at every place."""
    if not (training and share):
        return vectors
    return vectors * F.dropout(vectors.new_ones(len(vectors), 1, vectors.shape[2]), share)


class WeightDropLstm(nn.Module):
    """An LSTM (see rnn.py for its formulas) of whose weights from state to state a share is left out of each step."""

    parts = 4
    """Its gates, one above the other in each matrix."""

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
        """[batch, time, width], and the last of it and of the cells, each [batch, width] as they came."""
        kept = F.dropout(self.from_state, self.drop, self.training)
        weights = [self.from_input, kept, self.input_bias, self.state_bias]
        if vectors.is_cuda:  # cuDNN wants them end to end, and else would copy and complain
            flat = torch.cat([weight.flatten() for weight in weights])
            parts = flat.split([weight.numel() for weight in weights])
            weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        state = [hidden[None].contiguous(), cells[None].contiguous()]
        found, hidden, cells = torch.lstm(vectors, state, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return found, hidden[0], cells[0]


@dataclass(frozen=True, kw_only=True)
class UlmfitState(Tensors):
    """What layers of unequal width know of each row after the places they have read, side by side."""

    hidden: Tensor  # [rows, all widths]
    cells: Tensor  # as hidden


class AwdLstm(nn.Module):
    """Layers of unequal width, each reading the output of the one before."""

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
        """[batch, time, width] of each layer, and the state after the last place, which means nothing where a row has
        padding."""
        state = state or self.new_state(len(vectors))
        found: list[Tensor] = []
        after: list[tuple[Tensor, Tensor]] = []
        # Autocast would take fp16 here whatever it was told (see rnn.py).
        with torch.autocast(vectors.device.type, enabled=False):
            x = vectors.to(state.hidden.dtype)
            befores = zip(state.hidden.split(self.widths, 1), state.cells.split(self.widths, 1), strict=True)
            for number, (layer, before) in enumerate(zip(self.layers, befores, strict=True)):
                x, *last = layer(locked(x, self.dropout, self.training) if number else x, *before)
                found.append(x)
                after.append((last[0], last[1]))
        hidden, cells = (torch.cat(parts, 1) for parts in zip(*after, strict=True))
        return found, UlmfitState(hidden=hidden, cells=cells)


class UlmfitEncoder(Encoder):
    """Words, and the state of the last layer after each of them; layers between of another width stay inside."""

    backwards = None

    def __init__(self, system: Ulmfit, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width, self.system = vocab_size, system.width, system
        self.words = nn.Embedding(vocab_size, system.width)
        self.forwards = AwdLstm(system)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.read(batch.ids)

    def read(self, ids: Tensor) -> Tensor:
        """[batch, time, width] the vectors of words [batch, time], some of which are left out wherever they stand."""
        vectors = self.words(ids)
        if self.training and self.system.word_dropout:
            present = F.dropout(vectors.new_ones(self.words.num_embeddings), self.system.word_dropout)
            vectors = vectors * present[ids][..., None]
        return locked(vectors, self.system.input_dropout, self.training)

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        layers, state = self.forwards(vectors, batch.lengths, state)
        every = [vectors, *layers]
        kept = [every[number] for number in self.layer_numbers] if all_layers else []
        return EncoderOutput(top=layers[-1], layers=kept, state=state)

    @property
    def layer_numbers(self) -> list[int]:
        same = [number for number, width in enumerate(self.forwards.widths, 1) if width == self.width]
        return [0, *same]

    def blocks(self) -> list[nn.Module]:
        return list(self.forwards.layers)


class UlmfitPretraining(RnnPretraining):
    """-log p(x_t | those before) summed over all words ("next"), and in training ("steady")

    activation |m * h_t|^2 + slowness |h_t - h_{t-1}|^2, both a mean over numbers and a sum over places; m drops out.
    """

    system: Ulmfit
    encoder: UlmfitEncoder

    def __init__(self, system: Any, encoder: Any, tokenizer: Tokenizer):
        super().__init__(system, encoder, tokenizer)

    def counts(self, batch: RnnBatch) -> dict[str, Tensor]:
        counts = super().counts(batch)
        return {**counts, "steady": counts["next"]}

    def forward(self, batch: RnnBatch, state: RnnState | None = None) -> tuple[dict[str, Tensor], RnnState]:
        ids = batch.forwards
        layers, after = self.encoder.forwards(self.encoder.read(ids[:, :-1]), state=state and state.forwards)
        top = self._dropped(layers[-1])
        losses = {"next": self._softmax(top, ids[:, 1:], None if batch.weights is None else batch.weights[:, 0])}
        if self.training:
            changes = layers[-1].diff(dim=1)
            share = top.shape[1] / changes.shape[1]  # of a place fewer, as much as of all
            squares = self.system.ar * top.square().mean(-1).sum()
            losses["steady"] = squares + self.system.tar * share * changes.square().mean(-1).sum()
        return losses, RnnState(forwards=after)

    def _dropped(self, top: Tensor) -> Tensor:
        return locked(top, self.system.dropout, self.training)

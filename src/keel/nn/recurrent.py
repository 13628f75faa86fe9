"""Recurrent layers: Elman RNN, GRU and LSTM, in one direction or both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from keel.training.objective import Tensors

Cell = Literal["rnn", "gru", "lstm"]


class Gru(nn.GRU):
    """torch's GRU; a matrix optimizer such as Muon splits its weights into the gates (`parts`)."""

    parts: ClassVar[int] = 3


class Lstm(nn.LSTM):
    """torch's LSTM, likewise."""

    parts: ClassVar[int] = 4


CELLS: dict[Cell, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": Gru, "lstm": Lstm}


@dataclass(frozen=True, kw_only=True)
class RecurrentState(Tensors):
    """The state of stacked recurrent layers."""

    hidden: Tensor  # [batch, layers, width]
    cells: Tensor | None = None  # as hidden, of an LSTM

    def layer(self, number: int) -> Any:
        """The state of one layer, in torch's form."""
        hidden, *cells = (tensor[:, number].unsqueeze(0).contiguous() for tensor in self.tensors())
        return (hidden, *cells) if cells else hidden

    @classmethod
    def of(cls, layers: list[Any]) -> Self:
        """From the states of all layers, in torch's form."""
        if isinstance(layers[0], tuple):
            hidden, cells = (torch.cat(part).transpose(0, 1) for part in zip(*layers, strict=True))
            return cls(hidden=hidden, cells=cells)
        return cls(hidden=torch.cat(layers).transpose(0, 1))


class RecurrentLayers(nn.Module):
    """Stacked recurrent layers with hidden states H:

    rnn   H_t = tanh(X_t W_xh + H_{t-1} W_hh + b_h)
    gru   R, Z = sigmoid(X_t W_x. + H_{t-1} W_h. + b_.);  N = tanh(X_t W_xn + b_xn + R * (H_{t-1} W_hn + b_hn))
          H_t = (1 - Z) * N + Z * H_{t-1}
    lstm  I, F, O = sigmoid(X_t W_x. + H_{t-1} W_h. + b_.);  G = tanh(X_t W_xg + H_{t-1} W_hg + b_g)
          C_t = F * C_{t-1} + I * G;  H_t = O * tanh(C_t)

    With `bidirectional` every layer has a second network that reads backwards, and the outputs of both are
    concatenated. `dropout` is between layers.
    """

    def __init__(
        self, cell: Cell, inputs: int, width: int, layers: int, *, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width = width * (1 + bidirectional)
        """Width of the output."""
        sizes = [inputs, *[self.width] * (layers - 1)]
        self.forwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes if bidirectional)
        self.dropout = nn.Dropout(dropout)
        if cell == "lstm":
            for name, bias in self.named_parameters():
                if "bias_ih" in name:  # the forget gate starts open
                    nn.init.ones_(bias.data[width : 2 * width])

    def new_state(self, batch_size: int) -> RecurrentState:
        """The state before the first position; only for one direction."""
        assert not self.backwards
        layer = self.forwards[0]
        assert isinstance(layer, nn.RNNBase)
        zeros = zero_state(next(layer.parameters()), batch_size, len(self.forwards), layer.hidden_size)
        return RecurrentState(hidden=zeros, cells=torch.zeros_like(zeros) if isinstance(layer, nn.LSTM) else None)

    def forward(
        self, vectors: Tensor, lengths: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[list[Tensor], RecurrentState]:
        """[batch, time, width] of each layer, and the state after the last position; of sequences that are padded
        beyond `lengths`, later outputs and the state are undefined."""
        assert state is None or not self.backwards, "a bidirectional network has no state to continue"
        outputs: list[Tensor] = []
        states: list[Any] = []
        # States accumulate over many steps and stay fp32; autocast would use fp16 here, whatever its dtype, in which
        # small gradients vanish. A GPU still multiplies in TF32.
        with torch.autocast(vectors.device.type, enabled=False):
            x = vectors.to(next(self.parameters()).dtype)
            for number, layer in enumerate(self.forwards):
                x = self.dropout(x) if number else x
                y, last = layer(x, None if state is None else state.layer(number))
                if self.backwards:
                    back, _ = self.backwards[number](reverse_sequences(x, lengths))
                    y = torch.cat([y, reverse_sequences(back, lengths)], -1)
                outputs.append(x := y)
                states.append(last)
        return outputs, RecurrentState.of(states)


def zero_state(weight: Tensor, *shape: int) -> Tensor:
    """Zeros of a weight's dtype and device; no shard, even if the weight is one."""
    return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


def reverse_sequences(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """[batch, time, ...] with every sequence reversed and its padding left at the end."""
    if lengths is None:
        return vectors.flip(1)
    position = torch.arange(vectors.shape[1], device=vectors.device)
    source = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
    return vectors.gather(1, source.view(*source.shape, *[1] * (vectors.ndim - 2)).expand_as(vectors))

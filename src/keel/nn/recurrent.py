"""Recurrent layers: Elman RNN, GRU and LSTM, in one direction or both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from keel.training.objective import Tensors

Cell = Literal["rnn", "gru", "lstm"]


class Gru(nn.GRU):
    """torch's own; an optimizer that works on whole matrices takes its gates apart."""

    parts: ClassVar[int] = 3


class Lstm(nn.LSTM):
    """As is this."""

    parts: ClassVar[int] = 4


CELLS: dict[Cell, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": Gru, "lstm": Lstm}


@dataclass(frozen=True, kw_only=True)
class RecurrentState(Tensors):
    """What a stack of recurrent layers knows of each row after the places it has read."""

    hidden: Tensor  # [rows, layers, width]
    cells: Tensor | None = None  # as hidden, if it is an LSTM's

    def layer(self, number: int) -> Any:
        """The state of one layer, as torch has it."""
        hidden, *cells = (tensor[:, number].unsqueeze(0).contiguous() for tensor in self.tensors())
        return (hidden, *cells) if cells else hidden

    @classmethod
    def of(cls, layers: list[Any]) -> Self:
        """From the states of all layers, as torch has them."""
        if isinstance(layers[0], tuple):
            hidden, cells = (torch.cat(part).transpose(0, 1) for part in zip(*layers, strict=True))
            return cls(hidden=hidden, cells=cells)
        return cls(hidden=torch.cat(layers).transpose(0, 1))


class RecurrentLayers(nn.Module):
    """Layers that read vectors one after the other, each with a state H from the place before:

    rnn   H_t = tanh(X_t W_xh + H_{t-1} W_hh + b_h)
    gru   R, Z = sigmoid(X_t W_x. + H_{t-1} W_h. + b_.);  N = tanh(X_t W_xn + b_xn + R * (H_{t-1} W_hn + b_hn))
          H_t = (1 - Z) * N + Z * H_{t-1}
    lstm  I, F, O = sigmoid(X_t W_x. + H_{t-1} W_h. + b_.);  G = tanh(X_t W_xg + H_{t-1} W_hg + b_g)
          C_t = F * C_{t-1} + I * G;  H_t = O * tanh(C_t)

    With `both` every layer has a second network that reads from the end of each row, and gives both outputs side by
    side. `dropout` is between layers.
    """

    def __init__(
        self, cell: Cell, inputs: int, width: int, layers: int, *, bidirectional: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width = width * (1 + bidirectional)
        """Of what it gives."""
        sizes = [inputs, *[self.width] * (layers - 1)]
        self.forwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes if bidirectional)
        self.dropout = nn.Dropout(dropout)
        if cell == "lstm":
            for name, bias in self.named_parameters():
                if "bias_ih" in name:  # the forget gate starts open, or nothing is kept for long
                    nn.init.ones_(bias.data[width : 2 * width])

    def new_state(self, batch_size: int) -> RecurrentState:
        """The state of so many batch_size of which nothing has been read; of both directions there is none."""
        assert not self.backwards
        layer = self.forwards[0]
        assert isinstance(layer, nn.RNNBase)
        zeros = zero_state(next(layer.parameters()), batch_size, len(self.forwards), layer.hidden_size)
        return RecurrentState(hidden=zeros, cells=torch.zeros_like(zeros) if isinstance(layer, nn.LSTM) else None)

    def forward(
        self, vectors: Tensor, lengths: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[list[Tensor], RecurrentState]:
        """[batch, time, width] of each layer, and the state after the last place; rows shorter than the longest have
        `lengths`, and then neither their outputs beyond nor their state mean anything."""
        assert state is None or not self.backwards, "only what reads in one direction can go on reading"
        found: list[Tensor] = []
        states: list[Any] = []
        # A state is summed up over many steps and keeps all its bits; autocast would take fp16 here, whatever it was
        # told, in whose range small gradients vanish. A GPU still multiplies in TF32.
        with torch.autocast(vectors.device.type, enabled=False):
            x = vectors.to(next(self.parameters()).dtype)
            for number, layer in enumerate(self.forwards):
                x = self.dropout(x) if number else x
                y, last = layer(x, None if state is None else state.layer(number))
                if self.backwards:
                    back, _ = self.backwards[number](reverse_sequences(x, lengths))
                    y = torch.cat([y, reverse_sequences(back, lengths)], -1)
                found.append(x := y)
                states.append(last)
        return found, RecurrentState.of(states)


def zero_state(weight: Tensor, *shape: int) -> Tensor:
    """Zeros of the kind of a weight, where it is; whole, even if the weight is a shard."""
    return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


def reverse_sequences(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """[batch, time, ...] with every row's own places in reverse order, and its padding left at the end."""
    if lengths is None:
        return vectors.flip(1)
    place = torch.arange(vectors.shape[1], device=vectors.device)
    source = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    return vectors.gather(1, source.view(*source.shape, *[1] * (vectors.ndim - 2)).expand_as(vectors))

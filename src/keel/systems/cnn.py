"""Convolutional networks over text (Kim, "Convolutional Neural Networks for Sentence Classification", 2014).

New then: a layer of filters, each of which looks at a few words next to each other, and of each filter the strongest
answer in a text ("max over time"), is as good as far deeper networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.errors import UsageError
from keel.systems.networks import Encoder
from keel.systems.rows import Output, Recorder, Rows
from keel.systems.static import WordSystem
from keel.text.tokenizer import Tokenizer
from keel.train.objective import State
from keel.train.plan import Train


@dataclass(frozen=True, kw_only=True)
class Cnn(WordSystem):
    """The hyper-parameters of a network that learns from labels alone; as they stand, Kim's."""

    pieces: Literal["words", "characters"] = "words"
    """What it reads."""
    width: int = 300
    """Of the vectors of words or characters."""
    windows: tuple[int, ...] = (3, 4, 5)
    """How many of them the filters look at, some filters at fewer than others."""
    filters: int = 100
    """Of each window."""
    dropout: float = 0.5
    """On the strongest answers of the filters."""

    name: ClassVar[str] = "cnn"
    train: ClassVar[Train] = Train(epochs=10)
    from_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("width", "filters"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not self.windows or min(self.windows) < 1 or len(set(self.windows)) < len(self.windows):
            raise UsageError(f"windows must be different numbers of 1 or more, such as 3,4,5, not {self.windows}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie between 0 and 1, not at {self.dropout}")

    @property
    def label_pieces(self) -> str:
        return self.pieces

    def tuning(self, frozen: bool) -> Train:
        return Train(epochs=10, batch=50, lr=1e-3)

    def encoder(self, vocabulary: int) -> "CnnEncoder":
        return CnnEncoder(self, vocabulary)

    def objective(self, encoder: Encoder, tokenizer: Tokenizer) -> NoReturn:
        raise UsageError("a cnn learns from labels, not from text alone: use keel finetune cnn FILE")


class CnnEncoder(Encoder):
    """What each filter says around each word; a row is the strongest answer of each filter."""

    def __init__(self, system: Cnn, vocabulary: int):
        super().__init__()
        self.vocabulary, self.width = vocabulary, system.filters * len(system.windows)
        self.words = nn.Embedding(vocabulary, system.width)
        self.filters = Filters(system.width, dict.fromkeys(system.windows, system.filters))
        nn.init.uniform_(self.words.weight, -0.25, 0.25)

    def embed(self, rows: Rows) -> Tensor:
        return self.words(rows.ids)

    def contextualize(
        self,
        vectors: Tensor,
        rows: Rows,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> Output:
        top = F.relu(self.filters(vectors, rows.lengths))
        return Output(top=top, layers=[top] if all_layers else [])

    def pick(self, output: Output, rows: Rows) -> Tensor:
        return strongest(output.top, rows.lengths)


class Filters(nn.Module):
    """Filters of several widths ("windows") over vectors that stand in a row, words or characters:

    y_t = b + sum over i of W_i x_{t+i}, which is a cross-correlation; a convolution has the filter the other way round.
    """

    def __init__(self, inputs: int, windows: Mapping[int, int]) -> None:
        """`windows` says how many filters there are of each width."""
        super().__init__()
        self.width = sum(windows.values())
        """Of what they give: one number for each filter."""
        self.windows = nn.ModuleList(nn.Conv1d(inputs, count, window) for window, count in windows.items())

    def forward(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, time, width]: what every filter says where it is centered on a place; around a row are zeros."""
        x = _within(vectors, lengths).transpose(1, 2)  # [batch, inputs, time]
        found = []
        for window in self.windows:
            assert isinstance(window, nn.Conv1d)
            size = window.kernel_size[0]
            found.append(window(F.pad(x, ((size - 1) // 2, size // 2))))
        return torch.cat(found, 1).transpose(1, 2)

    def strongest(self, vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[batch, width]: of each filter the largest number among the places where all of it is inside its row; a row
        shorter than that is filled up with zeros."""
        x = _within(vectors, lengths).transpose(1, 2)
        found = []
        for window in self.windows:
            assert isinstance(window, nn.Conv1d)
            size = window.kernel_size[0]
            y = window(F.pad(x, (0, max(0, size - x.shape[2])))).transpose(1, 2)  # [batch, places, count]
            found.append(strongest(y, None if lengths is None else (lengths - size + 1).clamp(min=1)))
        return torch.cat(found, 1)


def strongest(vectors: Tensor, lengths: Tensor | None = None) -> Tensor:
    """[batch, width]: the largest of each number in a row ("max over time"), whatever stands beyond its end."""
    if lengths is None:
        return vectors.amax(1)
    inside = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors.masked_fill(~inside[..., None], -torch.inf).amax(1)


def _within(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """The vectors with zeros beyond the end of each row."""
    if lengths is None:
        return vectors
    inside = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
    return vectors * inside[..., None]

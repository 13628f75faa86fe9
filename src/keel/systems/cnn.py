"""Convolutional networks over text (Kim, "Convolutional Neural Networks for Sentence Classification", 2014).

New then: a layer of filters, each of which looks at a few words next to each other, and of each filter the strongest
answer in a text ("max over time"), is as good as far deeper networks.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.convolution import ConvolutionFilters, max_over_time
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.systems.static_vectors import WordSystem
from keel.training.objective import State
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Cnn(WordSystem):
    """The hyper-parameters of a network that learns from labels alone; as they stand, Kim's."""

    units: Literal["words", "characters"] = "words"
    """What it reads."""
    width: int = 300
    """Of the vectors of words or characters."""
    kernel_sizes: tuple[int, ...] = (3, 4, 5)
    """How many of them the filters look at, some filters at fewer than others."""
    filters: int = 100
    """Of each window."""
    dropout: float = 0.5
    """On the strongest answers of the filters."""

    name: ClassVar[str] = "cnn"
    pretraining_defaults: ClassVar[Train] = Train(epochs=10)
    supervised_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("width", "filters"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not self.kernel_sizes or min(self.kernel_sizes) < 1 or len(set(self.kernel_sizes)) < len(self.kernel_sizes):
            raise UsageError(
                f"kernel_sizes must be different numbers of 1 or more, such as 3,4,5, not {self.kernel_sizes}"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie between 0 and 1, not at {self.dropout}")

    @property
    def label_tokenizer(self) -> str:
        return self.units

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=10, batch=50, lr=1e-3)

    def build_encoder(self, vocab_size: int) -> "CnnEncoder":
        return CnnEncoder(self, vocab_size)

    def build_objective(self, encoder: Encoder, tokenizer: Tokenizer) -> NoReturn:
        raise UsageError("a cnn learns from labels, not from text alone: use keel finetune cnn FILE")


class CnnEncoder(Encoder):
    """What each filter says around each word; a row is the strongest answer of each filter."""

    def __init__(self, system: Cnn, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.filters * len(system.kernel_sizes)
        self.words = nn.Embedding(vocab_size, system.width)
        self.filters = ConvolutionFilters(system.width, dict.fromkeys(system.kernel_sizes, system.filters))
        nn.init.uniform_(self.words.weight, -0.25, 0.25)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.words(batch.ids)

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        top = F.relu(self.filters(vectors, batch.lengths))
        return EncoderOutput(top=top, layers=[top] if all_layers else [])

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return max_over_time(output.top, batch.lengths)

"""Text CNN (Kim, "Convolutional Neural Networks for Sentence Classification", 2014).

New then: one layer of convolution filters over adjacent words with max-over-time pooling is as good as far deeper
networks.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.nn.convolution import ConvolutionFilters, max_over_time
from keel.nn.encoder import Encoder, EncoderOutput, ForwardOptions
from keel.systems.static_vectors import WordSystem
from keel.systems.system import EpochRule
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class Cnn(WordSystem):
    """Hyper-parameters of a network trained on labels only; the defaults are Kim's."""

    units: Literal["words", "characters"] = "words"
    """Input units."""
    width: Count = 300
    """Embedding size of the units."""
    kernel_sizes: tuple[Count, ...] = (3, 4, 5)
    """Kernel sizes of the convolution filters, in units."""
    filters: Count = 100
    """Filters per kernel size."""
    dropout: Dropout = 0.5
    """Dropout probability of the pooled features."""

    name = "cnn"
    year = 2014
    epoch_rule = EpochRule(total=25_000, least=10, most=200)
    pretraining_defaults = Train(epochs=10)

    def __post_init__(self) -> None:
        if not self.kernel_sizes or len(set(self.kernel_sizes)) < len(self.kernel_sizes):
            raise UsageError(f"kernel_sizes must be different integers, such as 3,4,5, not {self.kernel_sizes}")

    @property
    def label_tokenizer(self) -> str:
        return self.units

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=10, batch=50, lr=1e-3)

    def build_encoder(self, vocab_size: int) -> "CnnEncoder":
        return CnnEncoder(self, vocab_size)


class CnnEncoder(Encoder):
    """ReLU activations of all filters at each position; a text is their maximum over time."""

    def __init__(self, system: Cnn, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.filters * len(system.kernel_sizes)
        self.words = nn.Embedding(vocab_size, system.width)
        self.filters = ConvolutionFilters(system.width, dict.fromkeys(system.kernel_sizes, system.filters))
        nn.init.uniform_(self.words.weight, -0.25, 0.25)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.words(batch.ids)

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        top = F.relu(self.filters(vectors, batch.lengths))
        return EncoderOutput(top=top, layers=[top] if options.all_layers else [])

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return max_over_time(output.top, batch.lengths)

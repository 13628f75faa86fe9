"""ELMo (Peters et al., "Deep contextualized word representations", 2018).

New then: a word's vector is a mix of all layers of a bidirectional language model (biLM), so that it depends on the
sentence. Words are encoded by a character CNN (Kim et al. 2016) with highway layers (Srivastava et al. 2015) and a
projection; the language models are LSTMs with projection (Jozefowicz et al. 2016).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout, Ge, LayerCount, Le
from keel.data.documents import Documents
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.kernels.full_softmax import softmax_loss
from keel.kernels.lstm import projected_lstm
from keel.nn.convolution import ConvolutionFilters
from keel.nn.distinct_words import EMPTY, SHORT, DistinctWords
from keel.nn.encoder import Encoder, EncoderOutput, ForwardOptions
from keel.nn.recurrent import reverse_sequences, zero_state
from keel.nn.sampled_softmax import SampledSoftmax
from keel.systems.rnn import RecurrentLMSystem, RecurrentPretraining
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Tensors
from keel.training.plan import Train

BOS, EOS, WORD_BEGIN, WORD_END = 256, 257, 258, 259
"""Character ids beside the 256 bytes of UTF-8: start and end of a sentence and of a word."""
TILE = 512
"""On a GPU the distinct words of a batch are padded to a multiple, so that equal shapes share one program."""


@dataclass(frozen=True, kw_only=True)
class Elmo(RecurrentLMSystem):
    """The hyper-parameters of ELMo; the defaults are the original model."""

    width: Count = 512
    """Width of a word vector and of each direction of each layer; layer outputs, both directions, are twice as wide."""
    cell_size: Count = 4096
    """LSTM cell size, before the projection to `width`."""
    layers: LayerCount = 2
    """Number of LSTM layers per direction."""
    residual: bool = True
    """Residual connections around the layers above the first."""
    cell_clip: Annotated[float, Ge(0)] = 3.0
    """Clipping of cell states; 0 for none."""
    projection_clip: Annotated[float, Ge(0)] = 3.0
    """Clipping of projections; 0 for none."""
    max_characters: Annotated[int, Ge(3)] = 50
    """Maximum bytes per word, with its begin and end characters."""
    character_dim: Count = 16
    """Width of the character embeddings."""
    character_filters: tuple[Annotated[int, Ge(0)], ...] = (32, 32, 64, 128, 256, 512, 1024)
    """Number of CNN filters over 1 character, over 2 characters, and so on."""
    highway_layers: Annotated[int, Ge(0), Le(1000)] = 2
    """Number of highway layers between filters and projection."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation function of the filters."""
    dropout: Dropout = 0.1
    """Dropout probability of the inputs of every layer and of the softmax."""
    bptt: Count = 20
    """Truncated BPTT length, in tokens; the hidden state is carried on."""
    softmax_samples: Annotated[int, Ge(0)] = 8192
    """Sampled softmax: number of words sampled by frequency rank in training; 0 for the full softmax."""
    bos_token: bool = False
    """Start sentences with a token of their own, as published models do, instead of the end of the sentence before."""

    name = "elmo"
    year = 2018
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        # tiny is ours, the others are published
        "tiny": {"width": 64, "cell_size": 256, "character_filters": (16, 16, 32, 64), "highway_layers": 1},
        "small": {"width": 128, "cell_size": 1024, "highway_layers": 1},
        "medium": {"width": 256, "cell_size": 2048, "highway_layers": 1},
        "original": {"width": 512, "cell_size": 4096, "highway_layers": 2},
    }
    pretraining_defaults = Train(epochs=10, batch=128, lr=1e-3, warmup=1000, weight_decay=0.0, log_every=50)
    default_tokenizer = "words"
    default_lowercase = False
    default_vocab_size = 200_000
    default_min_count = 3
    tunable = ("dropout", "bptt", "softmax_samples")
    feature_based = True

    def __post_init__(self) -> None:
        if not any(self.character_filters):
            raise UsageError(f"character_filters must be counts such as 32,32,64, not {self.character_filters}")
        if len(self.character_filters) > self.max_characters:
            what = f"character_filters over {len(self.character_filters)} characters"
            raise UsageError(f"{what} exceed max_characters {self.max_characters}: give fewer, or raise it")

    def build_encoder(self, vocab_size: int) -> "ElmoEncoder":
        return ElmoEncoder(self, vocab_size)

    def build_objective(self, encoder: "ElmoEncoder", tokenizer: Tokenizer) -> "ElmoPretraining":
        if obstacle := self.pretraining_obstacle(tokenizer):
            raise UsageError(obstacle)
        return ElmoPretraining(self, encoder, tokenizer)

    def pretraining_obstacle(self, tokenizer: Tokenizer) -> str | None:
        if len(tokenizer) > len(tokenizer.special_ids):
            return None
        return "this model has no vocabulary to predict and cannot be pre-trained further: pre-train a new one"

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """The characters (bytes) of these words between WORD_BEGIN and WORD_END."""
        special: dict[int, list[int]] = {id: [] for id in tokenizer.special_ids}
        special |= {tokenizer.cls_id: [BOS], tokenizer.sep_id: [EOS]}
        units, starts = [], []
        for id in ids:
            starts.append(len(units))
            characters = special.get(id)
            if characters is None:
                characters = tokenizer.token_of(id).encode("utf-8", "surrogateescape")[: self.max_characters - 2]
            units += [WORD_BEGIN, *characters, WORD_END]
        return SubwordUnits(word_ids=torch.tensor(ids), unit_ids=torch.tensor(units), unit_starts=torch.tensor(starts))

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        before, between, after = super().special_tokens(tokenizer)
        return [tokenizer.cls_id] if self.bos_token else before, between, after


@dataclass(frozen=True, kw_only=True)
class ElmoState(Tensors):
    """The states of both directions."""

    hidden: Tensor  # [batch, layers, 2, width]
    cells: Tensor  # [batch, layers, 2, cell_size]


class ElmoEncoder(Encoder):
    """A character CNN for words, and the layers of a biLM; the pooled output is the mean over words."""

    def __init__(self, system: Elmo, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, 2 * system.width
        self.max_characters = system.max_characters
        self.room = min(system.max_characters, SHORT + len(system.character_filters))
        self.characters = nn.Embedding(EMPTY + 1, system.character_dim)
        windows = {window: count for window, count in enumerate(system.character_filters, 1) if count}
        self.filters = ConvolutionFilters(system.character_dim, windows)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[system.activation]
        size = self.filters.width
        self.highways = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(system.highway_layers))
        """The first half of each output is the gate's, the second the transform's."""
        self.project = nn.Linear(size, system.width)
        self.stack = nn.ModuleList(ElmoLayer(system, residual=system.residual and n > 0) for n in range(system.layers))
        self.dropout = nn.Dropout(system.dropout)
        nn.init.uniform_(self.characters.weight, -1, 1)
        for highway in self.highways:
            assert isinstance(highway, nn.Linear)
            nn.init.normal_(highway.weight, std=size**-0.5)
            nn.init.constant_(highway.bias[:size], -2.0)  # nearly all is carried at first
            nn.init.zeros_(highway.bias[size:])
        nn.init.normal_(self.project.weight, std=size**-0.5)
        nn.init.zeros_(self.project.bias)

    def encode_words(self, words: DistinctWords) -> Tensor:
        """[words, width]: context-independent word vectors from characters.

        Highway: y = g * relu(W_H x + b_H) + (1 - g) * x with the gate g = sigmoid(W_T x + b_T).
        """
        features = [self.filters.max_pool(self.characters(group)) for group in (words.short, words.long) if len(group)]
        x = self.activation(torch.cat(features))
        for highway in self.highways:
            gate, transform = highway(x).chunk(2, -1)
            x = torch.lerp(x, torch.relu(transform), gate.sigmoid())
        return self.project(x)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def embed(self, batch: TokenBatch) -> Tensor:
        assert batch.subword_units is not None, "ELMo needs subword units (System.with_subword_units)"
        distinct, index = DistinctWords.of(self.character_table(batch.subword_units), self.room)
        words = F.embedding(index[batch.ids], self.encode_words(distinct))
        return torch.cat([words, words], -1)

    def character_table(self, units: SubwordUnits) -> Tensor:
        """[words, max_characters]: the characters of each word, then padding."""
        sizes = units.unit_counts
        column = torch.arange(self.max_characters, device=sizes.device)
        index = (units.unit_starts[:, None] + column).clamp(max=len(units.unit_ids) - 1)
        return torch.where(column < sizes[:, None], units.unit_ids[index], EMPTY)

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        """[batch, time, 2 width] of each layer, both directions concatenated."""
        words, _ = vectors.chunk(2, -1)
        x = torch.stack([words, reverse_sequences(words, batch.lengths)]).transpose(1, 2)  # [2, time, batch, width]
        outputs, after = self.run_layers(x, options.state or self.new_state(len(words)), batch.lengths - 1)
        layers = [vectors]
        for forwards, backwards in outputs:
            layers.append(
                torch.cat([forwards.transpose(0, 1), reverse_sequences(backwards.transpose(0, 1), batch.lengths)], -1)
            )
        return EncoderOutput(top=layers[-1], layers=layers if options.all_layers else [], state=after)

    def new_state(self, batch_size: int) -> ElmoState:
        layer = self.stack[0]
        assert isinstance(layer, ElmoLayer)
        directions, cells, width = layer.projection.shape
        shape = batch_size, len(self.stack), directions
        return ElmoState(
            hidden=zero_state(layer.projection, *shape, width), cells=zero_state(layer.projection, *shape, cells)
        )

    def run_layers(self, x: Tensor, state: ElmoState, last: Tensor) -> tuple[list[Tensor], ElmoState]:
        """[2, time, batch, width] of every layer, and the state after position `last` of each sequence."""
        outputs: list[Tensor] = []
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for number, layer in enumerate(self.stack):
            output, cell = layer(
                self.dropout(x), state.hidden[:, number].transpose(0, 1), state.cells[:, number].transpose(0, 1), last
            )
            hidden.append(output[:, last, torch.arange(x.shape[2], device=x.device)].float())
            cells.append(cell.float())
            x = x + output if layer.residual else output
            outputs.append(x)
        # [layers, 2, batch, ...] to batch first
        after = ElmoState(hidden=torch.stack(hidden).permute(2, 0, 1, 3), cells=torch.stack(cells).permute(2, 0, 1, 3))
        return outputs, after

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """The mean over words, without the special tokens before and after."""
        position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        inside = (position > 0) & (position < batch.lengths[:, None] - 1)
        return (output.top * inside[..., None]).sum(1) / inside.sum(1, keepdim=True).clamp(min=1)


class ElmoLayer(nn.Module):
    """An LSTM with projection for each direction, without shared weights; formulas in `kernels/lstm.py`."""

    parts: ClassVar[dict[str, tuple[int, ...]]] = {"into": (2, 1, 4), "recurrent": (2, 1, 4), "projection": (2, 1, 1)}
    """The matrices in each weight: two directions and, side by side, four gates."""

    def __init__(self, system: Elmo, *, residual: bool):
        super().__init__()
        self.residual = residual
        self.clips = {"cell_clip": system.cell_clip, "clip": system.projection_clip}
        width, cells = system.width, system.cell_size
        self.into = nn.Parameter(torch.empty(2, width, 4 * cells))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cells))
        self.recurrent = nn.Parameter(torch.empty(2, width, 4 * cells))
        self.projection = nn.Parameter(torch.empty(2, cells, width))
        for weight in (self.into, self.recurrent, self.projection):
            nn.init.uniform_(weight, -(cells**-0.5), cells**-0.5)
        nn.init.ones_(self.bias[:, cells : 2 * cells])  # the forget gate starts open

    def forward(self, x: Tensor, hidden: Tensor, cells: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.into, self.bias, self.recurrent, self.projection
        return projected_lstm(x, hidden, cells, last, *weights, **self.clips)


@dataclass(frozen=True, kw_only=True)
class ElmoBatch(Tensors):
    """Spans of text in both directions for truncated BPTT."""

    words: DistinctWords
    word_index: Tensor  # [batch, 2, bptt] of each token in `words`
    targets: Tensor  # [batch, 2, bptt]
    sampled: Tensor  # [softmax_samples] distinct words
    tries: Tensor  # [] samples that it took to find these
    weights: Tensor | None = None  # [batch, 2, bptt, sums] of the targets, in evaluation


class ElmoPretraining(RecurrentPretraining):
    """The sum over tokens t_k of -log p(t_k | t_1 ... t_{k-1}; Θx, →Θ, Θs) - log p(t_k | t_{k+1} ... t_N; Θx, ←Θ, Θs):
    the character CNN Θx and the softmax Θs are shared, the LSTMs are not.

    In training p is a sampled softmax, logits corrected by the words' sampling probabilities (Jean et al. 2015); in
    evaluation it is over all words, and defines the perplexity.
    """

    encoder: ElmoEncoder
    prefetched = True

    def __init__(self, system: Elmo, encoder: ElmoEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder, self.tokenizer = system, encoder, tokenizer
        self.eos_id = tokenizer.sep_id
        never = {*tokenizer.special_ids} - {tokenizer.sep_id, tokenizer.unknown_id}
        self.sampled = SampledSoftmax(encoder.vocab_size, system.softmax_samples, never)
        self.output = nn.Parameter(torch.empty(encoder.vocab_size, system.width))
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        nn.init.normal_(self.output, std=system.width**-0.5)
        self._tables: list[Tensor] = []

    @property
    def table(self) -> Tensor:
        """[vocabulary, max_characters] of all words, made once, on the CPU."""
        if not self._tables:
            with torch.device("cpu"):
                units = self.system.subword_units(range(len(self.tokenizer)), self.tokenizer)
                self._tables.append(self.encoder.character_table(units).int())
        return self._tables[0]

    def initial_state(self, batch_size: int) -> ElmoState:
        return self.encoder.new_state(batch_size)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ElmoBatch:
        return self._build_batch(self.read_spans(data, rng, examples), *self.sampled.sample(rng))

    def sequential_batch(self, data: Documents, number: int) -> ElmoBatch:
        ids, weights = self.read_evaluation_spans(data, number)
        no_samples = torch.empty(0, dtype=torch.long), torch.tensor(0)
        return replace(self._build_batch(ids, *no_samples), weights=weights)

    def _build_batch(self, ids: Tensor, sampled: Tensor, tries: Tensor) -> ElmoBatch:
        """The batch of spans [batch, 2, bptt + 1]; each distinct word is encoded once."""
        words, inverse = np.unique(ids[..., :-1].numpy(), return_inverse=True)
        tile = TILE if self.output.is_cuda else 1
        distinct, index = DistinctWords.of(self.table[torch.from_numpy(words)], self.encoder.room, tile)
        index = index[torch.from_numpy(inverse).view(ids[..., :-1].shape)]
        targets = ids[..., 1:].contiguous()
        return ElmoBatch(words=distinct, word_index=index, targets=targets, sampled=sampled, tries=tries)

    def counts(self, batch: ElmoBatch) -> dict[str, Tensor]:
        if batch.weights is not None:
            return dict(zip(("next", "previous"), batch.weights.sum((0, 2)).unbind(), strict=True))
        words = torch.tensor(batch.targets[:, 0].numel(), device=batch.targets.device)
        return {"next": words, "previous": words, "words": words}

    def forward(self, batch: ElmoBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        words = F.embedding(batch.word_index, self.encoder.encode_words(batch.words))  # [batch, 2, bptt, width]
        x = words.permute(1, 2, 0, 3)
        last = torch.full(x.shape[2:3], x.shape[1] - 1, device=x.device)
        layers, after = self.encoder.run_layers(x, state or self.initial_state(x.shape[2]), last)
        top = self.encoder.dropout(layers[-1]).flatten(1, 2)  # [2, bptt * batch, width]
        targets = batch.targets.permute(1, 2, 0).flatten(1)
        weights = [None, None] if batch.weights is None else batch.weights.permute(1, 2, 0, 3).flatten(1, 2)
        losses = [
            self.sampled.loss(vectors, self.output, self.bias, words, batch.sampled, batch.tries)
            if self.training and self.sampled.count
            else softmax_loss(vectors, self.output, self.bias, words, weight)
            for vectors, words, weight in zip(top, targets, weights, strict=True)
        ]
        return {"next": losses[0], "previous": losses[1]}, after

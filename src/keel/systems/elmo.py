"""ELMo (Peters et al., "Deep contextualized word representations", 2018).

New then: a word's vector comes from all layers of two language models, one that reads forwards and one backwards
("biLM"), so that it depends on the sentence. Words are read letter by letter (Kim et al. 2016) by filters, highways
(Srivastava et al. 2015) and a projection; the models are LSTMs with projection (Jozefowicz et al. 2016).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.kernels.full_softmax import softmax_loss
from keel.kernels.lstm import projected_lstm
from keel.nn.convolution import ConvolutionFilters
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.nn.recurrent import reverse_sequences, zero_state
from keel.nn.sampled_softmax import SampledSoftmax
from keel.systems.rnn import RecurrentSystem
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train

OPENS, CLOSES, BEGINS, ENDS, EMPTY = 256, 257, 258, 259, 260
"""Beside the 256 bytes of UTF-8: what marks a sentence's start and end, a word's, and the room after a word."""
BRIEF = 13
"""Letters of a word, marks included, up to which it counts as short: all but a few are."""
TILE = 512
"""Of the distinct words of a batch there are made to be a multiple: what is of one size is one program for a GPU."""


@dataclass(frozen=True, kw_only=True)
class Elmo(RecurrentSystem):
    """The hyper-parameters of ELMo; as they stand, the original model."""

    width: int = 512
    """Of a word and of each direction of each layer; both directions side by side are twice as wide."""
    cell_size: int = 4096
    """Of every LSTM, projected to the width."""
    layers: int = 2
    """Of each direction."""
    residual: bool = True
    """Whether a layer above the first adds what it read to what it says."""
    cell_clip: float = 3.0
    """Largest number in a cell; 0 lets any pass."""
    projection_clip: float = 3.0
    """Largest number in a projection; 0 lets any pass."""
    max_characters: int = 50
    """Bytes of a word that are read, the marks around it included."""
    character_dim: int = 16
    """Of a letter's vector."""
    character_filters: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    """How many filters look at one letter, at two in a row, and so on."""
    highway_layers: int = 2
    """Layers between the filters and the projection."""
    activation: Literal["relu", "tanh"] = "relu"
    """Of the filters."""
    dropout: float = 0.1
    """On what every layer reads, and on what the softmax reads."""
    bptt: int = 20
    """Words through which an error goes back; the state goes on."""
    softmax_samples: int = 8192
    """Drawn words that a word is told from while it learns, by rank; 0 for all words."""
    bos_token: bool = False
    """Whether a sentence opens with a mark of its own, as in published files, or with the end of the one before."""

    name: ClassVar[str] = "elmo"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {
            "width": 64,
            "cell_size": 256,
            "character_filters": (16, 16, 32, 64),
            "highway_layers": 1,
        },  # ours; the others are published
        "small": {"width": 128, "cell_size": 1024, "highway_layers": 1},
        "medium": {"width": 256, "cell_size": 2048, "highway_layers": 1},
        "original": {"width": 512, "cell_size": 4096, "highway_layers": 2},
    }
    pretraining_defaults: ClassVar[Train] = Train(
        epochs=10, batch=128, lr=1e-3, warmup=1000, weight_decay=0.0, log_every=50
    )
    default_tokenizer: ClassVar[str] = "words"
    default_lowercase: ClassVar[bool] = False
    default_vocab_size: ClassVar[int] = 200_000
    default_min_count: ClassVar[int] = 3
    tunable: ClassVar[tuple[str, ...]] = ("dropout", "bptt", "softmax_samples")
    is_causal_lm: ClassVar[bool] = True
    uses_subwords: ClassVar[bool] = True
    feature_based: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ones = ("width", "cell_size", "layers", "character_dim", "bptt")
        zeros = ("highway_layers", "softmax_samples", "cell_clip", "projection_clip")
        for name, least in {**dict.fromkeys(ones, 1), **dict.fromkeys(zeros, 0), "max_characters": 3}.items():
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be {least} or more, not {getattr(self, name)}")
        if not self.character_filters or min(self.character_filters) < 0 or not any(self.character_filters):
            raise UsageError(f"filters must be counts such as 32,32,64, not {self.character_filters}")
        if len(self.character_filters) > self.max_characters:
            raise UsageError(
                f"a filter over {len(self.character_filters)} letters is too wide for words of {self.max_characters}"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie between 0 and 1, not at {self.dropout}")

    def build_encoder(self, vocab_size: int) -> "ElmoEncoder":
        return ElmoEncoder(self, vocab_size)

    def build_objective(self, encoder: "ElmoEncoder", tokenizer: Tokenizer) -> "ElmoPretraining":
        if len(tokenizer) <= len(tokenizer.special_ids):
            raise UsageError("this model came without words to foretell, and cannot learn on: pre-train a new one")
        return ElmoPretraining(self, encoder, tokenizer)

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """The bytes of these words between marks, as many as are read."""
        marks = {number: [] for number in tokenizer.special_ids}  # for words that nobody could spell
        marks |= {tokenizer.cls_id: [OPENS], tokenizer.sep_id: [CLOSES]}
        parts, starts = [], []
        for number in ids:
            starts.append(len(parts))
            letters = marks.get(number)
            if letters is None:
                letters = tokenizer.token_of(number).encode("utf-8", "surrogateescape")[: self.max_characters - 2]
            parts += [BEGINS, *letters, ENDS]
        return SubwordUnits(word_ids=torch.tensor(ids), unit_ids=torch.tensor(parts), unit_starts=torch.tensor(starts))

    def start_token(self, tokenizer: Tokenizer) -> int:
        return tokenizer.cls_id if self.bos_token else super().start_token(tokenizer)


@dataclass(frozen=True, kw_only=True)
class DistinctWords(Tensors):
    """Distinct words by their letters, the short ones first: no filter need look at all the room after these."""

    short: Tensor  # [words, fewer letters]
    long: Tensor  # [words, letters]

    @classmethod
    def of(cls, table: Tensor, room: int, tile: int = 1) -> tuple[Self, Tensor]:
        """Words of [words, letters] numbers, and [words] the place of each; of each kind a multiple of `tile`.

        A filter that looks beyond the end of a word sees the same everywhere: to see it once is enough, and short words
        leave it `room` for that.
        """
        if room >= table.shape[1]:
            fits = table.new_zeros(len(table), dtype=torch.bool)
        else:
            fits = (table[:, BRIEF:] == EMPTY).all(1)
        order = (~fits).long().argsort(stable=True)
        count = int(fits.sum())
        short, long = order.split([count, len(order) - count])
        filled = -count % tile
        places = torch.empty_like(order)
        places[short] = torch.arange(count, device=order.device)
        places[long] = torch.arange(len(long), device=order.device) + count + filled
        padded = F.pad(table[short][:, :room], (0, 0, 0, filled), value=EMPTY)
        return cls(short=padded, long=F.pad(table[long], (0, 0, 0, -len(long) % tile), value=EMPTY)), places


@dataclass(frozen=True, kw_only=True)
class ElmoState(Tensors):
    """What the two stacks know of each row after the words that they have read."""

    hidden: Tensor  # [rows, layers, 2, width]
    cells: Tensor  # [rows, layers, 2, cells]


class ElmoEncoder(Encoder):
    """Letters to words, words to the layers of two stacks."""

    def __init__(self, system: Elmo, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, 2 * system.width
        self.letters = system.max_characters
        self.room = min(system.max_characters, BRIEF + len(system.character_filters))
        self.characters = nn.Embedding(EMPTY + 1, system.character_dim)
        windows = {window: count for window, count in enumerate(system.character_filters, 1) if count}
        self.filters = ConvolutionFilters(system.character_dim, windows)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[system.activation]
        found = self.filters.width
        self.highways = nn.ModuleList(nn.Linear(found, 2 * found) for _ in range(system.highway_layers))
        """Of each, the first half of the output is the gate's, the second what comes in for what it lets go."""
        self.project = nn.Linear(found, system.width)
        self.stack = nn.ModuleList(ElmoLayer(system, residual=system.residual and n > 0) for n in range(system.layers))
        self.dropout = nn.Dropout(system.dropout)
        nn.init.uniform_(self.characters.weight, -1, 1)
        for highway in self.highways:
            assert isinstance(highway, nn.Linear)
            nn.init.normal_(highway.weight, std=found**-0.5)
            nn.init.constant_(highway.bias[:found], -2.0)  # at first nearly all goes by
            nn.init.zeros_(highway.bias[found:])
        nn.init.normal_(self.project.weight, std=found**-0.5)
        nn.init.zeros_(self.project.bias)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def read(self, letters: DistinctWords) -> Tensor:
        """[words, width]: the vector of each word by its letters alone."""
        found = [self.filters.max_pool(self.characters(words)) for words in (letters.short, letters.long) if len(words)]
        x = self.activation(torch.cat(found))
        for highway in self.highways:
            gate, other = highway(x).chunk(2, -1)
            x = torch.lerp(x, torch.relu(other), gate.sigmoid())
        return self.project(x)

    def embed(self, batch: TokenBatch) -> Tensor:
        assert batch.subword_units is not None, "rows for ELMo carry the spelling of their words (System.spelled)"
        letters, places = DistinctWords.of(self._table(batch.subword_units), self.room)
        words = F.embedding(places[batch.ids], self.read(letters))
        return torch.cat([words, words], -1)

    def _table(self, spelling: SubwordUnits) -> Tensor:
        """[words, letters]: the letters of each, and then nothing."""
        sizes = spelling.unit_counts
        column = torch.arange(self.letters, device=sizes.device)
        places = (spelling.unit_starts[:, None] + column).clamp(max=len(spelling.unit_ids) - 1)
        return torch.where(column < sizes[:, None], spelling.unit_ids[places], EMPTY)

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: ElmoState | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        """Both directions side by side, each layer's; a row begins with no memory unless it is given some."""
        words, _ = vectors.chunk(2, -1)
        x = torch.stack([words, reverse_sequences(words, batch.lengths)]).transpose(1, 2)  # [2, time, batch, width]
        found, after = self.climb(x, state or self.new_state(len(words)), batch.lengths - 1)
        layers = [vectors]
        for forwards, backwards in found:
            layers.append(
                torch.cat([forwards.transpose(0, 1), reverse_sequences(backwards.transpose(0, 1), batch.lengths)], -1)
            )
        return EncoderOutput(top=layers[-1], layers=layers if all_layers else [], state=after)

    def new_state(self, batch_size: int) -> ElmoState:
        """Of so many rows of which nothing has been read."""
        layer = self.stack[0]
        assert isinstance(layer, ElmoLayer)
        stacks, cells, width = layer.projection.shape
        shape = batch_size, len(self.stack), stacks
        return ElmoState(
            hidden=zero_state(layer.projection, *shape, width), cells=zero_state(layer.projection, *shape, cells)
        )

    def climb(self, x: Tensor, state: ElmoState, last: Tensor) -> tuple[list[Tensor], ElmoState]:
        """What every layer says of x, [2, time, batch, width] each, and the memory after each row's `last` place."""
        found: list[Tensor] = []
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for number, layer in enumerate(self.stack):
            said, cell = layer(
                self.dropout(x), state.hidden[:, number].transpose(0, 1), state.cells[:, number].transpose(0, 1), last
            )
            hidden.append(said[:, last, torch.arange(x.shape[2], device=x.device)].float())
            cells.append(cell.float())
            x = x + said if layer.residual else said
            found.append(x)
        # [layers, 2, rows, ...] to rows first
        after = ElmoState(hidden=torch.stack(hidden).permute(2, 0, 1, 3), cells=torch.stack(cells).permute(2, 0, 1, 3))
        return found, after

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """The mean over words, the marks before and after left out."""
        place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        inside = (place > 0) & (place < batch.lengths[:, None] - 1)
        return (output.top * inside[..., None]).sum(1) / inside.sum(1, keepdim=True).clamp(min=1)


class ElmoLayer(nn.Module):
    """One LSTM with projection for each direction, which share nothing; the formulas are in `kernels/lstm.py`."""

    parts: ClassVar[dict[str, tuple[int, ...]]] = {"into": (2, 1, 4), "recurrent": (2, 1, 4), "projection": (2, 1, 1)}
    """Directions one behind the other, gates side by side; two biases are no matrix."""

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
        nn.init.ones_(self.bias[:, cells : 2 * cells])  # the forget gate starts open, or nothing is kept for long

    def forward(self, x: Tensor, hidden: Tensor, cells: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.into, self.bias, self.recurrent, self.projection
        return projected_lstm(x, hidden, cells, last, *weights, **self.clips)


@dataclass(frozen=True, kw_only=True)
class ElmoBatch(Tensors):
    """Words to read in both directions, and the one that follows each."""

    letters: DistinctWords
    places: Tensor  # [rows, 2, length] of each word in letters
    targets: Tensor  # [rows, 2, length]
    drawn: Tensor  # [negatives] distinct words
    tries: Tensor  # [] draws that it took to find these and none beside
    weights: Tensor | None = None  # [rows, 2, length, sums] of the targets, if they are summed up in parts


class ElmoPretraining(Objective):
    """The sum over words t_k of -log p(t_k | t_1 ... t_{k-1}; Θx, →Θ, Θs) - log p(t_k | t_{k+1} ... t_N; Θx, ←Θ, Θs):
    letters Θx and softmax Θs are shared, the stacks are not.

    While it learns, p is a softmax over the word and others that are drawn, scores corrected by how likely each is
    among these (Jean et al. 2015); in evaluation it is over all words, and its exponential the perplexity.
    """

    prefetched = True

    def __init__(self, system: Elmo, encoder: ElmoEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder, self.tokenizer = system, encoder, tokenizer
        self.end = tokenizer.sep_id
        never = {*tokenizer.special_ids} - {tokenizer.sep_id, tokenizer.unknown_id}
        self.sampled = SampledSoftmax(encoder.vocab_size, system.softmax_samples, never)
        self.output = nn.Parameter(torch.empty(encoder.vocab_size, system.width))
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        nn.init.normal_(self.output, std=system.width**-0.5)
        self._spelled: list[Tensor] = []

    @property
    def table(self) -> Tensor:
        """[vocabulary, letters] of all words; made once, and never on a GPU."""
        if not self._spelled:
            with torch.device("cpu"):
                spelling = self.system.subword_units(range(len(self.tokenizer)), self.tokenizer)
                self._spelled.append(self.encoder._table(spelling).int())
        return self._spelled[0]

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        return self.encoder.input_parameters()

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.stream_size / self.system.bptt)

    def initial_state(self, batch_size: int) -> ElmoState:
        return self.encoder.new_state(batch_size)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ElmoBatch:
        """Readers go forwards and as many backwards; each distinct word of theirs is spelled once."""
        numbers = torch.arange(examples.start, examples.stop)
        read = (
            data.read_streams(rng, numbers, self.system.bptt, end=self.end, backwards=back) for back in (False, True)
        )
        return self._spelled_out(torch.stack(list(read), 1), *self.sampled.sample(rng))

    def sequential_batch(self, data: Documents, number: int) -> ElmoBatch:
        directions = (False, True)
        read = [data.read_stream_window(number, self.system.bptt, end=self.end, backwards=back) for back in directions]
        ids, weights = (torch.stack(each, 1) for each in zip(*read, strict=True))
        none_drawn = torch.empty(0, dtype=torch.long), torch.tensor(0)
        return replace(self._spelled_out(ids, *none_drawn), weights=weights)

    def _spelled_out(self, ids: Tensor, drawn: Tensor, tries: Tensor) -> ElmoBatch:
        """The stretches [rows, 2, length + 1] of a step."""
        words, places = np.unique(ids[..., :-1].numpy(), return_inverse=True)
        tile = TILE if self.output.is_cuda else 1
        letters, order = DistinctWords.of(self.table[torch.from_numpy(words)], self.encoder.room, tile)
        places = order[torch.from_numpy(places).view(ids[..., :-1].shape)]
        return ElmoBatch(letters=letters, places=places, targets=ids[..., 1:].contiguous(), drawn=drawn, tries=tries)

    def counts(self, batch: ElmoBatch) -> dict[str, Tensor]:
        if batch.weights is not None:
            return dict(zip(("next", "previous"), batch.weights.sum((0, 2)).unbind(), strict=True))
        words = torch.tensor(batch.targets[:, 0].numel(), device=batch.targets.device)
        return {"next": words, "previous": words, "words": words}

    def forward(self, batch: ElmoBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        words = F.embedding(batch.places, self.encoder.read(batch.letters))  # [rows, 2, length, width]
        x = words.permute(1, 2, 0, 3)
        last = torch.full(x.shape[2:3], x.shape[1] - 1, device=x.device)
        found, after = self.encoder.climb(x, state or self.initial_state(x.shape[2]), last)
        top = self.encoder.dropout(found[-1]).flatten(1, 2)  # [2, length * rows, width]
        targets = batch.targets.permute(1, 2, 0).flatten(1)
        weights = [None, None] if batch.weights is None else batch.weights.permute(1, 2, 0, 3).flatten(1, 2)
        losses = [
            self.sampled.loss(vectors, self.output, self.bias, words, batch.drawn, batch.tries)
            if self.training and self.sampled.count
            else softmax_loss(vectors, self.output, self.bias, words, weight)
            for vectors, words, weight in zip(top, targets, weights, strict=True)
        ]
        return {"next": losses[0], "previous": losses[1]}, after

"""Recurrent networks (Elman 1990; LSTM: Hochreiter and Schmidhuber 1997; GRU: Cho et al. 2014), as language models
(Mikolov et al. 2010; Zaremba et al. 2014).

New then: a state, made from itself and the word that is read, stands for all words before, however many; a gate says
what of it is kept. "Both" is a biLM: two networks, each reading in a direction of its own (Peters et al. 2017).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from keel.data.documents import Documents
from keel.data.input_windows import ModelInput
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.kernels.full_softmax import softmax_loss
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.nn.recurrent import Cell, RecurrentLayers, reverse_sequences
from keel.systems.system import System
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class RecurrentSystem(System):
    """A system that reads on from word to word with a state: what all of these share."""

    @property
    def max_length(self) -> int:
        """A state goes on without end; this bounds the memory of a batch."""
        return 1024

    @property
    def context_description(self) -> str:
        return "all before it"

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=20 if frozen else 5, batch=32, lr=3e-3 if frozen else 1e-3)

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """[SEP] A [SEP], or [SEP] A [SEP] B [SEP]: from either side, text begins after a mark as in pre-training."""
        ids = [self.start_token(tokenizer), *first, tokenizer.sep_id]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, tokenizer.sep_id]
            segments += [1] * (len(second) + 1)
        return ModelInput(ids, segments, 1)

    def start_token(self, tokenizer: Tokenizer) -> int:
        """What stands before the first word: the end of the sentence before."""
        return tokenizer.sep_id


@dataclass(frozen=True, kw_only=True)
class Rnn(RecurrentSystem):
    """The hyper-parameters of a recurrent language model; the sizes are those of Zaremba et al."""

    cell: Cell = "lstm"
    """rnn (Elman's, with tanh), gru or lstm."""
    width: int = 400
    """Of the words' vectors and of every layer's state."""
    layers: int = 2
    """That read the output of each other."""
    bidirectional: bool = False
    """Whether a second network reads backwards; a word then has the states of both side by side."""
    dropout: float = 0.2
    """On words, between layers and before the softmax."""
    tie_embeddings: bool = True
    """Whether a word is foretold by the vector that it is read by."""
    bptt: int = 70
    """Words through which an error goes back; the state goes on."""

    name: ClassVar[str] = "rnn"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {"width": 200, "dropout": 0.0, "bptt": 20},
        "medium": {"width": 650, "dropout": 0.5, "bptt": 35},
        "large": {"width": 1500, "dropout": 0.65, "bptt": 35},
    }
    pretraining_defaults: ClassVar[Train] = Train(epochs=10, batch=32, lr=2e-3, warmup=0.02, log_every=50)
    is_causal_lm: ClassVar[bool] = True
    tunable: ClassVar[tuple[str, ...]] = ("dropout", "bptt")

    def __post_init__(self) -> None:
        for name in ("width", "layers", "bptt"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie between 0 and 1, not at {self.dropout}")

    def build_encoder(self, vocab_size: int) -> "RnnEncoder":
        return RnnEncoder(self, vocab_size)

    def build_objective(self, encoder: "RnnEncoder", tokenizer: Tokenizer) -> "RnnPretraining":
        return RnnPretraining(self, encoder, tokenizer)


class RnnEncoder(Encoder):
    """Words, and the states after each of them in every layer; a row is the mean of the top ones."""

    def __init__(self, system: Rnn, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width * (1 + system.bidirectional)
        self.words = nn.Embedding(vocab_size, system.width)
        shape = system.cell, system.width, system.width, system.layers
        self.forwards = RecurrentLayers(*shape, dropout=system.dropout)
        self.backwards = RecurrentLayers(*shape, dropout=system.dropout) if system.bidirectional else None
        self.dropout = nn.Dropout(system.dropout)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.dropout(self.words(batch.ids))

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
        layers = [vectors, *layers]
        if self.backwards is not None:
            turn = reverse_sequences(vectors, batch.lengths)
            back = [turn, *self.backwards(turn, batch.lengths)[0]]
            pairs = zip(layers, back, strict=True)
            layers = [torch.cat([one, reverse_sequences(other, batch.lengths)], -1) for one, other in pairs]
            state = None  # what reads backwards comes from a text that is still unread
        return EncoderOutput(top=layers[-1], layers=layers if all_layers else [], state=state)

    def blocks(self) -> list[nn.Module]:
        """Its layers, each with that of the other direction."""
        if self.backwards is None:
            return list(self.forwards.forwards)
        pairs = zip(self.forwards.forwards, self.backwards.forwards, strict=True)
        return [nn.ModuleList(pair) for pair in pairs]


@dataclass(frozen=True, kw_only=True)
class RnnBatch(Tensors):
    """Stretches of text, each of which goes on where the same row of the step before stopped."""

    forwards: Tensor  # [rows, length + 1]
    backwards: Tensor | None = None  # the same, read from the end of the text
    weights: Tensor | None = None  # [rows, directions, length, sums] of what is foretold, if it is summed up in parts


@dataclass(frozen=True, kw_only=True)
class RnnState(Tensors):
    """The states of readers in each direction, each as its stack has it."""

    forwards: Tensors
    backwards: Tensors | None = None


class RnnPretraining(Objective):
    """-log p(x_t | H_{t-1}) summed over all words ("next"), by O_t = H_t W_hq + b_q, a softmax over O_t.

    The backward network adds its own, p(x_t | what follows) ("previous"). W_hq are the words' own vectors if tied.
    """

    def __init__(self, system: Rnn, encoder: RnnEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id = self.eos_id = tokenizer.sep_id
        """Stands after each sentence, and so before each text."""
        self.max_context = None
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.output = (
            None if system.tie_embeddings else nn.Parameter(torch.empty_like(encoder.words.weight).uniform_(-0.1, 0.1))
        )

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        """Words, unless they are the output layer too: in Howard and Ruder's code that is in the topmost level."""
        return [weight for weight in self.encoder.input_parameters() if weight is not self._table]

    def epoch_size(self, data: Documents) -> int:
        return -(-data.stream_size // self.system.bptt)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> RnnBatch:
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        window = rng, numbers, self.system.bptt
        return RnnBatch(
            forwards=data.read_streams(*window, end=self.eos_id),
            backwards=data.read_streams(*window, end=self.eos_id, backwards=True)
            if self.system.bidirectional
            else None,
        )

    def sequential_batch(self, data: Documents, number: int) -> RnnBatch:
        directions = (False, True) if self.system.bidirectional else (False,)
        read = [
            data.read_stream_window(number, self.system.bptt, end=self.eos_id, backwards=back) for back in directions
        ]
        ids, weights = zip(*read, strict=True)
        return RnnBatch(
            forwards=ids[0], backwards=ids[1] if self.system.bidirectional else None, weights=torch.stack(weights, 1)
        )

    def counts(self, batch: RnnBatch) -> dict[str, Tensor]:
        if batch.weights is not None:
            return dict(zip(("next", "previous"), batch.weights.sum((0, 2)).unbind(), strict=False))
        rows, length = batch.forwards.shape
        count = batch.forwards.new_full((), rows * (length - 1), dtype=torch.float32)  # a fill: no GPU is waited for
        names = ("next", "tokens") if batch.backwards is None else ("next", "previous", "tokens")
        return dict.fromkeys(names, count)

    def initial_state(self, batch_size: int) -> RnnState:
        back = self.encoder.backwards
        return RnnState(
            forwards=self.encoder.forwards.new_state(batch_size),
            backwards=None if back is None else back.new_state(batch_size),
        )

    def forward(self, batch: RnnBatch, state: RnnState | None = None) -> tuple[dict[str, Tensor], RnnState]:
        losses: dict[str, Tensor] = {}
        weights = None if batch.weights is None else batch.weights[:, 0]
        losses["next"], forwards = self._read(self.encoder.forwards, batch.forwards, weights, state and state.forwards)
        backwards = None
        if self.encoder.backwards is not None:
            assert batch.backwards is not None
            weights = None if batch.weights is None else batch.weights[:, 1]
            losses["previous"], backwards = self._read(
                self.encoder.backwards, batch.backwards, weights, state and state.backwards
            )
        return losses, RnnState(forwards=forwards, backwards=backwards)

    def _read(
        self, stack: RecurrentLayers, ids: Tensor, weights: Tensor | None, state: Tensors | None
    ) -> tuple[Tensor, Tensors]:
        """The loss of all words but the first, each foretold from those before it, and the state after the last one."""
        vectors = self.encoder.dropout(self.encoder.words(ids[:, :-1]))
        layers, after = stack(vectors, state=state)
        return self.nll(layers[-1], ids[:, 1:], weights), after

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of weights * -log p(targets) by the states before them, [rows, time, width], as in pre-training."""
        return self._softmax(self._dropped(top), targets, weights)

    def _softmax(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        flat = None if weights is None else weights.flatten(0, 1)
        return softmax_loss(top.flatten(0, 1), self._table, self.bias, targets.flatten(), flat)

    def _dropped(self, top: Tensor) -> Tensor:
        return self.encoder.dropout(top)

    def new_state(self, batch_size: int) -> Tensors:
        return self.encoder.forwards.new_state(batch_size)

    def step(self, ids: Tensor, state: Tensors | None = None, record: Recorder | None = None) -> tuple[Tensor, Tensors]:
        """[rows, vocabulary] scores of what follows these further ids [rows, time], and the state after them."""
        layers, after = self.encoder.forwards(self.encoder.words(ids.to(self.bias.device)), state=state)
        return torch.addmm(self.bias, layers[-1][:, -1], self._table.T), after

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """[places, vocabulary] scores of what follows these places of whole rows [rows, time]."""
        device = self.bias.device
        layers, _ = self.encoder.forwards(self.encoder.words(ids.to(device)), state=self.new_state(len(ids)))
        return torch.addmm(self.bias, layers[-1].flatten(0, 1)[places.to(device)], self._table.T)

    @property
    def _table(self) -> Tensor:
        """[vocabulary, width]: what a state is compared with."""
        return self.encoder.words.weight if self.output is None else self.output

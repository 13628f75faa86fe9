"""Recurrent networks (Elman 1990; LSTM: Hochreiter and Schmidhuber 1997; GRU: Cho et al. 2014), as language models
(Mikolov et al. 2010; Zaremba et al. 2014).

New then: a hidden state, updated by every word, stands for all words before, however many; gates (LSTM, GRU) decide
what it keeps. With `bidirectional` it is a biLM: two networks, one per direction (Peters et al. 2017).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from keel.config import Count, Dropout, LayerCount
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.kernels.full_softmax import softmax_loss
from keel.nn.encoder import Encoder, EncoderObjective, EncoderOutput, ForwardOptions, Recorder
from keel.nn.recurrent import Cell, RecurrentLayers, reverse_sequences
from keel.systems.system import EpochRule, System
from keel.training.counter_rng import CounterRng
from keel.training.objective import Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class RecurrentSystem(System):
    """What all recurrent systems share."""

    @property
    def max_length(self) -> int:
        """A recurrent network reads texts of any length; this bounds the memory of a batch."""
        return 1024

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=20 if frozen else 5, batch=32, lr=3e-3 if frozen else 1e-3)

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """[SEP] A [SEP], or [SEP] A [SEP] B [SEP]: in either direction text follows a [SEP], as in pre-training."""
        return [tokenizer.sep_id], [tokenizer.sep_id], [tokenizer.sep_id]


@dataclass(frozen=True, kw_only=True)
class RecurrentLMSystem(RecurrentSystem):
    """What all recurrent language models share."""

    epoch_rule = EpochRule(total=20_000, least=5, most=100)

    @property
    def context_description(self) -> str:
        return "all before it"


@dataclass(frozen=True, kw_only=True)
class Rnn(RecurrentLMSystem):
    """The hyper-parameters of a recurrent language model; the sizes are those of Zaremba et al."""

    cell: Cell = "lstm"
    """Recurrent cell: rnn (Elman's, with tanh), gru or lstm."""
    width: Count = 400
    """Width of the word embeddings and of every layer's hidden state."""
    layers: LayerCount = 2
    """Number of stacked recurrent layers."""
    bidirectional: bool = False
    """Second network that reads backwards (biLM); a word is then represented by the states of both."""
    dropout: Dropout = 0.2
    """Dropout probability of word embeddings, between layers and before the softmax."""
    tie_embeddings: bool = True
    """Weight tying: the softmax uses the word embeddings."""
    bptt: Count = 70
    """Truncated BPTT length, in tokens; the hidden state is carried on."""

    name = "rnn"
    year = 1990
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {"width": 200, "dropout": 0.0, "bptt": 20},
        "medium": {"width": 650, "dropout": 0.5, "bptt": 35},
        "large": {"width": 1500, "dropout": 0.65, "bptt": 35},
    }
    pretraining_defaults = Train(epochs=10, batch=32, lr=2e-3, warmup=0.02, log_every=50)
    tunable = ("dropout", "bptt")

    def build_encoder(self, vocab_size: int) -> "RnnEncoder":
        return RnnEncoder(self, vocab_size)

    def build_objective(self, encoder: "RnnEncoder", tokenizer: Tokenizer) -> "RnnPretraining":
        return RnnPretraining(self, encoder, tokenizer)


class RnnEncoder(Encoder):
    """Word embeddings and the hidden states of every layer; the pooled output is the mean of the top layer."""

    def __init__(self, system: Any, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, system.width * (1 + system.bidirectional)
        self.system: Rnn = system
        self.words = nn.Embedding(vocab_size, system.width)
        self.forwards = self.build_layers()
        self.backwards = self.build_layers() if system.bidirectional else None
        self.dropout = nn.Dropout(system.dropout)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def build_layers(self) -> Any:
        """The network of one direction."""
        system = self.system
        return RecurrentLayers(system.cell, system.width, system.width, system.layers, dropout=system.dropout)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.embed_ids(batch.ids)

    def embed_ids(self, ids: Tensor) -> Tensor:
        """[batch, time, width] embeddings of `ids` [batch, time], with dropout."""
        return self.dropout(self.words(ids))

    def drop_states(self, top: Tensor) -> Tensor:
        """Dropout before the softmax."""
        return self.dropout(top)

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        layers, state = self.forwards(vectors, batch.lengths, options.state)
        layers = [vectors, *layers]
        if self.backwards is not None:
            reversed_vectors = reverse_sequences(vectors, batch.lengths)
            back = [reversed_vectors, *self.backwards(reversed_vectors, batch.lengths)[0]]
            pairs = zip(layers, back, strict=True)
            layers = [torch.cat([one, reverse_sequences(other, batch.lengths)], -1) for one, other in pairs]
            state = None  # the backward network would need the text that follows
        shown = [layers[number] for number in self.layer_numbers] if options.all_layers else []
        return EncoderOutput(top=layers[-1], layers=shown, state=state)

    def blocks(self) -> list[nn.Module]:
        """The layers, each with that of the other direction."""
        if self.backwards is None:
            return list(self.forwards.forwards)
        pairs = zip(self.forwards.forwards, self.backwards.forwards, strict=True)
        return [nn.ModuleList(pair) for pair in pairs]


class RecurrentPretraining(EncoderObjective):
    """Truncated BPTT over streams of text, read forwards and, by a biLM, also backwards."""

    system: Any
    eos_id: int
    """Stands after each sentence."""
    directions: tuple[bool, ...] = (False, True)
    """For each network, whether it reads backwards."""

    def epoch_size(self, data: Documents) -> int:
        return -(-data.stream_size // self.system.bptt)

    def read_spans(self, data: Documents, rng: CounterRng, examples: range) -> Tensor:
        """[batch, directions, bptt + 1] ids; each span continues the same example of the step before."""
        window = rng, torch.arange(examples.start, examples.stop, device=data.ids.device), self.system.bptt
        spans = [data.read_streams(*window, end=self.eos_id, backwards=back) for back in self.directions]
        return torch.stack(spans, 1)

    def read_evaluation_spans(self, data: Documents, number: int) -> tuple[Tensor, Tensor]:
        """[1, directions, bptt + 1] ids of a part of the whole text, and weights [1, directions, bptt, sums]."""
        window = number, self.system.bptt
        spans = [data.read_stream_window(*window, end=self.eos_id, backwards=back) for back in self.directions]
        ids, weights = (torch.stack(each, 1) for each in zip(*spans, strict=True))
        return ids, weights


@dataclass(frozen=True, kw_only=True)
class RnnBatch(Tensors):
    """Spans of text for truncated BPTT."""

    ids: Tensor  # [batch, directions, bptt + 1]
    weights: Tensor | None = None  # [batch, directions, bptt, sums] of the targets, in evaluation


@dataclass(frozen=True, kw_only=True)
class RnnState(Tensors):
    """The states of both directions."""

    forwards: Tensors
    backwards: Tensors | None = None


class RnnPretraining(RecurrentPretraining):
    """The sum over words of -log p(x_t | x_<t) ("next") and, if bidirectional, of -log p(x_t | x_>t) ("previous").

    p(x_t | x_<t) = softmax(O_t) with O_t = H_t W_hq + b_q; W_hq are the word embeddings if tied.
    """

    max_context = None

    def __init__(self, system: Any, encoder: RnnEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system: Rnn = system
        self.encoder: RnnEncoder = encoder
        self.directions = (False, True)[: 1 + system.bidirectional]
        self.bos_id = self.eos_id = tokenizer.sep_id
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.output = (
            None if system.tie_embeddings else nn.Parameter(torch.empty_like(encoder.words.weight).uniform_(-0.1, 0.1))
        )

    @property
    def is_causal(self) -> bool:
        return not self.system.bidirectional

    @property
    def output_embeddings(self) -> Tensor:
        """[vocabulary, width]: W_hq."""
        return self.encoder.words.weight if self.output is None else self.output

    def new_state(self, batch_size: int) -> Tensors:
        return self.encoder.forwards.new_state(batch_size)

    def step(self, ids: Tensor, state: Tensors | None = None, record: Recorder | None = None) -> tuple[Tensor, Tensors]:
        """[batch, vocabulary] logits of the token after `ids` [batch, time], and the state after them."""
        layers, after = self.encoder.forwards(self.encoder.words(ids.to(self.bias.device)), state=state)
        return torch.addmm(self.bias, layers[-1][:, -1], self.output_embeddings.T), after

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[positions, vocabulary] logits after these positions of the flattened `ids` [batch, time]."""
        device = self.bias.device
        layers, _ = self.encoder.forwards(self.encoder.words(ids.to(device)), state=self.new_state(len(ids)))
        return torch.addmm(self.bias, layers[-1].flatten(0, 1)[positions.to(device)], self.output_embeddings.T)

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of weights * -log p(targets), both [batch, time], of hidden states [batch, time, width]."""
        return self.softmax_nll(self.encoder.drop_states(top), targets, weights)

    def softmax_nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        flat = None if weights is None else weights.flatten(0, 1)
        return softmax_loss(top.flatten(0, 1), self.output_embeddings, self.bias, targets.flatten(), flat)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> RnnBatch:
        return RnnBatch(ids=self.read_spans(data, rng, examples))

    def sequential_batch(self, data: Documents, number: int) -> RnnBatch:
        ids, weights = self.read_evaluation_spans(data, number)
        return RnnBatch(ids=ids, weights=weights)

    def counts(self, batch: RnnBatch) -> dict[str, Tensor]:
        examples, directions, length = batch.ids.shape
        names = ("next", "previous")[:directions]
        if batch.weights is not None:
            return dict(zip(names, batch.weights.sum((0, 2)).unbind(), strict=True))
        count = batch.ids.new_full((), examples * (length - 1), dtype=torch.float32)  # no wait for the GPU
        return dict.fromkeys((*names, "tokens"), count)

    def initial_state(self, batch_size: int) -> RnnState:
        forwards, backwards = self.encoder.forwards, self.encoder.backwards
        back = None if backwards is None else backwards.new_state(batch_size)
        return RnnState(forwards=forwards.new_state(batch_size), backwards=back)

    def forward(self, batch: RnnBatch, state: RnnState | None = None) -> tuple[dict[str, Tensor], RnnState]:
        losses, after = self._direction_losses("next", self.encoder.forwards, batch, state and state.forwards)
        if self.encoder.backwards is None:
            return losses, RnnState(forwards=after)
        network, before = self.encoder.backwards, state and state.backwards
        previous, back = self._direction_losses("previous", network, batch, before)
        return losses | previous, RnnState(forwards=after, backwards=back)

    def _direction_losses(
        self, name: str, network: nn.Module, batch: RnnBatch, state: Tensors | None
    ) -> tuple[dict[str, Tensor], Tensors]:
        """The losses of all words but the first, and the state after the last but one."""
        number = int(name == "previous")
        ids, weights = batch.ids[:, number], None if batch.weights is None else batch.weights[:, number]
        layers, after = network(self.encoder.embed_ids(ids[:, :-1]), state=state)
        return self.losses(name, layers[-1], ids[:, 1:], weights), after

    def losses(self, name: str, top: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """The losses of one direction, from its hidden states."""
        return {name: self.nll(top, targets, weights)}

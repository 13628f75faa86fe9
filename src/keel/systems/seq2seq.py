"""Sequence to sequence with attention (Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to
Align and Translate", 2014).

New then: the decoder gets no single vector of the source text; before each word it attends to all source words, and
the attention weights align the two texts. The encoder is bidirectional, the decoder is

    e_ij = score(s_{i-1}, h_j);  alpha_i = softmax over j of e_ij;  c_i = sum over j of alpha_ij h_j
    s_i = f(s_{i-1}, y_{i-1}, c_i);  p(y_i | y_<i, x) = softmax(E tanh(W_s s_i + W_y y_{i-1} + W_c c_i))

The paper's read-out is a maxout of s_{i-1}, y_{i-1} and c_i; ours is a tanh of the new state s_i, as usual since.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Count, Dropout, LayerCount
from keel.data.token_batch import TokenBatch
from keel.nn.encoder import Decoder, Encoder, EncoderOutput, ForwardOptions, Recorder
from keel.nn.recurrent import RecurrentLayers
from keel.systems.rnn import RecurrentSystem
from keel.systems.system import EncoderDecoderSystem
from keel.training.objective import Tensors
from keel.training.plan import Train

Scoring = Literal["additive", "dot"]


@dataclass(frozen=True, kw_only=True)
class Seq2seq(EncoderDecoderSystem, RecurrentSystem):
    """The hyper-parameters of a recurrent encoder-decoder with attention; size `paper` has those of 2014."""

    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent cell of encoder and decoder."""
    width: Count = 512
    """Width of the word embeddings and of each hidden state."""
    layers: LayerCount = 1
    """Number of encoder layers."""
    scoring: Scoring = "additive"
    """Attention score: additive, w tanh(W_q q + W_k k), or dot, q · W_k k / sqrt(width)."""
    attention_dim: Count = 512
    """Width of the additive attention's hidden layer."""
    dropout: Dropout = 0.3
    """Dropout probability of word embeddings, of the encoder's output and before the softmax."""

    name = "seq2seq"
    year = 2014
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"width": 1000, "attention_dim": 1000, "tie_embeddings": False}
    }
    pretraining_defaults = Train(epochs=20, batch=128, lr=1e-3)

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=20, batch=128, lr=1e-3, warmup=0.02, clip=1.0)

    def build_encoder(self, vocab_size: int) -> "Seq2seqEncoder":
        return Seq2seqEncoder(self, vocab_size)

    def build_decoder(self, encoder: Encoder, vocab_size: int, *, shared_vocabulary: bool = False) -> "Seq2seqDecoder":
        return Seq2seqDecoder(self, encoder, vocab_size, shared=shared_vocabulary)


def scaled_embeddings(table: Tensor, ids: Tensor) -> Tensor:
    """[..., width] embeddings times sqrt(width), as in the Transformer: inputs of about unit variance from a table that
    is tied to the softmax. With far smaller inputs attention takes long to learn."""
    return F.embedding(ids, table) * table.shape[1] ** 0.5


class Seq2seqEncoder(Encoder):
    """h_j: the states of a forward and a backward network at each word, concatenated."""

    def __init__(self, system: Seq2seq, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.words = nn.Embedding(vocab_size, system.width)
        self.reader = RecurrentLayers(
            system.cell, system.width, system.width, system.layers, bidirectional=True, dropout=system.dropout
        )
        self.width = self.reader.width
        self.dropout = nn.Dropout(system.dropout)
        nn.init.normal_(self.words.weight, std=system.width**-0.5)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.dropout(scaled_embeddings(self.words.weight, batch.ids))

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        layers, _ = self.reader(vectors, batch.lengths)
        top = self.dropout(layers[-1])
        return EncoderOutput(top=top, layers=[*layers[:-1], top] if options.all_layers else [])

    def blocks(self) -> list[nn.Module]:
        return [nn.ModuleList(pair) for pair in zip(self.reader.forwards, self.reader.backwards, strict=True)]

    @property
    def layer_numbers(self) -> list[int]:
        return [*range(1, 1 + len(self.reader.forwards))]  # embeddings are half as wide


@dataclass(frozen=True, kw_only=True)
class AttentionSource(Tensors):
    """What is computed once per source text. c_i enters the state and the read-out through one matrix each: as c_i is a
    sum over j, each h_j is multiplied beforehand."""

    keys: Tensor  # [sources, source time, attention_dim]: W_k h_j
    gates: Tensor  # [sources, source time, gates x width]: h_j's inputs to the gates of f
    answers: Tensor  # [sources, source time, width]: W_c h_j
    mask: Tensor  # [sources, 1, source time]: 0 at words, -inf at padding
    first: Tensor  # [sources, width]: s_0


@dataclass(frozen=True, kw_only=True)
class Seq2seqState(Tensors):
    """The decoder's state."""

    hidden: Tensor  # [batch, width]
    cells: Tensor | None = None  # as hidden, of an LSTM


class Seq2seqDecoder(Decoder):
    """The decoder; `record` gets "alignment", alpha [batch, time, source time]."""

    def __init__(self, system: Seq2seq, encoder: Encoder, vocab_size: int, *, shared: bool):
        width = system.width
        super().__init__(encoder, vocab_size, width, shared=shared)
        self.first = nn.Linear(width, width)
        additive = system.scoring == "additive"
        self.key = nn.Linear(encoder.width, system.attention_dim if additive else width, bias=False)
        self.query = nn.Linear(width, system.attention_dim, bias=False) if additive else None
        self.weigh = nn.Parameter(torch.randn(system.attention_dim) * system.attention_dim**-0.5) if additive else None
        cell = nn.LSTMCell if system.cell == "lstm" else nn.GRUCell
        self.cell = cell(width + encoder.width, width)  # y_{i-1} and c_i
        self.answer = nn.Linear(2 * width + encoder.width, width)  # s_i, y_{i-1}, c_i
        self.dropout = nn.Dropout(system.dropout)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.output = None if system.tie_embeddings else nn.Parameter(torch.randn(vocab_size, width) * width**-0.5)
        if self.words is not None:
            nn.init.normal_(self.words.weight, std=width**-0.5)
        if system.cell == "lstm":
            nn.init.ones_(self.cell.bias_ih.data[width : 2 * width])  # the forget gate starts open

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> AttentionSource:
        vectors, width = output.top, self.width
        with torch.autocast(vectors.device.type, enabled=False):  # as in RecurrentLayers
            vectors = vectors.to(self.bias.dtype)
            inside = torch.arange(vectors.shape[1], device=vectors.device) < batch.lengths[:, None]
            return AttentionSource(
                keys=self.key(vectors),
                gates=F.linear(vectors, self.cell.weight_ih[:, width:]),
                answers=F.linear(vectors, self.answer.weight[:, 2 * width :]),
                mask=torch.zeros_like(inside, dtype=vectors.dtype).masked_fill(~inside, -torch.inf)[:, None],
                first=self.first(vectors[:, 0, -width:]).tanh(),  # of the backward network
            )

    def new_state(self, source: Tensors, batch_size: int) -> Seq2seqState:
        assert isinstance(source, AttentionSource)
        hidden = source.first.repeat_interleave(batch_size // len(source.first), 0)
        return Seq2seqState(
            hidden=hidden, cells=torch.zeros_like(hidden) if isinstance(self.cell, nn.LSTMCell) else None
        )

    def forward(
        self, ids: Tensor, source: Tensors, state: Seq2seqState | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, Seq2seqState]:
        """[batch, time, width] read-outs that predict the token after each of `ids`, and the state after the last.

        The loop holds only what needs the previous state: one product for query and gates, and the attention.
        """
        assert isinstance(source, AttentionSource)
        state = state or self.new_state(source, len(ids))
        hidden, cells, width = state.hidden, state.cells, self.width
        sources, beams = len(source.first), len(ids) // len(source.first)
        with torch.autocast(ids.device.type, enabled=False):
            words = self.dropout(scaled_embeddings(self.word_embeddings(), ids))  # [batch, time, width]: y_{i-1}
            inputs = F.linear(words, self.cell.weight_ih[:, :width], self.cell.bias_ih).unbind(1)
            matrix, bias = self.cell.weight_hh, self.cell.bias_hh
            joined = (
                None if len(inputs) == 1 else self.query
            )  # for one word, concatenating costs more than a second product
            if joined is not None:
                matrix = torch.cat([matrix, joined.weight])
                bias = F.pad(bias, (0, len(joined.weight)))
            states: list[Tensor] = []
            weights: list[Tensor] = []
            for given in inputs:
                gates, query = F.linear(hidden, matrix, bias).tensor_split([len(self.cell.bias_hh)], 1)
                if joined is None:
                    query = hidden if self.query is None else self.query(hidden)
                energies = self.energies(query.view(sources, beams, -1), source)
                alpha = (energies + source.mask).softmax(-1)  # [sources, beams, source time]
                given = given + (alpha @ source.gates).flatten(0, 1)
                hidden, cells = self._update_state(given, gates, hidden, cells)
                states.append(hidden)
                weights.append(alpha)
            hiddens = torch.stack(states, 1)  # [batch, time, width]
            alphas = torch.stack(weights, 2)  # [sources, beams, time, source time]
            contexts = (alphas.flatten(1, 2) @ source.answers).view_as(hiddens)
            readout = torch.cat([hiddens, words], -1)
            readout = (F.linear(readout, self.answer.weight[:, : 2 * width], self.answer.bias) + contexts).tanh()
        if record is not None:
            record("alignment", 0, alphas.flatten(0, 1))
        return self.dropout(readout), Seq2seqState(hidden=hidden, cells=cells)

    def energies(self, query: Tensor, source: AttentionSource) -> Tensor:
        """e [sources, beams, source time] of queries [sources, beams, attention_dim]: w_v · tanh(W_q q + W_k k), or
        q · W_k k / sqrt(d)."""
        if self.weigh is None:
            return query @ source.keys.mT * query.shape[-1] ** -0.5
        return (query[:, :, None] + source.keys[:, None]).tanh() @ self.weigh

    def _update_state(
        self, given: Tensor, recurrent: Tensor, hidden: Tensor, cells: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """f: the next state from the gate inputs of word and context (`given`) and of the state (`recurrent`); formulas
        in `RecurrentLayers`."""
        if cells is not None:
            into, forget, new, out = (given + recurrent).chunk(4, 1)
            cells = forget.sigmoid() * cells + into.sigmoid() * new.tanh()
            return out.sigmoid() * cells.tanh(), cells
        gates = (given[:, : 2 * self.width] + recurrent[:, : 2 * self.width]).sigmoid()
        reset, update = gates.chunk(2, 1)
        new = torch.addcmul(given[:, 2 * self.width :], reset, recurrent[:, 2 * self.width :]).tanh()
        return torch.lerp(new, hidden, update), None

    def logits(self, vectors: Tensor) -> Tensor:
        return F.linear(vectors, self.word_embeddings() if self.output is None else self.output, self.bias)

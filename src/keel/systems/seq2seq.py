"""Sequence to sequence with attention (Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to
Align and Translate", 2014).

New then: the writer keeps no single vector of the text it writes from; before each word it looks at all words of that
text, and what it looks at is the alignment of the two. The network that reads goes both ways, the one that writes is

    e_ij = score(s_{i-1}, h_j);  alpha_i = softmax over j of e_ij;  c_i = sum over j of alpha_ij h_j
    s_i = f(s_{i-1}, y_{i-1}, c_i);  p(y_i | y_<i, x) = softmax(E tanh(W_s s_i + W_y y_{i-1} + W_c c_i))

The paper's read-out is a maxout of s_{i-1}, y_{i-1} and c_i; ours has the new state and a tanh, as most have it since.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.nn.encoder import Decoder, Encoder, EncoderOutput, Recorder
from keel.nn.recurrent import RecurrentLayers
from keel.systems.rnn import RecurrentSystem
from keel.systems.system import EncoderDecoderSystem
from keel.training.objective import State, Tensors
from keel.training.plan import Train

Scoring = Literal["additive", "dot"]


@dataclass(frozen=True, kw_only=True)
class Seq2seq(EncoderDecoderSystem, RecurrentSystem):
    """The hyper-parameters of a recurrent network that writes from another text; `paper` has those of 2014."""

    cell: Literal["gru", "lstm"] = "gru"
    """Of the reader in both directions and of the writer."""
    width: int = 512
    """Of the words' vectors and of each state."""
    layers: int = 1
    """Of the reader."""
    scoring: Scoring = "additive"
    """How a state is compared with a word: additive, w tanh(W_q q + W_k k), or dot, q · W_k k / sqrt(width)."""
    attention_dim: int = 512
    """Numbers inside the additive score, which query and key are brought to."""
    dropout: float = 0.3
    """On words, on what is read and before the softmax."""

    name: ClassVar[str] = "seq2seq"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"width": 1000, "attention_dim": 1000, "tie_embeddings": False}
    }
    pretraining_defaults: ClassVar[Train] = Train(epochs=20, batch=128, lr=1e-3)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "layers", "attention_dim"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must lie between 0 and 1, not at {self.dropout}")

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=20, batch=128, lr=1e-3, warmup=0.02, clip=1.0)

    def build_encoder(self, vocab_size: int) -> "Seq2seqEncoder":
        return Seq2seqEncoder(self, vocab_size)

    def build_decoder(self, encoder: "Seq2seqEncoder", vocab_size: int) -> "Seq2seqDecoder":
        return Seq2seqDecoder(self, encoder, vocab_size)


def scaled_embeddings(table: Tensor, ids: Tensor) -> Tensor:
    """[..., width]: their vectors times sqrt(width), as a Transformer has it: numbers of about 1 go in, from a table by
    which words are foretold as well. With far smaller ones it takes long until the network learns to look."""
    return F.embedding(ids, table) * table.shape[1] ** 0.5


class Seq2seqEncoder(Encoder):
    """h_j: the states of a reader forwards and of one backwards, side by side, at each word."""

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
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        layers, _ = self.reader(vectors, batch.lengths)
        top = self.dropout(layers[-1])
        return EncoderOutput(top=top, layers=[*layers[:-1], top] if all_layers else [])

    def blocks(self) -> list[nn.Module]:
        return [nn.ModuleList(pair) for pair in zip(self.reader.forwards, self.reader.backwards, strict=True)]

    @property
    def layer_numbers(self) -> list[int]:
        return [*range(1, 1 + len(self.reader.forwards))]  # words are half as wide


@dataclass(frozen=True, kw_only=True)
class AttentionSource(Tensors):
    """All that is computed once of the texts that are written from. c_i enters the state and the read-out by a product
    with a matrix each: as c_i is a sum over j, the products are taken of each h_j beforehand, and then summed."""

    keys: Tensor  # [texts, source, hidden]: W_k h_j
    gates: Tensor  # [texts, source, gates x width]: what each h_j says to the gates of f
    answers: Tensor  # [texts, source, width]: W_c h_j
    outside: Tensor  # [texts, 1, source]: 0 where there is a word, else -inf
    first: Tensor  # [texts, width]: s_0


@dataclass(frozen=True, kw_only=True)
class Seq2seqState(Tensors):
    """What the writer knows of each row after the words that it has written."""

    hidden: Tensor  # [rows, width]
    cells: Tensor | None = None  # as hidden, if it is an LSTM's


class Seq2seqDecoder(Decoder):
    """The network that writes; `record` is shown "alignment", alpha [rows, time, source]."""

    def __init__(self, system: Seq2seq, encoder: Seq2seqEncoder, vocab_size: int):
        width = system.width
        super().__init__(encoder, vocab_size, width, shared=system.shared_vocabulary)
        self.first = nn.Linear(width, width)
        additive = system.scoring == "additive"
        self.key = nn.Linear(encoder.width, system.attention_dim if additive else width, bias=False)
        self.query = nn.Linear(width, system.attention_dim, bias=False) if additive else None
        self.weigh = nn.Parameter(torch.randn(system.attention_dim) * system.attention_dim**-0.5) if additive else None
        cell = nn.LSTMCell if system.cell == "lstm" else nn.GRUCell
        self.cell = cell(width + encoder.width, width)  # y_{i-1} and c_i side by side
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
        with torch.autocast(vectors.device.type, enabled=False):  # as in Recurrent: states keep all their bits
            vectors = vectors.to(self.bias.dtype)
            inside = torch.arange(vectors.shape[1], device=vectors.device) < batch.lengths[:, None]
            return AttentionSource(
                keys=self.key(vectors),
                gates=F.linear(vectors, self.cell.weight_ih[:, width:]),
                answers=F.linear(vectors, self.answer.weight[:, 2 * width :]),
                outside=torch.zeros_like(inside, dtype=vectors.dtype).masked_fill(~inside, -torch.inf)[:, None],
                first=self.first(vectors[:, 0, -width:]).tanh(),  # of the reader that has come from the end
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
        """[rows, time, width]: what foretells the id after each of `ids`, and the state after the last of them.

        Within the loop stands only what needs the state before: one product with it for the query and the gates, the
        weights, and the sum by them.
        """
        assert isinstance(source, AttentionSource)
        state = state or self.new_state(source, len(ids))
        hidden, cells, width = state.hidden, state.cells, self.width
        texts, beams = len(source.first), len(ids) // len(source.first)
        with torch.autocast(ids.device.type, enabled=False):
            words = self.dropout(scaled_embeddings(self.word_embeddings(), ids))  # [rows, time, width]: y_{i-1}
            inputs = F.linear(words, self.cell.weight_ih[:, :width], self.cell.bias_ih).unbind(1)
            matrix, bias = self.cell.weight_hh, self.cell.bias_hh
            joined = None if len(inputs) == 1 else self.query  # for one word, joining costs more than a second product
            if joined is not None:
                matrix = torch.cat([matrix, joined.weight])
                bias = F.pad(bias, (0, len(joined.weight)))
            states: list[Tensor] = []
            weights: list[Tensor] = []
            for given in inputs:
                gates, query = F.linear(hidden, matrix, bias).tensor_split([len(self.cell.bias_hh)], 1)
                if joined is None:
                    query = hidden if self.query is None else self.query(hidden)
                energies = self.energies(query.view(texts, beams, -1), source)
                alpha = (energies + source.outside).softmax(-1)  # [texts, beams, source]
                given = given + (alpha @ source.gates).flatten(0, 1)
                hidden, cells = self._moved(given, gates, hidden, cells)
                states.append(hidden)
                weights.append(alpha)
            found = torch.stack(states, 1)  # [rows, time, width]
            alphas = torch.stack(weights, 2)  # [texts, beams, time, source]
            contexts = (alphas.flatten(1, 2) @ source.answers).view_as(found)
            told = torch.cat([found, words], -1)
            told = (F.linear(told, self.answer.weight[:, : 2 * width], self.answer.bias) + contexts).tanh()
        if record is not None:
            record("alignment", 0, alphas.flatten(0, 1))
        return self.dropout(told), Seq2seqState(hidden=hidden, cells=cells)

    def energies(self, query: Tensor, source: AttentionSource) -> Tensor:
        """e [texts, beams, source] of queries [texts, beams, hidden], w_v · tanh(W_q q + W_k k) or q · W_k k / sqrt(d):
        all beams of a text look at one copy of it."""
        if self.weigh is None:
            return query @ source.keys.mT * query.shape[-1] ** -0.5
        return (query[:, :, None] + source.keys[:, None]).tanh() @ self.weigh

    def _moved(self, given: Tensor, kept: Tensor, hidden: Tensor, cells: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """f: the state after one more word, by what word and context (`given`) and the state (`kept`) say to its gates;
        the formulas are those of `Recurrent`."""
        if cells is not None:
            into, forget, new, out = (given + kept).chunk(4, 1)
            cells = forget.sigmoid() * cells + into.sigmoid() * new.tanh()
            return out.sigmoid() * cells.tanh(), cells
        doors = (given[:, : 2 * self.width] + kept[:, : 2 * self.width]).sigmoid()
        reset, stay = doors.chunk(2, 1)
        new = torch.addcmul(given[:, 2 * self.width :], reset, kept[:, 2 * self.width :]).tanh()
        return torch.lerp(new, hidden, stay), None

    def logits(self, vectors: Tensor) -> Tensor:
        return F.linear(vectors, self.word_embeddings() if self.output is None else self.output, self.bias)

"""BERT (Devlin et al., 2018): a Transformer encoder that reads left and right context at once.

New then: a masked language model (a cloze test: 15% of the words are hidden and predicted from both sides) and next
sentence prediction, so that one pre-trained body serves every task with one more layer. "Segments" are the paper's
token types, "summary" its pooled output.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.errors import KeelError, UsageError
from keel.systems.base import Encoder, Framed, Output, Recorder, Rows, System
from keel.systems.documents import Documents
from keel.systems.transformer import ACTIVATIONS, Activation, Block, Dropout, Stack, padding_mask
from keel.text.tokenizer import Tokenizer
from keel.train.draw import Draw
from keel.train.objective import Objective, State, Tensors
from keel.train.plan import Train


@dataclass(frozen=True, kw_only=True)
class Bert(System):
    """The hyper-parameters of BERT; as they stand, BERT-base."""

    layers: int = 12
    """Blocks."""
    width: int = 768
    """Of every vector between the blocks."""
    head_width: int = 64
    """Of one attention head: there are width / head_width heads."""
    expansion: float = 4.0
    """The feed-forward layer is this many times as wide."""
    positions: int = 512
    """The longest row there are position vectors for."""
    segments: int = 2
    """Kinds of segments: A and B."""
    dropout: float = 0.1
    """On embeddings and on the output of every sub-layer."""
    attention_dropout: float = 0.1
    """On the attention weights."""
    activation: Activation = "gelu"
    """Between the two feed-forward layers."""
    norm_epsilon: float = 1e-12
    """Inside the layer norms."""
    length: int = 128
    """Tokens in a row of pre-training."""
    mask: float = 0.15
    """Share of tokens that are hidden and predicted."""
    whole_words: bool = False
    """Hide all pieces of a word together."""
    next_sentence: bool = True
    """Also predict whether B followed A."""

    name: ClassVar[str] = "bert"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 128},
        "mini": {"layers": 4, "width": 256},
        "small": {"layers": 4, "width": 512},
        "medium": {"layers": 8, "width": 512},
        "base": {"layers": 12, "width": 768},
        "large": {"layers": 24, "width": 1024},
    }
    train: ClassVar[Train] = Train(steps=1_000_000, batch=256, lr=1e-4, warmup=0.01)
    tunable: ClassVar[tuple[str, ...]] = (
        "dropout",
        "attention_dropout",
        "length",
        "mask",
        "whole_words",
        "next_sentence",
    )

    def __post_init__(self) -> None:
        for name, least, most in (("layers", 1, 1000), ("width", 1, 65_536), ("head_width", 1, 65_536)):
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name} must lie between {least} and {most}, not at {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        if self.expansion <= 0 or self.segments < 1 or self.norm_epsilon <= 0:
            raise UsageError("expansion and norm_epsilon must be above 0, segments 1 or more")
        if self.width % self.head_width:
            raise UsageError(f"width {self.width} is no multiple of head_width {self.head_width}: change one of them")
        if not 8 <= self.length <= min(self.positions, 4096):
            raise UsageError(f"length {self.length} must lie between 8 and positions ({self.positions}, 4096 at most)")
        if not 0 < self.mask < 1:
            raise UsageError(f"mask {self.mask} must lie between 0 and 1: it is a share of the tokens")

    @property
    def heads(self) -> int:
        return self.width // self.head_width

    @property
    def hidden(self) -> int:
        return round(self.width * self.expansion)

    @property
    def longest(self) -> int:
        """Positions beyond the rows of pre-training have vectors that nothing has taught."""
        return self.length

    @property
    def needs_words(self) -> bool:
        return self.whole_words

    def after(self, parent: Any) -> Self:
        return replace(self, length=max(self.length, parent.length))

    def tuning(self, frozen: bool) -> Train:
        """The paper's 5e-5 is for 768 wide; narrower networks want a larger rate."""
        if frozen:
            return Train(epochs=20, batch=32, lr=1e-3)
        return Train(epochs=3, batch=32, lr=5e-5 * max(1.0, 768 / self.width))

    @property
    def slots(self) -> int:
        """Places for hidden tokens in a row of pre-training: static, so that the head runs on them alone."""
        return max(1, round(self.mask * self.length + 0.5))

    def encoder(self, vocabulary: int) -> "BertEncoder":
        return BertEncoder(self, vocabulary)

    def objective(self, encoder: "BertEncoder", tokenizer: Tokenizer) -> "BertPretraining":
        return BertPretraining(self, encoder, tokenizer)

    def frame(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> Framed:
        """[CLS] A [SEP], or [CLS] A [SEP] B [SEP] with B in segment 1."""
        ids = [tokenizer.cls_id, *first, tokenizer.sep_id]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, tokenizer.sep_id]
            segments += [min(1, self.segments - 1)] * (len(second) + 1)
        return Framed(ids, segments, 1)


class BertEncoder(Encoder):
    """Words + positions + segments, a norm, a stack of post-norm blocks; [CLS]'s top vector, one layer on, sums up."""

    def __init__(self, system: Bert, vocabulary: int):
        super().__init__()
        self.vocabulary, self.width = vocabulary, system.width
        self.words = nn.Embedding(vocabulary, system.width)
        self.positions = nn.Embedding(system.positions, system.width)
        self.segments = nn.Embedding(system.segments, system.width)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon)
        self.dropout = Dropout(system.dropout)
        self.stack = Stack(
            Block(
                width=system.width,
                heads=system.heads,
                hidden=system.hidden,
                dropout=system.dropout,
                attention_dropout=system.attention_dropout,
                activation=system.activation,
                epsilon=system.norm_epsilon,
            )
            for _ in range(system.layers)
        )
        self.pooler = nn.Linear(system.width, system.width)
        self.apply(initialize)

    def embed(self, rows: Rows) -> Tensor:
        positions = self.positions.weight[: rows.ids.shape[1]]  # [time, width]
        # Without segments a row is all A: adding one vector costs less than looking it up at every position.
        segments = self.segments.weight[0] if rows.segments is None else self.segments(rows.segments)
        return self.dropout(self.norm(self.words(rows.ids) + segments + positions))

    def contextualize(
        self,
        vectors: Tensor,
        rows: Rows,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> Output:
        top, layers = self.stack.run(vectors, padding_mask(rows), all_layers=all_layers, record=record)
        return Output(top=top, layers=layers)

    def pick(self, output: Output, rows: Rows) -> Tensor:
        return output.top[:, 0]

    def gist(self, rows: Rows) -> Tensor:
        """In the last block only [CLS] asks and is worked on: the other places would not be read."""
        top, _ = self.stack.run(self.embed(rows), padding_mask(rows), asking=1)
        return top[:, 0]

    def summarize(self, picked: Tensor) -> Tensor:
        return torch.tanh(self.pooler(picked))

    def summary_parameters(self) -> list[nn.Parameter]:
        return list(self.pooler.parameters())

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)


def initialize(module: nn.Module) -> None:
    """Normal with deviation 0.02 (the paper truncates it at two deviations), biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


@dataclass(frozen=True, kw_only=True)
class BertBatch(Tensors):
    """Rows with hidden tokens, what was hidden, and whether B follows A."""

    rows: Rows
    slots: Tensor  # [batch, slots] places of the hidden tokens
    targets: Tensor  # [batch, slots] the ids that stood there
    weights: Tensor  # [batch, slots] 1 for a slot in use, 0 for a spare one
    unrelated: Tensor | None  # [batch] 0: B follows A, 1: B is from another document


class BertPretraining(Objective):
    """Masked language model and next sentence prediction over one encoder."""

    def __init__(self, system: Bert, encoder: BertEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system = system
        self.encoder = encoder
        self.marks = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id)
        self.vocabulary = encoder.vocabulary
        self.transform = nn.Linear(system.width, system.width)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(self.vocabulary))
        self.next = nn.Linear(system.width, 2)
        for head in (self.transform, self.next):
            initialize(head)
        if not system.next_sentence:  # nothing would train them
            encoder.pooler.requires_grad_(False)
            self.next.requires_grad_(False)

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def rows(self, data: Documents) -> int:
        return data.window_count(self._room)

    @property
    def _room(self) -> int:
        """Tokens of text in a row, beside [CLS] and [SEP]."""
        return self.system.length - (3 if self.system.next_sentence else 2)

    def batch(self, data: Documents, draw: Draw, rows: range) -> BertBatch:
        if self.system.next_sentence and len(data.spans) < 2:
            raise KeelError(
                "next sentence prediction needs at least two documents: put a blank line between documents, "
                "or turn it off with --system.next_sentence false"
            )
        numbers = torch.arange(rows.start, rows.stop, device=data.ids.device)
        sample = sample_pairs if self.system.next_sentence else sample_spans
        text = sample(data, draw, numbers, self._room)
        ids, starts_word = text.lay_out(data, self.system, self.marks)
        slots, weights = choose_slots(self.system, draw, numbers, text, starts_word)
        targets = ids.gather(1, slots)
        mask = self.marks[2]
        dice = draw.below("replace", numbers, 10, slots.shape[1])
        noise = draw.below("noise", numbers, self.vocabulary, slots.shape[1])
        # 80% become [MASK], 10% any token, 10% stay: at fine-tuning there is no [MASK] to wait for.
        shown = torch.where(dice < 8, mask, torch.where(dice == 8, noise, targets))
        ids = ids.scatter(1, slots, torch.where(weights > 0, shown, targets))
        place = torch.arange(self.system.length, device=ids.device)
        segments = (place > text.first_length[:, None] + 1) & (place < text.lengths[:, None])
        return BertBatch(
            rows=Rows(ids=ids, lengths=text.lengths, segments=segments.long() if self.system.next_sentence else None),
            slots=slots,
            targets=targets,
            weights=weights,
            unrelated=text.unrelated,
        )

    def counts(self, batch: BertBatch) -> dict[str, Tensor]:
        counts = {"mlm": batch.weights.sum(), "tokens": batch.rows.lengths.sum()}
        if batch.unrelated is not None:
            counts["nsp"] = torch.tensor(float(len(batch.unrelated)), device=batch.weights.device)
        return counts

    def forward(self, batch: BertBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        output = self.encoder(batch.rows)
        logits = self.predict_words(output.top, batch.slots)  # [batch, slots, vocabulary]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
        losses = {"mlm": (loss * batch.weights.flatten()).sum()}  # autocast would take a dot product in bf16
        if batch.unrelated is not None:
            related = self.predict_next(self.encoder.summary(output, batch.rows))
            losses["nsp"] = F.cross_entropy(related.float(), batch.unrelated, reduction="sum")
        return losses, None

    def predict_words(self, top: Tensor, slots: Tensor) -> Tensor:
        """[batch, slots, vocabulary]: scores of every word at the chosen places, by the input's own vectors (tied)."""
        chosen = top.gather(1, slots[..., None].expand(-1, -1, top.shape[-1]))
        hidden = self.norm(ACTIVATIONS[self.system.activation](self.transform(chosen)))
        return F.linear(hidden, self.encoder.words.weight, self.bias)

    def predict_next(self, summary: Tensor) -> Tensor:
        """[batch, 2]: scores of "B follows A" and "B is from elsewhere"."""
        return self.next(summary)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Where the texts of a batch of rows stand in the corpus."""

    first: Tensor  # [batch] place of A's first token
    first_length: Tensor
    second: Tensor  # the same for B; without pairs of length 0
    second_length: Tensor
    unrelated: Tensor | None

    @property
    def lengths(self) -> Tensor:
        return self.first_length + self.second_length + (2 if self.unrelated is None else 3)

    def lay_out(self, data: Documents, system: Bert, marks: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
        """[batch, length] ids as [CLS] A [SEP] B [SEP] and padding, and whether each place starts a word."""
        cls, sep, _, pad = marks
        place = torch.arange(system.length, device=self.first.device)
        a, b = self.first_length[:, None], self.second_length[:, None]
        in_a = (place > 0) & (place <= a)
        in_b = (place > a + 1) & (place <= a + 1 + b)
        source = torch.where(in_a, self.first[:, None] + place - 1, self.second[:, None] + place - a - 2)
        source = torch.where(in_a | in_b, source, 0)
        closing = (place == a + 1) | (place == self.lengths[:, None] - 1)
        ids = torch.where(in_a | in_b, data.read(source), torch.where(closing, sep, pad))
        ids[:, 0] = cls
        starts_word = data.starts_word(source) if system.whole_words else torch.ones_like(in_a)
        return ids, starts_word | (place == 1) | (place == a + 2) | ~(in_a | in_b)


def sample_spans(data: Documents, draw: Draw, rows: Tensor, room: int) -> Sampled:
    """One stretch of a document for each row; an epoch reads every token at least once."""
    start, stop, _ = data.place(data.windows(draw, rows, room), room)
    none = torch.zeros_like(start)
    length = torch.clamp(stop - start, max=room)
    return Sampled(first=start, first_length=length, second=none, second_length=none, unrelated=None)


def sample_pairs(data: Documents, draw: Draw, rows: Tensor, room: int) -> Sampled:
    """A stretch cut in two between sentences; for half of the rows the second part is from another document instead."""
    start, stop, document = data.place(data.windows(draw, rows, room), room)
    stop = torch.minimum(stop, start + room)
    # A is cut where a sentence starts inside the stretch; a stretch of one sentence is cut in the middle.
    sentence = torch.searchsorted(data.starts, start, right=True)
    inside = torch.searchsorted(data.starts, stop) - sentence
    cut = data.starts[sentence + draw.below("cut", rows, inside.clamp(min=1)[:, None]).squeeze(1)]
    cut = torch.where(inside > 0, cut, (start + stop + 1) // 2)
    unrelated = draw.below("next", rows, 2).squeeze(1)
    # Any token outside A's document: count on from that document's end, around the corpus.
    size = data.ends[document] - data.begins(document)
    elsewhere = draw.below("elsewhere", rows, (data.size - size)[:, None]).squeeze(1)
    # The false B is no longer than the true one, or a row's length would tell them apart.
    length = stop - cut
    other, other_stop, _ = data.place((data.ends[document] + elsewhere) % data.size, length)
    second = torch.where(unrelated == 1, other, cut)
    second_stop = torch.where(unrelated == 1, torch.minimum(other_stop, other + length), stop)
    return Sampled(
        first=start, first_length=cut - start, second=second, second_length=second_stop - second, unrelated=unrelated
    )


def choose_slots(system: Bert, draw: Draw, rows: Tensor, text: Sampled, starts_word: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, slots] places to predict, in the order drawn, and 1 for each that counts."""
    length = system.length
    place = torch.arange(length, device=rows.device).expand_as(starts_word)
    marks = (place == 0) | (place == text.first_length[:, None] + 1) | (place >= text.lengths[:, None] - 1)
    wanted = ((text.first_length + text.second_length) * system.mask + 0.5).long().clamp(1, system.slots)[:, None]
    # Pieces of a word share one random key, drawn at its first piece, so that they are chosen together and in order.
    word = starts_word.long().cumsum(1) - 1
    key = draw.bits("mask", rows, length).gather(1, word) >> 12 << 12 | place
    key = torch.where(marks, (2**51 - 1 << 12) | place, key)
    order = key.topk(min(system.slots + 1, length), dim=1, largest=False, sorted=True).indices
    rank = torch.arange(system.slots, device=rows.device)
    if not system.whole_words:
        return order[:, : system.slots], (rank < wanted).float()
    # The first word is hidden whole, as far as slots reach; of the others one is left out rather than hidden in part.
    words = word.gather(1, order)
    first = words == words[:, :1]
    wanted = torch.maximum(wanted, first.sum(1, keepdim=True).clamp(max=system.slots))
    torn = (words == words.gather(1, wanted)) & ~first
    return order[:, : system.slots], ((rank < wanted) & ~torn[:, :-1]).float()

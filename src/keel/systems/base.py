"""What every system of the lineage shares: ids go in, vectors come out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import replace as with_settings
from keel.errors import UsageError
from keel.text.sentences import Sentences
from keel.text.tokenizer import Tokenizer
from keel.train.objective import Kernel, Objective, State, Tensors
from keel.train.plan import Train


@dataclass(frozen=True, kw_only=True)
class Spelling(Tensors):
    """Some words with the parts that each is spelled by: n-grams (fastText) or characters (ELMo)."""

    words: Tensor  # [words] their ids; -1 for one that has none, as it was never met in training
    parts: Tensor  # [parts] those of the first word, then those of the second, ...
    starts: Tensor  # [words] where each word's parts start

    @property
    def sizes(self) -> Tensor:
        """[words] how many parts each has."""
        return self.starts.diff(append=self.starts.new_tensor([len(self.parts)]))

    def take(self, index: Tensor) -> Self:
        """The words at these places alone."""
        sizes = self.sizes[index]
        starts = sizes.cumsum(0) - sizes
        sources = torch.arange(int(sizes.sum())) + (self.starts[index] - starts).repeat_interleave(sizes)
        return replace(self, words=self.words[index], parts=self.parts[sources], starts=starts)


@dataclass(frozen=True, kw_only=True)
class Rows(Tensors):
    """A batch of id sequences, padded to the longest; or packed: end to end in one row, without padding."""

    ids: Tensor  # [batch, time], or packed [1, tokens]
    lengths: Tensor  # [batch]
    segments: Tensor | None = None  # as ids
    spelling: Spelling | None = None  # of the rows' distinct words, for those who spell; ids then are places in it
    starts: Tensor | None = None  # [batch]: where each sequence starts, if packed
    places: Tensor | None = None  # [1, tokens]: the place of each token in its sequence, if packed
    longest: int = 0
    """At least the longest length, if packed."""

    @classmethod
    def pad(cls, sequences: list[list[int]], segments: list[list[int]] | None = None) -> Self:
        """Rows of unequal sequences."""
        lengths = [len(sequence) for sequence in sequences]
        time = max(lengths, default=0)

        def fill(lists: list[list[int]]) -> Tensor:
            grid = np.zeros((len(lists), time), dtype=np.int64)  # any id will do: nothing looks at padding
            for row, items in zip(grid, lists, strict=True):
                row[: len(items)] = items
            return torch.from_numpy(grid)

        return cls(
            ids=fill(sequences),
            lengths=torch.tensor(lengths),
            segments=None if segments is None else fill(segments),
        )

    def spelled(self, spelling: Spelling) -> Self:
        """These rows, whose ids are places in `spelling`, with no more of it than they need."""
        used, ids = self.ids.unique(return_inverse=True)
        return replace(self, ids=ids, spelling=spelling.take(used))


@dataclass(frozen=True, kw_only=True)
class Output:
    """What an encoder gives for a batch."""

    top: Tensor  # [batch, time, width]
    layers: list[Tensor] = field(default_factory=list)
    """With `all_layers`: the embedded input, then every block's output, each [batch, time, width]."""
    state: State | None = None


class Recorder(Protocol):
    """Is shown what a network computes on the way, such as attention; pass one to look inside."""

    def __call__(self, name: str, layer: int, value: Tensor) -> None: ...


@runtime_checkable
class Foretelling(Protocol):
    """An objective that can say how well rows of vectors foretell the ids that follow."""

    def foretold(self, top: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum of weights * -log p(targets), both [rows, time], by an encoder's top [rows, time, width]."""
        ...


class Encoder(nn.Module):
    """Ids to vectors. A static word vector is an encoder with no blocks."""

    vocabulary: int
    """How many ids it knows."""
    width: int
    """Of the vectors it gives."""

    @property
    def packs(self) -> bool:
        """Whether it takes packed rows, as it is and where it is."""
        return False

    @property
    def sparse(self) -> bool:
        """Whether its vectors are as wide as the vocabulary and next to empty: then only `gist` is worth computing."""
        return False

    def table(self) -> Tensor | None:
        """[vocabulary, width]: the vector of each word alone, where words have one."""
        words = getattr(self, "words", None)
        return words.weight if isinstance(words, nn.Embedding) else None

    def files(self, tokenizer: Tokenizer) -> dict[str, str]:
        """What it has to tell people, as further files of its folder, by name."""
        return {}

    def embed(self, rows: Rows) -> Tensor:
        """[batch, time, width]: words, positions and whatever else a row's ids mean before any context."""
        raise NotImplementedError

    def contextualize(
        self,
        vectors: Tensor,
        rows: Rows,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> Output:
        """The vectors after every block has seen their neighbours: the same where there is no block."""
        return Output(top=vectors, layers=[vectors] if all_layers else [])

    def met(self, spelling: Spelling) -> tuple[dict[str, Tensor], Spelling]:
        """Of each table of vectors the rows that this spelling uses, and the spelling by their places among these."""
        return {}, spelling

    def pick(self, output: Output, rows: Rows) -> Tensor:
        """[batch, width]: of each row, what its summary is made from, the mean unless a system knows better; nothing
        here is learned, so it can be kept."""
        inside = torch.arange(rows.ids.shape[1], device=rows.ids.device) < rows.lengths[:, None]
        return (output.top * inside[..., None]).sum(1) / rows.lengths[:, None].clamp(min=1)

    def gist(self, rows: Rows) -> Tensor:
        """[batch, width]: what `pick` takes of the rows' output; a system may know how to compute no more than that."""
        return self.pick(self(rows), rows)

    def summarize(self, picked: Tensor) -> Tensor:
        """[batch, width]: one vector for each row, made from what was picked."""
        return picked

    def summary_parameters(self) -> list[nn.Parameter]:
        """The weights that `summarize` uses."""
        return []

    def summary(self, output: Output, rows: Rows) -> Tensor:
        """[batch, width]: one vector for each row, the way this system makes it."""
        return self.summarize(self.pick(output, rows))

    def blocks(self) -> list[nn.Module]:
        return []

    @property
    def layer_numbers(self) -> list[int]:
        """Of the layers that `all_layers` gives: 0 for the embedded input, n for what the nth block gives; those of
        another width are left out."""
        return [*range(1 + len(self.blocks()))]

    @property
    def layer_count(self) -> int:
        """How many layers `all_layers` gives."""
        return len(self.layer_numbers)

    def inputs(self) -> list[nn.Parameter]:
        """The weights below its blocks: all that is in none and no part of the summary."""
        above = {*self.summary_parameters(), *(weight for block in self.blocks() for weight in block.parameters())}
        return [weight for weight in self.parameters() if weight not in above]

    def forward(self, rows: Rows, *, all_layers: bool = False, record: Recorder | None = None) -> Output:
        return self.contextualize(self.embed(rows), rows, all_layers=all_layers, record=record)


@dataclass(frozen=True, kw_only=True)
class Writing(Tensors):
    """The state of a writer that writes from other texts: row r writes from text r // (rows / texts)."""

    source: Tensors  # texts first: what the decoder keeps of each, computed once
    own: Tensors  # rows first: what it has written so far

    def kept(self, rows: Tensor, texts: Tensor | None = None) -> Self:
        """These rows, in this order, and these texts (None: all that there are)."""
        return replace(self, source=self.source if texts is None else self.source.take(texts), own=self.own.take(rows))


class Decoder(nn.Module):
    """What writes, where an encoder reads: ids, each by those before it and by the vectors of another text."""

    vocabulary: int
    """How many ids it writes."""

    def read(self, output: Output, rows: Rows) -> Tensors:
        """What it keeps of the texts that it writes from, texts first: whatever need not be computed at each step."""
        raise NotImplementedError

    def begin(self, source: Tensors, rows: int) -> Tensors:
        """The state of so many rows before their first id, rows first; a multiple of the texts in `source`."""
        raise NotImplementedError

    def forward(
        self, ids: Tensor, source: Tensors, state: State | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, State]:
        """[rows, time, width]: what foretells the id after each of these further ids [rows, time], and the state after
        them. Without a state they are the first, as all of a text is in training, and no state need be made."""
        raise NotImplementedError

    def scores(self, vectors: Tensor) -> Tensor:
        """[..., vocabulary]: how likely each id is, as a softmax takes it."""
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        return []


@runtime_checkable
class Windowed(Protocol):
    """An objective that foretells a text in windows; moved on by less than their width, they overlap."""

    @property
    def window(self) -> int:
        """Tokens in a window."""
        ...

    def window_count(self, data: Any, stride: int) -> int:
        """How many windows foretell each token of a text once, if each lies `stride` tokens further on."""
        ...

    def windows(self, data: Any, stride: int, rows: range) -> Tensors:
        """Some of them as a batch: a token is foretold from at least window - stride before it, if there are any."""
        ...


@dataclass(frozen=True)
class Framed:
    """One text or pair with the marks that a system puts around it."""

    ids: list[int]
    segments: list[int]
    first: int
    """Where the first text's ids start."""


@dataclass(frozen=True, kw_only=True)
class System:
    """The hyper-parameters of one system; subclasses name their paper's."""

    name: ClassVar[str]
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}
    train: ClassVar[Train]
    """The paper's own way to train it."""
    tokenizer: ClassVar[str] = "auto"
    """The kind of pieces it reads unless told otherwise; auto is for the language to decide."""
    vocabulary: ClassVar[int] = 30_000
    """Pieces that are learned unless told otherwise."""
    lowercase: ClassVar[bool | Literal["auto"]] = "auto"
    """Whether capital letters are one with small ones unless told otherwise; auto is for the tokenizer to decide."""
    min_count: ClassVar[int] = 0
    """Times that a word must come to be one of them, where pieces are words."""
    tunable: ClassVar[tuple[str, ...]] = ()
    """The fields that may change when a trained model goes on learning; the others are its shape."""
    pool: ClassVar[Literal["own", "concat"]] = "own"
    """How a task sums up its rows unless told otherwise; own is by its encoder's summary."""
    sentences: ClassVar[Sentences] = "split"
    """How sentences are told apart in the text that it learns from, unless told otherwise."""
    foretells: ClassVar[bool] = False
    """Whether its objective, in evaluation, sums -log p over every next token: what perplexity is made of."""
    feature_based: ClassVar[bool] = False
    """Whether a task learns on its vectors as they are, all layers mixed, unless told otherwise."""
    from_labels: ClassVar[bool] = False
    """Whether it learns from labels alone, and has nothing to learn from text."""
    spells: ClassVar[bool] = False
    """Whether it reads how words are spelled, and so has vectors for words that it never met."""

    @classmethod
    def sized(cls, size: str, **fields: Any) -> Self:
        """The published shape of that name, with single fields changed."""
        if size not in cls.sizes:
            raise UsageError(f"{cls.name} has no size {size!r}: choose one of {', '.join(cls.sizes) or '(none)'}")
        return with_settings(cls(), **cls.sizes[size], **fields)

    @property
    def longest(self) -> int:
        """The longest row that the encoder takes."""
        raise NotImplementedError

    @property
    def foretold_from(self) -> str:
        """What it foretells a token from, in words."""
        return "its own window"

    @property
    def needs_words(self) -> bool:
        """Whether pre-training asks where words start."""
        return False

    @property
    def later(self) -> Train:
        """How to go on with a trained one on other text."""
        return self.train

    def after(self, parent: Any) -> Self:
        """The settings of a model that went on from one with `parent`'s: what it could before it still can."""
        return self

    def tuning(self, frozen: bool) -> Train:
        """How to fine-tune it, or the head alone on a frozen encoder."""
        raise NotImplementedError

    def encoder(self, vocabulary: int) -> Encoder:
        """A new encoder for that many ids, with random weights."""
        raise NotImplementedError

    def decoder(self, encoder: Any, vocabulary: int) -> Decoder:
        """A new decoder over such an encoder that writes so many ids; those of equal vocabularies may share vectors."""
        raise UsageError(f"{self.name} reads text and writes none: take seq2seq or transformer")

    def objective(self, encoder: Any, tokenizer: Tokenizer) -> Objective:
        """What this system is pre-trained by."""
        raise NotImplementedError

    @property
    def label_pieces(self) -> str:
        """The kind of pieces that a new model reads, of which labelled examples are all there is."""
        return self.tokenizer

    @property
    def teaching(self) -> "Teaching":
        """How it learns a task by labels."""
        return Teaching(self)

    def spelling(self, ids: Sequence[int], tokenizer: Tokenizer) -> Spelling:
        """How these words are spelled; asked of those who spell alone."""
        raise NotImplementedError

    def spelled(self, rows: Rows, tokenizer: Tokenizer) -> Rows:
        """The rows as its encoder reads them: with the spelling of their words, if it spells."""
        if not self.spells:
            return rows
        used, ids = rows.ids.unique(return_inverse=True)
        return replace(rows, ids=ids, spelling=self.spelling(used.tolist(), tokenizer))

    def frame(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> Framed:
        """One or two texts as one row, with this system's marks."""
        raise NotImplementedError


class Teaching:
    """How a system learns a task by labels: as it stands, by gradients through its encoder, with its settings as they
    are; a system with a way of its own has its own."""

    def __init__(self, system: Any, fields: tuple[str, ...] = ()):
        self.system, self.fields = system, fields
        """Of the fields, those that may change when a trained model learns a task."""

    def anew(self) -> Any:
        """The system's settings for learning a task from nothing, without any text to learn from first."""
        return self.system

    def marked(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of a new model with whatever pieces this system needs beside those of text."""
        return tokenizer

    def ready(self, tokenizer: Tokenizer) -> Tokenizer:
        """A model's tokenizer with the marks that its tasks' rows have and its pre-training did not; their vectors are
        learned with the task."""
        return tokenizer

    @property
    def both_orders(self) -> bool:
        """Whether a pair with a number for its label is read both ways round unless told otherwise."""
        return False

    @property
    def lm_loss(self) -> float:
        """Weight of foretelling the rows of a task while it is learned, unless told otherwise."""
        return 0.0

    def settled(self, kind: str, counts: Sequence[int], *, frozen: bool) -> Any:
        """The system's settings for labels of this kind, whose names came so often each."""
        return self.system

    def rows(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, Spelling]:
        """For those who spell: rows end to end as places in the spelling of their words, where each row starts, and
        this spelling."""
        used, places = distinct(ids)
        return places, starts, self.system.spelling(used.tolist(), tokenizer)

    def learner(self, task: Any) -> Kernel | None:
        """What makes the updates of a task, if there is a faster way than gradients."""
        return None

    def logits(self, scores: Tensor) -> Tensor:
        """[batch, labels] what a linear head's scores say of each label."""
        return scores

    @property
    def apart(self) -> bool:
        """Whether each label is judged for itself though a text has one."""
        return False


class Untaught(Teaching):
    """That of a system which labels alone teach nothing."""

    def __init__(self, system: Any, why: str):
        super().__init__(system)
        self.why = why

    def anew(self) -> NoReturn:
        raise UsageError(self.why)


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ids, in order, and [ids] int32 the place of each among them; many times as fast as sorting."""
    if ids.max(initial=0) > 1 << 24:  # words that no vocabulary has, in a server that runs for long
        used, places = np.unique(ids, return_inverse=True)
        return used, places.astype(np.int32)
    used = np.flatnonzero(np.bincount(ids))
    places = np.zeros(ids.max(initial=0) + 1, np.int32)
    places[used] = np.arange(len(used))
    return used, places[ids]

"""What every system of the lineage shares: its hyper-parameters, from which it makes its networks and its objective."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self, runtime_checkable

from torch import Tensor

from keel.config import Validated
from keel.config import replace as with_settings
from keel.data.input_windows import ModelInput
from keel.data.sentence_splitting import Sentences
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import Decoder, Encoder
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, Objective, Tensors
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class System(Validated):
    """The hyper-parameters of one system; subclasses name their paper's."""

    name: ClassVar[str]
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}
    pretraining_defaults: ClassVar[Train]
    """The paper's own way to train it."""
    default_tokenizer: ClassVar[str] = "auto"
    """The kind of pieces it reads unless told otherwise; auto is for the language to decide."""
    default_vocab_size: ClassVar[int] = 30_000
    """Pieces that are learned unless told otherwise."""
    default_lowercase: ClassVar[bool | Literal["auto"]] = "auto"
    """Whether capital letters are one with small ones unless told otherwise; auto is for the tokenizer to decide."""
    default_min_count: ClassVar[int] = 0
    """Times that a word must come to be one of them, where pieces are words."""
    tunable: ClassVar[tuple[str, ...]] = ()
    """The fields that may change when a trained model goes on learning from text."""
    default_pool: ClassVar[Literal["default", "concat"]] = "default"
    """How a task sums up its rows unless told otherwise; own is by its encoder's summary."""
    default_sentences: ClassVar[Sentences] = "split"
    """How sentences are told apart in the text that it learns from, unless told otherwise."""
    is_causal_lm: ClassVar[bool] = False
    """Whether its objective, in evaluation, sums -log p over every next token: what perplexity is made of."""
    feature_based: ClassVar[bool] = False
    """Whether a task learns on its vectors as they are, all layers mixed, unless told otherwise."""
    supervised_only: ClassVar[bool] = False
    """Whether it learns from labels alone, and has nothing to learn from text."""
    uses_subwords: ClassVar[bool] = False
    """Whether it reads how words are spelled, and so has vectors for words that it never met."""

    @classmethod
    def sized(cls, size: str, **fields: Any) -> Self:
        """The published shape of that name, with single fields changed."""
        if size not in cls.sizes:
            raise UsageError(f"{cls.name} has no size {size!r}: choose one of {', '.join(cls.sizes) or '(none)'}")
        return with_settings(cls(), **cls.sizes[size] | fields)

    @property
    def max_length(self) -> int:
        """The longest row that the encoder takes."""
        raise NotImplementedError

    @property
    def context_description(self) -> str:
        """What it foretells a token from, in words."""
        return "its own window"

    @property
    def needs_word_starts(self) -> bool:
        """Whether pre-training asks where words start."""
        return False

    @property
    def continued_pretraining_defaults(self) -> Train:
        """How to go on with a trained one on other text."""
        return self.pretraining_defaults

    def continued_from(self, parent: Any) -> Self:
        """The settings of a model that went on from one with `parent`'s: what it could before it still can."""
        return self

    def finetuning_defaults(self, frozen: bool) -> Train:
        """How to fine-tune it, or the head alone on a frozen encoder."""
        raise NotImplementedError

    def build_encoder(self, vocab_size: int) -> Encoder:
        """A new encoder for that many ids, with random weights."""
        raise NotImplementedError

    def build_decoder(self, encoder: Any, vocab_size: int) -> Decoder:
        """A new decoder over such an encoder that writes so many ids; those of equal vocabularies may share vectors."""
        next_token_loss = "foretells how a text goes on and does not rewrite it"
        what = next_token_loss if self.is_causal_lm else "reads text and writes none"
        raise UsageError(f"{self.name} {what}: take seq2seq or transformer")

    def build_objective(self, encoder: Any, tokenizer: Tokenizer) -> Objective:
        """What this system is pre-trained by."""
        raise NotImplementedError

    @property
    def label_tokenizer(self) -> str:
        """The kind of pieces that a new model reads, of which labelled examples are all there is."""
        return self.default_tokenizer

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        """How it learns a task by labels."""
        return FineTuningPolicy(self)

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """How these words are spelled; asked of those who spell alone."""
        raise NotImplementedError

    def with_subword_units(self, rows: TokenBatch, tokenizer: Tokenizer) -> TokenBatch:
        """The rows as its encoder reads them: with the spelling of their words, if it spells."""
        if not self.uses_subwords:
            return rows
        used, ids = rows.ids.unique(return_inverse=True)
        return replace(rows, ids=ids, subword_units=self.subword_units(used.tolist(), tokenizer))

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """One or two texts as one row, with this system's marks."""
        raise NotImplementedError


COUNTING = Train(optimizer="own", epochs=1, lr=1.0, warmup=0, evaluate_every=0, log_every=1, device="cpu")
"""Schedule of a count-based system: one pass over the corpus on the CPU."""


@dataclass(frozen=True, kw_only=True)
class CountBased(System):
    """A system whose parameters are corpus statistics, counted in one pass: epochs, steps and lr do not apply."""

    def build_objective(self, encoder: Any, tokenizer: Tokenizer) -> "CountingObjective":
        raise NotImplementedError


class CountingObjective(CustomUpdate):
    """Objective of a count-based system: the same bits with any number of threads."""

    nondeterministic: ClassVar[bool] = False

    def count(self, data: Any, examples: range) -> tuple[dict[str, float], dict[str, float]]:
        """Add these parts of the pass, of `epoch_size` in all, to the statistics; return sums of losses and counts."""
        raise NotImplementedError

    def update(
        self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        first = int(rng.first_example)
        return self.count(data, range(first, first + len(examples)))


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSystem(System):
    """A system that writes from another text, by a decoder: what all of these share."""

    label_smoothing: float = 0.0
    """Share of the probability that training asks to spread over all words of the answer, not on the right one."""
    r_drop: float = 0.0
    """How strongly two readings of a text, each with its own dropout, are held to one another (R-Drop); they are twice
    the work, 5 is usual where pairs are few."""
    tie_embeddings: bool = True
    """Whether a word is foretold by the vector that it is read by."""
    shared_vocabulary: bool = False
    """Whether both texts have one vocabulary, and a word the same vector in both; for the task to say."""

    supervised_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"smoothing must lie between 0 and 1, not at {self.label_smoothing}")
        if self.r_drop < 0:
            raise UsageError(f"agreement must be 0 or more, not {self.r_drop}")

    @property
    def finetuning_policy(self) -> FineTuningPolicy:
        return FineTuningPolicy(self, ("dropout", "attention_dropout", "label_smoothing", "r_drop"))

    def build_objective(self, encoder: Encoder, tokenizer: Tokenizer) -> NoReturn:
        what = f"{self.name} learns from pairs or labels, not from text alone"
        raise UsageError(f"{what}: use keel finetune {self.name} FILE")


@runtime_checkable
class CausalLMObjective(Protocol):
    """An objective that can say how well rows of vectors foretell the ids that follow."""

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum of weights * -log p(targets), both [rows, time], by an encoder's top [rows, time, width]."""
        ...


@runtime_checkable
class WindowedEvaluation(Protocol):
    """An objective that foretells a text in windows; moved on by less than their width, they overlap."""

    @property
    def window(self) -> int:
        """Tokens in a window."""
        ...

    def window_count(self, data: Any, stride: int) -> int:
        """How many windows foretell each token of a text once, if each lies `stride` tokens further on."""
        ...

    def window_batch(self, data: Any, stride: int, rows: range) -> Tensors:
        """Some of them as a batch: a token is foretold from at least window - stride before it, if there are any.

        Each loss and count of it is two: of all that is foretold, and of that less the ends of documents.
        """
        ...


@runtime_checkable
class SequentialEvaluation(Protocol):
    """An objective that foretells a text from its start to its end in so many parts as it has rows."""

    def sequential_batch(self, data: Any, number: int) -> Tensors:
        """One of them as a batch, each loss and count of which is two, as those of `Windowed.windows`."""
        ...

"""What all systems share: hyper-parameters, from which encoder and objective are built."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from keel.config import Ge, Lt, Validated
from keel.config import replace as with_settings
from keel.data.input_windows import ModelInput
from keel.data.label_kinds import LabelKind
from keel.data.sentence_splitting import Sentences
from keel.data.token_batch import SubwordUnits, TokenBatch, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import Decoder, Encoder
from keel.systems.capabilities import LanguageModelSystem, SubwordFeatures
from keel.training.counter_rng import CounterRng
from keel.training.objective import CustomUpdate, Objective, Sums
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class EpochRule:
    """Epochs by the number of examples: `total` / examples within bounds, but never fewer than `minimum` / examples."""

    total: int
    least: int
    most: int
    minimum: int = 0
    """Examples that a run sees in all even if these are more than `most` epochs."""

    def epochs(self, examples: int) -> float:
        bounded = min(self.most, max(self.least, round(self.total / max(1, examples))))
        return float(max(bounded, round(self.minimum / max(1, examples))))

    @property
    def description(self) -> str:
        few = f"{self.total // self.least:,}"
        rule = f"{self.least}, more below {few} examples: {self.total:,} / examples, at most {self.most}"
        return f"{rule}; {self.minimum:,} / examples if that is more" if self.minimum else rule


@dataclass(frozen=True, kw_only=True)
class System(Validated):
    """The hyper-parameters of one system; subclasses add those of their paper."""

    name: ClassVar[str]
    year: ClassVar[int]
    """Year of the paper."""
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings of the published sizes, by name."""
    pretraining_defaults: ClassVar[Train]
    """The paper's training settings."""
    default_tokenizer: ClassVar[str] = "auto"
    """Kind of tokenizer by default; auto depends on the language."""
    default_vocab_size: ClassVar[int] = 30_000
    default_lowercase: ClassVar[bool | Literal["auto"]] = "auto"
    """Whether text is lower-cased by default; auto depends on the tokenizer."""
    default_min_count: ClassVar[int] = 0
    """Minimum frequency of a word in the vocabulary, for word tokenizers."""
    later_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that runs of earlier versions lack: they did what the defaults do, and are resumed."""
    tunable: ClassVar[tuple[str, ...]] = ()
    """The settings that may change in continued pre-training."""
    default_pool: ClassVar[Literal["default", "concat"]] = "default"
    """Pooling of a classification head by default; default is the encoder's pooled output."""
    default_frozen_pool: ClassVar[Literal["default", "mean"]] = "default"
    """The same for a frozen encoder, where default is `default_pool`."""
    default_pair_encoding: ClassVar[Literal["default", "siamese"]] = "default"
    """Encoding of text pairs by default, if the encoder is not frozen; default is cross-encoding."""
    default_sentences: ClassVar[Sentences] = "split"
    """Sentence splitting of the pre-training text by default."""
    epoch_rule: ClassVar[EpochRule | None] = None
    """Default epochs of training on labels by gradients, if they depend on the number of examples."""
    feature_based: ClassVar[bool] = False
    """Whether, by default, fine-tuning freezes the encoder and the head reads a learned mix of its layers."""

    @classmethod
    def sized(cls, size: str, **fields: Any) -> Self:
        """The published size of that name, with single settings changed."""
        if size not in cls.sizes:
            remedy = f"choose one of {', '.join(cls.sizes)}" if cls.sizes else "it has no named sizes, leave out --size"
            raise UsageError(f"{cls.name} has no size {size!r}: {remedy}")
        return with_settings(cls(), **cls.sizes[size] | fields)

    @property
    def max_length(self) -> int:
        """Maximum length of an input sequence, in tokens."""
        raise NotImplementedError

    @property
    def needs_word_starts(self) -> bool:
        """Whether pre-training needs to know which tokens start a word."""
        return False

    @property
    def needs_units(self) -> bool:
        """Whether pre-training masks phrases and entities as a whole, and needs to know where they start."""
        return False

    @property
    def continued_pretraining_defaults(self) -> Train:
        """Training settings of continued pre-training on other text."""
        return self.pretraining_defaults

    def continued_from(self, parent: "System") -> Self:
        """These settings after continued pre-training of a model with `parent`'s: it keeps what the parent can do."""
        return self

    def finetuning_defaults(self, frozen: bool) -> Train:
        """Training settings of fine-tuning, or of the head alone on a frozen encoder."""
        raise NotImplementedError

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        """The settings, as far as the system has them, that may change when a trained model is fine-tuned."""
        return ("dropout",)

    @property
    def finetuning_policy(self) -> "FineTuningPolicy":
        return FineTuningPolicy(self)

    def earlier_identity(self) -> dict[str, Any]:
        """What the identity of a run of an earlier version lacks: `later_settings`, with their defaults."""
        return {f"system.{each.name}": each.default for each in fields(self) if each.name in self.later_settings}

    def check_new(self) -> None:
        """Refuse a new system with a setting that is for folders of other libraries."""
        for name in sorted({*self.folder_only} & self.non_default().keys()):
            what = f"{name} {getattr(self, name)} is for folders of other libraries, not for a new {self.name}"
            raise UsageError(f"{what}: leave it out")

    def from_scratch(self) -> Self:
        """The settings for training on labelled examples only, without pre-training."""
        return self

    @property
    def label_tokenizer(self) -> str:
        """Kind of tokenizer of a new model that is trained on labelled examples only."""
        return self.default_tokenizer

    def unsupported_reason(self, task: str, *, trained: bool = False) -> str | None:
        """Why a new system or, if `trained`, a model of it does not support a task, or "pretrain"; None if it does."""
        if task == "pretrain" and type(self).build_objective is System.build_objective:
            return f"{self.name} is trained on labelled examples only: use keel finetune {self.name} FILE"
        if task == "seq2seq" and not isinstance(self, EncoderDecoderSystem):
            kind = "a decoder-only language model" if isinstance(self, LanguageModelSystem) else "an encoder"
            return f"{self.name} is {kind}; --task {task} needs an encoder-decoder: use seq2seq or transformer"
        return None

    def build_encoder(self, vocab_size: int) -> Encoder:
        """A new encoder with random weights."""
        raise NotImplementedError

    def build_objective(self, encoder: Any, tokenizer: Tokenizer) -> Objective:
        """The pre-training objective."""
        raise UsageError(self.unsupported_reason("pretrain"))

    def pretraining_obstacle(self, tokenizer: Tokenizer) -> str | None:
        """Why a model with this tokenizer cannot be pre-trained further, if it cannot."""
        return None

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """Input template: the ids before the first text, between two texts, and after the last one."""
        raise NotImplementedError

    @property
    def second_segment(self) -> int:
        """Segment id of a second text."""
        return 1

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """One or two texts with this system's special tokens."""
        before, between, after = self.special_tokens(tokenizer)
        ids = [*before, *first, *(after if second is None else between)]
        segments, second_start = [0] * len(ids), len(ids)
        if second is not None:
            ids += [*second, *after]
            segments += [self.second_segment] * (len(ids) - len(segments))
        return ModelInput(ids, segments, len(before), second_start)

    def max_text_length(self, tokenizer: Tokenizer, *, pair: bool = False) -> int:
        """Maximum length of a text, or of both texts of a pair, without special tokens."""
        return self.max_length - len(self.build_inputs(tokenizer, [], [] if pair else None).ids)

    def text_room(self, tokenizer: Tokenizer, max_tokens: int) -> int:
        """Tokens of a text in a sequence of at most `max_tokens`, special tokens included; 0 for the maximum length."""
        room = self.max_text_length(tokenizer)
        return max(1, room - max(0, self.max_length - max_tokens)) if max_tokens else room

    @property
    def uses_subwords(self) -> bool:
        """Whether it has vectors for words beyond its vocabulary."""
        return isinstance(self, SubwordFeatures)

    def with_subword_units(self, batch: TokenBatch, tokenizer: Tokenizer) -> TokenBatch:
        """The batch as the encoder reads it: with the subword units of its words, if the system has any."""
        if not isinstance(self, SubwordFeatures):
            return batch
        used, ids = batch.ids.unique(return_inverse=True)
        return replace(batch, ids=ids, subword_units=self.subword_units(used.tolist(), tokenizer))


class FineTuningPolicy:
    """How a system is fine-tuned: by gradients through its encoder. One with a recipe of its own overrides methods."""

    def __init__(self, system: "System"):
        self.system = system

    solves: ClassVar[bool] = False
    """Whether a classifier of whole texts is the solution of a convex problem, found in one step."""

    @property
    def solves_frozen(self) -> bool:
        """Whether the logits of a text are a linear function of the vector that a frozen encoder yields for it, so that
        the classifier is solved for by default."""
        return True

    def cross_validates(self, labels: LabelKind, texts: int) -> bool:
        """Whether training on this number of different texts yields scores of a cross-validation: none need to be held
        out then."""
        return False

    def fit_to_texts(self, texts: Sequence[str], tokenizer: Tokenizer) -> "System":
        """The settings of a new model that depend on the labelled texts, such as the size of a hash table."""
        return self.system

    def candidate_systems(self, labels: LabelKind, texts: int) -> Sequence["System"]:
        """The systems that cross-validation on this number of different texts compares; just one if there is none."""
        return [self.system]

    def fit_to_pretraining(self, train: Train, pretraining_optimizer: str, given_optimizer: str = "") -> Train:
        """The defaults `train` for a pre-trained encoder, by the optimizer of its pre-training ("" if unknown) and the
        one that was given for fine-tuning ("" if none was)."""
        return train

    may_collapse: ClassVar[bool] = False
    """Whether a run may learn label frequencies alone with one seed, and more with another."""

    @property
    def by_data_size(self) -> dict[str, str]:
        """Training settings whose defaults depend on the number of examples, and how, in words."""
        rule = self.system.epoch_rule
        return {} if rule is None else {"epochs": rule.description}

    def fit_to_size(self, examples: int) -> dict[str, float]:
        """The settings of `by_data_size` for this number of examples."""
        rule = self.system.epoch_rule
        return {} if rule is None else {"epochs": rule.epochs(examples)}

    def fits_size(self, train: Train, *, trained: bool) -> bool:
        """Whether `by_data_size` holds for a run by these defaults that starts from a trained encoder, or from none."""
        return True

    def adapt_to_given(self, given: Collection[str]) -> "System":
        """The system's settings beside these settings of the run, by name, that were given."""
        return self.system

    def extend_new_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of a new model with the tokens that this system needs beside those of the text."""
        return tokenizer

    def extend_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with the special tokens of task inputs that pre-training lacks; fine-tuning learns them."""
        return tokenizer

    def head_defaults(self, kind: LabelKind | None = None) -> dict[str, Any]:
        """Defaults of the head's settings for labels of this kind."""
        return {}

    def adapt_system(self, kind: LabelKind, *, labels_texts: bool, frozen: bool) -> "System":
        """The system's settings for labels of this kind, of whole texts or of parts of them."""
        return self.system

    def subword_inputs(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
        """For systems with subword features: [tokens] the index of each token among the distinct words, [sequences]
        where each sequence starts, and the subword units of the distinct words."""
        assert isinstance(self.system, SubwordFeatures)
        used, positions = distinct_ids(ids)
        return positions, starts, self.system.subword_units(used.tolist(), tokenizer)

    def custom_update(self, task: Any) -> CustomUpdate | None:
        """An objective that updates the weights of a `Task` faster than autograd, if there is one."""
        return None

    def label_logits(self, scores: Tensor, counts: tuple[int, ...]) -> Tensor:
        """[batch, labels] logits of a linear head's scores; `counts` as in `Labels`."""
        return scores

    @property
    def one_vs_rest(self) -> bool:
        """Whether each label of a single-label task gets a binary classifier of its own."""
        return False


OWN_UPDATES = Train(optimizer="own", epochs=1, lr=1.0, warmup=0, evaluate_every=0, log_every=1, device="cpu")
"""Training settings of a system with its own updates, on the CPU; a count-based one makes one pass."""

SOLVED = replace(OWN_UPDATES, batch=20_000, device="auto")
"""Training settings of a classifier that is solved for, on the vectors of a frozen encoder."""


@dataclass(frozen=True, kw_only=True)
class CountBased(System):
    """A system whose parameters are corpus statistics, counted in one pass: epochs, steps and lr do not apply."""


class CountingObjective(CustomUpdate):
    """Objective of a count-based system: the same bits with any number of threads."""

    nondeterministic: ClassVar[bool] = False

    def count(self, data: Any, examples: range) -> Sums:
        """Add these parts of the pass, of `epoch_size` in all, to the statistics; return sums of losses and counts."""
        raise NotImplementedError

    def update(self, data: Any, rng: CounterRng, examples: range, lr: float, threads: int) -> Sums:
        first = int(rng.first_example)
        return self.count(data, range(first, first + len(examples)))


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSystem(System):
    """A system that generates a target text from a source text by an encoder and a decoder."""

    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Label smoothing: share of the target probability that is spread over the whole vocabulary."""
    r_drop: Annotated[float, Ge(0)] = 0.0
    """R-Drop: weight of the KL divergence between two forward passes with different dropout, at twice the compute; 5
    is usual with little data."""
    tie_embeddings: bool = True
    """Weight tying: the softmax uses the decoder's word embeddings."""

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return "dropout", "attention_dropout", "label_smoothing", "r_drop"

    def build_decoder(self, encoder: Encoder, vocab_size: int, *, shared_vocabulary: bool = False) -> Decoder:
        """A new decoder over `encoder` with a target vocabulary of `vocab_size` tokens, the source's if shared."""
        raise NotImplementedError


def supports(system: System, task: str, *, trained: bool = False) -> bool:
    """Whether a new system or, if `trained`, a model of it supports a task, or "pretrain"."""
    return system.unsupported_reason(task, trained=trained) is None

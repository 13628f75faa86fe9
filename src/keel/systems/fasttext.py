"""fastText (Bojanowski, Grave, Joulin & Mikolov, "Enriching Word Vectors with Subword Information", 2017).

New then: a word is the mean of its own vector and those of its character n-grams, the 3- to 6-grams of "<word>". Words
with common subwords share parameters, and out-of-vocabulary words have vectors. N-grams are hashed into a fixed number
of rows (buckets).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Ge
from keel.data.documents import Documents
from keel.data.label_kinds import LabelKind, SingleLabel
from keel.data.token_batch import SubwordUnits, TokenBatch, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import EncoderOutput
from keel.systems.fasttext_classifier import (
    AUTOTUNE_BELOW,
    END_OF_LINE,
    LABEL_PREFIX,
    BagTraining,
    LabelLoss,
    build_bags,
    label_log_probs,
    label_tree,
)
from keel.systems.static_vectors import StaticEncoder
from keel.systems.system import FineTuningPolicy
from keel.systems.word2vec import ContextWindows, Word2vec, Word2vecTraining, as_aligned_array
from keel.training.counter_rng import CounterRng
from keel.training.objective import State
from keel.training.plan import Train

UPDATES, MOST_EPOCHS = 40_000, 100
"""Updates by single texts that a classifier needs, and the most epochs to reach them."""
SMALL, SMALL_LR, LARGE_LR = 20_000, 1.0, 0.5
"""Learning rates of a classifier for fewer texts than SMALL, and for more."""
MOST_BUCKETS, BUCKETS_PER_NGRAM = 2_000_000, 4
"""Most buckets of a classifier, and how many it has for each distinct n-gram of its texts: with one, half of the unseen
n-grams of a new text would share the vector of a seen one."""
DEFAULT_NGRAMS = 2
"""Longest word n-grams of a new classifier where cross-validation does not choose them."""
CLASSIFIER_WIDTH = 32
"""Width of a new classifier, whose vectors only need to tell labels apart."""


@dataclass(frozen=True, kw_only=True)
class FastText(Word2vec):
    """Hyper-parameters of fastText; the defaults are those of its command-line tool."""

    min_n: Annotated[int, Ge(0)] = 3
    """Shortest character n-grams, counting the boundary characters < and > of a word."""
    max_n: Annotated[int, Ge(0)] = 6
    """Longest character n-grams; 0: words only."""
    buckets: Annotated[int, Ge(0)] = MOST_BUCKETS
    """Hash buckets of n-gram vectors; 0, for a classifier: four for each distinct n-gram, to a power of two."""
    kept_buckets: Annotated[int, Ge(-1)] = -1
    """Buckets left in a pruned model; -1: not pruned."""
    supervised: bool = False
    """Text classifier, trained on labels: a text is the cbow of all its words and n-grams."""
    word_ngrams: Annotated[int, Ge(0)] = 1
    """Longest word n-grams of a classifier; 1: words only; 0, for a new one: 1 or 2 by cross-validation with autotune,
    else 2."""
    label_loss: LabelLoss = "softmax"
    """Loss of a classifier: softmax, hierarchical softmax, negative sampling, one-vs-all (always so if multi-label)."""
    autotune: bool = False
    """Choose a single-label classifier's learning rate by cross-validation if it has fewer than 20,000 texts (and
    word_ngrams, if 0), and let rare words and n-grams learn faster; false, --lr or --epochs: fastText's own updates."""
    sampling_power: float = 0.5
    subsample: float = 1e-4

    name = "fasttext"
    year = 2016
    pretraining_defaults = replace(Word2vec.pretraining_defaults, batch=16, lr=0.05)
    dropout = 0.0

    def __post_init__(self) -> None:
        if self.loss != "negative":
            raise UsageError(
                f"fasttext supports negative sampling only, not loss {self.loss!r}: leave out --system.loss"
            )
        if self.kept_buckets >= 0 and self.buckets > 1 << 24:
            what = f"a pruned model has at most {1 << 24:,} buckets, not {self.buckets:,}"
            raise UsageError(f"{what}: use the model before pruning")
        if self.min_n > self.max_n:
            raise UsageError(f"min_n must be between 0 and max_n ({self.max_n}), not {self.min_n}")
        if not self.buckets and not self.supervised and (self.max_n > 0 or self.word_ngrams > 1):
            raise UsageError("buckets must be 1 or more for n-grams, not 0")
        if not self.word_ngrams and not self.supervised:
            raise UsageError("word_ngrams 0 is for a new classifier (keel finetune fasttext): give 1 or more")

    @property
    def ngram_vectors(self) -> int:
        """Number of n-gram vectors."""
        used = self.max_n > 0 or (self.supervised and self.word_ngrams != 1)
        return self.kept_buckets if self.kept_buckets >= 0 else self.buckets if used else 0

    @property
    def max_length(self) -> int:
        """A cbow is summed without materializing its vectors."""
        return 1 << 20 if self.supervised else super().max_length

    default_pair_encoding = "default"  # its classifier reads a pair as one bag of words

    def finetuning_defaults(self, frozen: bool) -> Train:
        if frozen:
            return super().finetuning_defaults(frozen)
        return Train(optimizer="own", epochs=5, batch=1024, lr=LARGE_LR, warmup=0, evaluate_every=0, device="cpu")

    def unsupported_reason(self, task: str, *, trained: bool = False) -> str | None:
        if task == "pretrain" and self.supervised:
            return "a fastText classifier is trained on labels, not on plain text: use keel finetune"
        if task == "pretrain" and self.kept_buckets >= 0:
            return "a pruned model cannot continue pre-training: use the model before pruning"
        return super().unsupported_reason(task, trained=trained)

    def build_encoder(self, vocab_size: int) -> "FastTextEncoder":
        return FastTextEncoder(
            vocab_size, self.width, self.ngram_vectors, pruned=self.kept_buckets >= 0, bags=self.supervised
        )

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return "word_ngrams", "label_loss", "negatives", "autotune"

    @property
    def finetuning_policy(self) -> "FastTextFineTuning":
        return FastTextFineTuning(self)

    def from_scratch(self) -> Self:
        return replace(
            self, supervised=True, width=CLASSIFIER_WIDTH, min_n=0, max_n=0, word_ngrams=0, buckets=0, autotune=True
        )

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "FastTextTraining":
        assert isinstance(encoder, FastTextEncoder)
        return FastTextTraining(self, encoder, tokenizer)

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """Hashed n-grams of these words; special tokens have none."""
        return self.hash_ngrams(ids, self.written_forms(ids, tokenizer), len(tokenizer))

    def hash_ngrams(self, ids: Sequence[int], words: list[str], vocab_size: int) -> SubwordUnits:
        """Hashed n-grams of these written forms; ids beyond the vocabulary have no word vector."""
        from keel.kernels.fasttext_updates import hash_subwords

        grams, starts = hash_subwords(words, self.min_n, self.max_n, self.buckets)
        used = range(vocab_size)
        known = [number if word and number in used else -1 for number, word in zip(ids, words, strict=True)]
        return SubwordUnits(
            word_ids=torch.tensor(known), unit_ids=torch.from_numpy(grams), unit_starts=torch.from_numpy(starts)
        )

    def written_forms(self, ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
        """The words as strings; empty for special tokens, and for label tokens of a classifier."""
        specials = set(tokenizer.special_ids)
        words = ["" if number in specials else tokenizer.token_of(number) for number in ids]
        return ["" if word.startswith(LABEL_PREFIX) else word for word in words] if self.supervised else words


class FastTextFineTuning(FineTuningPolicy):
    """Fine-tuning of fastText's classifier: bags of words and n-grams with SGD updates of its own."""

    system: FastText

    @property
    def by_data_size(self) -> dict[str, str]:
        return {
            "epochs": f"5, more below {UPDATES // 5:,} texts: {UPDATES:,} / texts, at most {MOST_EPOCHS}",
            "lr": f"{LARGE_LR:g}; below {SMALL:,} texts by cross-validation with --autotune, else {SMALL_LR:g}",
        }

    def fits_size(self, train: Train, *, trained: bool) -> bool:
        return train.optimizer == "own"

    def cross_validates(self, labels: LabelKind, texts: int) -> bool:
        return self.system.autotune and isinstance(labels, SingleLabel) and 2 <= texts < AUTOTUNE_BELOW

    def candidate_systems(self, labels: LabelKind, texts: int) -> Sequence[FastText]:
        if self.system.word_ngrams:
            return [self.system]
        bigrams = replace(self.system, word_ngrams=DEFAULT_NGRAMS)
        if not self.cross_validates(labels, texts):
            return [bigrams]
        return [bigrams, replace(bigrams, word_ngrams=1, buckets=bigrams.buckets if bigrams.max_n else 0)]

    def adapt_to_given(self, given: Collection[str]) -> FastText:
        by_hand = {"lr", *Train.LENGTHS}.intersection(given)
        if "autotune" in given and self.system.autotune and "lr" in by_hand:
            raise UsageError("--autotune chooses the learning rate: leave out --lr or --autotune")
        return replace(self.system, autotune=False) if by_hand and "autotune" not in given else self.system

    def fit_to_size(self, examples: int) -> dict[str, float]:
        epochs = min(MOST_EPOCHS, max(5.0, UPDATES / max(1, examples)))
        return {"epochs": epochs, "lr": SMALL_LR if examples < SMALL else LARGE_LR}

    def fit_to_texts(self, texts: Sequence[str], tokenizer: Tokenizer) -> FastText:
        if self.system.buckets or not self.system.supervised:
            return self.system
        ids, lengths = tokenizer.encode_flat(list(texts))
        probe = FastTextFineTuning(replace(self.system, buckets=MOST_BUCKETS))
        *_, units = probe.subword_inputs(ids, np.append(0, np.cumsum(lengths)), tokenizer)
        wanted = BUCKETS_PER_NGRAM * len(units.unit_ids.unique())
        return replace(self.system, buckets=min(MOST_BUCKETS, 1 << (wanted - 1).bit_length()) if wanted else 0)

    def extend_new_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_word(END_OF_LINE)

    def adapt_system(self, kind: LabelKind, *, labels_texts: bool, frozen: bool) -> FastText:
        if not labels_texts:  # word by word, without bags
            return replace(self.system, supervised=False, label_loss="softmax", word_ngrams=1, autotune=False)
        ngrams = self.system.word_ngrams or DEFAULT_NGRAMS
        if frozen:  # the head is trained by gradients, as in any system
            return replace(self.system, label_loss="softmax", word_ngrams=ngrams, autotune=False)
        if not kind.has_classes:
            remedy = "use --labels single to treat numbers as labels, or --freeze for regression on frozen vectors"
            raise UsageError(f"fastText's classifier does not support regression: {remedy}")
        if not isinstance(kind, SingleLabel):
            return replace(self.system, supervised=True, label_loss="one-vs-all", word_ngrams=ngrams, autotune=False)
        return replace(self.system, supervised=True)

    def subword_inputs(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
        """Inputs of a classifier are bags: they include the end-of-line token, if known, and word n-grams."""
        system = self.system
        if not system.supervised:
            return super().subword_inputs(ids, starts, tokenizer)
        end = tokenizer.id_of(END_OF_LINE)
        used, positions = distinct_ids(np.append(ids, end))
        end_unit = -1 if end == tokenizer.unknown_id else int(positions[-1])
        words = system.written_forms(used.tolist(), tokenizer)
        units = system.hash_ngrams(used.tolist(), words, len(tokenizer))
        longest = system.word_ngrams or DEFAULT_NGRAMS
        return build_bags(positions[:-1], starts, end_unit, units, words, longest, system.buckets)

    def custom_update(self, task: Any) -> BagTraining | None:
        if not self.system.supervised:
            return None
        return BagTraining(task, self.system.label_loss, self.system.negatives, autotune=self.system.autotune)

    @property
    def solves_frozen(self) -> bool:
        return not self.system.supervised

    def label_logits(self, scores: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Hierarchical softmax: log p(label) of the scores of the tree's nodes."""
        if not self.system.supervised or self.system.label_loss != "hierarchical":
            return scores
        return label_log_probs(scores, label_tree(counts))

    @property
    def one_vs_rest(self) -> bool:
        return self.system.supervised and self.system.label_loss in ("negative", "one-vs-all")


class FastTextEncoder(StaticEncoder):
    """Mean of a word's vector, if it is in the vocabulary, and those of its n-grams."""

    def __init__(self, vocab_size: int, width: int, grams: int, *, pruned: bool = False, bags: bool = False):
        super().__init__(vocab_size, width)
        # Rows are padded for SIMD at once: moving hundreds of megabytes later would need twice the memory.
        self.grams = nn.Embedding(grams, width, _weight=torch.zeros(grams, -(-width // 16) * 16)[:, :width])
        nn.init.uniform_(self.words.weight, -1 / width, 1 / width)
        if not bags:  # n-grams a classifier was not trained on stay zero
            nn.init.uniform_(self.grams.weight, -1 / width, 1 / width)
        self.bags = bags
        """A text is the mean of all its vectors rather than of its words."""
        self.default_pool = "mean" if bags else "sif"
        # Integers below 2^24 are exact in float32, so they are saved like any weight.
        self.buckets = nn.Buffer(torch.zeros(grams)) if pruned else None
        """Buckets of the rows of `grams` in a pruned model, sorted."""

    @property
    def bag_of_words(self) -> bool:
        return self.bags

    def embed(self, batch: TokenBatch) -> Tensor:
        assert batch.subword_units is not None, "batches for fastText carry subword units (System.with_subword_units)"
        sums, counts = self.sum_vectors(batch.subword_units)
        return F.embedding(batch.ids, sums / counts.clamp(min=1)[:, None])

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        return self.pooled_features(batch) if self.bags else super().pool_features(output, batch)

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        if not self.bags:
            return super().pooled_features(batch)
        assert batch.subword_units is not None
        sums, counts = self.sum_vectors(batch.subword_units)
        ids = batch.ids[torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]]
        starts = batch.lengths.cumsum(0) - batch.lengths
        total = F.embedding_bag(ids, torch.cat([sums, counts[:, None]], 1), starts, mode="sum")
        return total[:, :-1] / total[:, -1:].clamp(min=1)

    def select_buckets(self, units: SubwordUnits) -> SubwordUnits:
        """Map units from buckets to rows of `grams`, dropping those that a pruned model lacks."""
        if self.buckets is None:
            return units
        parts = units.unit_ids.to(self.buckets)
        positions = torch.searchsorted(self.buckets, parts).clamp(max=max(0, len(self.buckets) - 1))
        there = self.buckets[positions] == parts if len(self.buckets) else torch.zeros_like(positions, dtype=torch.bool)
        words = torch.arange(len(units.word_ids), device=positions.device).repeat_interleave(units.unit_counts)
        sizes = words[there].bincount(minlength=len(units.word_ids))
        return replace(units, unit_ids=positions[there], unit_starts=sizes.cumsum(0) - sizes)

    def sum_vectors(self, units: SubwordUnits) -> tuple[Tensor, Tensor]:
        """[words, width] sum of the vectors of each word, and [words] their number."""
        units = self.select_buckets(units)
        known = (units.word_ids >= 0).to(self.words.weight.dtype)
        own = self.words(units.word_ids.clamp(min=0)) * known[:, None]
        grams = F.embedding_bag(units.unit_ids.long(), self.grams.weight, units.unit_starts, mode="sum")
        return own + grams, known + units.unit_counts

    def used_embeddings(self, units: SubwordUnits) -> tuple[dict[str, Tensor], SubwordUnits]:
        units = self.select_buckets(units)
        known = units.word_ids >= 0
        words, positions = units.word_ids[known].unique(return_inverse=True)
        grams, parts = units.unit_ids.long().unique(return_inverse=True)
        used = {"words": words, "grams": grams}
        return used, replace(units, word_ids=units.word_ids.masked_scatter(known, positions), unit_ids=parts)


class FastTextTraining(Word2vecTraining):
    """word2vec's negative sampling loss, where v is the mean of all vectors of the center, which predicts each context
    word (skip-gram), or of all vectors of all context words, which predicts the center (CBOW)."""

    encoder: FastTextEncoder

    def __init__(self, system: FastText, encoder: FastTextEncoder, tokenizer: Tokenizer):
        super().__init__(system, encoder, tokenizer)
        self.tokenizer = tokenizer

    @cached_property
    def subword_units(self) -> SubwordUnits:
        """Units of the whole vocabulary."""
        assert isinstance(self.system, FastText)
        return self.system.subword_units(range(len(self.tokenizer)), self.tokenizer)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """[words + 1] n-gram starts of each word, and the end."""
        return np.append(self.subword_units.unit_starts.numpy(), len(self.subword_units.unit_ids))

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContextWindows:
        """The windows of these examples, where `context` are the input words: the center itself in skip-gram."""
        from keel.kernels.context_windows import subsample_words
        from keel.kernels.fasttext_updates import allocate_targets, sample_targets

        text, sampling = self._kernel_inputs(data)
        system, cbow = self.system, self.system.architecture == "cbow"
        found: list[list[np.ndarray]] = []
        for first, last, state in self._chunks(data, rng, examples):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = subsample_words(*text, first, last, sampling.keep, state, words, sentences)
            tables = allocate_targets(count, system.window, system.negatives)
            draws = (system.window, *sampling[1:], system.negatives, cbow, np.uint64(state))
            sample_targets(words, sentences, count, *draws, *tables)
            found.append([words[:count, None], *tables])
        centers, context, targets, sizes = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*found, strict=True)
        )
        some = sizes[:, 0] > 0
        context, targets, sizes = (context if cbow else centers)[some].long(), targets[some].long(), sizes[some]
        present = (torch.arange(context.shape[1]) < sizes[:, :1]).float()
        labels, target_mask = ((torch.arange(targets.shape[1]) < sizes[:, [column]]).float() for column in (1, 2))
        return ContextWindows(
            context=context * present.long(), context_mask=present, targets=targets * target_mask.long(),
            target_mask=target_mask, labels=labels,
        )  # fmt: skip

    def counts(self, batch: ContextWindows) -> dict[str, Tensor]:
        return {"negative": batch.labels.sum().double(), "centers": torch.tensor(len(batch.context))}

    def forward(self, batch: ContextWindows, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        sums, counts = self.encoder.sum_vectors(self.subword_units.index_select(batch.context.flatten()))
        sums = (sums.view(*batch.context.shape, self.encoder.width) * batch.context_mask[..., None]).sum(1)
        v = sums / (counts.view(batch.context.shape) * batch.context_mask).sum(1, keepdim=True)  # [centers, width]
        scores = (F.embedding(batch.targets, self.contexts) @ v[..., None])[..., 0]  # [centers, targets]
        return {"negative": -(F.logsigmoid(scores * (2 * batch.labels - 1)) * batch.target_mask).sum()}, None

    def bind_kernel(self, data: Documents, lr: np.float32) -> Callable[..., tuple[float, int]]:
        from keel.kernels.fasttext_updates import update_fasttext

        text, sampling = self._kernel_inputs(data)
        words, grams = self.encoder.words.weight, self.encoder.grams.weight
        vectors = as_aligned_array(words), as_aligned_array(grams), as_aligned_array(self.contexts)
        units = self.subword_units.unit_ids.numpy(), self._bounds
        settings = self.system.window, self.system.negatives, self.system.architecture == "cbow", lr
        return lambda starts, ends, states: update_fasttext(
            *text, *sampling, starts, ends, states, *vectors, *units, *settings
        )

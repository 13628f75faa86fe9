"""fastText (Bojanowski, Grave, Joulin & Mikolov, "Enriching Word Vectors with Subword Information", 2017).

New then: a word is the mean of a vector of its own and of one for each of its n-grams, the stretches of 3 to 6 letters
of "<word>". What is spelled alike then shares what it learned, and a word never met has a vector all the same. N-grams
are not listed but hashed into a fixed number of rows ("buckets").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.token_batch import SubwordUnits, TokenBatch, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import EncoderOutput
from keel.systems.fasttext_classifier import (
    END_OF_LINE,
    LABEL_PREFIX,
    BagTraining,
    LabelLoss,
    build_bags,
    label_log_probs,
    label_tree,
)
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.systems.static_vectors import StaticEncoder
from keel.systems.word2vec import ContextWindows, Word2vec, Word2vecTraining, as_aligned_array
from keel.training.counter_rng import CounterRng
from keel.training.objective import State
from keel.training.plan import Train


@dataclass(frozen=True, kw_only=True)
class FastText(Word2vec):
    """The hyper-parameters of fastText; as they stand, those of its own program."""

    min_n: int = 3
    """Letters of the shortest n-grams, the marks < and > around a word counted."""
    max_n: int = 6
    """Letters of the longest; 0 for words alone."""
    buckets: int = 2_000_000
    """Vectors that n-grams share by their hash."""
    kept_buckets: int = -1
    """Of a pruned model, how many of these vectors are left; -1 for all."""
    supervised: bool = False
    """Whether it is a classifier, which learns from labels: a text is then the bag of all words and n-grams in it."""
    word_ngrams: int = 1
    """Words in the longest of those stretches of words that a classifier also reads."""
    label_loss: LabelLoss = "softmax"
    """How a classifier tells labels apart; of several labels in one text, each for itself."""
    label_counts: tuple[int, ...] = ()
    """How often each label of a classifier came, by which its tree is built."""
    sampling_power: float = 0.5
    subsample: float = 1e-4

    name: ClassVar[str] = "fasttext"
    pretraining_defaults: ClassVar[Train] = Train(
        optimizer="own", epochs=5, batch=16, lr=0.05, warmup=0, evaluate_every=0, log_every=100, device="cpu"
    )
    uses_subwords: ClassVar[bool] = True
    dropout: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "negative":
            raise UsageError(
                f"fastText's vectors are learned by negative sampling here, not by {self.loss}: leave out --system.loss"
            )
        if self.word_ngrams < 1:
            raise UsageError(f"word_ngrams must be 1 or more, not {self.word_ngrams}: 1 is words alone")
        if self.kept_buckets >= 0 and self.buckets > 1 << 24:
            raise UsageError(
                f"a pruned model has at most {1 << 24:,} buckets, not {self.buckets:,}: take the whole one"
            )
        if not 0 <= self.min_n <= self.max_n:
            raise UsageError(f"min_n must lie between 0 and max_n ({self.max_n}), not at {self.min_n}")
        if self.buckets < (self.max_n > 0 or self.word_ngrams > 1):
            raise UsageError(f"buckets must be 1 or more, not {self.buckets}: n-grams need them")

    @property
    def ngram_vectors(self) -> int:
        """How many vectors of n-grams there are."""
        used = self.max_n > 0 or (self.supervised and self.word_ngrams > 1)
        return self.kept_buckets if self.kept_buckets >= 0 else self.buckets if used else 0

    @property
    def max_length(self) -> int:
        """A bag is summed up without writing out its vectors."""
        return 1 << 20 if self.supervised else super().max_length

    def finetuning_defaults(self, frozen: bool) -> Train:
        if frozen:
            return super().finetuning_defaults(frozen)
        return Train(optimizer="own", epochs=5, batch=1024, lr=0.1, warmup=0, evaluate_every=0, device="cpu")

    def build_encoder(self, vocab_size: int) -> "FastTextEncoder":
        return FastTextEncoder(
            vocab_size, self.width, self.ngram_vectors, pruned=self.kept_buckets >= 0, bags=self.supervised
        )

    @property
    def finetuning_policy(self) -> "FastTextFineTuning":
        return FastTextFineTuning(self, ("word_ngrams", "label_loss", "negatives"))

    def build_objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "FastTextTraining":
        assert isinstance(encoder, FastTextEncoder)
        if self.supervised:
            raise UsageError("a classifier of fastText's learns from labels, not from text: use keel finetune")
        if self.kept_buckets >= 0:
            raise UsageError("this model was pruned, and cannot learn on: take the whole one")
        return FastTextTraining(self, encoder, tokenizer)

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """The n-grams of these words; special pieces have none."""
        return self.hash_ngrams(ids, self.written_forms(ids, tokenizer), len(tokenizer))

    def hash_ngrams(self, ids: Sequence[int], words: list[str], vocabulary: int) -> SubwordUnits:
        """The n-grams of these words as they are written; ids beyond the vocabulary have no vector of their own."""
        from keel.kernels.fasttext_updates import hash_subwords

        grams, starts = hash_subwords(words, self.min_n, self.max_n, self.buckets)
        met = range(vocabulary)
        known = [number if word and number in met else -1 for number, word in zip(ids, words, strict=True)]
        return SubwordUnits(
            word_ids=torch.tensor(known), unit_ids=torch.from_numpy(grams), unit_starts=torch.from_numpy(starts)
        )

    def written_forms(self, ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
        """The words as they are written; nothing for special pieces and for what fastText takes for a label."""
        specials = set(tokenizer.special_ids)
        words = ["" if number in specials else tokenizer.token_of(number) for number in ids]
        return ["" if word.startswith(LABEL_PREFIX) else word for word in words] if self.supervised else words


class FastTextFineTuning(FineTuningPolicy):
    """fastText's classifier: bags of words and n-grams, learned text by text, told apart in its own ways."""

    system: FastText

    def from_scratch_system(self) -> FastText:
        return replace(self.system, supervised=True, min_n=0, max_n=0)

    def extend_new_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_word(END_OF_LINE)

    def adapt_system(self, kind: str, counts: Sequence[int], *, frozen: bool) -> FastText:
        if kind in ("tags", "choice"):  # no bags of words, but one word at a time
            return replace(self.system, supervised=False, label_loss="softmax", label_counts=())
        if frozen:  # the head learns by gradients, as any system's does
            return replace(self.system, label_loss="softmax", label_counts=())
        if kind == "number":
            remedy = "say --labels one to take each as a label, or --freeze to learn numbers on vectors as they are"
            raise UsageError(f"fastText's classifier learns labels, not numbers: {remedy}")
        loss = self.system.label_loss if kind == "one" else "one-vs-all"
        return replace(self.system, supervised=True, label_loss=loss, label_counts=tuple(counts))

    def subword_inputs(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
        """A classifier's rows are bags: they also hold the mark of the end, if it knows one, and stretches of words."""
        system = self.system
        if not system.supervised:
            return super().subword_inputs(ids, starts, tokenizer)
        end = tokenizer.id_of(END_OF_LINE)
        used, places = distinct_ids(np.append(ids, end))
        mark = -1 if end == tokenizer.unknown_id else int(places[-1])
        words = system.written_forms(used.tolist(), tokenizer)
        spelling = system.hash_ngrams(used.tolist(), words, len(tokenizer))
        return build_bags(places[:-1], starts, mark, spelling, words, system.word_ngrams, system.buckets)

    def custom_update(self, task: Any) -> BagTraining | None:
        if not self.system.supervised:
            return None
        return BagTraining(task, self.system.label_loss, self.system.negatives, self.system.label_counts)

    def label_logits(self, scores: Tensor) -> Tensor:
        """By a tree, each label's chance is that of the walk to it."""
        if not self.system.supervised or self.system.label_loss != "hierarchical":
            return scores
        return label_log_probs(scores, label_tree(self.system.label_counts))

    @property
    def one_vs_rest(self) -> bool:
        return self.system.supervised and self.system.label_loss in ("negative", "one-vs-all")


class FastTextEncoder(StaticEncoder):
    """The mean of a word's own vector, if it has one, and of those of its n-grams."""

    def __init__(self, vocab_size: int, width: int, grams: int, *, pruned: bool = False, bags: bool = False):
        super().__init__(vocab_size, width)
        # Rows of whole lanes from the start: to move hundreds of megabytes into such later takes their room twice.
        self.grams = nn.Embedding(grams, width, _weight=torch.zeros(grams, -(-width // 16) * 16)[:, :width])
        nn.init.uniform_(self.words.weight, -1 / width, 1 / width)
        if not bags:  # what a classifier never met says nothing
            nn.init.uniform_(self.grams.weight, -1 / width, 1 / width)
        self.bags = bags
        """Whether a text is the mean of all vectors in it rather than of its words."""
        # Whole numbers below 2^24, which float32 holds: so they are saved like any weight.
        self.buckets = nn.Buffer(torch.zeros(grams)) if pruned else None
        """Of a pruned model: which bucket each row of grams is, in order; of the others nothing is known."""

    def embed(self, batch: TokenBatch) -> Tensor:
        assert batch.subword_units is not None, "rows for fastText carry the spelling of their words (System.spelled)"
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

    def select_buckets(self, spelling: SubwordUnits) -> SubwordUnits:
        """The spelling by rows of grams, without n-grams that a pruned model has none for."""
        if self.buckets is None:
            return spelling
        parts = spelling.unit_ids.to(self.buckets)
        places = torch.searchsorted(self.buckets, parts).clamp(max=max(0, len(self.buckets) - 1))
        there = self.buckets[places] == parts if len(self.buckets) else torch.zeros_like(places, dtype=torch.bool)
        words = torch.arange(len(spelling.word_ids), device=places.device).repeat_interleave(spelling.unit_counts)
        sizes = words[there].bincount(minlength=len(spelling.word_ids))
        return replace(spelling, unit_ids=places[there], unit_starts=sizes.cumsum(0) - sizes)

    def sum_vectors(self, spelling: SubwordUnits) -> tuple[Tensor, Tensor]:
        """[words, width] the sum of the vectors that each word is the mean of, and [words] their number."""
        spelling = self.select_buckets(spelling)
        known = (spelling.word_ids >= 0).to(self.words.weight.dtype)
        own = self.words(spelling.word_ids.clamp(min=0)) * known[:, None]
        grams = F.embedding_bag(spelling.unit_ids.long(), self.grams.weight, spelling.unit_starts, mode="sum")
        return own + grams, known + spelling.unit_counts

    def used_embeddings(self, units: SubwordUnits) -> tuple[dict[str, Tensor], SubwordUnits]:
        units = self.select_buckets(units)
        known = units.word_ids >= 0
        words, places = units.word_ids[known].unique(return_inverse=True)
        grams, parts = units.unit_ids.long().unique(return_inverse=True)
        met = {"words": words, "grams": grams}
        return met, replace(units, word_ids=units.word_ids.masked_scatter(known, places), unit_ids=parts)


class FastTextTraining(Word2vecTraining):
    """word2vec's loss with negatives, where v is the mean of all vectors of a word, which foretells each word near it;
    or in CBOW the mean of all vectors of all words near a word, which foretells that."""

    encoder: FastTextEncoder

    def __init__(self, system: FastText, encoder: FastTextEncoder, tokenizer: Tokenizer):
        super().__init__(system, encoder, tokenizer)
        self.tokenizer = tokenizer

    @cached_property
    def subword_units(self) -> SubwordUnits:
        """That of all words."""
        return self.system.subword_units(range(len(self.tokenizer)), self.tokenizer)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """[words + 1] where each word's n-grams start, and the end."""
        return np.append(self.subword_units.unit_starts.numpy(), len(self.subword_units.unit_ids))

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContextWindows:
        """The windows of these rows, where `near` are the words whose mean foretells: in skip-gram the center alone."""
        from keel.kernels.context_windows import subsample_words
        from keel.kernels.fasttext_updates import allocate_targets, sample_targets

        text, chances = self._prepared(data)
        system, bag = self.system, self.system.architecture == "cbow"
        found: list[list[np.ndarray]] = []
        for first, last, state in self._chunks(data, rng, examples):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = subsample_words(*text, first, last, chances.keep, state, words, sentences)
            tables = allocate_targets(count, system.window, system.negatives)
            draws = (system.window, *chances[1:], system.negatives, bag, np.uint64(state))
            sample_targets(words, sentences, count, *draws, *tables)
            found.append([words[:count, None], *tables])
        centers, near, targets, sizes = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*found, strict=True)
        )
        some = sizes[:, 0] > 0
        near, targets, sizes = (near if bag else centers)[some].long(), targets[some].long(), sizes[some]
        present = (torch.arange(near.shape[1]) < sizes[:, :1]).float()
        truths, compared = ((torch.arange(targets.shape[1]) < sizes[:, [column]]).float() for column in (1, 2))
        return ContextWindows(
            context=near * present.long(), context_mask=present, targets=targets * compared.long(),
            target_mask=compared, labels=truths,
        )  # fmt: skip

    def counts(self, batch: ContextWindows) -> dict[str, Tensor]:
        return {"negative": batch.labels.sum().double(), "centers": torch.tensor(len(batch.context))}

    def forward(self, batch: ContextWindows, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        sums, counts = self.encoder.sum_vectors(self.subword_units.index_select(batch.context.flatten()))
        sums = (sums.view(*batch.context.shape, self.encoder.width) * batch.context_mask[..., None]).sum(1)
        v = sums / (counts.view(batch.context.shape) * batch.context_mask).sum(1, keepdim=True)  # [centers, width]
        scores = (F.embedding(batch.targets, self.contexts) @ v[..., None])[..., 0]  # [centers, targets]
        return {"negative": -(F.logsigmoid(scores * (2 * batch.labels - 1)) * batch.target_mask).sum()}, None

    def update(
        self, data: Documents, rng: CounterRng, examples: range, lr: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels.fasttext_updates import update_fasttext

        text, chances = self._prepared(data)
        vectors = (
            as_aligned_array(self.encoder.words.weight),
            as_aligned_array(self.encoder.grams.weight),
            as_aligned_array(self.contexts),
        )
        system, spelled = self.system, (self.subword_units.unit_ids.numpy(), self._bounds)

        def one(places: Sequence[tuple[int, int, np.uint64]]) -> tuple[float, int]:
            firsts, lasts, states = (np.array(column) for column in zip(*places, strict=True))
            return update_fasttext(
                *text, *chances, firsts, lasts, states, *vectors, *spelled, system.window, system.negatives,
                system.architecture == "cbow", np.float32(lr),
            )  # fmt: skip

        return self._run_threads(list(self._chunks(data, rng, examples)), threads, one)

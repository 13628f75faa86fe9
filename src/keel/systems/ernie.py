"""ERNIE (Sun et al., 2019): BERT, pre-trained to predict whole phrases and entities instead of single tokens.

New then: knowledge masking. A token of a name can be guessed from the rest of the name; if the whole name is masked,
what is known about it must be learned. Masking is basic (BERT's own), of phrases, and of entities.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from keel.config import Ge, Le
from keel.data.documents import Documents
from keel.data.mlm_sampling import MILLION, SampledSpans, sample_masked_units
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.systems.bert import Bert, BertBatch, BertEncoder, BertPretraining
from keel.training.counter_rng import CounterRng, derive_seed
from keel.training.objective import Phase

MASKING_LEVELS = ("basic", "phrase", "entity")
"""The levels; that of number n > 0 is bit n of a token's unit code, bit 0 tells words."""
SPARE_SLOTS = 3
"""Prediction slots for a unit that is longer than what is left to mask."""


@dataclass(frozen=True, kw_only=True)
class Ernie(Bert):
    """The hyper-parameters of ERNIE; the defaults are BERT-base's."""

    masking: Literal["stages", "mixed"] = "stages"
    """How the levels of masking are combined. stages: basic, then phrases, then entities, each for its share of the
    steps, as published; mixed: each sequence has a level, sampled by the shares."""
    phrase_share: Annotated[float, Ge(0), Le(1)] = 1 / 3
    """Share of masking by phrases: words, and the phrases of --text.phrases."""
    entity_share: Annotated[float, Ge(0), Le(1)] = 1 / 3
    """Share of masking by entities (--text.entities, --text.entity-model), and by phrases elsewhere. The rest is basic:
    by tokens, or by words with whole_word_masking."""
    variant: Literal["bert"] = "bert"

    name = "ernie"
    year = 2019
    tunable = (*Bert.tunable, "masking", "phrase_share", "entity_share")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_span > 1:
            what = f"mask_span {self.mask_span} does not go with {self.name}, which masks words, phrases and entities"
            raise UsageError(f"{what}: leave it out")
        if self.phrase_share + self.entity_share > 1 + 1e-9:
            what = f"phrase_share {self.phrase_share:g} and entity_share {self.entity_share:g} exceed 1 together"
            raise UsageError(f"{what}: lower one of them")

    @property
    def needs_word_starts(self) -> bool:
        return False

    @property
    def needs_units(self) -> bool:
        return True

    @property
    def level_shares(self) -> tuple[float, float, float]:
        """The share of each of MASKING_LEVELS."""
        return max(0.0, 1 - self.phrase_share - self.entity_share), self.phrase_share, self.entity_share

    @property
    def phase_plan(self) -> "list[MaskingPhase]":
        """The phases of pre-training: a stage ends, or sequences become longer."""
        levels: dict[float, int] = {}
        if self.masking == "stages":
            for level, begin in enumerate(accumulate(self.level_shares[:-1], initial=0.0)):
                if self.level_shares[level] > 0:
                    levels[begin] = level
        lengths = {0.0: self.sequence_length}
        if self.final_sequence_length:
            lengths[1 - self.final_share] = self.final_sequence_length
        cuts = sorted({0.0, *levels, *lengths, 1.0})
        return [
            MaskingPhase(
                share=stop - begin,
                level=levels[max(each for each in levels if each <= begin)] if levels else None,
                length=lengths[max(each for each in lengths if each <= begin)],
            )
            for begin, stop in pairwise(cuts)
        ]

    def prediction_slots(self, length: int) -> int:
        return super().prediction_slots(length) + SPARE_SLOTS

    def build_objective(self, encoder: BertEncoder, tokenizer: Tokenizer) -> "ErniePretraining":
        return ErniePretraining(self, encoder, tokenizer)


class MaskingPhase(NamedTuple):
    """A phase of pre-training."""

    share: float
    """Share of the steps."""
    level: int | None
    """Level of masking; None if every sequence has its own."""
    length: int
    """Sequence length."""


class ErniePretraining(BertPretraining):
    """BERT's objective, with units of text that are masked as a whole; each of their tokens becomes [MASK], a random
    token or stays independently of the others, as in the published code."""

    system: Ernie

    def phases(self) -> list[Phase]:
        shortest = self.system.sequence_length
        return [Phase(share=each.share, batch_share=shortest / each.length) for each in self.system.phase_plan]

    def phase_length(self, number: int) -> int:
        return self.system.phase_plan[number].length

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> BertBatch:
        # A phase begins a new epoch: in another order, or what the phases before it have read would come first again.
        seed = derive_seed(rng.seed, "phase", rng.phase) if rng.phase else rng.seed
        return super().batch(data, replace(rng, seed=seed), examples)

    def sample_masked(
        self, data: Documents, rng: CounterRng, examples: Tensor, spans: SampledSpans, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        system, codes = self.system, data.unit_codes(source)
        level = self.sample_levels(rng, examples)[:, None]
        basic = (codes & 1) | (0 if system.whole_word_masking else 1)
        starts = torch.where(level > 0, (codes >> level) & 1, basic) == 1
        return sample_masked_units(
            rng,
            examples,
            spans,
            spans.starts_with_bounds(starts),
            mask_rate=self.mask_rate_at(rng),
            slots=system.prediction_slots(source.shape[1]),
        )

    def sample_levels(self, rng: CounterRng, examples: Tensor) -> Tensor:
        """[batch] the level of masking of each sequence."""
        level = self.system.phase_plan[rng.phase].level
        if level is not None:
            return torch.full_like(examples, level)
        basic, phrase, _ = (round(share * MILLION) for share in self.system.level_shares)
        number = rng.randint("level", examples, MILLION).squeeze(1)
        return (number >= basic).long() + (number >= basic + phrase).long()

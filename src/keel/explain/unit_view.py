"""Masking units of a text at each level, and an example of masking at that level."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from keel.data.masking_units import LEVELS, MaskingUnits
from keel.data.mlm_sampling import MILLION, SampledSpans, replace_masked, sample_masked_units
from keel.data.sentence_splitting import split_sentences
from keel.errors import UsageError
from keel.model import Model
from keel.systems.bert import Bert
from keel.training.counter_rng import CounterRng


@dataclass(frozen=True, kw_only=True)
class LevelView:
    """The units of one level, and one example of masking."""

    name: str
    """token, word, phrase or entity."""
    sizes: list[int]
    """Number of tokens of each unit."""
    units: list[str]
    """Text of each unit."""
    masked: list[bool]
    """Whether each token is masked in the example, that is, to be predicted."""
    shown: list[str]
    """The tokens of the example: [MASK], a random token or the token itself where they are masked."""


@dataclass(frozen=True, kw_only=True)
class UnitView:
    """The units of a text."""

    tokens: list[str]
    by_level: list[LevelView]
    mask_rate: float
    left_out: int = 0
    """Tokens of the text beyond the length of a training sequence."""

    def to_dict(self) -> dict[str, Any]:
        levels = {
            each.name: {"units": each.units, "masked": each.masked, "shown": each.shown} for each in self.by_level
        }
        return {"tokens": self.tokens, "levels": levels, "mask_rate": self.mask_rate, "left_out": self.left_out}


def unit_view(model: Model, text: str, units: MaskingUnits, seed: int = 0) -> UnitView:
    """The units of a text by a model's tokenizer; levels that have no list or model of their own are left out."""
    system, tokenizer = model.system, model.tokenizer
    if not isinstance(system, Bert) or not tokenizer.has_special_token("mask"):
        raise UsageError(f"{system.name} is not pre-trained with masks: choose a model of bert, ernie or electra")
    sentences = split_sentences(text)
    ids, _ = tokenizer.encode_flat(sentences)
    codes = units.encode(tokenizer, sentences).codes
    count = min(len(ids), system.sequence_length - 2)
    names, spans = [tokenizer.word_of(number) for number in ids.tolist()], _texts(model, sentences)
    given = (True, True, units.phrases is not None, bool(units.entities or units.tagger))
    bits = [np.ones(len(ids), bool), *(codes >> level & 1 == 1 for level in range(len(LEVELS)))]
    levels = [
        _level(model, name, starts[:count], ids[:count], names, spans, seed)
        for name, starts, shown in zip(("token", *LEVELS), bits, given, strict=True)
        if shown
    ]
    return UnitView(tokens=names[:count], by_level=levels, mask_rate=system.mask_rate, left_out=len(ids) - count)


def _texts(model: Model, sentences: list[str]) -> list[tuple[int, int, str]]:
    """For each token where it starts and ends in its sentence, and the sentence."""
    encodings = model.tokenizer.encode_with_offsets(sentences)
    return [(*span, text) for text, each in zip(sentences, encodings, strict=True) for span in each.offsets]


def _level(
    model: Model,
    name: str,
    starts: np.ndarray,
    ids: np.ndarray,
    names: list[str],
    spans: list[tuple[int, int, str]],
    seed: int,
) -> LevelView:
    system, tokenizer = model.system, model.tokenizer
    assert isinstance(system, Bert)
    bounds = [*np.flatnonzero(starts).tolist(), len(ids)]
    pairs = list(pairwise(bounds))
    rng, first = CounterRng(seed=seed, step=0, first_example=0), torch.zeros(1, dtype=torch.long)
    length = torch.tensor([len(ids)])
    sequence = SampledSpans(first=first, first_length=length, second=first, second_length=first, paired=False)
    positions, weights = sample_masked_units(
        rng,
        first,
        sequence,
        sequence.starts_with_bounds(torch.from_numpy(np.concatenate([[True], starts, [True]]))[None]),
        mask_rate=round(system.mask_rate * MILLION),
        slots=min(system.prediction_slots(len(ids) + 2) + 3, len(ids)),
    )
    chosen = (positions[0] - 1)[weights[0] > 0]
    targets = torch.from_numpy(ids.astype(np.int64))[chosen][None]
    found = replace_masked(rng, first, targets, mask_id=tokenizer.mask_id, vocab_size=len(tokenizer))
    shown, masked = names[: len(ids)], [False] * len(ids)
    for place, number in zip(chosen.tolist(), found[0].tolist(), strict=True):
        shown[place], masked[place] = tokenizer.word_of(number), True
    return LevelView(
        name=name,
        sizes=[stop - start for start, stop in pairs],
        units=[spans[start][2][spans[start][0] : spans[stop - 1][1]].strip() for start, stop in pairs],
        masked=masked,
        shown=shown,
    )

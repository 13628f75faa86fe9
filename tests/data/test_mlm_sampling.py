"""Sampling of masked positions: masking rates and spans against their formulas."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from keel.data.mlm_sampling import (
    MILLION,
    SampledSpans,
    cut_spans,
    masked_count,
    replace_masked,
    sample_masked_positions,
)
from keel.training.counter_rng import CounterRng

RNG = CounterRng(seed=5, step=2, first_example=0)


def one_text(lengths: Tensor) -> SampledSpans:
    """A single text of each of these lengths, without a second one."""
    none = torch.zeros_like(lengths)
    return SampledSpans(first=none, first_length=lengths, second=none, second_length=none, paired=False)


def test_masked_tokens_are_counted_exactly() -> None:
    """In floating point, 0.26 x 225 = 58.5 rounds to 58 or 59 by the order of operations."""
    lengths = torch.arange(1, 4095)
    for percent in range(1, 100):
        mask_rate = percent * MILLION // 100
        expected = [max(1, int(Fraction(percent, 100) * length + Fraction(1, 2))) for length in lengths.tolist()]
        for each in (mask_rate, torch.tensor(mask_rate)):
            assert masked_count(one_text(lengths), each, slots=4096).squeeze(1).tolist() == expected


def two_texts(count: int, seed: int = 0, longest: int = 30) -> SampledSpans:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(1, longest, (count,), generator=generator) for _ in range(2))
    return SampledSpans(first=first, first_length=first, second=second, second_length=second)


def geometric(longest: int) -> list[float]:
    """P(l) = p (1 - p)^(l - 1) / (1 - (1 - p)^m) for l from 1 to m."""
    return [0.2 * 0.8 ** (length - 1) / (1 - 0.8**longest) for length in range(1, longest + 1)]


def sizes_of(starts: Tensor) -> Tensor:
    """The sizes of the units that start at these places of one text; the last one may be cut off."""
    return starts.nonzero().squeeze(1).diff()


@pytest.mark.parametrize(("longest", "mean"), [(1, 1.0), (3, 1.8525), (10, 3.797), (50, 4.9993)])
@pytest.mark.parametrize("words", [False, True])
def test_lengths_of_spans_follow_the_formula(longest: int, mean: float, words: bool) -> None:
    examples, length = torch.arange(60), 4000
    starts_word = None
    spans = one_text(torch.full((60,), length - 2))
    if words:
        starts_word = torch.randint(0, 3, (60, length), generator=torch.Generator().manual_seed(1)) == 0
        starts_word = spans.starts_with_bounds(starts_word)
    starts = cut_spans(RNG, examples, spans, starts_word, length, longest)
    rows = list(starts[:, 1 : length - 1])
    if starts_word is not None:
        assert not (starts & ~starts_word).any(), "a span starts where a word does"
        rows = [row[word] for row, word in zip(rows, starts_word[:, 1 : length - 1], strict=True)]
    sizes = torch.cat([sizes_of(row) for row in rows])
    assert len(sizes) > 60 * 200
    counts = torch.bincount(sizes, minlength=longest + 1)
    assert counts[0] == 0
    assert len(counts) == longest + 1, "none is longer, and minlength adds those that did not occur"
    for count, share in zip(counts[1:].tolist(), geometric(longest), strict=True):
        # Long spans are a little rarer, as the last one of a text is left out.
        assert abs(count - len(sizes) * share) <= 5 * math.sqrt(len(sizes) * share) + 60
    assert float(sizes.float().mean()) == pytest.approx(mean, rel=0.03)


def test_no_span_crosses_a_special_token_or_the_bound_of_a_text() -> None:
    spans = two_texts(500)
    starts = cut_spans(RNG, torch.arange(500), spans, None, 64, 10)
    assert (starts | ~spans.is_special(64)).all(), "special tokens and padding are spans of their own"
    first_of_b = spans.first_length + 2
    assert starts[:, 1].all()
    assert starts.gather(1, first_of_b[:, None]).all()
    positions, weights = sample_masked_positions(
        RNG, torch.arange(500), spans, None, length=64, mask_rate=400_000, slots=26, mask_span=10
    )
    assert not spans.is_special(64).gather(1, positions)[weights > 0].any()


def slow_positions(spans: SampledSpans, starts_word: Tensor | None, mask_rate: int, slots: int) -> list[list[int]]:
    """The masked positions of each sequence, span by span."""
    examples, length = torch.arange(len(spans.first)), 64
    starts = cut_spans(RNG, examples, spans, starts_word, length, 10)
    keys = (RNG.random_bits("mask", examples, length) >> 12).gather(1, starts.long().cumsum(1) - 1).tolist()
    found = []
    for row, stop in enumerate(spans.lengths.tolist()):
        text = [place for place in range(1, stop - 1) if place != int(spans.first_length[row]) + 1]
        begins = [place for place in text if starts[row, place]]
        order: list[int] = []
        for begin in sorted(begins, key=lambda place: keys[row][place]):
            span = [begin]
            while span[-1] + 1 in text and not starts[row, span[-1] + 1]:
                span.append(span[-1] + 1)
            order += span[::-1] if keys[row][begin] % 2 else span
        wanted = min(max(1, (len(text) * mask_rate + MILLION // 2) // MILLION), slots)
        chosen = order[:wanted]
        if starts_word is not None:
            words = starts_word[row].long().cumsum(0).tolist()
            first = [place for place in order if words[place] == words[order[0]]][:slots]
            left_out = {words[place] for place in order[wanted:]} - {words[order[0]]}
            chosen = first if len(first) > wanted else [place for place in chosen if words[place] not in left_out]
        found.append(chosen)
    return found


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("mask_rate", [150_000, 400_000])
def test_masked_spans_equal_a_slow_search(words: bool, mask_rate: int) -> None:
    spans, examples = two_texts(400, seed=3), torch.arange(400)
    starts_word = None
    if words:
        starts_word = torch.randint(0, 3, (400, 64), generator=torch.Generator().manual_seed(2)) == 0
        starts_word = spans.starts_with_bounds(starts_word)
    slots = 12 if mask_rate < 400_000 else 26
    positions, weights = sample_masked_positions(
        RNG, examples, spans, starts_word, length=64, mask_rate=mask_rate, slots=slots, mask_span=10
    )
    assert positions.shape == (400, slots)
    found = [row[used > 0].tolist() for row, used in zip(positions, weights, strict=True)]
    assert found == slow_positions(spans, starts_word, mask_rate, slots)


def test_masked_spans_are_the_rate_of_the_text_and_cover_it_evenly() -> None:
    count, length = 20_000, 62
    spans = one_text(torch.full((count,), length - 2))
    positions, weights = sample_masked_positions(
        RNG, torch.arange(count), spans, None, length=length, mask_rate=150_000, slots=10, mask_span=10
    )
    assert (weights.sum(1) == 9).all(), "15% of 60 tokens"
    counts = torch.bincount(positions[weights > 0], minlength=length)
    assert counts[0] == counts[length - 1] == 0
    shares = counts[1:-1] / count
    assert ((shares - 0.15).abs() < 0.1 * 0.15).all()
    assert ((shares[4:-4] - 0.15).abs() < 0.06 * 0.15).all()
    # Of a span of mean length 3.8, 2.8 tokens have a masked neighbour to their right, less what the last span loses.
    masked = torch.zeros(count, length, dtype=torch.bool).scatter(1, positions, weights > 0)
    together = float((masked[:, 1:] & masked[:, :-1]).sum() / masked.sum())
    assert 0.65 < together < 2.8 / 3.8 + 0.03


def test_the_tokens_of_a_span_are_replaced_alike() -> None:
    spans, examples = one_text(torch.full((5000,), 126)), torch.arange(5000)
    positions, weights = sample_masked_positions(
        RNG, examples, spans, None, length=128, mask_rate=150_000, slots=20, mask_span=10
    )
    targets = torch.full_like(positions, 7)
    shown = replace_masked(RNG, examples, targets, mask_id=3, vocab_size=10_000, spans_at=positions)
    kind = torch.where(shown == 3, 0, torch.where(shown == 7, 1, 2))
    joined = positions.diff(dim=1).abs() == 1
    used = (weights[:, 1:] > 0) & joined
    assert used.sum() > 50_000
    different = (kind[:, 1:] != kind[:, :-1]) & used
    assert different.sum() <= 0.001 * used.sum(), "only random tokens that happen to be [MASK] or the token itself"
    starts = torch.cat([torch.ones(5000, 1, dtype=torch.bool), ~joined], 1)
    first = kind[starts & (weights > 0)]
    for number, share in enumerate((0.8, 0.1, 0.1)):
        assert abs(int((first == number).sum()) - share * len(first)) <= 5 * math.sqrt(len(first) * share * 0.9)
    alone = replace_masked(RNG, examples, targets, mask_id=3, vocab_size=10_000)
    assert float(((alone[:, 1:] == 3) == (alone[:, :-1] == 3)).float().mean()) == pytest.approx(0.68, abs=0.01)

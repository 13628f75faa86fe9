"""Sampling of masked positions: rates and spans against their formulas."""

from fractions import Fraction

import torch

from keel.data.mlm_sampling import MILLION, SampledSpans, masked_count


def one_text(lengths: torch.Tensor) -> SampledSpans:
    """A single text of each of these lengths, without a second one."""
    none = torch.zeros_like(lengths)
    return SampledSpans(first=none, first_length=lengths, second=none, second_length=none, paired=False)


def test_masked_tokens_are_counted_exactly() -> None:
    """In floating point, 0.26 x 225 = 58.5 rounds to 58 or 59 by the order of operations."""
    lengths = torch.arange(1, 4095)
    for percent in range(1, 100):
        rate = percent * MILLION // 100
        expected = [max(1, int(Fraction(percent, 100) * length + Fraction(1, 2))) for length in lengths.tolist()]
        for each in (rate, torch.tensor(rate)):
            assert masked_count(one_text(lengths), each, slots=4096).squeeze(1).tolist() == expected

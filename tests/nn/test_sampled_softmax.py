import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.nn.sampled_softmax import SampledSoftmax
from keel.training.counter_rng import CounterRng

SPECIAL_IDS = (0, 2, 5)


def sampled(vocab_size: int, count: int) -> SampledSoftmax:
    return SampledSoftmax(vocab_size, count, SPECIAL_IDS)


def rng_of(step: int) -> CounterRng:
    return CounterRng(seed=0, step=step, first_example=0, batch_size=2)


def may_follow(vocab_size: int) -> list[int]:
    return [number for number in range(vocab_size) if number not in SPECIAL_IDS]


def test_samples_are_distinct_and_without_special_tokens() -> None:
    words = sampled(30, 12)
    draws = [words.sample(rng_of(step))[0] for step in range(200)]
    assert all(len({*each.tolist()}) == 12 for each in draws)
    assert {*torch.cat(draws).tolist()} == {*may_follow(30)}
    again = words.sample(rng_of(7))[0]
    assert torch.equal(again, draws[7])
    assert not torch.equal(again, draws[8])


def test_half_of_the_vocabulary_gives_the_full_softmax() -> None:
    assert sampled(27, 12).count == 0
    assert sampled(28, 12).count == 12
    negatives, tries = sampled(27, 12).sample(rng_of(0))
    assert (len(negatives), tries.item()) == (0, 0)


def test_logits_are_corrected_for_sampling() -> None:
    words = sampled(30, 12)
    probabilities = torch.zeros(30)
    probabilities[may_follow(30)] = ((torch.arange(27) + 2) / (torch.arange(27) + 1)).log() / math.log(28)
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
    draws = [words.sample(rng_of(step)) for step in range(2000)]
    shares = torch.cat([each for each, _ in draws]).bincount(minlength=30) / 2000
    expected = torch.stack([1 - (1 - probabilities) ** tries for _, tries in draws]).mean(0)
    assert (shares - expected).abs().max() < 0.05
    torch.manual_seed(0)
    negatives, tries = draws[0]
    vectors, table, bias, targets = torch.randn(4, 8), torch.randn(30, 8), torch.randn(30), torch.tensor([1, 3, 9, 29])
    by_hand = 0.0
    for vector, word in zip(vectors, targets, strict=True):
        ids = torch.cat([word[None], negatives[negatives != word]])
        scores = table[ids] @ vector + bias[ids] - (1 - (1 - probabilities[ids]) ** tries).log()
        by_hand += F.cross_entropy(scores[None], torch.zeros(1, dtype=torch.long)).item()
    assert words.loss(vectors, table, bias, targets, negatives, tries).item() == pytest.approx(by_hand, rel=1e-4)


def test_mean_gradient_equals_that_of_the_full_softmax() -> None:
    """At the optimum the gradient of the full softmax is zero; elsewhere it is not."""
    size = 63
    counts = torch.zeros(size, dtype=torch.long)
    counts[may_follow(size)] = 1 + 120 // torch.arange(1, 61)
    words = torch.arange(size).repeat_interleave(counts)
    vectors, table = torch.zeros(len(words), 8), torch.zeros(size, 8)

    def slopes(loss: Tensor, bias: Tensor) -> Tensor:
        return torch.autograd.grad(loss, bias)[0] / len(words)

    def repeating(step: int, bias: Tensor) -> Tensor:
        """Sampling with replacement, corrected by expected counts."""
        probabilities = ((torch.arange(size) + 2) / (torch.arange(size) + 1)).log() / math.log(size + 1)
        share = torch.rand(25, generator=torch.Generator().manual_seed(step))
        negatives = (torch.exp(share * math.log(size + 1)).long() - 1).clamp(0, size - 1)
        scores = bias - (25 * probabilities).log()
        others = scores[negatives].expand(len(words), -1).masked_fill(words[:, None] == negatives, -torch.inf)
        return (torch.logaddexp(scores[words], others.logsumexp(1)) - scores[words]).sum()

    ours = sampled(size, 25)
    still: list[tuple[float, float, float]] = []
    for start, within in ((counts.clamp(min=1).log().float(), 0.01), (torch.zeros(size), 0.03)):
        bias = start.masked_fill(counts == 0, -50.0).requires_grad_()
        every = slopes(F.cross_entropy(bias.expand(len(words), -1), words, reduction="sum"), bias)
        losses = [ours.loss(vectors, table, bias, words, *ours.sample(rng_of(step))) for step in range(400)]
        found = torch.stack([slopes(loss, bias) for loss in losses])
        repeated = torch.stack([slopes(repeating(step, bias), bias) for step in range(400)])
        error, theirs = ((each.mean(0) - every).norm().item() for each in (found, repeated))
        assert error < min(within, theirs)
        assert found.var(0).sum() < 0.5 * repeated.var(0).sum()
        still.append((every.norm().item(), error, theirs))
    assert still[0][0] < 1e-6 < 0.2 < still[1][0]
    assert still[0][2] > 3 * still[0][1], "with replacement the gradient of frequent words is biased"

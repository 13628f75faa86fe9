import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.nn.sampled_softmax import SampledSoftmax
from keel.training.counter_rng import CounterRng

MARKS = (0, 2, 5)


def sampled(vocabulary: int, count: int) -> SampledSoftmax:
    return SampledSoftmax(vocabulary, count, MARKS)


def draw(step: int) -> CounterRng:
    return CounterRng(seed=0, step=step, first_example=0, batch_size=2)


def may_follow(vocabulary: int) -> list[int]:
    return [number for number in range(vocabulary) if number not in MARKS]


def test_words_are_distinct_and_may_follow_a_word() -> None:
    words = sampled(30, 12)
    draws = [words.sample(draw(step))[0] for step in range(200)]
    assert all(len({*each.tolist()}) == 12 for each in draws)
    assert {*torch.cat(draws).tolist()} == {*may_follow(30)}
    again = words.sample(draw(7))[0]
    assert torch.equal(again, draws[7])
    assert not torch.equal(again, draws[8])


def test_where_half_of_all_are_asked_for_none_is_drawn() -> None:
    assert sampled(27, 12).count == 0
    assert sampled(28, 12).count == 12
    drawn, tries = sampled(27, 12).sample(draw(0))
    assert (len(drawn), tries.item()) == (0, 0)


def test_words_are_corrected_for() -> None:
    words = sampled(30, 12)
    chances = torch.zeros(30)
    chances[may_follow(30)] = ((torch.arange(27) + 2) / (torch.arange(27) + 1)).log() / math.log(28)
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    draws = [words.sample(draw(step)) for step in range(2000)]
    shares = torch.cat([each for each, _ in draws]).bincount(minlength=30) / 2000
    expected = torch.stack([1 - (1 - chances) ** tries for _, tries in draws]).mean(0)
    assert (shares - expected).abs().max() < 0.05
    torch.manual_seed(0)
    drawn, tries = draws[0]
    vectors, table, bias, told = torch.randn(4, 8), torch.randn(30, 8), torch.randn(30), torch.tensor([1, 3, 9, 29])
    by_hand = 0.0
    for vector, word in zip(vectors, told, strict=True):
        ids = torch.cat([word[None], drawn[drawn != word]])
        scores = table[ids] @ vector + bias[ids] - (1 - (1 - chances[ids]) ** tries).log()
        by_hand += F.cross_entropy(scores[None], torch.zeros(1, dtype=torch.long)).item()
    assert words.loss(vectors, table, bias, told, drawn, tries).item() == pytest.approx(by_hand, rel=1e-4)


def test_on_average_drawn_words_teach_what_all_words_do() -> None:
    """Where p is that of the words that follow, the gradient over all words is zero; and elsewhere it is not."""
    size = 63
    counts = torch.zeros(size, dtype=torch.long)
    counts[may_follow(size)] = 1 + 120 // torch.arange(1, 61)
    words = torch.arange(size).repeat_interleave(counts)
    vectors, table = torch.zeros(len(words), 8), torch.zeros(size, 8)

    def slopes(loss: Tensor, bias: Tensor) -> Tensor:
        return torch.autograd.grad(loss, bias)[0] / len(words)

    def repeating(step: int, bias: Tensor) -> Tensor:
        """Drawn with repeats, and corrected by how often each is expected."""
        chances = ((torch.arange(size) + 2) / (torch.arange(size) + 1)).log() / math.log(size + 1)
        share = torch.rand(25, generator=torch.Generator().manual_seed(step))
        drawn = (torch.exp(share * math.log(size + 1)).long() - 1).clamp(0, size - 1)
        scores = bias - (25 * chances).log()
        others = scores[drawn].expand(len(words), -1).masked_fill(words[:, None] == drawn, -torch.inf)
        return (torch.logaddexp(scores[words], others.logsumexp(1)) - scores[words]).sum()

    ours = sampled(size, 25)
    still: list[tuple[float, float, float]] = []
    for start, within in ((counts.clamp(min=1).log().float(), 0.01), (torch.zeros(size), 0.03)):
        bias = start.masked_fill(counts == 0, -50.0).requires_grad_()
        every = slopes(F.cross_entropy(bias.expand(len(words), -1), words, reduction="sum"), bias)
        losses = [ours.loss(vectors, table, bias, words, *ours.sample(draw(step))) for step in range(400)]
        found = torch.stack([slopes(loss, bias) for loss in losses])
        repeated = torch.stack([slopes(repeating(step, bias), bias) for step in range(400)])
        error, theirs = ((each.mean(0) - every).norm().item() for each in (found, repeated))
        assert error < min(within, theirs)
        assert found.var(0).sum() < 0.5 * repeated.var(0).sum()
        still.append((every.norm().item(), error, theirs))
    assert still[0][0] < 1e-6 < 0.2 < still[1][0]
    assert still[0][2] > 3 * still[0][1], "with repeats a frequent word is told too little of itself"

"""Sums over all chains and the best chain, against every chain counted one by one."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from keel.data.tag_schemes import allowed_transitions, invalid_transitions
from keel.nn.crf_layer import Crf, log_normalizer


def make(tags: int, spread: float = 1.0, seed: int = 0) -> Crf:
    torch.manual_seed(seed)
    crf = Crf(tags)
    for weight in crf.parameters():
        torch.nn.init.normal_(weight, std=spread)
    return crf


def one_by_one(crf: Crf, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every chain of one row."""
    starts, steps, ends = (weight.detach().double() for weight in (crf.starts, crf.transitions, crf.ends))
    scores = {}
    for chain in product(range(emissions.shape[1]), repeat=len(emissions)):
        score = starts[chain[0]] + ends[chain[-1]] + sum(emissions[t, tag].double() for t, tag in enumerate(chain))
        scores[chain] = float(score + sum(steps[a, b] for a, b in pairwise(chain)))
    return scores


@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_every_chain_counted_one_by_one_comes_to_the_same(spread: float) -> None:
    crf = make(3, spread)
    emissions, lengths = spread * torch.randn(4, 5, 3), torch.tensor([5, 3, 1, 4])
    chains = torch.randint(3, (4, 5))
    found, best = crf(emissions, chains, lengths), crf.decode(emissions, lengths)
    marginals = crf.marginals(emissions, lengths)
    for row, length in enumerate(lengths.tolist()):
        scores = one_by_one(crf, emissions[row, :length])
        every = torch.tensor(list(scores.values()), dtype=torch.float64)
        whole = every.logsumexp(0)
        expected = scores[tuple(chains[row, :length].tolist())] - whole
        assert float(found[row].detach()) == pytest.approx(float(expected), rel=1e-5, abs=1e-5 * spread)
        assert tuple(best[row, :length].tolist()) == max(scores, key=lambda chain: scores[chain])
        assert not best[row, length:].any()
        expected_marginals = torch.zeros(length, 3, dtype=torch.float64)
        for chain, probability in zip(scores, (every - whole).exp(), strict=True):
            expected_marginals[range(length), chain] += probability
        torch.testing.assert_close(
            marginals[row, :length].double(), expected_marginals, atol=1e-5 * max(1.0, spread / 5), rtol=0
        )
        assert not marginals[row, length:].any()


@pytest.mark.parametrize("tags", [1, 2, 9, 17])
def test_the_kernel_gives_the_values_and_gradients_of_its_definition(tags: int) -> None:
    crf = make(tags)
    lengths = torch.tensor([7, 1, 0, 12, 5])
    rows = torch.tensor([1.0, -2.0, 3.0, 0.5, 0.0])
    results = []
    for normalizer in (crf.normalizer, lambda e, n: log_normalizer(e, n, crf.starts, crf.transitions, crf.ends)):
        torch.manual_seed(1)
        emissions = (3 * torch.randn(5, 12, tags)).requires_grad_()
        crf.zero_grad()
        found = normalizer(emissions, lengths)
        (found * rows).sum().backward()
        gradients = [emissions.grad, *(weight.grad for weight in crf.parameters())]
        results.append([found.detach(), *(each for each in gradients if each is not None)])
    assert len(results[0]) == 5
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert float(results[0][0][2]) == 0.0


@pytest.mark.parametrize("size", [1e4, 1e3, 140.0, 60.0])
def test_scores_of_any_size_stay_exact(size: float) -> None:
    """A tag that is forbidden by -size but wanted by +size counts as much as any other."""
    crf = make(3, 0.1)
    with torch.no_grad():
        crf.transitions[0, 1] = -size
        crf.transitions[2] = -size
    emissions = torch.zeros(1, 3, 3)
    emissions[0, 1, 1] = emissions[0, 0, 2] = size
    emissions = emissions.requires_grad_()
    lengths = torch.tensor([3])
    every = torch.tensor(list(one_by_one(crf, emissions[0].detach()).values()), dtype=torch.float64)
    found = crf.normalizer(emissions, lengths)
    found.sum().backward()
    assert float(found.detach()) == pytest.approx(float(every.logsumexp(0)), rel=1e-6, abs=1e-3)
    assert emissions.grad is not None
    torch.testing.assert_close(emissions.grad.sum(2), torch.ones(1, 3), atol=1e-3, rtol=0)


def test_only_allowed_chains_are_found() -> None:
    names = ["O", "B-A", "I-A", "B-B", "I-B"]
    crf = make(len(names))
    torch.manual_seed(2)
    emissions, lengths = 3 * torch.randn(200, 9, len(names)), torch.randint(0, 10, (200,))

    def broken(found: Tensor) -> int:
        chains = [[names[tag] for tag in row[:length]] for row, length in zip(found.tolist(), lengths, strict=True)]
        return sum(len(list(invalid_transitions(chain, "BIO"))) for chain in chains)

    assert broken(crf.decode(emissions, lengths)) > 50
    possible = allowed_transitions(names, "BIO")
    assert broken(crf.decode(emissions, lengths, possible)) == 0
    assert possible is not None
    scores = one_by_one(crf, emissions[0, :4])
    proper = [chain for chain in scores if not list(invalid_transitions([names[tag] for tag in chain], "BIO"))]
    best = crf.decode(emissions[:1, :4], torch.tensor([4]), possible)[0].tolist()
    assert tuple(best) == max(proper, key=lambda chain: scores[chain])


def test_a_chain_learns_what_may_follow_what() -> None:
    """By their neighbours alone tags that take turns are known, though no word says which it is."""
    crf = make(2, 0.1)
    chains = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]])
    emissions, lengths = torch.zeros(2, 6, 2), torch.tensor([6, 6])
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (-crf(emissions, chains, lengths).sum()).backward()
        optimizer.step()
    hint = emissions.clone()
    hint[0, 0, 1] = 1.0
    assert crf.decode(hint, lengths)[0].tolist() == [1, 0, 1, 0, 1, 0]
    assert float(crf(emissions, chains, lengths).detach().sum()) > -2.0

"""The CRF: Keel against pytorch-crf, the same scores and weights, one thread, in turns.

A step is log p of true chains with all gradients; the search is Viterbi's. Values, gradients and chains are compared
before anything is timed. Lengths are sampled from half the longest to the longest.

    pip install pytorch-crf==0.7.2
    python benchmarks/crf.py --rounds 30
"""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch import Tensor

from keel.nn.crf_layer import Crf

SHAPES = ((32, 30, 9), (64, 30, 9), (64, 50, 9), (32, 40, 17), (64, 50, 17), (64, 50, 40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("milliseconds, theirs and ours, and how many times as fast; median of", options.rounds)
    print(f"{'batch x words x tags':>20}{'step':>28}{'search':>28}{'both':>10}")
    for batch, length, tags in SHAPES:
        step, search = race(batch, length, tags, options.rounds)
        both = sum(theirs for theirs, _ in (step, search)) / sum(ours for _, ours in (step, search))
        shown = [f"{theirs:9.2f} {ours:7.2f} {theirs / ours:8.1f}x" for theirs, ours in (step, search)]
        print(f"{f'{batch} x {length} x {tags}':>20}{shown[0]:>28}{shown[1]:>28}{both:9.1f}x", flush=True)


def race(batch: int, length: int, tags: int, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Milliseconds of a step and of a search, theirs and ours."""
    torch.manual_seed(0)
    theirs: Any = import_module("torchcrf").CRF(tags, batch_first=True)
    ours = Crf(tags)
    weights = (theirs.start_transitions, theirs.transitions, theirs.end_transitions)
    with torch.no_grad():
        for weight, copy in zip(weights, (ours.starts, ours.transitions, ours.ends), strict=True):
            copy.copy_(weight)
    emissions, chains = torch.randn(batch, length, tags), torch.randint(tags, (batch, length))
    lengths = torch.randint(length // 2, length + 1, (batch,))
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]

    def learn(likelihood: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        scores = emissions.clone().requires_grad_()
        for weight in (*weights, *ours.parameters()):
            weight.grad = None
        found = -likelihood(scores)
        found.backward()
        assert scores.grad is not None
        return found.detach(), scores.grad

    runs: list[Callable[[], object]] = [
        lambda: learn(lambda scores: theirs(scores, chains, mask=mask, reduction="sum")),
        lambda: learn(lambda scores: ours(scores, chains, lengths).sum()),
        lambda: theirs.decode(emissions, mask),
        lambda: ours.decode(emissions, lengths),
    ]
    check(runs[0](), runs[1]())
    found = ours.decode(emissions, lengths)
    assert theirs.decode(emissions, mask) == [chain[:size].tolist() for chain, size in zip(found, lengths, strict=True)]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(1e3 * (time.perf_counter() - start))
    a, b, c, d = map(median, times)
    return (a, b), (c, d)


def check(theirs: object, ours: object) -> None:
    """Both found the same value and gradient."""
    assert isinstance(theirs, tuple)
    assert isinstance(ours, tuple)
    for one, two in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()

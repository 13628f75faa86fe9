"""Claims about networks before attention."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.claims.finding import Finding, Say

POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
QUESTIONS = {"AND": [0.0, 0.0, 0.0, 1.0], "XOR": [0.0, 1.0, 1.0, 0.0]}


def exclusive_or(say: Say) -> Finding:
    """25: one layer, two layers without an activation, two with one, each from 20 starts on AND and on XOR."""
    kinds = {
        "one layer (perceptron)": ((2, 1), False),
        "two layers, no activation": ((2, 8, 1), False),
        "two layers, tanh between": ((2, 8, 1), True),
    }
    best: dict[tuple[str, str], float] = {}
    for name, (sizes, bent) in kinds.items():
        for question, answers in QUESTIONS.items():
            scores = [_learn(sizes, bent, torch.tensor(answers), seed) for seed in range(20)]
            best[name, question] = max(scores)
            say(f"{name}: {question} {max(scores):.0%} right at best of 20 starts, {sum(scores) / 20:.0%} on average")
    one, flat, bent = kinds
    limited = max(best[one, "XOR"], best[flat, "XOR"])
    return Finding(
        best[one, "AND"] == 1 and limited <= 0.75 and best[bent, "XOR"] == 1,
        f"without an activation no number of layers gets more than {limited:.0%} of XOR, for they are one linear map; "
        f"with one, {best[bent, 'XOR']:.0%}",
    )


def _learn(sizes: tuple[int, ...], bent: bool, answers: Tensor, seed: int) -> float:
    """The share of the four answers that a network gives rightly after 1000 steps."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(width + 1, next_width, generator=generator) for width, next_width in pairwise(sizes)]

    def forward() -> Tensor:
        vectors = POINTS
        for number, weight in enumerate(weights):
            vectors = F.pad(vectors, (0, 1), value=1.0) @ weight  # the last row is the bias
            if bent and number < len(weights) - 1:
                vectors = torch.tanh(vectors)
        return vectors[:, 0]

    descend(lambda: F.binary_cross_entropy_with_logits(forward(), answers), weights, 1000, 0.5)
    return ((forward() > 0) == (answers > 0.5)).float().mean().item()


def descend(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, rate: float) -> float:
    """Move weights down the gradient of a loss, step by step; gives the loss before the last step."""
    for weight in weights:
        weight.requires_grad_()
    value = torch.zeros(())
    for _ in range(steps):
        value = loss()
        gradients = torch.autograd.grad(value, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
    return value.item()

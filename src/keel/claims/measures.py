"""Measurements and small optimizers that several experiments share."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def max_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def shortest_time(run: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of some runs."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def gradient_descent(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, lr: float) -> float:
    """Plain gradient descent; returns the loss before the last step."""
    for weight in weights:
        weight.requires_grad_()
    value = torch.zeros(())
    for _ in range(steps):
        value = loss()
        gradients = torch.autograd.grad(value, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= lr * gradient
    return value.item()


def train_adam(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, lr: float) -> None:
    """Minimize a loss with Adam."""
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=lr)
    for _ in range(steps):
        for weight, gradient in zip(weights, torch.autograd.grad(loss(), weights), strict=True):
            weight.grad = gradient
        optimizer.step()

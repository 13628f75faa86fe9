"""Measurements that several experiments share: differences, run times, small optimizations, linear probes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.claim import Say
from keel.data.token_batch import TokenBatch
from keel.metrics.bootstrap import bootstrap
from keel.nn.encoder import EncoderOutput


def max_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def parameter_count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def batch_of(ids: Tensor) -> TokenBatch:
    """Sequences [batch, time] of equal length."""
    return TokenBatch(ids=ids, lengths=torch.full((len(ids),), ids.shape[1]))


def join_values(values: Sequence[float], form: str = ".2f") -> str:
    return ", ".join(format(value, form) for value in values)


def recorded_attention(model: keel.Model, ids: list[int]) -> tuple[EncoderOutput, list[Tensor]]:
    """All layers' vectors of a sequence, and the attention weights [heads, time, time] of each layer."""
    seen: list[Tensor] = []
    with torch.no_grad():
        batch = batch_of(torch.tensor([ids])).to(model.device)
        output = model.encoder(batch, record=lambda name, layer, value: seen.append(value[0]), all_layers=True)
    return output, seen


def show_figure(say: Say, name: str, **settings: Any) -> None:
    """Add a diagram of `keel figure` to the result."""
    found = keel.figure(name, **settings)
    say.picture(found.picture, found.caption)


def shortest_time(run: Callable[[], object], runs: int = 5) -> float:
    """Seconds of the fastest of several runs."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def minimize(
    loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, lr: float,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, clip: float = 0.0, **settings: Any,
) -> float:  # fmt: skip
    """Minimize a loss, with gradients clipped to a norm of `clip`; returns the loss before the last step."""
    for weight in weights:
        weight.requires_grad_()
    chosen, value = optimizer(weights, lr=lr, **settings), torch.zeros(())
    for _ in range(steps):
        value = loss()
        for weight, gradient in zip(weights, torch.autograd.grad(value, weights), strict=True):
            weight.grad = gradient
        if clip:
            nn.utils.clip_grad_norm_(weights, clip)
        chosen.step()
    return value.item()


def linear_probe(vectors: Tensor, classes: Tensor, known: slice = slice(None, None, 2), ridge: float = 1e-9) -> Tensor:
    """Correctness of a ridge classifier that is fitted to the `known` vectors, on the others; as bool."""
    fitted = torch.zeros(len(vectors), dtype=torch.bool)
    fitted[known] = True
    inputs = F.pad(vectors, (0, 1), value=1.0).double()
    x, y = inputs[fitted], F.one_hot(classes[fitted]).double()
    weights = torch.linalg.solve(x.T @ x + ridge * len(x) * torch.eye(x.shape[1]), x.T @ y)
    return (inputs[~fitted] @ weights).argmax(1) == classes[~fitted]


def accuracy(correct: Tensor) -> float:
    return correct.float().mean().item()


def mean_score(values: np.ndarray) -> keel.Score:
    """Mean with its 95% bootstrap interval."""
    return bootstrap(lambda weights: {"mean": weights @ values / len(values)}, len(values))["mean"]


def word_vectors(model: keel.Model, texts: list[str], word: str, layer: int = -1) -> Tensor:
    """Vectors [texts, width] of a word in these texts."""
    found = model.encode(texts, layer=layer, pool="none")
    return torch.from_numpy(np.array([each.vectors[each.tokens.index(word)] for each in found]))

"""AdamW with the usual two groups, and the learning rate as a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

Schedule = Literal["linear", "cosine", "constant", "trapezoid"]


def rate_share(step: int, steps: int, *, schedule: Schedule, warmup: int, cooldown: int) -> float:
    """The share of the full rate at `step` of `steps`: up linearly over `warmup`, then by the schedule's name.

    linear and cosine fall to zero at the end; trapezoid stays at one and falls linearly over the last `cooldown` steps.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return max(0.0, 1 - progress)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if schedule == "trapezoid":
        return max(0.0, min(1.0, (steps - step) / max(1, cooldown)))
    return 1.0


def adamw(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> torch.optim.AdamW:
    """AdamW that decays matrices only: biases and norms are vectors, and decay would only hold them back."""
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in trained if parameter.ndim > 1]
    vectors = [(name, parameter) for name, parameter in trained if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=epsilon, fused=True)
